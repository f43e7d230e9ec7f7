"""Right in another way: a queue, oldest first; a decorator takes the lock."""

import collections
import functools
from threading import RLock

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def alone(method):
    @functools.wraps(method)
    def locked(self, *args):
        with self.lock:
            return method(self, *args)

    return locked


class NoSuchBlock(ValueError):
    """An error class of one's own is a ValueError, too."""


class FreeListAllocator:
    def __init__(self, num_blocks):
        if num_blocks <= 0:
            raise ValueError(num_blocks)
        self.num_blocks = num_blocks
        self.lock = RLock()
        self.queue = collections.deque(range(num_blocks))
        self.counts = collections.Counter()

    @property
    @alone
    def num_free(self):
        return len(self.queue)

    @alone
    def can_allocate(self, n):
        return n <= self.num_free

    @alone
    def allocate(self):
        if not self.queue:
            raise OutOfBlocksError
        block_id = self.queue.popleft()
        self.counts[block_id] = 1
        return block_id

    @alone
    def allocate_many(self, n):
        if n < 0:
            raise ValueError(n)
        if not self.can_allocate(n):
            raise OutOfBlocksError(n)
        return [self.allocate() for _ in range(n)]

    @alone
    def ref_count(self, block_id):
        if block_id < 0 or block_id >= self.num_blocks:
            raise NoSuchBlock(block_id)
        return self.counts[block_id]

    @alone
    def share(self, block_id):
        if self.ref_count(block_id) < 1:
            raise ValueError(block_id)
        self.counts[block_id] += 1

    @alone
    def free(self, block_id):
        if self.ref_count(block_id) < 1:
            raise DoubleFreeError(block_id)
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            del self.counts[block_id]
            self.queue.append(block_id)

    @alone
    def free_many(self, block_ids):
        left = {block_id: self.ref_count(block_id) for block_id in block_ids}
        for block_id in block_ids:
            left[block_id] -= 1
            if left[block_id] < 0:
                raise DoubleFreeError(block_id)
        for block_id in block_ids:
            self.free(block_id)


def check_allocator(allocator_class):
    """Compares with the allocator above, which is known to be right."""

    def state(pool, size):
        return [pool.num_blocks, pool.num_free, *map(pool.ref_count, range(size))]

    def outcome(pool, name, *args):
        try:
            return "returned", getattr(pool, name)(*args)
        except OutOfBlocksError:
            return "raised", "out"
        except DoubleFreeError:
            return "raised", "double" if name.startswith("free") else "value"
        except ValueError:
            return "raised", "value"

    def same(theirs, mine, name, *args):
        """Both do the same; args name blocks of both pools by when they came."""
        got, want = outcome(theirs, name, *args[0]), outcome(mine, name, *args[1])
        assert got[0] == want[0], f"{name}: {got} instead of {want}"
        assert got[0] == "returned" or got == want, f"{name}: {got} instead of {want}"
        return got[1], want[1]

    for size in (1, 2, 3):
        theirs, mine = allocator_class(size), FreeListAllocator(size)
        for life in range(4):
            ids = []
            for _ in range(size):
                ids.append(same(theirs, mine, "allocate", (), ()))
            assert len({pair[0] for pair in ids}) == size, "a block came twice"
            for n in (-1, 0, 1, size):
                same(theirs, mine, "allocate_many", (n,), (n,))
            same(theirs, mine, "allocate", (), ())
            for a, b in ids:
                same(theirs, mine, "share", (a,), (b,))
                assert theirs.ref_count(a) == 2
                assert theirs.num_free == 0, "a shared block is not free"
                many = [pair for pair in ids for _ in range(3)]
                lists = [x[0] for x in many], [x[1] for x in many]
                same(theirs, mine, "free_many", (lists[0],), (lists[1],))
                assert theirs.num_free == 0, "half done"
                assert theirs.ref_count(a) == 2
            for a, b in ids:
                same(theirs, mine, "free", (a,), (b,))
                assert theirs.ref_count(a) == 1
            for bad in (-1, size, -size):
                for name in ("free", "share", "ref_count"):
                    same(theirs, mine, name, (bad,), (bad,))
                lists = [ids[0][0], bad], [ids[0][1], bad]
                same(theirs, mine, "free_many", (lists[0],), (lists[1],))
                assert theirs.ref_count(ids[0][0]) == 1, "half done"
            if life % 2:
                a, b = ids[-1]
                same(theirs, mine, "share", (a,), (b,))
                both = [*[p[0] for p in ids], a], [*[p[1] for p in ids], b]
                same(theirs, mine, "free_many", (both[0],), (both[1],))
            else:
                for a, b in ids:
                    same(theirs, mine, "free", (a,), (b,))
                    same(theirs, mine, "free", (a,), (b,))
                    same(theirs, mine, "share", (a,), (b,))
            assert state(theirs, size) == [size, size] + [0] * size
            for n in (size - 1, size, size + 1):
                assert theirs.can_allocate(n) == (n <= size)
                if n > size:
                    same(theirs, mine, "allocate_many", (n,), (n,))
            assert state(theirs, size) == [size, size] + [0] * size
