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
    raise NotImplementedError("exercise 7.1: a number for these tokens after those")


def block_hashes(token_ids: list[int], block_size: int) -> list[int]:
    raise NotImplementedError("exercise 7.1: the hash of each full block")


class PrefixIndex:
    def __init__(
        self,
        allocator: Any,
        block_size: int,
        hash_function: Callable[[int | None, tuple[int, ...]], int] = chained_hash,
    ) -> None:
        raise NotImplementedError("exercise 7.2: an index that knows nothing yet")

    def remember(self, block_ids: list[int], token_ids: list[int]) -> list[int]:
        raise NotImplementedError("exercise 7.2: remember each block under the hash of its content")

    def forget(self, block_id: int) -> None:
        raise NotImplementedError("exercise 7.2: this block cannot be found any more")

    def match(self, token_ids: list[int]) -> list[int]:
        raise NotImplementedError("exercise 7.2: follow the chain for as long as it is known")

    def publish(self, block_ids: list[int], token_ids: list[int]) -> None:
        raise NotImplementedError("exercise 7.3: remember the full blocks, hold those that are new")

    def acquire(self, token_ids: list[int]) -> list[int]:
        raise NotImplementedError("exercise 7.3: match, and hold what was found")

    @property
    def num_free(self) -> int:
        raise NotImplementedError("exercise 7.4: blocks that can be had")

    def release(self, block_ids: list[int]) -> None:
        raise NotImplementedError("exercise 7.4: give up one reference each, the tail first")

    def allocate_many(self, n: int) -> list[int]:
        raise NotImplementedError("exercise 7.4: n blocks or none; evict as many as are missing")


# pristine stub, sha256 of the lines above: 2ff5edeaafaa20b5
