"""Writing keys and values into slots, and copying blocks: kernels that only move."""

from collections.abc import Iterable

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_attention.kernels.launch import Launch, alignment, cache_arguments, strides


# How signatures are written in these files: pointers first, each with the shape behind
# it, then strides, those of one tensor in a line (hence fmt: skip), then, in capitals,
# what is known when the kernel is compiled.
@triton.jit
def write_kv_kernel(
    new_key_ptr,  # [num_tokens, num_kv_heads, head_dim]
    new_value_ptr,
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    slots_ptr,  # [num_tokens]   int64; -1 skips the token
    new_key_stride_token, new_key_stride_head, new_key_stride_dim,
    new_value_stride_token, new_value_stride_head, new_value_stride_dim,
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    slots_stride,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_HEADS: tl.constexpr, TILE_DIM: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Program (i, j): TILE_HEADS KV heads of token i."""
    token = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + token * slots_stride).to(tl.int64)
    # Padding, which nobody keeps: vLLM marks it with -1 as well.
    if slot < 0:
        return
    # Slot 10 in blocks of 4 is block 2, offset 2. In 64 bits, since a block_id times a
    # stride can pass 2**31: wrapped around, it is an address before the cache.
    block_id, offset = slot // BLOCK_SIZE, slot % BLOCK_SIZE
    head = tl.program_id(1) * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]
    dim = tl.arange(0, TILE_DIM)[None, :]
    # A tile's sides are powers of two; what the cache doesn't have is masked.
    mask = (head < NUM_KV_HEADS) & (dim < HEAD_DIM)

    # multiple_of computes nothing: it lets a thread load many numbers at once.
    row = token * new_key_stride_token + head * new_key_stride_head
    place = tl.multiple_of(row, [ALIGN, ALIGN]) + dim * new_key_stride_dim
    key = tl.load(new_key_ptr + place, mask=mask, other=0.0)
    row = block_id * key_stride_block + offset * key_stride_slot
    row = tl.multiple_of(row + head * key_stride_head, [ALIGN, ALIGN])
    tl.store(key_ptr + row + dim * key_stride_dim, key, mask=mask)

    # Values once more, with strides of their own: they may be a view of something else.
    row = token * new_value_stride_token + head * new_value_stride_head
    place = tl.multiple_of(row, [ALIGN, ALIGN]) + dim * new_value_stride_dim
    value = tl.load(new_value_ptr + place, mask=mask, other=0.0)
    row = block_id * value_stride_block + offset * value_stride_slot
    row = tl.multiple_of(row + head * value_stride_head, [ALIGN, ALIGN])
    tl.store(value_ptr + row + dim * value_stride_dim, value, mask=mask)


@triton.jit
def copy_blocks_kernel(
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    pairs_ptr,  # [num_pairs, 2]   int64, contiguous: source, destination
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    NUM_KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE_HEADS: tl.constexpr, TILE_DIM: tl.constexpr, ALIGN: tl.constexpr,
):  # fmt: skip
    """Program (i, j, k): slot j of pair i, TILE_HEADS of its KV heads."""
    pair = tl.program_id(0).to(tl.int64)
    offset = tl.program_id(1)
    source = tl.load(pairs_ptr + 2 * pair).to(tl.int64)
    destination = tl.load(pairs_ptr + 2 * pair + 1).to(tl.int64)
    head = tl.program_id(2) * TILE_HEADS + tl.arange(0, TILE_HEADS)[:, None]
    dim = tl.arange(0, TILE_DIM)[None, :]
    mask = (head < NUM_KV_HEADS) & (dim < HEAD_DIM)

    # The place within a block is the same in both blocks, so one offset serves twice.
    # multiple_of computes nothing: it lets a thread load many numbers at once.
    row = offset * key_stride_slot + head * key_stride_head
    place = tl.multiple_of(row, [ALIGN, ALIGN]) + dim * key_stride_dim
    key = tl.load(key_ptr + source * key_stride_block + place, mask=mask, other=0.0)
    tl.store(key_ptr + destination * key_stride_block + place, key, mask=mask)

    row = offset * value_stride_slot + head * value_stride_head
    place = tl.multiple_of(row, [ALIGN, ALIGN]) + dim * value_stride_dim
    value = tl.load(
        value_ptr + source * value_stride_block + place, mask=mask, other=0.0
    )
    tl.store(value_ptr + destination * value_stride_block + place, value, mask=mask)


def write_kv(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    """Put each token's key and value into its slot; -1 skips it. Unchecked.

    key, value [num_tokens, num_kv_heads, head_dim]; slot_mapping [num_tokens] int64
    """
    write_kv_launch(key, value, key_cache, value_cache, slot_mapping).run()


def write_kv_launch(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> Launch:
    """A program for each token, and for each tile of its KV heads."""
    tiles = _tiles(key_cache)
    return Launch(
        write_kv_kernel,
        (len(key), triton.cdiv(key_cache.shape[2], tiles["TILE_HEADS"])),
        {
            "new_key_ptr": key,
            "new_value_ptr": value,
            **strides("new_key", key, "token", "head", "dim"),
            **strides("new_value", value, "token", "head", "dim"),
            **cache_arguments(key_cache, value_cache),
            "slots_ptr": slot_mapping,
            **strides("slots", slot_mapping, ""),
            "BLOCK_SIZE": key_cache.shape[1],
            "ALIGN": alignment(key, value, key_cache, value_cache),
            **tiles,
        },
        num_warps=_num_warps(tiles, key_cache),
    )


def copy_blocks(
    key_cache: Tensor, value_cache: Tensor, pairs: Iterable[tuple[int, int]]
) -> None:
    """Copy whole blocks, (source, destination), as if one after the other. Unchecked.

    Programs run in any order, so pairs that touch the same block go into separate
    launches; copy-on-write makes none, and then there is one launch.
    """
    for wave in waves(pairs):
        on_device = torch.tensor(wave, dtype=torch.int64, device=key_cache.device)
        copy_blocks_launch(key_cache, value_cache, on_device).run()


def copy_blocks_launch(key_cache: Tensor, value_cache: Tensor, pairs: Tensor) -> Launch:
    """pairs [num_pairs, 2] int64, contiguous; no two of them may touch one block."""
    tiles = _tiles(key_cache)
    block_size, num_kv_heads = key_cache.shape[1:3]
    return Launch(
        copy_blocks_kernel,
        (len(pairs), block_size, triton.cdiv(num_kv_heads, tiles["TILE_HEADS"])),
        {
            **cache_arguments(key_cache, value_cache),
            "pairs_ptr": pairs,
            "ALIGN": alignment(key_cache, value_cache),
            **tiles,
        },
        num_warps=_num_warps(tiles, key_cache),
    )


def waves(pairs: Iterable[tuple[int, int]]) -> list[list[tuple[int, int]]]:
    """Cut where a pair reads or writes what was written before it, or overwrites what
    was read: inside a wave the order makes no difference."""
    result: list[list[tuple[int, int]]] = []
    read: set[int] = set()
    written: set[int] = set()
    for source, destination in pairs:
        # Nothing to copy, and no reason to begin a new wave.
        if source == destination:
            continue
        if not result or {source, destination} & written or destination in read:
            result.append([])
            read, written = set(), set()
        result[-1].append((source, destination))
        read.add(source)
        written.add(destination)
    return result


def _tiles(cache: Tensor) -> dict[str, int]:
    """A tile is at most 4096 numbers, and at least 16 bytes for each of the 64 threads
    in a warp of AMD's (NVIDIA has 32): a token smaller than that is padded with heads
    that do not exist, so that the others are moved in loads of full width."""
    num_kv_heads, head_dim = cache.shape[2:]
    tile_dim = triton.next_power_of_2(head_dim)
    # 3 heads of 8 float16 numbers are 48 bytes, and the tile has 64 heads of which 61
    # are masked. 8 heads of 128 are 2 KiB, and the tile is those.
    at_least = max(1, 64 * 16 // (tile_dim * cache.element_size()))
    tile_heads = max(at_least, triton.next_power_of_2(num_kv_heads))
    return {
        "NUM_KV_HEADS": num_kv_heads,
        "HEAD_DIM": head_dim,
        "TILE_DIM": tile_dim,
        "TILE_HEADS": min(tile_heads, max(1, 4096 // tile_dim)),
    }


def _num_warps(tiles: dict[str, int], cache: Tensor) -> int:
    """So few that each thread has 16 bytes to move at once, of 64 in AMD's warps."""
    tile_bytes = tiles["TILE_HEADS"] * tiles["TILE_DIM"] * cache.element_size()
    return max(1, min(4, tile_bytes // (64 * 16)))
