"""Right in another way: everything is gathered, garbage is set to 0 and masked."""

import torch


def gather_and_attend(query, key_cache, value_cache, block_ids, seq_len):
    lens = torch.tensor([seq_len])
    tables = block_ids[None]
    return attend_over_blocks(query[None], key_cache, value_cache, tables, lens)[0]


def attend_part(query, key, value):
    num_heads, head_dim = query.shape
    if len(key) == 0:
        return torch.zeros(num_heads, head_dim), torch.full((num_heads,), -torch.inf)
    scores = (key.float() * query.float()).sum(-1).T / head_dim**0.5
    largest = scores.max(dim=-1, keepdim=True).values
    weights = torch.exp(scores - largest)
    total = weights.sum(dim=-1, keepdim=True)
    out = (weights.T[:, :, None] * value.float()).sum(0) / total
    return out, (largest + total.log())[:, 0]


def merge_parts(out_a, lse_a, out_b, lse_b):
    largest = torch.maximum(lse_a, lse_b)
    origin = torch.where(largest.isinf(), 0.0, largest)
    weight_a, weight_b = (lse_a - origin).exp(), (lse_b - origin).exp()
    total = weight_a + weight_b
    out = torch.nan_to_num(out_a) * weight_a[:, None] * (weight_a > 0)[:, None]
    out = out.nan_to_num() + torch.where(
        weight_b[:, None] > 0, out_b * weight_b[:, None], 0
    )
    out /= torch.where(total > 0, total, 1)[:, None]
    return out, torch.where(total > 0, origin + total.log(), -torch.inf)


def attend_in_place(query, key_cache, value_cache, block_ids, seq_len):
    """The running largest score, sum and result of FlashAttention; divided once."""
    num_heads, head_dim = query.shape
    block_size = key_cache.shape[1]
    query, dtype = query.float(), query.dtype
    largest = torch.full((num_heads, 1), -torch.inf)
    total, acc = torch.zeros(num_heads, 1), torch.zeros(num_heads, head_dim)
    for i in range((seq_len + block_size - 1) // block_size):
        block_id = block_ids[i].item()
        is_token = torch.arange(block_size) < seq_len - i * block_size
        key = key_cache[block_id].transpose(0, 1).float()
        value = value_cache[block_id].transpose(0, 1).float()
        scores = (key @ query[:, :, None])[:, :, 0] * head_dim**-0.5
        scores = torch.where(is_token, scores, -torch.inf)
        new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - new_largest)
        shrink = torch.exp(largest - new_largest)
        total = total * shrink + weights.sum(-1, keepdim=True)
        value = torch.where(is_token[:, None], value, 0)
        acc = acc * shrink + (weights[:, None] @ value)[:, 0]
        largest = new_largest
    return (acc / total).to(dtype)


def attend_chunk(query, key_cache, value_cache, block_ids, seq_len):
    lens, tables = torch.tensor([seq_len]), block_ids[None]
    starts = torch.tensor([0, len(query)])
    return attend_over_blocks(
        query, key_cache, value_cache, tables, lens, query_start_loc=starts
    )


def attend_over_blocks(
    query,
    key_cache,
    value_cache,
    block_tables,
    seq_lens,
    *,
    query_start_loc=None,
    scale=None,
    window=None,
):
    """Each query is a row of its own: no loop over sequences at all."""
    num_tokens, num_heads, head_dim = query.shape
    num_blocks, block_size, num_kv_heads, _ = key_cache.shape
    if num_heads % num_kv_heads != 0:
        raise ValueError("uneven groups")
    if query_start_loc is None:
        query_start_loc = torch.arange(len(seq_lens) + 1)
    lens = query_start_loc.long().diff()
    seq_of_row = torch.repeat_interleave(torch.arange(len(seq_lens)), lens)
    behind = query_start_loc[1:].long()[seq_of_row] - torch.arange(num_tokens)
    position = seq_lens.long()[seq_of_row] - behind  # -1 and less: an empty sequence

    width = block_tables.shape[1] * block_size
    key_position = torch.arange(width)
    is_seen = key_position <= position[:, None]
    if window is not None:
        is_seen &= key_position > position[:, None] - window
    tables = block_tables.long()[seq_of_row]
    tables = torch.where((tables < 0) | (tables >= num_blocks), 0, tables)
    keys, values = (
        torch.where(
            is_seen[:, :, None, None], cache[tables].flatten(1, 2).float(), 0.0
        ).transpose(1, 2)
        for cache in (key_cache, value_cache)
    )  # [num_tokens, num_kv_heads, width, head_dim]
    grouped = query.float().reshape(num_tokens, num_kv_heads, -1, head_dim)
    scores = grouped @ keys.mT * (head_dim**-0.5 if scale is None else scale)
    scores = scores.masked_fill(~is_seen[:, None, None], -torch.inf)
    weights = scores.softmax(dim=-1).nan_to_num()
    return (weights @ values).reshape(query.shape).to(query.dtype)
