"""Exercise 11: share one sequence among many programs, and read what was compiled.

Grade with `course grade 11`. As in exercise 10, only the functions are called: kernels,
their arguments, tiles and order of work are yours, and a function that writes tensors
must do its work in kernels of this file. (Your kernel of task 10.3 is a good beginning:
copy it.) For scores, pools, tables, memory and sums the rules of exercise 10 hold, and
that of task 10.3 for bfloat16; products may be made in any way. The tasks do not depend
on each other, but that attend_in_splits needs 11.1. What is given is the same after the
call, except that attend_splits writes part and lse, merge_splits writes out, and
attend_wide writes out, as attend_narrow does.


Task 11.1   attend_splits(part, lse, query, key_cache, value_cache, block_tables,
                          seq_lens, scale) -> None
            merge_splits(out, part, lse) -> None

With one program per sequence and KV head, 4 sequences leave most of a GPU idle. So the
keys of each sequence are cut into num_splits parts, which are attended to at the same
time by as many programs, and a second kernel merges what they found.

    part    [num_seqs, num_heads, num_splits, head_dim]   float32: the attention over
            the keys of this split alone, as if there were no others, so divided by its
            own sum of weights; zeros if it has no key
    lse     [num_seqs, num_heads, num_splits]             float32: the natural logarithm
            of the sum of exp(score) over these keys, score being scaled; -inf if it
            has no key
    out     [num_seqs, num_heads, head_dim]               float32, float16 or bfloat16
    query, key_cache, value_cache, block_tables, seq_lens as in task 10.3: any strides,
            any dtype, groups of any size; scale is a float

part, lse and out are contiguous, come filled with NaN, and are written in place.
num_splits is 1 or more, and need not be a power of two. Which keys a split has is up to
you: each key of a sequence belongs to exactly one, and no split has more than
seq_len / num_splits of them, rounded up to a multiple of 64. A sequence of 3 tokens in
8 splits leaves some without a key, and one of length 0 all.

merge_splits is also given parts that attend_splits didn't make: any part and lse with
the meaning above, whatever the scores. Where every lse is -inf, out is zeros.


Task 11.2   pick_num_splits(num_programs, max_seq_len, num_processors, min_tokens,
                            max_splits) -> int

How many splits? Plain Python, on five ints: a GPU runs num_processors programs at a
time. Without splits there would be num_programs of them, each with max_seq_len tokens;
in s splits there are num_programs * s with ceil(max_seq_len / s) tokens each. All that
start together are a wave, and the next wave starts when it has ended, so that the step
takes

    ceil(num_programs * s / num_processors) * ceil(max_seq_len / s)

tokens of time. Return the s with the least time, the smallest one if several have it,
among 1 and all s <= max_splits for which s * min_tokens <= max_seq_len. All numbers are
1 or more; num_programs and max_seq_len may be 0, which gives 1.


attend_in_splits is there already: with 11.1 and 11.2 it is a complete decode step, and
takes the place of attend_grouped.


Task 11.3   attend_wide(out, query, key_cache, value_cache, block_tables, seq_lens)
            -> None

attend_narrow below is right. But compiled for sm_80 its kernel reads K and V two bytes
at a time: one number. Copy it, find out why, and write attend_wide, which gives the
same results and reads 16 bytes with each load. This is what both are given:

    out, query                [num_seqs, num_heads, head_dim]   float16, contiguous
    key_cache, value_cache    [pool_size, block_size, num_kv_heads, head_dim]   float16;
                              may be kv[:, 0] and kv[:, 1] of one buffer
    block_tables, seq_lens    int32, contiguous
    head_dim                  a multiple of 8: 64, but 120 as well
    strides                   of a cache: 1 for the last axis; for the others multiples
                              of 8, not the same for keys and values
    starts                    every tensor begins at a multiple of 16 bytes

The grader compiles the kernel for sm_80, for what it was launched with, and reads the
PTX: every load from key_cache and from value_cache must be 16 bytes wide, for head_dim
64 and for 120, where Triton knows less than you do. To
look for yourself, in Python at the top of the repository (in a notebook of chapters/
the path begins with ../):

    from paged_attention.kernels.compile_apart import Job, compile_in_subprocess
    job = Job("exercises/ex11_fast_kernel.py:narrow_kernel", arguments, "sm_80")
    [compiled] = compile_in_subprocess(job)
    print(compiled.load_bytes)   # width -> number of loads; compiled.assembly is PTX

arguments is a dict with all arguments of the kernel by name; of its tensors only shape,
strides and dtype count.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

MIN_TOKENS = 256  # below that a split costs more than it gives
MAX_SPLITS = 64


# BEGIN NOTES
@triton.jit
def part_kernel(
    part_ptr,  # [num_seqs, num_heads, num_splits, head_dim]   float32, contiguous
    lse_ptr,  # [num_seqs, num_heads, num_splits]   float32, contiguous
    query_ptr,  # [num_seqs, num_heads, head_dim]
    key_ptr,  # [pool_size, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]
    lens_ptr,  # [num_seqs]
    scale,
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
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    """Program (i, j, s): KV head j of sequence i, split s of its keys."""
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    row = tl.arange(0, TILE_ROWS)
    dim = tl.arange(0, TILE_DIM)
    head = kv_head * GROUP + row
    is_row, is_dim = row < GROUP, dim < HEAD_DIM
    mask = is_row[:, None] & is_dim[None, :]
    query = tl.load(
        query_ptr
        + seq * query_stride_seq
        + head[:, None] * query_stride_head
        + dim[None, :] * query_stride_dim,
        mask=mask,
        other=0.0,
    ).to(COMPUTE)
    # Whole tiles for each split, so that only the last one of all is ragged.
    seq_len = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    span = tl.cdiv(tl.cdiv(seq_len, TILE_KEYS), num_splits) * TILE_KEYS
    first = split * span
    stop = tl.minimum(first + span, seq_len)
    largest = tl.full([TILE_ROWS], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS], tl.float32)
    acc = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    for start in range(first, stop, TILE_KEYS):
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < stop
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
    # A split without keys writes too, or the merge would read what lay there before:
    # 0 / 1, and -inf + log(1).
    total = tl.where(total > 0, total, 1.0)
    num_heads = tl.num_programs(1) * GROUP
    place = (seq * num_heads + head) * num_splits + split
    tl.store(
        part_ptr + place[:, None] * HEAD_DIM + dim[None, :],
        acc / total[:, None],
        mask=mask,
    )
    tl.store(lse_ptr + place, largest + tl.log(total), mask=is_row)


@triton.jit
def join_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]   contiguous
    part_ptr,  # [num_seqs, num_heads, num_splits, head_dim]   float32, contiguous
    lse_ptr,  # [num_seqs, num_heads, num_splits]   float32, contiguous
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
    place = row * num_splits + split
    lse = tl.load(lse_ptr + place, mask=is_split, other=float("-inf"))
    largest = tl.max(lse, axis=0)
    # Of a row without any key all are -inf, and -inf - (-inf) would be NaN.
    weight = tl.exp(lse - tl.where(largest > float("-inf"), largest, 0.0))
    part = tl.load(
        part_ptr + place[:, None] * HEAD_DIM + dim[None, :],
        mask=is_split[:, None] & is_dim[None, :],
        other=0.0,
    )
    total = tl.sum(weight, axis=0)
    result = tl.sum(part * weight[:, None], axis=0) / tl.where(total > 0, total, 1.0)
    out = out_ptr + row * HEAD_DIM + dim
    tl.store(out, result.to(out_ptr.dtype.element_ty), mask=is_dim)


# END NOTES
def attend_splits(
    part: Tensor,
    lse: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    scale: float,
) -> None:
    # BEGIN SOLUTION 11.1: attend to each split of the keys
    num_seqs, num_heads, num_splits, head_dim = part.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    group = num_heads // num_kv_heads
    compute = {
        torch.float32: tl.float32,
        torch.float16: tl.float16,
        torch.bfloat16: tl.bfloat16,
    }[query.dtype]
    is_interpreted = not isinstance(part_kernel, triton.JITFunction)
    if is_interpreted and query.dtype == torch.bfloat16:
        compute = tl.float32
    part_kernel[(num_seqs, num_kv_heads, num_splits)](
        part,
        lse,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        scale,
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
    # END SOLUTION


def merge_splits(out: Tensor, part: Tensor, lse: Tensor) -> None:
    # BEGIN SOLUTION 11.1: merge the splits of each row
    num_seqs, num_heads, num_splits, head_dim = part.shape
    join_kernel[(num_seqs * num_heads,)](
        out,
        part,
        lse,
        num_splits,
        HEAD_DIM=head_dim,
        TILE_SPLITS=triton.next_power_of_2(num_splits),
        TILE_DIM=triton.next_power_of_2(head_dim),
    )
    # END SOLUTION


def pick_num_splits(
    num_programs: int,
    max_seq_len: int,
    num_processors: int,
    min_tokens: int,
    max_splits: int,
) -> int:
    # BEGIN SOLUTION 11.2: the splits with the least time
    def time_of(num_splits: int) -> int:
        waves = triton.cdiv(num_programs * num_splits, num_processors)
        return waves * triton.cdiv(max_seq_len, num_splits)

    most = min(max_splits, max_seq_len // min_tokens)
    # min takes the first of equals.
    return min(range(1, max(1, most) + 1), key=time_of)
    # END SOLUTION


def attend_in_splits(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    scale: float | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """A decode step in two launches; the arguments are those of task 10.3."""
    num_seqs, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_kv_heads} KV heads do not divide {num_heads} heads")
    if num_splits is None:
        # From sizes alone: to ask for the longest of seq_lens would wait for the GPU.
        max_seq_len = block_tables.shape[1] * block_size
        num_processors = 1
        if query.is_cuda:
            properties = torch.cuda.get_device_properties(query.device)
            num_processors = properties.multi_processor_count
        num_programs = num_seqs * num_kv_heads
        num_splits = pick_num_splits(
            num_programs, max_seq_len, num_processors, MIN_TOKENS, MAX_SPLITS
        )
    shape, device = (num_seqs, num_heads, num_splits), query.device
    part = torch.empty(*shape, head_dim, dtype=torch.float32, device=device)
    lse = torch.empty(shape, dtype=torch.float32, device=device)
    out = torch.empty(query.shape, dtype=query.dtype, device=device)
    if scale is None:
        scale = head_dim**-0.5
    caches = (key_cache, value_cache)
    attend_splits(part, lse, query, *caches, block_tables, seq_lens, scale)
    merge_splits(out, part, lse)
    return out


# One compilation for all models: their sizes are ordinary numbers here.
@triton.jit(
    do_not_specialize=[
        "head_dim",
        "key_stride_block",
        "key_stride_slot",
        "key_stride_head",
        "key_stride_dim",
        "value_stride_block",
        "value_stride_slot",
        "value_stride_head",
        "value_stride_dim",
    ]
)
def narrow_kernel(
    out_ptr,  # [num_seqs, num_heads, head_dim]   contiguous
    query_ptr,  # as out_ptr
    key_ptr,  # [pool_size, block_size, num_kv_heads, head_dim]
    value_ptr,
    tables_ptr,  # [num_seqs, max_num_blocks]   int32, contiguous
    lens_ptr,  # [num_seqs]   int32
    scale,
    max_num_blocks,
    group,  # query heads per KV head
    head_dim,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    key_stride_dim,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    value_stride_dim,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Program (i, j): query head j of sequence i."""
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // group
    query_row = (seq * tl.num_programs(1) + head) * head_dim
    dim = tl.arange(0, TILE_DIM)
    is_dim = dim < head_dim
    query = tl.load(query_ptr + query_row + dim, mask=is_dim, other=0.0)
    seq_len = tl.load(lens_ptr + seq)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([TILE_DIM], tl.float32)
    for start in range(0, seq_len, TILE_KEYS):
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < seq_len
        mask = is_key[:, None] & is_dim[None, :]
        entry = seq * max_num_blocks + position // BLOCK_SIZE
        block_id = tl.load(tables_ptr + entry, mask=is_key, other=0).to(tl.int64)
        offset = position % BLOCK_SIZE
        key_row = (
            block_id * key_stride_block
            + offset * key_stride_slot
            + kv_head * key_stride_head
        )
        key_place = key_ptr + key_row[:, None] + dim[None, :] * key_stride_dim
        key = tl.load(key_place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(key * query[None, :], axis=1) * scale
        scores = tl.where(is_key, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        total = total * shrink + tl.sum(weights, axis=0)
        value_row = (
            block_id * value_stride_block
            + offset * value_stride_slot
            + kv_head * value_stride_head
        )
        value_place = value_ptr + value_row[:, None] + dim[None, :] * value_stride_dim
        value = tl.load(value_place, mask=mask, other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(value * weights[:, None], axis=0)
        largest = new_largest
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + query_row + dim, result.to(tl.float16), mask=is_dim)


def attend_narrow(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> None:
    num_seqs, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    narrow_kernel[(num_seqs, num_heads)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        head_dim**-0.5,
        block_tables.shape[1],
        num_heads // num_kv_heads,
        head_dim,
        *key_cache.stride(),
        *value_cache.stride(),
        BLOCK_SIZE=block_size,
        TILE_KEYS=64,
        TILE_DIM=triton.next_power_of_2(head_dim),
    )


# BEGIN NOTES
@triton.jit
def wide_kernel(
    out_ptr,  # all arguments as of narrow_kernel
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    max_num_blocks,
    group,
    key_stride_block,
    key_stride_slot,
    key_stride_head,
    value_stride_block,
    value_stride_slot,
    value_stride_head,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // group
    query_row = (seq * tl.num_programs(1) + head) * HEAD_DIM
    dim = tl.arange(0, TILE_DIM)
    # 120 is known when compiling, so the mask is known to be the same for 8 in a row.
    is_dim = dim < HEAD_DIM
    query = tl.load(query_ptr + query_row + dim, mask=is_dim, other=0.0)
    seq_len = tl.load(lens_ptr + seq)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([TILE_DIM], tl.float32)
    for start in range(0, seq_len, TILE_KEYS):
        position = start + tl.arange(0, TILE_KEYS)
        is_key = position < seq_len
        mask = is_key[:, None] & is_dim[None, :]
        entry = seq * max_num_blocks + position // BLOCK_SIZE
        block_id = tl.load(tables_ptr + entry, mask=is_key, other=0).to(tl.int64)
        offset = position % BLOCK_SIZE
        key_row = (
            block_id * key_stride_block
            + offset * key_stride_slot
            + kv_head * key_stride_head
        )
        # A promise: Triton itself would know only of multiples of 16.
        key_row = tl.multiple_of(key_row, 8)
        key_place = key_ptr + key_row[:, None] + dim[None, :]
        key = tl.load(key_place, mask=mask, other=0.0).to(tl.float32)
        scores = tl.sum(key * query[None, :], axis=1) * scale
        scores = tl.where(is_key, scores, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, axis=0))
        shrink = tl.exp(largest - new_largest)
        weights = tl.exp(scores - new_largest)
        total = total * shrink + tl.sum(weights, axis=0)
        value_row = (
            block_id * value_stride_block
            + offset * value_stride_slot
            + kv_head * value_stride_head
        )
        value_row = tl.multiple_of(value_row, 8)
        value_place = value_ptr + value_row[:, None] + dim[None, :]
        value = tl.load(value_place, mask=mask, other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(value * weights[:, None], axis=0)
        largest = new_largest
    result = acc / tl.where(total > 0, total, 1.0)
    tl.store(out_ptr + query_row + dim, result.to(tl.float16), mask=is_dim)


# END NOTES
def attend_wide(
    out: Tensor,
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> None:
    # BEGIN SOLUTION 11.3: as attend_narrow, with loads of 16 bytes
    num_seqs, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    wide_kernel[(num_seqs, num_heads)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        head_dim**-0.5,
        block_tables.shape[1],
        num_heads // num_kv_heads,
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE_KEYS=64,
        TILE_DIM=triton.next_power_of_2(head_dim),
    )
    # END SOLUTION


# BEGIN NOTES
# 11.1  A part needs two numbers to be merged: what it found, and how much it weighs.
# With the log-sum-exp as the weight, parts are merged like values of a softmax over
# lse: exp(lse - largest) / sum. float32 for both, whatever the dtype of the cache: lse
# is as large as a score, and at 2,000 a float16 number is off by one half. In vLLM and
# FlashInfer the scratch looks the same; the package keeps (sum of values, largest,
# total), which saves a logarithm and a division.
# Every program writes, also one without keys: torch.empty holds what somebody else left
# there, and NaN times a weight of 0 is NaN.
# Alternatives: each split takes every num_splits-th tile; spans of ceil(n / splits)
# keys, where every split is ragged; a merge that loops over the splits.
#
# 11.2  Trying all s is at most max_splits steps. The tempting formula is
# ceil(num_processors / num_programs): fill the GPU once. For 5 programs on 8 processors
# it says 2, and 10 programs are two waves of half the length: nothing gained. s = 3 are
# two waves of a third. FlashAttention's heuristic looks for the same, as the share of
# processors that are busy. The smallest of equals, since each split is one more part to
# write and to merge.
#
# 11.3  A load is as wide as what is known, when compiling, to be contiguous, aligned
# and under one mask:
#   contiguous  dim * key_stride_dim: neighbours only if that stride is known to be 1.
#               An argument that is 1 is made a constant, unless do_not_specialize.
#   aligned     the pointer (16 bytes) plus sums of index * stride. Strides that are
#               multiples of 16 are marked as such, again unless do_not_specialize; a
#               stride of 120 isn't, though 240 bytes are 15 times 16: loads of 2 bytes.
#               tl.multiple_of(row, 8) says it. On a scalar argument, like
#               key_stride_head itself, the same hint has no effect here; on what is
#               computed from it, it has. Strides as constexpr do it too, and cost a
#               compilation for each layout.
#   one mask    dim < head_dim changes nobody knows where; dim < 120 at a multiple of 8.
# A hint that doesn't hold makes the GPU fault, or read the wrong numbers; the
# interpreter doesn't look at it. A tile with few numbers for each thread narrows the
# loads as well: 32 keys of 16 numbers in 128 threads are 8 bytes each.
# END NOTES
