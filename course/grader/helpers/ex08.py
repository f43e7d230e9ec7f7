"""Runs in the worker: what tests of exercise 08 must see with live tensors.

A tensor crosses as plain numbers, so strides, memory and what is overwritten later can
only be seen here.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

Attend = Callable[..., Tensor]


def with_views(attend: Attend, layout: str, arguments: list[Any]) -> Tensor:
    """attend(*arguments), with the two pools after the query as views of other memory.

    layout  "one buffer": key and value of a block lie side by side
            "heads first": the axis of the heads lies before that of the slots
            "last axis": head_dim is the outermost axis in memory
    """
    query, key_cache, value_cache, *rest = arguments
    if layout == "one buffer":
        both = torch.stack([key_cache, value_cache], dim=1)
        key_cache, value_cache = both[:, 0], both[:, 1]
    else:
        axes = (1, 2) if layout == "heads first" else (0, 3)
        key_cache = key_cache.transpose(*axes).contiguous().transpose(*axes)
        value_cache = value_cache.transpose(*axes).contiguous().transpose(*axes)
    return attend(query, key_cache, value_cache, *rest)


def with_slices(attend: Attend, arguments: list[Any], starts: Tensor | None) -> Tensor:
    """A batch whose query, tables and lengths are parts of larger tensors."""
    query, key_cache, value_cache, block_tables, seq_lens = arguments
    query = query.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((len(seq_lens), block_tables.shape[1] + 5), 10**6)
    wide[:, 3 : 3 + block_tables.shape[1]] = block_tables
    lens = torch.full((2 * len(seq_lens),), 10**6, dtype=seq_lens.dtype)
    lens[::2] = seq_lens
    tables = wide[:, 3 : 3 + block_tables.shape[1]]
    return attend(
        query, key_cache, value_cache, tables, lens[::2], query_start_loc=starts
    )


def first_after_second(attend: Attend, first: list[Any], second: list[Any]) -> Tensor:
    """What the first call returned, as it looks when the second one is over."""
    result = attend(*first)
    attend(*second)
    return result


def largest_tensor(attend: Attend, arguments: list[Any]) -> dict[str, int]:
    """Numbers in the largest floating-point tensor that a call makes.

    Views of the arguments are not made by the call: they lie in the same memory.
    """
    given = [part for part in arguments if isinstance(part, Tensor)]
    with _Watch({part.untyped_storage().data_ptr() for part in given}) as watch:
        attend(*arguments)
    return {"numbers": watch.largest}


class _Watch(TorchFunctionMode):
    """Sees each call of torch, and how much memory its result has.

    What a call makes inside and throws away is not seen. (TorchDispatchMode would see
    it, and takes two seconds to import what it needs.)
    """

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.largest = 0
        self._known = known  # addresses of memory that was there before

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        parts = result if isinstance(result, list | tuple) else [result]
        for part in parts:
            if isinstance(part, Tensor) and part.is_floating_point():
                memory = part.untyped_storage()
                if memory.data_ptr() not in self._known:
                    size = memory.nbytes() // part.element_size()
                    self.largest = max(self.largest, size)
        return result
