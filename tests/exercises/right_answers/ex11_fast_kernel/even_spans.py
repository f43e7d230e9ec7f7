"""Right in another way: ragged spans, block by block; all heads merged at once."""

import torch
import triton
import triton.language as tl

MIN_TOKENS, MAX_SPLITS = 256, 64


@triton.jit
def span_kernel(
    part_ptr,
    lse_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    QUERY_SEQ: tl.constexpr,
    QUERY_HEAD: tl.constexpr,
    QUERY_DIM: tl.constexpr,
    KEY_BLOCK: tl.constexpr,
    KEY_SLOT: tl.constexpr,
    KEY_HEAD: tl.constexpr,
    KEY_DIM: tl.constexpr,
    VALUE_BLOCK: tl.constexpr,
    VALUE_SLOT: tl.constexpr,
    VALUE_HEAD: tl.constexpr,
    VALUE_DIM: tl.constexpr,
    TABLES_SEQ: tl.constexpr,
    TABLES_BLOCK: tl.constexpr,
    LENS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """One query head; block by block from the middle of a block to that of another."""
    seq, head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    kv_head = head // GROUP
    dim = tl.arange(0, DIMS)
    in_head = dim < HEAD_DIM
    place = seq * QUERY_SEQ + head * QUERY_HEAD + dim * QUERY_DIM
    query = tl.load(query_ptr + place, mask=in_head, other=0.0).to(tl.float32)
    length = tl.load(lens_ptr + seq * LENS)
    span = (length + num_splits - 1) // num_splits
    first = tl.minimum(split * span, length)
    stop = tl.minimum(first + span, length)
    largest = float("-inf")
    total = 0.0
    acc = tl.zeros([DIMS], tl.float32)
    num_blocks = tl.where(stop > first, (stop + BLOCK_SIZE - 1) // BLOCK_SIZE, 0)
    for i in range(first // BLOCK_SIZE, num_blocks):
        block = tl.load(tables_ptr + seq * TABLES_SEQ + i * TABLES_BLOCK).to(tl.int64)
        slot = tl.arange(0, KEYS)
        position = i * BLOCK_SIZE + slot
        mine = (slot < BLOCK_SIZE) & (position >= first) & (position < stop)
        mask = mine[:, None] & in_head[None, :]
        key_row = block * KEY_BLOCK + slot * KEY_SLOT + kv_head * KEY_HEAD
        key_place = key_ptr + key_row[:, None] + dim[None, :] * KEY_DIM
        key = tl.load(key_place, mask=mask, other=0.0).to(tl.float32)
        score = tl.where(mine, tl.sum(query * key, axis=1) * scale, float("-inf"))
        highest = tl.maximum(largest, tl.max(score, axis=0))
        weight, shrink = tl.exp(score - highest), tl.exp(largest - highest)
        value_row = block * VALUE_BLOCK + slot * VALUE_SLOT + kv_head * VALUE_HEAD
        value_place = value_ptr + value_row[:, None] + dim[None, :] * VALUE_DIM
        value = tl.load(value_place, mask=mask, other=0.0).to(tl.float32)
        acc = acc * shrink + tl.sum(weight[:, None] * value, axis=0)
        total = total * shrink + tl.sum(weight, axis=0)
        largest = highest
    place = (seq * tl.num_programs(1) + head) * num_splits + split
    if stop > first:
        acc = acc / total
        largest = largest + tl.log(total)
    tl.store(part_ptr + place * HEAD_DIM + dim, acc, mask=in_head)
    tl.store(lse_ptr + place, largest)


@triton.jit
def all_heads_kernel(
    out_ptr,
    part_ptr,
    lse_ptr,
    num_heads,
    num_splits,
    HEAD_DIM: tl.constexpr,
    HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """All heads of a sequence at once."""
    head = tl.program_id(0).to(tl.int64) * num_heads + tl.arange(0, HEADS)
    is_head = tl.arange(0, HEADS) < num_heads
    split, dim = tl.arange(0, SPLITS), tl.arange(0, DIMS)
    mask = is_head[:, None] & (split < num_splits)[None, :]
    place = head[:, None] * num_splits + split[None, :]
    lse = tl.load(lse_ptr + place, mask=mask, other=float("-inf"))
    largest = tl.max(lse, axis=1)
    largest = tl.where(largest > float("-inf"), largest, 0.0)
    weight = tl.exp(lse - largest[:, None])
    total = tl.sum(weight, axis=1)
    weight = weight / tl.where(total > 0, total, 1.0)[:, None]
    in_head = dim < HEAD_DIM
    part = tl.load(
        part_ptr + place[:, :, None] * HEAD_DIM + dim[None, None, :],
        mask=mask[:, :, None] & in_head[None, None, :],
        other=0.0,
    )
    result = tl.sum(weight[:, :, None] * part, axis=1)
    tl.store(
        out_ptr + head[:, None] * HEAD_DIM + dim[None, :],
        result.to(out_ptr.dtype.element_ty),
        mask=is_head[:, None] & in_head[None, :],
    )


def attend_splits(
    part, lse, query, key_cache, value_cache, block_tables, seq_lens, scale
):
    num_seqs, num_heads, num_splits, head_dim = part.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    span_kernel[(num_seqs, num_heads, num_splits)](
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
        num_heads // num_kv_heads,
        head_dim,
        block_size,
        triton.next_power_of_2(block_size),
        triton.next_power_of_2(head_dim),
    )


def merge_splits(out, part, lse):
    num_seqs, num_heads, num_splits, head_dim = part.shape
    all_heads_kernel[(num_seqs,)](
        out,
        part,
        lse,
        num_heads,
        num_splits,
        head_dim,
        triton.next_power_of_2(num_heads),
        triton.next_power_of_2(num_splits),
        triton.next_power_of_2(head_dim),
    )


def pick_num_splits(num_programs, max_seq_len, num_processors, min_tokens, max_splits):
    """For each number of waves, the most splits that they hold are worth a look.

    So is 1; and since more splits than tokens gain nothing, the fewest of equal spans.
    """
    most = max(1, min(max_splits, max_seq_len // min_tokens))
    candidates = set()
    waves = 1
    while num_programs:
        fitting = waves * num_processors // num_programs
        candidates.add(min(most, fitting))
        if fitting >= most:
            break
        waves += 1
    best = None
    for splits in {1, *candidates} - {0}:
        span = -(-max_seq_len // splits)
        fewest = -(-max_seq_len // span) if span else 1
        for each in (splits, max(1, fewest)):
            waves = -(-num_programs * each // num_processors)
            entry = (waves * -(-max_seq_len // each), each)
            best = entry if best is None else min(best, entry)
    return best[1]


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
    block_size, num_kv_heads = key_cache.shape[1:3]
    if num_heads % num_kv_heads:
        raise ValueError("heads cannot be shared evenly")
    if num_splits is None:
        longest = block_tables.shape[1] * block_size
        programs = num_seqs * num_kv_heads
        num_splits = pick_num_splits(programs, longest, 8, MIN_TOKENS, MAX_SPLITS)
    shape = (num_seqs, num_heads, num_splits)
    lse = torch.zeros(shape, device=query.device)
    part = torch.zeros((*shape, head_dim), device=query.device)
    out = torch.zeros(query.shape, dtype=query.dtype, device=query.device)
    scale = head_dim**-0.5 if scale is None else scale
    attend_splits(
        part, lse, query, key_cache, value_cache, block_tables, seq_lens, scale
    )
    merge_splits(out, part, lse)
    return out


@triton.jit
def wide_group_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    width,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr,
    DIMS: tl.constexpr,
):
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    row = tl.arange(0, 16)
    dim = tl.arange(0, DIMS)
    head = (seq * tl.num_programs(1) + kv_head) * GROUP + row
    mine = (row < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    place = head[:, None] * HEAD_DIM + dim[None, :]
    query = tl.load(query_ptr + place, mask=mine, other=0.0)
    length = tl.load(lens_ptr + seq)
    largest = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, DIMS], tl.float32)
    for first in range(0, length, KEYS):
        position = first + tl.arange(0, KEYS)
        is_key = position < length
        entry = tables_ptr + seq * width + position // BLOCK_SIZE
        block = tl.load(entry, mask=is_key, other=0).to(tl.int64)
        slot = position % BLOCK_SIZE
        mask = is_key[:, None] & (dim < HEAD_DIM)[None, :]
        # Strides counted in steps of 8 numbers: the product is a multiple of 8.
        key_row = block * (key_block // 8) + slot * (key_slot // 8)
        key_row = (key_row + kv_head * (key_head // 8)) * 8
        key_place = key_row[:, None] + dim[None, :]
        key = tl.load(key_ptr + key_place, mask=mask, other=0.0)
        value_row = block * (value_block // 8) + slot * (value_slot // 8)
        value_row = (value_row + kv_head * (value_head // 8)) * 8
        value_place = value_row[:, None] + dim[None, :]
        value = tl.load(value_ptr + value_place, mask=mask, other=0.0)
        score = tl.dot(query, tl.trans(key)) * scale
        score = tl.where(is_key[None, :], score, float("-inf"))
        highest = tl.maximum(largest, tl.max(score, axis=1))
        weight = tl.exp(score - highest[:, None])
        shrink = tl.exp(largest - highest)
        acc = acc * shrink[:, None] + tl.dot(weight.to(tl.float16), value)
        total = total * shrink + tl.sum(weight, axis=1)
        largest = highest
    result = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + place, result.to(tl.float16), mask=mine)


def attend_wide(out, query, key_cache, value_cache, block_tables, seq_lens):
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    wide_group_kernel[(num_seqs, num_kv_heads)](
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
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        KEYS=32,
        DIMS=max(16, triton.next_power_of_2(head_dim)),
    )
