"""Right in another way: entries point to the one in front, as in the package; the idle
blocks stand in a ring that is linked both ways, as in vLLM."""

from collections import Counter
from dataclasses import dataclass, field

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def chained_hash(parent_hash, tokens):
    return hash(tokens + (() if parent_hash is None else (parent_hash, "behind")))


def block_hashes(token_ids, block_size):
    parent, hashes = None, []
    for i in range(len(token_ids) // block_size):
        block = tuple(token_ids[i * block_size : (i + 1) * block_size])
        parent = chained_hash(parent, block)
        hashes.append(parent)
    return hashes


@dataclass(eq=False)
class Entry:
    block_id: int = -1
    tokens: tuple = ()
    parent: "Entry | None" = None
    key: int = 0
    before: "Entry | None" = field(default=None, repr=False)
    behind: "Entry | None" = field(default=None, repr=False)

    def is_the_block_of(self, tokens, parent):
        one = self
        while one.tokens == tokens:
            if one.parent is parent:
                return True
            if one.parent is None or parent is None:
                return False
            one, tokens, parent = one.parent, parent.tokens, parent.parent
        return False


class PrefixIndex:
    def __init__(self, allocator, block_size, hash_function=chained_hash):
        self.allocator = allocator
        self.block_size = block_size
        self.hash_function = hash_function
        self.by_key = {}
        self.by_block = {}
        self.ring = Entry()
        self.ring.before = self.ring.behind = self.ring
        self.num_idle = 0

    def step(self, parent, tokens):
        key = self.hash_function(parent.key if parent else None, tokens)
        entry = self.by_key.get(key)
        return key, entry, entry is not None and entry.is_the_block_of(tokens, parent)

    def blocks(self, token_ids):
        for start in range(0, len(token_ids), self.block_size):
            tokens = tuple(token_ids[start : start + self.block_size])
            if len(tokens) == self.block_size:
                yield tokens

    def remember(self, block_ids, token_ids):
        if len(token_ids) != len(block_ids) * self.block_size:
            raise ValueError("blocks must be full")
        added, parent = [], None
        for block_id, tokens in zip(block_ids, self.blocks(token_ids), strict=True):
            key, entry, same = self.step(parent, tokens)
            if entry is None:
                entry = Entry(block_id, tokens, parent, key)
                self.by_key[key] = self.by_block[block_id] = entry
                added.append(block_id)
            elif not same:
                return added
            parent = entry
        return added

    def forget(self, block_id):
        try:
            entry = self.by_block.pop(block_id)
        except KeyError:
            raise ValueError(block_id) from None
        del self.by_key[entry.key]

    def match(self, token_ids):
        hits, parent = [], None
        for tokens in self.blocks(token_ids[: max(0, len(token_ids) - 1)]):
            _, parent, same = self.step(parent, tokens)
            if not same:
                break
            hits.append(parent.block_id)
        return hits

    def publish(self, block_ids, token_ids):
        if len(token_ids) > len(block_ids) * self.block_size:
            raise ValueError("no room")
        full = block_ids[: len(token_ids) // self.block_size]
        if 0 in map(self.allocator.ref_count, full):
            raise ValueError("not in use")
        for block_id in self.remember(full, token_ids[: len(full) * self.block_size]):
            self.allocator.share(block_id)

    def acquire(self, token_ids):
        hits = self.match(token_ids)
        for block_id in hits:
            self.allocator.share(block_id)
            self._unlink(self.by_block[block_id])
        return hits

    def _unlink(self, entry):
        if entry.behind is not None:
            entry.before.behind, entry.behind.before = entry.behind, entry.before
            entry.before = entry.behind = None
            self.num_idle -= 1

    @property
    def num_free(self):
        return self.allocator.num_free + self.num_idle

    def release(self, block_ids):
        for block_id, times in Counter(block_ids).items():
            if times + (block_id in self.by_block) > self.allocator.ref_count(block_id):
                raise DoubleFreeError(block_id)
        for block_id in block_ids[::-1]:
            self.allocator.free(block_id)
            entry = self.by_block.get(block_id)
            if entry and self.allocator.ref_count(block_id) == 1:
                entry.before, entry.behind = self.ring.before, self.ring
                entry.before.behind = entry.behind.before = entry
                self.num_idle += 1

    def allocate_many(self, n):
        missing = n - self.allocator.num_free
        if missing > self.num_idle:
            raise OutOfBlocksError(n)
        for _ in range(missing):
            entry = self.ring.behind
            self._unlink(entry)
            self.forget(entry.block_id)
            self.allocator.free(entry.block_id)
        return self.allocator.allocate_many(n)
