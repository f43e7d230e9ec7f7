"""A stream of requests through scheduler, block tables and prefix cache.

The bookkeeping is the real one, the model is not: it takes any token, and says how long
a step would have taken. Simulated time passes by that; a request is added when its time
has come.

    python benchmarks/replay.py --trace FILE    a CSV file with the columns
        TIMESTAMP, ContextTokens, GeneratedTokens

Such a file is AzureLLMInferenceTrace_conv.csv, the LLM inference trace 2023 of the
Azure public dataset (github.com/Azure/AzurePublicDataset). Without one, requests with
the paper's mean lengths for ShareGPT come at random times.

A trace has no texts, so every prompt is its own; cached blocks are found again only by
those that were preempted, and where --shared-prompt says that all begin alike.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from datetime import date
from itertools import accumulate
from pathlib import Path
from statistics import mean, median

from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from traffic import Request, draw_requests, read_arrivals, read_trace

from paged_attention.allocator import BlockAllocator
from paged_attention.params import SamplingParams
from paged_attention.prefix_cache import PrefixCache
from paged_attention.scheduler import Scheduler
from paged_attention.sequence import Sequence
from paged_attention.step_plan import StepPlan

SHARE_GPT = (161, 338)  # mean tokens in and out; the paper, 6.1
LONGEST = 1 << 20  # tokens of one request, so that all prompts can be told apart


@dataclass(frozen=True)
class Machine:
    """How long a step takes: Llama-3-8B in 16 bits on an A100, by its data sheet.

    The weights are read once, and every new token costs its operations, at the same
    time: the longer one counts. Then the keys and values of all tokens held are read,
    and what is swapped is copied. Nothing of this was measured.
    """

    weight_bytes: float = 16.1e9
    token_bytes: float = 131_072
    operations: float = 16.1e9  # for a token
    bandwidth: float = 2.0e12  # bytes a second
    speed: float = 156e12  # operations a second: half of what the data sheet says
    host_bandwidth: float = 25e9  # bytes a second, for what is swapped

    def seconds(self, plan: StepPlan, block_size: int) -> float:
        weights = self.weight_bytes / self.bandwidth
        compute = plan.num_tokens * self.operations / self.speed
        held_bytes = sum(plan.seq_lens) * self.token_bytes
        num_swapped = len(plan.swap_out) + len(plan.swap_in)
        swapped_bytes = num_swapped * block_size * self.token_bytes
        return (
            max(weights, compute)
            + held_bytes / self.bandwidth
            + swapped_bytes / self.host_bandwidth
        )


@dataclass(slots=True)
class Record:
    """What happened, summed over all steps."""

    num_requests: int
    finished: int = 0
    simulated: float = 0.0  # seconds
    steps: int = 0
    tokens: int = 0  # computed in all steps
    needed: int = 0  # that would have been computed if nobody had been preempted
    most_running: int = 0
    preemptions: int = 0
    blocks_swapped_out: int = 0
    # While somebody waits. A block that several tables share counts for each of them,
    # except in the pool.
    full_steps: int = 0
    held: int = 0  # tokens in all tables
    listed: int = 0  # blocks in all tables
    in_use: int = 0  # blocks of the pool
    waited: list[float] = field(default_factory=list)  # seconds, until its first step
    first_token: list[float] = field(default_factory=list)  # seconds, from its arrival
    # Bookkeeping: add, schedule, finish_step, in seconds of CPU time, so that what else
    # runs on this machine is not counted. Of each step; of those that only decode.
    bookkeeping: list[float] = field(default_factory=list)
    decode_seconds: float = 0.0
    decode_rows: int = 0


class Replay:
    """A scheduler, a clock, and what is to come."""

    def __init__(
        self,
        requests: list[Request],
        arrivals: list[float],
        options: argparse.Namespace,
    ) -> None:
        self.requests, self.arrivals, self.options = requests, arrivals, options
        size = options.block_size
        self.pool = BlockAllocator(options.places // size)
        self.cache = None if options.no_cache else PrefixCache(self.pool, size)
        host_blocks = options.host_places // size
        self.scheduler = Scheduler(
            self.pool,
            size,
            token_budget=options.budget,
            max_seqs=options.max_seqs,
            prefix_cache=self.cache,
            host_allocator=BlockAllocator(host_blocks) if host_blocks else None,
        )
        self.machine = Machine()
        self.now = 0.0
        self.record = Record(len(requests))
        self.num_added = 0
        self.not_started: set[object] = set()

    def run(self, report: Callable[[Record], object]) -> Record:
        record = self.record
        while record.finished < record.num_requests:
            if self.num_added == record.finished:  # nobody is here: to the next one
                self.now = max(self.now, self.arrivals[self.num_added])
            self.step()
            if record.steps % 100 == 0:
                report(record)
        record.simulated = self.now
        record.preemptions = self.scheduler.num_preemptions
        if self.in_use:
            raise AssertionError(
                f"all requests are finished, and {self.in_use} of "
                f"{self.pool.num_blocks} blocks are not free"
            )
        return record

    @property
    def in_use(self) -> int:
        """Blocks of the pool that are not free; what is only cached, is free."""
        return self.pool.num_blocks - (self.cache or self.pool).num_free

    def step(self) -> None:
        arrived = self.arrived()
        start = time.thread_time()
        for sequence in arrived:
            self.scheduler.add(sequence)
        plan = self.scheduler.schedule()
        bookkeeping = time.thread_time() - start
        assert plan.scheduled, "a step without progress"
        began, in_use = self.now, self.in_use
        self.now += self.machine.seconds(plan, self.options.block_size)
        new_tokens = [
            # It goes on counting from the prompt, so no two requests are ever alike.
            [sequence.token_ids[-1] + 1] if plan.makes_token(row) else None
            for row, (sequence, _) in enumerate(plan.scheduled)
        ]
        start = time.thread_time()
        rows = self.scheduler.finish_step(new_tokens)
        bookkeeping += time.thread_time() - start
        self.note(plan, began, bookkeeping, in_use)
        for sequence in (sequence for row in rows for sequence in row):
            if len(sequence.token_ids) == sequence.num_prompt_tokens + 1:
                self.record.first_token.append(self.now - self.arrival_of(sequence))
            self.record.finished += sequence.finish_reason is not None

    def arrived(self) -> list[Sequence]:
        """Those whose time has come since the last step."""
        sequences: list[Sequence] = []
        while (
            self.num_added < len(self.requests)
            and self.arrivals[self.num_added] <= self.now
        ):
            i, request = self.num_added, self.requests[self.num_added]
            shared = min(self.options.shared_prompt, request.prompt_len)
            first = LONGEST * (i + 1)
            own = range(first + shared, first + request.prompt_len)
            params = SamplingParams(max_tokens=request.output_len)
            sequences.append(Sequence(i, [*range(shared), *own], params))
            self.record.needed += request.final_len - 1
            self.not_started.add(i)
            self.num_added += 1
        return sequences

    def arrival_of(self, sequence: Sequence) -> float:
        assert isinstance(sequence.request_id, int)
        return self.arrivals[sequence.request_id]

    def note(self, plan: StepPlan, began: float, seconds: float, in_use: int) -> None:
        """Keep what is to be reported of a step that is over."""
        record, num_rows = self.record, len(plan.scheduled)
        record.steps += 1
        record.tokens += plan.num_tokens
        record.most_running = max(record.most_running, num_rows)
        record.blocks_swapped_out += len(plan.swap_out)
        record.bookkeeping.append(seconds)
        if plan.num_tokens == num_rows:
            record.decode_seconds += seconds
            record.decode_rows += num_rows
        if self.num_added - record.finished > num_rows:  # somebody waits
            record.full_steps += 1
            record.held += sum(plan.seq_lens)
            record.listed += sum(map(len, plan.block_tables))
            record.in_use += in_use
        if self.not_started:
            for sequence, _ in plan.scheduled:
                if sequence.request_id in self.not_started:
                    self.not_started.remove(sequence.request_id)
                    record.waited.append(began - self.arrival_of(sequence))


# --- the command --------------------------------------------------------------------


def figures(record: Record, block_size: int, num_blocks: int) -> dict[str, float]:
    """What is worth saying, in seconds, percent and microseconds."""
    bookkeeping = sum(record.bookkeeping)
    result: dict[str, float] = {
        "requests": record.num_requests,
        "finished": record.finished,
        "simulated_seconds": record.simulated,
        "steps": record.steps,
        "tokens_computed": record.tokens,
        "percent_computed_again": 100 * (record.tokens / record.needed - 1),
        "most_running": record.most_running,
        "preemptions": record.preemptions,
        "blocks_swapped_out": record.blocks_swapped_out,
        "waited_mean": mean(record.waited),
        "waited_median": median(record.waited),
        "waited_longest": max(record.waited),
        "first_token_mean": mean(record.first_token),
        "first_token_median": median(record.first_token),
        "first_token_longest": max(record.first_token),
        "bookkeeping_seconds": bookkeeping,
        "microseconds_per_step": 1e6 * bookkeeping / record.steps,
        "microseconds_per_step_median": 1e6 * median(record.bookkeeping),
        "microseconds_per_token": 1e6 * bookkeeping / record.tokens,
    }
    if record.decode_rows:
        per_row = 1e6 * record.decode_seconds / record.decode_rows
        result["microseconds_per_decoded_token"] = per_row
        result["decoded_tokens"] = record.decode_rows
    if record.full_steps:
        result["full_steps"] = record.full_steps
        result["percent_of_used"] = 100 * record.held / (record.listed * block_size)
        blocks = record.full_steps * num_blocks
        result["percent_of_pool_in_use"] = 100 * record.in_use / blocks
    return result


LINES = {  # what the figures are called, and how they are written
    "{finished:,} of {requests:,} requests finished, and the pool is full again": (),
    "{steps:,} steps in {simulated_seconds:,.0f} simulated seconds, at most "
    "{most_running} sequences at once": (),
    "preemptions: {preemptions:,}; tokens computed: {tokens_computed:,}, "
    "{percent_computed_again:+.2f} % beside those that are needed": (),
    "swapped out: {blocks_swapped_out:,} blocks": ("blocks_swapped_out",),
    "waited for the first step: mean {waited_mean:.2f} s, median {waited_median:.3f}, "
    "longest {waited_longest:.1f}": (),
    "first token after: mean {first_token_mean:.2f} s, median "
    "{first_token_median:.3f}, longest {first_token_longest:.1f}": (),
    "while somebody waits ({full_steps:,} steps): {percent_of_used:.2f} % of the "
    "places in used blocks hold tokens, {percent_of_pool_in_use:.1f} % of the pool is "
    "in use": ("full_steps",),
    "bookkeeping: {microseconds_per_step:.0f} µs per step (median "
    "{microseconds_per_step_median:.0f}), {microseconds_per_token:.2f} µs per computed "
    "token": (),
    "bookkeeping of steps that only decode: {microseconds_per_decoded_token:.2f} µs "
    "per token": ("decoded_tokens",),
}


def show(title: str, values: dict[str, float]) -> None:
    print(title)
    for line, needed in LINES.items():
        if all(values.get(name) for name in needed):
            print("  " + line.format(**values))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Replay a stream of requests.")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="a CSV file")
    parser.add_argument("--limit", type=int, help="only the first of its requests")
    numbers = {
        "places": (65_536, "tokens that the pool holds"),
        "block-size": (16, "tokens in a block"),
        "budget": (2048, "tokens in a step"),
        "max-seqs": (256, "sequences in a step"),
        "host-places": (0, "tokens that host memory holds; 0: nothing is swapped"),
        "shared-prompt": (0, "tokens with which all prompts begin"),
        "requests": (2000, "how many to draw where there is no trace"),
    }
    for name, (default, text) in numbers.items():
        parser.add_argument(
            f"--{name}", type=int, default=default, help=f"{text} ({default:,})"
        )
    parser.add_argument(
        "--rate", type=float, default=18.0, help="drawn requests/s (18)"
    )
    parser.add_argument("--no-cache", action="store_true", help="no prefix cache")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--source", default="", help="where the trace is from")
    options = parser.parse_args(arguments)
    for name in ("limit", *numbers):
        value = getattr(options, name.replace("-", "_"))
        least = 0 if name in ("host-places", "shared-prompt") else 1
        if value is not None and value < least:
            parser.error(f"--{name} must be at least {least}, got {value}")
    if options.places < options.block_size:
        parser.error(f"--places must be at least a block, got {options.places}")
    if not options.rate > 0:
        parser.error(f"--rate must be above 0, got {options.rate}")
    if options.json is not None:
        is_new = not options.json.exists()
        try:
            options.json.open("a").close()
        except OSError as error:
            why = f"got {options.json}: {error.strerror}"
            parser.error(f"--json must be a file that can be written, {why}")
        if is_new:
            options.json.unlink()
    return options


def workload(options: argparse.Namespace) -> tuple[str, list[Request], list[float]]:
    """A name, the requests, and when each comes, in seconds."""
    if options.trace is not None:
        requests, arrivals = read_trace(options.trace), read_arrivals(options.trace)
        n = len(requests) if options.limit is None else options.limit
        return options.trace.name, requests[:n], arrivals[:n]
    n = options.requests if options.limit is None else options.limit
    requests = draw_requests(*SHARE_GPT, n, max_len=2048)
    chance = random.Random(0)
    gaps = (chance.expovariate(options.rate) for _ in range(n))
    return "ShareGPT, drawn", requests, list(accumulate(gaps))


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(stderr=True)
    try:
        name, requests, arrivals = workload(options)
        replay = Replay(requests, arrivals, options)
        with Progress(
            *Progress.get_default_columns(),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        ) as progress:
            task = progress.add_task("requests", total=len(requests))
            record = replay.run(lambda r: progress.update(task, completed=r.finished))
    except (OSError, ValueError) as error:
        print(f"replay.py: {error}", file=sys.stderr)
        return 2
    values = figures(record, options.block_size, replay.pool.num_blocks)
    title = (
        f"{name}: {len(requests):,} requests in {arrivals[-1]:,.0f} s, on average "
        f"{mean(r.prompt_len for r in requests):,.0f} tokens in and "
        f"{mean(r.output_len for r in requests):,.0f} out;\n"
        f"a pool of {options.places:,} places in blocks of {options.block_size}"
    )
    show(title, values)
    if options.json is not None:
        result = {
            "source": options.source,
            "made_by": "benchmarks/replay.py",
            "date": str(date.today()),
            "name": name,
            "options": {
                key: value
                for key, value in vars(options).items()
                if key not in ("trace", "json", "source")
            },
            "machine": asdict(replay.machine),
            "figures": values,
        }
        text = json.dumps(result)
        rounded = json.loads(text, parse_float=lambda x: round(float(x), 3))
        options.json.write_text(json.dumps(rounded, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
