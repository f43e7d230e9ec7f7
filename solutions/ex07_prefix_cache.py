"""Exercise 07: find the blocks of a prefix again, and forget the right ones first.

Grade with `course grade 7`. Task 7.1 is two functions; tasks 7.2 to 7.4 build one class
on them, which grows with each task. Sequences are plain lists here: block_ids lists the
blocks of a sequence in order, token_ids its tokens (0 or more each). Block i holds the
tokens i * block_size … (i + 1) * block_size - 1; it is full if all of these are there.
Lists that are given are the same after the call.


Task 7.1   chained_hash(parent_hash, tokens) -> int
           block_hashes(token_ids, block_size) -> list[int]

The content of a block is its tokens and all tokens in front of them, because keys and
values depend on both. A chained hash names a content by one number, without reading the
tokens in front again.

chained_hash: the hash of a block with these tokens (a tuple[int, ...]) that comes after
a block whose hash is parent_hash; None if it is the first one.

block_hashes: the hash of each full block of token_ids, in order: chained_hash of the
hash in front of it and its own tokens. A block that is not full has none.

Equal contents have equal hashes, within one run of Python. Different contents may have
the same hash only by such an accident that none of the several thousand that the tests
try have one: with 60 bits or more that is as good as certain.


Task 7.2   longest match

    PrefixIndex(allocator, block_size, hash_function=chained_hash)
        allocator       a pool of blocks like the package's; not used before task 7.3
        hash_function   called like chained_hash; tests pass weak ones as well, on which
                        different contents collide. An index that needs no hashes may
                        leave it alone

    .remember(block_ids, token_ids) -> list[int]
        From now on these blocks can be found: each is full, so there are exactly
        block_size tokens per block, else ValueError and nothing is remembered. A
        content that is known already keeps the block it has. Returns the ids of the
        blocks that were added, in order. A block keeps its content until it is
        forgotten.
        Where another content has the same hash, this block, and all behind it, may be
        left out; what is known already stays.

    .forget(block_id) -> None
        This block cannot be found any more; what comes behind it can be found again
        once its content is remembered anew, in whatever block. ValueError if it is not
        remembered.

    .match(token_ids) -> list[int]
        The blocks of the longest known beginning of token_ids, in order. At least one
        token is left over, since a model needs one to go on from: 8 tokens in blocks of
        4 have one block at most, 9 have two. Hits end at the first content that is not
        known, even if later ones are. Never a block of another content, whatever the
        hash function does: compare the tokens, those in front of the block too.

Finding a block takes the same number of steps whether 10 blocks are remembered or
10,000. Within a sequence the steps may grow with its length as you like: an index whose
keys are whole beginnings is accepted, although the chapter shows what it costs.


Task 7.3   publish after write

    .publish(block_ids, token_ids) -> None
        token_ids are the tokens of a sequence whose keys and values have been written
        so far; its blocks may have room for more. Its full blocks are remembered; on
        each one that was added, and on no other, the index takes a reference of its own
        (allocator.share). So nobody writes it in place, and it outlives the sequence.
        ValueError if there are more tokens than the blocks hold, or if a full block is
        not in use; then nothing has changed.

    .acquire(token_ids) -> list[int]
        As match, with one more reference on each block: it belongs to the caller.

A sequence may be published again when it has grown, or after its end was cut off and
replaced by other tokens in other blocks. From here on, nobody but your own methods
calls remember and forget.


Task 7.4   evict the least recently used, the tail first

    .num_free -> int            property: blocks that are free in the allocator, and
                                those on which only the index holds a reference

    .release(block_ids) -> None
        A sequence gives up its blocks, all or some of them, listed in its own order:
        one reference each. A block that nobody holds then is free at once; one that the
        index holds can still be found. DoubleFreeError if a block stands in the list
        more often than it has holders beside the index; ValueError for an id that does
        not exist; then nothing has changed.

    .allocate_many(n) -> list[int]
        n blocks with one reference each, or none at all: OutOfBlocksError if n is more
        than num_free, ValueError if n < 0. If too few are free in the allocator, blocks
        on which only the index holds a reference are evicted, that is forgotten and
        freed: as many as are missing and no more. First goes the block that its last
        holder released the longest ago; of those in one call of release, the one
        furthest from the beginning of the sequence.

Blocks are allocated and released through the index; allocator.share may be called by
others, for a block that is in use. The steps of a call grow with the blocks it names or
evicts, not with the pool; and an index that has seen 10,000 sequences is no larger than
one that has seen 100. Errors are imported from paged_attention.errors. Whatever raises
leaves index and allocator exactly as they were.
"""

