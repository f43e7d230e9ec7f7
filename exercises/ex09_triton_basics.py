"""Exercise 09: three kernels that move data.

Grade with `course grade 9`. The tasks do not depend on each other. Each asks for a
launcher, an ordinary function with a fixed name and fixed arguments. The kernels that
it launches are yours: write them above it, marked @triton.jit, with names, parameters,
tiles and grids of your choice.

What holds for all three:

- A Triton kernel moves the data. The launcher may use torch for memory, shapes and
  strides (torch.empty, torch.tensor, .shape, .stride(), .to(device), …), not for
  arithmetic or copying.
- Nothing beside the elements that a task names is read or written, also not in the gaps
  of a tensor whose rows do not touch. The grader reports such an access with tensor,
  element and program. Lanes that are masked off access nothing.
- Sizes are any numbers from 0 or 1 on, rarely powers of two, and all different.
- A tl.load with a mask says `other`.
- Caches may be large: block 131,072 of a cache with 16 * 8 * 128 numbers per block
  begins at element 2**31, which no 32-bit integer holds.
- The kernels also compile for a GPU (sm_80), which the grader does without one. So a
  kernel reads no plain global variable, only its parameters and tl.constexpr.
- Programs of one launch run in any order, and at the same time. The grader runs them in
  reverse order as well.
- Tensors are of one floating point type per call (float32 or float16), on one device.
- What is given is the same after the call, except that copy_vector writes destination,
  copy_pairs writes key_cache and value_cache, and write_slots writes key_cache and
  value_cache.

To try a kernel yourself, without a GPU (the variable counts when a kernel is defined):

    TRITON_INTERPRET=1 python -i exercises/ex09_triton_basics.py


Task 9.1   copy_vector(source, destination) -> None

destination[i] = source[i] for every i below len(source).

    source       [n]   n may be 0: a launch over the grid (0,) runs no program. More
                       than 1,024 numbers are shared by several programs
    destination  [m]   m >= n; what lies behind the first n numbers stays as it is
    both have stride 1


Task 9.2   copy_pairs(key_cache, value_cache, pairs) -> None

For each pair (a, b), block b gets the content of block a, keys and values, as if one
pair were done after the other: [(0, 1), (1, 2)] brings block 0 to 1 and to 2. The
launcher sees to that: two pairs meet if one of them writes a block that the other one
reads or writes, and pairs that meet go into different launches, one after the other.

A launch has its price, so copies that are independent share one: pairs that have no
block in common, six or sixty of them, take no more launches than a single pair does.
Where pairs meet, the number of launches is free.

    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_dim]
                            any strides, also different ones for keys and values; the
                            two may be views of one buffer that do not overlap
    pairs                   list[tuple[int, int]], may be empty; a block may be in
                            several pairs, and a pair may be (a, a)


Task 9.3   write_slots(key, value, key_cache, value_cache, slot_mapping) -> None

The key and value of token i go into slot slot_mapping[i]: block slot // block_size,
offset slot % block_size. A token whose slot is -1 is skipped.

    key, value              [num_tokens, num_kv_heads, head_dim]   any strides
    key_cache, value_cache  [num_blocks, block_size, num_kv_heads, head_dim]   as above
    slot_mapping            [num_tokens]   int64, stride 1; no slot twice but -1
    num_tokens may be 0
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


def copy_vector(source: Tensor, destination: Tensor) -> None:
    raise NotImplementedError("exercise 9.1: a kernel with a mask, and its launch")


def copy_pairs(
    key_cache: Tensor, value_cache: Tensor, pairs: list[tuple[int, int]]
) -> None:
    raise NotImplementedError("exercise 9.2: launches, one after the other")


def write_slots(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    raise NotImplementedError("exercise 9.3: one program for each token")


# pristine stub, sha256 of the lines above: 87c026b4324e1630
