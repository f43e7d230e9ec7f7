"""Attention over scattered blocks with torch alone, fast on a CPU.

Two ways, and no loop over blocks in either:

- decode reads keys and values where they lie. Which head needs which row of the cache
  is a sparse matrix: a sparse product computes those scores and no others, and what
  sums up rows of an embedding table, picked by index, sums up the values.
- all else: one sequence at a time is gathered into scratch that all of them use, and
  handed to torch's dense attention.
"""

import functools
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

# The sparse way reads a key once per query head; the other reads it once, but writes it
# too and reads it again.
MAX_SPARSE_GROUP = 4


@torch.no_grad()
def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `attention.paged_attention`, which has checked the arguments."""
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    result = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    gathered: list[int] = []
    in_place: list[int] = []
    lies_in_rows = _can_read_in_place(query, key_cache, value_cache)
    for i, seq_len in enumerate(lengths):
        query_len = starts[i + 1] - starts[i]
        if seq_len > 0 and query_len > 0:
            is_decode = query_len == 1
            (in_place if lies_in_rows and is_decode else gathered).append(i)

    if in_place:
        tokens = [starts[i] for i in in_place]
        is_all = len(in_place) == len(lengths)
        result[slice(None) if is_all else tokens] = decode_in_place(
            query if is_all else query[tokens],
            key_cache,
            value_cache,
            block_tables if is_all else block_tables[in_place],
            [lengths[i] for i in in_place],
            scale,
            window,
        )
    scratch = _Scratch(key_cache)
    for i in gathered:
        new = slice(starts[i], starts[i + 1])
        result[new] = attend_gathered(
            query[new],
            key_cache,
            value_cache,
            block_tables[i],
            lengths[i],
            scale,
            window,
            scratch,
        )
    return result


def decode_in_place(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: list[int],
    scale: float,
    window: int | None,
) -> Tensor:
    """One query token per sequence, no key or value copied.

    query [num_seqs, num_heads, head_dim]; the caches as `_can_read_in_place` wants
    them: rows of head_dim numbers, one for each slot and KV head.
    """
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    block_rows, slot_rows, head_rows, _ = (n // head_dim for n in key_cache.stride())
    kv_head = torch.arange(num_heads) // (num_heads // num_kv_heads)
    head_row = (kv_head * head_rows)[:, None]  # [num_heads, 1]
    num_blocks = -(-max(seq_lens) // block_size)
    token_rows = torch.add(  # [num_seqs, num_blocks * block_size]
        torch.arange(block_size) * slot_rows,
        block_tables[:, :num_blocks, None].long(),
        alpha=block_rows,
    ).flatten(1)

    spans = [(0 if window is None else max(0, n - window), n) for n in seq_lens]
    num_keys = torch.tensor([stop - first for first, stop in spans])
    row_starts = torch.zeros(num_seqs * num_heads + 1, dtype=torch.int64)
    torch.cumsum(num_keys.repeat_interleave(num_heads), 0, out=row_starts[1:])
    rows = torch.cat(  # of each sequence in turn, of each of its heads, of each key
        [
            (token_rows[i, first:stop] + head_row).flatten()
            for i, (first, stop) in enumerate(spans)
        ]
    )
    key_rows, value_rows = _as_rows(key_cache), _as_rows(value_cache)
    scores = _scores_at(query.flatten(0, 1), key_rows, row_starts, rows, scale)
    sizes = [num_heads * (stop - first) for first, stop in spans]
    weights = torch.cat(
        [
            piece.view(num_heads, -1).softmax(dim=-1).flatten()
            for piece in scores.split(sizes)
        ]
    )
    return F.embedding_bag(
        rows,
        value_rows,
        row_starts,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    ).view(query.shape)


def attend_gathered(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_table: Tensor,
    seq_len: int,
    scale: float,
    window: int | None,
    scratch: "_Scratch",
) -> Tensor:
    """The query tokens of one sequence, its keys and values gathered first.

    query [query_len, num_heads, head_dim], the last tokens of the sequence
    """
    query_len, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    first = 0 if window is None else max(0, seq_len - query_len + 1 - window)
    first_block, num_blocks = first // block_size, -(-seq_len // block_size)
    block_ids = block_table[first_block:num_blocks]
    start = first_block * block_size  # the position of the first row in scratch
    key, value = (
        rows.flatten(0, 1)[first - start : seq_len - start].transpose(0, 1)[None]
        for rows in scratch.gather(key_cache, value_cache, block_ids)
    )  # [1, num_kv_heads, num_keys, head_dim]
    if query_len == 1:  # the heads of a group become rows of one matrix
        packed = query.view(1, num_kv_heads, num_heads // num_kv_heads, head_dim)
        return F.scaled_dot_product_attention(packed, key, value, scale=scale).view(
            query.shape
        )
    mask = None
    if first > 0 or query_len < seq_len or window is not None:
        position = torch.arange(seq_len - query_len, seq_len, device=query.device)
        distance = position[:, None] - torch.arange(first, seq_len, device=query.device)
        mask = distance >= 0
        if window is not None:
            mask &= distance < window
    return F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )[0].transpose(0, 1)


class _Scratch:
    """Room for the keys and values of one sequence, grown when a longer one comes."""

    def __init__(self, like: Tensor) -> None:
        self._memory = like.new_empty(2, 0, *like.shape[1:])

    def gather(
        self, key_cache: Tensor, value_cache: Tensor, block_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """[len(block_ids), block_size, …] each, good until the next call."""
        if len(block_ids) > self._memory.shape[1]:
            self._memory = key_cache.new_empty(2, len(block_ids), *key_cache.shape[1:])
        key, value = self._memory[:, : len(block_ids)]
        torch.index_select(key_cache, 0, block_ids, out=key)
        torch.index_select(value_cache, 0, block_ids, out=value)
        return key, value


def _can_read_in_place(query: Tensor, key_cache: Tensor, value_cache: Tensor) -> bool:
    """Whether both caches are made of rows without gaps, and it is the faster way.

    16-bit numbers are gathered: torch has no sparse product for them on a CPU.
    """
    group = query.shape[1] // key_cache.shape[2]
    head_dim = query.shape[2]
    return (
        query.device.type == "cpu"
        and query.dtype in (torch.float32, torch.float64)
        and group <= MAX_SPARSE_GROUP
        and key_cache.stride() == value_cache.stride()
        and key_cache.stride(3) == 1
        and all(stride % head_dim == 0 for stride in key_cache.stride()[:3])
    )


def _as_rows(cache: Tensor) -> Tensor:
    """The memory of a cache as [num_rows, head_dim], what lies between included."""
    head_dim = cache.shape[3]
    strides = zip(cache.shape[:3], cache.stride()[:3], strict=True)
    last = sum((size - 1) * stride for size, stride in strides)
    return cache.as_strided((last // head_dim + 1, head_dim), (head_dim, 1))


def _scores_at(
    query: Tensor, key_rows: Tensor, row_starts: Tensor, rows: Tensor, scale: float
) -> Tensor:
    """query[i] times each of key_rows[rows[row_starts[i] : row_starts[i + 1]]]."""
    _silence_torch_about_sparse()
    shape = (len(query), len(key_rows))
    zeros = torch.zeros(len(rows), dtype=query.dtype)
    wanted = torch.sparse_csr_tensor(
        row_starts, rows, zeros, shape, check_invariants=False
    )
    product = torch.sparse.sampled_addmm(
        wanted, query, key_rows.t(), beta=0.0, alpha=scale
    )
    return product.values()


@functools.cache
def _silence_torch_about_sparse() -> None:
    """torch warns once that this layout is in beta: let it do so into the void."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()
