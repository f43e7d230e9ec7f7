"""Right in another way: records in a ring, linked both ways, as in vLLM."""

import contextlib
import threading
from dataclasses import dataclass, field

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


@dataclass(eq=False)
class Record:
    block_id: int
    holders: int = 0
    before: "Record" = field(default=None, repr=False)
    behind: "Record" = field(default=None, repr=False)


class FreeListAllocator:
    def __init__(self, num_blocks):
        if num_blocks < 1:
            raise ValueError(f"{num_blocks} blocks")
        self._ring = Record(-1)
        self._ring.before = self._ring.behind = self._ring
        self._records = [Record(block_id) for block_id in range(num_blocks)]
        self.num_blocks, self.num_free = num_blocks, 0
        self._lock = threading.Lock()
        for record in self._records:
            self._append(record)

    @contextlib.contextmanager
    def _alone(self):
        self._lock.acquire()
        try:
            yield
        finally:
            self._lock.release()

    def _append(self, record):
        last = self._ring.before
        record.before, record.behind = last, self._ring
        last.behind = self._ring.before = record
        self.num_free += 1

    def _take(self, record):
        record.before.behind, record.behind.before = record.behind, record.before
        record.holders = 1
        self.num_free -= 1
        return record.block_id

    def _find(self, block_id):
        if not -1 < block_id < self.num_blocks:
            raise ValueError(f"no block {block_id}")
        return self._records[block_id]

    def can_allocate(self, n):
        return self.num_free >= n

    def ref_count(self, block_id):
        return self._find(block_id).holders

    def allocate(self):
        with self._alone():
            if self._ring.behind is self._ring:
                raise OutOfBlocksError("the ring is empty")
            return self._take(self._ring.behind)

    def allocate_many(self, n):
        with self._alone():
            if n < 0:
                raise ValueError(f"n = {n}")
            if n > self.num_free:
                raise OutOfBlocksError(f"{n} > {self.num_free}")
            return [self._take(self._ring.behind) for _ in range(n)]

    def share(self, block_id):
        with self._alone():
            record = self._find(block_id)
            if record.holders == 0:
                raise ValueError(f"{record} is free")
            record.holders += 1

    def free(self, block_id):
        self.free_many([block_id])

    def free_many(self, block_ids):
        with self._alone():
            records = [self._find(block_id) for block_id in block_ids]
            for place, record in enumerate(records):
                if record.holders == 0:
                    for undo in records[:place]:
                        if undo.holders == 0:
                            self._take(undo)
                        else:
                            undo.holders += 1
                    raise DoubleFreeError(f"{record} is free")
                record.holders -= 1
                if record.holders == 0:
                    self._append(record)


class Checker:
    """A pool and the books beside it; every call compares both."""

    def __init__(self, pool, size):
        self.pool, self.held = pool, [0] * size

    def call(self, error, name, *args):
        try:
            result = getattr(self.pool, name)(*args)
        except Exception as raised:
            assert error and isinstance(raised, error), f"{name}{args}: {raised!r}"
            result = None
        else:
            assert error is None, f"{name}{args} raised nothing"
            ids = args[0] if name == "free_many" else args
            if name == "allocate":
                ids = [result]
            elif name == "allocate_many":
                ids = result
                assert len(ids) == args[0]
            for block_id in ids:
                assert not (name.startswith("allocate") and self.held[block_id])
                self.held[block_id] += -1 if name.startswith("free") else 1
        counts = [self.pool.ref_count(i) for i in range(len(self.held))]
        assert counts == self.held, f"after {name}{args}: {counts}, not {self.held}"
        assert self.pool.num_free == self.held.count(0), f"num_free after {name}{args}"
        assert self.pool.can_allocate(self.held.count(0))
        assert not self.pool.can_allocate(self.held.count(0) + 1)
        return result


def check_allocator(allocator_class):
    one = Checker(allocator_class(3), 3)
    for _ in range(3):
        a, b, c = (one.call(None, "allocate") for _ in range(3))
        one.call(OutOfBlocksError, "allocate")
        one.call(OutOfBlocksError, "allocate_many", 1)
        one.call(None, "share", b)
        one.call(ValueError, "free_many", [a, 3])
        one.call(ValueError, "free", -1)
        one.call(ValueError, "share", -3)
        one.call(DoubleFreeError, "free_many", [c, b, b, b])
        one.call(None, "free", b)
        one.call(None, "free_many", [c, a])
        one.call(DoubleFreeError, "free", c)
        one.call(ValueError, "share", a)
        one.call(OutOfBlocksError, "allocate_many", 3)
        one.call(None, "share", b)
        one.call(None, "free_many", [b, b])
        one.call(None, "free_many", one.call(None, "allocate_many", 3))
    one.call(ValueError, "allocate_many", -1)
