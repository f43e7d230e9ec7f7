"""Which addresses belong to the tensors of a launch; what to say of those that don't.

A pointer in the interpreter is a plain number, so nothing says which tensor it was made
from. An access is right if its bytes are those of elements of a tensor of the launch; a
wrong one is told of the tensor that its neighbours in the same access hit, else of the
one that lies nearest.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np


class OutOfBoundsError(IndexError):
    """A kernel accessed memory that belongs to none of its tensors."""


class Extent:
    """The addresses of one tensor's elements; gaps between rows are not among them.

    Its axes must not interleave, which they never do in slices and transposes.
    """

    def __init__(self, name: str, tensor: Any) -> None:
        self.name = name
        self.width = tensor.element_size()
        self.num_elements = tensor.numel()
        self.tensor = tensor
        self.storage = tensor.untyped_storage().data_ptr()
        self.start = tensor.data_ptr()
        # Outermost first; axes along which nothing moves tell nothing.
        axes = zip(tensor.stride(), tensor.shape, strict=True)
        moving = [(stride, size) for stride, size in axes if stride and size > 1]
        self.axes = sorted(moving, reverse=True)
        self.last = sum(stride * (size - 1) for stride, size in self.axes)
        # Not num_elements: of an expanded tensor that counts some of them many times.
        self.is_dense = self.last + 1 == math.prod(size for _, size in self.axes)
        self.end = self.start + (self.last + 1) * self.width
        if self.num_elements == 0:
            self.end = self.start

    def spans(self, low: int, high: int, width: int) -> bool:
        """Whether accesses of this width from low to high lie between its ends."""
        return self.start <= low and high + width <= self.end

    def holds(self, addresses: np.ndarray, width: int) -> np.ndarray:
        """For each address, whether the bytes of an access there are of elements."""
        within = (addresses >= self.start) & (addresses + width <= self.end)
        if self.is_dense or not within.any():
            return within
        first = np.where(within, addresses - self.start, 0)
        # The last byte too: an address that is not aligned reaches into a gap.
        return within & self._hits(first) & self._hits(first + (width - 1))

    def _hits(self, offsets: np.ndarray) -> np.ndarray:
        """Whether these bytes, counted from the start, are of elements."""
        rest = offsets // self.width
        for stride, size in self.axes:
            rest = rest - np.minimum(rest // stride, size - 1) * stride
        return rest == 0

    def distance(self, address: int) -> int:
        return max(self.start - address, address - self.end, 0)

    def place(self, address: int) -> str:
        """Where in this tensor, or how far beside it, an address lies."""
        element = (address - self.start) // self.width
        if self.is_dense or self.num_elements == 0:
            return f"at element {element} (it has {self.num_elements})"
        return (
            f"at offset {element} (its {self.num_elements} elements lie at certain "
            f"offsets from 0 to {self.last})"
        )


class Memory:
    """The tensors of one launch, by the names of the kernel's parameters."""

    def __init__(self, extents: Sequence[Extent]) -> None:
        self.extents = extents
        self.stored: dict[str, int] = {}  # name -> elements that were stored to it

    def check(
        self, kind: str, pointers: np.ndarray, mask: np.ndarray, width: int
    ) -> tuple[str, str] | None:
        """Note an access; what is wrong with it, and in how many lanes, if anything.

        A lane that is masked off accesses nothing.
        """
        everywhere = pointers.astype(np.int64).reshape(-1)
        active = everywhere[np.broadcast_to(mask, pointers.shape).reshape(-1)]
        if active.size == 0:
            return None
        low, high = int(active.min()), int(active.max())
        for extent in self.extents:  # nearly every access lies in one tensor
            if not extent.spans(low, high, width):
                continue
            if extent.is_dense or extent.holds(active, width).all():
                self._note(kind, extent, active.size)
                return None
        inside = np.zeros(active.shape, bool)
        for extent in self.extents:
            hit = extent.holds(active, width)
            inside |= hit
            self._note(kind, extent, int(hit.sum()))
        if inside.all():
            return None
        extent = self._meant(everywhere, active[~inside], width)
        if extent is None:
            return f"{kind} by a kernel that was given no tensor", "all lanes"
        wrong = int(active[~inside][0])
        lanes = f"{int((~inside).sum())} of {active.size} active lanes"
        return f"{kind} outside '{extent.name}' {extent.place(wrong)}", lanes

    def _note(self, kind: str, extent: Extent, count: int) -> None:
        if kind != "load" and count:
            self.stored[extent.name] = self.stored.get(extent.name, 0) + count

    def _meant(
        self, everywhere: np.ndarray, wrong: np.ndarray, width: int
    ) -> Extent | None:
        """The tensor that an access was most likely meant for."""
        hits = [(int(e.holds(everywhere, width).sum()), e) for e in self.extents]
        most, extent = max(hits, key=lambda hit: hit[0], default=(0, None))
        if most:
            return extent
        first = int(wrong[0])
        return min(self.extents, key=lambda e: e.distance(first), default=None)
