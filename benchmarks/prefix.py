"""What does it cost to find a prefix again, in a small pool and in a large one?

A hit is acquire() of a prompt of which 64 blocks are known; giving the table back is
timed apart. In every pool all blocks are published, so the index is as large as it
gets. Twice: the same prompt over and over, as a shared system prompt is; and any prompt
of the pool, so that the index is read from memory and not from the processor's caches.
The tokens are always new ints, as they come from a tokenizer: Python compares one and
the same object faster. Lower quartiles of many rounds, pools taking turns: a median
moves with whatever else runs on the machine, a minimum knows only the luckiest prompt.

Then: a sequence is published again that has grown by one block, beside its first
publication; the best of a few.
"""

import gc
import random
import time
from array import array
from collections.abc import Callable
from statistics import quantiles

from rich.console import Console
from rich.table import Table

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.prefix_cache import PrefixCache

BLOCK_SIZE = 16
HIT_BLOCKS = 64
POOLS = (2_000, 20_000, 200_000)
LENGTHS = (64, 640, 6_400)  # blocks of a sequence that is published again
ROUNDS = 400

# Measured elsewhere on two cores, µs for a hit of 64 blocks in these pools.
ELSEWHERE = {"nano-vllm": "1,500 … 130,000", "vLLM": "123 … 245"}


def microseconds(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return (time.perf_counter() - start) * 1e6


def prompt_of(num_blocks: int, chance: random.Random) -> "array[int]":
    tokens = chance.choices(range(50_000), k=num_blocks * BLOCK_SIZE)
    return array("i", tokens)


def full_cache(num_blocks: int) -> tuple[PrefixCache, list["array[int]"]]:
    """A cache whose blocks are all published and unused, and the prompts it knows."""
    cache = PrefixCache(BlockAllocator(num_blocks), BLOCK_SIZE)
    chance = random.Random(0)
    prompts: list[array[int]] = []
    while cache.allocator.num_free >= HIT_BLOCKS:
        prompts.append(prompt_of(HIT_BLOCKS, chance))
        token_ids = prompts[-1].tolist()
        table = cache.acquire(token_ids)
        table.append_tokens(len(token_ids))
        cache.publish(table, token_ids)
        table.free()
    return cache, prompts


def hits(same: bool) -> dict[int, tuple[float, float]]:
    """Pool -> microseconds of acquire, and of giving the table back."""
    caches = {num_blocks: full_cache(num_blocks) for num_blocks in POOLS}
    spent: dict[int, list[tuple[float, float]]] = {pool: [] for pool in POOLS}
    chance = random.Random(0)
    for _ in range(ROUNDS):
        for num_blocks, (cache, prompts) in caches.items():
            prompt = prompts[0] if same else chance.choice(prompts)
            # One token more than is known: it is the one that is left to compute.
            token_ids = [*prompt.tolist(), 0]
            start = time.perf_counter()
            table = cache.acquire(token_ids)
            found = time.perf_counter()
            num_blocks_found = table.num_blocks
            freed = microseconds(table.free)
            assert num_blocks_found == HIT_BLOCKS, "not all of the prompt was found"
            spent[num_blocks].append(((found - start) * 1e6, freed))
    return {
        pool: (quantiles(a for a, _ in pairs)[0], quantiles(f for _, f in pairs)[0])
        for pool, pairs in spent.items()
    }


def publications(num_blocks: int) -> tuple[float, float]:
    """Best microseconds: of a first publication, and of one block more."""
    firsts: list[float] = []
    agains: list[float] = []
    chance = random.Random(0)
    for _ in range(10):
        cache = PrefixCache(BlockAllocator(num_blocks + 1), BLOCK_SIZE)
        token_ids = prompt_of(num_blocks + 1, chance).tolist()
        before = token_ids[:-BLOCK_SIZE]
        table = BlockTable(cache, BLOCK_SIZE)
        table.append_tokens(len(token_ids))
        firsts.append(microseconds(lambda t=table, c=cache, p=before: c.publish(t, p)))
        agains.append(
            microseconds(lambda t=table, c=cache, p=token_ids: c.publish(t, p))
        )
    return min(firsts), min(agains)


def main() -> None:
    gc.disable()  # a collection walks over all of a large pool, whoever caused it
    console = Console()
    columns = [f"{num_blocks:,} blocks" for num_blocks in POOLS]
    table = Table(f"hit of {HIT_BLOCKS} blocks, µs, pool of", *columns)
    for what, same in (("same prompt", True), ("any prompt", False)):
        figures = hits(same)
        smallest = figures[POOLS[0]]
        for i, name in enumerate((f"acquire, {what}", "give it back")):
            cells = [
                f"{f[i]:.0f}  {f[i] / smallest[i]:.2f} ×" for f in figures.values()
            ]
            table.add_row(name, *cells)
    for name, text in ELSEWHERE.items():
        table.add_row(f"{name} (elsewhere)", text)
    console.print(table)
    columns = [f"{num_blocks:,} blocks" for num_blocks in LENGTHS]
    table = Table("publish a sequence of, µs", *columns)
    pairs = [publications(num_blocks) for num_blocks in LENGTHS]
    table.add_row("for the first time", *(f"{first:,.0f}" for first, _ in pairs))
    table.add_row("again, one block more", *(f"{again:.1f}" for _, again in pairs))
    console.print(table)


if __name__ == "__main__":
    main()
