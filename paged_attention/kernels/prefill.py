"""Chunks of new tokens over paged history: any number of query tokens per sequence.

A tile holds some query tokens of one sequence with all heads of a group, one row each.
Each row sees the keys up to its own position, at most window of them. Nobody on the
host needs to know how long each chunk is: there are as many programs as could be
needed, and each finds its sequence by halving query_start_loc.
"""

# Inside a kernel Triton's types hold, not Python's.
# pyright: reportArgumentType=false, reportGeneralTypeIssues=false
# pyright: reportIndexIssue=false

import torch
import triton
import triton.language as tl
from torch import Tensor

from paged_attention.kernels.decode import (
    add_tile,
    attend_keys,
    load_keys_and_values,
    load_rows,
)
from paged_attention.kernels.launch import (
    Launch,
    alignment,
    batch_arguments,
    cache_arguments,
    compute_dtype,
    strides,
    tile_of,
)


@triton.jit
def find_tile(
    tile, starts_ptr, starts_stride, num_seqs, halvings, TOKENS: tl.constexpr
):
    """Of the sequence that this tile belongs to: its index, the first of its query
    tokens that is in the tile, where they start, and how many they are.

    Sequence i gets the tiles from start // TOKENS + i on: never fewer than it needs,
    at times one more, whose first token is then behind the last.
    """
    # Chunks of 20, 3 and 40 tokens in tiles of 16: starts are 0, 20, 23, so the tiles
    # of the three begin at 0, 2, 3. vLLM's `find_seq_idx` searches the same way.
    low = tl.zeros([], tl.int32)
    high = num_seqs - 1
    # As many rounds for all programs; one that has found its place stays there.
    for _ in range(halvings):
        middle = (low + high + 1) // 2
        start = tl.load(starts_ptr + middle * starts_stride).to(tl.int32)
        is_before = start // TOKENS + middle <= tile
        low = tl.where(is_before, middle, low)
        high = tl.where(is_before, high, middle - 1)
    start = tl.load(starts_ptr + low * starts_stride).to(tl.int32)
    stop = tl.load(starts_ptr + (low + 1) * starts_stride).to(tl.int32)
    first_token = (tile - (start // TOKENS + low)) * TOKENS
    return low.to(tl.int64), first_token, start, stop - start


@triton.jit
def locate_rows(row, GROUP: tl.constexpr, HEADS: tl.constexpr):
    """As `locate_heads`, with the heads of the group repeated for each query token."""
    # A group of 3: rows 0, 1, 2 are the heads of one token, row 3 is the next one's.
    tiles_per_group: tl.constexpr = (GROUP + HEADS - 1) // HEADS
    kv_head = (tl.program_id(1) // tiles_per_group).to(tl.int64)
    in_group = (tl.program_id(1) % tiles_per_group) * HEADS + row % HEADS
    num_heads = (tl.num_programs(1) // tiles_per_group) * GROUP
    return kv_head, kv_head * GROUP + in_group, in_group < GROUP, num_heads


@triton.jit
def is_finite(value):
    """Of each row [keys, TILE_DIM] whether all its numbers are; [keys]."""
    return tl.min((tl.abs(value) < float("inf")).to(tl.int32), axis=1) == 1


@triton.jit
def attend_causally(
    query,  # [rows, TILE_DIM]   COMPUTE; rows that are none are zeros
    position,  # [rows]   each row sees the keys up to its own position
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    kv_head,  # int64
    table_ptr,  # [max_num_blocks]   int32 or int64: moved to the sequence already
    first, middle, stop,  # every row sees first … middle - 1, some what comes then
    scale, window,
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    table_stride_block,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr, ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """What `attend_keys` gives, but each row has keys of its own."""
    acc, largest, total = attend_keys(
        query, key_ptr, value_ptr, kv_head, table_ptr, first, middle, scale,
        key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
        value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
        table_stride_block, HEAD_DIM, BLOCK_SIZE, TILE_KEYS, TILE_DIM, ALIGN, COMPUTE,
    )  # fmt: skip
    # One tile or two: nothing to fetch ahead, and that would take registers.
    for start in tl.range(middle, stop, TILE_KEYS, num_stages=1):
        key_position = start + tl.arange(0, TILE_KEYS)
        is_key = key_position < stop
        key, value = load_keys_and_values(
            key_ptr, value_ptr, kv_head, table_ptr, key_position, is_key,
            key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
            value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
            table_stride_block, HEAD_DIM, BLOCK_SIZE, TILE_DIM, ALIGN, COMPUTE,
        )  # fmt: skip
        # A value that is NaN must not reach rows that don't see it, and a weight of 0
        # does not hold it back. So it is left out, and its score says NaN instead.
        is_whole = is_finite(value)
        _, value = load_keys_and_values(
            key_ptr, value_ptr, kv_head, table_ptr, key_position, is_key & is_whole,
            key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
            value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
            table_stride_block, HEAD_DIM, BLOCK_SIZE, TILE_DIM, ALIGN, COMPUTE,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_whole[None, :], scores, float("nan"))
        # Within the chunk it is a triangle.
        distance = position[:, None] - key_position[None, :]
        is_seen = (distance >= 0) & (distance < window)
        scores = tl.where(is_seen, scores, float("-inf"))
        acc, largest, total = add_tile(acc, largest, total, scores, value, COMPUTE)
    return acc, largest, total


@triton.jit(do_not_specialize=["scale", "window", "num_seqs", "halvings"])
def prefill_kernel(
    out_ptr,  # [num_tokens, num_heads, head_dim]   contiguous
    query_ptr,  # [num_tokens, num_heads, head_dim]
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32 or int64
    lens_ptr,  # [num_seqs]   int32 or int64
    starts_ptr,  # [num_seqs + 1]   int32 or int64: query_start_loc
    scale, window, num_seqs, halvings,
    query_stride_token, query_stride_head, query_stride_dim,
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    tables_stride_seq, tables_stride_block, lens_stride, starts_stride,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    HEADS: tl.constexpr,  # of a group, in one tile
    TILE_ROWS: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_DIM: tl.constexpr,
    ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Program (i, j): tile i of query tokens, HEADS query heads of one KV head."""
    TOKENS: tl.constexpr = TILE_ROWS // HEADS
    seq, first_token, start, query_len = find_tile(
        tl.program_id(0), starts_ptr, starts_stride, num_seqs, halvings, TOKENS
    )
    if first_token >= query_len:  # the one tile too many
        return
    # Row by row: the heads of the first token, then those of the next.
    row = tl.arange(0, TILE_ROWS)
    token = first_token + row // HEADS
    kv_head, head, is_head, num_heads = locate_rows(row, GROUP, HEADS)
    is_row = is_head & (row < TOKENS * HEADS) & (token < query_len)
    place = (start + token).to(tl.int64)
    query_row = place * query_stride_token + head * query_stride_head
    query_row = tl.multiple_of(query_row, ALIGN)
    query = load_rows(
        query_ptr, query_row, is_row, query_stride_dim, HEAD_DIM, TILE_DIM, COMPUTE
    )
    # The chunk ends where its sequence ends; before it lies what was computed earlier.
    seq_len = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    context_len = seq_len - query_len
    stop = context_len + tl.minimum(first_token + TOKENS, query_len)  # or below 0
    first = tl.maximum(context_len + first_token + 1 - window, 0)
    # All rows see what the first one sees; through a window, each begins elsewhere.
    seen_by_all = tl.where(window < stop, 0, context_len + first_token + 1 - first)
    middle = first + tl.maximum(seen_by_all, 0) // TILE_KEYS * TILE_KEYS
    acc, _, total = attend_causally(
        query, context_len + token,
        key_ptr, value_ptr, kv_head, tables_ptr + seq * tables_stride_seq,
        first, middle, stop, scale, window,
        key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
        value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
        tables_stride_block,
        HEAD_DIM, BLOCK_SIZE, TILE_KEYS, TILE_DIM, ALIGN, COMPUTE,
    )  # fmt: skip
    # An empty sequence has no total; one that saw a NaN has NaN.
    result = acc / tl.where(total == 0, 1.0, total)[:, None]
    dim = tl.arange(0, TILE_DIM)
    out = out_ptr + (place * num_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    mask = is_row[:, None] & (dim < HEAD_DIM)[None, :]
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
    """Programs for full tiles and one more per sequence: lengths are on the GPU."""
    num_tokens, num_heads, head_dim = query.shape
    num_seqs, num_kv_heads = len(seq_lens), key_cache.shape[2]
    group = num_heads // num_kv_heads
    is_wide = query.element_size() == 4  # float32
    tile_rows = 64 if head_dim <= 128 else 32  # 64 KiB of shared memory on sm_75
    if is_wide:
        tile_rows = 16
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
            "halvings": num_seqs.bit_length(),  # enough to be down to one sequence
            "GROUP": group,
            "HEAD_DIM": head_dim,
            "BLOCK_SIZE": key_cache.shape[1],
            "ALIGN": alignment(query, key_cache, value_cache),
            "HEADS": heads,
            "TILE_ROWS": tile_rows,
            "TILE_KEYS": 16 if is_wide else 32,  # more would spill registers
            "TILE_DIM": tile_of(head_dim),
            "COMPUTE": compute_dtype(query.dtype, prefill_kernel),
        },
        # Found by compiling: with these nothing spills, from sm_80 on, and a thread has
        # 16 bytes to load at once (tests).
        num_warps=8 if head_dim > (64 if is_wide else 128) else 4,
        num_stages=(1 if head_dim > 64 else 2) if is_wide else 3,
    )
