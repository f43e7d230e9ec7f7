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
    key = key.repeat_interleave(group, dim=1)  # [seq_len, num_heads, head_dim]
    value = value.repeat_interleave(group, dim=1)
    if scale is None:
        scale = 1 / math.sqrt(head_dim)
    scores = torch.einsum("qhd,khd->hqk", query, key) * scale

    position = torch.arange(seq_len, device=query.device)
    is_future = position > position[seq_len - num_queries :, None]
    weights = scores.masked_fill(is_future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value)
