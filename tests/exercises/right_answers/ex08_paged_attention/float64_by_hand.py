"""Right in another way: float64 inside, tensordot, the last block comes first."""

import math

import torch


def slots_of(cache, block_ids, first, stop):
    """One view per token, stacked."""
    size = cache.shape[1]
    rows = [cache[int(block_ids[i // size]), i % size] for i in range(first, stop)]
    return torch.stack(rows).double()


def attend_to(query, keys, values, scale):
    """query [num_heads, head_dim]; keys with as many heads, or fewer."""
    group = query.shape[0] // keys.shape[1]
    rows = []
    for head, row in enumerate(query.double()):
        scores = torch.tensordot(keys[:, head // group], row, dims=1) * scale
        weights = torch.exp(scores - scores.max())
        mixed = torch.tensordot(weights, values[:, head // group], dims=1)
        rows.append(mixed / weights.sum())
    return torch.stack(rows)


def gather_and_attend(query, key_cache, value_cache, block_ids, seq_len):
    keys = slots_of(key_cache, block_ids, 0, seq_len)
    values = slots_of(value_cache, block_ids, 0, seq_len)
    return attend_to(query, keys, values, 1 / math.sqrt(query.shape[1])).to(query.dtype)


def attend_part(query, key, value):
    num_heads, head_dim = query.shape
    out = torch.zeros(num_heads, head_dim, dtype=torch.float64)
    lse = torch.full((num_heads,), -math.inf, dtype=torch.float64)
    for head in range(num_heads):
        if len(key):
            products = torch.mv(key[:, head].double(), query[head].double())
            scores = products / math.sqrt(head_dim)
            lse[head] = torch.logsumexp(scores, 0)
            out[head] = torch.softmax(scores, 0) @ value[:, head].double()
    return out.float(), lse.float()


def merge_parts(out_a, lse_a, out_b, lse_b):
    out, lse = torch.zeros_like(out_a), torch.empty_like(lse_a)
    for head in range(len(lse)):
        a, b = lse_a[head].item(), lse_b[head].item()
        if a == -math.inf and b == -math.inf:
            lse[head] = -math.inf
        elif a == -math.inf:
            out[head], lse[head] = out_b[head], b
        elif b == -math.inf:
            out[head], lse[head] = out_a[head], a
        else:
            share = 1 / (1 + math.exp(min(b - a, 700)))
            out[head] = share * out_a[head] + (1 - share) * out_b[head]
            lse[head] = max(a, b) + math.log1p(math.exp(-abs(a - b)))
    return out, lse


def attend_in_place(query, key_cache, value_cache, block_ids, seq_len):
    size = key_cache.shape[1]
    out, lse = attend_part(query, key_cache[0, :0], value_cache[0, :0])
    for i in reversed(range(math.ceil(seq_len / size))):
        block_id, stop = int(block_ids[i]), min(size, seq_len - i * size)
        part = attend_part(
            query, key_cache[block_id, :stop], value_cache[block_id, :stop]
        )
        out, lse = merge_parts(*part, out, lse)
    return out.to(query.dtype)


def attend_chunk(query, key_cache, value_cache, block_ids, seq_len):
    first = seq_len - len(query) + 1
    return torch.stack(
        [
            gather_and_attend(row, key_cache, value_cache, block_ids, first + i)
            for i, row in enumerate(query)
        ]
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
    if query.shape[1] % key_cache.shape[2]:
        raise ValueError("uneven groups")
    scale = query.shape[2] ** -0.5 if scale is None else scale
    starts = range(len(seq_lens) + 1) if query_start_loc is None else query_start_loc
    result = query * 0
    for i, row in enumerate(block_tables):
        start, stop = int(starts[i]), int(starts[i + 1])
        for token in range(start, stop):
            position = int(seq_lens[i]) - (stop - token)
            if position < 0:
                continue
            first = 0 if window is None else max(0, position - window + 1)
            keys = slots_of(key_cache, row, first, position + 1)
            values = slots_of(value_cache, row, first, position + 1)
            result[token] = attend_to(query[token], keys, values, scale)
    return result
