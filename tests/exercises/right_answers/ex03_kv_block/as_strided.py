"""Right in another way: a flat buffer, spelled-out strides, einsum, lcm."""

import math

import torch


def dense_strides(layout, sizes):
    axes = layout.split(" ")
    return {
        axis: math.prod(sizes[inner] for inner in axes[place + 1 :])
        for place, axis in enumerate(axes)
    }


def element_offset(slot, head, dim, sizes, strides):
    if slot not in range(sizes["block"] * sizes["offset"]):
        raise IndexError("no such slot")
    if head not in range(sizes["head"]) or dim not in range(sizes["dim"]):
        raise IndexError("no such head or number")
    place = slot // sizes["offset"] * strides["block"]
    place += slot % sizes["offset"] * strides["offset"]
    return place + head * strides["head"] + dim * strides["dim"]


def convert_layout(tensor, source, target):
    if set(source.split()) != set(target.split()):
        raise ValueError("other axes")
    letters = dict(zip(source.split(), "abcdefgh", strict=False))
    left = "".join(letters[axis] for axis in source.split())
    right = "".join(letters[axis] for axis in target.split())
    turned = torch.einsum(f"{left}->{right}", tensor)
    result = torch.empty(turned.shape, dtype=tensor.dtype)
    result.copy_(turned)
    return result


def aligned_stride(num_elements, element_bytes, alignment_bytes):
    multiple = math.lcm(element_bytes, alignment_bytes)
    return -(-num_elements * element_bytes // multiple) * multiple // element_bytes


def start_alignment(base_alignment, strides_bytes):
    best = base_alignment
    while any(stride % best for stride in strides_bytes) or base_alignment % best:
        best -= 1
    return best


class KVBuffer:
    """Layers lie inside of blocks here: block, layer, key or value, then the rows."""

    def __init__(self, num_layers, num_blocks, block_size, num_kv_heads, head_dim):
        self.num_layers = num_layers
        self.shape = (num_blocks, block_size, num_kv_heads, head_dim)
        self.half = block_size * num_kv_heads * head_dim
        self.flat = torch.zeros(num_layers * num_blocks * 2 * self.half)

    def view(self, layer, which):
        if layer not in range(self.num_layers):
            raise IndexError("no such layer")
        heads, dim = self.shape[2:]
        strides = (2 * self.num_layers * self.half, heads * dim, dim, 1)
        start = (2 * layer + which) * self.half
        return torch.as_strided(self.flat, self.shape, strides, start)

    def key_cache(self, layer):
        return self.view(layer, 0)

    def value_cache(self, layer):
        return self.view(layer, 1)

    def write(self, layer, slots, key, value):
        for token, slot in enumerate(slots):
            block, offset = divmod(slot, self.shape[1])
            self.key_cache(layer)[block, offset].copy_(key[token])
            self.value_cache(layer)[block, offset].copy_(value[token])
