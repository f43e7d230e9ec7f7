"""A block: the unit in which KV memory is handed out.

A block is a number and a count. The keys and values themselves lie in the tensors
of `kv_cache.KVCache`, at the index that block_id names, in every layer.
"""

from dataclasses import dataclass


# A pool may have a hundred thousand of these; without a dict of attributes each is
# smaller.
@dataclass(slots=True)
class KVBlock:
    """The allocator's record of one physical block.

    A record is made once, with the pool, and never again; allocating and freeing
    only change its ref_count. 0 means free. Source: `KVCacheBlock` in vLLM's
    v1/core/kv_cache_utils.py, less what prefix caching adds there.
    """

    block_id: int  # 0 … num_blocks - 1, fixed for life
    ref_count: int = 0  # how many hold it


def num_blocks_for(num_tokens: int, block_size: int) -> int:
    """How many blocks hold num_tokens tokens: the quotient, rounded up.

    Raises ValueError for a negative num_tokens or a block_size below 1.
    """
    if num_tokens < 0:
        raise ValueError(f"num_tokens must be >= 0, got {num_tokens}")
    if block_size < 1:
        raise ValueError(f"block_size must be >= 1, got {block_size}")
    # Blocks of 16: no token needs none, 1 and 16 tokens need one, 17 need two.
    return (num_tokens + block_size - 1) // block_size
