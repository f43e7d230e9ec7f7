"""What a step of attention can prepare from tables and lengths alone, without a query.

An engine calls attention once per layer with the same block tables, thirty times and
more, and each layer has a cache of its own. Which rows of a cache belong to which head
of which sequence is the same for all of them: it is found in the first layer, and the
others find it here. It is recognised by values, not by objects: whoever fills the same
tensors anew for the next step gets a new plan.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

# As many kinds of layers as a model mixes (full attention, several windows). A plan of
# decodes takes 4 bytes for each key of each query head: little beside the caches.
MAX_REMEMBERED = 4
# The sparse way of decode reads a key once per query head; the other reads it once, but
# writes it too and reads it again.
MAX_SPARSE_GROUP = 4


# A row of a cache is head_dim numbers: one KV head of one slot. Without gaps, in blocks
# of 4 with 2 KV heads, a slot has 2 rows and a block 8: head 1 of the token in block 2
# at offset 3 is row 2 * 8 + 3 * 2 + 1 = 23.
@dataclass(frozen=True)
class Decodes:
    """Sequences with one query token each, whose keys are read where they lie.

    Two sequences of 3 and 1 keys and 2 query heads have 8 rows: three for each head of
    the first, one for each of the second. row_starts is [0, 3, 6, 7, 8], num_scores
    [6, 2].
    """

    tokens: Tensor | None  # their rows of the query; None: all rows, in order
    rows: Tensor  # of the cache: of each sequence, of each of its heads, of each key
    row_starts: Tensor  # [num_seqs * num_heads + 1]   where each head's begin in rows
    num_scores: list[int]  # of each sequence: num_heads * num_keys


@dataclass(frozen=True)
class Chunk:
    """The query tokens of one sequence, whose keys are gathered.

    Each key is read as often as there are query tokens, so one copy more is little.
    """

    new: slice  # its rows of the query
    block_ids: Tensor  # the blocks that some of them need
    keys: slice  # the tokens that they see, counted from the first of these blocks
    window: int | None


@dataclass(frozen=True)
class AttentionPlan:
    """Who is computed in which way. Nothing in it depends on what the caches hold."""

    decodes: Decodes | None
    chunks: list[Chunk]
    is_whole: bool  # every row of the query is computed: nothing stays 0


@dataclass(frozen=True)
class Batch:
    """What a plan is made from. Two batches with the same values have one plan."""

    layout: tuple[object, ...]  # shapes, strides, dtype, window: plain values
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor

    def is_same(self, other: "Batch") -> bool:
        """Whether all values agree; the tensors may be others."""
        # Lengths before tables: they are fewer, and grow in every step.
        return (
            self.layout == other.layout
            and torch.equal(self.seq_lens, other.seq_lens)
            and torch.equal(self.block_tables, other.block_tables)
            and torch.equal(self.query_start_loc, other.query_start_loc)
        )

    def copy(self) -> "Batch":
        """Stays as it is when the caller fills its tensors for the next step."""
        tensors = (self.block_tables, self.seq_lens, self.query_start_loc)
        return Batch(self.layout, *(tensor.clone() for tensor in tensors))


# Replaced as a whole, never changed: several threads may read and write it. At worst
# one of them makes a plan that another has made already.
_remembered: tuple[tuple[Batch, AttentionPlan], ...] = ()


def remembered_plan(batch: Batch) -> AttentionPlan | None:
    """The plan of a batch with the same values, if there was one lately."""
    for known, plan in _remembered:
        if known.is_same(batch):
            return plan
    return None


def remember(batch: Batch, plan: AttentionPlan) -> None:
    """Keep the plan for the layers to come. batch is copied."""
    global _remembered
    _remembered = ((batch.copy(), plan), *_remembered[: MAX_REMEMBERED - 1])


def batch_of(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    window: int | None,
) -> Batch:
    """What makes the plan for these arguments; no copy yet (see `remember`)."""
    # All that the plan is made from besides the three tensors. Strides too: two caches
    # of one shape may have their rows in different places.
    layout = (
        query.shape,
        query.dtype,
        query.device,
        key_cache.shape,
        key_cache.stride(),
        value_cache.stride(),
        block_tables.dtype,
        seq_lens.dtype,
        query_start_loc.dtype,
        window,
    )
    return Batch(layout, block_tables, seq_lens, query_start_loc)


def make_plan(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    window: int | None,
) -> AttentionPlan:
    """The arguments are those of `attention.paged_attention`, and checked."""
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    lies_in_rows = can_read_in_place(query, key_cache, value_cache)
    chunks: list[Chunk] = []
    in_place: list[int] = []
    num_rows = 0  # of the query, that belong to a sequence with keys
    for i, seq_len in enumerate(lengths):
        query_len = starts[i + 1] - starts[i]
        if seq_len == 0 or query_len == 0:
            continue
        num_rows += query_len
        if lies_in_rows and query_len == 1:
            in_place.append(i)
        else:
            new = slice(starts[i], starts[i + 1])
            block_size = key_cache.shape[1]
            chunks.append(
                _plan_chunk(new, block_tables[i], seq_len, block_size, window)
            )
    decodes = None
    if in_place:
        # Rows of the query, not sequences: some of these may have no token at all.
        is_all = len(in_place) == len(query)
        decodes = _plan_decodes(
            None if is_all else torch.tensor([starts[i] for i in in_place]),
            query.shape[1],
            key_cache,
            block_tables if len(in_place) == len(lengths) else block_tables[in_place],
            [lengths[i] for i in in_place],
            window,
        )
    return AttentionPlan(decodes, chunks, num_rows == len(query))


def can_read_in_place(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether both caches are made of rows without gaps, and it is the faster way.

    16-bit numbers are gathered: torch has no sparse product for them on a CPU.
    """
    group = query.shape[1] // key_cache.shape[2]
    head_dim = query.shape[2]
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
        and group <= MAX_SPARSE_GROUP
        # One list of row numbers serves both caches, so they must be laid out alike.
        and key_cache.stride() == value_cache.stride()
        and key_cache.stride(3) == 1
        and all(stride % head_dim == 0 for stride in key_cache.stride()[:3])
    )


