"""Block tables above the pool: who holds which block, and what changed."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from paged_attention.viz.memory import Place, Snapshot, Table, check_places, snapshot
from paged_attention.viz.picture import Picture
from paged_attention.viz.plain import changes, drawing_of, summary_of, told, told_places
from paged_attention.viz.pool import Pool
from paged_attention.viz.sheet import draw
from paged_attention.viz.view import view_of

MAX_LINES = 6  # below a picture, of one kind


def tables_picture(
    tables: Mapping[str, Table | Sequence[int | None]],
    allocator: Pool | None = None,
    highlight: Iterable[Place] = (),
    *,
    words: Mapping[str, Sequence[str]] | None = None,
    notes: Mapping[Place, str] | None = None,
    complete: bool = True,
) -> Picture:
    """Each table's logical blocks, and the physical ones that they stand for.

    A table is anything with block_ids, num_tokens and block_size, or a plain list of
    blocks. Without an allocator that of the tables is asked; a prefix cache is one too.

    highlight  5 is block 5 of the pool, ("A", 2) logical block 2 of table A
    words      one for each token: {"A": ["Four", "score", …]}
    notes      a short text in a block: {5: "zeros", ("A", 2): "count 1"}
    complete   the tables are all that hold blocks, so counts must match them

    What cannot be true, such as two holders of a block with ref_count 1, is marked.
    """
    state = snapshot(tables, allocator, words=words, notes=notes, complete=complete)
    return state_picture(state, highlight)


def state_picture(state: Snapshot, highlight: Iterable[Place] = ()) -> Picture:
    """The same of a moment that was kept."""
    return _picture(state, None, frozenset(highlight))


def difference_picture(before: Snapshot, after: Snapshot) -> Picture:
    """The later moment, with all that changed since the earlier one marked."""
    return _picture(after, before, frozenset())


def _picture(
    now: Snapshot, before: Snapshot | None, highlight: frozenset[Place]
) -> Picture:
    check_places(now, highlight)
    view = view_of(now, before, highlight)
    summary = summary_of(now)
    errors = _limited([f"! {words}" for words in now.problems.values()])
    notes = list(_notes(now, before))
    alt = [summary, *told(now), *notes, *errors]
    if before is not None:
        changed = _limited(list(changes(before, now)))
        alt += ["Changed:", *changed] if changed else []
        notes.append("Marked: what changed." if changed else "Nothing changed.")
    if highlight:
        alt.append(told_places(highlight))
    return Picture(
        draw(view, summary, notes, errors),
        " ".join(alt),
        drawing_of(view, summary, [*notes, *errors]),
    )


def _limited(lines: Sequence[str]) -> list[str]:
    rest = len(lines) - MAX_LINES
    return [*lines[:MAX_LINES], f"… and {rest} more."] if rest > 0 else list(lines)


def _notes(now: Snapshot, before: Snapshot | None) -> Iterator[str]:
    """The free list, and the order of eviction."""
    free = [state.free_ids for state in (before, now) if state is not None]
    if free[-1] is not None:
        now_is, was = _list(free[-1]), _list(free[0] or ())
        yield f"Free list: {now_is}{'' if was == now_is else f' (before: {was})'}."
    if now.evictable:
        yield f"Only cached, in the order of eviction: {_list(now.evictable)}."


def _list(ids: Sequence[int]) -> str:
    rest = [f"and {len(ids) - 12} more"] if len(ids) > 12 else []
    return ", ".join([*map(str, ids[:12]), *rest]) or "empty"
