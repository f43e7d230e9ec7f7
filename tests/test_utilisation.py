import importlib.util
import json
import re
import subprocess
import sys
from collections import deque
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
ROW = "2023-11-16 18:15:46.6805900,374,44\n"


def load(name: str, path: Path):
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look themselves up there
    spec.loader.exec_module(module)
    return module


traffic = load("traffic", BENCHMARKS / "traffic" / "__init__.py")
utilisation = load("utilisation", BENCHMARKS / "utilisation.py")


def trace(folder: Path, content: str | bytes) -> Path:
    path = folder / "trace.csv"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_trace_is_read_in_order(tmp_path):
    path = trace(tmp_path, HEADER + ROW + "x,1,2\n")
    lengths = [(r.prompt_len, r.output_len) for r in traffic.read_trace(path)]
    assert lengths == [(374, 44), (1, 2)]


@pytest.mark.parametrize(
    "content",
    [
        "GeneratedTokens,extra,ContextTokens,TIMESTAMP\n44,,374,now\n",
        "\ufeff" + HEADER + ROW,
        (HEADER + ROW).replace("\n", "\r\n"),
        HEADER + ROW.strip(),
        HEADER.replace(",", " , ") + "now, 374 , 44\n",
    ],
    ids=["columns in another order", "byte order mark", "CRLF", "no newline", "spaces"],
)
def test_the_same_trace_written_differently_is_the_same(tmp_path, content):
    (request,) = traffic.read_trace(trace(tmp_path, content))
    assert (request.prompt_len, request.output_len) == (374, 44)


@pytest.mark.parametrize(
    ("content", "where", "what"),
    [
        ("", "1:1", "there is no column TIMESTAMP"),
        ("TIMESTAMP,ContextTokens\n", "1:1", "there is no column GeneratedTokens"),
        (HEADER, "2:1", "no request"),
        (HEADER + ROW + "now,12\n", "3:7", "expected 3 fields, got 2"),
        (HEADER + ROW + "now,1,2,3\n", "3:8", "expected 3 fields, got 4"),
        (HEADER + ROW + "\n" + ROW, "3:1", "expected 3 fields, got 1"),
        (HEADER + "now,12,many\n", "2:8", "GeneratedTokens .* >= 1, got 'many'"),
        (HEADER + "now,-3,5\n", "2:5", "ContextTokens .* >= 1, got '-3'"),
        (HEADER + "now,1.5,5\n", "2:5", "ContextTokens .* got '1.5'"),
        (HEADER + "now,7,0\n", "2:7", "GeneratedTokens .* got '0'"),
        (HEADER + "now,,5\n", "2:5", "ContextTokens .* got ''"),
        (HEADER + "now,1²,5\n", "2:5", "ContextTokens .* got '1²'"),
        (b"TIMESTAMP\n\xff,1", "2:1", "byte 0xff is no text"),
    ],
)
def test_a_broken_trace_says_in_which_line_and_column(tmp_path, content, where, what):
    path = trace(tmp_path, content)
    expected = f"{re.escape(str(path))}:{where}: .*{what}"
    with pytest.raises(traffic.TraceError, match=expected):
        traffic.read_trace(path)


def test_the_same_seed_draws_the_same_lengths_with_the_mean_asked_for():
    requests = traffic.draw_requests(161, 338, 20_000, 10**6, seed=3)
    assert requests == traffic.draw_requests(161, 338, 20_000, 10**6, seed=3)
    outputs = [request.output_len for request in requests]
    mean = sum(outputs) / len(outputs)
    deviation = (sum((x - mean) ** 2 for x in outputs) / len(outputs)) ** 0.5
    assert mean == pytest.approx(338, rel=0.03)
    assert deviation / mean == pytest.approx(1, rel=0.1)


def test_no_drawn_request_is_longer_than_the_model_takes():
    requests = traffic.draw_requests(20, 30, 500, 40)
    assert max(request.final_len for request in requests) == 40
    assert min(min(r.prompt_len, r.output_len) for r in requests) == 1


