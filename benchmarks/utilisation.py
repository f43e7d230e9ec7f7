"""How much of the KV memory holds tokens: one region per sequence, or blocks?

A pool is kept full from a queue that never runs dry, once for each way of handing out
memory. In every step each running sequence gains a token, and each place of the pool
is counted as what it is. The lengths are drawn from log-normal distributions with the
paper's means (cv 1, seed 0), or come from a trace:

    python benchmarks/utilisation.py --trace FILE    a CSV file with the columns
        TIMESTAMP, ContextTokens, GeneratedTokens; only the order of the rows matters

Such a file is AzureLLMInferenceTrace_conv.csv, the LLM inference trace 2023 of the
Azure public dataset (github.com/Azure/AzurePublicDataset).
"""

import argparse
import json
import sys
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Protocol, TypeVar

from rich.console import Console
from rich.progress import Progress
from traffic import Request, draw_requests, read_trace

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.config import CacheConfig
from paged_attention.contiguous import (
    BuddyAllocator,
    Reservation,
    reserve_exact,
    reserve_max,
    reserve_power_of_two,
)
from paged_attention.errors import OutOfBlocksError

POLICIES = {
    "exact": reserve_exact,
    "power of two": reserve_power_of_two,
    "max": reserve_max,
}
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MEAN_LENGTHS = {"ShareGPT": (161, 338), "Alpaca": (19, 58)}  # in, out; the paper, 6.1
# OPT-13B on a GPU of 40 GB, the paper's table 1: 12 GB of cache, sequences up to 2,048.
OPT_13B = CacheConfig(num_layers=40, num_kv_heads=40, head_dim=128)
OPT_PLACES = 12 * 2**30 // OPT_13B.token_bytes
# For a trace: Llama-3-8B on a GPU of 80 GB, as in chapter 01.
LLAMA_8B = CacheConfig(num_layers=32, num_kv_heads=8, head_dim=128)
LLAMA_PLACES = (80 * 10**9 - 2 * 8_030_261_248) // LLAMA_8B.token_bytes

PARTS = ("tokens", "reserved", "internal", "rounding", "refused", "free")

# --- two ways of handing out memory -------------------------------------------------


@dataclass(slots=True)
class Count:
    """What the places of the pool were, summed over all steps that were counted."""

    memory: str
    num_places: int  # of the pool
    block_size: int | None = None
    # Six parts that make up the pool, in every step.
    tokens: int = 0
    reserved: int = 0  # will be filled before the sequence ends
    internal: int = 0  # handed out, never filled
    rounding: int = 0  # added by the allocator, never filled
    refused: int = 0  # free, enough for the next request, and yet of no use to it
    free: int = 0  # free, too few for the next request

    sequences: int = 0
    entries: int = 0  # in all block tables
    matrix: int = 0  # the same, padded to [num_seqs, max_num_blocks]
    preemptions: int = 0
    steps: int = 0

    def figures(self) -> dict[str, float | str | None]:
        """Parts in percent of the pool, the other figures as means over the steps."""
        if not self.steps:
            raise ValueError("all requests fit at once, so the pool was never full")
        places = self.num_places * self.steps
        used = places - self.refused - self.free
        mean_held = self.tokens / self.sequences
        formula = (
            None if self.block_size is None else predicted(mean_held, self.block_size)
        )
        return {
            "memory": self.memory,
            **{part: 100 * getattr(self, part) / places for part in PARTS},
            "tokens_of_used": 100 * self.tokens / used,
            "predicted_of_used": formula,
            "mean_held": mean_held,
            "sequences": self.sequences / self.steps,
            "table_entries": self.entries / self.steps,
            "matrix_entries": self.matrix / self.steps,
            "preemptions": self.preemptions,
            "steps": self.steps,
        }


def predicted(mean_held: float, block_size: int) -> float:
    """Percent of the places in used blocks that should hold tokens.

    A sequence much longer than a block ends anywhere in its last one, so that
    (block_size - 1) / 2 places of it are empty on average.
    """
    return 100 * mean_held / (mean_held + (block_size - 1) / 2)


class Growing(Protocol):
    """A sequence's memory, in one region or in blocks."""

    def append_tokens(self, n: int) -> list[int]: ...
    def free(self) -> None: ...


S = TypeVar("S", bound=Growing)
Running = list[tuple[Request, S]]  # in the order of admission


