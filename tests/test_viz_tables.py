"""Pictures of tables: each arrow and count is right, and a contradiction is seen."""

import re
import shutil
from types import SimpleNamespace

import pytest
from drawn import THICK, arrows_of, problems, words_in

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.sharing import fork
from paged_attention.viz import tables_picture
from paged_attention.viz.canvas import ALARM, FREE, MARK, SHARED

WORDS = ["Four", "score", "and", "seven", "years", "ago", "our", "fathers", "brought"]


def pool_of(num_blocks, *tables):
    """A pool whose counts are right for these tables, and the tables."""
    pool = BlockAllocator(num_blocks)
    pool.allocate_many(num_blocks)
    held = [block_id for ids in tables for block_id in ids]
    for block_id in range(num_blocks):
        for _ in range(held.count(block_id) - 1):
            pool.share(block_id)
    pool.free_many([i for i in reversed(range(num_blocks)) if i not in held])
    return pool, [BlockTable(pool, 4, ids, 4 * len(ids)) for ids in tables]


@pytest.fixture
def f17():
    """The picture that explanations of block tables show."""
    _, tables = pool_of(8, [0, 1, 5], [2, 1], [4, 5, 7])
    return {f"sequence {i}": table for i, table in enumerate(tables, 1)}


@pytest.fixture
def table():
    """7 tokens in blocks 0 and 1 of a pool of 8."""
    table = BlockTable(BlockAllocator(8), 4)
    table.append_tokens(7)
    return table


# Who holds which block


def test_each_arrow_leads_from_a_table_entry_to_its_block(f17):
    arrows = arrows_of(tables_picture(f17))
    assert [a.shows for a in arrows] == [a.ends_at for a in arrows]
    assert sorted(a.shows for a in arrows) == ["0", "1", "1", "2", "4", "5", "5", "7"]


def test_the_arrows_of_two_tables_differ_by_more_than_colour(f17):
    two = [f17["sequence 1"], f17["sequence 2"]]
    picture = tables_picture(dict(zip("AB", two, strict=True)), complete=False)
    pens = [re.sub('color="[^"]*"', "", arrow.pen) for arrow in arrows_of(picture)]
    # Block by block: 0 and 5 belong to A, 2 to B, 1 to both.
    assert len(set(pens)) == 2


def test_counts_holders_and_free_blocks_are_drawn_and_told(f17):
    picture = tables_picture(f17)
    words = words_in(picture.svg())
    assert words.count("free") == 2
    assert "Pool of 8 blocks: 6 in use (2 shared), 2 free." in words
    assert "Block 1: ref_count 2, held by sequence 1[1], sequence 2[1]." in picture.alt
    assert "sequence 3: 12 tokens, blocks 4, 5, 7." in picture.alt
    assert "Free list: 3, 6." in picture.alt
    assert "!" not in picture.alt
    assert THICK not in picture.svg()


def test_a_shared_block_has_a_second_border_in_table_and_pool(f17):
    fill = re.search('fillcolor="[^"]*"', SHARED)[0]
    # Blocks 1 and 5, each in two tables and in the pool, each time two boxes.
    assert tables_picture(f17).source.count(fill) == 2 * 3 * 2


def test_lists_of_blocks_are_tables_without_counts():
    picture = tables_picture({"A": [0, 1, 5], "B": [2, 1]})
    words = words_in(picture.svg())
    assert "6 blocks: 4 in tables (1 shared), 2 in none." in words
    assert "held" in words
    assert "ref_count" not in words + picture.text.split()


def test_a_hole_is_drawn_dashed_and_without_an_arrow(table):
    table.append_tokens(3)
    table.drop_before(5)
    picture = tables_picture({"A": table})
    assert words_in(picture.svg()).count("hole") == 1
    assert [arrow.ends_at for arrow in arrows_of(picture)] == ["1", "2"]
    assert "blocks a hole, 1, 2." in picture.alt
    num_free = table.allocator.num_free
    assert picture.source.count(FREE) == num_free + 1


