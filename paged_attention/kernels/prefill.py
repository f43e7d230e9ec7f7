"""Chunks of new tokens over paged history: any number of query tokens per sequence.

A tile holds some query tokens of one sequence with all heads of a group, one row each.
Each row sees the keys up to its own position, at most window of them. Nobody on the
host needs to know how long each chunk is: there are as many programs as could be
needed, and each finds its sequence by halving query_start_loc.
"""

# Inside a kernel Triton's types hold, not Python's.
# pyright: reportArgumentType=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_attention.kernels.launch import (
    Launch,
    batch_arguments,
    cache_arguments,
    compute_dtype,
    strides,
    tile_of,
)


@triton.jit
def find_sequence(
    tile, starts_ptr, starts_stride, num_seqs, halvings, TOKENS: tl.constexpr
):
    """The sequence that this tile belongs to.

    Sequence i gets the tiles from start // TOKENS + i on: never fewer than it needs.
    """
    low = tl.zeros([], tl.int32)
    high = num_seqs - 1
    for _ in range(halvings):
        middle = (low + high + 1) // 2
        start = tl.load(starts_ptr + middle * starts_stride).to(tl.int32)
        is_before = start // TOKENS + middle <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle - 1)
    return low


@triton.jit(do_not_specialize=["scale", "window", "num_seqs", "halvings"])
def prefill_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim]   contiguous
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32 or int64
    lens_ptr,  # [num_seqs]   int32 or int64
    starts_ptr,  # [num_seqs + 1]   int32 or int64: query_start_loc
    scale,
    window,
    num_seqs,
    halvings,
    query_stride_token,
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
    starts_stride,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,  # of a group, in one tile
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Program (i, j): tile i of query tokens, HEADS query heads of one KV head."""
    TOKENS: tl.constexpr = TILE_ROWS // HEADS
    tile = tl.program_id(0)
    seq = find_sequence(tile, starts_ptr, starts_stride, num_seqs, halvings, TOKENS)
    start = tl.load(starts_ptr + seq * starts_stride).to(tl.int32)
    query_len = tl.load(starts_ptr + (seq + 1) * starts_stride).to(tl.int32) - start
    first_token = (tile - (start // TOKENS + seq)) * TOKENS
    if first_token >= query_len:
        return

    tiles_per_group: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = (tl.program_id(1) // tiles_per_group).to(tl.int64)
    row = tl.arange(0, TILE_ROWS)
    token = first_token + row // HEADS
    in_group = (tl.program_id(1) % tiles_per_group) * HEADS + row % HEADS
    is_row = (row < TOKENS * HEADS) & (token < query_len) & (in_group < GROUP)
    place = (start + token).to(tl.int64)
    head = kv_head * GROUP + in_group
    dim = tl.arange(0, TILE_DIM)
    is_dim = dim < HEAD_DIM
    mask = is_row[:, None] & is_dim[None, :]
    query = tl.load(
        query_ptr
        + place[:, None] * query_stride_token
        + head[:, None] * query_stride_head
        + dim[None, :] * query_stride_dim,
        mask=mask,
        other=0.0,
    ).to(COMPUTE)

    # Where each row stands, and the span of keys that some row of the tile sees.
    seq_len = tl.load(lens_ptr + seq.to(tl.int64) * lens_stride).to(tl.int32)
    context_len = seq_len - query_len
    position = context_len + token
    last_token = tl.minimum(first_token + TOKENS, query_len)
    stop = context_len + last_token  # of an empty sequence not above 0
    first = tl.maximum(context_len + first_token + 1 - window, 0)
    table_ptr = tables_ptr + seq.to(tl.int64) * tables_stride_seq
    key_ptr += kv_head * key_stride_head
    value_ptr += kv_head * value_stride_head

    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    for start_key in range(first, stop, TILE_KEYS):
        key_position = start_key + tl.arange(0, TILE_KEYS)
        is_key = key_position < stop
        block_id = tl.load(
            table_ptr + (key_position // BLOCK_SIZE) * tables_stride_block,
            mask=is_key,
            other=0,
        ).to(tl.int64)  # a block_id times a stride can pass 2**31
        offset = key_position % BLOCK_SIZE
        key_mask = is_key[:, None] & is_dim[None, :]

        key_row = block_id * key_stride_block + offset * key_stride_slot
        key = tl.load(
            key_ptr + key_row[:, None] + dim[None, :] * key_stride_dim,
            mask=key_mask,
            other=0.0,
        ).to(COMPUTE)
        distance = position[:, None] - key_position[None, :]
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where((distance >= 0) & (distance < window), scores, float("-inf"))

        # A row may see no key of this tile: -inf - (-inf) would be NaN.
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        origin = tl.where(new_largest > float("-inf"), new_largest, 0.0)
        shrink = tl.exp2(largest - origin)
        weights = tl.exp2(scores - origin[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        largest = new_largest

        value_row = block_id * value_stride_block + offset * value_stride_slot
        value = tl.load(
            value_ptr + value_row[:, None] + dim[None, :] * value_stride_dim,
            mask=key_mask,
            other=0.0,  # a weight of 0 times NaN would be NaN
        ).to(COMPUTE)
        product = tl.dot(weights.to(COMPUTE), value, input_precision="ieee")
        acc = acc * shrink[:, None] + product

    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    num_heads = (tl.num_programs(1) // tiles_per_group) * GROUP
    out = out_ptr + (place * num_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=mask)


def prefill(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """As `attention.paged_attention` with query_start_loc, unchecked."""
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    prefill_launch(
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        query_start_loc,
        scale,
        window,
    ).run()
    return out


def prefill_launch(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    scale: float,
    window: int | None = None,
) -> Launch:
    num_tokens, num_heads, head_dim = query.shape
    num_seqs, num_kv_heads = len(seq_lens), key_cache.shape[2]
    group = num_heads // num_kv_heads
    is_wide = query.element_size() == 4
    tile_rows = 32 if is_wide or head_dim > 128 else 64  # of 64 KiB on sm_75
    heads = min(group, tile_rows)
    num_tiles = num_tokens // (tile_rows // heads) + num_seqs
    return Launch(
        prefill_kernel,
        (num_tiles, num_kv_heads * triton.cdiv(group, heads)),
        {
            "out_ptr": out,
            "query_ptr": query,
            **strides("query", query, "token", "head", "dim"),
            **cache_arguments(key_cache, value_cache),
            **batch_arguments(block_tables, seq_lens, scale, window),
            "starts_ptr": query_start_loc,
            **strides("starts", query_start_loc, ""),
            "num_seqs": num_seqs,
            "halvings": num_seqs.bit_length(),
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": key_cache.shape[1],
            "HEADS": heads,
            "TILE_ROWS": tile_rows,
            "TILE_KEYS": 16 if is_wide else 32,  # more would spill registers
            "TILE_DIM": tile_of(head_dim),
            "COMPUTE": compute_dtype(query.dtype, prefill_kernel),
        },
        # Found by compiling: with these nothing spills, from sm_80 on (tests).
        num_warps=8 if head_dim > 128 else 4,
        num_stages=2 if is_wide and head_dim <= 64 else 3,
    )
