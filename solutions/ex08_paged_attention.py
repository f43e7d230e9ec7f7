"""Exercise 08: attention over keys and values that lie scattered in blocks.

Grade with `course grade 8`. Each task is graded by itself. Tensors and lists that a
function is given are the same after the call. What holds for all of them:

    key_cache, value_cache   the pools, [num_blocks, block_size, num_heads, head_dim].
                             Their strides may be any. They are only read, never written
    a row of a block table   [max_num_blocks], int32 or int64: entry i names the block
                             of the pool that holds the tokens i * block_size …
                             (i + 1) * block_size - 1 of the sequence. Entries that no
                             token needs may hold anything: -1, or a number that is no
                             block
    seq_len                  tokens of the sequence. Their keys and values are finite;
                             every other slot of the pools may hold NaN, also the slots
                             behind the last token in the last block
    attention                for each head: softmax over the tokens that the query sees
                             of (query · key * head_dim ** -0.5), then the sum of their
                             values with these weights. Scores lie between -100,000 and
                             100,000, and the result is finite

Query and pools have one dtype: float32, float16 or bfloat16. Products and sums are made
in float32 or better, whatever that dtype is, because a product of two float16 numbers
can be too large for float16. The result has the query's dtype, unless it says
otherwise.

Up to task 8.4 each query head has keys and values of its own: head h of the query reads
head h of the pools. `torch.nn.functional.scaled_dot_product_attention` may be used.
Answers are compared with attention over the same tokens in a row, in float64.


Task 8.1   gather_and_attend(query, key_cache, value_cache, block_ids, seq_len)
               -> Tensor

A step of decode for one sequence: one new token, whose key and value are already in the
pools. It stands at position seq_len - 1 and sees all seq_len tokens.

    query      [num_heads, head_dim]
    block_ids  a row of a block table
    seq_len    int, 1 or more
    result     [num_heads, head_dim]


Task 8.2   attend_part(query, key, value) -> tuple[Tensor, Tensor]
           merge_parts(out_a, lse_a, out_b, lse_b) -> tuple[Tensor, Tensor]

Softmax needs all scores at once, or so it seems. Attention over a part of the keys can
be merged with attention over another part, if each part tells one number more for each
head: the logarithm of the sum of exp(score) over its keys, called lse.

attend_part: attention over these keys alone, and its lse. Here key and value are small
tensors, not pools.

    query      [num_heads, head_dim]
    key        [num_keys, num_heads, head_dim]   value the same; num_keys may be 0
    result     (out, lse): out [num_heads, head_dim], lse [num_heads], both float32,
               whatever the query's dtype is. Without keys: zeros, and -inf

merge_parts: (out, lse) over the keys of both parts, as if attend_part had seen all of
them. A part may have had no keys, or none for some of the heads: there its lse is -inf,
and its out means nothing and may be anything, also NaN. Where neither part had keys:
zeros and -inf. All four tensors, and the results, are float32; a lse may be anything
between -100,000 and 100,000.


Task 8.3   attend_in_place(query, key_cache, value_cache, block_ids, seq_len)
               -> Tensor

As task 8.1, but nothing is gathered: the blocks are read one after the other, where
they lie, and memory does not grow with the sequence. No tensor of floating-point
numbers that you make, scores included, may hold more than one block of keys and values,
which is 2 * block_size * num_heads * head_dim numbers. (Views of the pools are not made
by you.)


Task 8.4   attend_chunk(query, key_cache, value_cache, block_ids, seq_len)
               -> Tensor

A chunk of a prefill: several new tokens of one sequence at once, whose keys and values
are already in the pools. They are its last ones; what was there before is the context.
Each token sees the context, the tokens of the chunk before it, and itself, and none
behind it.

    query      [query_len, num_heads, head_dim], 1 <= query_len <= seq_len;
               query[i] stands at position seq_len - query_len + i
    seq_len    int; counts the new tokens, too
    result     as query


Task 8.5   attend_over_blocks(query, key_cache, value_cache, block_tables, seq_lens, *,
                              query_start_loc=None, scale=None, window=None) -> Tensor

All of it together: a whole batch, as an engine hands it over. With this function your
engine can serve a model (chapter 13).

    query            [num_tokens, num_heads, head_dim]: the new tokens of all sequences,
                     one sequence after the other
    key_cache        [num_blocks, block_size, num_kv_heads, head_dim]
                     value_cache the same. num_kv_heads divides num_heads: query head h
                     reads KV head h // (num_heads // num_kv_heads). ValueError if it
                     does not divide
    block_tables     [num_seqs, max_num_blocks]   int32 or int64
    seq_lens         [num_seqs]       int32 or int64; new tokens counted
    query_start_loc  [num_seqs + 1]   int32 or int64: query[start[i] : start[i + 1]] are
                     the new tokens of sequence i, the last ones that it has; there may
                     be none. None: each sequence has one (decode)
    scale            takes the place of head_dim ** -0.5
    window           int, 1 or more: each query sees itself and the window - 1 tokens
                     before it, no more. None: no limit
    result           as query. The rows of a sequence whose seq_len is 0 are zeros

With a window, block tables have holes: a block is given back as soon as no query that
is still to come, nor one of this call, sees any of its tokens. Then its entry is -1.
What a call returns is not changed by later calls, nor does it depend on earlier ones.
"""

