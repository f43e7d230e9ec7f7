"""Right in another way: a set of free ids, and a Condition used as a lock."""

from threading import Condition

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class FreeListAllocator:
    def __init__(self, num_blocks):
        if num_blocks < 1:
            raise ValueError("at least one block")
        self.all = frozenset(range(num_blocks))
        self.unused = set(self.all)
        self.counts = {}
        self.lock = Condition()

    @property
    def num_blocks(self):
        return len(self.all)

    @property
    def num_free(self):
        return len(self.unused)

    def can_allocate(self, n):
        return not n > self.num_free

    def allocate(self):
        with self.lock:
            try:
                block_id = self.unused.pop()
            except KeyError:
                raise OutOfBlocksError("nothing left") from None
            self.counts[block_id] = 1
            return block_id

    def allocate_many(self, n):
        with self.lock:
            if n < 0:
                raise ValueError("n")
            if n > len(self.unused):
                raise OutOfBlocksError("too many")
            ids = [self.unused.pop() for _ in range(n)]
            self.counts.update(dict.fromkeys(ids, 1))
            return ids

    def ref_count(self, block_id):
        if block_id not in self.all:
            raise ValueError("block_id")
        return self.counts.get(block_id, 0)

    def share(self, block_id):
        with self.lock:
            if not self.ref_count(block_id):
                raise ValueError("free")
            self.counts[block_id] += 1

    def free(self, block_id):
        self.free_many((block_id,))

    def free_many(self, block_ids):
        with self.lock:
            changed = {}
            for block_id in block_ids:
                count = changed.get(block_id, self.ref_count(block_id))
                if count == 0:
                    raise DoubleFreeError("free already")
                changed[block_id] = count - 1
            for block_id, count in changed.items():
                if count:
                    self.counts[block_id] = count
                else:
                    del self.counts[block_id]
                    self.unused.add(block_id)


def check_allocator(allocator_class):
    """Short cases, one after the other; fails with whatever error comes."""
    pool = allocator_class(3)
    a, b, c = pool.allocate(), pool.allocate(), pool.allocate()
    assert {a, b, c} == {0, 1, 2}
    fails(OutOfBlocksError, pool.allocate)
    for block_id in (a, b, c):
        pool.free(block_id)
    assert pool.num_free == 3
    assert set(pool.allocate_many(3)) == {0, 1, 2}
    fails(OutOfBlocksError, pool.allocate)
    fails(ValueError, lambda: pool.free(-1))
    assert pool.num_free == 0

    pool = allocator_class(2)
    a = pool.allocate()
    fails(OutOfBlocksError, lambda: pool.allocate_many(2))
    assert pool.num_free == 1 and pool.can_allocate(1) and not pool.can_allocate(2)
    pool.share(a)
    assert pool.ref_count(a) == 2 and pool.num_free == 1
    fails(DoubleFreeError, lambda: pool.free_many([a, a, a]))
    assert pool.ref_count(a) == 2
    pool.free_many([a, a])
    assert pool.ref_count(a) == 0 and pool.num_free == 2
    fails(DoubleFreeError, lambda: pool.free(a))
    assert pool.ref_count(a) == 0 and pool.num_free == 2
    fails(ValueError, lambda: pool.share(a))
    assert pool.ref_count(a) == 0
    b, c = pool.allocate_many(2)
    pool.share(b)
    pool.free(b)
    assert [pool.ref_count(b), pool.ref_count(c), pool.num_free] == [1, 1, 0]
    pool.free(b)
    pool.free(c)
    d, e = pool.allocate(), pool.allocate()
    assert [pool.ref_count(d), pool.ref_count(e)] == [1, 1]


def fails(error, call):
    try:
        call()
    except error:
        return
    raise AssertionError(f"no {error.__name__}")
