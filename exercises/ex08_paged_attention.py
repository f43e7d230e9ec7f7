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
    raise NotImplementedError("exercise 8.1: put the tokens in a row, then attend")


def attend_part(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("exercise 8.2: attention over some keys, and how much they weigh")


def merge_parts(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor
) -> tuple[Tensor, Tensor]:
    raise NotImplementedError("exercise 8.2: weigh each part by the share of its keys")


def attend_in_place(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_ids: Tensor,
    seq_len: int,
) -> Tensor:
    raise NotImplementedError("exercise 8.3: one block after the other, merged into what there is")


def attend_chunk(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_ids: Tensor,
    seq_len: int,
) -> Tensor:
    raise NotImplementedError("exercise 8.4: each query sees the keys up to its own position")


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
    raise NotImplementedError("exercise 8.5: one sequence after the other")


# pristine stub, sha256 of the lines above: f2ea43e078c59bea
