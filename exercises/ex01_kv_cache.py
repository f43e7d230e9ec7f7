"""Exercise 01: what a token costs, and decoding with a cache.

Grade with `course grade 1`. The tasks do not depend on each other; all sizes are plain
integers, tensors are torch tensors on the CPU. Lists and tensors that a function is
given are the same after the call.


Task 1.1   bytes_per_token(num_layers, num_heads, num_kv_heads, head_dim, bits) -> int

How many bytes does one token leave behind in the KV cache of the whole model?

    num_layers    layers, each with a cache of its own
    num_heads     query heads per layer, a multiple of num_kv_heads
    num_kv_heads  heads per layer that have keys and values
    head_dim      numbers per head
    bits          bits per number: 32, 16, 8 or 4 (caches of 8 and 4 bits exist);
                  num_kv_heads * head_dim * bits is always a multiple of 8


Task 1.2   sequences_that_fit(memory_bytes, weight_bytes, token_bytes, block_size,
                              lengths) -> int

A device has memory_bytes. The weights of the model take weight_bytes of it; the rest
holds the KV cache, cut into blocks of block_size tokens of token_bytes each. Sequences
wait in a queue. The first gets as many whole blocks as its tokens need, then the next
one, until one does not fit: it waits, and so do all behind it, even short ones. How
many got in?

    lengths   list[int], tokens of each waiting sequence, 1 or more each, first in the
              queue first; [] means that nobody waits
    result    int; 0 if not even the weights fit


Task 1.3   class CachedAttention(num_heads, num_kv_heads, head_dim)

Attention of one layer over one sequence that grows by one token per step. The object
keeps the keys and values of all tokens so far, so that each step is given those of the
new token only.

    CachedAttention(num_heads, num_kv_heads, head_dim)
        ValueError if num_heads is not a multiple of num_kv_heads
    .step(query, key, value) -> torch.Tensor
        query    [num_heads, head_dim]      of the new token
        key      [num_kv_heads, head_dim]   of the new token
        value    [num_kv_heads, head_dim]   of the new token
        result   [num_heads, head_dim]      what attention gives for the new token
    .seq_len -> int     property: how many tokens are kept; 0 at first

The new token attends to itself and to all tokens before it. For each query head:
softmax over the tokens of (query · key * head_dim ** -0.5), then the sum of the values
with these weights. Query head h reads KV head h // (num_heads // num_kv_heads).

The three tensors have one dtype, float32 or float64, the same in every step; the result
has it too, and nothing is rounded to a smaller one on the way. Scores may be as large
as ±100,000: the result is still finite. The caller may overwrite its tensors as soon as
step has returned. Two objects know nothing of each other.

Your answers are compared with attention over the whole sequence, computed anew.


Task 1.4   decode_seconds(weight_bytes, token_bytes, context_lens, gb_per_second)
               -> float
           cache_heavy_batch(weight_bytes, token_bytes, context_len) -> int

A decode step makes one new token for each sequence of a batch. However clever the code,
it has to read all weights once, whatever the size of the batch, and the keys and values
of every token that is in the cache. A lower bound of its time is the number of these
bytes divided by the memory's bandwidth. (What the step writes is small: leave it out.)

    token_bytes     bytes of one token in the cache
    context_lens    list[int], one per sequence: tokens in the cache before the step
    gb_per_second   bandwidth; 1 GB is 10**9 bytes
    decode_seconds  float, seconds of one step

For a batch whose sequences have context_len tokens (1 or more) in the cache each:
cache_heavy_batch is the smallest number of sequences for which the step reads more
bytes of cache than of weights.
"""

import torch
from torch import Tensor


def bytes_per_token(
    num_layers: int, num_heads: int, num_kv_heads: int, head_dim: int, bits: int
) -> int:
    raise NotImplementedError("exercise 1.1: bytes that one token leaves in the cache")


def sequences_that_fit(
    memory_bytes: int,
    weight_bytes: int,
    token_bytes: int,
    block_size: int,
    lengths: list[int],
) -> int:
    raise NotImplementedError("exercise 1.2: count the sequences that get in")


class CachedAttention:
    def __init__(self, num_heads: int, num_kv_heads: int, head_dim: int) -> None:
        raise NotImplementedError("exercise 1.3: start with an empty cache")

    @property
    def seq_len(self) -> int:
        raise NotImplementedError("exercise 1.3: count the tokens that are kept")

    def step(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        raise NotImplementedError("exercise 1.3: keep the new key and value, then attend to all")


def decode_seconds(
    weight_bytes: int, token_bytes: int, context_lens: list[int], gb_per_second: float
) -> float:
    raise NotImplementedError("exercise 1.4: bytes that must be read, divided by the bandwidth")


def cache_heavy_batch(weight_bytes: int, token_bytes: int, context_len: int) -> int:
    raise NotImplementedError("exercise 1.4: the smallest batch that reads more cache than weights")


# pristine stub, sha256 of the lines above: cdade9ef9a57a35f
