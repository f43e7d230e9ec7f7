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

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class FreeListAllocator:
    def __init__(self, num_blocks: int) -> None:
        raise NotImplementedError("exercise 4.1: make a pool in which every block is free")

    @property
    def num_blocks(self) -> int:
        raise NotImplementedError("exercise 4.1: the size of the pool")

    @property
    def num_free(self) -> int:
        raise NotImplementedError("exercise 4.1: how many blocks are free")

    def can_allocate(self, n: int) -> bool:
        raise NotImplementedError("exercise 4.1: are n blocks free?")

    def allocate(self) -> int:
        raise NotImplementedError("exercise 4.1: take the head of the list")

    def free(self, block_id: int) -> None:
        raise NotImplementedError("exercise 4.1: put the block back (4.2: only when the last holder goes)")

    def share(self, block_id: int) -> None:
        raise NotImplementedError("exercise 4.2: count one more holder")

    def ref_count(self, block_id: int) -> int:
        raise NotImplementedError("exercise 4.2: how many hold the block")

    def allocate_many(self, n: int) -> list[int]:
        raise NotImplementedError("exercise 4.3: n blocks or none")

    def free_many(self, block_ids: list[int]) -> None:
        raise NotImplementedError("exercise 4.3: give back all or none")


def check_allocator(allocator_class: type) -> None:
    raise NotImplementedError("exercise 4.5: find every broken promise, accuse nobody else")


# pristine stub, sha256 of the lines above: a479edc5231c4b3c