def test_words_lie_in_the_block_of_their_tokens(table):
    picture = tables_picture({"A": table}, words={"A": WORDS})
    words = words_in(picture.svg())
    assert "years ago our" in words  # the second block; "fathers" is not in the table
    assert not any("fathers" in word for word in words)
    first = words.index("Four score and")
    assert words[first : first + 3] == ["Four score and", "seven", "0"]
    assert "1 · 3/4" in words


def test_a_note_stands_in_its_block_or_entry_and_is_told(table):
    notes = {0: "zeros", ("A", 1): "count 1"}
    picture = tables_picture({"A": table}, notes=notes)
    words = words_in(picture.svg())
    assert words.count("zeros") == words.count("count 1") == 1
    assert words.index("count 1") < words.index("ref_count") < words.index("zeros")
    assert "Note at block 0: zeros. Note at A[1]: count 1." in picture.alt


def test_a_highlighted_entry_and_block_have_a_thick_border_and_are_told(table):
    picture = tables_picture({"A": table}, highlight=[3, ("A", 1)])
    assert picture.svg().count(THICK) == 2
    marked = [a.ends_at for a in arrows_of(picture) if MARK in a.pen]
    assert marked == ["1"]
    assert "Highlighted: A[1], block 3." in picture.alt
    assert picture.text.split().count("*3*") == picture.text.split().count("*1*") == 1
    assert ALARM not in picture.source  # not the same as a contradiction


@pytest.mark.parametrize("place", [8, -1, ("A", 2), ("A", -1), ("B", 0)])
def test_a_place_that_does_not_exist_is_refused(table, place):
    with pytest.raises(ValueError, match=re.escape(str(place))):
        tables_picture({"A": table}, highlight=[place])
    with pytest.raises(ValueError, match=re.escape(str(place))):
        tables_picture({"A": table}, notes={place: "?"})


def test_words_of_what_is_no_table_are_refused(table):
    with pytest.raises(ValueError, match="'B'"):
        tables_picture({"A": table}, words={"B": WORDS})
    with pytest.raises(ValueError, match="block_size"):
        tables_picture({"A": [0, 1]}, words={"A": WORDS})


# What cannot be true


def test_two_holders_of_a_block_that_is_counted_once_are_seen(table):
    uncounted = BlockTable(table.allocator, 4, table.block_ids, 7)
    picture = tables_picture({"A": table, "B": uncounted})
    told = "! Block 1: ref_count 1, but held 2 times: A[1], B[1]."
    assert told in words_in(picture.svg())
    assert told in picture.text
    assert told in picture.alt
    assert words_in(picture.svg()).count("held 2×") == 2
    assert words_in(picture.svg()).count("!") == 2
    assert all(MARK in arrow.pen for arrow in arrows_of(picture))
    good = BlockTable(BlockAllocator(8), 4)
    good.append_tokens(7)
    counted = tables_picture({"A": good, "B": fork(good)})
    assert "!" not in counted.alt
    assert MARK not in counted.source


def test_a_block_that_was_freed_under_its_holder_is_seen(table):
    table.allocator.free(1)
    assert problems({"B": table}) == ["Block 1: free, but held by B[1]."]


def test_a_leak_is_seen_where_the_tables_are_all_that_hold_blocks(table):
    table.allocator.allocate()
    table.allocator.share(0)
    assert problems({"A": table}) == [
        "Block 0: ref_count 2, but held only by A[0].",
        "Block 2: ref_count 1, but nobody holds it.",
    ]
    assert problems({"A": table}, complete=False) == []


def broken(free_block_ids, counts):
    return SimpleNamespace(
        num_blocks=len(counts),
        num_free=len(free_block_ids),
        free_block_ids=free_block_ids,
        ref_count=lambda block_id: counts[block_id],
    )


