"""Keeps the slot of every token in one flat list; the blocks follow from it."""

from paged_attention.errors import SharedBlockError


class LogicalTable:
    def __init__(self, allocator, block_size, block_ids=(), num_tokens=0):
        self.allocator = allocator
        self.block_size = block_size
        blocks = list(block_ids)
        self._places = self._spread(blocks)  # one for each place of each block
        if not len(self._places) - block_size < num_tokens <= len(self._places) or (
            num_tokens < 0
        ):
            raise ValueError(f"{len(blocks)} blocks do not hold {num_tokens} tokens")
        self.num_tokens = num_tokens

    def _spread(self, blocks):
        places = []
        for block in blocks:
            if block is None:
                places += [None] * self.block_size
            else:
                places += range(block * self.block_size, (block + 1) * self.block_size)
        return places

    @property
    def num_blocks(self):
        return len(self._places) // self.block_size

    @property
    def block_ids(self):
        starts = self._places[:: self.block_size]
        return [None if slot is None else slot // self.block_size for slot in starts]

    def translate(self, logical_block):
        if logical_block < 0:
            raise IndexError(f"negative block {logical_block}")
        slot = self._places[logical_block * self.block_size]
        if slot is None:
            raise ValueError("a hole")
        return slot // self.block_size

    def translate_many(self, logical_blocks):
        return [self.translate(i) for i in logical_blocks]

    def slot(self, position):
        return self.slots(position, position + 1)[0]

    def slots(self, start, stop):
        if start < 0 or start > stop or stop > self.num_tokens:
            raise IndexError(f"{start}:{stop} of {self.num_tokens} tokens")
        slots = self._places[start:stop]
        if None in slots:
            raise ValueError(f"a hole in {start}:{stop}")
        return slots

    def append_tokens(self, n):
        if n < 0:
            raise ValueError("fewer tokens than none")
        partly_filled = self.num_tokens < len(self._places)
        if n > 0 and partly_filled:
            tail = self.translate(self.num_blocks - 1)
            if self.allocator.ref_count(tail) >= 2:
                raise SharedBlockError(f"{tail} has other readers")
        new = []
        try:
            while len(self._places) + len(new) * self.block_size < self.num_tokens + n:
                new.append(self.allocator.allocate())
        except Exception:
            self.allocator.free_many(new[::-1])
            raise
        self._places += self._spread(new)
        self.num_tokens += n
        return self._places[self.num_tokens - n : self.num_tokens]

    def replace(self, logical_block, block_id):
        self.allocator.free_many([self.translate(logical_block)])
        start = logical_block * self.block_size
        self._places[start : start + self.block_size] = self._spread([block_id])

    def truncate(self, num_tokens):
        if num_tokens < 0 or num_tokens > self.num_tokens:
            raise ValueError(f"{num_tokens} of {self.num_tokens} tokens")
        end = num_tokens
        if num_tokens % self.block_size:
            if self._places[num_tokens] is None:
                raise ValueError("the last block would be a hole")
            end += self.block_size - num_tokens % self.block_size
        self.allocator.free_many(self._held(self.block_ids[end // self.block_size :]))
        del self._places[end:]
        self.num_tokens = num_tokens

    def drop_before(self, position):
        if position < 0 or position > self.num_tokens:
            raise IndexError(f"{position} of {self.num_tokens} tokens")
        end = position - position % self.block_size
        self.allocator.free_many(self._held(self.block_ids[: end // self.block_size]))
        self._places[:end] = [None] * end

    def free(self):
        self.truncate(0)

    @staticmethod
    def _held(blocks):
        return (block for block in reversed(blocks) if block is not None)


def pad_tables(tables):
    rows = [[-1 if b is None else b for b in table.block_ids] for table in tables]
    while any(len(row) < max(map(len, rows)) for row in rows):
        min(rows, key=len).append(-1)
    return rows


def kernel_slots(block_tables, seq_lens, block_size):
    return [
        [
            row[p // block_size] * block_size + p % block_size
            for p in range(seq_lens[i])
            if row[p // block_size] != -1
        ]
        for i, row in enumerate(block_tables)
    ]
