"""Right and wrong ways to share blocks, for the bug hunt of exercise 06.

They run in the grader. `does` says what a set does, `hint` where to look for it, in the
words that the report uses.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from course.grader.helpers.hidden_allocators import (
    AcceptsDoubleFree,
    Right,
    RightAtRandom,
    RightOldestFirst,
)
from paged_attention.block import num_blocks_for
from paged_attention.block_table import BlockTable
from paged_attention.errors import OutOfBlocksError, SharedBlockError
from paged_attention.sharing import copy_on_write, fork

Pairs = list[tuple[int, int]]


@dataclass(frozen=True)
class SharingSet:
    """An allocator, a table, fork and copy_on_write that belong together."""

    does: str
    hint: str = ""
    allocator_class: type = Right
    table_class: type = BlockTable
    fork: Callable[[Any], Any] = fork
    copy_on_write: Callable[[Any], Pairs] = copy_on_write


# Right.


class OneByOneTable(BlockTable):
    """Takes and gives back blocks one at a time, and undoes it on an error."""

    def append_tokens(self, n: int) -> list[int]:
        room = -self.num_tokens % self.block_size
        if n <= room or (room and self._tail_is_shared()):
            return super().append_tokens(n)  # needs no block, or refuses
        taken: list[int] = []
        try:
            for _ in range(num_blocks_for(n - room, self.block_size)):
                taken.append(self.allocator.allocate())
        except OutOfBlocksError:
            for block_id in taken:
                self.allocator.free(block_id)
            raise
        self._block_ids += taken
        self.num_tokens += n
        return self.slots(self.num_tokens - n, self.num_tokens)

    def _tail_is_shared(self) -> bool:
        return self.allocator.ref_count(self.translate(self.num_blocks - 1)) > 1


def fork_entry_by_entry(table: Any) -> Any:
    child = type(table)(
        table.allocator, table.block_size, table.block_ids, table.num_tokens
    )
    held = [block_id for block_id in child.block_ids if block_id is not None]
    for place, block_id in enumerate(held):
        try:
            table.allocator.share(block_id)
        except Exception:
            for counted in held[:place]:
                table.allocator.free(counted)
            raise
    return child


def copy_with_allocate_many(table: Any) -> Pairs:
    rest = table.num_tokens % table.block_size
    tail = table.block_ids[-1] if rest else None
    if tail is None or table.allocator.ref_count(tail) < 2:
        return []
    [new] = table.allocator.allocate_many(1)
    table.replace(table.num_blocks - 1, new)
    return [(tail, new)]


class LazyTable(BlockTable):
    """Two tables have one list until the first change: copy on write once more."""

    _others: list["LazyTable"] | None = None  # all that use this list, itself included

    def _own_list(self) -> None:
        if self._others is not None:
            self._others.remove(self)
            self._block_ids = list(self._block_ids)
            self._others = None

    def append_tokens(self, n: int) -> list[int]:
        self._own_list()
        return super().append_tokens(n)

    def replace(self, logical_block: int, block_id: int) -> None:
        self._own_list()
        super().replace(logical_block, block_id)

    def truncate(self, num_tokens: int) -> None:
        self._own_list()
        super().truncate(num_tokens)

    def drop_before(self, position: int) -> None:
        self._own_list()
        super().drop_before(position)


def fork_lazily(table: Any) -> Any:
    child = fork(table)
    child._block_ids = table._block_ids
    table._others = child._others = [*(table._others or [table]), child]
    for each in table._others:
        each._others = table._others
    return child


RIGHT = [
    SharingSet("is the package's own, with the block that was freed last first"),
    SharingSet(
        "takes and gives back blocks one at a time, the one longest free first",
        allocator_class=RightOldestFirst,
        table_class=OneByOneTable,
        fork=fork_entry_by_entry,
        copy_on_write=copy_with_allocate_many,
    ),
    SharingSet(
        "takes blocks at random, and copies the list of a fork when it changes",
        allocator_class=RightAtRandom,
        table_class=LazyTable,
        fork=fork_lazily,
    ),
]


# Wrong.


def fork_without_counting(table: Any) -> Any:
    return type(table)(
        table.allocator, table.block_size, table.block_ids, table.num_tokens
    )


class OwnersAllocator(Right):
    def _drop(self, block_id: int) -> None:
        if self.ref_count(block_id):
            self._counts[block_id] = 1
            self.free(block_id)


class OwnersTable(BlockTable):
    """Whoever took a block frees it, whatever the others do."""

    def _give_back(self, logical_blocks: range) -> None:
        pool: Any = self.allocator
        for block_id in [self._block_ids[i] for i in reversed(logical_blocks)]:
            if block_id in getattr(self, "_borrowed", ()):
                pool.free(block_id)
            elif block_id is not None:
                pool._drop(block_id)


def fork_as_borrower(table: Any) -> Any:
    child = fork(table)
    child._borrowed = set(table.block_ids) - {None}
    return child


class IgnoresCount(Right):
    def free(self, block_id: int) -> None:
        if self.ref_count(block_id):
            self._counts[block_id] = 1
        super().free(block_id)

    def free_many(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self.free(block_id)


class FreesOnceMore(BlockTable):
    def free(self) -> None:
        gone = self._block_ids or getattr(self, "_gone", [])
        for block_id in reversed(gone):
            if block_id is not None:
                self.allocator.free(block_id)
        self._gone, self._block_ids, self.num_tokens = gone, [], 0


class WritesAnyway(BlockTable):
    def append_tokens(self, n: int) -> list[int]:
        if n <= 0:
            return super().append_tokens(n)
        needed = num_blocks_for(self.num_tokens + n, self.block_size)
        self._block_ids += self.allocator.allocate_many(needed - self.num_blocks)
        self.num_tokens += n
        return self.slots(self.num_tokens - n, self.num_tokens)


def copy_half_done(table: Any) -> Pairs:
    if table.num_tokens % table.block_size == 0:
        return []
    source = table.translate(table.num_blocks - 1)
    if table.allocator.ref_count(source) == 1:
        return []
    table.allocator.free(source)
    destination = table.allocator.allocate()
    table._block_ids[-1] = destination
    return [(source, destination)]


class FreesOwners(BlockTable):
    def _give_back(self, logical_blocks: range) -> None:
        held = [self._block_ids[i] for i in reversed(logical_blocks)]
        self.allocator.free_many(list(dict.fromkeys(b for b in held if b is not None)))


def fork_with_the_same_list(table: Any) -> Any:
    child = fork(table)
    child._block_ids = table._block_ids
    return child


class RefusesByAnotherName(BlockTable):
    def append_tokens(self, n: int) -> list[int]:
        try:
            return super().append_tokens(n)
        except SharedBlockError as error:
            raise ValueError(str(error)) from None


class TakesBeforeItRefuses(BlockTable):
    def append_tokens(self, n: int) -> list[int]:
        try:
            return super().append_tokens(n)
        except SharedBlockError:
            if self.allocator.num_free:
                self.allocator.allocate()
            raise


def copy_from_an_empty_list(table: Any) -> Pairs:
    try:
        return copy_on_write(table)
    except OutOfBlocksError:
        raise IndexError("pop from empty list") from None


WRONG = [
    SharingSet(
        "fork counts nothing",
        "what do you know about every block right after a fork?",
        fork=fork_without_counting,
    ),
    SharingSet(
        "counts are kept per table: when the table that took a block goes, the block "
        "is free, whoever else holds it",
        "in which orders can a parent and its forks be released?",
        allocator_class=OwnersAllocator,
        table_class=OwnersTable,
        fork=fork_as_borrower,
    ),
    SharingSet(
        "free ignores the count: a block is free as soon as one of its holders goes",
        "what must be left of a shared block when one of its holders goes?",
        allocator_class=IgnoresCount,
    ),
    SharingSet(
        "a table that is freed twice gives its blocks back twice",
        "which call may be made once more, and who may have got the blocks by then?",
        allocator_class=AcceptsDoubleFree,
        table_class=FreesOnceMore,
    ),
    SharingSet(
        "append_tokens writes into a block that others read",
        "where does the next token go, right after a fork?",
        table_class=WritesAnyway,
    ),
    SharingSet(
        "copy_on_write gives the old block up before it has the new one, and is half "
        "done when there is none",
        "what must be true after a call that had to raise?",
        copy_on_write=copy_half_done,
    ),
    SharingSet(
        "fork counts places, free counts owners: an id that stands twice in a table "
        "is given back once",
        "which lists of blocks may a table have? Read the rule in the docstring again.",
        table_class=FreesOwners,
    ),
    SharingSet(
        "the fork's list of blocks is its parent's: what one does changes both",
        "what happens to the table that you did not touch?",
        fork=fork_with_the_same_list,
    ),
    SharingSet(
        "append_tokens refuses a block that others read, but has taken a new one by "
        "then, which nobody holds",
        "what must be true of the pool after a call that had to raise?",
        table_class=TakesBeforeItRefuses,
    ),
    SharingSet(
        "append_tokens refuses a block that others read with a plain ValueError",
        "which error does each call promise?",
        table_class=RefusesByAnotherName,
    ),
    SharingSet(
        "copy_on_write raises an IndexError when no block is free for the copy",
        "which error does each call promise?",
        copy_on_write=copy_from_an_empty_list,
    ),
]
