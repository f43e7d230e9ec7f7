"""The state of pool and tables at one moment, and what in it cannot be true.

A picture of a difference needs two moments, and tables change in place: so what is
drawn is copied first. Nothing here draws.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from paged_attention.block import num_blocks_for
from paged_attention.viz.pool import Pool

# A physical block, or (name of a table, logical block).
Place = int | tuple[str, int]


class Table(Protocol):
    """What a block table must offer to be drawn, whatever class it is."""

    @property
    def block_ids(self) -> Sequence[int | None]: ...
    @property
    def num_tokens(self) -> int: ...
    @property
    def block_size(self) -> int: ...


@dataclass(frozen=True)
class TableState:
    """A table as it was: its blocks in logical order, None where there is a hole.

    A plain list of blocks has neither num_tokens nor block_size.
    """

    name: str
    block_ids: tuple[int | None, ...]
    num_tokens: int | None = None
    block_size: int | None = None
    words: tuple[str, ...] = ()  # by position

    def words_of(self, logical_block: int) -> str:
        """The words of the tokens in this block, a space between any two."""
        size = self.block_size or 0
        return " ".join(self.words[logical_block * size : (logical_block + 1) * size])

    def fill_of(self, logical_block: int) -> str:
        """ "3/16" for a partly filled last block, else nothing."""
        if not self.block_size or logical_block != len(self.block_ids) - 1:
            return ""
        tail_len = (self.num_tokens or 0) % self.block_size
        return f"{tail_len}/{self.block_size}" if tail_len else ""


@dataclass(frozen=True)
class Snapshot:
    """Tables, counts and free list as they were."""

    num_blocks: int
    tables: tuple[TableState, ...]
    counts: tuple[int, ...] | None  # None: there was no allocator to ask
    num_free: int | None
    free_ids: tuple[int, ...] | None  # None: the allocator does not list them
    published: frozenset[int]
    evictable: tuple[int, ...]  # published, held by nobody else, first to go first
    notes: Mapping[Place, str]
    complete: bool

    def table(self, name: str) -> TableState | None:
        return next((table for table in self.tables if table.name == name), None)

    @cached_property
    def eviction_rank(self) -> Mapping[int, int]:
        """1 for the block that would be evicted first."""
        return {block_id: rank for rank, block_id in enumerate(self.evictable, 1)}

    @cached_property
    def holders(self) -> Mapping[int, Sequence[str]]:
        """Block -> who holds it: "A[1]" for logical block 1 of A, or "cache"."""
        holders: defaultdict[int, list[str]] = defaultdict(list)
        for table in self.tables:
            for logical_block, block_id in enumerate(table.block_ids):
                if block_id is not None:
                    holders[block_id].append(f"{table.name}[{logical_block}]")
        for block_id in self.published:
            holders[block_id].append("cache")
        # A broken table may name blocks outside the pool: they are held as well.
        return {i: holders.get(i, ()) for i in {*range(self.num_blocks), *holders}}

    @cached_property
    def problems(self) -> Mapping[Place, str]:
        """What cannot be true, by the block or table entry at which it shows."""
        found: dict[Place, str] = {}
        # A block can be wrong in two ways at once, and both are said.
        times_free = Counter(self.free_ids or ())
        for block_id, count in enumerate(self.counts or ()):
            words = [
                *self._problems_of_holders(count, self.holders[block_id]),
                *self._problems_of_free_list(count, times_free[block_id]),
            ]
            if words:
                found[block_id] = f"Block {block_id}: {', and '.join(words)}."
        for table in self.tables:
            for logical_block, block_id in enumerate(table.block_ids):
                if block_id is not None and not 0 <= block_id < self.num_blocks:
                    entry = f"{table.name}[{logical_block}]"
                    words = f"{entry}: block {block_id} is not in the pool."
                    found[table.name, logical_block] = words
            # Where the list ends: there a block is missing, or one too many.
            if words := _problem_of_length(table):
                found[table.name, len(table.block_ids) - 1] = words
        return found

    def _problems_of_holders(self, count: int, holders: Sequence[str]) -> Iterator[str]:
        state = f"ref_count {count}" if count else "free"
        # Where others may hold blocks too, fewer holders than counted prove nothing.
        too_few = self.complete and len(holders) < count
        if too_few and not holders:
            yield f"{state}, but nobody holds it"
        elif too_few or len(holders) > count:
            names = ", ".join(holders)
            if len(holders) > 1:
                yield f"{state}, but held {len(holders)} times: {names}"
            else:
                yield f"{state}, but held {'only ' if too_few else ''}by {names}"

    def _problems_of_free_list(self, count: int, times: int) -> Iterator[str]:
        if self.free_ids is None:
            return
        if times > 1:
            yield f"{times} times on the free list"
        elif times and count:
            yield f"ref_count {count}, but on the free list"
        elif not times and not count:
            yield "ref_count 0, but not on the free list"


def _problem_of_length(table: TableState) -> str | None:
    size, num_tokens = table.block_size, table.num_tokens
    if not size or num_tokens is None:
        return None
    needed = num_blocks_for(num_tokens, size)
    if needed == len(table.block_ids):
        return None
    return (
        f"{table.name}: num_tokens {num_tokens} need {needed} blocks of {size}, "
        f"it lists {len(table.block_ids)}."
    )


def snapshot(
    tables: Mapping[str, Table | Sequence[int | None]],
    allocator: Pool | None = None,
    *,
    words: Mapping[str, Sequence[str]] | None = None,
    notes: Mapping[Place, str] | None = None,
    complete: bool = True,
) -> Snapshot:
    """Copies what the tables and their allocator say now.

    Raises ValueError for words or notes of what is not there.
    """
    if allocator is None:
        found = (getattr(table, "allocator", None) for table in tables.values())
        allocator = next((a for a in found if a is not None), None)
    words = words or {}
    if unknown := sorted(words.keys() - tables.keys()):
        raise ValueError(f"words for {unknown}, tables are {sorted(tables)}")
    states = tuple(_table(name, table, words) for name, table in tables.items())
    # Lists alone, with no pool behind them: as many blocks as they name.
    largest = max((b for t in states for b in t.block_ids if b is not None), default=-1)
    num_blocks = allocator.num_blocks if allocator else largest + 1
    published, evictable = _cached(allocator)
    state = Snapshot(
        num_blocks,
        states,
        tuple(map(allocator.ref_count, range(num_blocks))) if allocator else None,
        allocator.num_free if allocator else None,
        _free_ids(allocator),
        published,
        evictable,
        dict(notes or {}),
        complete,
    )
    check_places(state, state.notes)
    return state


def check_places(state: Snapshot, places: Iterable[Place]) -> None:
    """Raise ValueError for a place that the state does not have."""
    lengths = {table.name: len(table.block_ids) for table in state.tables}
    for place in places:
        if isinstance(place, tuple):
            name, logical_block = place
            if not 0 <= logical_block < lengths.get(name, 0):
                raise ValueError(f"no such table entry: {place}, tables are {lengths}")
        elif not 0 <= place < state.num_blocks:
            raise ValueError(
                f"no such block: {place}, the pool has {state.num_blocks} blocks"
            )


def _table(
    name: str,
    table: Table | Sequence[int | None],
    words: Mapping[str, Sequence[str]],
) -> TableState:
    if isinstance(table, Sequence):
        if name in words:
            raise ValueError(f"{name} is a plain list: without block_size, no words")
        return TableState(name, tuple(table))
    return TableState(
        name,
        tuple(table.block_ids),
        table.num_tokens,
        table.block_size,
        # Words for tokens that are still to come may stand behind the others.
        tuple(words.get(name, ()))[: table.num_tokens],
    )


def _free_ids(allocator: Pool | None) -> tuple[int, ...] | None:
    # A cache hands on what is free in the allocator that it wraps.
    for place in (allocator, getattr(allocator, "allocator", None)):
        free_ids = getattr(place, "free_block_ids", None)
        if free_ids is not None:
            return tuple(free_ids)
    return None


def _cached(allocator: Pool | None) -> tuple[frozenset[int], tuple[int, ...]]:
    """The blocks that a prefix cache holds, and in which order it would evict them."""
    if allocator is None:
        return frozenset(), ()
    published = frozenset(getattr(allocator, "block_ids", ()))
    order = getattr(allocator, "evictable_block_ids", ())
    return published, tuple(order)
