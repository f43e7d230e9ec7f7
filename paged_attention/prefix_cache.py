"""Finds the blocks of a prefix again: an allocator that remembers.

A block whose tokens are all written can serve every later sequence that begins with the
same tokens, because its keys and values depend on nothing but the tokens up to its end.
So a published block outlives its last table, until its memory is needed.
"""

from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from paged_attention.allocator import HoldsBlocks
from paged_attention.block_table import Allocator, BlockTable
from paged_attention.config import require_at_least
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


# eq=False: two are compared by `holds`, in a loop. The == of a dataclass would go from
# parent to parent by recursion, and a long prompt has a thousand of them.
@dataclass(slots=True, eq=False)
class CachedBlock:
    """A published block: the tokens it holds, and the block they come after."""

    block_id: int
    tokens: tuple[int, ...]  # exactly block_size
    parent: "CachedBlock | None"  # None at the start of a prompt
    key: int

    def holds(self, tokens: tuple[int, ...], parent: "CachedBlock | None") -> bool:
        """Whether this is the block of these tokens after that parent, for certain.

        A parent that was evicted and published again is another object with the same
        content, so two chains are compared until they meet.
        """
        ours, other = self.parent, parent
        if self.tokens != tokens:
            return False
        # Mostly no round at all: both came by the same parent.
        while ours is not other:
            if ours is None or other is None or ours.tokens != other.tokens:
                return False
            ours, other = ours.parent, other.parent
        return True


def block_key(parent: CachedBlock | None, tokens: tuple[int, ...]) -> int:
    """The chained hash: of a block's tokens and of all that comes before them.

    Equal keys only suggest equal content: `hash(-1) == hash(-2)`.
    """
    # Python's hash is quick, and good enough where every hit is compared token by token
    # and no key leaves the process.
    return hash((None if parent is None else parent.key, tokens))


