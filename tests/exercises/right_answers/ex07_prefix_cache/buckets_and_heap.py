"""Right in another way: sha256, a list per hash, so that collisions are all kept; the
age in a heap whose entries may be out of date."""

import hashlib
import heapq

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def chained_hash(parent_hash, tokens):
    text = f"{parent_hash}:{','.join(map(str, tokens))}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest(), "big")


def block_hashes(token_ids, block_size):
    parent, hashes, block = None, [], []
    for token in token_ids:
        block.append(token)
        if len(block) == block_size:
            parent = chained_hash(parent, tuple(block))
            hashes.append(parent)
            block = []
    return hashes


class PrefixIndex:
    def __init__(self, allocator, block_size, hash_function=chained_hash):
        self.allocator = allocator
        self.block_size = block_size
        self.hash_function = hash_function
        self.buckets = {}  # hash -> [(all tokens up to its end, block), ...]
        self.hash_of = {}  # block -> hash
        self.heap = []  # (when it became idle, block)
        self.idle_since = {}
        self.clock = 0

    def walk(self, token_ids):
        """(hash, all tokens up to its end, the block that holds that or None)."""
        parent = None
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            content = list(token_ids[:end])
            parent = self.hash_function(parent, tuple(content[-self.block_size :]))
            for known, block_id in self.buckets.get(parent, []):
                if known == content:
                    yield parent, content, block_id
                    break
            else:
                yield parent, content, None

    def remember(self, block_ids, token_ids):
        if len(token_ids) / self.block_size != len(block_ids):
            raise ValueError(token_ids)
        added = []
        for block_id, (key, content, known) in zip(
            block_ids, self.walk(token_ids), strict=True
        ):
            if known is None:
                self.buckets.setdefault(key, []).append((content, block_id))
                self.hash_of[block_id] = key
                added += [block_id]
        return added

    def forget(self, block_id):
        if block_id not in self.hash_of:
            raise ValueError(block_id)
        key = self.hash_of.pop(block_id)
        self.buckets[key] = [pair for pair in self.buckets[key] if pair[1] != block_id]
        if not self.buckets[key]:
            del self.buckets[key]

    def match(self, token_ids):
        hits = []
        for _, _, block_id in self.walk(token_ids[:-1]):
            if block_id is None:
                return hits
            hits.append(block_id)
        return hits

    def publish(self, block_ids, token_ids):
        if -(-len(token_ids) // self.block_size) > len(block_ids):
            raise ValueError(token_ids)
        whole = len(token_ids) - len(token_ids) % self.block_size
        full = block_ids[: whole // self.block_size]
        if any(self.allocator.ref_count(block_id) < 1 for block_id in full):
            raise ValueError(full)
        for block_id in self.remember(full, token_ids[:whole]):
            self.allocator.share(block_id)

    def acquire(self, token_ids):
        hits = self.match(token_ids)
        for block_id in hits:
            self.allocator.share(block_id)
            self.idle_since.pop(block_id, None)
        return hits

    @property
    def num_free(self):
        return self.allocator.num_free + len(self.idle_since)

    def release(self, block_ids):
        left = {}
        for block_id in block_ids:
            own = block_id in self.hash_of
            left.setdefault(block_id, self.allocator.ref_count(block_id) - own)
            if left[block_id] == 0:
                raise DoubleFreeError(block_id)
            left[block_id] -= 1
        for block_id in reversed(block_ids):
            self.allocator.free(block_id)
            if self.allocator.ref_count(block_id) == (
                1 if block_id in self.hash_of else -1
            ):
                self.clock += 1
                self.idle_since[block_id] = self.clock
                heapq.heappush(self.heap, (self.clock, block_id))

    def allocate_many(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n)
        while n > self.allocator.num_free:
            since, block_id = heapq.heappop(self.heap)
            if self.idle_since.get(block_id) == since:
                del self.idle_since[block_id]
                self.forget(block_id)
                self.allocator.free(block_id)
        return self.allocator.allocate_many(n)
