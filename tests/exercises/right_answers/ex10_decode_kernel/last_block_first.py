"""Right in another way: backwards, two passes, blocks padded to a tile, many programs.

10.3 cuts large groups into tiles of 16 heads, and its strides are constants.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def score_of(query, key_ptr, place, mask, scale):
    key = tl.load(key_ptr + place, mask=mask, other=0.0)
    return tl.sum(key * query, axis=1) * scale


@triton.jit
def two_pass_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,
    width,
    FULL: tl.constexpr,  # whether lens counts blocks
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    slot = tl.arange(0, TILE_KEYS)
    dim = tl.arange(0, TILE_DIM)
    in_head = dim < HEAD_DIM
    query = tl.load(query_ptr + seq * HEAD_DIM + dim, mask=in_head, other=0.0)[None, :]
    length = tl.load(lens_ptr + seq)
    if FULL:
        length *= BLOCK_SIZE
    num_blocks = (length + BLOCK_SIZE - 1) // BLOCK_SIZE
    # The largest of the sequence first, so that nothing need be scaled down later.
    largest = float("-inf")
    for i in range(num_blocks):
        block = tl.load(tables_ptr + seq * width + i).to(tl.int64)
        is_token = (slot < BLOCK_SIZE) & (slot < length - i * BLOCK_SIZE)
        is_token = is_token & (block >= 0)
        place = (block * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + dim[None, :]
        mask = is_token[:, None] & in_head[None, :]
        score = score_of(query, key_ptr, place, mask, scale)
        score = tl.where(is_token, score, float("-inf"))
        largest = tl.maximum(largest, tl.max(score, axis=0))
    total = tl.zeros([TILE_KEYS], tl.float32)
    acc = tl.zeros([TILE_KEYS, TILE_DIM], tl.float32)
    for back in range(num_blocks):
        i = num_blocks - 1 - back
        block = tl.load(tables_ptr + seq * width + i).to(tl.int64)
        is_token = (slot < BLOCK_SIZE) & (slot < length - i * BLOCK_SIZE)
        is_token = is_token & (block >= 0)
        place = (block * BLOCK_SIZE + slot)[:, None] * HEAD_DIM + dim[None, :]
        mask = is_token[:, None] & in_head[None, :]
        score = score_of(query, key_ptr, place, mask, scale)
        # Each slot keeps a sum of its own; they meet at the end.
        weight = tl.where(is_token, tl.exp(score - largest), 0.0)
        value = tl.load(value_ptr + place, mask=mask, other=0.0)
        acc += weight[:, None] * value
        total += weight
    result = tl.sum(acc, axis=0) / tl.maximum(tl.sum(total, axis=0), 1e-30)
    tl.store(out_ptr + seq * HEAD_DIM + dim, result, mask=in_head)


@triton.jit
def backwards_kernel(
    out_ptr,
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
    NUM_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    HALF: tl.constexpr,
    CAST: tl.constexpr,
):
    seq = tl.program_id(0).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    row = tl.program_id(2) * 16 + tl.arange(0, 16)
    head = kv_head * GROUP + row
    slot = tl.arange(0, TILE_KEYS)
    dim = tl.arange(0, TILE_DIM)
    in_head = (dim < HEAD_DIM)[None, :]
    mine = (row < GROUP)[:, None] & in_head
    place = seq * QUERY_SEQ + head[:, None] * QUERY_HEAD + dim[None, :] * QUERY_DIM
    query = tl.load(query_ptr + place, mask=mine, other=0.0)
    if CAST:
        query = query.to(tl.float32)
    length = tl.load(lens_ptr + seq * LENS)
    largest = tl.full([16], float("-inf"), tl.float32)
    total = tl.zeros([16], tl.float32)
    acc = tl.zeros([16, TILE_DIM], tl.float32)
    i = (length + BLOCK_SIZE - 1) // BLOCK_SIZE - 1
    while i >= 0:
        entry = tables_ptr + seq * TABLES_SEQ + i * TABLES_BLOCK
        block = tl.load(entry).to(tl.int64)
        # A large block is taken in several tiles.
        for inner in tl.static_range(0, BLOCK_SIZE, TILE_KEYS):
            offset = inner + slot
            is_token = (offset < BLOCK_SIZE) & (i * BLOCK_SIZE + offset < length)
            mask = is_token[:, None] & in_head
            place = block * KEY_BLOCK + offset[:, None] * KEY_SLOT
            place += kv_head * KEY_HEAD + dim[None, :] * KEY_DIM
            key = tl.load(key_ptr + place, mask=mask, other=0.0)
            place = block * VALUE_BLOCK + offset[:, None] * VALUE_SLOT
            place += kv_head * VALUE_HEAD + dim[None, :] * VALUE_DIM
            value = tl.load(value_ptr + place, mask=mask, other=0.0)
            if CAST:
                key, value = key.to(tl.float32), value.to(tl.float32)
            score = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
            score = tl.where(is_token[None, :], score, float("-inf"))
            highest = tl.maximum(largest, tl.max(score, axis=1))
            # A tile may hold no token at all: -inf - (-inf) is NaN.
            origin = tl.where(highest == float("-inf"), 0.0, highest)
            weight = tl.exp(score - origin[:, None])
            shrink = tl.exp(largest - origin)
            largest = highest
            total = total * shrink + tl.sum(weight, axis=1)
            if HALF:
                weight = weight.to(tl.float16)
            elif not CAST:
                weight = weight.to(value.dtype)
            product = tl.dot(weight, value, input_precision="ieee")
            acc = acc * shrink[:, None] + product
        i -= 1
    total = tl.where(total == 0, 1.0, total)
    place = (seq * NUM_HEADS + head[:, None]) * HEAD_DIM + dim[None, :]
    result = (acc / total[:, None]).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + place, result, mask=mine)


def two_passes(out, query, key_cache, value_cache, tables, lens, full):
    num_seqs, head_dim = query.shape
    block_size = key_cache.shape[1]
    two_pass_kernel[(num_seqs,)](
        out,
        query,
        key_cache,
        value_cache,
        tables,
        lens,
        head_dim**-0.5,
        tables.shape[1],
        FULL=full,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE_KEYS=triton.next_power_of_2(block_size),
        TILE_DIM=triton.next_power_of_2(head_dim),
    )


def walk_full_blocks(out, query, key_cache, value_cache, block_tables, num_blocks):
    two_passes(out, query, key_cache, value_cache, block_tables, num_blocks, True)


def attend_one_head(out, query, key_cache, value_cache, block_tables, seq_lens):
    two_passes(out, query, key_cache, value_cache, block_tables, seq_lens, False)


def attend_grouped(
    query, key_cache, value_cache, block_tables, seq_lens, *, scale=None
):
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key_cache.shape[1:3]
    group, rest = divmod(num_heads, num_kv_heads)
    if rest:
        raise ValueError("heads cannot be shared evenly")
    half = query.dtype == torch.float16
    out = torch.zeros((num_seqs, num_heads, head_dim), device=query.device).to(
        query.dtype
    )
    backwards_kernel[(num_seqs, num_kv_heads, triton.cdiv(group, 16))](
        out,
        query,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        1 / head_dim**0.5 if scale is None else scale,
        *query.stride(),
        *key_cache.stride(),
        *value_cache.stride(),
        *block_tables.stride(),
        *seq_lens.stride(),
        num_heads,
        group,
        head_dim,
        block_size,
        max(16, min(64, triton.next_power_of_2(block_size))),
        max(16, triton.next_power_of_2(head_dim)),
        half,
        not half,
    )
    return out
