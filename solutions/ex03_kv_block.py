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

# BEGIN NOTES
import math

# isort: split
# END NOTES
import torch
from torch import Tensor


def dense_strides(layout: str, sizes: dict[str, int]) -> dict[str, int]:
    # BEGIN SOLUTION 3.1: the stride of each axis without gaps
    strides: dict[str, int] = {}
    stride = 1
    for axis in reversed(layout.split()):
        strides[axis] = stride
        stride *= sizes[axis]
    return strides
    # END SOLUTION


def element_offset(
    slot: int, head: int, dim: int, sizes: dict[str, int], strides: dict[str, int]
) -> int:
    # BEGIN SOLUTION 3.1: the place of one number
    block, offset = divmod(slot, sizes["offset"])
    index = {"block": block, "offset": offset, "head": head, "dim": dim}
    for axis, i in index.items():
        if not 0 <= i < sizes[axis]:
            raise IndexError(f"{axis} must be in 0 … {sizes[axis] - 1}, got {i}")
    return sum(index[axis] * strides[axis] for axis in index)
    # END SOLUTION


def convert_layout(tensor: Tensor, source: str, target: str) -> Tensor:
    # BEGIN SOLUTION 3.2: the same numbers in another order
    source_axes, target_axes = source.split(), target.split()
    if sorted(source_axes) != sorted(target_axes):
        raise ValueError(f"{source!r} and {target!r} do not name the same axes")
    permuted = tensor.permute([source_axes.index(axis) for axis in target_axes])
    # clone, since `contiguous` hands back the tensor itself where nothing has to move.
    return permuted.clone(memory_format=torch.contiguous_format)
    # END SOLUTION


def aligned_stride(num_elements: int, element_bytes: int, alignment_bytes: int) -> int:
    # BEGIN SOLUTION 3.3: the smallest stride that keeps the alignment
    # The fewest elements whose bytes are a multiple of the alignment.
    step = alignment_bytes // math.gcd(alignment_bytes, element_bytes)
    return (num_elements + step - 1) // step * step
    # END SOLUTION


def start_alignment(base_alignment: int, strides_bytes: list[int]) -> int:
    # BEGIN SOLUTION 3.3: the alignment that all starts have
    return math.gcd(base_alignment, *strides_bytes)
    # END SOLUTION


class KVBuffer:
    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_kv_heads: int,
        head_dim: int,
    ) -> None:
        # BEGIN SOLUTION 3.4: one allocation
        self._data = torch.zeros(
            num_layers, num_blocks, 2, block_size, num_kv_heads, head_dim
        )
        # END SOLUTION

    def key_cache(self, layer: int) -> Tensor:
        # BEGIN SOLUTION 3.4: a view of the keys
        return self._half(layer, 0)
        # END SOLUTION

    def value_cache(self, layer: int) -> Tensor:
        # BEGIN SOLUTION 3.4: a view of the values
        return self._half(layer, 1)
        # END SOLUTION

    def write(self, layer: int, slots: list[int], key: Tensor, value: Tensor) -> None:
        # BEGIN SOLUTION 3.4: put each token into its slot
        block_size = self._data.shape[3]
        slot = torch.tensor(slots, dtype=torch.int64)
        block_id, offset = slot // block_size, slot % block_size
        self.key_cache(layer)[block_id, offset] = key
        self.value_cache(layer)[block_id, offset] = value
        # END SOLUTION

    # BEGIN NOTES
    def _half(self, layer: int, half: int) -> Tensor:
        num_layers = self._data.shape[0]
        if not 0 <= layer < num_layers:
            raise IndexError(f"layer must be in 0 … {num_layers - 1}, got {layer}")
        return self._data[layer, :, half]

    # END NOTES


# BEGIN NOTES
# 3.1  Go through the axes by name, never by position: then one loop serves all layouts,
# and padding is only another number in `strides`. The slot needs a check of its
# own: divmod(-1, 4) is (-1, 3), so the block that comes out is what is out of range.
#
# 3.2  For each axis of the result, permute wants its place in the source. The inverse
# list is right for every swap of two axes, NHD to HND among them, and wrong for a
# rotation. `reshape` to the new shape keeps the bytes and mixes up the meaning.
# Alternatives: torch.einsum("bohd->bhod", tensor) with letters of one's own; numpy's
# transpose; copying into torch.empty(new_shape).
#
# 3.3  Elements of 2 bytes, an alignment of 16: multiples of 8 elements. Elements of 6
# bytes (three numbers packed together): 16 / gcd(16, 6) = 8 elements are 48 bytes, the
# least common multiple. Rounding the bytes up and dividing by 6 fails there.
# The alignment of all starts is the greatest common divisor: each address is a sum of
# multiples of it, and the base plus one step along one axis alone already leave no
# larger number.
#
# 3.4  One tensor with an axis of 2 inside the block; an index with a plain number gives
# a view. The trap is in `write`: key_cache(layer).reshape(-1, heads, dim)[slots] = key
# looks right, but the blocks of K are not next to each other, so `reshape` has to copy,
# and the write goes into the copy (`view` would raise an error, which is the better
# answer). Alternative: a flat torch.zeros(n) and as_strided with
# ((2 * b, h * d, d, 1), b = block_size * h * d), which spells the addresses out.
# END NOTES
