"""Exercise 04: a pool of blocks that hands them out and takes them back.

Grade with `course grade 4`. Tasks 4.1 to 4.4 build one class; it grows with each task.
At the end it can take the place of the package's own allocator. Task 4.5 stands alone.

A pool of num_blocks blocks has the block ids 0 … num_blocks - 1. Which free block is
handed out first is your choice. A block is free or in use; its ref_count says how many
hold it, and 0 means free. Errors are imported from paged_attention.errors:
OutOfBlocksError and DoubleFreeError (which is a ValueError). Whatever raises leaves the
pool exactly as it was. A list that a method is given is the same after the call.


Task 4.1   a free list

    FreeListAllocator(num_blocks)   all blocks are free; ValueError if num_blocks < 1
    .num_blocks -> int              property: the size of the pool
    .num_free -> int                property: how many blocks are free now
    .can_allocate(n) -> bool        whether at least n blocks are free now
    .allocate() -> int              take a free block and return its id;
                                    OutOfBlocksError if none is free
    .free(block_id) -> None         give a block back; it can be handed out again

Each of these takes the same number of steps in a pool of 100 and in one of 100,000
blocks: no search, no sorting, no copying, whatever is free at the moment. (Making the
pool may take time in proportion to its size.)


Task 4.2   counts

    .share(block_id) -> None        one more holder; ValueError for a block that is free
    .ref_count(block_id) -> int     how many hold the block, 0 for a free one
    .allocate()                     the new block has a ref_count of 1
    .free(block_id)                 one holder less; only when the last one has gone is
                                    the block free. DoubleFreeError for a free block

num_free counts blocks, not holders. An id outside 0 … num_blocks - 1, -1 included, is a
ValueError in share, ref_count and free.


Task 4.3   all or nothing

    .allocate_many(n) -> list[int]      take n blocks, n 0 or more, or none at all:
                                        OutOfBlocksError if fewer than n are free,
                                        ValueError if n < 0
    .free_many(block_ids) -> None       one holder less for each entry of a list[int],
                                        or for none at all

An id may stand in block_ids as often as its block has holders. Once more is a
DoubleFreeError, an id that does not exist a ValueError, and then nothing has changed,
also for the ids in front of it. The steps grow with n or the length of block_ids, not
with the size of the pool.


Task 4.4   two threads

Several threads call allocate, free, share, allocate_many and free_many of one pool. At
any point between two steps of Python, one may be stopped and another one run. Two calls
at the same time must act as if one had come after the other, in either order; and after
an error other threads can go on. How you reach that is your choice.


Task 4.5   check_allocator(allocator_class) -> None: a hunt for bugs

A test for allocators that you have not seen. allocator_class is a class with all the
methods above; it may be right or have a bug. Make pools of any size with it, use them,
and return (None) if all promises of tasks 4.1 to 4.3 are kept. Raise AssertionError,
best with a sentence that says what is wrong, if not; `assert x == y, "sentence"` does
that. Any other exception that escapes, such as an OutOfBlocksError that should not have
come, counts as a find as well.

Your function is called with hidden classes: some are right, and hand out blocks in
different orders; each of the others breaks one promise. It must find every wrong one
and accuse no right one. Speed and threads are not tested. 2,000 calls of methods are
plenty; for each class your function has 50,000 calls and 5 seconds.
"""

# BEGIN NOTES
import threading
from collections import Counter
from typing import Any

