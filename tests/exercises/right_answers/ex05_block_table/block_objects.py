"""A small object per logical block, and loops that undo what they did on an error."""

from dataclasses import dataclass

from paged_attention.errors import DoubleFreeError, SharedBlockError


@dataclass
class Entry:
    physical: int | None
    used: int  # tokens in it


class LogicalTable:
    def __init__(self, allocator, block_size, block_ids=(), num_tokens=0):
        self.allocator = allocator
        self.block_size = block_size
        self.entries = []
        left = num_tokens
        for block in block_ids:
            if left <= 0:
                raise ValueError("more blocks than tokens need")
            self.entries.append(Entry(block, min(left, block_size)))
            left -= block_size
        if left > 0 or num_tokens < 0:
            raise ValueError("fewer blocks than tokens need")

    @property
    def num_tokens(self):
        return sum(entry.used for entry in self.entries)

    @property
    def num_blocks(self):
        return len(self.entries)

    @property
    def block_ids(self):
        return [entry.physical for entry in self.entries]

    def translate(self, logical_block):
        if not 0 <= logical_block < len(self.entries):
            raise IndexError(logical_block)
        physical = self.entries[logical_block].physical
        if physical is None:
            raise ValueError(f"nothing is left of {logical_block}")
        return physical

    def translate_many(self, logical_blocks):
        found = []
        for logical_block in logical_blocks:
            found.append(self.translate(logical_block))
        return found

    def slot(self, position):
        if position < 0 or position >= self.num_tokens:
            raise IndexError(position)
        block = self.translate(position // self.block_size)
        return block * self.block_size + position % self.block_size

    def slots(self, start, stop):
        if not (0 <= start <= stop <= self.num_tokens):
            raise IndexError((start, stop))
        if start == stop:
            return []
        first, last = start // self.block_size, (stop - 1) // self.block_size
        slots = []
        for block in self.translate_many(range(first, last + 1)):
            slots.extend(range(block * self.block_size, (block + 1) * self.block_size))
        head = start - first * self.block_size
        return slots[head : head + stop - start]

    def append_tokens(self, n):
        if n < 0:
            raise ValueError(n)
        old = self.num_tokens
        new = []
        room = -old % self.block_size
        if n and room and self.allocator.ref_count(self.entries[-1].physical) > 1:
            raise SharedBlockError("copy it first")
        for _ in range(-(-max(n - room, 0) // self.block_size)):
            try:
                new += self.allocator.allocate_many(1)
            except Exception:
                for block in new:
                    self.allocator.free(block)
                raise
        if room:
            self.entries[-1].used += min(room, n)
        left = n - room
        for block in new:
            self.entries.append(Entry(block, min(left, self.block_size)))
            left -= self.block_size
        return self.slots(old, old + n)

    def give_back(self, entries):
        done = []
        for entry in reversed(entries):
            if entry.physical is None:
                continue
            if self.allocator.ref_count(entry.physical) <= done.count(entry.physical):
                raise DoubleFreeError(f"block {entry.physical}")
            done.append(entry.physical)
        for block in done:
            self.allocator.free(block)

    def replace(self, logical_block, block_id):
        self.translate(logical_block)
        self.give_back([self.entries[logical_block]])
        self.entries[logical_block].physical = block_id

    def truncate(self, num_tokens):
        if num_tokens < 0 or num_tokens > self.num_tokens:
            raise ValueError(num_tokens)
        whole, rest = divmod(num_tokens, self.block_size)
        if rest:
            self.translate(whole)
            self.give_back(self.entries[whole + 1 :])
            del self.entries[whole + 1 :]
            self.entries[whole].used = rest
        else:
            self.give_back(self.entries[whole:])
            del self.entries[whole:]

    def drop_before(self, position):
        if position < 0 or position > self.num_tokens:
            raise IndexError(position)
        gone = self.entries[: position // self.block_size]
        self.give_back(gone)
        for entry in gone:
            entry.physical = None

    def free(self):
        self.give_back(self.entries)
        self.entries = []


def pad_tables(tables):
    width = 0
    for table in tables:
        width = max(width, table.num_blocks)
    matrix = []
    for table in tables:
        row = [-1] * width
        for i, block in enumerate(table.block_ids):
            if block is not None:
                row[i] = block
        matrix.append(row)
    return matrix


def kernel_slots(block_tables, seq_lens, block_size):
    all_slots = []
    for row, seq_len in zip(block_tables, seq_lens, strict=True):
        slots = []
        position = 0
        while position < seq_len:
            block = row[position // block_size]
            if block != -1:
                slots.append(block * block_size + position % block_size)
            position += 1
        all_slots.append(slots)
    return all_slots
