"""Hands out blocks and takes them back, each in O(1).

The free list is a stack of KVBlock records: the block that was freed last is handed
out first. Nothing here touches memory: a block keeps its stale keys and values when
it is freed, and nobody reads past seq_len. What is left out: finding a block again by
its content (`prefix_cache`) and deciding who gets one (`scheduler`).

vLLM has a queue of free blocks, linked both ways: cached blocks that nobody uses stand
in it and are taken out of its middle when they are found again. Ours never are in the
free list, for the prefix cache holds them, so a stack is enough.
"""

import operator
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Protocol

from paged_attention.block import KVBlock
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


# Not BlockTable itself: that lies a floor higher, and a learner's table is another
# class with the same property.
class HoldsBlocks(Protocol):
    """Anything that lists the blocks it holds; None marks a hole."""

    @property
    def block_ids(self) -> list[int | None]: ...


class BlockAllocator:
    """A pool of num_blocks blocks with reference counts.

    Invariant: a block is on the free list exactly once if its ref_count is 0, and
    not at all otherwise. Every method either keeps its promise or raises and changes
    nothing. Safe to call from several threads: one lock is held by whatever changes
    the pool or looks at more than one number of it.
    Source: the paper, section 4.5; `BlockPool` in vLLM's v1/core/block_pool.py.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        # A dict, because a list would take block -1 for its last one.
        self._blocks = {block_id: KVBlock(block_id) for block_id in range(num_blocks)}
        # The end of the list is the top of the stack, so block 0 goes out first:
        # of three blocks it is [2, 1, 0].
        self._free = list(reversed(self._blocks.values()))
        self._lock = threading.Lock()

    @property
    def num_blocks(self) -> int:
        """The size of the pool; it never changes."""
        return len(self._blocks)

    @property
    def num_free(self) -> int:
        """How many blocks are free now."""
        return len(self._free)

    @property
    def free_block_ids(self) -> list[int]:
        """The free list as a copy, the next block to be handed out first."""
        with self._lock:
            return [block.block_id for block in reversed(self._free)]

    def can_allocate(self, n: int) -> bool:
        """Whether n blocks are free now; another thread may be quicker to take them."""
        # One read of one number: a lock would make the answer no truer.
        return n <= len(self._free)

    def ref_count(self, block_id: int) -> int:
        """How many hold this block; 0 means that it is free."""
        return self._record(block_id).ref_count

    def allocate(self) -> int:
        """Take a free block; its ref_count becomes 1.

        Raises OutOfBlocksError when none is free.
        """
        with self._lock:
            if not self._free:
                raise OutOfBlocksError(f"all {len(self._blocks)} blocks are in use")
            # Nothing is cleared: stale keys and values are never read past seq_len.
            block = self._free[-1]
            block.ref_count = 1  # before pop(), as a Ctrl-C may come right after it
            self._free.pop()
            return block.block_id

    def allocate_many(self, n: int) -> list[int]:
        """Take n free blocks or none; the same blocks as n calls of `allocate`.

        Raises OutOfBlocksError when fewer than n are free, ValueError if n < 0 or no
        whole number.
        """
        try:
            n = operator.index(n)
        except TypeError:
            raise ValueError(f"n must be an int, got {n!r}") from None
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        if n == 1:  # most often so: a text has grown into its next block
            return [self.allocate()]
        with self._lock:
            # Before the first block is taken: half a request helps nobody.
            if n > len(self._free):
                raise OutOfBlocksError(
                    f"{n} blocks were asked for, {len(self._free)} of "
                    f"{len(self._blocks)} are free"
                )
            start = len(self._free) - n
            blocks = self._free[start:]
            try:
                del self._free[start:]
                for block in blocks:
                    block.ref_count = 1
                return [block.block_id for block in reversed(blocks)]
            except BaseException:  # Ctrl-C: nobody would know what to give back
                for block in blocks:
                    block.ref_count = 0
                self._free[start:] = blocks
                raise

    def share(self, block_id: int) -> None:
        """Count one more holder of a block that is in use.

        Raises ValueError for a free block: nobody holds it, so nobody can hand it on.
        """
        with self._lock:
            block = self._record(block_id)
            if block.ref_count == 0:
                raise ValueError(f"block {block_id} is free, so it cannot be shared")
            block.ref_count += 1

    def free(self, block_id: int) -> None:
        """Give up one reference; with the last one the block becomes free.

        Raises DoubleFreeError for a block that is free already.
        """
        with self._lock:
            block = self._record(block_id)
            if block.ref_count == 0:
                raise DoubleFreeError(f"block {block_id} is free already")
            block.ref_count -= 1
            # Only the last holder gives the block back; the others still read it.
            if block.ref_count == 0:
                self._free.append(block)

    def free_many(self, block_ids: Iterable[int]) -> None:
        """Give up one reference per entry, in order, or none at all.

        An id may stand here as often as its block has references; once more raises
        DoubleFreeError.
        """
        block_ids = tuple(block_ids)  # to undo, we must be able to read it twice
        if len(block_ids) == 1:
            return self.free(block_ids[0])
        done = 0
        # `with`, not acquire() and try: a Ctrl-C between those two would keep the lock.
        with self._lock:
            num_free = len(self._free)
            # The steps of `free` once more: a call per block would cost too much.
            try:
                for block_id in block_ids:
                    block = self._blocks[block_id]
                    if block.ref_count == 1:
                        block.ref_count = 0
                        # Before any call, as a Ctrl-C may come right after one.
                        done += 1
                        self._free.append(block)
                    elif block.ref_count == 0:
                        raise DoubleFreeError(f"block {block_id} is free already")
                    else:
                        block.ref_count -= 1
                        done += 1
            except BaseException as error:
                del self._free[num_free:]
                # An id that was counted down twice stands here twice.
                for block_id in block_ids[:done]:
                    self._blocks[block_id].ref_count += 1
                if isinstance(error, KeyError):
                    self._record(block_ids[done])  # says which ids there are
                raise

    def check(self, tables: Iterable[HoldsBlocks] | None = None) -> None:
        """Raise AssertionError, saying what is wrong, unless the invariants hold.

        With tables, which must then be all that hold blocks of this pool, each
        ref_count must equal the number of table entries that name its block.
        """
        # A snapshot under the lock; what follows may take its time.
        with self._lock:
            on_free_list = Counter(block.block_id for block in self._free)
            ref_counts = {i: block.ref_count for i, block in self._blocks.items()}
        for block_id, ref_count in ref_counts.items():
            expected = 1 if ref_count == 0 else 0
            if on_free_list[block_id] != expected or ref_count < 0:
                raise AssertionError(
                    f"block {block_id} has ref_count {ref_count} and stands "
                    f"{on_free_list[block_id]} times on the free list, not {expected}"
                )
        if tables is None:
            return
        # A hole is counted as well, as None; no block has that id.
        held = Counter(block_id for table in tables for block_id in table.block_ids)
        for block_id, ref_count in ref_counts.items():
            if held[block_id] != ref_count:
                raise AssertionError(
                    f"block {block_id} has ref_count {ref_count}, but tables hold it "
                    f"{held[block_id]} times"
                )

    def _record(self, block_id: int) -> KVBlock:
        try:
            return self._blocks[block_id]
        except KeyError:
            raise ValueError(
                f"block_id must be in 0 … {len(self._blocks) - 1}, got {block_id!r}"
            ) from None
