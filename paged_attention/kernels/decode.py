"""One step of decode: each program walks the block table of one sequence.

A program holds the query heads that share a KV head as the rows of one matrix, so that
a key is read once for all of them and tensor cores do the products. It takes TILE_KEYS
keys at a time, whatever the block size: each key finds its own block. The softmax is
kept running: whenever a larger score comes, what was summed up before is scaled down.
"""

# Inside a kernel Triton's types hold, not Python's.
# pyright: reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_attention.kernels.launch import (
    MAX_TILE_ROWS,
    Launch,
    batch_arguments,
    cache_arguments,
    compute_dtype,
    num_warps,
    strides,
    tile_keys,
    tile_of,
)


@triton.jit
def attend_keys(
    query,  # [rows, TILE_DIM]   COMPUTE; rows without a head are zeros
    key_ptr,  # [num_blocks, block_size, head_dim]: moved to the KV head already
    value_ptr,
    table_ptr,  # [max_num_blocks]   int32 or int64: moved to the sequence already
    first,  # positions first … stop - 1 are read
    stop,
    scale,  # times log2(e), since exp2 is what the hardware has
    key_stride_block,
    key_stride_slot,
    key_stride_dim,
    value_stride_block,
    value_stride_slot,
    value_stride_dim,
    table_stride_block,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """The running softmax: (sum of values [rows, TILE_DIM], largest score, total)."""
    dim = tl.arange(0, TILE_DIM)
    is_dim = dim < HEAD_DIM
    largest = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros([query.shape[0], TILE_DIM], tl.float32)
    for start in range(first, stop, TILE_KEYS):
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < stop
        block_id = tl.load(
            table_ptr + (position // BLOCK_SIZE) * table_stride_block,
            mask=is_key,
            other=0,
        ).to(tl.int64)  # a block_id times a stride can pass 2**31
        offset = position % BLOCK_SIZE
        mask = is_key[:, None] & is_dim[None, :]

        key_row = block_id * key_stride_block + offset * key_stride_slot
        key = tl.load(
            key_ptr + key_row[:, None] + dim[None, :] * key_stride_dim,
            mask=mask,
            other=0.0,
        ).to(COMPUTE)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))

        # At least one key of a tile is real, so the new largest is finite.
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp2(largest - new_largest)
        weights = tl.exp2(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest

        value_row = block_id * value_stride_block + offset * value_stride_slot
        value = tl.load(
            value_ptr + value_row[:, None] + dim[None, :] * value_stride_dim,
            mask=mask,
            other=0.0,  # a weight of 0 times NaN would be NaN
        ).to(COMPUTE)
        product = tl.dot(weights.to(COMPUTE), value, input_precision="ieee")
        acc = acc * shrink[:, None] + product
    return acc, largest, total


# A scale or window of its own for each model must not mean a compilation for each.
@triton.jit(do_not_specialize=["scale", "window"])
def decode_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]   contiguous
    query_ptr,  # [num_seqs, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32 or int64
    lens_ptr,  # [num_seqs]   int32 or int64
    scale,
    window,  # a number no sequence reaches, if there is none
    query_stride_seq,
    query_stride_head,
    query_stride_dim,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    key_stride_dim,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    value_stride_dim,
    tables_stride_seq,
    tables_stride_block,
    lens_stride,
    GROUP: tl.constexpr,  # query heads per KV head
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_GROUP: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Program (i, j): sequence i, and TILE_GROUP query heads of one KV head."""
    seq = tl.program_id(0).to(tl.int64)
    tiles_per_group: tl.constexpr = (GROUP + TILE_GROUP - 1) // TILE_GROUP
    kv_head = (tl.program_id(1) // tiles_per_group).to(tl.int64)
    in_group = (tl.program_id(1) % tiles_per_group) * TILE_GROUP + tl.arange(
        0, TILE_GROUP
    )
    head = kv_head * GROUP + in_group
    dim = tl.arange(0, TILE_DIM)
    mask = (in_group < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    query = tl.load(
        query_ptr
        + seq * query_stride_seq
        + head[:, None] * query_stride_head
        + dim[None, :] * query_stride_dim,
        mask=mask,
        other=0.0,
    ).to(COMPUTE)

    seq_len = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    acc, _, total = attend_keys(
        query,
        key_ptr + kv_head * key_stride_head,
        value_ptr + kv_head * value_stride_head,
        tables_ptr + seq * tables_stride_seq,
        tl.maximum(seq_len - window, 0),
        seq_len,
        scale,
        key_stride_block,
        key_stride_slot,
        key_stride_dim,
        value_stride_block,
        value_stride_slot,
        value_stride_dim,
        tables_stride_block,
        HEAD_DIM,
        BLOCK_SIZE,
        TILE_KEYS,
        TILE_DIM,
        COMPUTE,
    )
    # An empty sequence has no total: zeros, not 0 / 0.
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    num_heads = (tl.num_programs(1) // tiles_per_group) * GROUP
    out = out_ptr + (seq * num_heads + head[:, None]) * HEAD_DIM + dim[None, :]
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=mask)


def decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """As `attention.paged_attention` with one query token per sequence, unchecked."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    decode_launch(
        out, query, key_cache, value_cache, block_tables, seq_lens, scale, window
    ).run()
    return out


def decode_launch(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Launch:
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    tiles = head_tiles(num_heads // num_kv_heads, head_dim, query.dtype)
    tiles_per_group = triton.cdiv(tiles["GROUP"], tiles["TILE_GROUP"])
    return Launch(
        decode_kernel,
        (num_seqs, num_kv_heads * tiles_per_group),
        {
            "out_ptr": out,
            "query_ptr": query,
            **strides("query", query, "seq", "head", "dim"),
            **cache_arguments(key_cache, value_cache),
            **batch_arguments(block_tables, seq_lens, scale, window),
            **tiles,
            "BLOCK_SIZE": key_cache.shape[1],
            "COMPUTE": compute_dtype(query.dtype, decode_kernel),
        },
        num_warps=num_warps(query.dtype),
    )


def head_tiles(group: int, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "TILE_GROUP": min(MAX_TILE_ROWS, tile_of(group)),
        "TILE_KEYS": tile_keys(head_dim, dtype),
        "TILE_DIM": tile_of(head_dim),
    }
