"""Exercise 03: how blocks of keys and values lie in memory.

Grade with `course grade 3`. The tasks do not depend on each other. An offset or stride
counts elements (numbers), not bytes, unless its name ends in _bytes. Lists, dicts and
tensors that a function is given are the same after the call.

A layout is a string that names the axes of a tensor, outermost first, separated by one
blank. Names are "block" (physical blocks), "offset" (tokens of a block), "head" (KV
heads) and "dim" (numbers of a head), all four or some of them. "block offset head dim"
is the layout that is called NHD, "block head offset dim" the one called HND; any other
order may come as well. sizes is a dict with the size of each axis by its name:
sizes["offset"] is block_size.


Task 3.1   dense_strides(layout, sizes) -> dict[str, int]
           element_offset(slot, head, dim, sizes, strides) -> int

dense_strides: the stride of each axis of a tensor in this layout without any gaps, by
the name of the axis. The last axis has stride 1. (The order of the dict is free.)

element_offset: where in a buffer number dim of head `head` of the token in this slot
lies, counted from the buffer's first element.

    slot      int, block_id * block_size + offset
    sizes     the sizes of the four axes, in any order
    strides   the stride of each of the four axes; they need not be dense
    IndexError for a slot, head or dim that does not exist, -1 included


Task 3.2   convert_layout(tensor, source, target) -> torch.Tensor

The same numbers in another layout. tensor has the axes of the layout `source`, the
result those of the layout `target`: the element with certain indices of block, offset,
head and dim stays the same.

    tensor    any dtype; it may itself be a view that is not contiguous
    result    contiguous, in memory of its own, also where source equals target: writing
              to it leaves tensor as it was
    ValueError if source and target do not have the same names


Task 3.3   aligned_stride(num_elements, element_bytes, alignment_bytes) -> int
           start_alignment(base_alignment, strides_bytes) -> int

aligned_stride: rows of num_elements elements lie one after the other. How many elements
must lie between the starts of two neighbours, so that every row starts at a multiple of
alignment_bytes if the first one does? The smallest such number that is at least
num_elements; padding fills the rest. element_bytes and alignment_bytes are 1 or more;
neither need be a multiple of the other, nor a power of two.

start_alignment: a buffer starts at a multiple of base_alignment bytes. Which alignment
have the starts of all blocks, heads and so on in it? They lie at base + the sum of
index * stride over some axes; strides_bytes (a list[int], 1 or more each, may be empty)
are their strides in bytes. The largest number of bytes that divides all these
addresses, for whatever indices.


Task 3.4   class KVBuffer(num_layers, num_blocks, block_size, num_kv_heads, head_dim)

Keys and values of all layers in one allocation, in which the keys and the values of a
block lie side by side.

    KVBuffer(num_layers, num_blocks, block_size, num_kv_heads, head_dim)
        float32, zeros
    .key_cache(layer) -> torch.Tensor
    .value_cache(layer) -> torch.Tensor
        [num_blocks, block_size, num_kv_heads, head_dim] each;
        IndexError for a layer that does not exist, -1 included
    .write(layer, slots, key, value) -> None
        slots    list[int]: a slot (block_id * block_size + offset) for each token,
                 each one valid and at most once
        key      [num_tokens, num_kv_heads, head_dim]   float32; value the same
        afterwards key_cache and value_cache of this layer show them at their slots

key_cache and value_cache return views, not copies: all of them share one storage, which
holds exactly the numbers of all keys and values, and writing to one of them changes the
buffer. Within one block of a layer, the block_size * num_kv_heads * head_dim numbers of
the keys lie without gaps in the order offset, head, dim, and those of the values follow
right behind. (Hence key_cache(layer) as a whole is not contiguous.)
"""

import torch
from torch import Tensor


def dense_strides(layout: str, sizes: dict[str, int]) -> dict[str, int]:
    raise NotImplementedError("exercise 3.1: the stride of each axis without gaps")


def element_offset(
    slot: int, head: int, dim: int, sizes: dict[str, int], strides: dict[str, int]
) -> int:
    raise NotImplementedError("exercise 3.1: the place of one number")


def convert_layout(tensor: Tensor, source: str, target: str) -> Tensor:
    raise NotImplementedError("exercise 3.2: the same numbers in another order")


def aligned_stride(num_elements: int, element_bytes: int, alignment_bytes: int) -> int:
    raise NotImplementedError("exercise 3.3: the smallest stride that keeps the alignment")


def start_alignment(base_alignment: int, strides_bytes: list[int]) -> int:
    raise NotImplementedError("exercise 3.3: the alignment that all starts have")


class KVBuffer:
    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None:
        raise NotImplementedError("exercise 3.4: one allocation")

    def key_cache(self, layer: int) -> Tensor:
        raise NotImplementedError("exercise 3.4: a view of the keys")

    def value_cache(self, layer: int) -> Tensor:
        raise NotImplementedError("exercise 3.4: a view of the values")

    def write(self, layer: int, slots: list[int], key: Tensor, value: Tensor) -> None:
        raise NotImplementedError("exercise 3.4: put each token into its slot")


# pristine stub, sha256 of the lines above: fe052395d8a15f89
