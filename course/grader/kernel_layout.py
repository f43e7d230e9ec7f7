"""How the tensors of a test cross: the memory below them, and where each lies in it.

Two views of one buffer are so two views of one buffer in the worker as well.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

# A NaN that no calculation makes anew: where it is left, nothing was stored. Per dtype:
# the integer of its size, and the bits.
_UNWRITTEN = {
    "float32": ("int32", 0x7FC0DEAD),
    "float16": ("int16", 0x7E5A),
    "bfloat16": ("int16", 0x7FDA),
}


def mark_unwritten(tensor: Any) -> Any:
    """Fill a tensor of a floating-point type with it; gives the tensor."""
    import torch

    kind, bits = _UNWRITTEN[str(tensor.dtype).removeprefix("torch.")]
    tensor.view(getattr(torch, kind)).fill_(bits)
    return tensor


def is_unwritten(tensor: Any) -> Any:
    """Which elements are as mark_unwritten left them."""
    import torch

    kind, bits = _UNWRITTEN.get(str(tensor.dtype).removeprefix("torch."), ("uint8", -1))
    if bits < 0:
        return torch.zeros(tensor.shape, dtype=torch.bool)
    return tensor.contiguous().view(getattr(torch, kind)) == bits


class Huge:
    """A tensor so large that it isn't sent: zeros, except for some of its rows.

    shape  of a dense tensor; rows: index along the first axis -> the row's content.
    Only these rows come back. On the CPU it takes no memory but for what is touched.
    """

    def __init__(self, shape: Sequence[int], rows: Mapping[int, Any]) -> None:
        self.shape = list(shape)
        self.rows = dict(rows)
        self.row_size = math.prod(self.shape[1:])
        self.dtype = str(next(iter(self.rows.values())).dtype).removeprefix("torch.")

    def __repr__(self) -> str:
        return f"tensor {self.dtype} {self.shape}"


class Layout:
    """The storages below the tensors of a call, and where in them each tensor lies."""

    def __init__(self) -> None:
        self.storages: list[Any] = []
        self.owners: list[list[int | str]] = []  # per storage: the arguments
        self._numbers: dict[tuple[int, Any], int] = {}
        self._covered: list[Any] = []  # per storage: which elements belong to a tensor

    def send(self, value: Any, label: int | str) -> dict[str, Any]:
        """How an argument crosses; label: its position or its name."""
        import torch

        if isinstance(value, Huge):
            return self._send_huge(value, label)
        if not isinstance(value, torch.Tensor):
            return {"value": value}
        size = value.untyped_storage().nbytes() // value.element_size()
        flat = torch.empty(0, dtype=value.dtype)
        flat = flat.set_(value.untyped_storage(), 0, (size,), (1,))
        key = (value.untyped_storage().data_ptr(), value.dtype)
        if key not in self._numbers or size == 0:
            self._numbers[key] = len(self.storages)
            self.storages.append(flat.clone())
            self.owners.append([])
            self._covered.append(torch.zeros(size, dtype=torch.bool))
        number = self._numbers[key]
        self.owners[number].append(label)
        place = [list(value.shape), list(value.stride()), value.storage_offset()]
        if value.numel():
            self._covered[number].as_strided(*place).fill_(True)
        return {"view": [number, *place]}

    def _send_huge(self, value: Huge, label: int | str) -> dict[str, Any]:
        parts = [[i * value.row_size, row.reshape(-1)] for i, row in value.rows.items()]
        count = math.prod(value.shape)
        self.storages.append(
            {"dtype": value.dtype, "num_elements": count, "parts": parts}
        )
        self._covered.append(None)
        self.owners.append([label])
        strides = [math.prod(value.shape[i + 1 :]) for i in range(len(value.shape))]
        return {"view": [len(self.storages) - 1, value.shape, strides, 0], "huge": True}

    def after(self, sent: dict[str, Any], storages: list[Any]) -> Any:
        """What an argument holds after the call."""
        if "view" not in sent:
            return sent["value"]
        number, shape, stride, offset = sent["view"]
        if "huge" in sent:
            return [row.reshape(shape[1:]) for row in storages[number]]
        return storages[number].as_strided(shape, stride, offset)

    def changed(self, storages: list[Any]) -> list[int]:
        """The storages that the call changed; a Huge one is not looked at."""
        both = enumerate(zip(self.storages, storages, strict=True))
        return [
            i
            for i, (before, now) in both
            if type(before) is not dict and bool((_bits(now) != _bits(before)).any())
        ]

    def first_change(self, i: int, storages: list[Any]) -> tuple[int, Any, Any]:
        """The first element of storage i that changed, what it was and what it is."""
        before, now = self.storages[i], storages[i]
        element = int((_bits(now) != _bits(before)).nonzero()[0])
        return element, before[element].item(), now[element].item()

    def changed_gap(self, storages: list[Any]) -> tuple[int, int] | None:
        """(storage, element) of a number beside the tensors that the call changed."""
        for i, (before, now) in enumerate(zip(self.storages, storages, strict=True)):
            if type(before) is dict:
                continue
            wrong = (_bits(now) != _bits(before)) & ~self._covered[i]
            if wrong.any():
                return i, int(wrong.nonzero()[0])
        return None


def _bits(tensor: Any) -> Any:
    """Comparable also where the numbers are NaN."""
    import torch

    whole = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(whole[tensor.element_size()])