class Memory(Protocol[S]):
    def start(self, request: Request) -> S: ...
    def count(self, running: Running[S], next_one: Request, count: Count) -> None: ...


class Reserved:
    """One region per sequence."""

    def __init__(self, num_places: int, policy: str, max_len: int) -> None:
        self.policy, self.max_len = POLICIES[policy], max_len
        self.buddies = BuddyAllocator(num_places)

    def start(self, request: Request) -> Reservation:
        sequence = Reservation(self.buddies, self._places(request))
        sequence.append_tokens(request.seq_len)
        return sequence

    def count(
        self, running: Running[Reservation], next_one: Request, count: Count
    ) -> None:
        for request, sequence in running:
            waste = sequence.waste(request.final_len)
            count.tokens += sequence.num_tokens
            count.reserved += waste.reserved
            count.internal += waste.internal
            count.rounding += waste.rounding
        # It waits, so no region is large enough: because too little is free at all?
        num_free = self.buddies.num_free
        if num_free >= self._places(next_one):
            count.refused += num_free
        else:
            count.free += num_free

    def _places(self, request: Request) -> int:
        return self.policy(request.prompt_len, request.output_len, self.max_len)


class Paged:
    """Blocks, each taken when the last one is full."""

    def __init__(self, num_places: int, block_size: int) -> None:
        self.num_places, self.block_size = num_places, block_size
        self.allocator = BlockAllocator(num_places // block_size)

    def start(self, request: Request) -> BlockTable:
        sequence = BlockTable(self.allocator, self.block_size)
        # Room for the next token too, or it would have to leave at once.
        sequence.append_tokens(request.seq_len + 1)
        sequence.truncate(request.seq_len)
        return sequence

    def count(
        self, running: Running[BlockTable], next_one: Request, count: Count
    ) -> None:
        tokens = sum(sequence.num_tokens for _, sequence in running)
        blocks = [sequence.num_blocks for _, sequence in running]
        used = sum(blocks) * self.block_size
        count.tokens += tokens
        count.internal += used - tokens
        # Any free block serves anyone: what waits does so because there are too few.
        count.free += self.num_places - used
        count.entries += sum(blocks)
        count.matrix += len(blocks) * max(blocks)


# --- a full pool --------------------------------------------------------------------


def keep_full(
    count: Count,
    memory: Memory[S],
    requests: Iterable[Request],
    report: Callable[[int], object] = lambda num_admitted: None,
) -> Count:
    """Serve the requests in order, as many at once as fit; count until none waits.

    Counting begins when a tenth of them have been admitted: before, all sequences are
    young. Where a block is missing, the newest sequence has to leave and stands first
    in the queue. Raises OutOfBlocksError for one that can never fit.
    """
    waiting = deque(Request(r.prompt_len, r.output_len) for r in requests)
    running: Running[S] = []
    num_requests = len(waiting)
    while True:
        while waiting:
            try:
                sequence = memory.start(waiting[0])
            except OutOfBlocksError:
                if not running:
                    raise
                break
            running.append((waiting.popleft(), sequence))
            report(num_requests - len(waiting))
        if not waiting:
            return count
        if len(waiting) <= 0.9 * num_requests:
            memory.count(running, waiting[0], count)
            count.sequences += len(running)
            count.steps += 1
        left = _step(running)
        waiting.extendleft(left)
        count.preemptions += len(left)


def _step(running: Running[S]) -> list[Request]:
    """What is complete goes, the others gain a token; returns those that had to leave.

    Nobody needs the keys and values of the last token, so it takes no place.
    """
    for entry in [e for e in running if e[0].num_made + 1 == e[0].output_len]:
        running.remove(entry)
        entry[1].free()
    left: list[Request] = []
    i = 0
    while i < len(running):
        request, sequence = running[i]
        try:
            sequence.append_tokens(1)
        except OutOfBlocksError:
            newest, its_sequence = running.pop()  # perhaps this one itself
            its_sequence.free()
            left.append(newest)
        else:
            request.num_made += 1
            i += 1
    return left


def measure(
    requests: list[Request], num_places: int, max_len: int, progress: Progress
) -> list[Count]:
    """Every policy, then every block size."""
    counts: list[Count] = []

    def run(memory: Memory[S], count: Count) -> None:
        task = progress.add_task(count.memory, total=len(requests))
        counts.append(
            keep_full(
                count, memory, requests, lambda n: progress.update(task, completed=n)
            )
        )
        progress.remove_task(task)

    for policy in POLICIES:
        run(Reserved(num_places, policy, max_len), Count(policy, num_places))
    for size in BLOCK_SIZES:
        count = Count(f"blocks of {size}", num_places, size)
        run(Paged(num_places, size), count)
    return counts


# --- the command --------------------------------------------------------------------

COLUMNS = {  # column of the table -> figure
    "tokens": "tokens",
    "reserved": "reserved",
    "internal": "internal",
    "rounding": "rounding",
    "refused": "refused",
    "free": "free",
    "of used": "tokens_of_used",
    "formula": "predicted_of_used",
    "sequences": "sequences",
}


def show(title: str, counts: list[Count]) -> None:
    print(f"{title}\n{'percent of the pool':19}" + "".join(f"{c:>10}" for c in COLUMNS))
    for count in counts:
        figures = count.figures()
        cells = (figures[name] for name in COLUMNS.values())
        line = "".join(f"{'' if x is None else f'{x:.1f}':>10}" for x in cells)
        print(f"{count.memory:19}{line}")
    print(
        "of used: percent of the places handed out; "
        "formula: m / (m + (block_size - 1) / 2)\n"
    )


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="How much of the KV memory holds tokens?"
    )
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a CSV file")
    parser.add_argument("--places", type=int, help="tokens that the pool holds")
    parser.add_argument("--max-len", type=int, help="longest sequence of the model")
    parser.add_argument("--requests", type=int, default=2000, help="how many to draw")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--source", default="", help="where the trace is from")
    options = parser.parse_args(arguments)
    for name in ("places", "max_len", "requests"):
        value = getattr(options, name)
        if value is not None and value < 2:
            option = name.replace("_", "-")
            parser.error(f"--{option} must be at least 2, got {value}")
    return options


