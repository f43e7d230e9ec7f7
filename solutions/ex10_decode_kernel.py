"""Exercise 10: the decode kernel, from one head over full blocks to any model.

Grade with `course grade 10`. Each task is a Triton kernel and a function that launches
it. Only the functions are called: how a kernel is called, which arguments it takes, how
large its tiles are and in what order it works is yours, and a task may use the kernels
of another one. Each function must do its work in kernels of this file; of torch it may
use what makes tensors and tells their shapes. A tile may span several blocks, or a part
of one.

What holds for all tasks:

    scale     each score is the dot product of query and key, times scale; that is
              head_dim ** -0.5, unless 10.3 is given another one
    pools     a cache is NaN wherever no token of these sequences lies, block ids are
              shuffled, and a pool has blocks that nobody uses
    tables    row i of block_tables lists the blocks of sequence i, in order; what it
              doesn't need is -1, which must never be used as a block id
    memory    nothing outside of the tensors is read or written, also where it would do
              no harm; every masked load says what it gives instead (`other`)
    softmax   right for scores of any size: -60,000 for all keys, or 200, or +60,000
    sums      in float32
    tensors   walk_full_blocks writes out, attend_one_head writes out; whatever else is
              given is the same after the call

The grader runs the kernels on the CPU (TRITON_INTERPRET=1) and compiles them for a GPU
(sm_80) as well, which accepts less: tl.arange needs a power of two that is known when
compiling, tl.dot a sum over at least 16 numbers of two bytes, and a kernel can use
nothing from outside but other kernels and tl.constexpr. Where there is a GPU, they run
there too. To try one yourself:

    TRITON_INTERPRET=1 python -i exercises/ex10_decode_kernel.py


Task 10.1   walk_full_blocks(out, query, key_cache, value_cache, block_tables,
                             num_blocks) -> None

One query head, one program per sequence: attention over num_blocks[i] full blocks.

    out           [num_seqs, head_dim]              float32; comes filled with NaN
    query         [num_seqs, head_dim]              float32
    key_cache     [pool_size, block_size, head_dim] float32   value_cache the same
    block_tables  [num_seqs, max_num_blocks]        int32
    num_blocks    [num_seqs]                        int32; 1 or more each

block_size and head_dim are powers of two here; all tensors are contiguous. The stub
holds the arguments of a kernel that will do, and its launch; write the kernel.


Task 10.2   attend_one_head(out, query, key_cache, value_cache, block_tables,
                            seq_lens) -> None

As 10.1, for sequences of any length, and with holes.

    seq_lens      [num_seqs]   int32, in tokens; 0 or more each

block_size and head_dim may be any number from 1 on: 3, 12 and 20 as well. A sequence of
length 0 gets zeros, and its table holds no block.

Any entry of a table may be a hole: -1 in place of a block that was given back. (Some
models keep the first tokens and the last ones, and drop what lies between.) The tokens
that stood there are gone, and the result is the attention over all others; seq_lens
still counts them, and positions stay as they were. A hole may be the first block, the
last one, or many in a row; if nothing is left, the result is zeros. All else is as in
10.1.


Task 10.3   attend_grouped(query, key_cache, value_cache, block_tables, seq_lens, *,
                           scale=None) -> torch.Tensor

A whole model's decode step: one query token for each sequence, in a new tensor.

    query         [num_seqs, num_heads, head_dim]   float32, float16 or bfloat16
    key_cache     [pool_size, block_size, num_kv_heads, head_dim]   value_cache the
                  same; both in the dtype of query
    block_tables  [num_seqs, max_num_blocks]        int32 or int64
    seq_lens      [num_seqs]                        int32 or int64; 0 gives zeros
    result        as query, in its dtype

Query head h reads KV head h // (num_heads // num_kv_heads); ValueError if num_kv_heads
doesn't divide num_heads. Groups of 1, 3, 7 or 32 heads, head_dim up to 256 (80, 96 and
120 too), any block_size. Nothing is contiguous for sure: key_cache and value_cache may
be kv[:, 0] and kv[:, 1] of one buffer, query may be transposed, block_tables a part of
a wider table, and the stride of a block so large that block_id * stride passes 2**31.

Both products are matrix products by tl.dot: the query heads of a group are its rows.

    float16    the numbers are multiplied in float16, on tensor cores: the kernel,
               compiled for sm_80, contains their instructions, mma, for both products
               (tl.dot of float16 tiles becomes mma, of float32 tiles in full doesn't)
    float32    in full float32, not in TF32, which keeps 10 bits of 23: say
               input_precision="ieee"
    bfloat16   either way. The interpreter keeps bfloat16 as its bits and calculates
               with those: there, cast to float32 right after the load. (A kernel is
               interpreted if it is not an instance of triton.JITFunction.)

A dtype that a kernel is given as a tl.constexpr is one of Triton's: tl.float16, not
torch.float16.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def walk_kernel(
    out_ptr,  # [num_seqs, head_dim]   float32
    query_ptr,  # [num_seqs, head_dim]   float32
    key_ptr,  # [pool_size, block_size, head_dim]   float32
    value_ptr,  # as key_ptr
    tables_ptr,  # [num_seqs, max_num_blocks]   int32
    num_blocks_ptr,  # [num_seqs]   int32
    scale,
    max_num_blocks,  # the width of a table
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
):
    """Program i: sequence i."""
    # BEGIN SOLUTION 10.1: walk the block table of one sequence
    seq = tl.program_id(0)
    offset = tl.arange(0, BLOCK_SIZE)[:, None]
    dim = tl.arange(0, HEAD_DIM)[None, :]
    query = tl.load(query_ptr + seq * HEAD_DIM + dim)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([HEAD_DIM], tl.float32)
    for i in range(tl.load(num_blocks_ptr + seq)):
        # The whole of paging: first the block's id is loaded, then it has an address.
        block_id = tl.load(tables_ptr + seq * max_num_blocks + i).to(tl.int64)
        place = (block_id * BLOCK_SIZE + offset) * HEAD_DIM + dim
        key = tl.load(key_ptr + place)
        scores = tl.sum(query * key, axis=1) * scale  # [BLOCK_SIZE]
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        # What was summed up so far was measured from the old largest score.
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        total = total * shrink + tl.sum(weights, axis=0)
        value = tl.load(value_ptr + place)
        acc = acc * shrink + tl.sum(weights[:, None] * value, axis=0)
        largest = new_largest
    tl.store(out_ptr + seq * HEAD_DIM + tl.arange(0, HEAD_DIM), acc / total)
    # END SOLUTION


def walk_full_blocks(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    num_blocks: Tensor,
) -> None:
    num_seqs, head_dim = query.shape
    walk_kernel[(num_seqs,)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        num_blocks,
        head_dim**-0.5,
        block_tables.shape[1],
        BLOCK_SIZE=key_cache.shape[1],
        HEAD_DIM=head_dim,
    )


# BEGIN NOTES
@triton.jit
def ragged_kernel(
    out_ptr,  # [num_seqs, head_dim]   float32, contiguous as all others
    query_ptr,
    key_ptr,  # [pool_size, block_size, head_dim]   float32
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32
    lens_ptr,  # [num_seqs]   int32
    scale,
    max_num_blocks,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_BLOCK: tl.constexpr,  # powers of two that hold a block and a head
    TILE_DIM: tl.constexpr,
):
    seq = tl.program_id(0)
    offset = tl.arange(0, TILE_BLOCK)
    dim = tl.arange(0, TILE_DIM)
    is_dim = dim < HEAD_DIM
    query = tl.load(query_ptr + seq * HEAD_DIM + dim, mask=is_dim, other=0.0)
    seq_len = tl.load(lens_ptr + seq)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([TILE_DIM], tl.float32)
    for i in range(tl.cdiv(seq_len, BLOCK_SIZE)):
        block_id = tl.load(tables_ptr + seq * max_num_blocks + i).to(tl.int64)
        row = block_id * BLOCK_SIZE + offset
        # Neither behind the block, where the tile is padded, nor behind the last token.
        is_key = (offset < BLOCK_SIZE) & (i * BLOCK_SIZE + offset < seq_len)
        is_key = is_key & (block_id >= 0)
        mask = is_key[:, None] & is_dim[None, :]
        place = row[:, None] * HEAD_DIM + dim[None, :]
        key = tl.load(key_ptr + place, mask=mask, other=0.0)
        scores = tl.sum(query[None, :] * key, axis=1) * scale
        scores = tl.where(is_key, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        # As long as there were holes only, -inf - (-inf) would be NaN.
        origin = tl.where(new_largest > float("-inf"), new_largest, 0.0)
        shrink = tl.exp(largest - origin)
        weights = tl.exp(scores - origin)
        total = total * shrink + tl.sum(weights, axis=0)
        # A weight of 0 is not enough: 0 * NaN is NaN. The value itself must be 0.
        value = tl.load(value_ptr + place, mask=mask, other=0.0)
        acc = acc * shrink + tl.sum(weights[:, None] * value, axis=0)
        largest = new_largest
    # Where there was no key at all: 0 / 1, not 0 / 0.
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + seq * HEAD_DIM + dim, result, mask=is_dim)


# END NOTES
def attend_one_head(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> None:
    # BEGIN SOLUTION 10.2: a kernel for any length
    num_seqs, head_dim = query.shape
    block_size = key_cache.shape[1]
    ragged_kernel[(num_seqs,)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        head_dim**-0.5,
        block_tables.shape[1],
        BLOCK_SIZE=block_size,
        HEAD_DIM=head_dim,
        TILE_BLOCK=triton.next_power_of_2(block_size),
        TILE_DIM=triton.next_power_of_2(head_dim),
    )
    # END SOLUTION


# BEGIN NOTES
@triton.jit
def grouped_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]
    query_ptr,  # [num_seqs, num_heads, head_dim]
    key_ptr,  # [pool_size, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]
    lens_ptr,  # [num_seqs]
    scale,
    out_stride_seq,
    out_stride_head,
    out_stride_dim,
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
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,  # the dtype that tl.dot multiplies
):
    """Program (i, j): KV head j of sequence i, and all query heads that read it."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    row = tl.arange(0, TILE_ROWS)
    dim = tl.arange(0, TILE_DIM)
    head = kv_head * GROUP + row
    is_dim = dim < HEAD_DIM
    mask = (row < GROUP)[:, None] & is_dim[None, :]
    query = tl.load(
        query_ptr
        + seq * query_stride_seq
        + head[:, None] * query_stride_head
        + dim[None, :] * query_stride_dim,
        mask=mask,
        other=0.0,
    ).to(COMPUTE)
    seq_len = tl.load(lens_ptr + seq * lens_stride)
    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    for start in range(0, seq_len, TILE_KEYS):
        # A tile has nothing to do with a block: each key looks up its own.
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < seq_len
        block_id = tl.load(
            tables_ptr
            + seq * tables_stride_seq
            + (position // BLOCK_SIZE) * tables_stride_block,
            mask=is_key,
            other=0,
        ).to(tl.int64)
        offset = position % BLOCK_SIZE
        key_mask = is_key[:, None] & is_dim[None, :]
        place = (
            block_id * key_stride_block
            + offset * key_stride_slot
            + kv_head * key_stride_head
        )
        key = tl.load(
            key_ptr + place[:, None] + dim[None, :] * key_stride_dim,
            mask=key_mask,
            other=0.0,
        ).to(COMPUTE)
        # [TILE_ROWS, TILE_DIM] x [TILE_DIM, TILE_KEYS]
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        scores = tl.where(is_key[None, :], scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=1))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest[:, None])
        total = total * shrink + tl.sum(weights, axis=1)
        place = (
            block_id * value_stride_block
            + offset * value_stride_slot
            + kv_head * value_stride_head
        )
        value = tl.load(
            value_ptr + place[:, None] + dim[None, :] * value_stride_dim,
            mask=key_mask,
            other=0.0,
        ).to(COMPUTE)
        product = tl.dot(weights.to(COMPUTE), value, input_precision="ieee")
        acc = acc * shrink[:, None] + product
        largest = new_largest
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(
        out_ptr
        + seq * out_stride_seq
        + head[:, None] * out_stride_head
        + dim[None, :] * out_stride_dim,
        result.to(out_ptr.dtype.element_ty),
        mask=mask,
    )


