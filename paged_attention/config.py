"""What a token costs: the sizes of a KV cache, before any tensor exists.

All arithmetic of memory stands here, in integers and bytes, so that a planner can
ask "how many blocks fit?" without importing torch.
"""

from dataclasses import dataclass, replace

# Named as torch names them: `kv_cache` finds its dtype by this name. vLLM may keep a
# cache in 8 bits beside a model of 16; here the two have one dtype.
DTYPE_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True)
class CacheConfig:
    """The shape of a KV cache; every size in bytes follows from it.

    num_blocks 0 means "not sized yet": `with_memory` fills it in.

    Raises ValueError for a size below 1 (num_blocks: below 0) or an unknown dtype.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    num_blocks: int = 0
    block_size: int = 16  # tokens
    dtype: str = "float16"

    def __post_init__(self) -> None:
        for name in ("num_layers", "num_kv_heads", "head_dim", "block_size"):
            require_at_least(1, name, getattr(self, name))
        require_at_least(0, "num_blocks", self.num_blocks)
        if self.dtype not in DTYPE_BYTES:
            known = ", ".join(DTYPE_BYTES)
            raise ValueError(f"dtype must be one of {known}, got {self.dtype!r}")

    @property
    def token_bytes(self) -> int:
        """Bytes of one token: a key and a value, per KV head, in every layer."""
        row = self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]
        # A row is a key or a value of one layer. 32 layers of 32 heads of 128 float16
        # numbers (Llama 2 7B): 2 * 32 * 8192 bytes, half a mebibyte for each token.
        return 2 * self.num_layers * row

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers (a block id means the same in each)."""
        return self.block_size * self.token_bytes

    @property
    def cache_bytes(self) -> int:
        """Bytes of the whole cache."""
        return self.num_blocks * self.block_bytes

    def with_memory(self, memory_bytes: int) -> "CacheConfig":
        """The same shape with as many blocks as fit into memory_bytes.

        Raises ValueError where not even one block fits.
        """
        require_at_least(0, "memory_bytes", memory_bytes)
        # Rounded down: less than a block is of no use to anybody.
        num_blocks = memory_bytes // self.block_bytes
        if num_blocks < 1:
            raise ValueError(
                f"memory_bytes must hold at least one block of {self.block_bytes} "
                f"bytes, got {memory_bytes}"
            )
        return replace(self, num_blocks=num_blocks)


def require_at_least(least: int, name: str, value: object) -> None:
    # bool is an int to Python, but num_layers=True is a mistake all the same.
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer >= {least}, got {value!r}")
