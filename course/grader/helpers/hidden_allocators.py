"""Right and wrong allocators for the bug hunt of exercise 04. They run in the grader.

A class's docstring says what it does, in the words that the report uses.
"""

import random
from collections import Counter

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class Right:
    """takes the block that was freed last"""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {num_blocks}")
        self._counts = [0] * num_blocks
        self._free = list(range(num_blocks))

    @property
    def num_blocks(self) -> int:
        return len(self._counts)

    @property
    def num_free(self) -> int:
        return len(self._free)

    def can_allocate(self, n: int) -> bool:
        return n <= len(self._free)

    def allocate(self) -> int:
        if not self._free:
            raise OutOfBlocksError("no block is free")
        block_id = self._take()
        self._counts[block_id] = 1
        return block_id

    def allocate_many(self, n: int) -> list[int]:
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        if n > len(self._free):
            raise OutOfBlocksError(f"{n} blocks wanted, {len(self._free)} are free")
        return [self.allocate() for _ in range(n)]

    def share(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            raise ValueError(f"block {block_id} is free")
        self._counts[block_id] += 1

    def free(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            raise DoubleFreeError(f"block {block_id} is free already")
        self._counts[block_id] -= 1
        if self._counts[block_id] == 0:
            self._free.append(block_id)

    def free_many(self, block_ids: list[int]) -> None:
        for block_id, times in Counter(block_ids).items():
            if times > self.ref_count(block_id):
                raise DoubleFreeError(f"block {block_id} has too few holders")
        for block_id in block_ids:
            self.free(block_id)

    def ref_count(self, block_id: int) -> int:
        if not 0 <= block_id < len(self._counts):
            raise ValueError(f"there is no block {block_id}")
        return self._counts[block_id]

    def _take(self) -> int:
        return self._free.pop()


class RightOldestFirst(Right):
    """takes the block that has been free for the longest time"""

    def _take(self) -> int:
        return self._free.pop(0)


class RightLowestFirst(Right):
    """takes the free block with the lowest id"""

    def _take(self) -> int:
        self._free.sort(reverse=True)
        return self._free.pop()


class RightAtRandom(Right):
    """takes any free block, at random"""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._random = random.Random(4)

    def _take(self) -> int:
        return self._free.pop(self._random.randrange(len(self._free)))


class RightManyInOrder(Right):
    """gives several blocks sorted by id, and raises a DoubleFreeError in share"""

    def allocate_many(self, n: int) -> list[int]:
        return sorted(super().allocate_many(n))

    def share(self, block_id: int) -> None:
        if super().ref_count(block_id) == 0:
            raise DoubleFreeError(f"block {block_id} is free")
        super().share(block_id)


RIGHT = [Right, RightOldestFirst, RightLowestFirst, RightAtRandom, RightManyInOrder]


class FreeIgnoresCount(Right):
    """free gives a block back although others still hold it"""

    def free(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            raise DoubleFreeError(f"block {block_id} is free already")
        self._counts[block_id] = 0
        self._free.append(block_id)


class AcceptsDoubleFree(Right):
    """a second free puts the block on the free list once more"""

    def free(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            self._free.append(block_id)
        else:
            super().free(block_id)


class SwallowsDoubleFree(Right):
    """a second free does nothing, but raises no error either"""

    def free(self, block_id: int) -> None:
        if self.ref_count(block_id) > 0:
            super().free(block_id)


class LosesBlockOnDoubleFree(Right):
    """a second free raises the right error, but lowers the count to -1"""

    def free(self, block_id: int) -> None:
        count = self.ref_count(block_id)
        if count == 0:
            self._counts[block_id] = -1
            raise DoubleFreeError(f"block {block_id} is free already")
        super().free(block_id)


class AllocatesManyHalf(Right):
    """allocate_many takes what there is before it raises"""

    def allocate_many(self, n: int) -> list[int]:
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        return [self.allocate() for _ in range(n)]


class AllocatesFewer(Right):
    """allocate_many gives fewer blocks than asked for when there are not enough"""

    def allocate_many(self, n: int) -> list[int]:
        return super().allocate_many(min(n, self.num_free))


class FreesManyHalf(Right):
    """free_many frees the ids in front of the bad one before it raises"""

    def free_many(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.free(block_id)


class FreesEachIdOnce(Right):
    """free_many takes one holder away even where an id stands in the list twice"""

    def free_many(self, block_ids: list[int]) -> None:
        super().free_many(list(dict.fromkeys(block_ids)))


class ShareCountsNothing(Right):
    """share forgets to count the new holder"""

    def share(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            raise ValueError(f"block {block_id} is free")


class SharesFreeBlocks(Right):
    """share accepts a block that is free"""

    def share(self, block_id: int) -> None:
        self.ref_count(block_id)
        self._counts[block_id] += 1


class CountsHolders(Right):
    """num_free goes down with every share, as if holders were blocks"""

    @property
    def num_free(self) -> int:
        return len(self._counts) - sum(self._counts)


class KeepsOldCounts(Right):
    """a block that was shared once starts its next life with a ref_count of 2"""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._was_shared: set[int] = set()

    def share(self, block_id: int) -> None:
        super().share(block_id)
        self._was_shared.add(block_id)

    def allocate(self) -> int:
        block_id = super().allocate()
        if block_id in self._was_shared:
            self._counts[block_id] = 2
        return block_id


class WithholdsOne(Right):
    """says that it is out of blocks while one is still free"""

    def allocate(self) -> int:
        if len(self._free) == 1:
            raise OutOfBlocksError("no block is free")
        return super().allocate()

    def allocate_many(self, n: int) -> list[int]:
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        if n and n >= len(self._free):
            raise OutOfBlocksError(f"{n} blocks wanted")
        return super().allocate_many(n)


class HandsOutTwice(Right):
    """hands a block out twice after the pool has been empty"""

    _was_empty = False

    def allocate(self) -> int:
        block_id = super().allocate()
        if self._was_empty and self._free:
            self._free.append(block_id)  # still on the list, so it comes again
            self._was_empty = False
        self._was_empty = self._was_empty or not self._free
        return block_id


class TakesNegativeIds(Right):
    """takes block -1 for the last one, as a Python list does"""

    def ref_count(self, block_id: int) -> int:
        if not -len(self._counts) <= block_id < len(self._counts):
            raise ValueError(f"there is no block {block_id}")
        return self._counts[block_id]


class CannotFillThePool(Right):
    """can_allocate says no when exactly as many blocks are free as asked for"""

    def can_allocate(self, n: int) -> bool:
        return n < len(self._free)


class RaisesIndexErrorWhenEmpty(Right):
    """allocate raises an IndexError when no block is free, as list.pop does"""

    def allocate(self) -> int:
        if not self._free:
            raise IndexError("pop from empty list")
        return super().allocate()


class RaisesIndexErrorForBadIds(Right):
    """an id that does not exist is an IndexError, as a list raises it"""

    def ref_count(self, block_id: int) -> int:
        if not 0 <= block_id < len(self._counts):
            raise IndexError("list index out of range")
        return self._counts[block_id]


class CallsDoubleFreesValueErrors(Right):
    """a second free is refused, but with a plain ValueError"""

    def free(self, block_id: int) -> None:
        if self.ref_count(block_id) == 0:
            raise ValueError(f"block {block_id} is free already")
        super().free(block_id)


class CountsBeforeItRefuses(Right):
    """share refuses a free block, but has counted the new holder by then"""

    def share(self, block_id: int) -> None:
        count = self.ref_count(block_id)
        self._counts[block_id] += 1
        if count == 0:
            raise ValueError(f"block {block_id} is free")


WRONG = [
    FreeIgnoresCount,
    AcceptsDoubleFree,
    SwallowsDoubleFree,
    LosesBlockOnDoubleFree,
    AllocatesManyHalf,
    AllocatesFewer,
    FreesManyHalf,
    FreesEachIdOnce,
    ShareCountsNothing,
    SharesFreeBlocks,
    CountsHolders,
    KeepsOldCounts,
    WithholdsOne,
    HandsOutTwice,
    TakesNegativeIds,
    CannotFillThePool,
    RaisesIndexErrorWhenEmpty,
    RaisesIndexErrorForBadIds,
    CallsDoubleFreesValueErrors,
    CountsBeforeItRefuses,
]
