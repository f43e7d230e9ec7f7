"""What does the bookkeeping of a decode step cost, per sequence and token?

All that stands between two forward passes of the engine: schedule (which takes the
blocks and makes the lists of the plan) and finish_step (which publishes full blocks and
appends the tokens). Every sequence is at another place of its last block, so that each
step fills some. In CPU time, so that what else runs on the machine is not counted, and
the lower quartile of many rounds, each of 16 steps; 1, 8, 32 and 64 sequences, with and
without prefix cache, take turns.

    python benchmarks/scheduler.py [--json FILE]
"""

import argparse
import gc
import json
import os
import platform
import sys
import time
from datetime import date
from pathlib import Path

from rich.console import Console
from rich.table import Table

from paged_attention.allocator import BlockAllocator
from paged_attention.params import SamplingParams
from paged_attention.prefix_cache import PrefixCache
from paged_attention.scheduler import Scheduler
from paged_attention.sequence import Sequence

BLOCK_SIZE = 16
NUM_SEQS = (1, 8, 32, 64)
PROMPT_LEN = 256
STEPS = BLOCK_SIZE  # in a round: every sequence fills one block
ROUNDS = 60

# Measured elsewhere on two cores: µs per sequence and token, vLLM's manager alone; and
# the step of SmolLM2 on 32 sequences that this stands beside, in ms.
VLLM_MICROSECONDS = "6.4 … 7.8"
SMOLLM2_STEP = 130


class Decoding:
    """A scheduler whose sequences have all finished their prompts."""

    def __init__(self, num_seqs: int, prefix_caching: bool) -> None:
        self.num_seqs = num_seqs
        length = PROMPT_LEN + (ROUNDS + 2) * STEPS
        pool = BlockAllocator(num_seqs * (length // BLOCK_SIZE + 2))
        self.scheduler = Scheduler(
            pool,
            BLOCK_SIZE,
            token_budget=num_seqs * length,
            max_seqs=num_seqs,
            prefix_cache=PrefixCache(pool, BLOCK_SIZE) if prefix_caching else None,
        )
        for i in range(num_seqs):
            prompt_len = PROMPT_LEN - i % BLOCK_SIZE
            prompt = list(range(length * i, length * i + prompt_len))
            params = SamplingParams(max_tokens=length - PROMPT_LEN)
            self.scheduler.add(Sequence(i, prompt, params))
        self.scheduler.schedule()
        self.scheduler.finish_step([[1]] * num_seqs)

    def round(self) -> tuple[float, float]:
        """Microseconds per sequence and token, of schedule and of finish_step."""
        scheduling = finishing = 0.0
        for step in range(STEPS):
            # As they come from a tokenizer: new numbers, in a list of their own each.
            new_tokens = [[1000 + step + i] for i in range(self.num_seqs)]
            start = time.thread_time()
            self.scheduler.schedule()
            planned = time.thread_time()
            self.scheduler.finish_step(new_tokens)
            finishing += time.thread_time() - planned
            scheduling += planned - start
        num_tokens = STEPS * self.num_seqs
        return 1e6 * scheduling / num_tokens, 1e6 * finishing / num_tokens


def measure() -> dict[str, dict[int, tuple[float, float]]]:
    """Cache on or off -> number of sequences -> microseconds of the two calls."""
    contenders = {
        (cache, n): Decoding(n, cache == "with prefix cache")
        for cache in ("with prefix cache", "without")
        for n in NUM_SEQS
    }
    rounds: dict[tuple[str, int], list[tuple[float, float]]] = {
        key: [] for key in contenders
    }
    gc.disable()
    for _ in range(ROUNDS):
        for key, decoding in contenders.items():
            rounds[key].append(decoding.round())
        gc.collect()
    gc.enable()
    result: dict[str, dict[int, tuple[float, float]]] = {}
    for (cache, n), times in rounds.items():
        # Of whole rounds, so that the two parts belong together.
        ordered = sorted(times, key=sum)
        result.setdefault(cache, {})[n] = ordered[len(ordered) // 4]
    return result


def show(result: dict[str, dict[int, tuple[float, float]]]) -> None:
    table = Table(title="Bookkeeping of a decode step, µs per sequence and token")
    for name in ("sequences", "prefix cache", "schedule", "finish_step", "together"):
        table.add_column(name, justify="right")
    for cache, by_num in result.items():
        for n, (scheduling, finishing) in by_num.items():
            together = scheduling + finishing
            cells = (scheduling, finishing, together)
            table.add_row(str(n), cache, *(f"{x:.2f}" for x in cells))
    Console().print(table)
    step = 32 * sum(result["with prefix cache"][32]) / 1000
    print(
        f"32 sequences with prefix cache: {step:.2f} ms per step, "
        f"{100 * step / SMOLLM2_STEP:.2f} % of a SmolLM2 decode step of about "
        f"{SMOLLM2_STEP} ms on two cores"
    )
    print(f"elsewhere: vLLM's KV cache manager alone {VLLM_MICROSECONDS} µs")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What does the bookkeeping cost?")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    options = parser.parse_args(arguments)
    result = measure()
    show(result)
    if options.json is not None:
        written = {
            "made_by": "benchmarks/scheduler.py",
            "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
            "python": platform.python_version(),
            "date": str(date.today()),
            "block_size": BLOCK_SIZE,
            "microseconds": {
                cache: {
                    n: {"schedule": round(a, 2), "finish_step": round(b, 2)}
                    for n, (a, b) in by_num.items()
                }
                for cache, by_num in result.items()
            },
        }
        options.json.write_text(json.dumps(written, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
