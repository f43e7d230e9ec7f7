"""Runs in the worker: what tests of exercise 01 must see with live tensors."""

from typing import Any

import torch
from torch import Tensor


def steps_with_reused_tensors(
    attention: Any, queries: Tensor, keys: Tensor, values: Tensor
) -> Tensor:
    """Feed all tokens through three tensors that are overwritten after each step."""
    query, key, value = (torch.empty_like(rows[0]) for rows in (queries, keys, values))
    results = []
    for token in range(len(queries)):
        query.copy_(queries[token])
        key.copy_(keys[token])
        value.copy_(values[token])
        results.append(attention.step(query, key, value).clone())
        for tensor in (query, key, value):
            tensor.fill_(float("nan"))
    return torch.stack(results)
