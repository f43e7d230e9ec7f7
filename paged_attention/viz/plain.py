"""What a picture of tables says in plain text, and to a reader who cannot see it."""

from collections.abc import Iterable, Iterator, Sequence

from paged_attention.viz.memory import Place, Snapshot, TableState
from paged_attention.viz.picture import counted
from paged_attention.viz.pool import aligned, pool_summary
from paged_attention.viz.view import Block, Entry, View, state_of

_MAX_WIDTH = 88
_MAX_TOLD = 16  # blocks, in one text


def drawing_of(view: View, summary: str, below: Sequence[str]) -> str:
    """Tables, then the pool; *3* is marked, and ! beside it is a contradiction."""
    lines = [summary]
    for strip in view.strips:
        lines.append(f"{strip.name}, {strip.caption}" if strip.caption else strip.name)
        lines += in_rows(("  logical", "  block"), list(map(_entry, strip.entries)))
    lines.append("pool")
    head = ("  block", "  ref_count" if view.counted else "  held")
    lines += in_rows(head, list(map(_block, view.blocks)))
    return "\n".join([*lines, *below])


def in_rows(head: Sequence[str], columns: Sequence[Sequence[str]]) -> Iterator[str]:
    """As many columns side by side as a line can hold."""
    while columns:
        num = len(columns)
        # One column is taken however wide it is, or this would never end.
        while num > 1 and max(map(len, aligned([head, *columns[:num]]))) > _MAX_WIDTH:
            num -= 1
        yield from aligned([head, *columns[:num]])
        columns = columns[num:]


def _entry(entry: Entry | int) -> Sequence[str]:
    if isinstance(entry, int):
        return ("…", f"{entry} more")
    index = f"{entry.logical_block} {entry.fill}".rstrip()
    return (index, _marked(entry.label, entry.marked, entry.wrong), *entry.lines)


def _block(block: Block | int) -> Sequence[str]:
    if isinstance(block, int):
        return ("…", f"{block} more")
    name = _marked(str(block.block_id), block.marked, block.wrong)
    return (name, block.label, *block.lines)


def _marked(text: str, marked: bool, wrong: bool) -> str:
    return f"*{text}*{'!' if wrong else ''}" if marked or wrong else text


def summary_of(now: Snapshot) -> str:
    """One sentence on the pool as a whole."""
    if now.counts is not None and now.num_free is not None:
        return pool_summary(now.counts, now.num_free, len(now.evictable))
    times = [len(now.holders[i]) for i in range(now.num_blocks)]
    shared = sum(n > 1 for n in times)
    text = f"{len(times)} blocks: {len(times) - times.count(0)} in tables"
    text += f" ({shared} shared)" if shared else ""
    return f"{text}, {times.count(0)} in none."


def told(now: Snapshot) -> Iterator[str]:
    """A sentence for each table and note, and for each block in use if they are few."""
    for table in now.tables:
        yield f"{table.name}: {_told_table(table)}."
    in_use = [i for i, count in enumerate(now.counts or ()) if count]
    for i in in_use if len(in_use) <= _MAX_TOLD else ():
        held = f", held by {', '.join(now.holders[i])}" if now.holders[i] else ""
        yield f"Block {i}: ref_count {state_of(now, i)}{held}."
    for place, note in now.notes.items():
        text = " ".join(note.split())
        yield f"Note at {_told_place(place)}: {text}."


def _told_table(table: TableState) -> str:
    ids = ["a hole" if i is None else str(i) for i in table.block_ids]
    rest = len(ids) - _MAX_TOLD
    ids = [*ids[:_MAX_TOLD], f"and {rest} more"] if rest > 0 else ids
    num = table.num_tokens
    tokens = "" if num is None else f"{counted(num, 'token')}, "
    return f"{tokens}blocks {', '.join(ids)}" if ids else f"{tokens}no blocks"


def told_places(places: Iterable[Place]) -> str:
    return f"Highlighted: {', '.join(sorted(map(_told_place, places)))}."


def _told_place(place: Place) -> str:
    return f"{place[0]}[{place[1]}]" if isinstance(place, tuple) else f"block {place}"


def changes(before: Snapshot, now: Snapshot) -> Iterator[str]:
    """A sentence for each thing that is not as it was."""
    for name in dict.fromkeys(t.name for t in (*before.tables, *now.tables)):
        old, new = before.table(name), now.table(name)
        if old is None or new is None:
            yield f"{name} is {'new' if old is None else 'gone'}."
            continue
        for i in range(max(len(old.block_ids), len(new.block_ids))):
            was, is_now = _told_block(old, i), _told_block(new, i)
            if was != is_now:
                yield f"{name}[{i}]: {was} → {is_now}."
        if old.num_tokens != new.num_tokens:
            yield f"{name}: {old.num_tokens} → {new.num_tokens} tokens."
    for i in range(min(before.num_blocks, now.num_blocks)):
        was, is_now = state_of(before, i), state_of(now, i)
        if was != is_now:
            yield f"Block {i}: ref_count {was} → {is_now}."
        if (i in before.published) != (i in now.published):
            yield f"Block {i} is {'' if i in now.published else 'no longer '}cached."


def _told_block(table: TableState, i: int) -> str:
    if i >= len(table.block_ids):
        return "nothing"
    block_id = table.block_ids[i]
    return "a hole" if block_id is None else f"block {block_id}"
