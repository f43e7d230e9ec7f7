"""Right in another way: splits take turns, exp2, merged in a loop, constant strides."""

import torch
import triton
import triton.language as tl

MIN_TOKENS, MAX_SPLITS = 256, 64


@triton.jit
def turns_kernel(
    part_ptr,
    lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,  # times log2(e)
    num_splits,
    query_seq,
    query_head,
    query_dim,
    key_block,
    key_slot,
    key_head,
    key_dim,
    value_block,
    value_slot,
    value_head,
    value_dim,
    tables_seq,
    tables_block,
    lens_stride,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    split = tl.program_id(0)
    seq = tl.program_id(1).to(tl.int64)
    kv_head = tl.program_id(2).to(tl.int64)
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIMS)
    head = kv_head * GROUP + row
    in_head = dim < HEAD_DIM
    mine = (row < GROUP)[:, None] & in_head[None, :]
    place = seq * query_seq + head[:, None] * query_head + dim[None, :] * query_dim
    query = tl.load(query_ptr + place, mask=mine, other=0.0).to(COMPUTE)
    length = tl.load(lens_ptr + seq * lens_stride).to(tl.int32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, DIMS], tl.float32)
    for first in range(split * KEYS, length, num_splits * KEYS):
        position = first + tl.arange(0, KEYS)
        is_key = position < length
        entry = seq * tables_seq + position // BLOCK_SIZE * tables_block
        block = tl.load(tables_ptr + entry, mask=is_key, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        mask = is_key[:, None] & in_head[None, :]
        key_row = block * key_block + slot * key_slot + kv_head * key_head
        key_place = key_row[:, None] + dim[None, :] * key_dim
        key = tl.load(key_ptr + key_place, mask=mask, other=0.0).to(COMPUTE)
        value_row = block * value_block + slot * value_slot + kv_head * value_head
        value_place = value_row[:, None] + dim[None, :] * value_dim
        value = tl.load(value_ptr + value_place, mask=mask, other=0.0).to(COMPUTE)
        score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        score = tl.where(is_key[None, :], score, float("-inf"))
        highest = tl.maximum(largest, tl.max(score, axis=1))
        weight = tl.exp2(score - highest[:, None])
        shrink = tl.exp2(largest - highest)
        total = total * shrink + tl.sum(weight, axis=1)
        acc = acc * shrink[:, None]
        acc = tl.dot(weight.to(COMPUTE), value, acc, input_precision="ieee")
        largest = highest
    any_key = total > 0
    total = tl.where(any_key, total, 1.0)
    place = (seq * NUM_HEADS + head) * num_splits + split
    where = part_ptr + place[:, None] * HEAD_DIM + dim[None, :]
    tl.store(where, acc / total[:, None], mask=mine)
    # Back from base 2 to e.
    lse = (largest + tl.log2(total)) * 0.6931471805599453
    lse = tl.where(any_key, lse, float("-inf"))
    tl.store(lse_ptr + place, lse, mask=row < GROUP)


@triton.jit
def running_merge_kernel(
    out_ptr,
    part_ptr,
    lse_ptr,
    num_splits,
    num_heads,
    HEAD_DIM: tl.constexpr,
    DIMS: tl.constexpr,
):
    row = tl.program_id(1).to(tl.int64) * num_heads + tl.program_id(0)
    dim = tl.arange(0, DIMS)
    mask = dim < HEAD_DIM
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([DIMS], tl.float32)
    for split in range(num_splits):
        place = row * num_splits + split
        lse = tl.load(lse_ptr + place)
        if lse > float("-inf"):
            part = tl.load(part_ptr + place * HEAD_DIM + dim, mask=mask, other=0.0)
            highest = tl.maximum(largest, lse)
            weight = tl.exp(lse - highest)
            shrink = tl.exp(largest - highest)
            acc = acc * shrink + part * weight
            total = total * shrink + weight
            largest = highest
    result = (acc / tl.maximum(total, 1e-30)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * HEAD_DIM + dim, result, mask=mask)


def attend_splits(
    part, lse, query, key_cache, value_cache, block_tables, seq_lens, scale
):
    num_seqs, num_heads, num_splits, head_dim = part.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group = num_heads // num_kv_heads
    compute = tl.float16 if query.dtype == torch.float16 else tl.float32
    turns_kernel[(num_splits, num_seqs, num_kv_heads)](
        part,
        lse,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        scale * 1.4426950408889634,
        num_splits,
        *query.stride(),
        *key_cache.stride(),
        *value_cache.stride(),
        *block_tables.stride(),
        *seq_lens.stride(),
        NUM_HEADS=num_heads,
        GROUP=group,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        ROWS=max(16, triton.next_power_of_2(group)),
        KEYS=64,
        DIMS=max(16, triton.next_power_of_2(head_dim)),
        COMPUTE=compute,
    )


def merge_splits(out, part, lse):
    num_seqs, num_heads, num_splits, head_dim = part.shape
    dims = triton.next_power_of_2(head_dim)
    running_merge_kernel[(num_heads, num_seqs)](
        out, part, lse, num_splits, num_heads, HEAD_DIM=head_dim, DIMS=dims, num_warps=2
    )


def pick_num_splits(num_programs, max_seq_len, num_processors, min_tokens, max_splits):
    best, least = 1, -(-num_programs // num_processors) * max_seq_len
    splits = 2
    while splits <= max_splits and splits * min_tokens <= max_seq_len:
        waves = (num_programs * splits + num_processors - 1) // num_processors
        time = waves * ((max_seq_len + splits - 1) // splits)
        if time < least:
            best, least = splits, time
        splits += 1
    return best


def attend_in_splits(
    query,
    key_cache,
    value_cache,
    block_tables,
    seq_lens,
    *,
    scale=None,
    num_splits=None,
):
    num_seqs, num_heads, head_dim = query.shape
    _, block_size, num_kv_heads, _ = key_cache.shape
    if num_heads % num_kv_heads:
        raise ValueError(f"{num_kv_heads} KV heads do not divide {num_heads} heads")
    if num_splits is None:
        longest = block_tables.shape[1] * block_size
        programs = num_seqs * num_kv_heads
        num_splits = pick_num_splits(programs, longest, 1, MIN_TOKENS, MAX_SPLITS)
    part = query.new_empty(
        (num_seqs, num_heads, num_splits, head_dim), dtype=torch.float32
    )
    lse = query.new_empty((num_seqs, num_heads, num_splits), dtype=torch.float32)
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    scale = head_dim**-0.5 if scale is None else scale
    attend_splits(
        part, lse, query, key_cache, value_cache, block_tables, seq_lens, scale
    )
    merge_splits(out, part, lse)
    return out


@triton.jit
def constant_strides_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    width,
    KEY_BLOCK: tl.constexpr,
    KEY_SLOT: tl.constexpr,
    KEY_HEAD: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    VALUE_SLOT: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
):
    head, seq = tl.program_id(0), tl.program_id(1)
    dim = tl.arange(0, DIMS)[None, :]
    in_head = dim < HEAD_DIM
    query_place = (seq * NUM_HEADS + head) * HEAD_DIM + dim
    query = tl.load(query_ptr + query_place, mask=in_head, other=0.0).to(tl.float32)
    length = tl.load(lens_ptr + seq)
    # One sum for each key of a tile; they meet at the end.
    largest = tl.full([KEYS, 1], float("-inf"), tl.float32)
    total = tl.zeros([KEYS, 1], tl.float32)
    acc = tl.zeros([KEYS, DIMS], tl.float32)
    for first in range(0, length, KEYS):
        position = first + tl.arange(0, KEYS)[:, None]
        is_key = position < length
        entry = tables_ptr + seq * width + position // BLOCK_SIZE
        block = tl.load(entry, mask=is_key, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        key_row = block * KEY_BLOCK + slot * KEY_SLOT + head // GROUP * KEY_HEAD
        mask = is_key & in_head
        key = tl.load(key_ptr + (key_row + dim), mask=mask, other=0.0)
        score = tl.sum(query * key, axis=1, keep_dims=True) * scale
        score = tl.where(is_key, score, float("-inf"))
        highest = tl.maximum(largest, score)
        origin = tl.where(highest > float("-inf"), highest, 0.0)
        weight, shrink = tl.exp(score - origin), tl.exp(largest - origin)
        value_row = block * VALUE_BLOCK + slot * VALUE_SLOT
        value_row += head // GROUP * VALUE_HEAD
        value = tl.load(value_ptr + (value_row + dim), mask=mask, other=0.0)
        acc = acc * shrink + weight * value
        total = total * shrink + weight
        largest = highest
    highest = tl.max(largest, axis=0, keep_dims=True)
    weight = tl.exp(largest - tl.where(highest > float("-inf"), highest, 0.0))
    total = tl.sum(total * weight, axis=0, keep_dims=True)
    acc = tl.sum(acc * weight, axis=0, keep_dims=True)
    result = (acc / tl.where(total > 0, total, 1.0)).to(tl.float16)
    tl.store(out_ptr + query_place, result, mask=in_head)


def attend_wide(out, query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    constant_strides_kernel[(num_heads, num_seqs)](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        head_dim**-0.5,
        block_tables.shape[1],
        *key_cache.stride()[:3],
        *value_cache.stride()[:3],
        NUM_HEADS=num_heads,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        KEYS=32,
        DIMS=max(8, triton.next_power_of_2(head_dim)),
    )
