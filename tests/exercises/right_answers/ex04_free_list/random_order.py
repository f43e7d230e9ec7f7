"""Right in another way: any free block, by chance; a Semaphore of one as the lock."""

import random
import threading

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class FreeListAllocator:
    def __init__(self, num_blocks):
        if num_blocks < 1:
            raise ValueError(num_blocks)
        self.free_ids = list(range(num_blocks))
        self.counts = [0] * num_blocks
        self.turn = threading.Semaphore(1)

    @property
    def num_blocks(self):
        return len(self.counts)

    @property
    def num_free(self):
        return len(self.free_ids)

    def can_allocate(self, n):
        return self.num_free >= n

    def ref_count(self, block_id):
        if block_id not in range(len(self.counts)):
            raise ValueError(block_id)
        return self.counts[block_id]

    def allocate(self):
        with self.turn:
            if not self.free_ids:
                raise OutOfBlocksError("empty")
            return self._take()

    def allocate_many(self, n):
        with self.turn:
            if n < 0:
                raise ValueError(n)
            if n > len(self.free_ids):
                raise OutOfBlocksError(n)
            return [self._take() for _ in range(n)]

    def _take(self):
        # The last one fills the gap, so that nothing has to move up.
        place = random.randrange(len(self.free_ids))
        self.free_ids[place], self.free_ids[-1] = (
            self.free_ids[-1],
            self.free_ids[place],
        )
        block_id = self.free_ids.pop()
        self.counts[block_id] = 1
        return block_id

    def share(self, block_id):
        with self.turn:
            if self.ref_count(block_id) == 0:
                raise ValueError(block_id)
            self.counts[block_id] += 1

    def free(self, block_id):
        with self.turn:
            if self.ref_count(block_id) == 0:
                raise DoubleFreeError(block_id)
            self._give(block_id)

    def _give(self, block_id):
        self.counts[block_id] -= 1
        if self.counts[block_id] == 0:
            self.free_ids.append(block_id)

    def free_many(self, block_ids):
        with self.turn:
            for block_id in set(block_ids):
                if block_ids.count(block_id) > self.ref_count(block_id):
                    raise DoubleFreeError(block_id)
            for block_id in block_ids:
                self._give(block_id)


def check_allocator(allocator_class):
    """All short sequences of calls in a pool of two, by recursion."""
    calls = [
        ("allocate",),
        ("allocate_many", 2),
        ("share", 0),
        ("free", 0),
        ("free", 1),
        ("free_many", [0, 0]),
        ("free_many", [0, 1]),
    ]
    for a in calls:
        for b in calls:
            for c in calls:
                run(allocator_class(2), [("allocate_many", 2), a, b, c])
    for bad in [
        ("free", -1),
        ("share", 2),
        ("free_many", [0, -2]),
        ("allocate_many", -1),
    ]:
        run(allocator_class(2), [("allocate_many", 2), bad])
    pool = allocator_class(2)
    answers = [pool.can_allocate(n) for n in range(4)]
    assert answers == [True, True, True, False], "can_allocate"
    assert sorted([pool.allocate(), pool.allocate()]) == [0, 1]


def run(pool, calls):
    held = [0, 0]
    for name, *args in calls:
        ids = args[0] if name == "free_many" else args
        error = None
        if name == "allocate" and 0 not in held:
            error = OutOfBlocksError
        elif name == "allocate_many":
            error = (
                ValueError if args[0] < 0 else OutOfBlocksError if any(held) else None
            )
        elif name != "allocate":
            if not all(0 <= i <= 1 for i in ids):
                error = ValueError
            elif any(ids.count(i) > held[i] for i in ids):
                error = ValueError if name == "share" else DoubleFreeError
        try:
            got = getattr(pool, name)(*args)
        except (OutOfBlocksError, ValueError) as raised:
            assert error and isinstance(raised, error), f"{calls}: {raised!r}"
        else:
            assert error is None, f"{calls}: {error} expected"
            if name.startswith("allocate"):
                for i in got if args else [got]:
                    assert held[i] == 0, f"{calls}: block {i} is in use"
                    held[i] = 1
            for i in ids if not name.startswith("allocate") else []:
                held[i] += 1 if name == "share" else -1
        assert [pool.ref_count(0), pool.ref_count(1)] == held, f"{calls}: counts"
        assert pool.num_free == held.count(0), f"{calls}: num_free"
