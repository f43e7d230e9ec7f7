"""Runs in the worker: hashes of many contents, steps and growth of an index.

The pools here are the package's; nothing asks the grader in the middle of a count.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from course.interleave import count_opcodes
from paged_attention.allocator import BlockAllocator

BLOCK_SIZE = 4


def all_hashes(
    block_hashes: Callable[[list[int], int], list[int]],
    prompts: list[list[int]],
    block_size: int,
) -> list[list[int]]:
    """block_hashes of each prompt."""
    return [block_hashes(prompt, block_size) for prompt in prompts]


def steps_of_match(index_class: Callable[..., Any], num_known: int) -> dict[str, int]:
    """Opcodes of a match of two blocks, among so many that are remembered."""
    index = index_class(BlockAllocator(num_known), BLOCK_SIZE)
    for block_id in range(0, num_known, 2):
        index.remember([block_id, block_id + 1], [block_id] * 2 * BLOCK_SIZE)
    prompt = [num_known // 2] * 2 * BLOCK_SIZE + [0]
    return {"match": count_opcodes(lambda: index.match(prompt))}


def steps_of_eviction(
    index_class: Callable[..., Any], num_blocks: int
) -> dict[str, int]:
    """Opcodes of each method, in a pool of which the index holds every block."""
    index = _full_index(index_class, num_blocks)
    prompt = [num_blocks // 2] * (2 * BLOCK_SIZE)
    steps: dict[str, int] = {}

    def counted(name: str, action: Callable[[], Any]) -> Any:
        results: list[Any] = []
        steps[name] = count_opcodes(lambda: results.append(action()))
        return results[0]

    counted("num_free", lambda: index.num_free)
    blocks = counted("acquire", partial(index.acquire, [*prompt, 0]))
    counted("release", partial(index.release, blocks))
    blocks = counted("allocate_many", partial(index.allocate_many, 2))
    counted("publish", partial(index.publish, blocks, [num_blocks] * 2 * BLOCK_SIZE))
    return steps


def microseconds_of_use(
    index_class: Callable[..., Any], num_blocks: int
) -> dict[str, float]:
    """The processor time of the fastest of ten calls, in a pool like that.

    Opcodes don't show what `list.remove` or `in` do inside; time does.
    """
    index = _full_index(index_class, num_blocks)
    prompt = [num_blocks // 2] * (2 * BLOCK_SIZE) + [0]
    acquires: list[float] = []
    releases: list[float] = []
    for _ in range(10):
        start = time.thread_time()
        blocks = index.acquire(prompt)
        between = time.thread_time()
        index.release(blocks)
        acquires.append(between - start)
        releases.append(time.thread_time() - between)
    return {"acquire": min(acquires) * 1e6, "release": min(releases) * 1e6}


def growth(index_class: Callable[..., Any], num_sequences: int) -> dict[str, int]:
    """Python's blocks of memory in use half way and at the end of an index's life.

    Each sequence is another one, and the pool has room for three of them.
    """
    index = index_class(BlockAllocator(6), BLOCK_SIZE)
    in_use = {}
    for number in range(num_sequences):
        if number == num_sequences // 2:
            in_use["half way"] = sys.getallocatedblocks()
        _one_sequence(index, number)
    return in_use | {"at the end": sys.getallocatedblocks()}


def _full_index(index_class: Callable[..., Any], num_blocks: int) -> Any:
    """An index that alone holds every block of its pool."""
    index = index_class(BlockAllocator(num_blocks), BLOCK_SIZE)
    for first in range(0, num_blocks, 2):
        _one_sequence(index, first)
    return index


def _one_sequence(index: Any, number: int) -> None:
    tokens = [number] * (2 * BLOCK_SIZE)
    blocks = index.allocate_many(2)
    index.publish(blocks, tokens)
    index.release(blocks)
