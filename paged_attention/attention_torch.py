"""Attention over scattered blocks with torch alone, fast on a CPU.

Two ways, and no loop over blocks in either:

- decode reads keys and values where they lie. Which head needs which row of the cache
  is a sparse matrix: a sparse product computes those scores and no others, and what
  sums up rows of an embedding table, picked by index, sums up the values.
- all else: one sequence at a time is gathered into scratch that all of them use, and
  handed to torch's dense attention.

What both need to know of tables and lengths comes from a plan (`attention_plan`).
"""

import functools
import math
import warnings

import torch
import torch.nn.functional as F
from torch import Tensor

from paged_attention.attention_plan import AttentionPlan, Chunk, Decodes


@torch.no_grad()
def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: AttentionPlan,
    scale: float,
) -> Tensor:
    """As `attention.paged_attention`; the plan was made for caches of this layout."""
    decodes = plan.decodes
    # Mostly the whole batch decodes: then there is nothing to put together.
    if decodes is not None and decodes.tokens is None:
        return decode_in_place(query, key_cache, value_cache, decodes, scale)
    # Sequences of length 0 are in no part of the plan: their rows are never written.
    make = torch.empty if plan.is_whole else torch.zeros
    result = make(query.shape, dtype=query.dtype, device=query.device)
    if decodes is not None:
        result[decodes.tokens] = decode_in_place(
            query[decodes.tokens], key_cache, value_cache, decodes, scale
        )
    scratch = _Scratch(key_cache)
    for chunk in plan.chunks:
        result[chunk.new] = attend_gathered(
            query[chunk.new], key_cache, value_cache, chunk, scale, scratch
        )
    return result


def decode_in_place(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    decodes: Decodes,
    scale: float,
) -> Tensor:
    """One query token per sequence, no key or value copied.

    query [num_seqs, num_heads, head_dim]; the caches as `can_read_in_place` wants
    them: rows of head_dim numbers, one for each slot and KV head.
    """
    num_heads = query.shape[1]
    # [sum of num_scores]: all keys of the first head of the first sequence, and so on
    scores = _scores_at(query.flatten(0, 1), _as_rows(key_cache), decodes, scale)
    # Each sequence has a number of keys of its own, so each has a softmax of its own,
    # over [num_heads, num_keys].
    weights = torch.cat(
        [
            piece.view(num_heads, -1).softmax(dim=-1).flatten()
            for piece in scores.split(decodes.num_scores)
        ]
    )
    # Made for words: a bag is some rows of a table, picked by number and added up. Here
    # the table is the cache of values, and each query head has a bag of its keys.
    return F.embedding_bag(
        decodes.rows,
        _as_rows(value_cache),
        decodes.row_starts,
        mode="sum",
        per_sample_weights=weights,
        include_last_offset=True,
    ).view(query.shape)


def attend_gathered(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    chunk: Chunk,
    scale: float,
    scratch: "_Scratch",
) -> Tensor:
    """The query tokens of one sequence, its keys and values gathered first.

    query [query_len, num_heads, head_dim], the last tokens of the sequence
    """
    key, value = (
        rows.flatten(0, 1)[chunk.keys].transpose(0, 1)[None]
        for rows in scratch.gather(key_cache, value_cache, chunk.block_ids)
    )  # [1, num_kv_heads, num_keys, head_dim]
    query_len, num_keys = len(query), key.shape[2]
    if query_len == 1 or not _can_be_masked(key, value, query_len, chunk.window):
        return _attend_one_by_one(query, key, value, chunk.window, scale)
    mask = None
    context = num_keys - query_len  # keys before the first query
    if context > 0 or chunk.window is not None:
        mask = torch.ones(query_len, num_keys, dtype=torch.bool, device=query.device)
        mask.tril_(context)  # each query sees the context, its forerunners and itself
        if chunk.window is not None:
            mask.triu_(context + 1 - chunk.window)  # and nothing before its window
    return F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        key,
        value,
        attn_mask=mask,
        is_causal=mask is None,
        scale=scale,
        enable_gqa=True,
    )[0].transpose(0, 1)


def _can_be_masked(
    key: Tensor, value: Tensor, query_len: int, window: int | None
) -> bool:
    """Whether all keys and values that are hidden from some query are finite.

    What is hidden by a mask still has a weight: 0, and 0 times NaN or infinity is NaN.
    """
    if window is None:  # the context is hidden from nobody
        key, value = key[:, :, -query_len:], value[:, :, -query_len:]
    # A sum is finite only if all of its terms are. If it is too large for a float32
    # although they are, the other way is taken for nothing, and that is all.
    total = key.sum(dtype=torch.float32) + value.sum(dtype=torch.float32)
    return math.isfinite(total.item())


def _attend_one_by_one(
    query: Tensor, key: Tensor, value: Tensor, window: int | None, scale: float
) -> Tensor:
    """Each query over the keys that it sees, without a mask.

    query [query_len, num_heads, head_dim]   key [1, num_kv_heads, num_keys, head_dim]
    """
    query_len, num_heads, head_dim = query.shape
    num_kv_heads, num_keys = key.shape[1:3]
    # The heads of a group become rows of one matrix.
    group = num_heads // num_kv_heads
    packed = query.reshape(query_len, num_kv_heads, group, head_dim)
    rows: list[Tensor] = []
    for i in range(query_len):
        stop = num_keys - query_len + i + 1
        first = 0 if window is None else max(0, stop - window)
        seen = (slice(None), slice(None), slice(first, stop))
        # [1, num_kv_heads, group, head_dim]: its heads see the same keys, so no mask
        row = F.scaled_dot_product_attention(
            packed[i : i + 1], key[seen], value[seen], scale=scale
        )
        rows.append(row)
    return torch.cat(rows).view(query.shape)


class _Scratch:
    """Room for the keys and values of one sequence, grown when a longer one comes."""

    def __init__(self, like: Tensor) -> None:
        # Empty, and made for one call of `attend`: no two threads share it.
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


def _as_rows(cache: Tensor) -> Tensor:
    """The memory of a cache as [num_rows, head_dim], what lies between included."""
    # reshape would copy a cache that has gaps, such as one half of a tensor that holds
    # keys and values in turn; as_strided looks at its memory as it is.
    head_dim = cache.shape[3]
    strides = zip(cache.shape[:3], cache.stride()[:3], strict=True)
    last = sum((size - 1) * stride for size, stride in strides)
    return cache.as_strided((last // head_dim + 1, head_dim), (head_dim, 1))


def _scores_at(
    query: Tensor, key_rows: Tensor, decodes: Decodes, scale: float
) -> Tensor:
    """query[i] times each of the rows of keys that belong to it, one after the other.

    query [num_seqs * num_heads, head_dim]
    """
    _silence_torch_about_sparse()
    # Compressed sparse rows: one for each query head of each sequence, a column for
    # each row of the cache, an entry where that head needs that row. sampled_addmm puts
    # the product of query and keys into the entries, and computes no other.
    scores = torch.sparse_csr_tensor(
        decodes.row_starts,
        decodes.rows,
        torch.zeros(len(decodes.rows), dtype=query.dtype),
        (len(query), len(key_rows)),
        check_invariants=False,
    )
    # Into its own values: else torch copies the row numbers first. beta=0: whatever
    # stands there is not added.
    torch.sparse.sampled_addmm(
        scores, query, key_rows.t(), beta=0.0, alpha=scale, out=scores
    )
    return scores.values()


@functools.cache
def _silence_torch_about_sparse() -> None:
    """torch warns once that this layout is in beta: let it do so into the void."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.zeros(1, 1).to_sparse_csr()
