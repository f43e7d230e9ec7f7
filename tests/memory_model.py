"""Block tables over a prefix cache, beside sequences that are plain lists of tokens.

`Memory` holds for each slot the token whose key and value would lie there, so every
sequence can be read back through its own table. After each step three things hold:
O1 each block is counted once per table entry, and once more if it is published;
O2 the free list and the blocks in use are the pool, each block once;
O3 every sequence reads back what it wrote.
"""

import random

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import OutOfBlocksError, SharedBlockError
from paged_attention.prefix_cache import PrefixCache
from paged_attention.sharing import copy_on_write, fork


class Memory:
    """Every operation may be asked for at any time; what is refused changes nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockAllocator(num_blocks)
        self.cache = PrefixCache(self.pool, block_size)
        self.block_size = block_size
        self.slots: list[object] = [None] * (num_blocks * block_size)
        self.tables: list[BlockTable] = []
        self.tokens: list[list[int]] = []  # tokens[i] were written through tables[i]

    def acquire(self, prompt: list[int]) -> None:
        table = self.cache.acquire(prompt)
        assert table.num_tokens < max(len(prompt), 1)
        assert table.num_tokens % self.block_size == 0
        self.tables.append(table)
        self.tokens.append(prompt[: table.num_tokens])

    def append(self, i: int, tokens: list[int]) -> None:
        table = self.tables[i]
        try:
            slots = table.append_tokens(len(tokens))
        except (OutOfBlocksError, SharedBlockError, ValueError):
            return
        for slot, token in zip(slots, tokens, strict=True):
            self.slots[slot] = token
        self.tokens[i] += tokens

    def copy_on_write(self, i: int) -> None:
        try:
            pairs = copy_on_write(self.tables[i])
        except (OutOfBlocksError, ValueError):
            return
        size = self.block_size
        for source, destination in pairs:
            content = self.slots[source * size : (source + 1) * size]
            self.slots[destination * size : (destination + 1) * size] = content

    def fork(self, i: int) -> None:
        self.tables.append(fork(self.tables[i]))
        self.tokens.append(list(self.tokens[i]))

    def truncate(self, i: int, num_tokens: int) -> None:
        num_tokens = min(num_tokens, len(self.tokens[i]))
        try:
            self.tables[i].truncate(num_tokens)
        except ValueError:  # into a hole
            return
        del self.tokens[i][num_tokens:]

    def drop_before(self, i: int, position: int) -> None:
        self.tables[i].drop_before(min(position, len(self.tokens[i])))

    def publish(self, i: int) -> None:
        if None not in self.tables[i].block_ids:
            self.cache.publish(self.tables[i], self.tokens[i])

    def free(self, i: int) -> None:
        self.tables.pop(i).free()
        self.tokens.pop(i)

    def allocate_and_free(self, n: int) -> None:
        """Needs blocks for a moment, so that cached ones are evicted."""
        try:
            self.cache.free_many(self.cache.allocate_many(n))
        except OutOfBlocksError:
            assert n > self.cache.num_free

    def check(self) -> None:
        self.cache.check(self.tables)  # O1 and O2
        for table, tokens in zip(self.tables, self.tokens, strict=True):
            held = table.block_ids
            dropped = held.count(None) * self.block_size
            assert all(b is None for b in held[: held.count(None)])
            start = min(dropped, len(tokens))
            slots = table.slots(start, len(tokens))
            assert [self.slots[s] for s in slots] == tokens[start:]  # O3


def random_step(memory: Memory, rng: random.Random) -> None:
    """One operation; few different tokens, so that prefixes meet often."""
    if not memory.tables or (len(memory.tables) < 6 and rng.random() < 0.2):
        memory.acquire(rng.choices(range(2), k=rng.randint(1, 12)))
        return
    i = rng.randrange(len(memory.tables))
    length = len(memory.tokens[i])
    match rng.randrange(10):
        case 0 | 1 | 2:
            memory.append(i, rng.choices(range(2), k=rng.randint(0, 6)))
        case 3:
            memory.copy_on_write(i)
        case 4 if len(memory.tables) < 6:
            memory.fork(i)
        case 5:
            memory.truncate(i, rng.randint(0, length))
        case 6 if rng.random() < 0.3:
            memory.drop_before(i, rng.randint(0, length))
        case 7:
            memory.publish(i)
        case 8:
            memory.free(i)
        case _:
            memory.allocate_and_free(rng.randint(0, 4))