from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def chained_hash(parent_hash: int | None, tokens: tuple[int, ...]) -> int:
    # BEGIN SOLUTION 7.1: a number for these tokens after those
    return hash((parent_hash, tokens))
    # END SOLUTION


def block_hashes(token_ids: list[int], block_size: int) -> list[int]:
    # BEGIN SOLUTION 7.1: the hash of each full block
    hashes: list[int] = []
    parent_hash = None
    for end in range(block_size, len(token_ids) + 1, block_size):
        parent_hash = chained_hash(
            parent_hash, tuple(token_ids[end - block_size : end])
        )
        hashes.append(parent_hash)
    return hashes
    # END SOLUTION


class PrefixIndex:
    def __init__(
        self,
        allocator: Any,
        block_size: int,
        hash_function: Callable[[int | None, tuple[int, ...]], int] = chained_hash,
    ) -> None:
        # BEGIN SOLUTION 7.2: an index that knows nothing yet
        self._allocator = allocator
        self._block_size = block_size
        self._hash_function = hash_function
        # hash -> (block, all tokens up to its end)
        self._known: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._hash_of: dict[int, int] = {}  # block -> hash
        # Those that only the index holds, the next one to be evicted first.
        self._evictable: OrderedDict[int, None] = OrderedDict()
        # END SOLUTION

    def remember(self, block_ids: list[int], token_ids: list[int]) -> list[int]:
        # BEGIN SOLUTION 7.2: remember each block under the hash of its content
        if len(token_ids) != len(block_ids) * self._block_size:
            raise ValueError(
                f"{len(block_ids)} full blocks of {self._block_size} tokens do not "
                f"hold {len(token_ids)}"
            )
        added: list[int] = []
        contents = self._contents(token_ids, len(token_ids))
        for block_id, (key, content) in zip(block_ids, contents, strict=True):
            if key not in self._known:
                self._known[key] = block_id, content
                self._hash_of[block_id] = key
                added.append(block_id)
            elif self._known[key][1] != content:
                break  # a collision: what follows could not be found
        return added
        # END SOLUTION

    def forget(self, block_id: int) -> None:
        # BEGIN SOLUTION 7.2: this block cannot be found any more
        if block_id not in self._hash_of:
            raise ValueError(f"block {block_id} is not remembered")
        del self._known[self._hash_of.pop(block_id)]
        # END SOLUTION

    def match(self, token_ids: list[int]) -> list[int]:
        # BEGIN SOLUTION 7.2: follow the chain for as long as it is known
        hits: list[int] = []
        for key, content in self._contents(token_ids, len(token_ids) - 1):
            block_id, known = self._known.get(key, (-1, ()))
            if known != content:
                break
            hits.append(block_id)
        return hits
        # END SOLUTION

    def publish(self, block_ids: list[int], token_ids: list[int]) -> None:
        # BEGIN SOLUTION 7.3: remember the full blocks, hold those that are new
        num_full = len(token_ids) // self._block_size
        if len(token_ids) > len(block_ids) * self._block_size:
            raise ValueError(f"{len(token_ids)} tokens in {len(block_ids)} blocks")
        full = block_ids[:num_full]
        for block_id in full:
            if self._allocator.ref_count(block_id) == 0:
                raise ValueError(f"block {block_id} is not in use")
        added = self.remember(full, token_ids[: num_full * self._block_size])
        for block_id in added:
            self._allocator.share(block_id)
        # END SOLUTION

    def acquire(self, token_ids: list[int]) -> list[int]:
        # BEGIN SOLUTION 7.3: match, and hold what was found
        hits = self.match(token_ids)
        for block_id in hits:
            self._allocator.share(block_id)
            self._evictable.pop(block_id, None)  # 7.4: it is in use again
        return hits
        # END SOLUTION

    @property
    def num_free(self) -> int:
        # BEGIN SOLUTION 7.4: blocks that can be had
        return self._allocator.num_free + len(self._evictable)
        # END SOLUTION

    def release(self, block_ids: list[int]) -> None:
        # BEGIN SOLUTION 7.4: give up one reference each, the tail first
        for block_id, times in Counter(block_ids).items():
            own = 1 if block_id in self._hash_of else 0
            if times > self._allocator.ref_count(block_id) - own:
                raise DoubleFreeError(f"block {block_id} has too few holders")
        for block_id in reversed(block_ids):
            self._allocator.free(block_id)
            if block_id in self._hash_of and self._allocator.ref_count(block_id) == 1:
                self._evictable[block_id] = None
        # END SOLUTION

    def allocate_many(self, n: int) -> list[int]:
        # BEGIN SOLUTION 7.4: n blocks or none; evict as many as are missing
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} can be had")
        for _ in range(n - self._allocator.num_free):
            block_id, _ = self._evictable.popitem(last=False)
            self.forget(block_id)
            self._allocator.free(block_id)
        return self._allocator.allocate_many(n)
        # END SOLUTION

    # BEGIN NOTES
    def _contents(
        self, token_ids: list[int], num_tokens: int
    ) -> Iterator[tuple[int, tuple[int, ...]]]:
        """(hash, all tokens up to its end) of the full blocks among num_tokens."""
        key = None
        for end in range(self._block_size, num_tokens + 1, self._block_size):
            tokens = tuple(token_ids[end - self._block_size : end])
            key = self._hash_function(key, tokens)
            yield key, tuple(token_ids[:end])

    # END NOTES


