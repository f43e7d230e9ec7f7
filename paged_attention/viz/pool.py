"""The pool of blocks as a picture: who is in use, how often, who is free."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Protocol

from paged_attention.viz.canvas import FREE, IN_USE, SHARED, Canvas
from paged_attention.viz.picture import Picture

BLOCKS_PER_ROW = 8
MAX_DRAWN = 64  # a larger pool is drawn up to here, and counted as a whole


class Pool(Protocol):
    """What an allocator must offer to be drawn, whatever class it is."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def ref_count(self, block_id: int, /) -> int: ...


def pool_picture(
    allocator: Pool,
    highlight: Iterable[int] = (),
    owners: Mapping[int, str] | None = None,
) -> Picture:
    """Every block with its ref_count, as it is now.

    highlight  block ids that get a thick border
    owners     block_id -> text below it, such as the sequence that holds it
    """
    counts = [allocator.ref_count(i) for i in range(allocator.num_blocks)]
    owners = owners or {}
    marked = set(highlight)
    if unknown := marked - set(range(len(counts))):
        raise ValueError(f"no such block to highlight: {sorted(unknown)}")
    # An allocator that holds blocks itself is a prefix cache; whatever has the count 1
    # then is held by nobody else.
    cached: Iterable[int] = getattr(allocator, "block_ids", ())
    evictable = sum(counts[i] == 1 for i in cached)
    summary = pool_summary(counts, allocator.num_free, evictable)
    drawn = range(min(len(counts), MAX_DRAWN))
    if len(counts) > MAX_DRAWN:
        rest = counts[MAX_DRAWN:]
        summary += (
            f"\nNot drawn: blocks {MAX_DRAWN} … {len(counts) - 1}, "
            f"{rest.count(0)} of them free."
        )
    canvas = Canvas()
    # 5.5 points for each character of what stands below a block.
    width = max(62, 16 + 5.5 * max((len(name) for name in owners.values()), default=0))
    height = 56 if owners else 40
    for line, text in enumerate(reversed(summary.split("\n"))):
        canvas.line_of_text(-width / 2, -height / 2 - 22 - 16 * line, text)
    for i in drawn:
        row, column = divmod(i, BLOCKS_PER_ROW)
        x, y = column * (width + 12), row * (height + 14)
        # A count below 0, of a broken allocator, is drawn as in use, and not left out.
        look = (FREE, IN_USE, SHARED)[min(abs(counts[i]), 2)]
        canvas.box((x, y), (width, height), look, i in marked)
        top = y - height / 2
        canvas.text((x, top + 14), str(i), 14)
        canvas.text((x, top + 30), _state(counts[i]), 9)
        canvas.text((x, top + 45), owners.get(i, ""), 10)
    return Picture(
        canvas.source,
        _alt(summary, counts, owners, marked),
        _drawing(summary, counts[:MAX_DRAWN], owners, marked),
    )


def pool_summary(counts: Sequence[int], num_free: int, evictable: int = 0) -> str:
    """One sentence; evictable blocks are those that only a prefix cache holds."""
    free = counts.count(0)
    shared = sum(count > 1 for count in counts)
    text = f"Pool of {len(counts)} blocks: {len(counts) - free - evictable} in use"
    text += f" ({shared} shared)" if shared else ""
    text += f", {evictable} only cached" if evictable else ""
    text += f", {free} free."
    # A broken allocator may contradict itself; the picture must not hide that.
    agrees = num_free == free + evictable
    return text if agrees else f"{text} But num_free is {num_free}!"


def _state(count: int) -> str:
    return "free" if count == 0 else f"ref_count {count}"


def _alt(
    summary: str, counts: Sequence[int], owners: Mapping[int, str], marked: set[int]
) -> str:
    in_use = [i for i, count in enumerate(counts) if count]
    words = [summary.replace("\n", " ")]
    if len(in_use) <= 16:  # beyond that the sentence above says more
        for i in in_use:
            held = f", held by {owners[i]}" if i in owners else ""
            words.append(f"Block {i}: {_state(counts[i])}{held}.")
    if marked:
        words.append(f"Highlighted: block {', '.join(map(str, sorted(marked)))}.")
    return " ".join(words)


def _drawing(
    summary: str, counts: Sequence[int], owners: Mapping[int, str], marked: set[int]
) -> str:
    """A table, BLOCKS_PER_ROW columns at a time; *3* is a highlighted block."""
    lines = [summary]
    for start in range(0, len(counts), BLOCKS_PER_ROW):
        ids = range(start, min(start + BLOCKS_PER_ROW, len(counts)))
        columns = [("block", "ref_count", "held by" if owners else "")]
        for i in ids:
            name = f"*{i}*" if i in marked else str(i)
            columns.append((name, str(counts[i] or "free"), owners.get(i, "")))
        lines += aligned(columns)
    return "\n".join(lines)


def aligned(columns: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table; shorter columns end higher, empty lines are left out."""
    widths = [max(map(len, column)) + 2 for column in columns]
    rows = zip_longest(*columns, fillvalue="")
    lines = (
        "".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in rows
    )
    return [line.rstrip() for line in lines if line.strip()]
