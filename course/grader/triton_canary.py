"""Kernels that show whether the watch over the interpreter still sees everything."""

import triton
import triton.language as tl


@triton.jit
def canary(
    source_ptr,  # [n]   float32
    destination_ptr,  # [n]   float32
    count_ptr,  # [1]   int32
    n,
    TILE: tl.constexpr,
):
    """Copies; each program adds 1 to the count."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    value = tl.load(source_ptr + place, mask=place < n, other=0.0)
    tl.store(destination_ptr + place, value, mask=place < n)
    tl.atomic_add(count_ptr, 1)
