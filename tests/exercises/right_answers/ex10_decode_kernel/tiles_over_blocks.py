"""Right in another way: one kernel for all tasks, tiles over several blocks, exp2."""

import torch
import triton
import triton.language as tl


@triton.jit
def anything_kernel(
    out_ptr,
    query_ptr,
    key_ptr,
    value_ptr,
    tables_ptr,
    lens_ptr,
    scale,  # times log2(e)
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
    UNIT: tl.constexpr,  # tokens that a length of 1 stands for
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILE_KEYS: tl.constexpr,
    TILE_DIM: tl.constexpr,
    COMPUTE: tl.constexpr,
):
    kv_head = tl.program_id(0).to(tl.int64)
    seq = tl.program_id(1).to(tl.int64)
    head = kv_head * GROUP + tl.arange(0, TILE_ROWS)
    dim = tl.arange(0, TILE_DIM)
    is_number = (tl.arange(0, TILE_ROWS) < GROUP)[:, None] & (dim < HEAD_DIM)[None, :]
    place = seq * query_seq + head[:, None] * query_head
    place += dim[None, :] * query_dim
    query = tl.load(query_ptr + place, mask=is_number, other=0.0).to(COMPUTE)
    length = tl.load(lens_ptr + seq * lens_stride).to(tl.int32) * UNIT
    largest = tl.full([TILE_ROWS, 1], float("-inf"), tl.float32)
    total = tl.zeros([TILE_ROWS, 1], tl.float32)
    acc = tl.zeros([TILE_ROWS, TILE_DIM], tl.float32)
    for first in range(0, length, TILE_KEYS):
        position = first + tl.arange(0, TILE_KEYS)[None, :]
        is_key = position < length
        entry = seq * tables_seq + position // BLOCK_SIZE * tables_block
        block = tl.load(tables_ptr + entry, mask=is_key, other=-1).to(tl.int64)
        is_key = block >= 0
        slot = position % BLOCK_SIZE
        # K comes as [TILE_DIM, TILE_KEYS], so that nothing need be transposed.
        where_key = block * key_block + slot * key_slot + kv_head * key_head
        where_key = where_key + dim[:, None] * key_dim
        is_loaded = is_key & (dim < HEAD_DIM)[:, None]
        key = tl.load(key_ptr + where_key, mask=is_loaded, other=0.0).to(COMPUTE)
        score = tl.dot(query, key, input_precision="ieee") * scale
        score = tl.where(is_key, score, float("-inf"))
        highest = tl.maximum(largest, tl.max(score, axis=1, keep_dims=True))
        origin = tl.maximum(highest, -1e30)  # in a hole highest may be -inf
        weight = tl.exp2(score - origin)
        shrink = tl.exp2(largest - origin)
        largest = highest
        total = total * shrink + tl.sum(weight, axis=1, keep_dims=True)
        where_value = block * value_block + slot * value_slot
        where_value += kv_head * value_head
        where_value = tl.trans(where_value) + dim[None, :] * value_dim
        is_loaded = tl.trans(is_loaded)
        value = tl.load(value_ptr + where_value, mask=is_loaded, other=0.0).to(COMPUTE)
        acc = tl.dot(weight.to(COMPUTE), value, acc * shrink, input_precision="ieee")
    place = (seq * tl.num_programs(0) * GROUP + head[:, None]) * HEAD_DIM
    result = acc / tl.where(total > 0, total, 1.0)
    dtype = out_ptr.dtype.element_ty
    tl.store(out_ptr + place + dim[None, :], result.to(dtype), mask=is_number)


def launch(out, query, key, value, tables, lens, scale, unit):
    num_seqs, num_heads, head_dim = query.shape
    block_size, num_kv_heads = key.shape[1:3]
    interpreted = not isinstance(anything_kernel, triton.JITFunction)
    compute = getattr(tl, str(query.dtype).removeprefix("torch."))
    if interpreted and query.dtype is torch.bfloat16:
        compute = tl.float32
    anything_kernel[(num_kv_heads, num_seqs)](
        out,
        query,
        key,
        value,
        tables,
        lens,
        scale * 1.4426950408889634,
        *query.stride(),
        *key.stride(),
        *value.stride(),
        *tables.stride(),
        lens.stride(0),
        UNIT=unit,
        GROUP=num_heads // num_kv_heads,
        HEAD_DIM=head_dim,
        BLOCK_SIZE=block_size,
        TILE_ROWS=max(16, triton.next_power_of_2(num_heads // num_kv_heads)),
        TILE_KEYS=64 if head_dim <= 128 else 16,
        TILE_DIM=max(16, triton.next_power_of_2(head_dim)),
        COMPUTE=compute,
        num_warps=8,
    )


def one_head(out, query, key_cache, value_cache, tables, lens, unit):
    launch(
        out[:, None],
        query[:, None],
        key_cache[:, :, None],
        value_cache[:, :, None],
        tables,
        lens,
        query.shape[1] ** -0.5,
        unit,
    )


def walk_full_blocks(out, query, key_cache, value_cache, block_tables, num_blocks):
    unit = key_cache.shape[1]
    one_head(out, query, key_cache, value_cache, block_tables, num_blocks, unit)


def attend_one_head(out, query, key_cache, value_cache, block_tables, seq_lens):
    one_head(out, query, key_cache, value_cache, block_tables, seq_lens, 1)


def attend_grouped(
    query, key_cache, value_cache, block_tables, seq_lens, *, scale=None
):
    if query.shape[1] % key_cache.shape[2]:
        raise ValueError("KV heads do not divide the heads")
    out = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    scale = query.shape[2] ** -0.5 if scale is None else scale
    launch(out, query, key_cache, value_cache, block_tables, seq_lens, scale, 1)
    return out
