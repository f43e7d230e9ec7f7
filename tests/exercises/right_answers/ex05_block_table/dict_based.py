"""A dict from logical to physical block; a hole is a block that is not in it."""

from paged_attention.errors import SharedBlockError


class LogicalTable:
    def __init__(self, allocator, block_size, block_ids=(), num_tokens=0):
        block_ids = tuple(block_ids)
        if len(block_ids) != -(-num_tokens // block_size):
            raise ValueError(f"{len(block_ids)} blocks for {num_tokens} tokens")
        self.allocator = allocator
        self.block_size = block_size
        self.num_tokens = num_tokens
        self.physical = {i: b for i, b in enumerate(block_ids) if b is not None}

    @property
    def num_blocks(self):
        return -(-self.num_tokens // self.block_size)

    @property
    def block_ids(self):
        return [self.physical.get(i) for i in range(self.num_blocks)]

    def translate(self, logical_block):
        if logical_block in self.physical:
            return self.physical[logical_block]
        if logical_block in range(self.num_blocks):
            raise ValueError(f"block {logical_block} was dropped")
        raise IndexError(f"no block {logical_block}")

    def translate_many(self, logical_blocks):
        return list(map(self.translate, logical_blocks))

    def slot(self, position):
        if position not in range(self.num_tokens):
            raise IndexError(f"no position {position}")
        block = self.translate(position // self.block_size)
        return block * self.block_size + position % self.block_size

    def slots(self, start, stop):
        if start < 0 or stop < start or self.num_tokens < stop:
            raise IndexError(f"no positions {start} to {stop}")
        found = []
        for i in range(start // self.block_size, -(-stop // self.block_size)):
            low = max(start - i * self.block_size, 0)
            high = min(stop - i * self.block_size, self.block_size)
            if low < high:
                base = self.translate(i) * self.block_size
                found += list(range(base + low, base + high))
        return found

    def append_tokens(self, n):
        if n < 0:
            raise ValueError(f"cannot append {n} tokens")
        old = self.num_tokens
        if n and old % self.block_size:
            tail = self.translate(self.num_blocks - 1)
            if self.allocator.ref_count(tail) != 1:
                raise SharedBlockError(f"block {tail} is shared")
        first = self.num_blocks
        missing = -(-(old + n) // self.block_size) - first
        if missing:
            new = self.allocator.allocate_many(missing)
            self.physical.update(zip(range(first, first + missing), new, strict=True))
        self.num_tokens = old + n
        return self.slots(old, old + n)

    def replace(self, logical_block, block_id):
        self.allocator.free(self.translate(logical_block))
        self.physical[logical_block] = block_id

    def remove(self, logical_blocks):
        there = [i for i in logical_blocks if i in self.physical]
        self.allocator.free_many([self.physical[i] for i in there])
        for i in there:
            del self.physical[i]

    def truncate(self, num_tokens):
        if num_tokens not in range(self.num_tokens + 1):
            raise ValueError(f"cannot keep {num_tokens} tokens")
        last, rest = divmod(num_tokens, self.block_size)
        if rest and last not in self.physical:
            raise ValueError(f"block {last} was dropped")
        kept = last + 1 if rest else last
        self.remove(range(self.num_blocks - 1, kept - 1, -1))
        self.num_tokens = num_tokens

    def drop_before(self, position):
        if position not in range(self.num_tokens + 1):
            raise IndexError(f"no position {position}")
        self.remove(range(position // self.block_size - 1, -1, -1))

    def free(self):
        self.remove(range(self.num_blocks - 1, -1, -1))
        self.num_tokens = 0


def pad_tables(tables):
    width = max([0] + [table.num_blocks for table in tables])
    return [[table.physical.get(i, -1) for i in range(width)] for table in tables]


def kernel_slots(block_tables, seq_lens, block_size):
    result = []
    for row, seq_len in zip(block_tables, seq_lens, strict=True):
        slots = []
        for i, block in enumerate(row):
            length = min(block_size, seq_len - i * block_size)
            if length <= 0:
                break
            if block != -1:
                slots += range(block * block_size, block * block_size + length)
        result.append(slots)
    return result