import torch
from torch import Tensor


def gather_and_attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_ids: Tensor,
    seq_len: int,
) -> Tensor:
    # BEGIN SOLUTION 8.1: put the tokens in a row, then attend
    block_size, head_dim = key_cache.shape[1], key_cache.shape[3]
    num_blocks = -(-seq_len // block_size)
    ids = block_ids[:num_blocks]  # what stands behind them may be no block at all
    # The last block may be filled in part: its end is cut off, so nobody sees it.
    key = key_cache[ids].flatten(0, 1)[:seq_len].float()
    value = value_cache[ids].flatten(0, 1)[:seq_len].float()

    scores = torch.einsum("hd,khd->hk", query.float(), key) * head_dim**-0.5
    weights = scores.softmax(dim=-1)  # [num_heads, seq_len]
    return torch.einsum("hk,khd->hd", weights, value).to(query.dtype)
    # END SOLUTION


def attend_part(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    # BEGIN SOLUTION 8.2: attention over some keys, and how much they weigh
    scores = torch.einsum("hd,khd->hk", query.float(), key.float())
    scores *= query.shape[1] ** -0.5
    lse = scores.logsumexp(dim=-1)  # of no scores: -inf
    weights = (scores - lse[:, None]).exp()
    return torch.einsum("hk,khd->hd", weights, value.float()), lse
    # END SOLUTION


def merge_parts(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    # BEGIN SOLUTION 8.2: weigh each part by the share of its keys
    lse = torch.logaddexp(lse_a, lse_b)
    out = torch.zeros_like(out_a)
    for part, part_lse in ((out_a, lse_a), (out_b, lse_b)):
        # Without keys lse may be -inf as well, and -inf - (-inf) would be NaN; so would
        # be a weight of 0 times an out of NaN. So such a head is left out.
        has_keys = part_lse > float("-inf")
        share = (part_lse - lse).exp()
        out = torch.where(has_keys[:, None], out + share[:, None] * part, out)
    return out, lse
    # END SOLUTION


def attend_in_place(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_ids: Tensor,
    seq_len: int,
) -> Tensor:
    # BEGIN SOLUTION 8.3: one block after the other, merged into what there is
    block_size = key_cache.shape[1]
    out = torch.zeros_like(query, dtype=torch.float32)
    lse = torch.full_like(out[:, 0], float("-inf"))  # no keys yet
    for start in range(0, seq_len, block_size):
        block_id = int(block_ids[start // block_size])
        num_keys = min(block_size, seq_len - start)
        key, value = key_cache[block_id, :num_keys], value_cache[block_id, :num_keys]
        out, lse = merge_parts(out, lse, *attend_part(query, key, value))
    return out.to(query.dtype)
    # END SOLUTION


def attend_chunk(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_ids: Tensor,
    seq_len: int,
) -> Tensor:
    # BEGIN SOLUTION 8.4: each query sees the keys up to its own position
    block_size, head_dim = key_cache.shape[1], key_cache.shape[3]
    ids = block_ids[: -(-seq_len // block_size)]
    key = key_cache[ids].flatten(0, 1)[:seq_len].float()
    value = value_cache[ids].flatten(0, 1)[:seq_len].float()

    scores = torch.einsum("qhd,khd->hqk", query.float(), key) * head_dim**-0.5
    position = torch.arange(seq_len, device=query.device)
    own_position = position[seq_len - len(query) :]
    is_future = position > own_position[:, None]  # [query_len, seq_len]
    weights = scores.masked_fill(is_future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).to(query.dtype)
    # END SOLUTION


def attend_over_blocks(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    query_start_loc: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    # BEGIN SOLUTION 8.5: one sequence after the other
    block_size, num_kv_heads, head_dim = key_cache.shape[1:]
    if query.shape[1] % num_kv_heads:
        raise ValueError(f"{query.shape[1]} heads cannot share {num_kv_heads} KV heads")
    group = query.shape[1] // num_kv_heads
    factor: float = head_dim**-0.5 if scale is None else scale
    lengths = seq_lens.tolist()
    starts = list(range(len(lengths) + 1))
    if query_start_loc is not None:
        starts = query_start_loc.tolist()

    result = torch.zeros_like(query)
    for i, seq_len in enumerate(lengths):
        start, stop = starts[i], starts[i + 1]
        if seq_len == 0 or start == stop:
            continue
        # The first key that the first query sees: holes lie before it.
        context_len = seq_len - (stop - start)
        first = 0 if window is None else max(0, context_len + 1 - window)
        position = torch.arange(first, seq_len, device=query.device)
        ids, offset = block_tables[i, position // block_size], position % block_size
        key = key_cache[ids, offset].float().repeat_interleave(group, dim=1)
        value = value_cache[ids, offset].float().repeat_interleave(group, dim=1)

        own_position = torch.arange(context_len, seq_len, device=query.device)
        distance = own_position[:, None] - position  # [query_len, num_keys]
        is_hidden = distance < 0
        if window is not None:
            is_hidden |= distance >= window
        scores = torch.einsum("qhd,khd->hqk", query[start:stop].float(), key) * factor
        weights = scores.masked_fill(is_hidden, float("-inf")).softmax(dim=-1)
        result[start:stop] = torch.einsum("hqk,khd->qhd", weights, value)
    return result
    # END SOLUTION


# BEGIN NOTES
# 8.1  Cut, don't mask. A score of -inf gives a garbage key the weight 0, but 0 * NaN is
# NaN, so a garbage value still reaches the sum; and garbage that is no NaN today will
# be one some day. If you do mask (a whole batch is gathered at once), set the garbage
# values to 0 as well. Cut the table first: an entry behind the last block need not be a
# block, and -1 silently is the last block of the pool. `.float()` comes before the
# product, for 40 * 40 * 64 is more than float16 can hold. The copy is the weakness of
# this way: every key is read, written and read again, and the memory for it grows with
# the sequence.
#
# 8.2  With s the sum of exp(score) of each part, the merged weights are s_a / (s_a +
# s_b) and s_b / (s_a + s_b). Only logarithms of s are kept, since exp(100,000) is
# infinite: share = exp(lse_a - logaddexp(lse_a, lse_b)). Other forms hand on the
# largest score and the sum relative to it, and divide once, at the very end (chapter 10
# does): fewer divisions, one number more. The merge can be done in any order and any
# grouping, which is what makes split-KV (chapter 11) possible.
#
# 8.3  This is the "online softmax" (Milakov and Gimelshein 2018), FlashAttention's
# idea, and the loop of chapter 10's kernel. On a CPU in Python it is slower than
# gathering, because each block costs some calls; on a GPU it is what makes attention
# fast. The package's CPU version gathers neither: it hands torch a sparse matrix.
#
# 8.4  position[seq_len - query_len :] is the place where everything goes wrong: a
# causal mask that starts at 0, like torch.tril of [query_len, seq_len] or
# is_causal=True of scaled_dot_product_attention, is right only where there is no
# context. The plainest alternative, task 8.1 for each query with its own length, is
# right at once, and gathers the context again for each of them.
#
# 8.5  A loop over sequences, none over blocks or tokens. Padding all sequences to the
# longest would be one call instead of many, at the price of reading what is not there.
# key_cache[ids, offset] needs no cut, because `position` ends at seq_len, and no hole
# is touched, because it begins at `first`. repeat_interleave copies each KV head once
# for each of its query heads; query.view(query_len, num_kv_heads, group, head_dim)
# against the unrepeated keys reads each of them once.
# END NOTES
