"""How fast, and in how much memory, are 32 requests of mixed length answered?

SmolLM2 in float32: our engine beside transformers' generate on a left-padded batch and
beside its continuous batching, each request with its own length. Everybody makes the
same tokens (EOS is ignored) and says how many of the 32 texts are equal to ours. Each
run has a process of its own; rounds are interleaved, and the median is shown. Memory
is what the process had once the model was loaded, and what it took at its peak beyond.

The engine packs the model's linear layers, which has nothing to do with paging. So that
it can be told what comes from where, the padded batch runs with packed layers, too.
"""

import argparse
import functools
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

NUM_REQUESTS, ROUNDS = 32, 3
PROMPT_TOKENS, NEW_TOKENS = (16, 256), (8, 128)
BLOCK_SIZE, PAGE_SIZE = 16, 256  # ours; what transformers takes by default
TOKEN_BUDGET = 512

Request = tuple[list[int], int]  # prompt, how many tokens to make


def draw_requests(num: int) -> list[Request]:
    """Seeded, so that each process has the same ones."""
    rng = random.Random(0)
    return [
        (
            [rng.randrange(100, 49_000) for _ in range(rng.randint(*PROMPT_TOKENS))],
            rng.randint(*NEW_TOKENS),
        )
        for _ in range(num)
    ]


def load_theirs() -> Any:
    import torch

    from paged_attention import model_files

    model, _ = model_files.load("smollm2", device="cpu")
    model.set_attn_implementation("sdpa")
    model.generation_config.eos_token_id = None
    # Weights are read from the file when they are first used, as the engine's are.
    model.generate(torch.tensor([[1, 2]]), max_new_tokens=1, do_sample=False)
    return model


def load_packed() -> Any:
    from paged_attention.packed_linear import pack_linear_layers

    model = load_theirs()
    pack_linear_layers(model)
    return model


# --- who competes: prepare, then a function that is timed and gives the texts ---


