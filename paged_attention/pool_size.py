"""How many blocks a KV cache gets when nobody says it."""

from dataclasses import replace

import torch

from paged_attention.block import num_blocks_for
from paged_attention.config import CacheConfig

CPU_MEMORY = 2**30  # bytes; the system takes them only as they are touched
CUDA_SHARE = 0.8  # of what is free once the model is loaded


def sized(
    shape: CacheConfig,
    num_blocks: int | None,
    memory_bytes: int | None,
    most_tokens: int,
    device: torch.device,
) -> CacheConfig:
    """shape with num_blocks, or with as many as fit into memory_bytes.

    Given neither: into a memory of the device's kind, but no more than hold
    most_tokens.
    """
    if num_blocks is not None and memory_bytes is not None:
        raise ValueError("give num_blocks or memory_bytes, not both")
    if num_blocks is not None:
        return replace(shape, num_blocks=num_blocks)
    if memory_bytes is not None:
        return shape.with_memory(memory_bytes)
    memory = CPU_MEMORY
    if device.type == "cuda":
        memory = int(torch.cuda.mem_get_info(device)[0] * CUDA_SHARE)
    fitting = shape.with_memory(memory).num_blocks
    useful = num_blocks_for(most_tokens, shape.block_size)
    return replace(shape, num_blocks=min(fitting, useful))