# END NOTES
def attend_grouped(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    # BEGIN SOLUTION 10.3: a kernel for groups, and its launch
    num_seqs, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_kv_heads} KV heads do not divide {num_heads} heads")
    group = num_heads // num_kv_heads
    compute = {
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }[query.dtype]
    is_interpreted = not isinstance(grouped_kernel, triton.JITFunction)
    if is_interpreted and query.dtype == torch.bfloat16:
        compute = tl.float32
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grouped_kernel[(num_seqs, num_kv_heads)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        head_dim**-0.5 if scale is None else scale,
        *out.stride(),
        *query.stride(),
        *key_cache.stride(),
        *value_cache.stride(),
        *block_tables.stride(),
        *seq_lens.stride(),
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE_ROWS=max(16, triton.next_power_of_2(group)),
        TILE_KEYS=32,
        TILE_DIM=max(16, triton.next_power_of_2(head_dim)),
        COMPUTE=compute,
    )
    return out
    # END SOLUTION


# BEGIN NOTES
# 10.1  One score per key, a running largest score, total and sum of values: the same
# three numbers as in the pure torch of chapter 08. exp(-inf - x) = 0 makes the first
# block need no case of its own. Alternatives: two passes over the keys (the largest
# score first) read K twice; exp2 with the scale times log2(e) saves a multiplication
# per score, since exp2 is what the hardware has.
#
# 10.2  Three masks with three reasons: the tile is wider than the block, wider than the
# head, or reaches behind the last token. One of them forgotten reads a neighbour's
# numbers: the next block's first token, the next token's first numbers. -inf belongs to
# the scores after the product: a key of zeros gives a score of 0, a good one. A hole is
# a fourth reason, and brings what the others can't: a block, or a tile, without a key.
# If nothing came before it, -inf - (-inf) is NaN, hence `origin`. Or one leaves such
# a block out with `if block_id >= 0:`. A tile that spans blocks (10.3) has neither
# the padding nor the short inner loops of a small block; there each lane has its hole.
#
# 10.3  The group is what makes decode a matrix product: GROUP rows that share each key
# that was read. A tensor core takes 16 rows at a time, so with a group of 3 most of it
# is idle; reading is what decode waits for, so that costs nothing. (Triton 3.9 takes a
# tile of 4 rows too and pads it itself. What it does not take, of 2-byte numbers, is a
# sum over less than 16: hence tiles of at least 16 keys and 16 numbers of a head.)
# The scale is that of head_dim, not of TILE_DIM. `* scale` on the float32 scores, not
# on the query: scaled in float16 the query would be rounded once more.
# (block_id * stride) in int64: at 16 tokens, 8 heads, head_dim 128 the first block id
# whose offset passes 2**31 is 131072.
# `tl.dot(weights.to(COMPUTE), …)`: weights are in 0 … 1, where float16 keeps 11 bits,
# and the sums stay float32. An accumulator in float16 would overflow at 65504.
# Alternatives: `acc=` of tl.dot; a loop over blocks with a tile padded to 16 keys (at
# block_size 1 with 15 of 16 lanes idle); K loaded as [TILE_DIM, TILE_KEYS].
# The package cuts groups above 64 into several programs and keeps tiles to 16 KiB.
# END NOTES