# isort: split
# END NOTES
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class FreeListAllocator:
    def __init__(self, num_blocks: int) -> None:
        # BEGIN SOLUTION 4.1: make a pool in which every block is free
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        # A free block needs no memory of its own for the list: while it waits, it
        # remembers the next free one. The last one remembers None.
        self._next: list[int | None] = [*range(1, num_blocks), None]
        self._head: int | None = 0
        self._num_free = num_blocks
        self._ref_counts = [0] * num_blocks
        self._lock = threading.RLock()  # RLock: allocate_many calls allocate
        # END SOLUTION

    @property
    def num_blocks(self) -> int:
        # BEGIN SOLUTION 4.1: the size of the pool
        return len(self._next)
        # END SOLUTION

    @property
    def num_free(self) -> int:
        # BEGIN SOLUTION 4.1: how many blocks are free
        return self._num_free
        # END SOLUTION

    def can_allocate(self, n: int) -> bool:
        # BEGIN SOLUTION 4.1: are n blocks free?
        return n <= self._num_free
        # END SOLUTION

    def allocate(self) -> int:
        # BEGIN SOLUTION 4.1: take the head of the list
        with self._lock:
            if self._head is None:
                raise OutOfBlocksError(f"all {self.num_blocks} blocks are in use")
            block_id = self._head
            self._head = self._next[block_id]
            self._num_free -= 1
            self._ref_counts[block_id] = 1
            return block_id
        # END SOLUTION

    def free(self, block_id: int) -> None:
        # BEGIN SOLUTION 4.1: put the block back (4.2: only when the last holder goes)
        with self._lock:
            if self.ref_count(block_id) == 0:
                raise DoubleFreeError(f"block {block_id} is free already")
            self._ref_counts[block_id] -= 1
            if self._ref_counts[block_id] == 0:
                self._next[block_id] = self._head
                self._head = block_id
                self._num_free += 1
        # END SOLUTION

    def share(self, block_id: int) -> None:
        # BEGIN SOLUTION 4.2: count one more holder
        with self._lock:
            if self.ref_count(block_id) == 0:
                raise ValueError(f"block {block_id} is free, nobody can share it")
            self._ref_counts[block_id] += 1
        # END SOLUTION

    def ref_count(self, block_id: int) -> int:
        # BEGIN SOLUTION 4.2: how many hold the block
        # Checked by hand, because a list takes -1 for its last element.
        if not 0 <= block_id < self.num_blocks:
            raise ValueError(
                f"block_id must be in 0 … {self.num_blocks - 1}, got {block_id}"
            )
        return self._ref_counts[block_id]
        # END SOLUTION

    def allocate_many(self, n: int) -> list[int]:
        # BEGIN SOLUTION 4.3: n blocks or none
        with self._lock:
            if n < 0:
                raise ValueError(f"n must be >= 0, got {n}")
            if n > self._num_free:
                raise OutOfBlocksError(f"{n} blocks wanted, {self._num_free} are free")
            return [self.allocate() for _ in range(n)]
        # END SOLUTION

    def free_many(self, block_ids: list[int]) -> None:
        # BEGIN SOLUTION 4.3: give back all or none
        with self._lock:
            for block_id, times in Counter(block_ids).items():
                if times > self.ref_count(block_id):
                    raise DoubleFreeError(f"block {block_id} has too few holders")
            for block_id in block_ids:
                self.free(block_id)
        # END SOLUTION


def check_allocator(allocator_class: type) -> None:
    # BEGIN SOLUTION 4.5: find every broken promise, accuse nobody else
    for num_blocks in (1, 3):
        _check_every_block_comes_once(allocator_class(num_blocks), num_blocks)
    _check_counts(allocator_class(3))
    _check_second_life(allocator_class(2))
    _check_refusals(allocator_class(3))
    _check_many(allocator_class(4))
    # END SOLUTION


# BEGIN NOTES
def _check_every_block_comes_once(pool: Any, num_blocks: int) -> None:
    """Three lives of all blocks, given back in another order each time."""
    for life in range(3):
        assert pool.num_blocks == num_blocks, "num_blocks never changes"
        ids = []
        for taken in range(num_blocks):
            free = num_blocks - taken
            assert pool.num_free == free, f"{free} blocks are free"
            assert pool.can_allocate(free), f"can_allocate({free}) with {free} free"
            assert not pool.can_allocate(free + 1), f"only {free} blocks are free"
            ids.append(pool.allocate())
        assert sorted(ids) == list(range(num_blocks)), f"each block once, got {ids}"
        _assert_refused(pool, num_blocks, OutOfBlocksError, pool.allocate)
        for block_id in ids[life:] + ids[:life]:
            pool.free(block_id)


