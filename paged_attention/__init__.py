"""PagedAttention, small and exact: blocks, tables, sharing, kernels, a scheduler.

Names are loaded when they are first used, so that `import paged_attention` needs
neither torch nor Triton nor a GPU.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paged_attention.allocator import BlockAllocator
    from paged_attention.attention import paged_attention
    from paged_attention.block import KVBlock, num_blocks_for
    from paged_attention.block_table import BlockTable
    from paged_attention.config import CacheConfig
    from paged_attention.engine import Engine
    from paged_attention.errors import (
        DoubleFreeError,
        OutOfBlocksError,
        SharedBlockError,
    )
    from paged_attention.kv_cache import KVCache
    from paged_attention.params import SamplingParams
    from paged_attention.prefix_cache import PrefixCache
    from paged_attention.scheduler import Scheduler
    from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
    from paged_attention.sharing import copy_on_write, fork
    from paged_attention.step_plan import StepPlan

# The same names in three places: above for type checkers and editors, which run
# nothing, here for the first use, and below for `from paged_attention import *`.
_MODULE_OF = {
    "BlockAllocator": "allocator",
    "BlockTable": "block_table",
    "CacheConfig": "config",
    "DoubleFreeError": "errors",
    "Engine": "engine",
    "KVBlock": "block",
    "KVCache": "kv_cache",
    "OutOfBlocksError": "errors",
    "PrefixCache": "prefix_cache",
    "SamplingParams": "params",
    "Scheduler": "scheduler",
    "Sequence": "sequence",
    "SequenceGroup": "sequence",
    "SequenceStatus": "sequence",
    "SharedBlockError": "errors",
    "StepPlan": "step_plan",
    "copy_on_write": "sharing",
    "fork": "sharing",
    "num_blocks_for": "block",
    "paged_attention": "attention",
}

__all__ = [
    "BlockAllocator",
    "BlockTable",
    "CacheConfig",
    "DoubleFreeError",
    "Engine",
    "KVBlock",
    "KVCache",
    "OutOfBlocksError",
    "PrefixCache",
    "SamplingParams",
    "Scheduler",
    "Sequence",
    "SequenceGroup",
    "SequenceStatus",
    "SharedBlockError",
    "StepPlan",
    "copy_on_write",
    "fork",
    "num_blocks_for",
    "paged_attention",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'paged_attention' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
