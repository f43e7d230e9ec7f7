"""Right in another way: starts by size, any region by chance, either half; a bitmap."""

import random
from collections import defaultdict
from dataclasses import dataclass

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


@dataclass
class Row:
    first_step: int
    prompt_len: int
    output_len: int
    asked: int
    start: int
    size: int


def classify_waste(num_places, rows, step, next_size):
    """Paint every place with the letter of what it is good for, then count letters."""
    pool = ["f"] * num_places
    for row in rows:
        if row.first_step <= step < row.first_step + row.output_len:
            held = row.prompt_len + step - row.first_step
            final = row.prompt_len + row.output_len
            kinds = "t" * held + "r" * (final - held) + "i" * (row.asked - final)
            pool[row.start : row.start + row.size] = kinds.ljust(row.size, "o")
    text = "".join(pool)
    if text.count("f") >= next_size and "f" * next_size not in text:
        text = text.replace("f", "e")
    words = ("tokens", "reserved", "internal", "rounding", "external", "free")
    return {
        word: text.count(letter) for word, letter in zip(words, "trioef", strict=True)
    }


class BuddyPool:
    def __init__(self, num_tokens):
        if num_tokens < 1:
            raise ValueError(num_tokens)
        self.num_tokens = num_tokens
        self.starts = defaultdict(set)
        self.sizes = {}
        start, size = 0, 1 << num_tokens.bit_length()
        while size := size // 2:
            if num_tokens & size:
                self.starts[size].add(start)
                start += size

    @property
    def num_free(self):
        return sum(size * len(starts) for size, starts in self.starts.items())

    @property
    def largest_free(self):
        return max((size for size in self.starts if self.starts[size]), default=0)

    @property
    def free_regions(self):
        return sorted((s, size) for size in self.starts for s in self.starts[size])

    def can_allocate(self, num_tokens):
        return self.largest_free >= num_tokens

    def allocate(self, num_tokens):
        if num_tokens < 1:
            raise ValueError(num_tokens)
        if not self.can_allocate(num_tokens):
            raise OutOfBlocksError(num_tokens)
        size = 1
        while size < num_tokens:
            size *= 2
        start = self._take(size)
        self.sizes[start] = size
        return start

    def _take(self, size):
        """A region of just this size; a larger one is halved where none is free."""
        if self.starts[size]:
            start = random.choice(sorted(self.starts[size]))
            self.starts[size].remove(start)
            return start
        start = self._take(2 * size)
        halves = [start, start + size]
        random.shuffle(halves)
        self.starts[size].add(halves.pop())
        return halves.pop()

    def size(self, start):
        if start not in self.sizes:
            raise ValueError(start)
        return self.sizes[start]

    def free(self, start):
        if start not in self.sizes:
            raise DoubleFreeError(start)
        self._give(start, self.sizes.pop(start))

    def _give(self, start, size):
        buddy = start - size if start // size % 2 else start + size
        if buddy in self.starts[size]:
            self.starts[size].remove(buddy)
            self._give(min(start, buddy), 2 * size)
        else:
            self.starts[size].add(start)


def paging_waste(lengths, block_size):
    blocks = sum((length + block_size - 1) // block_size for length in lengths)
    return blocks * block_size - sum(lengths)


def best_block_size(trace, candidates, token_bytes, entry_bytes):
    if not candidates:
        raise ValueError("none")
    costs = {}
    for size in candidates:
        held = [p + t for p, o in trace for t in range(o)]
        entries = sum(-(-n // size) for n in held)
        costs[size] = paging_waste(held, size) * token_bytes + entries * entry_bytes
    return max(size for size in costs if costs[size] == min(costs.values()))