def ours(requests: list[Request]) -> Callable[[], dict[str, Any]]:
    from paged_attention import Engine, SamplingParams

    model = load_packed()
    # As many blocks as all requests need at once: nobody is preempted.
    lengths = [len(prompt) + num for prompt, num in requests]
    num_blocks = sum(-(-length // BLOCK_SIZE) for length in lengths)

    def run() -> dict[str, Any]:
        # Made here, so that its memory is counted; the others make theirs here, too.
        engine = Engine(
            model,
            num_blocks=num_blocks,
            block_size=BLOCK_SIZE,
            token_budget=TOKEN_BUDGET,
        )
        bookkeeping = _timed(engine.scheduler, "schedule", "finish_step")
        for prompt, num in requests:
            engine.add_request(prompt, SamplingParams(num, ignore_eos=True))
        texts: dict[Any, list[int]] = {}
        filled = slots = decoded = 0
        in_decode = seconds = 0.0
        while engine.has_work:
            before, num_tokens = bookkeeping[0], engine.stats.num_tokens
            start = time.perf_counter()
            outputs = engine.step()
            seconds += time.perf_counter() - start
            for output in outputs:
                texts[output.request_id] = output.token_ids
            stats = engine.stats
            if stats.num_tokens - num_tokens == len(outputs):  # nothing but decode
                in_decode += bookkeeping[0] - before
                decoded += len(outputs)
            used = sum(s.table.num_blocks for s in engine.sequences if s.table)
            slots += used * BLOCK_SIZE
            filled += stats.used_share * used * BLOCK_SIZE
        return {
            "seconds": seconds,  # of steps, without looking at the stats
            "texts": [texts[i] for i in sorted(texts)],
            "held": filled / slots,
            "bookkeeping": bookkeeping[0] / seconds,
            "microseconds": 1e6 * in_decode / max(1, decoded),
        }

    return run


def _timed(target: Any, *names: str) -> list[float]:
    """The seconds spent in these methods, summed into a list of one."""
    total = [0.0]

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            start = time.perf_counter()
            try:
                return method(*args)
            finally:
                total[0] += time.perf_counter() - start

        return call

    for name in names:
        setattr(target, name, timed(getattr(target, name)))
    return total


def padded(
    requests: list[Request], load: Callable[[], Any] = load_theirs
) -> Callable[[], dict[str, Any]]:
    import torch

    model = load()
    width = max(len(prompt) for prompt, _ in requests)
    ids = torch.full((len(requests), width), model.config.pad_token_id)
    mask = torch.zeros_like(ids)
    for i, (prompt, _) in enumerate(requests):
        ids[i, width - len(prompt) :] = torch.tensor(prompt)
        mask[i, width - len(prompt) :] = 1

    def run() -> dict[str, Any]:
        longest = max(num for _, num in requests)
        made = model.generate(
            ids, attention_mask=mask, max_new_tokens=longest, do_sample=False
        )
        rows = made[:, width:].tolist()
        # Its cache is a rectangle that grows to the right, for the finished ones too.
        held = sum(
            len(prompt) + t for t in range(longest) for prompt, _ in _open(requests, t)
        )
        room = sum(len(requests) * (width + t) for t in range(longest))
        texts = [row[:num] for row, (_, num) in zip(rows, requests, strict=True)]
        return {"texts": texts, "held": held / room}

    return run


def _open(requests: list[Request], step: int) -> Iterator[Request]:
    return (request for request in requests if step < request[1])


def continuous(requests: list[Request]) -> Callable[[], dict[str, Any]]:
    from transformers import ContinuousBatchingConfig, GenerationConfig

    model = load_theirs()
    lengths = [len(prompt) + num for prompt, num in requests]
    config = ContinuousBatchingConfig(
        page_size=PAGE_SIZE,
        num_blocks=sum(-(-length // PAGE_SIZE) for length in lengths) + 1,
        max_batch_tokens=TOKEN_BUDGET,
        use_cuda_graph=False,
    )
    generation = GenerationConfig(do_sample=False, eos_token_id=-1, max_new_tokens=128)

    def run() -> dict[str, Any]:
        texts: dict[str, list[int]] = {}
        with model.continuous_batching_context_manager(
            generation_config=generation,
            continuous_batching_config=config,
            warmup=False,
        ) as manager:
            # generate_batch would take one length for all, which is other work.
            names = [
                manager.add_request(prompt, max_new_tokens=num)
                for prompt, num in requests
            ]
            while len(texts) < len(requests):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    texts[result.request_id] = result.generated_tokens
                elif result is None and not manager.is_running():
                    raise RuntimeError("continuous batching stopped by itself")
        # Each request holds whole pages; counted once for each token that it makes.
        held = room = 0
        for prompt, num in requests:
            for length in range(len(prompt), len(prompt) + num):
                held += length
                room += -(-length // PAGE_SIZE) * PAGE_SIZE
        return {"texts": [texts[name] for name in names], "held": held / room}

    return run


JOBS = {
    "ours": ours,
    "generate, left-padded": padded,
    "the same, packed layers": functools.partial(padded, load=load_packed),
    "continuous batching": continuous,
}


def run_alone(name: str, num_requests: int) -> dict[str, Any]:
    """One run in this process, which is there for nothing else."""
    run = JOBS[name](draw_requests(num_requests))
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    start = time.perf_counter()
    result = run()
    seconds = time.perf_counter() - start
    peak = _memory("VmHWM") - before
    return {"seconds": seconds, **result, "loaded": before, "peak": peak}


def _memory(name: str) -> int:
    """Bytes of this process that are in memory now (VmRSS) or were at the peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {name}")


def in_a_process(name: str, num_requests: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--alone", name, "--requests"]
    done = subprocess.run(
        [*command, str(num_requests)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--requests", type=int, default=NUM_REQUESTS)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures")
    parser.add_argument("--alone", choices=JOBS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for name in ("rounds", "requests"):
        if getattr(options, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(options, name)}")
    if options.alone:
        print(json.dumps(run_alone(options.alone, options.requests)))
        return
    from paged_attention import model_files

    try:
        model_files.model_path("smollm2")
    except model_files.ModelMissingError as error:
        print(f"not measured: {error}")
        return
    order = [name for _ in range(options.rounds) for name in JOBS]
    results: dict[str, list[dict[str, Any]]] = {name: [] for name in JOBS}
    for name in track(order, "SmolLM2", console=Console(stderr=True)):
        results[name].append(in_a_process(name, options.requests))
    measured = figures(results, options.requests)
    show(measured)
    if options.json is not None:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")


def figures(
    results: dict[str, list[dict[str, Any]]], num_requests: int
) -> dict[str, Any]:
    """The medians, as chapter 13 reads them."""

    def median(name: str, what: str) -> float:
        return statistics.median(run[what] for run in results[name])

    reference = results["ours"][0]["texts"]
    return {
        "made_by": "benchmarks/engine.py",
        "device": f"{os.cpu_count()} CPU cores, {platform.machine()}",
        "torch": version("torch"),
        "transformers": version("transformers"),
        "date": str(date.today()),
        "requests": num_requests,
        "results": {
            name: {
                "seconds": round(median(name, "seconds"), 2),
                "times_ours": round(
                    median(name, "seconds") / median("ours", "seconds"), 3
                ),
                "loaded_bytes": round(median(name, "loaded")),
                "peak_bytes": round(median(name, "peak")),
                "held": round(median(name, "held"), 4),
                "same": sum(
                    a == b for a, b in zip(runs[0]["texts"], reference, strict=True)
                ),
            }
            for name, runs in results.items()
        },
        "bookkeeping": round(median("ours", "bookkeeping"), 5),
        "microseconds": round(median("ours", "microseconds"), 2),
    }


def show(measured: dict[str, Any]) -> None:
    num_requests = measured["requests"]
    table = Table(title=f"{num_requests} requests, SmolLM2 in float32 on the CPU")
    for column in ("", "seconds", "× ours", "loaded MB", "+ peak MB", "KV with tokens"):
        table.add_column(column, justify="right" if column else "left")
    table.add_column("texts as ours", justify="right")
    for name, row in measured["results"].items():
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['times_ours']:.2f}",
            f"{row['loaded_bytes'] / 1e6:.0f}",
            f"{row['peak_bytes'] / 1e6:.0f}",
            f"{row['held']:.1%}",
            f"{row['same']} of {num_requests}",
        )
    console = Console()
    console.print(table)
    console.print(
        f"Scheduler and tables: {measured['bookkeeping']:.1%} of a step, "
        f"{measured['microseconds']:.1f} µs per sequence and token of decode."
    )


if __name__ == "__main__":
    main()
