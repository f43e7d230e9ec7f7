"""A pool of blocks as a table of counts: the oracle for every allocator.

It knows no free list, so it cannot say which block comes next; it checks that what
the allocator chose was allowed.
"""

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class PoolModel:
    """Mirrors an allocator call by call and raises AssertionError where they part."""

    def __init__(self, allocator) -> None:
        self.allocator = allocator
        self.counts = [0] * allocator.num_blocks

    @property
    def num_free(self) -> int:
        return self.counts.count(0)

    def allocate_many(self, n: int) -> None:
        if n > self.num_free:
            self.expect(OutOfBlocksError, self.allocator.allocate_many, n)
        else:
            self.take(self.allocator.allocate_many(n), n)

    def allocate(self) -> None:
        if self.num_free == 0:
            self.expect(OutOfBlocksError, self.allocator.allocate)
        else:
            self.take([self.allocator.allocate()], 1)

    def share(self, block_id: int) -> None:
        if self.counts[block_id] == 0:
            self.expect(ValueError, self.allocator.share, block_id)
        else:
            self.allocator.share(block_id)
            self.counts[block_id] += 1

    def free(self, block_id: int) -> None:
        if self.counts[block_id] == 0:
            self.expect(DoubleFreeError, self.allocator.free, block_id)
        else:
            self.allocator.free(block_id)
            self.counts[block_id] -= 1

    def free_many(self, block_ids: list[int]) -> None:
        if any(block_ids.count(i) > self.counts[i] for i in set(block_ids)):
            self.expect(DoubleFreeError, self.allocator.free_many, block_ids)
        else:
            self.allocator.free_many(block_ids)
            for block_id in block_ids:
                self.counts[block_id] -= 1

    def take(self, block_ids: list[int], n: int) -> None:
        assert len(block_ids) == len(set(block_ids)) == n, block_ids
        for block_id in block_ids:
            assert self.counts[block_id] == 0, f"block {block_id} was in use"
            self.counts[block_id] = 1

    def expect(self, error: type[Exception], call, *arguments: object) -> None:
        try:
            call(*arguments)
        except error:
            return
        raise AssertionError(f"{call.__name__}{arguments} did not raise {error}")

    def check(self) -> None:
        """The two agree, and the allocator's own invariants hold."""
        self.allocator.check()
        pool = range(len(self.counts))
        assert [self.allocator.ref_count(i) for i in pool] == self.counts
        assert self.allocator.num_free == self.num_free
        for n in range(len(self.counts) + 2):
            assert self.allocator.can_allocate(n) == (n <= self.num_free)
