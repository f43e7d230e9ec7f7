"""What a picture of tables shows, as data: so the drawing and its plain form agree.

One moment alone, or with another one before it: then what changed is marked and says
both.
"""

import textwrap
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import TypeVar

from paged_attention.viz.canvas import CACHED, FREE, IN_USE, PADDING, SHARED
from paged_attention.viz.memory import Place, Snapshot, TableState
from paged_attention.viz.picture import counted

MAX_ENTRIES = 16  # of a longer table: the first ones, the last two, and what is marked
MAX_IN_ROW = 14  # of a larger pool: what is in use or marked
MAX_BLOCKS = 56  # and of these so many
_MAX_LINES = 6
_T = TypeVar("_T")


@dataclass(frozen=True)
class Entry:
    """A logical block. label: the physical one; target: where the arrow goes."""

    name: str
    logical_block: int
    label: str
    target: int | None
    lines: Sequence[str]
    fill: str
    look: str
    marked: bool
    wrong: bool


@dataclass(frozen=True)
class Strip:
    """A table. An int among the entries says how many are left out there."""

    name: str
    caption: str
    entries: Sequence[Entry | int]


@dataclass(frozen=True)
class Block:
    """A physical block. label: its ref_count, or who holds it if nobody counts."""

    block_id: int
    label: str
    lines: Sequence[str]
    look: str
    marked: bool
    wrong: bool


@dataclass(frozen=True)
class View:
    """Tables above, blocks below. An int among the blocks: so many are left out."""

    strips: Sequence[Strip]
    blocks: Sequence[Block | int]
    counted: bool


def view_of(
    now: Snapshot, before: Snapshot | None = None, highlight: Set[Place] = frozenset()
) -> View:
    """What was there before is drawn too, marked, and so is what is new."""
    marked = {*highlight, *now.problems}
    # The old ones first: tables keep their places, and with them the dashes of their
    # arrows, when others come and go.
    tables = [*before.tables, *now.tables] if before else now.tables
    names = dict.fromkeys(table.name for table in tables)
    strips = [_strip(name, now, before, marked) for name in names]
    blocks = [_block(i, now, before, marked) for i in range(now.num_blocks)]
    return View(strips, list(_without_idle(blocks, now)), now.counts is not None)


def state_of(now: Snapshot, block_id: int) -> str:
    """The ref_count, or "free"; how many hold the block where nobody counts."""
    if now.counts is None:
        return str(len(now.holders[block_id])) if now.holders[block_id] else "–"
    return str(now.counts[block_id]) if now.counts[block_id] else "free"


def caption_of(
    now: TableState | None, before: TableState | None, compared: bool
) -> str:
    """How many tokens, and whether the table is new or gone."""
    if now is None:
        return "gone"
    words = ["new"] if compared and before is None else []
    if now.num_tokens is not None:
        tokens = counted(now.num_tokens, "token")
        if before and before.num_tokens not in (None, now.num_tokens):
            tokens = f"{before.num_tokens} → {tokens}"
        words.append(tokens)
    elif not now.block_ids:
        words.append("no blocks")
    return ", ".join(words)


def _strip(
    name: str, now: Snapshot, before: Snapshot | None, marked: Set[Place]
) -> Strip:
    table, old = now.table(name), before and before.table(name)
    length = max(len(t.block_ids) for t in (table, old) if t)
    entries = [
        _entry(i, table, old, now, before is not None, marked) for i in range(length)
    ]
    caption = caption_of(table, old, before is not None)
    return Strip(name, caption, list(_shortened(entries)))


def _entry(
    i: int,
    table: TableState | None,
    old: TableState | None,
    now: Snapshot,
    compared: bool,
    marked: Set[Place],
) -> Entry:
    """The i-th logical block, as it is in the table, in the old one, or in both."""
    is_here = table is not None and i < len(table.block_ids)
    was_here = old is not None and i < len(old.block_ids)
    shown = table if is_here else old
    assert shown is not None
    block_id = shown.block_ids[i]
    label, lines = _name(block_id), []
    if table is None or (compared and old is None):
        pass  # gone or new as a whole: its caption says so
    elif not is_here:
        lines.append("gone")
    elif compared and not was_here:
        lines.append("new")
    elif old is not None and old.block_ids[i] != block_id:
        label = f"{_name(old.block_ids[i])} → {label}"
    changed = compared and (is_here != was_here or "→" in label)
    place = (shown.name, i)
    lines += _wrapped(shown.words_of(i)) + _wrapped(now.notes.get(place, ""))
    return Entry(
        *place,
        label,
        block_id if is_here and block_id in range(now.num_blocks) else None,
        lines,
        shown.fill_of(i),
        _entry_look(block_id, now) if is_here else PADDING,
        changed or place in marked or block_id in now.problems,
        place in now.problems,
    )


