"""The memory of all keys and values: one allocation, cut into blocks.

A slot is the place of one token: slot = block_id * block_size + offset. Who owns
which block is not known here (`allocator`), nor which sequence it belongs to
(`block_table`): this file only writes, copies and reads where it is told.
"""

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from paged_attention.block import num_blocks_for
from paged_attention.config import CacheConfig

# Where torch puts the start of an allocation: a multiple of this many bytes
# (64 on a CPU; CUDA's caching allocator gives 512).
BASE_ALIGNMENT = 64


class KVCache:
    """Keys and values of num_blocks blocks in every layer, allocated once.

    The layout is [num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]:
    a token's key is one contiguous row in its layer, and a block id means the same
    place in each layer. Freshly made it is zeros; a block that was used before keeps
    what was in it.

    Ids and slots are checked where that is free: on the CPU. A CUDA tensor is not
    read back for it; `write` waits for one all the same, to learn how many tokens it
    skips (`kernels.cache_ops.write_kv` does not).
    """

    def __init__(self, config: CacheConfig, device: str | torch.device = "cpu") -> None:
        if config.num_blocks < 1:
            raise ValueError(f"num_blocks must be >= 1, got {config.num_blocks}")
        self.config = config
        # vLLM makes one tensor for each layer; one for all means one line to copy a
        # block.
        # On a CPU the system takes memory only for the zeros that are touched.
        device = torch.device(device)
        try:
            self._data = torch.zeros(
                config.num_layers,
                2,
                config.num_blocks,
                config.block_size,
                config.num_kv_heads,
                config.head_dim,
                dtype=getattr(torch, config.dtype),
                device=device,
            )
        except (RuntimeError, TypeError) as error:  # TypeError: no int64 counts them
            raise MemoryError(
                f"{config.num_blocks} blocks need {config.cache_bytes / 2**30:,.1f} "
                f"GiB, which could not be had on {device}"
            ) from error

    @property
    def block_alignment(self) -> int:
        """Every block starts at a multiple of this many bytes, in each layer.

        A power of two, at most BASE_ALIGNMENT. A kernel loads 16 bytes at once only
        if this is at least 16.
        """
        stride_bytes = self.key_cache(0).stride(0) * self._data.element_size()
        return math.gcd(BASE_ALIGNMENT, stride_bytes)

    def key_cache(self, layer: int) -> Tensor:
        """A view: [num_blocks, block_size, num_kv_heads, head_dim], contiguous."""
        return self._data[self._layer(layer), 0]

    def value_cache(self, layer: int) -> Tensor:
        """A view: [num_blocks, block_size, num_kv_heads, head_dim], contiguous."""
        return self._data[self._layer(layer), 1]

    def write(
        self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor
    ) -> None:
        """Put each token's key and value into its slot.

            key, value    [num_tokens, num_kv_heads, head_dim]   the cache's dtype
            slot_mapping  [num_tokens]   int64; -1 skips the token

        Raises ValueError, before anything is written, for a wrong shape or dtype or a
        slot outside the cache. Two tokens in one slot: either may win.
        """
        layer = self._layer(layer)
        self._check_slots(slot_mapping)
        self._check_rows("key", key, len(slot_mapping))
        self._check_rows("value", value, len(slot_mapping))
        # A slot of -1 marks padding: that row belongs to no token.
        kept = slot_mapping >= 0
        slots = slot_mapping[kept]
        # A layer's blocks lie without gaps, so this is a view. Were it a copy, what is
        # written would be lost.
        rows = self._data[layer].flatten(1, 2)  # [2, num_slots, heads, head_dim]
        rows[0].index_copy_(0, slots, key[kept])
        rows[1].index_copy_(0, slots, value[kept])

    def copy_blocks(
        self, pairs: Iterable[tuple[int, int]], into: "KVCache | None" = None
    ) -> None:
        """Copy whole blocks, (source, destination), as if one after the other.

        So [(0, 1), (1, 2)] puts block 0 into 1 and into 2. All layers, keys and
        values. With `into`, sources are read here and destinations written there, in
        a cache of the same shape on any device: that is how blocks are swapped.
        """
        target = self if into is None else into
        if target._block_shape != self._block_shape:
            raise ValueError(
                f"into must have blocks of shape {self._block_shape}, "
                f"got {target._block_shape}"
            )
        # Destination -> where its content is now. (0, 1), (1, 2): what block 1 gets is
        # block 0's, and so is what block 2 gets from it: {1: 0, 2: 0}.
        origin: dict[int, int] = {}
        for source, destination in pairs:
            self._check_block(source)
            target._check_block(destination)
            # In another cache the same id is another block.
            chained = target is self and source in origin
            origin[destination] = origin[source] if chained else source
        if not origin:
            return
        sources = torch.tensor(list(origin.values()), device=self._data.device)
        destinations = torch.tensor(list(origin), device=target._data.device)
        # All sources are read before any destination is written. Dimension 2 is the
        # block: this takes keys and values of all layers at once.
        content = self._data.index_select(2, sources).to(target._data.device)
        target._data.index_copy_(2, destinations, content)

    def gather(
        self, layer: int, block_ids: Sequence[int], seq_len: int
    ) -> tuple[Tensor, Tensor]:
        """Copies of the first seq_len keys and values of a sequence, in order.

        block_ids  its physical blocks; those beyond seq_len are ignored
        result     two tensors [seq_len, num_kv_heads, head_dim]
        """
        layer = self._layer(layer)
        held = len(block_ids) * self.config.block_size
        if not 0 <= seq_len <= held:
            raise ValueError(f"seq_len must be in 0 … {held}, got {seq_len}")
        num_blocks = num_blocks_for(seq_len, self.config.block_size)
        for block_id in block_ids[:num_blocks]:
            self._check_block(block_id)
        # The dtype is said for the empty list, of which torch would make floats.
        index = torch.tensor(
            block_ids[:num_blocks], dtype=torch.int64, device=self._data.device
        )
        blocks = self._data[layer].index_select(1, index)  # [2, blocks, block_size, …]
        key, value = blocks.flatten(1, 2)[:, :seq_len]
        return key, value

    @property
    def _block_shape(self) -> tuple[object, ...]:
        config = self.config
        sizes = (config.num_layers, config.block_size, config.num_kv_heads)
        return (*sizes, config.head_dim, config.dtype)

    def _layer(self, layer: int) -> int:
        # torch would take -1 for the last layer.
        if not 0 <= layer < self.config.num_layers:
            last = self.config.num_layers - 1
            raise IndexError(f"layer must be in 0 … {last}, got {layer}")
        return layer

    # torch would not name the block; on CUDA it would fail later, and for good.
    def _check_block(self, block_id: int) -> None:
        # A hole is None. type() and not isinstance, which takes True for 1.
        if type(block_id) is not int or not 0 <= block_id < self.config.num_blocks:
            last = self.config.num_blocks - 1
            raise ValueError(f"block_id must be an int in 0 … {last}, got {block_id!r}")

    def _check_slots(self, slot_mapping: Tensor) -> None:
        require_tensor("slot_mapping", slot_mapping)
        if slot_mapping.dim() != 1 or slot_mapping.dtype != torch.int64:
            raise ValueError(
                "slot_mapping must be [num_tokens] int64, "
                f"got {list(slot_mapping.shape)} {slot_mapping.dtype}"
            )
        if slot_mapping.device.type != "cpu":
            return
        num_slots = self.config.num_blocks * self.config.block_size
        wrong = slot_mapping[(slot_mapping < -1) | (slot_mapping >= num_slots)]
        if len(wrong):
            last = num_slots - 1
            raise ValueError(f"slot must be in -1 … {last}, got {int(wrong[0])}")

    def _check_rows(self, name: str, rows: Tensor, num_tokens: int) -> None:
        require_tensor(name, rows)
        config = self.config
        expected = [num_tokens, config.num_kv_heads, config.head_dim]
        if list(rows.shape) != expected or rows.dtype != self._data.dtype:
            raise ValueError(
                f"{name} must be {expected} {self._data.dtype}, "
                f"got {list(rows.shape)} {rows.dtype}"
            )
        if rows.device != self._data.device:
            raise ValueError(
                f"{name} must be on {self._data.device}, got {rows.device}"
            )


def require_tensor(name: str, value: object) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(f"{name} must be a tensor, got a {type(value).__name__}")