def workloads(options: argparse.Namespace) -> dict[str, list[Request]]:
    """Name -> requests; sets places and max_len where they were not given."""
    if options.trace is None:
        options.places = options.places or OPT_PLACES
        options.max_len = options.max_len or 2048
        return {
            name: draw_requests(*means, options.requests, options.max_len)
            for name, means in MEAN_LENGTHS.items()
        }
    requests = read_trace(options.trace)
    longest = max(request.final_len for request in requests)
    options.places = options.places or LLAMA_PLACES
    options.max_len = options.max_len or 1 << (longest - 1).bit_length()
    served = [r for r in requests if r.final_len <= options.max_len]
    if not served:
        raise ValueError(f"no request is short enough for {options.max_len} tokens")
    if left_out := len(requests) - len(served):
        print(f"{left_out:,} requests longer than {options.max_len:,} are left out")
    return {options.trace.name: served}


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    written: list[dict[str, object]] = []
    try:
        for name, requests in workloads(options).items():
            n = len(requests)
            mean_in = sum(r.prompt_len for r in requests) / n
            mean_out = sum(r.output_len for r in requests) / n
            with _progress() as progress:
                counts = measure(requests, options.places, options.max_len, progress)
            title = (
                f"{name}: {n:,} requests, on average {mean_in:,.0f} tokens in and "
                f"{mean_out:,.0f} out;\na pool of {options.places:,} places, sequences "
                f"up to {options.max_len:,}"
            )
            show(title, counts)
            written.append(
                {
                    "name": name,
                    "num_requests": n,
                    "mean_in": mean_in,
                    "mean_out": mean_out,
                    "longest": max(r.final_len for r in requests),
                    "figures": [count.figures() for count in counts],
                }
            )
        if options.json is not None:
            options.json.write_text(_as_json(options, written) + "\n")
    except (OSError, ValueError, OutOfBlocksError) as error:
        print(f"utilisation.py: {error}", file=sys.stderr)
        return 2
    return 0


def _progress() -> Progress:
    console = Console(stderr=True)
    return Progress(console=console, transient=True, disable=not console.is_terminal)


def _as_json(options: argparse.Namespace, written: list[dict[str, object]]) -> str:
    result = {
        "source": options.source,
        "made_by": "benchmarks/utilisation.py",
        "date": str(date.today()),
        "places": options.places,
        "max_len": options.max_len,
        "workloads": written,
    }
    rounded = json.loads(json.dumps(result), parse_float=lambda x: round(float(x), 2))
    return json.dumps(rounded, indent=1)


if __name__ == "__main__":
    sys.exit(main())
