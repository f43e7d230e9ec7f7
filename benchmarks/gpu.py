"""How near does attention over blocks come to what a GPU's memory can do?

Under six minutes on one GPU: first the tests that need one; then the bandwidth of a
copy; then decode, ours in one pass and in splits, and prefill, ours, each beside
torch's attention on the same keys and values in a row. Writes chapters/data/gpu_*.json.

    .venv/bin/python benchmarks/gpu.py             exit code 2 where there is no GPU
    .venv/bin/python benchmarks/gpu.py --dry-run   tiny, interpreted, on the CPU: that
                                                   the script works; writes nothing

Before each launch a buffer far larger than the L2 cache is filled: so nothing is found
there, and while that runs the host queues what is to be timed, so that its own time is
not measured. The median of many launches, between events of CUDA.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
import triton
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

from paged_attention.kernels.backend import num_splits_for
from paged_attention.kernels.decode import decode
from paged_attention.kernels.prefill import prefill
from paged_attention.kernels.split_decode import split_decode

ROOT = Path(__file__).parent.parent
BLOCK_SIZE = 16
HEAD_DIM = 128
ELEMENT_BYTES = 2  # bfloat16
HEADS = ((32, 8), (32, 32))  # query heads over KV heads
BATCHES = (1, 4, 16, 32, 64, 128)
LENGTHS = (128, 512, 2048, 4096, 8192, 16384)
# New tokens of a prefill, all sequences together: more would only take longer.
MAX_NEW_TOKENS = 65536
TIME_LIMIT = 330  # seconds; whatever is not measured by then is left out
TEST_LIMIT = 180
SECONDS_PER_JOB = 0.25
FLUSH_BYTES = 2**30
# Keys and values twice, scattered and in a row, beside what torch needs itself.
SHARE_OF_MEMORY = 0.8


@dataclass(frozen=True)
class Case:
    """num_seqs sequences of seq_len tokens; the last query_len of each are new."""

    num_seqs: int
    seq_len: int
    query_len: int
    num_heads: int
    num_kv_heads: int
    head_dim: int = HEAD_DIM

    @property
    def kv_bytes(self) -> int:
        """All keys and values: what decode must read at least."""
        numbers = self.num_seqs * self.seq_len * self.num_kv_heads * self.head_dim
        return 2 * numbers * ELEMENT_BYTES

    @property
    def query_bytes(self) -> int:
        numbers = self.num_seqs * self.query_len * self.num_heads * self.head_dim
        return numbers * ELEMENT_BYTES

    @property
    def moved_bytes(self) -> int:
        """Keys, values and queries read once, the result written once."""
        return self.kv_bytes + 2 * self.query_bytes

    @property
    def operations(self) -> int:
        """Multiplications and additions of both products; half a square is hidden."""
        hidden = self.query_len * (self.query_len - 1) // 2
        pairs = self.query_len * self.seq_len - hidden
        return 4 * self.num_seqs * self.num_heads * pairs * self.head_dim

    def fits(self, free_bytes: int) -> bool:
        needed = 2 * self.kv_bytes + 4 * self.query_bytes
        return needed <= SHARE_OF_MEMORY * free_bytes


def decode_cases() -> Iterator[Case]:
    for num_heads, num_kv_heads in HEADS:
        for seq_len in LENGTHS:
            for num_seqs in BATCHES:
                yield Case(num_seqs, seq_len, 1, num_heads, num_kv_heads)


def prefill_cases() -> Iterator[Case]:
    """Whole prompts, and the last 512 tokens of longer ones."""
    for num_heads, num_kv_heads in HEADS:
        for seq_len in LENGTHS:
            for num_seqs in BATCHES:
                for query_len in sorted({min(seq_len, 512), seq_len}):
                    if num_seqs * query_len <= MAX_NEW_TOKENS:
                        yield Case(
                            num_seqs, seq_len, query_len, num_heads, num_kv_heads
                        )


@dataclass
class Batch:
    """The tensors of a case, the same tokens scattered and in a row."""

    case: Case
    query: Tensor  # [num_seqs * query_len, num_heads, head_dim]   bfloat16
    key_cache: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor
    block_tables: Tensor  # [num_seqs, blocks_per_seq]   int32, shuffled
    seq_lens: Tensor
    query_start_loc: Tensor
    key: Tensor  # [num_seqs, num_kv_heads, seq_len, head_dim], of rows per token
    value: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        caches = (self.key_cache, self.value_cache)
        return (self.query, *caches, self.block_tables, self.seq_lens)


def make_batch(case: Case, device: str) -> Batch:
    torch.manual_seed(0)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "device": device}
    blocks_per_seq = -(-case.seq_len // BLOCK_SIZE)
    num_blocks = case.num_seqs * blocks_per_seq
    shape = (num_blocks, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    key_cache, value_cache = (torch.empty(shape, **options).normal_() for _ in "kv")
    order = torch.randperm(num_blocks, device=device)
    block_tables = order.view(case.num_seqs, blocks_per_seq)
    key, value = (
        cache[block_tables].flatten(1, 2)[:, : case.seq_len].transpose(1, 2)
        for cache in (key_cache, value_cache)
    )
    num_tokens = case.num_seqs * case.query_len
    return Batch(
        case,
        torch.randn(num_tokens, case.num_heads, case.head_dim, **options),
        key_cache,
        value_cache,
        block_tables.int(),
        torch.full((case.num_seqs,), case.seq_len, dtype=torch.int32, device=device),
        torch.arange(case.num_seqs + 1, dtype=torch.int32, device=device)
        * case.query_len,
        key,
        value,
    )


def decode_jobs(batch: Batch) -> dict[str, Callable[[], Tensor]]:
    """torch twice: with the group as an axis, and packed as rows, whichever suits."""
    case, scale = batch.case, HEAD_DIM**-0.5
    splits = num_splits_for(batch.query, batch.key_cache, batch.block_tables, None)
    if batch.query.device.type == "cpu":
        splits = 2  # a dry run tries that too
    query = batch.query[:, :, None]
    packed = batch.query.view(case.num_seqs, case.num_kv_heads, -1, case.head_dim)
    jobs: dict[str, Callable[[], Tensor]] = {
        "one pass": lambda: decode(*batch.arguments, scale),
        "split": lambda: split_decode(*batch.arguments, scale, num_splits=splits),
        "torch": lambda: attend_with_torch(query, batch, scale),
        "torch packed": lambda: attend_with_torch(packed, batch, scale),
    }
    if splits == 1:
        del jobs["split"]
    if case.num_heads == case.num_kv_heads:
        del jobs["torch packed"]
    return jobs


def prefill_jobs(batch: Batch) -> dict[str, Callable[[], Tensor]]:
    case, scale = batch.case, HEAD_DIM**-0.5
    query = batch.query.view(case.num_seqs, case.query_len, case.num_heads, -1)
    mask = causal_lower_right(case.query_len, case.seq_len)
    return {
        "ours": lambda: prefill(*batch.arguments, batch.query_start_loc, scale),
        "torch": lambda: attend_with_torch(query.transpose(1, 2), batch, scale, mask),
    }


def attend_with_torch(
    query: Tensor, batch: Batch, scale: float, mask: Tensor | None = None
) -> Tensor:
    result = F.scaled_dot_product_attention(
        query,
        batch.key,
        batch.value,
        attn_mask=mask,
        scale=scale,
        enable_gqa=query.shape[1] != batch.key.shape[1],
    )
    if mask is not None:
        result = result.transpose(1, 2)
    return result.reshape(batch.query.shape)


def microseconds(job: Callable[[], object], seconds: float, flush: Tensor) -> float:
    """The median of as many launches as fit into the time, at least 5."""
    job()  # compiles
    torch.cuda.synchronize()
    times: list[float] = []
    stop = time.perf_counter() + seconds
    while len(times) < 5 or time.perf_counter() < stop:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        flush.zero_()
        start.record()
        job()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return median(times)


def microseconds_dry(job: Callable[[], object], seconds: float, _: Tensor) -> float:
    start = time.perf_counter()
    job()
    return (time.perf_counter() - start) * 1e6


def check(name: str, result: Tensor, expected: Tensor) -> None:
    """A fast answer that is wrong is no answer; both are rounded to bfloat16."""
    error = (result.float() - expected.float()).abs().max().item()
    largest = max(1.0, expected.float().abs().max().item())
    if not error <= 2e-2 * largest:
        raise AssertionError(f"{name} is off by {error}")


class Bench:
    """Measures until its time is over, and keeps what it found."""

    def __init__(self, device: str, time_limit: float) -> None:
        self.device = device
        self.clock = microseconds if device == "cuda" else microseconds_dry
        self.stop = time.perf_counter() + time_limit
        self.left_out: list[str] = []
        flush_bytes = FLUSH_BYTES if device == "cuda" else 2**10
        self.flush = torch.empty(flush_bytes, dtype=torch.uint8, device=device)

    def free_bytes(self) -> int:
        if self.device != "cuda":
            return 2**30
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info()[0]

    def copy_bandwidth(self) -> float:
        """Bytes read and written per second by a copy of one GiB."""
        source = torch.zeros_like(self.flush)
        target = torch.empty_like(source)
        time_taken = self.clock(lambda: target.copy_(source), 0.5, self.flush)
        return 2 * source.numel() / (time_taken * 1e-6)

    def measure(
        self,
        case: Case,
        make_jobs: Callable[[Batch], dict[str, Callable[[], Tensor]]],
    ) -> dict[str, Any] | None:
        """Median µs of each job, or None if there is no time or memory for it."""
        reason = None
        if time.perf_counter() > self.stop:
            reason = "no time left"
        elif not case.fits(self.free_bytes()):
            reason = "does not fit"
        if reason is not None:
            self.left_out.append(f"{case}: {reason}")
            return None
        batch = make_batch(case, self.device)
        jobs = make_jobs(batch)
        expected = jobs["torch"]()
        times: dict[str, float] = {}
        for name, job in jobs.items():
            check(f"{name} of {case}", job(), expected)
            times[name] = round(self.clock(job, SECONDS_PER_JOB, self.flush), 2)
        return {**asdict(case), "microseconds": times}


def table_of(title: str, rows: list[dict[str, Any]], bandwidth: float) -> Table:
    """µs of each job, and of our best its share of a copy's bandwidth, or its speed."""
    names = list(dict.fromkeys(name for row in rows for name in row["microseconds"]))
    table = Table("heads", "seqs", "tokens", "new", *names, "", title=title)
    for row in rows:
        case = Case(**{name: row[name] for name in Case.__dataclass_fields__})
        times = row["microseconds"]
        best = min(v for name, v in times.items() if not name.startswith("torch"))
        told = f"{case.moved_bytes / (best * 1e-6) / bandwidth:.0%} of a copy"
        if case.query_len > 1:
            told = f"{case.operations / best / 1e6:.0f} TFLOP/s"
        table.add_row(
            f"{case.num_heads}/{case.num_kv_heads}",
            str(case.num_seqs),
            str(case.seq_len),
            str(case.query_len),
            *[f"{times[name]:.1f}" if name in times else "" for name in names],
            told,
        )
    return table