@pytest.mark.parametrize(
    ("free_block_ids", "counts", "problem"),
    [
        ([1, 2, 1], [1, 0, 0], "Block 1: 2 times on the free list."),
        ([0, 1, 2], [1, 0, 0], "Block 0: ref_count 1, but on the free list."),
        ([2], [1, 0, 0], "Block 1: ref_count 0, but not on the free list."),
    ],
)
def test_a_free_list_that_contradicts_the_counts_is_seen(
    free_block_ids, counts, problem
):
    assert problems({"A": [0]}, broken(free_block_ids, counts)) == [problem]
    assert problems({"A": [0]}, broken([1, 2], [1, 0, 0])) == []


def test_a_block_outside_the_pool_and_a_wrong_length_are_seen(table):
    pool, (good,) = pool_of(4, [0])
    wrong = SimpleNamespace(block_ids=[9, -1], num_tokens=9, block_size=4)
    assert problems({"A": good, "W": wrong}, pool) == [
        "W[0]: block 9 is not in the pool.",
        "W: num_tokens 9 need 3 blocks of 4, it lists 2.",
    ]


def test_many_contradictions_do_not_flood_the_picture():
    pool = BlockAllocator(30)
    pool.allocate_many(30)
    picture = tables_picture({}, pool)
    assert "… and 24 more." in words_in(picture.svg())


# Size


def test_more_tables_than_fit_side_by_side_are_drawn_without_arrows():
    _, tables = pool_of(12, *[[i, i + 1, i + 2, i + 3] for i in range(8)])
    picture = tables_picture({f"beam {i}": table for i, table in enumerate(tables)})
    assert "->" not in picture.source
    words = words_in(picture.svg())
    assert all(f"beam {i}" in words for i in range(8))


def test_a_long_table_in_a_large_pool_is_drawn_in_part_and_told_as_a_whole():
    pool = BlockAllocator(5000)
    table = BlockTable(pool, 16)
    table.append_tokens(16 * 1000 + 1)
    picture = tables_picture({"A": table}, highlight=[("A", 500), 4000])
    words = words_in(picture.svg())
    assert "Pool of 5000 blocks: 1001 in use, 3999 free." in words
    assert {"500", "4000", "1000 · 1/16"} <= set(words)
    assert len(picture.source) < 50_000
    assert len(picture.alt) < 1000
    # What is left out is counted: of 1001 entries and of 5000 blocks.
    gaps = [int(word.split()[0]) for word in words if word.endswith(" more")]
    boxes = [word for word in words if word == "1" or word == "free"]
    assert len(boxes) < 100
    assert 5800 < sum(gaps) < 6001


def test_free_blocks_between_those_that_matter_are_left_out():
    _, (table,) = pool_of(64, [5, 40])
    picture = tables_picture({"A": table})
    words = words_in(picture.svg())
    assert [arrow.ends_at for arrow in arrows_of(picture)] == ["5", "40"]
    drawn = words.count("free") + 2
    gaps = [int(word.split()[0]) for word in words if word.endswith(" more")]
    assert drawn + sum(gaps) == 64


def test_plain_lines_are_not_longer_than_a_screen(table):
    table.append_tokens(20)
    picture = tables_picture({"A": table, "B": fork(table)}, words={"A": WORDS * 3})
    assert max(map(len, picture.text.split("\n"))) <= 100
    for word in WORDS:
        assert word in picture.text


@pytest.mark.skipif(shutil.which("dot") is None, reason="there is only one way here")
def test_both_ways_of_drawing_show_the_same(f17, monkeypatch):
    name = 'seq "A" &amp; <B> \\n'
    picture = tables_picture({name: f17["sequence 1"]}, words={name: WORDS})
    with_dot = words_in(picture.svg())
    monkeypatch.setenv("PATH", "")
    assert words_in(picture.svg()) == with_dot
    assert name in with_dot
