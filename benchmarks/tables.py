"""What does a token cost in a block table: its room, and its slot?

One by one, as a decode step does it for one sequence, and in bulk, as a prefill does.
Per token, the best of many rounds that take turns. "A list of numbers" is the least
that slots could cost: as many ints that do not come out of any table.
"""

import timeit
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable

NUM_TOKENS = 1_024
BLOCK_SIZES = (1, 16, 128)
ROUNDS = 30


def append_in_bulk(pool: BlockAllocator, block_size: int) -> None:
    table = BlockTable(pool, block_size)
    table.append_tokens(NUM_TOKENS)
    table.free()


def append_one_by_one(pool: BlockAllocator, block_size: int) -> None:
    table = BlockTable(pool, block_size)
    for _ in range(NUM_TOKENS):
        table.append_tokens(1)
    table.free()


def slots_one_by_one(table: BlockTable) -> list[int]:
    return [table.slot(position) for position in range(NUM_TOKENS)]


def best_microseconds(jobs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Microseconds per token of each job, all jobs taking turns."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            microseconds = timeit.timeit(job, number=5) / 5 / NUM_TOKENS * 1e6
            best[name] = min(best[name], microseconds)
    return best


def jobs_for(block_size: int) -> dict[str, Callable[[], object]]:
    pool = BlockAllocator(2 * NUM_TOKENS)
    table = BlockTable(pool, block_size)
    table.append_tokens(NUM_TOKENS)
    return {
        "append, one by one": lambda: append_one_by_one(pool, block_size),
        "append, in bulk": lambda: append_in_bulk(pool, block_size),
        "slots, one by one": lambda: slots_one_by_one(table),
        "slots, in bulk": lambda: table.slots(0, NUM_TOKENS),
        "a list of numbers": lambda: list(range(NUM_TOKENS)),
    }


def main() -> None:
    columns = [f"blocks of {block_size}" for block_size in BLOCK_SIZES]
    table = Table(f"µs per token, of {NUM_TOKENS:,}", *columns)
    figures = [best_microseconds(jobs_for(size)) for size in BLOCK_SIZES]
    for name in figures[0]:
        table.add_row(name, *(f"{best[name]:.4f}" for best in figures))
    for what in ("append", "slots"):
        ratios = [b[f"{what}, one by one"] / b[f"{what}, in bulk"] for b in figures]
        table.add_row(f"{what}: bulk is", *(f"{r:.0f} × as fast" for r in ratios))
    Console().print(table)


if __name__ == "__main__":
    main()
