"""Right in another way: bytes instead of blocks, one buffer that grows, no repeats."""

import math

import torch


def bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, bits):
    bits_of_a_key = num_kv_heads * head_dim * bits
    return num_layers * (bits_of_a_key + bits_of_a_key) // 8


def sequences_that_fit(memory_bytes, weight_bytes, token_bytes, block_size, lengths):
    used = weight_bytes
    admitted = 0
    for length in lengths:
        used += math.ceil(length / block_size) * block_size * token_bytes
        if used > memory_bytes:
            break
        admitted += 1
    return admitted


class CachedAttention:
    """One buffer for keys and values, twice as large whenever it is full."""

    def __init__(self, num_heads, num_kv_heads, head_dim):
        if num_heads % num_kv_heads != 0:
            raise ValueError("uneven groups")
        self.shape = (num_kv_heads, head_dim)
        self.length = 0
        self.cache = None

    @property
    def seq_len(self):
        return self.length

    def step(self, query, key, value):
        if self.cache is None:
            self.cache = torch.full((2, 2, *self.shape), torch.nan, dtype=key.dtype)
        if self.length == self.cache.shape[1]:
            self.cache = torch.cat(
                [self.cache, torch.full_like(self.cache, torch.nan)], 1
            )
        self.cache[0, self.length] = key
        self.cache[1, self.length] = value
        self.length += 1
        keys, values = self.cache[:, : self.length]
        heads, dim = self.shape
        grouped = query.view(heads, -1, dim)
        scores = torch.einsum("kgd,tkd->kgt", grouped, keys) / math.sqrt(dim)
        weights = (scores - scores.amax(-1, keepdim=True)).exp()
        weights /= weights.sum(-1, keepdim=True)
        return torch.einsum("kgt,tkd->kgd", weights, values).reshape(query.shape)


def decode_seconds(weight_bytes, token_bytes, context_lens, gb_per_second):
    seconds = weight_bytes / 1e9 / gb_per_second
    for length in context_lens:
        seconds += length * token_bytes / 1e9 / gb_per_second
    return seconds


def cache_heavy_batch(weight_bytes, token_bytes, context_len):
    batch = 1
    while batch * context_len * token_bytes <= weight_bytes:
        batch += 1
    return batch
