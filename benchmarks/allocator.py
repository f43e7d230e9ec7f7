"""What does a block cost, handed out and taken back?

Beside a bare list of ids in the same run: no records, no counts, no checks, no lock.
The lock is timed alone: what two uses of it cost, spread over the batch. Figures are
the best of many rounds, interleaved; ratios travel between machines, microseconds do
not.
"""

import threading
import timeit
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from paged_attention.allocator import BlockAllocator

NUM_BLOCKS = 4_096
ROUNDS = 60
BLOCKS_PER_ROUND = 4_096

# Measured elsewhere on one machine, µs per block in batches of 1, 8 and 64, with the
# bare list of that machine: only the ratio to it is used here.
ELSEWHERE = {
    "nano-vllm": (0.72, 0.35, 0.29),
    "vLLM, caching off": (0.96, 0.33, 0.21),
}
BARE_LIST_ELSEWHERE = (0.40, 0.09, 0.04)
BATCHES = (1, 8, 64)


class BareList:
    """The least that could be called an allocator."""

    def __init__(self, num_blocks: int) -> None:
        self.free = list(range(num_blocks))

    def allocate_many(self, n: int) -> list[int]:
        return [self.free.pop() for _ in range(n)]

    def free_many(self, block_ids: list[int]) -> None:
        for block_id in block_ids:
            self.free.append(block_id)


LOCK = threading.Lock()


def two_locks() -> None:
    """What one batch spends on locks: allocate_many takes it, and so does free_many."""
    LOCK.acquire()
    LOCK.release()
    LOCK.acquire()
    LOCK.release()


def no_lock() -> None:
    pass


def batch_of(pool: BareList | BlockAllocator, n: int) -> Callable[[], None]:
    return lambda: pool.free_many(pool.allocate_many(n))


def one_of(pool: BlockAllocator) -> Callable[[], None]:
    return lambda: pool.free(pool.allocate())


def best_microseconds(jobs: dict[str, Callable[[], None]], n: int) -> dict[str, float]:
    """Microseconds per block of each job, all jobs taking turns."""
    best = dict.fromkeys(jobs, float("inf"))
    number = BLOCKS_PER_ROUND // n
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            seconds = timeit.timeit(job, number=number)
            best[name] = min(best[name], seconds / (number * n) * 1e6)
    return best


def main() -> None:
    bare, ours = BareList(NUM_BLOCKS), BlockAllocator(NUM_BLOCKS)
    table = Table("per block", *(f"batches of {n}" for n in BATCHES))
    rows: dict[str, list[str]] = {}
    for i, n in enumerate(BATCHES):
        jobs = {
            "bare list": batch_of(bare, n),
            "ours": batch_of(ours, n),
            "of that, the lock": two_locks,
            "nothing": no_lock,
        }
        if n == 1:
            jobs["ours, one at a time"] = one_of(ours)
        best = best_microseconds(jobs, n)
        best["of that, the lock"] -= best.pop("nothing")
        for name, microseconds in best.items():
            ratio = microseconds / best["bare list"]
            rows.setdefault(name, []).append(f"{microseconds:.3f} µs  {ratio:.1f} ×")
        for name, figures in ELSEWHERE.items():
            ratio = figures[i] / BARE_LIST_ELSEWHERE[i]
            rows.setdefault(f"{name} (elsewhere)", []).append(f"{'':8}  {ratio:.1f} ×")
    print("allocate and free, beside a bare list of ids:")
    for name, cells in rows.items():
        table.add_row(name, *cells)
    Console().print(table)


if __name__ == "__main__":
    main()