def _name(block_id: int | None) -> str:
    return "hole" if block_id is None else str(block_id)


def _wrapped(text: str) -> list[str]:
    line_len = 14 if len(text) <= 56 else 21
    lines = [
        line
        for part in text.split("\n")
        for line in textwrap.wrap(part, line_len, break_long_words=False)
    ]
    return lines if len(lines) <= _MAX_LINES else [*lines[: _MAX_LINES - 1], "…"]


def _entry_look(block_id: int | None, now: Snapshot) -> str:
    if block_id is None:
        return FREE
    # Shared by the count or by what tables say: the two may contradict each other.
    times = len(now.holders[block_id])
    if now.counts is not None and block_id in range(now.num_blocks):
        times = max(times, now.counts[block_id])
    return SHARED if times > 1 else IN_USE


def _block(
    block_id: int, now: Snapshot, before: Snapshot | None, marked: Set[Place]
) -> Block:
    holders, label = now.holders[block_id], state_of(now, block_id)
    count = len(holders) if now.counts is None else now.counts[block_id]
    look = (FREE, IN_USE, SHARED)[min(abs(count), 2)]
    lines: list[str] = []
    if block_id in now.published:
        look += ', style="filled,rounded"'
        lines.append("cached")
    if block_id in now.eviction_rank:
        look = CACHED
        lines.append(f"evict {_nth(now.eviction_rank[block_id])}")
    if now.counts is not None and block_id in now.problems and len(holders) != count:
        lines.append(f"held {len(holders)}×")
    changed = False
    if before is not None and block_id < before.num_blocks:
        was = state_of(before, block_id)
        changed = was != label
        label = f"{was} → {label}" if changed else label
        if (block_id in before.published) != (block_id in now.published):
            changed = True
            lines += [] if block_id in now.published else ["not cached"]
    return Block(
        block_id,
        label,
        lines + _wrapped(now.notes.get(block_id, "")),
        look,
        changed or block_id in marked,
        block_id in now.problems,
    )


def _nth(n: int) -> str:
    teen = n % 100 // 10 == 1  # 11th, 12th, 13th
    return f"{n}{'th' if teen else {1: 'st', 2: 'nd', 3: 'rd'}.get(n % 10, 'th')}"


def _shortened(entries: Sequence[Entry]) -> Iterator[Entry | int]:
    num = len(entries)
    kept = range(num)
    if num > MAX_ENTRIES:
        marked = [i for i in range(num) if entries[i].marked][:4]
        kept = sorted({*range(MAX_ENTRIES - 6), *marked, num - 2, num - 1})
    yield from _with_gaps(entries, kept)


def _without_idle(blocks: Sequence[Block], now: Snapshot) -> Iterator[Block | int]:
    kept = range(len(blocks))
    if len(blocks) > MAX_IN_ROW:
        busy = [i for i in kept if _is_busy(blocks[i], now)]
        busy = sorted(busy, key=lambda i: not blocks[i].marked)[:MAX_BLOCKS]
        # A word in the place of one or two blocks would be no shorter, so of a run that
        # is left out the first two are drawn.
        kept = sorted({i + near for i in [*busy, 0] for near in (0, 1, 2)} & {*kept})
    yield from _with_gaps(blocks, kept)


def _is_busy(block: Block, now: Snapshot) -> bool:
    if block.marked or block.lines or now.holders[block.block_id]:
        return True
    return now.counts is not None and now.counts[block.block_id] != 0


def _with_gaps(items: Sequence[_T], kept: Iterable[int]) -> Iterator[_T | int]:
    """The kept items; an int for each run of others."""
    before = -1
    for i in [*kept, len(items)]:
        if i > before + 1:
            yield i - before - 1
        if i < len(items):
            yield items[i]
        before = i
