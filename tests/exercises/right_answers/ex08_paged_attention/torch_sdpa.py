"""Right in another way: torch's own attention does the work, flat slots as indices."""

import torch
import torch.nn.functional as F


def rows_of(cache, block_ids, position):
    """[1, num_heads, len(position), head_dim]"""
    size = cache.shape[1]
    blocks = block_ids.gather(0, (position // size).to(torch.int64)).tolist()
    slots = zip(blocks, (position % size).tolist(), strict=True)
    rows = [cache.select(0, block).select(0, offset) for block, offset in slots]
    return torch.stack(rows, dim=1)[None].float()


def gather_and_attend(query, key_cache, value_cache, block_ids, seq_len):
    return attend_chunk(query[None], key_cache, value_cache, block_ids, seq_len)[0]


def attend_part(query, key, value):
    query, key = query.float(), key.float()
    scores = torch.matmul(key.transpose(0, 1), query.unsqueeze(-1)).squeeze(-1)
    scores = scores * query.shape[1] ** -0.5
    lse = torch.logsumexp(scores, dim=1)
    weights = torch.nan_to_num(scores.softmax(dim=1))
    out = torch.bmm(weights.unsqueeze(1), value.float().transpose(0, 1)).squeeze(1)
    return out, lse


def merge_parts(out_a, lse_a, out_b, lse_b):
    share = torch.sigmoid(lse_a - lse_b)[:, None]
    out = share * out_a + (1 - share) * out_b
    no_a, no_b = torch.isneginf(lse_a), torch.isneginf(lse_b)
    out[no_a] = out_b[no_a]
    out[no_b] = out_a[no_b]
    out[no_a & no_b] = 0
    return out, torch.stack([lse_a, lse_b]).logsumexp(dim=0)


def attend_in_place(query, key_cache, value_cache, block_ids, seq_len):
    """Two tokens at a time, though the blocks are larger."""
    parts = [attend_part(query, key_cache[0, :0], value_cache[0, :0])]
    size = key_cache.shape[1]
    for i, block_id in enumerate(block_ids.tolist()):
        for start in range(0, min(size, seq_len - i * size), 2):
            stop = min(start + 2, size, seq_len - i * size)
            key = key_cache[block_id, start:stop]
            value = value_cache[block_id, start:stop]
            parts = [merge_parts(*attend_part(query, key, value), *parts[0])]
    return parts[0][0].to(query.dtype)


def attend_chunk(query, key_cache, value_cache, block_ids, seq_len):
    position = torch.arange(seq_len)
    mask = position <= torch.arange(seq_len - len(query), seq_len)[:, None]
    return (
        F.scaled_dot_product_attention(
            query.float().transpose(0, 1)[None],
            rows_of(key_cache, block_ids, position),
            rows_of(value_cache, block_ids, position),
            attn_mask=mask,
        )[0]
        .transpose(0, 1)
        .to(query.dtype)
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
    if query.size(1) % key_cache.size(2) > 0:
        raise ValueError("uneven groups")
    if query_start_loc is None:
        query_start_loc = torch.arange(query.size(0) + 1)
    parts = []
    for i in range(seq_lens.numel()):
        rows = query[query_start_loc[i] : query_start_loc[i + 1]]
        seq_len = seq_lens[i].item()
        if seq_len == 0 or rows.size(0) == 0:
            parts.append(torch.zeros_like(rows))
            continue
        own = torch.arange(seq_len - rows.size(0), seq_len)[:, None]
        position = torch.arange(seq_len)
        mask = position <= own
        if window is not None:
            mask &= position > own - window
        is_needed = mask.any(dim=0)
        position, mask = position[is_needed], mask[:, is_needed]
        part = F.scaled_dot_product_attention(
            rows.float().transpose(0, 1)[None],
            rows_of(key_cache, block_tables[i], position),
            rows_of(value_cache, block_tables[i], position),
            attn_mask=mask,
            scale=scale,
            enable_gqa=True,
        )
        parts.append(part[0].transpose(0, 1).to(query.dtype))
    return torch.cat(parts) if parts else query.clone()