def _plan_decodes(
    tokens: Tensor | None,
    num_heads: int,
    key_cache: Tensor,
    block_tables: Tensor,
    seq_lens: list[int],
    window: int | None,
) -> Decodes:
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    # How many rows it is from one block, slot, head to the next.
    block_rows, slot_rows, head_rows, _ = (n // head_dim for n in key_cache.stride())
    kv_head = torch.arange(num_heads) // (num_heads // num_kv_heads)
    head_row = (kv_head * head_rows)[:, None]  # [num_heads, 1]
    num_blocks = -(-max(seq_lens) // block_size)  # rounded up
    # Where each token's row for KV head 0 is; the other heads' stand head_row from it.
    # What -1 in the tables makes of it is not picked below.
    token_rows = torch.add(  # [num_seqs, num_blocks * block_size]
        torch.arange(block_size) * slot_rows,
        block_tables[:, :num_blocks, None].long(),
        alpha=block_rows,
    ).flatten(1)

    spans = [(0 if window is None else max(0, n - window), n) for n in seq_lens]
    rows = torch.cat(
        [
            (token_rows[i, first:stop] + head_row).flatten()
            for i, (first, stop) in enumerate(spans)
        ]
    )
    num_keys = torch.tensor([stop - first for first, stop in spans])  # [num_seqs]
    row_starts = torch.zeros(len(spans) * num_heads + 1, dtype=torch.int64)
    torch.cumsum(num_keys.repeat_interleave(num_heads), 0, out=row_starts[1:])
    # Row numbers of 32 bits are read faster, and there is half as much of them. The
    # starts, of the same dtype, go up to how many there are.
    largest = max(int(rows.max()), len(rows))
    dtype = torch.int32 if largest < 2**31 else torch.int64
    num_scores = (num_keys * num_heads).tolist()
    return Decodes(tokens, rows.to(dtype), row_starts.to(dtype), num_scores)


def _plan_chunk(
    new: slice,
    block_table: Tensor,
    seq_len: int,
    block_size: int,
    window: int | None,
) -> Chunk:
    query_len = new.stop - new.start
    # A window of 4, and tokens 8 and 9 are new: the first of them sees 5 … 8. Blocks of
    # 4 are gathered from number 1 on, which begins at 4, so keys is slice(1, 6).
    first = 0 if window is None else max(0, seq_len - query_len + 1 - window)
    first_block, num_blocks = first // block_size, -(-seq_len // block_size)
    # A copy: the caller may overwrite its table while the plan is still in use.
    block_ids = block_table[first_block:num_blocks].clone()
    start = first_block * block_size  # the position of the first token gathered
    keys = slice(first - start, seq_len - start)
    return Chunk(new, block_ids, keys, window)
