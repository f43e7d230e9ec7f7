"""What every launch of our kernels needs: arguments by name, tiles, and a runner.

A Launch is complete before anything runs, so that the very same one is interpreted,
run on a GPU, or compiled for a GPU that is not there (`compile`).
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

# More keys than any sequence has. It is still an int32, and so is seq_len - NO_WINDOW:
# a kernel subtracts it without asking whether there is a window.
NO_WINDOW = 2**31 - 1
LOG2_E = 1.4426950408889634  # exp(x) == exp2(x * LOG2_E), and exp2 is an instruction
TILE_BYTES = 16384  # of keys in one tile, and of values: in shared memory on a GPU
MAX_TILE_ROWS = 64

TRITON_DTYPE = {
    torch.float16: tl.float16,
    torch.bfloat16: tl.bfloat16,
    torch.float32: tl.float32,
}


@dataclass(frozen=True)
class Launch:
    """A kernel and everything it is started with."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    num_warps: int = 4  # threads of a program, in warps: 32 on NVIDIA, 64 on AMD
    num_stages: int = 3  # how far ahead its loops load: one tile less than this

    @property
    def options(self) -> dict[str, Any]:
        # a * b + c in one step, rounded once: Triton is about to change its default.
        return {
            "num_warps": self.num_warps,
            "num_stages": self.num_stages,
            "enable_fp_fusion": True,
        }

    def run(self) -> None:
        """Start it. On a GPU this returns before it is done, as with torch's own."""
        # CUDA refuses a grid without programs; an empty batch has one.
        if min(self.grid) > 0:
            self.kernel[self.grid](**self.arguments, **self.options)


def is_interpreted(kernel: object) -> bool:
    """Whether this kernel runs on the CPU: TRITON_INTERPRET was set at its import."""
    return not isinstance(kernel, triton.JITFunction)


def compute_dtype(dtype: torch.dtype, kernel: object) -> tl.dtype:
    """What loaded numbers are multiplied in; sums are float32 always.

    The interpreter keeps a bfloat16 as its bit pattern and would multiply that.
    """
    if dtype == torch.bfloat16 and is_interpreted(kernel):
        return tl.float32
    return TRITON_DTYPE[dtype]


def tile_of(size: int) -> int:
    """The tile for so many rows or columns: a tensor core takes 16 at a time."""
    # 3 heads of a group or 80 numbers of a head: 16 rows, 128 columns, the rest masked.
    return max(16, triton.next_power_of_2(size))


def tile_keys(head_dim: int, dtype: torch.dtype) -> int:
    """How many keys are in a tile, for any block size: 64 at a head_dim of 128 in
    float16, 32 in float32."""
    return max(16, min(128, TILE_BYTES // (tile_of(head_dim) * dtype.itemsize)))


def num_warps(dtype: torch.dtype) -> int:
    """For decode: float32 takes twice the registers, so it is spread wider."""
    return 8 if dtype == torch.float32 else 4


def strides(name: str, tensor: Tensor, *axes: str) -> dict[str, int]:
    """{"key_stride_block": 4096, …}: one for each axis named, "" for the only one."""
    return {
        f"{name}_stride{'_' if axis else ''}{axis}": stride
        for axis, stride in zip(axes, tensor.stride(), strict=True)
    }


def alignment(*tensors: Tensor) -> int:
    """The power of two, at most 16, that every stride but the last is a multiple of.

    Triton itself knows of an argument only whether it is a multiple of 16. With heads
    of 120 numbers their stride is one of 8, which is enough to load 16 bytes at once.
    One odd stride makes all loads narrow. The last stride is left out: it is 1, or the
    loads are narrow anyway.
    """
    return math.gcd(
        16, *(stride for tensor in tensors for stride in tensor.stride()[:-1])
    )


def cache_arguments(key_cache: Tensor, value_cache: Tensor) -> dict[str, Any]:
    """Pointers and strides of both caches, as every kernel here calls them."""
    axes = ("block", "slot", "head", "dim")
    return {
        "key_ptr": key_cache,
        "value_ptr": value_cache,
        **strides("key", key_cache, *axes),
        **strides("value", value_cache, *axes),
    }


def batch_arguments(
    block_tables: Tensor, seq_lens: Tensor, scale: float, window: int | None
) -> dict[str, Any]:
    """Tables, lengths, scale and window, as every kernel that attends calls them."""
    return {
        "tables_ptr": block_tables,
        "lens_ptr": seq_lens,
        # Scores come out as exponents of 2, at no cost: they are scaled once anyway.
        "scale": scale * LOG2_E,
        "window": NO_WINDOW if window is None else min(window, NO_WINDOW),
        **strides("tables", block_tables, "seq", "block"),
        **strides("lens", seq_lens, ""),
    }