def _check_counts(pool: Any) -> None:
    block = pool.allocate()
    for holders in (2, 3):
        pool.share(block)
        assert pool.ref_count(block) == holders, "share adds a holder"
        assert pool.num_free == 2, "num_free counts blocks, not holders"
    for holders in (2, 1, 0):
        pool.free(block)
        assert pool.ref_count(block) == holders, "free takes one holder away"
        assert pool.num_free == (2 if holders else 3), "free with the last holder only"


def _check_second_life(pool: Any) -> None:
    for _ in range(2):
        ids = pool.allocate_many(2)
        assert [pool.ref_count(i) for i in ids] == [1, 1], "a new block has one holder"
        for block_id in ids:
            pool.share(block_id)
            pool.free(block_id)
            pool.free(block_id)


def _check_refusals(pool: Any) -> None:
    used, free = pool.allocate(), pool.allocate()
    pool.free(free)
    _assert_refused(pool, 3, DoubleFreeError, pool.free, free)
    _assert_refused(pool, 3, ValueError, pool.share, free)
    for bad in (-1, 3):
        for method in (pool.free, pool.share, pool.ref_count):
            _assert_refused(pool, 3, ValueError, method, bad)
        _assert_refused(pool, 3, ValueError, pool.free_many, [used, bad])
    pool.free(used)
    assert sorted(pool.allocate_many(3)) == [0, 1, 2], "all three can still be had"


def _check_many(pool: Any) -> None:
    one, two = pool.allocate_many(2)
    assert one != two and pool.num_free == 2, "allocate_many(2) takes two blocks"
    _assert_refused(pool, 4, OutOfBlocksError, pool.allocate_many, 3)
    _assert_refused(pool, 4, ValueError, pool.allocate_many, -1)
    assert pool.allocate_many(0) == [], "allocate_many(0) takes nothing"
    _assert_refused(pool, 4, DoubleFreeError, pool.free_many, [one, two, two])
    pool.share(two)
    pool.free_many([two, one, two])
    assert pool.num_free == 4, "both holders of one block have gone, and the other one"
    assert sorted(pool.allocate_many(4)) == [0, 1, 2, 3], "the whole pool at once"


def _assert_refused(
    pool: Any, num_blocks: int, error: type[Exception], method: Any, *args: Any
) -> None:
    """method(*args) raises this error and leaves everything that can be seen."""

    def seen() -> tuple[int, list[int]]:
        return pool.num_free, [pool.ref_count(i) for i in range(num_blocks)]

    before = seen()
    try:
        method(*args)
    except error:
        pass
    else:
        raise AssertionError(f"{args} should have raised {error.__name__}")
    assert seen() == before, f"{args} was refused, but it changed the pool"


# 4.1  The list runs through the blocks: each free block stores the id of the next one.
# Taking and giving back are two assignments each. A plain Python list used as a stack
# (pop, append) is as right, shorter, and faster in CPython; a deque serves for oldest
# first. The linked list earns its keep where a block must be taken out of the middle in
# O(1): doubly linked, as in vLLM, whose prefix cache does that. What is not O(1):
# list.pop(0), `block_id in free`, min(free), ref_counts.index(0), and counting the free
# ones anew for num_free.
#
# 4.2  The count is also the guard against a double free. Without it, a block that is
# given back twice points to itself: the list has become a circle, and the block is
# handed out for ever. Check before you change: an error after the first assignment
# leaves half a change behind.
#
# 4.3  Two ways to all or nothing: find out beforehand whether everything can be done
# (here), or do it and undo it on an error. Counting beforehand must count each id as
# often as it stands there: [b, b] with one holder passes a check of each id on its own.
#
# 4.4  One lock around each whole method that changes something, the checks included.
# A check outside of the lock is out of date by the time it is used. One lock for
# allocate and another for free is none: both touch the head. With threading.Lock,
# allocate_many cannot call allocate (it would wait for itself); RLock allows that.
# num_free, can_allocate and ref_count read one value and need no lock in CPython.
#
# 4.5  Keep your own books, compare after each call, and ask for no certain order. The
# finds that most people miss: the state after a refused call, an id that stands twice
# in free_many, the second life of a block, and -1.
# END NOTES
