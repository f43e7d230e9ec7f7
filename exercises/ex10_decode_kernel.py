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
    raise NotImplementedError("exercise 10.1: walk the block table of one sequence")


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


def attend_one_head(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> None:
    raise NotImplementedError("exercise 10.2: a kernel for any length")


def attend_grouped(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
) -> Tensor:
    raise NotImplementedError("exercise 10.3: a kernel for groups, and its launch")


# pristine stub, sha256 of the lines above: 3644ff5a04c156c9
