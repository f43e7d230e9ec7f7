"""Free lists as pictures: head, block after block, and the end, or a circle."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from paged_attention.viz.canvas import FREE, GREY, MARK, PADDING, Canvas
from paged_attention.viz.picture import Picture, counted

MAX_DRAWN = 9  # of a longer list: the first ones, the last two, and what matters
_HEIGHT = 30
_WIDTH = 34
_GAP = 26


class HasFreeList(Protocol):
    """An allocator that lists its free blocks, the next to be handed out first."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def free_block_ids(self) -> Sequence[int]: ...


@dataclass(frozen=True)
class _Chain:
    """Blocks in list order. The list ends (`end` says with what) or closes: then
    the last one points `back` to a position in the chain."""

    ids: Sequence[int]
    end: str = "end"
    back: int | None = None

    def positions(self, marked: set[int]) -> list[int]:
        """Which places of the list to draw."""
        num = len(self.ids)
        if num <= MAX_DRAWN:
            return list(range(num))
        # A few that are marked; of a circle, the place that it closes at.
        matter = [i for i in range(num) if self.ids[i] in marked][:3]
        matter = matter if self.back is None else [self.back]
        return sorted({*range(MAX_DRAWN - 3), *matter, num - 2, num - 1})


def free_list_picture(allocator: HasFreeList, highlight: Iterable[int] = ()) -> Picture:
    """The free list in the order in which the blocks will be handed out.

    highlight  block ids that get a thick border; a block that stands on the list
               more than once gets one too
    """
    chain = _Chain(list(allocator.free_block_ids))
    times = Counter(chain.ids)
    twice = sorted(i for i in times if times[i] > 1)
    caption = f"Free list: {counted(len(chain.ids), 'block')}."
    caption += "".join(f" Block {i} is on it {times[i]} times!" for i in twice)
    return _picture(caption, chain, allocator.num_blocks, {*highlight, *twice})


def linked_list_picture(
    head: int | None,
    next_of: Sequence[int | None] | Mapping[int, int | None],
    num_blocks: int,
    highlight: Iterable[int] = (),
) -> Picture:
    """A list that runs through the blocks themselves: each names the next one.

    next_of[block_id] is read only for blocks that the walk from head reaches. None,
    or an id outside the pool such as -1, ends the list. A list that closes into a
    circle is drawn as one, its blocks and the arrow back highlighted.
    """
    position: dict[int, int] = {}
    step = head
    # Ends at a block that was met before: then the list is a circle, and `back` says
    # where it closes. This is how a double free shows.
    while step is not None and 0 <= step < num_blocks and step not in position:
        position[step] = len(position)
        step = next_of[step]
    ids = list(position)
    if step in position:
        back = position[step]
        caption = f"A circle: block {ids[-1]} points back to block {step}. "
        caption += "The list has no end."
        marked = {*highlight, *ids[back:]}
        return _picture(caption, _Chain(ids, back=back), num_blocks, marked)
    caption = f"Linked list: {counted(len(ids), 'block')}."
    chain = _Chain(ids, "end" if step is None else f"end ({step})")
    return _picture(caption, chain, num_blocks, set(highlight))


def _picture(caption: str, chain: _Chain, num_blocks: int, marked: set[int]) -> Picture:
    canvas = Canvas()
    canvas.line_of_text(-14, -40, caption)
    on_list = set(chain.ids)
    off_list = [i for i in range(num_blocks) if i not in on_list]
    words = list(_words(chain, marked))
    if chain.back is None:
        words.append(chain.end)
    else:
        words.append(f"back to {chain.ids[chain.back]}")
    text = f"{caption}\nhead → {' → '.join(words)}"
    alt = f"{caption} From head: {', '.join(words).replace('*', '')}."
    if off_list:
        shown = [str(i) for i in off_list[:MAX_DRAWN]]
        if len(off_list) > MAX_DRAWN:
            shown.append(f"… {len(off_list) - MAX_DRAWN} more")
        text += f"\nnot on the list: {', '.join(shown)}"
        alt += f" Not on the list: {', '.join(shown)}."
        # Lower where an arrow runs back below the list.
        _draw_off_list(canvas, shown, marked, y=54 if chain.back is None else 84)
    if marked:
        alt += f" Highlighted: block {', '.join(map(str, sorted(marked)))}."
    _draw_chain(canvas, chain, marked)
    return Picture(canvas.source, alt, text)


def _words(chain: _Chain, marked: set[int]) -> Iterable[str]:
    """The blocks as the drawing shows them; *3* is a highlighted one."""
    before = -1
    for i in chain.positions(marked):
        if i > before + 1:
            yield f"… {i - before - 1} more …"
        block_id = chain.ids[i]
        yield f"*{block_id}*" if block_id in marked else str(block_id)
        before = i


def _draw_chain(canvas: Canvas, chain: _Chain, marked: set[int]) -> None:
    canvas.text((0, 0), "head", 12)
    x, before = 18.0, -1  # where the next arrow starts; the last position drawn
    centers: dict[int, float] = {}
    for i in chain.positions(marked):
        if i > before + 1:
            canvas.arrow([(x, 0), (x + _GAP, 0)])
            canvas.text((x + _GAP + 38, 0), f"… {i - before - 1} more …", 11, GREY)
            x += _GAP + 76
        canvas.arrow([(x, 0), (x + _GAP - 2, 0)])
        block_id = chain.ids[i]
        x += _GAP + _WIDTH / 2
        centers[i] = x
        canvas.box((x, 0), (_WIDTH, _HEIGHT), FREE, block_id in marked)
        canvas.text((x, 0), str(block_id), 14)
        x += _WIDTH / 2
        before = i
    if chain.back is None:
        canvas.arrow([(x, 0), (x + _GAP, 0)])
        canvas.line_of_text(x + _GAP + 6, 0, chain.end)
        return
    below = _HEIGHT / 2 + 24
    start, target = x, centers[chain.back]
    corner = start + 18
    path = [(start, 0), (corner, 0), (corner, below), (target, below)]
    canvas.arrow([*path, (target, _HEIGHT / 2 + 3)], marked=True)
    label = f"back to block {chain.ids[chain.back]}"
    canvas.text(((target + corner) / 2, below + 9), label, 11, MARK)


def _draw_off_list(
    canvas: Canvas, shown: Sequence[str], marked: set[int], y: float
) -> None:
    canvas.line_of_text(-14, y, "not on the list", GREY)
    for i, name in enumerate(shown):
        x = 92 + i * (_WIDTH + 8)
        if name.isdigit():
            canvas.box((x, y), (_WIDTH, _HEIGHT), PADDING, int(name) in marked)
            canvas.text((x, y), name, 14, GREY)
        else:
            canvas.text((x + 16, y), name, 10, GREY)
