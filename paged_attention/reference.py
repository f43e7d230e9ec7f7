"""Attention, slow and plain: what every faster version is checked against.

Written for the eye and for float64. No batch, no blocks, no tricks: one sequence,
all of its keys and values in a row.
"""

import math

import torch
from torch import Tensor


def attention(
    query: Tensor, key: Tensor, value: Tensor, scale: float | None = None
) -> Tensor:
    """Causal attention of the last num_queries tokens of one sequence.

        query   [num_queries, num_heads, head_dim]
        key     [seq_len, num_kv_heads, head_dim]   value the same
        result  as query, in its dtype; computed in the dtype of the inputs

    Query i stands at position seq_len - num_queries + i and sees itself and all
    before it. Query head h reads KV head h // (num_heads // num_kv_heads). scale
    defaults to head_dim ** -0.5. Raises ValueError where the shapes don't fit.
    """
    num_queries, num_heads, head_dim = query.shape
    seq_len, num_kv_heads, _ = key.shape
    if key.shape != value.shape or key.shape[2] != head_dim:
        raise ValueError(
            f"key and value must be [seq_len, num_kv_heads, {head_dim}], "
            f"got {list(key.shape)} and {list(value.shape)}"
        )
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} KV heads")
    if num_queries > seq_len:
        raise ValueError(f"{num_queries} queries, but only {seq_len} keys")

    group = num_heads // num_kv_heads
    # Each KV head is written out once per query head that reads it: slow, and plain.
    key = key.repeat_interleave(group, dim=1)  # [seq_len, num_heads, head_dim]
    value = value.repeat_interleave(group, dim=1)
    if scale is None:
        scale = 1 / math.sqrt(head_dim)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale  # [heads, queries, keys]

    position = torch.arange(seq_len, device=query.device)
    is_future = position > position[seq_len - num_queries :, None]  # [queries, keys]
    weights = scores.masked_fill(is_future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    query_start_loc: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """Attention over scattered blocks: one query token at a time, one key at a time.

        query            [num_tokens, num_heads, head_dim]
        key_cache        [num_blocks, block_size, num_kv_heads, head_dim]
                         value_cache the same
        block_tables     [num_seqs, max_num_blocks]   the unused tail is ignored
        seq_lens         [num_seqs]       tokens in the cache, the new ones too
        query_start_loc  [num_seqs + 1]   where each sequence's query tokens begin

    The last query token of a sequence stands at position seq_len - 1 and the others
    before it. Each sees itself and what is before it, at most window keys in all.
    Without query_start_loc each sequence has one. A sequence of length 0 gives zeros.
    Computed in the dtype of the inputs: hand over float64 to get the exact answer.
    """
    block_size = key_cache.shape[1]
    lengths = seq_lens.tolist()
    starts = range(len(lengths) + 1)
    if query_start_loc is not None:
        starts = query_start_loc.tolist()
    result = torch.zeros_like(query)
    for i, seq_len in enumerate(lengths):
        for token in range(starts[i], starts[i + 1]) if seq_len else ():
            position = seq_len - (starts[i + 1] - token)
            first = 0 if window is None else max(0, position + 1 - window)
            places = [
                (int(block_tables[i, j // block_size]), j % block_size)
                for j in range(first, position + 1)
            ]
            key = torch.stack([key_cache[place] for place in places])  # [keys, …]
            value = torch.stack([value_cache[place] for place in places])
            result[token] = attention(query[token : token + 1], key, value, scale)[0]
    return result
