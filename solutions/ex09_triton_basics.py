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

# BEGIN NOTES


@triton.jit
def copy_vector_kernel(source_ptr, destination_ptr, n, TILE: tl.constexpr):
    """Program i copies tile i."""
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    number = tl.load(source_ptr + place, mask=place < n, other=0.0)
    tl.store(destination_ptr + place, number, mask=place < n)


# END NOTES


def copy_vector(source: Tensor, destination: Tensor) -> None:
    # BEGIN SOLUTION 9.1: a kernel with a mask, and its launch
    tile = 256
    n = source.numel()
    copy_vector_kernel[(triton.cdiv(n, tile),)](source, destination, n, TILE=tile)
    # END SOLUTION


# BEGIN NOTES


@triton.jit
def copy_block_kernel(
    cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    pairs_ptr,  # [num_pairs, 2]   int64, contiguous
    stride_block,
    stride_offset,
    stride_head,
    stride_dim,
    num_kv_heads,
    head_dim,
    TILE_HEADS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Program (i, j): all heads of offset j of pair i."""
    pair, offset = tl.program_id(0), tl.program_id(1)
    source = tl.load(pairs_ptr + 2 * pair)
    destination = tl.load(pairs_ptr + 2 * pair + 1)
    head = tl.arange(0, TILE_HEADS)[:, None]
    dim = tl.arange(0, TILE_DIM)[None, :]
    inside = (head < num_kv_heads) & (dim < head_dim)
    place = offset * stride_offset + head * stride_head + dim * stride_dim
    tile = tl.load(cache_ptr + source * stride_block + place, mask=inside, other=0.0)
    tl.store(cache_ptr + destination * stride_block + place, tile, mask=inside)


def _waves(pairs: list[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Cut the pairs so that no block of a wave is touched by two of its pairs."""
    result: list[list[tuple[int, int]]] = []
    touched: set[int] = set()
    for pair in pairs:
        if not result or touched & set(pair):
            result.append([])
            touched = set()
        result[-1].append(pair)
        touched |= set(pair)
    return result


# END NOTES


def copy_pairs(
    key_cache: Tensor, value_cache: Tensor, pairs: list[tuple[int, int]]
) -> None:
    # BEGIN SOLUTION 9.2: launches, one after the other
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    for wave in _waves(pairs):
        # int64, so that block * stride is counted in 64 bits.
        ids = torch.tensor(wave, dtype=torch.int64, device=key_cache.device)
        for cache in (key_cache, value_cache):
            copy_block_kernel[(len(wave), block_size)](
                cache,
                ids,
                *cache.stride(),
                num_kv_heads,
                head_dim,
                TILE_HEADS=triton.next_power_of_2(num_kv_heads),
                TILE_DIM=triton.next_power_of_2(head_dim),
            )
    # END SOLUTION


# BEGIN NOTES


@triton.jit
def write_kernel(
    new_ptr,  # [num_tokens, num_kv_heads, head_dim]
    cache_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    slots_ptr,  # [num_tokens]   int64
    new_stride_token,
    new_stride_head,
    new_stride_dim,
    stride_block,
    stride_offset,
    stride_head,
    stride_dim,
    block_size,
    num_kv_heads,
    head_dim,
    TILE_HEADS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Program i: all heads of token i."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token)
    if slot < 0:
        return
    head = tl.arange(0, TILE_HEADS)[:, None]
    dim = tl.arange(0, TILE_DIM)[None, :]
    inside = (head < num_kv_heads) & (dim < head_dim)
    new = token * new_stride_token + head * new_stride_head + dim * new_stride_dim
    tile = tl.load(new_ptr + new, mask=inside, other=0.0)
    row = slot // block_size * stride_block + slot % block_size * stride_offset
    place = row + head * stride_head + dim * stride_dim
    tl.store(cache_ptr + place, tile, mask=inside)


# END NOTES


def write_slots(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    # BEGIN SOLUTION 9.3: one program for each token
    _, block_size, num_kv_heads, head_dim = key_cache.shape
    for new, cache in ((key, key_cache), (value, value_cache)):
        write_kernel[(len(slot_mapping),)](
            new,
            cache,
            slot_mapping,
            *new.stride(),
            *cache.stride(),
            block_size,
            num_kv_heads,
            head_dim,
            TILE_HEADS=triton.next_power_of_2(num_kv_heads),
            TILE_DIM=triton.next_power_of_2(head_dim),
        )
    # END SOLUTION


# BEGIN NOTES
# 9.1  Count the programs with cdiv, so that the last tile, filled in part, has one too;
# the mask keeps its spare lanes away from memory. The mask is about n, and not about
# where destination ends, which may be longer than source. Any tile is right.
#
# 9.2  Two things are not visible in one run on a CPU. Programs have no order: with all
# pairs in one launch, [(0, 1), (1, 2)] may copy block 1 before block 0 has come to it.
# And the product of block and stride must be 64 bits wide: here it is, because the ids
# are int64; ids that come as plain int arguments below 2**31 would be 32 bits, and so
# would be program_id. One launch per pair would give the same numbers; waves make one
# launch of what copy-on-write asks for, whose pairs never meet. These here are cut a
# little too early: two pairs with the same source only read it, and could share one.
#
# 9.3  The slot is loaded first, and a program whose token is skipped returns before it
# forms any address. Without that, slot -1 is block -1 (or 0: // rounds towards 0 on a
# GPU), offset -1: somebody else's memory. Alternatives: one program for each head, or
# keys and values in one launch with twice the pointers.
# END NOTES