def run_tests() -> str:
    """Those that are marked gpu. Returns their last line; raises if one failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "tests"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=TEST_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise SystemExit(f"the tests took more than {TEST_LIMIT} seconds") from None
    if done.returncode != 0:
        raise SystemExit(f"the tests failed, so nothing was measured:\n{done.stdout}")
    return done.stdout.strip().splitlines()[-1]


def about_the_machine() -> dict[str, Any]:
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "date": str(date.today()),
        "command": "python benchmarks/gpu.py",
    }
    if not torch.cuda.is_available():
        return {"device": "none", **found}
    properties = torch.cuda.get_device_properties(0)
    return {
        "device": properties.name,
        "num_processors": properties.multi_processor_count,
        "memory_bytes": properties.total_memory,
        "cuda": torch.version.cuda,
        **found,
    }


def file_of(device: str) -> Path:
    """chapters/data/gpu_nvidia_h100_80gb_hbm3.json"""
    slug = re.sub(r"[^a-z0-9]+", "_", device.lower()).strip("_")
    return ROOT / "chapters" / "data" / f"gpu_{slug}.json"


def main() -> int:
    if "--dry-run" in sys.argv:
        return dry_run()
    if not torch.cuda.is_available():
        print(
            "There is no GPU that torch can use, so nothing was measured and nothing "
            "written.\nTo see that the script works: benchmarks/gpu.py --dry-run",
            file=sys.stderr,
        )
        return 2
    started = time.perf_counter()
    result = about_the_machine()
    result["tests"] = run_tests()
    print("tests:", result["tests"])
    bench = Bench("cuda", TIME_LIMIT - (time.perf_counter() - started))
    measure_all(bench, result, list(decode_cases()), list(prefill_cases()))
    result["seconds"] = round(time.perf_counter() - started)
    file = file_of(result["device"])
    file.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print("written:", file.relative_to(ROOT))
    return 0


def measure_all(
    bench: Bench, result: dict[str, Any], decodes: list[Case], prefills: list[Case]
) -> None:
    """Adds to the result, and prints a table of each."""
    bandwidth = bench.copy_bandwidth()
    result["copy_bytes_per_second"] = round(bandwidth)
    for name, cases, make_jobs in (
        ("decode", decodes, decode_jobs),
        ("prefill", prefills, prefill_jobs),
    ):
        measured = [bench.measure(case, make_jobs) for case in cases]
        result[name] = [row for row in measured if row is not None]
        Console().print(table_of(f"{name}, µs", result[name], bandwidth))
    result["left_out"] = bench.left_out
    print(f"copy: {bandwidth / 1e9:.0f} GB/s; {len(bench.left_out)} cases left out")


def dry_run() -> int:
    """Everything but the tests and the file, on a CPU; its times mean nothing."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        # It counts when kernels are imported, and that has happened.
        environment = {**os.environ, "TRITON_INTERPRET": "1"}
        return subprocess.call([sys.executable, *sys.argv], env=environment)
    decodes = [Case(2, 20, 1, 4, 2), Case(1, 40, 1, 2, 2)]
    prefills = [Case(2, 20, 20, 4, 2), Case(1, 40, 8, 4, 2)]
    measure_all(Bench("cpu", TIME_LIMIT), about_the_machine(), decodes, prefills)
    return 0


if __name__ == "__main__":
    sys.exit(main())