class PrefixCache:
    """Wraps an allocator, and holds one reference of its own to each published block.

    Therefore a published block is never written in place (its table does not hold it
    alone), and any allocator serves. It has the allocator's methods, so tables are made
    on it: BlockTable(cache, block_size). Blocks that only the cache holds count as
    free; when they are needed, the least recently used goes first, and of one prompt
    the tail before the head, because tables free in that order. Not for several
    threads.

    Source: vLLM's v1/core/kv_cache_manager.py. There a cached block that nobody uses
    has the count 0 and stands in the free list, with its hash, until it is handed out;
    two blocks of the same content may both be cached; and only hashes are compared.
    """

    def __init__(
        self,
        allocator: Allocator,
        block_size: int,
        block_table_class: type[BlockTable] = BlockTable,
    ) -> None:
        require_at_least(1, "block_size", block_size)
        self.allocator = allocator
        self.block_size = block_size
        self._block_table_class = block_table_class
        self._by_key: dict[int, CachedBlock] = {}
        self._by_id: dict[int, CachedBlock] = {}
        # Those that only the cache holds, in the order in which they will be evicted.
        # The values mean nothing: it is a set with an order.
        self._evictable: OrderedDict[int, None] = OrderedDict()

    def acquire(self, token_ids: Sequence[int]) -> BlockTable:
        """A table that shares the longest cached prefix of token_ids.

        At least one token is left to compute: a model needs one to go on from. Raises
        ValueError for tokens that are no ints.
        """
        hits: list[int] = []  # block ids
        parent = None
        # Block after block from the start: behind a miss nothing can be used, since
        # the keys and values there depend on what is missing. - 1, for the token that
        # is left: of 8 tokens in blocks of 4, only the first block is looked for.
        for tokens in self._full_blocks(token_ids, 0, len(token_ids) - 1):
            cached = self._by_key.get(block_key(parent, tokens))
            if cached is None or not cached.holds(tokens, parent):
                break
            hits.append(cached.block_id)
            parent = cached
        # Found is not held: an evictable block must be taken before the next eviction.
        for block_id in hits:
            self.allocator.share(block_id)
            self._evictable.pop(block_id, None)
        num_tokens = len(hits) * self.block_size
        return self._block_table_class(self, self.block_size, hits, num_tokens)

    def publish(self, table: BlockTable, token_ids: Sequence[int]) -> None:
        """Remember the table's full blocks; token_ids are all tokens written so far.

        Where the content is cached already, the older block stays the one that is
        found. The table is unchanged. The cost is that of the blocks after its last one
        that is published: all of them, where all were cached already in other blocks.
        Raises ValueError for a table that was not made on this cache, with
        holes, or shorter than token_ids, and for tokens that are no ints.
        """
        if table.allocator is not self or table.block_size != self.block_size:
            raise ValueError(
                f"the table must be one of this cache, with blocks of "
                f"{self.block_size} tokens, got blocks of {table.block_size} from a "
                f"{type(table.allocator).__name__}"
            )
        if len(token_ids) > table.num_tokens:
            raise ValueError(
                f"{len(token_ids)} tokens cannot have been written: the table has room "
                f"for {table.num_tokens}"
            )
        start = len(token_ids) // self.block_size  # full blocks: the rest is no use yet
        if start:
            table.translate(0)  # raises where it was dropped
        # Back to the last block that is published. Nothing is remembered per table, so
        # a table that was truncated and written anew cannot be mistaken.
        parent = None
        while start:
            parent = self._by_id.get(table.translate(start - 1))
            if parent is not None:
                break
            start -= 1
        for tokens in self._full_blocks(token_ids, start, len(token_ids)):
            key = block_key(parent, tokens)
            cached = self._by_key.get(key)
            if cached is None:
                cached = CachedBlock(table.translate(start), tokens, parent, key)
                self.allocator.share(cached.block_id)
                self._by_key[key] = self._by_id[cached.block_id] = cached
            elif not cached.holds(tokens, parent):
                return  # two contents, one key: what follows could not be found
            parent = cached
            start += 1

    # --- what any allocator has ---

    @property
    def num_blocks(self) -> int:
        return self.allocator.num_blocks

    @property
    def num_free(self) -> int:
        """Free blocks, and cached ones that would be evicted for the asking."""
        return self.allocator.num_free + len(self._evictable)

    @property
    def block_ids(self) -> list[int | None]:
        """The published blocks: the cache holds one reference to each."""
        return list(self._by_id)

    @property
    def evictable_block_ids(self) -> list[int]:
        """The blocks that only the cache holds, the first to be evicted first."""
        return list(self._evictable)

    def can_allocate(self, n: int) -> bool:
        return n <= self.num_free

    def ref_count(self, block_id: int) -> int:
        """How many hold this block, the cache included."""
        return self.allocator.ref_count(block_id)

    def allocate(self) -> int:
        return self.allocate_many(1)[0]

    def allocate_many(self, n: int) -> list[int]:
        """Take n blocks or none; cached blocks are evicted only as far as needed."""
        if not hasattr(n, "__index__"):  # is no whole number: `range` asks the same
            raise ValueError(f"n must be an int, got {n!r}")
        missing = n - self.allocator.num_free
        if missing > len(self._evictable):
            raise OutOfBlocksError(
                f"{n} blocks were asked for, {self.num_free} of {self.num_blocks} are "
                f"free, {len(self._evictable)} of these cached"
            )
        # Enough can be evicted, so nothing below fails halfway.
        for _ in range(missing):
            self._evict()
        return self.allocator.allocate_many(n)

    def share(self, block_id: int) -> None:
        self.allocator.share(block_id)
        self._evictable.pop(block_id, None)

    def free(self, block_id: int) -> None:
        self.free_many((block_id,))

    def free_many(self, block_ids: Iterable[int]) -> None:
        """Give up references of tables; what the cache holds itself is not theirs."""
        block_ids = tuple(block_ids)
        published = Counter(b for b in block_ids if b in self._by_id)
        for block_id, entries in published.items():
            # One reference is the cache's own, so tables can give up one less than all.
            if entries >= self.allocator.ref_count(block_id):
                raise DoubleFreeError(f"block {block_id} is held by the cache alone")
        self.allocator.free_many(block_ids)
        # In the order in which they were freed: a table frees its tail first.
        for block_id in block_ids:
            # 1 is the cache's own reference: the last table has just let go.
            if block_id in self._by_id and self.allocator.ref_count(block_id) == 1:
                self._evictable[block_id] = None

    def check(self, tables: Iterable[HoldsBlocks] | None = None) -> None:
        """As the allocator's, with the cache as one more holder; and its own index."""
        check = getattr(self.allocator, "check", None)  # not every allocator has one
        if check is not None:
            check(None if tables is None else [*tables, self])
        for block_id, cached in self._by_id.items():
            if self._by_key.get(cached.key) is not cached:
                raise AssertionError(f"block {block_id} cannot be found by its key")
        if len(self._by_key) != len(self._by_id):
            raise AssertionError("the index names blocks that are not published")
        alone = {b for b in self._by_id if self.allocator.ref_count(b) == 1}
        if alone != set(self._evictable):
            raise AssertionError(
                f"evictable are {sorted(self._evictable)}, expected {sorted(alone)}"
            )

    def _full_blocks(
        self, token_ids: Sequence[int], first: int, num_tokens: int
    ) -> Iterator[tuple[int, ...]]:
        """The full blocks among the first num_tokens tokens, from block first on."""
        size = self.block_size
        tokens = tuple(token_ids[first * size : num_tokens])
        # Equal tensors have different hashes, so they would never be found again. The
        # first token tells: nobody mixes them.
        if tokens and not _is_int(tokens[0]):
            raise ValueError(f"token_ids must be ints, got {type(tokens[0]).__name__}s")
        for end in range(size, len(tokens) + 1, size):
            yield tokens[end - size : end]

    def _evict(self) -> None:
        block_id, _ = self._evictable.popitem(last=False)
        # The key goes with the block, so the index never outgrows the pool. A block
        # that came after this one may stay: it is not found any more, unless the same
        # content is published here again, and goes when its turn comes.
        del self._by_key[self._by_id.pop(block_id).key]
        self.allocator.free_many((block_id,))


# A function of its own: to a type checker a token is an int already, and the question
# idle. Callers that are not checked hand over tensors all the same.
def _is_int(value: object) -> bool:
    return isinstance(value, int)