# BEGIN NOTES
# 7.1  hash() of a tuple of ints is as long as the machine's words and mixes well; only
# hash(-1) == hash(-2), which is one reason why 7.2 compares tokens. vLLM takes SHA-256
# by default since 0.10.2: a user who can choose prompts could otherwise look for two
# that collide.
# Sums and xor forget the order, `& 255` cuts the tokens, and without the parent the
# same tokens after another beginning look the same, which they are not for attention.
#
# 7.2  Each entry holds all tokens up to its end, which makes a hit certain in one
# comparison, at a cost: n blocks remember n * n / 2 blocks of tokens. The package keeps
# the tokens of the block and a link to the entry in front of it, and compares two
# chains until they meet. To compare the parent's hash instead is nearly right: wrong if
# the parent was forgotten and a colliding content has taken its hash. A trie, whose
# edges are the tokens of one block, needs neither hashes nor comparisons; what it needs
# is care with nodes that were forgotten while others hang below them.
#
# The block must leave `_known` and `_hash_of` together. If only the list of blocks
# forgets, the next owner of the block is found under the old owner's tokens.
#
# 7.3  Published before written would hand out blocks full of another sequence's keys.
# The reference of the index is the whole protection of a published block: its count is
# 2 while its sequence runs, so an append in place is refused, and after a cut the
# sequence goes on in another block. No hook in the table is needed. Nothing is kept per
# sequence, so nothing can be out of date after a cut: contents decide. (The package
# starts from the table's last published block and so does not look at the others.)
# Check before you change: `share` in the loop raises on the first block that is not in
# use, after others have been added.
#
# 7.4  OrderedDict: pop from the front, delete anywhere, append, each in O(1). A plain
# dict does not know how many deleted entries lie in front: next(iter(d)) walks over
# them. A list needs a search for `acquire`; a heap, or a clock per block, has entries
# that must be skipped when out of date. Tail first, because hits end at the first hole:
# without its head nothing of a prompt is found, and its tail only takes up room.
# END NOTES
