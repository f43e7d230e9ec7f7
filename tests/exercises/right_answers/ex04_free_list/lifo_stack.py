"""Right in another way: a stack, a dict of counts, one Lock, helpers without a lock."""

import random
import threading

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class FreeListAllocator:
    def __init__(self, num_blocks):
        if num_blocks < 1:
            raise ValueError("a pool needs blocks")
        self.stack = list(range(num_blocks))
        self.holders = dict.fromkeys(range(num_blocks), 0)
        self.lock = threading.Lock()

    @property
    def num_blocks(self):
        return len(self.holders)

    @property
    def num_free(self):
        with self.lock:
            return len(self.stack)

    def can_allocate(self, n):
        with self.lock:
            return len(self.stack) >= n

    def ref_count(self, block_id):
        with self.lock:
            return self._count(block_id)

    def allocate(self):
        return self.allocate_many(1)[0]

    def allocate_many(self, n):
        with self.lock:
            if n < 0:
                raise ValueError(n)
            if len(self.stack) < n:
                raise OutOfBlocksError(n)
            taken = self.stack[len(self.stack) - n :]
            del self.stack[len(self.stack) - n :]
            for block_id in taken:
                self.holders[block_id] = 1
            return taken

    def share(self, block_id):
        with self.lock:
            if not self._count(block_id):
                raise ValueError(f"{block_id} is free")
            self.holders[block_id] += 1

    def free(self, block_id):
        self.free_many([block_id])

    def free_many(self, block_ids):
        """Take holders away one by one; on an error, put them back."""
        with self.lock:
            done = []
            try:
                for block_id in block_ids:
                    if not self._count(block_id):
                        raise DoubleFreeError(f"{block_id} is free")
                    self.holders[block_id] -= 1
                    done.append(block_id)
            except ValueError:
                for block_id in done:
                    self.holders[block_id] += 1
                raise
            for block_id in dict.fromkeys(block_ids):
                if self.holders[block_id] == 0:
                    self.stack.append(block_id)

    def _count(self, block_id):
        if block_id not in self.holders:
            raise ValueError(f"no block {block_id}")
        return self.holders[block_id]


def check_allocator(allocator_class):
    """Everything beside a model, in one long walk that is always the same."""
    size = 4
    pool, held = allocator_class(size), [0] * size
    chance = random.Random(7)
    for _ in range(400):
        call = next_call(chance, held)
        error = due_error(call, held)
        name, *args = call
        try:
            result = getattr(pool, name)(*args)
        except (OutOfBlocksError, ValueError) as raised:
            assert error is not None and isinstance(raised, error), (call, raised)
        else:
            assert error is None, f"{call} should raise {error}"
            note_down(call, result, held)
        assert [pool.ref_count(i) for i in range(size)] == held, call
        assert pool.num_free == held.count(0), call
        for n in range(size + 1):
            assert pool.can_allocate(n) == (n <= held.count(0)), call
    for bad in (-1, size):
        try:
            pool.ref_count(bad)
        except ValueError:
            continue
        raise AssertionError("ref_count of a block that does not exist")


def next_call(chance, held):
    name = chance.choice(["allocate", "allocate_many", "share", "free", "free_many"])
    if name == "allocate":
        return (name,)
    if name == "allocate_many":
        return name, chance.randrange(-1, 4)
    if name == "free_many":
        used = [i for i, count in enumerate(held) if count]
        some = [chance.randrange(-1, len(held) + 1)] if chance.random() < 0.3 else []
        return name, used[: chance.randrange(4)] + used[:1] + some
    return name, chance.randrange(-1, len(held) + 1)


def due_error(call, held):
    name, *args = call
    if name.startswith("allocate"):
        n = args[0] if args else 1
        if n < 0:
            return ValueError
        return OutOfBlocksError if n > held.count(0) else None
    ids = args[0] if name == "free_many" else args
    if not all(0 <= i < len(held) for i in ids):
        return ValueError
    if any(ids.count(i) > held[i] for i in ids):
        return ValueError if name == "share" else DoubleFreeError
    return None


def note_down(call, result, held):
    name, *args = call
    if name.startswith("allocate"):
        ids = result if args else [result]
        assert len(ids) == (args[0] if args else 1), call
        assert len(set(ids)) == len(ids), "one block twice"
        assert all(held[i] == 0 for i in ids), "in use already"
    else:
        ids = args[0] if name == "free_many" else args
    for i in ids:
        held[i] += -1 if name.startswith("free") else 1
