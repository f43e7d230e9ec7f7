"""Decode for few long sequences: several programs share one, then merge.

With one program per sequence and KV head a small batch leaves most of a GPU idle. Here
the keys of each sequence are cut into num_splits spans. Each span leaves its sum of
values, largest score and total; that is all it takes to merge softmaxes exactly.
"""

# Inside a kernel Triton's types hold, not Python's.
# pyright: reportOperatorIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_attention.kernels.decode import (
    attend_keys,
    head_tiles,
    load_rows,
    locate_heads,
)
from paged_attention.kernels.launch import (
    Launch,
    alignment,
    batch_arguments,
    cache_arguments,
    compute_dtype,
    num_warps,
    strides,
    tile_of,
)

# vLLM's Triton kernel always cuts into the same number of segments; here the number
# grows as the batch gets smaller, within these bounds.
MIN_KEYS_PER_SPLIT = 256  # below that a merge costs more than it gives
MAX_SPLITS = 64
PROGRAMS_PER_PROCESSOR = 4


@triton.jit(do_not_specialize=["scale", "window"])
def split_kernel(
    part_ptr,  # [num_seqs, num_heads, num_splits, head_dim]   float32, contiguous
    largest_ptr,  # [num_seqs, num_heads, num_splits]   float32, contiguous
    total_ptr,  # as largest
    query_ptr,  # [num_seqs, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32 or int64
    lens_ptr,  # [num_seqs]   int32 or int64
    scale, window,
    query_stride_seq, query_stride_head, query_stride_dim,
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    tables_stride_seq, tables_stride_block, lens_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_GROUP: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_DIM: tl.constexpr,
    ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Program (i, j, s): as program (i, j) of decode, for span s of the keys."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head, head, is_head, num_heads = locate_heads(GROUP, TILE_GROUP)
    query_row = seq * query_stride_seq + head * query_stride_head
    query_row = tl.multiple_of(query_row, ALIGN)
    query = load_rows(
        query_ptr, query_row, is_head, query_stride_dim, HEAD_DIM, TILE_DIM, COMPUTE
    )
    # Spans are whole tiles, so that only the last one of all is ragged: 100 keys in
    # tiles of 16 and 4 splits are 7 tiles, in spans of 2, which begin at 0, 32, 64, 96.
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    seq_len = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    first_of_all = tl.maximum(seq_len - window, 0)
    num_tiles = tl.cdiv(seq_len - first_of_all, TILE_KEYS)
    span = tl.cdiv(num_tiles, num_splits) * TILE_KEYS
    first = first_of_all + split * span
    acc, largest, total = attend_keys(
        query,
        key_ptr, value_ptr, kv_head,
        tables_ptr + seq * tables_stride_seq,
        first, tl.minimum(first + span, seq_len),
        scale,
        key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
        value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
        tables_stride_block,
        HEAD_DIM, BLOCK_SIZE, TILE_KEYS, TILE_DIM, ALIGN, COMPUTE,
    )  # fmt: skip
    # An empty span writes too: zeros, and -inf as its largest score.
    place = (seq * num_heads + head) * num_splits + split
    dim = tl.arange(0, TILE_DIM)
    mask = is_head[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(part_ptr + place[:, None] * HEAD_DIM + dim[None, :], acc, mask=mask)
    tl.store(largest_ptr + place, largest, mask=is_head)
    tl.store(total_ptr + place, total, mask=is_head)


@triton.jit
def merge_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]   contiguous
    part_ptr,  # [num_seqs, num_heads, num_splits, head_dim]   float32, contiguous
    largest_ptr,  # [num_seqs, num_heads, num_splits]   float32, contiguous
    total_ptr,  # as largest
    num_splits,
    HEAD_DIM: tl.constexpr,
    TILE_SPLITS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Program i: one head of one sequence."""
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, TILE_SPLITS)
    dim = tl.arange(0, TILE_DIM)
    is_split, is_dim = split < num_splits, dim < HEAD_DIM
    place = row * num_splits + split  # [TILE_SPLITS]
    largest = tl.load(largest_ptr + place, mask=is_split, other=float("-inf"))
    total = tl.load(total_ptr + place, mask=is_split, other=0.0)
    # A sequence of length 0 has no largest score: -inf - (-inf) would be NaN.
    largest_of_all = tl.max(largest, axis=0)
    # How much each split counts, all measured against the same largest score.
    weight = tl.exp2(
        largest - tl.where(largest_of_all > float("-inf"), largest_of_all, 0.0)
    )
    part = tl.load(
        part_ptr + place[:, None] * HEAD_DIM + dim[None, :],
        mask=is_split[:, None] & is_dim[None, :],
        other=0.0,
    )
    acc = tl.sum(part * weight[:, None], axis=0)  # [TILE_DIM]
    total_of_all = tl.sum(total * weight, axis=0)
    result = acc / tl.where(total_of_all > 0, total_of_all, 1.0)
    out = out_ptr + row * HEAD_DIM + dim
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=is_dim)


def split_decode(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None = None,
    num_splits: int = 8,
) -> Tensor:
    """As `decode`, the keys of each sequence shared by num_splits programs."""
    num_seqs, num_heads, head_dim = query.shape
    shape = (num_seqs, num_heads, num_splits)
    # Not zeros: each program writes its part, empty spans too.
    part = torch.empty(*shape, head_dim, dtype=torch.float32, device=query.device)
    largest, total = torch.empty(2, *shape, dtype=torch.float32, device=query.device)
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    split_launch(
        part,
        largest,
        total,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        scale,
        window,
    ).run()
    merge_launch(out, part, largest, total).run()
    return out


def split_launch(
    part: Tensor,
    largest: Tensor,
    total: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
    window: int | None = None,
) -> Launch:
    """As `decode_launch`, once for each split.

    part            [num_seqs, num_heads, num_splits, head_dim]   float32
    largest, total  [num_seqs, num_heads, num_splits]             float32
    """
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    tiles = head_tiles(num_heads // num_kv_heads, head_dim, query.dtype)
    tiles_per_group = triton.cdiv(tiles["GROUP"], tiles["TILE_GROUP"])
    return Launch(
        split_kernel,
        (num_seqs, num_kv_heads * tiles_per_group, part.shape[2]),
        {
            "part_ptr": part,
            "largest_ptr": largest,
            "total_ptr": total,
            "query_ptr": query,
            **strides("query", query, "seq", "head", "dim"),
            **cache_arguments(key_cache, value_cache),
            **batch_arguments(block_tables, seq_lens, scale, window),
            **tiles,
            "BLOCK_SIZE": key_cache.shape[1],
            "ALIGN": alignment(query, key_cache, value_cache),
            "COMPUTE": compute_dtype(query.dtype, split_kernel),
        },
        num_warps=num_warps(query.dtype),
    )


def merge_launch(out: Tensor, part: Tensor, largest: Tensor, total: Tensor) -> Launch:
    """A program for each head of each sequence, over what `split_launch` has left."""
    num_seqs, num_heads, num_splits, head_dim = part.shape
    tile_splits, tile_dim = triton.next_power_of_2(num_splits), tile_of(head_dim)
    return Launch(
        merge_kernel,
        (num_seqs * num_heads,),
        {
            "out_ptr": out,
            "part_ptr": part,
            "largest_ptr": largest,
            "total_ptr": total,
            "num_splits": num_splits,
            "HEAD_DIM": head_dim,
            "TILE_SPLITS": tile_splits,
            "TILE_DIM": tile_dim,
        },
        # So few that each thread has 16 bytes to load at once, of 64 in AMD's warps.
        num_warps=max(1, min(4, tile_splits * tile_dim * 4 // (64 * 16))),
    )


def choose_num_splits(num_programs: int, max_seq_len: int, num_processors: int) -> int:
    """How many splits keep a GPU busy, given the programs that one pass would have."""
    wanted = triton.cdiv(num_processors * PROGRAMS_PER_PROCESSOR, max(1, num_programs))
    useful = triton.cdiv(max_seq_len, MIN_KEYS_PER_SPLIT)
    return max(1, min(wanted, useful, MAX_SPLITS))
