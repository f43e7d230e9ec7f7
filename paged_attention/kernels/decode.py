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
    alignment,
    batch_arguments,
    cache_arguments,
    compute_dtype,
    num_warps,
    strides,
    tile_keys,
    tile_of,
)


# The programs of one launch differ in program_id alone. From it each finds its part.
@triton.jit
def locate_heads(GROUP: tl.constexpr, TILE_GROUP: tl.constexpr):
    """The KV head of this program, the query heads of its rows, which of them exist,
    and how many there are in all."""
    # A group larger than a tile is shared by several programs. Mostly it is smaller: 32
    # heads over 8 KV heads are groups of 4 in tiles of 16 rows, and 12 rows idle.
    tiles_per_group: tl.constexpr = (GROUP + TILE_GROUP - 1) // TILE_GROUP
    # 64 bits, because it is multiplied by strides.
    kv_head = (tl.program_id(1) // tiles_per_group).to(tl.int64)
    first = (tl.program_id(1) % tiles_per_group) * TILE_GROUP
    in_group = first + tl.arange(0, TILE_GROUP)  # [TILE_GROUP]
    num_heads = (tl.num_programs(1) // tiles_per_group) * GROUP
    return kv_head, kv_head * GROUP + in_group, in_group < GROUP, num_heads


@triton.jit
def load_rows(
    ptr,
    row,  # [rows]   where each begins, in numbers from ptr
    is_row,  # [rows]   only these are read
    stride_dim,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """[rows, TILE_DIM]   COMPUTE; zeros where there is no row, or no such number."""
    dim = tl.arange(0, TILE_DIM)
    return tl.load(
        ptr + row[:, None] + dim[None, :] * stride_dim,
        mask=is_row[:, None] & (dim < HEAD_DIM)[None, :],
        other=0.0,  # a weight of 0 times NaN would be NaN
    ).to(COMPUTE)


@triton.jit
def find_keys(
    table_ptr, position, is_key, table_stride_block, BLOCK_SIZE: tl.constexpr
):
    """The block of each position, and the place in it: the walk through the table."""
    # Blocks of 4 and the table [7, 2, 9]: position 6 is block 2, offset 2.
    block_id = tl.load(
        table_ptr + (position // BLOCK_SIZE) * table_stride_block,
        mask=is_key,  # behind the last key the table may say anything
        other=0,
    )
    # A block_id times a stride can pass 2**31.
    return block_id.to(tl.int64), position % BLOCK_SIZE


@triton.jit
def load_keys_and_values(
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    kv_head,  # int64
    table_ptr,  # [max_num_blocks]   int32 or int64: moved to the sequence already
    position,  # [keys]   in the sequence
    is_key,  # [keys]   only these are read
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    table_stride_block,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_DIM: tl.constexpr,
    ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """A tile of keys and one of values, [keys, TILE_DIM], from wherever they lie."""
    block_id, offset = find_keys(
        table_ptr, position, is_key, table_stride_block, BLOCK_SIZE
    )
    row = block_id * key_stride_block + offset * key_stride_slot  # [keys]
    # multiple_of computes nothing. It lets the compiler load many numbers at once.
    row = tl.multiple_of(row + kv_head * key_stride_head, ALIGN)
    key = load_rows(key_ptr, row, is_key, key_stride_dim, HEAD_DIM, TILE_DIM, COMPUTE)
    row = block_id * value_stride_block + offset * value_stride_slot  # [keys]
    row = tl.multiple_of(row + kv_head * value_stride_head, ALIGN)
    value = load_rows(
        value_ptr, row, is_key, value_stride_dim, HEAD_DIM, TILE_DIM, COMPUTE
    )
    return key, value


@triton.jit
def add_tile(acc, largest, total, scores, value, COMPUTE: tl.constexpr):
    """The running softmax with one tile more; a score of -inf is no key at all."""
    new_largest = tl.maximum(largest, tl.max(scores, axis=1))
    # A row that has seen no key yet: -inf - (-inf) would be NaN.
    origin = tl.where(new_largest > float("-inf"), new_largest, 0.0)
    # What was summed up against a smaller score is scaled down to the new one.
    shrink = tl.exp2(largest - origin)
    weights = tl.exp2(scores - origin[:, None])  # [rows, keys]
    total = total * shrink + tl.sum(weights, axis=1)
    # "ieee" is for float32, which would else lose 13 of its 23 bits (TF32).
    product = tl.dot(weights.to(COMPUTE), value, input_precision="ieee")
    return acc * shrink[:, None] + product, new_largest, total


@triton.jit
def attend_keys(
    query,  # [rows, TILE_DIM]   COMPUTE; rows without a head are zeros
    key_ptr,  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_ptr,
    kv_head,  # int64
    table_ptr,  # [max_num_blocks]   int32 or int64: moved to the sequence already
    first, stop,  # positions first … stop - 1 are read
    scale,  # times log2(e), since exp2 is what the hardware has
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    table_stride_block,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr, ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """The running softmax: (sum of values [rows, TILE_DIM], largest score, total)."""
    largest = tl.full([query.shape[0]], float("-inf"), tl.float32)
    total = tl.zeros([query.shape[0]], tl.float32)
    acc = tl.zeros([query.shape[0], TILE_DIM], tl.float32)
    for start in range(first, stop, TILE_KEYS):
        # Tiles follow one another from first on, not from a block's edge: through a
        # window a tile may well begin in the middle of a block.
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < stop
        key, value = load_keys_and_values(
            key_ptr, value_ptr, kv_head, table_ptr, position, is_key,
            key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
            value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
            table_stride_block, HEAD_DIM, BLOCK_SIZE, TILE_DIM, ALIGN, COMPUTE,
        )  # fmt: skip
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        # A key that is not there was loaded as zeros, and 0 is a score like any other.
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        acc, largest, total = add_tile(acc, largest, total, scores, value, COMPUTE)
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
    scale, window,  # a number no sequence reaches, if there is no window
    query_stride_seq, query_stride_head, query_stride_dim,
    key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
    value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
    tables_stride_seq, tables_stride_block, lens_stride,
    GROUP: tl.constexpr,  # query heads per KV head
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    TILE_GROUP: tl.constexpr, TILE_KEYS: tl.constexpr, TILE_DIM: tl.constexpr,
    ALIGN: tl.constexpr, COMPUTE: tl.constexpr,
):  # fmt: skip
    """Program (i, j): sequence i, and TILE_GROUP query heads of one KV head."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head, head, is_head, num_heads = locate_heads(GROUP, TILE_GROUP)
    query_row = seq * query_stride_seq + head * query_stride_head
    query_row = tl.multiple_of(query_row, ALIGN)
    query = load_rows(
        query_ptr, query_row, is_head, query_stride_dim, HEAD_DIM, TILE_DIM, COMPUTE
    )
    seq_len = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    acc, _, total = attend_keys(
        query,
        key_ptr, value_ptr, kv_head,
        tables_ptr + seq * tables_stride_seq,
        tl.maximum(seq_len - window, 0), seq_len,  # what is before is never touched
        scale,
        key_stride_block, key_stride_slot, key_stride_head, key_stride_dim,
        value_stride_block, value_stride_slot, value_stride_head, value_stride_dim,
        tables_stride_block,
        HEAD_DIM, BLOCK_SIZE, TILE_KEYS, TILE_DIM, ALIGN, COMPUTE,
    )  # fmt: skip
    # An empty sequence has no total: zeros, not 0 / 0.
    result = acc / tl.where(total > 0, total, 1.0)[:, None]  # [TILE_GROUP, TILE_DIM]
    dim = tl.arange(0, TILE_DIM)
    place = out_ptr + (seq * num_heads + head)[:, None] * HEAD_DIM + dim[None, :]
    mask = is_head[:, None] & (dim < HEAD_DIM)[None, :]
    tl.store(place, result.to(out_ptr.dtype.element_ty), mask=mask)


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
    """A program for each sequence and each tile of query heads that share a KV head."""
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
            "ALIGN": alignment(query, key_cache, value_cache),
            "COMPUTE": compute_dtype(query.dtype, decode_kernel),
        },
        num_warps=num_warps(query.dtype),
    )


def head_tiles(group: int, head_dim: int, dtype: torch.dtype) -> dict[str, int]:
    """What a decode kernel is compiled for, besides block size and alignment.

    A group of 4 with a head_dim of 128 in float16: 16 rows, 64 keys, 128 numbers.
    """
    return {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "TILE_GROUP": min(MAX_TILE_ROWS, tile_of(group)),
        "TILE_KEYS": tile_keys(head_dim, dtype),
        "TILE_DIM": tile_of(head_dim),
    }
