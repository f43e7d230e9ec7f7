"""Right in another way: a trie of blocks, no hashes needed; move_to_end for the age."""

from collections import Counter, OrderedDict

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def chained_hash(parent_hash, tokens):
    """A number in a base larger than any vocabulary, cut to 61 bits by a prime."""
    number = 1 if parent_hash is None else parent_hash
    for token in tokens:
        number = (number * 1_000_003 + token + 1) % (2**61 - 1)
    return number


def block_hashes(token_ids, block_size):
    hashes = []
    for first in range(0, len(token_ids) - block_size + 1, block_size):
        parent = hashes[-1] if hashes else None
        hashes.append(chained_hash(parent, tuple(token_ids[first:][:block_size])))
    return hashes


class Node:
    def __init__(self, parent=None, edge=None):
        self.parent, self.edge = parent, edge
        self.children = {}
        self.block = None


class PrefixIndex:
    def __init__(self, allocator, block_size, hash_function=None):
        self.allocator, self.block_size = allocator, block_size
        self.root = Node()
        self.node_of = {}
        self.idle = OrderedDict()

    def edges(self, token_ids):
        size = self.block_size
        whole = len(token_ids) // size * size
        return [tuple(token_ids[i : i + size]) for i in range(0, whole, size)]

    def remember(self, block_ids, token_ids):
        if len(token_ids) != len(block_ids) * self.block_size:
            raise ValueError("not full")
        node, added = self.root, []
        for block_id, edge in zip(block_ids, self.edges(token_ids), strict=True):
            if edge not in node.children:
                node.children[edge] = Node(node, edge)
            node = node.children[edge]
            if node.block is None:
                node.block = block_id
                self.node_of[block_id] = node
                added.append(block_id)
        return added

    def forget(self, block_id):
        if block_id not in self.node_of:
            raise ValueError("not remembered")
        node = self.node_of.pop(block_id)
        node.block = None
        # Empty twigs fall off; what others hang on must stay.
        while node.parent and node.block is None and not node.children:
            del node.parent.children[node.edge]
            node = node.parent

    def match(self, token_ids):
        node, hits = self.root, []
        for edge in self.edges(token_ids[:-1]):
            node = node.children.get(edge)
            if node is None or node.block is None:
                break
            hits.append(node.block)
        return hits

    def publish(self, block_ids, token_ids):
        full = len(token_ids) // self.block_size
        if len(token_ids) > len(block_ids) * self.block_size:
            raise ValueError("too many tokens")
        shared = []
        try:
            for block_id in block_ids[:full]:
                self.allocator.share(block_id)
                shared.append(block_id)
        except ValueError:
            for block_id in shared:
                self.allocator.free(block_id)
            raise
        added = self.remember(block_ids[:full], token_ids[: full * self.block_size])
        for block_id in shared:
            if block_id not in added:
                self.allocator.free(block_id)

    def acquire(self, token_ids):
        hits = self.match(token_ids)
        for block_id in hits:
            self.allocator.share(block_id)
            if block_id in self.idle:
                del self.idle[block_id]
        return hits

    @property
    def num_free(self):
        return self.allocator.num_free + len(self.idle)

    def release(self, block_ids):
        for block_id, times in Counter(block_ids).items():
            if self.allocator.ref_count(block_id) - (block_id in self.node_of) < times:
                raise DoubleFreeError(block_id)
        self.allocator.free_many(block_ids[::-1])
        for block_id in block_ids[::-1]:
            if block_id in self.node_of and self.allocator.ref_count(block_id) == 1:
                self.idle[block_id] = True
                self.idle.move_to_end(block_id)

    def allocate_many(self, n):
        if n < 0:
            raise ValueError(n)
        if self.num_free < n:
            raise OutOfBlocksError(n)
        while self.allocator.num_free < n:
            block_id, _ = self.idle.popitem(last=False)
            self.forget(block_id)
            self.allocator.free(block_id)
        return [self.allocator.allocate() for _ in range(n)]
