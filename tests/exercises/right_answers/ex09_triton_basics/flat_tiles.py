"""K and V in one launch, for all pairs if no two meet; tiles that are flat."""

import torch
import triton
from torch import Tensor
from triton import language as tl

TILE = tl.constexpr(64)


@triton.jit
def copy_with_few_programs(source, destination, n, PROGRAMS: tl.constexpr):
    """Each program takes every PROGRAMS-th tile."""
    for start in range(tl.program_id(0) * TILE, n, PROGRAMS * TILE):
        place = start + tl.arange(0, TILE)
        inside = place < n
        tl.store(destination + place, tl.load(source + place, inside, 0.0), inside)


def copy_vector(source: Tensor, destination: Tensor) -> None:
    if len(source) > 0:
        copy_with_few_programs[(3,)](source, destination, len(source), PROGRAMS=3)


@triton.jit
def place_of(index, block, strides, num_kv_heads, head_dim):
    """Where number `index` of a block lies, counted over offsets, heads and dims."""
    stride_block = tl.load(strides)
    offset = index // (num_kv_heads * head_dim)
    head = index // head_dim % num_kv_heads
    place = block * stride_block + offset * tl.load(strides + 1)
    return place + head * tl.load(strides + 2) + index % head_dim * tl.load(strides + 3)


@triton.jit
def copy_pair(
    keys,
    values,
    pairs,
    strides,
    count,
    num_kv_heads,
    head_dim,
):
    index = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = index < count
    a = tl.cast(tl.load(pairs + 2 * tl.program_id(1)), tl.int64)
    b = tl.cast(tl.load(pairs + 2 * tl.program_id(1) + 1), tl.int64)
    come = place_of(index, a, strides, num_kv_heads, head_dim)
    go = place_of(index, b, strides, num_kv_heads, head_dim)
    tl.store(keys + go, tl.load(keys + come, mask=inside, other=0), mask=inside)
    come = place_of(index, a, strides + 4, num_kv_heads, head_dim)
    go = place_of(index, b, strides + 4, num_kv_heads, head_dim)
    tl.store(values + go, tl.load(values + come, mask=inside, other=0), mask=inside)


def strides_of(key_cache: Tensor, value_cache: Tensor) -> Tensor:
    both = [*key_cache.stride(), *value_cache.stride()]
    return torch.tensor(both, dtype=torch.int64, device=key_cache.device)


def copy_pairs(
    key_cache: Tensor, value_cache: Tensor, pairs: list[tuple[int, int]]
) -> None:
    strides = strides_of(key_cache, value_cache)
    count = key_cache[0].numel()
    blocks = [block for pair in pairs for block in pair]
    all_at_once = len(set(blocks)) == len(blocks)
    todo = [pairs] if all_at_once else [[pair] for pair in pairs]
    for some in todo:
        if not some or some[0][0] == some[0][1]:
            continue
        grid = lambda options: (triton.cdiv(count, 64), len(some))  # noqa: B023, E731
        copy_pair[grid](
            key_cache,
            value_cache,
            torch.tensor(some, dtype=torch.int32, device=key_cache.device),
            strides,
            count,
            key_cache.size(2),
            key_cache.size(3),
        )


@triton.jit
def write_token(
    new,
    stride_token,
    stride_head,
    stride_dim,
    cache,
    strides,
    slots,
    block_size,
    num_kv_heads,
    head_dim,
):
    """A program for each head of each token; a skipped one is masked off."""
    token = tl.program_id(1).to(tl.int64)
    head = tl.program_id(0)
    slot = tl.load(slots + token)
    block = slot // block_size
    for start in range(0, head_dim, TILE):
        dim = start + tl.arange(0, TILE)
        inside = (dim < head_dim) & (slot >= 0)
        come = token * stride_token + head * stride_head + dim * stride_dim
        index = (slot - block * block_size) * num_kv_heads * head_dim
        index += head * head_dim + dim
        go = place_of(index, block, strides, num_kv_heads, head_dim)
        tl.store(cache + go, tl.load(new + come, mask=inside, other=0), mask=inside)


def write_slots(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    num_tokens, num_kv_heads, head_dim = key.shape
    if num_tokens == 0:
        return
    strides = strides_of(key_cache, value_cache)
    grid = (num_kv_heads, num_tokens)
    sizes = (key_cache.shape[1], num_kv_heads, head_dim)
    for i, (new, cache) in enumerate([(key, key_cache), (value, value_cache)]):
        write_token[grid](
            new, *new.stride(), cache, strides[4 * i :], slot_mapping, *sizes
        )