def counted_by_hand(requests, num_blocks, block_size):
    """No allocator, no tables: how many blocks are in use follows from the lengths."""

    def used(sequences):
        return sum(-(-length // block_size) for length, _ in sequences)

    waiting = deque((r.prompt_len, r.final_len) for r in requests)
    running, sums = [], [0, 0, 0]
    while True:
        while waiting and used([*running, (waiting[0][0] + 1, 0)]) <= num_blocks:
            running.append(waiting.popleft())
        if not waiting:
            return sums
        if len(waiting) <= 0.9 * len(requests):
            tokens = sum(length for length, _ in running)
            sums[0] += tokens
            sums[1] += used(running) * block_size - tokens
            sums[2] += 1
        running = [
            (length + 1, final) for length, final in running if length + 1 < final
        ]
        while used(running) > num_blocks:
            length, final = running.pop()
            waiting.appendleft((length - 1, final))


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_are_counted_as_a_count_by_hand_does(block_size):
    requests = traffic.draw_requests(20, 30, 300, 200)
    count = utilisation.Count("blocks", 600, block_size)
    memory = utilisation.Paged(600, block_size)
    utilisation.keep_full(count, memory, requests)
    by_hand = counted_by_hand(requests, 600 // block_size, block_size)
    assert [count.tokens, count.internal, count.steps] == by_hand
    assert count.preemptions > 0


@pytest.mark.parametrize("policy", ["exact", "power of two", "max"])
def test_the_parts_of_a_reserved_pool_make_up_the_pool(policy):
    requests = traffic.draw_requests(20, 30, 200, 200)
    count = utilisation.Count(policy, 600)
    utilisation.keep_full(count, utilisation.Reserved(600, policy, 200), requests)
    parts = [getattr(count, part) for part in utilisation.PARTS]
    assert sum(parts) == 600 * count.steps
    assert count.preemptions == 0
    assert (count.internal == 0) is (policy == "exact")


@pytest.mark.parametrize("block_size", [2, 8, 32, 64])
def test_the_share_of_used_blocks_follows_the_formula(block_size):
    """Within half a point, for block sizes up to a quarter of the mean length held."""
    requests = traffic.draw_requests(161, 338, 250, 2048)
    count = utilisation.Count("blocks", 15_728, block_size)
    memory = utilisation.Paged(15_728, block_size)
    figures = utilisation.keep_full(count, memory, requests).figures()
    assert block_size <= figures["mean_held"] / 4
    expected = figures["predicted_of_used"]
    assert figures["tokens_of_used"] == pytest.approx(expected, abs=0.5)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "utilisation.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_trace_ends_in_a_table_and_a_file(tmp_path):
    rows = "".join(f"now,{30 + i % 7},{10 + i % 5}\n" for i in range(60))
    path, result = trace(tmp_path, HEADER + rows), tmp_path / "result.json"
    done = run("--trace", str(path), "--places", "300", "--max-len", "45",
               "--json", str(result), "--source", "made up")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "requests longer than 45 are left out" in done.stdout
    assert "blocks of 16" in done.stdout
    written = json.loads(result.read_text())
    assert (written["source"], written["places"]) == ("made up", 300)
    assert len(written["workloads"][0]["figures"]) == 11


@pytest.mark.proof
@pytest.mark.parametrize(
    ("content", "arguments", "message"),
    [
        (HEADER + "now,1,x\n", [], "trace.csv:2:7: GeneratedTokens must be"),
        (HEADER + ROW, [], "the pool was never full"),
        (HEADER + ROW * 9, ["--places", "300"], "the largest free one is 256"),
        (HEADER + ROW, ["--places", "0"], "--places must be at least 2, got 0"),
        (HEADER + ROW, ["--max-len", "20"], "no request is short enough"),
    ],
)
def test_what_cannot_be_measured_is_said_in_one_line(
    tmp_path, content, arguments, message
):
    done = run("--trace", str(trace(tmp_path, content)), *arguments)
    assert done.returncode == 2
    assert message in done.stderr.splitlines()[-1]


def test_a_missing_file_is_named():
    done = run("--trace", "nowhere.csv")
    assert done.returncode == 2
    assert done.stderr.startswith("utilisation.py: ") and "nowhere.csv" in done.stderr
