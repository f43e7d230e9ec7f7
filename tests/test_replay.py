import importlib.util
import json
import random
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def load(name: str, path: Path):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


traffic = load("traffic", BENCHMARKS / "traffic" / "__init__.py")
replay = load("replay", BENCHMARKS / "replay.py")


def trace(folder: Path, *lines: str) -> Path:
    path = folder / "trace.csv"
    path.write_text(HEADER + "".join(f"{line}\n" for line in lines))
    return path


def burst(folder: Path, n: int) -> Path:
    """n requests within a second, more than the pool can hold at once."""
    rng = random.Random(0)
    return trace(
        folder,
        *(
            f"2023-11-16 18:15:46.{i:03d},{rng.randint(1, 200)},{rng.randint(1, 100)}"
            for i in range(n)
        ),
    )


def test_arrivals_count_from_the_first_request(tmp_path):
    path = trace(
        tmp_path,
        "2023-11-16 18:15:46.6805900,374,44",
        "2023-11-16 18:15:50.9951690,396,109",
        "2023-11-16 18:15:50.9951690,1,1",
        "2023-11-17 18:15:46.6805900,1,1",
    )
    expected = [0, 4.314579, 4.314579, 86_400]
    assert traffic.read_arrivals(path) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["soon,1,1"], r"csv:2:1: TIMESTAMP must be a time, got 'soon'"),
        (
            ["2023-11-16 18:15:46,1,1", "2023-11-16 18:15:47Z,1,1"],
            r"csv:3:1: TIMESTAMP must be a time, got '2023-11-16 18:15:47Z'",
        ),
        (
            ["2023-11-16 18:15:46,1,1", "2023-11-16 18:15:45,1,1"],
            r"csv:3:1: 2023-11-16 18:15:45 lies before the time above it",
        ),
        (["2023-11-16 18:15:46,1"], r"csv:2:\d+: expected 3 fields, got 2"),
    ],
)
def test_a_time_that_cannot_be_is_told_with_its_place(tmp_path, lines, message):
    with pytest.raises(traffic.TraceError, match=message):
        traffic.read_arrivals(trace(tmp_path, *lines))


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--host-places", "400"],
        ["--no-cache"],
        ["--shared-prompt", "30"],
        ["--budget", "16"],
        ["--block-size", "1"],
    ],
    ids=" ".join,
)
def test_all_requests_finish_in_a_pool_small_enough_to_preempt(
    tmp_path, options, capsys
):
    path, result = burst(tmp_path, 60), tmp_path / "figures.json"
    command = ["--trace", str(path), "--places", "512", "--json", str(result)]
    assert replay.main([*command, *options]) == 0
    figures = json.loads(result.read_text())["figures"]
    assert figures["finished"] == figures["requests"] == 60
    assert figures["preemptions"] > 0
    assert figures["tokens_computed"] > 0
    assert 90 < figures["percent_of_used"] <= 100
    swapped = "--host-places" in options
    assert (figures["blocks_swapped_out"] > 0) == swapped
    printed = capsys.readouterr().out
    assert "60 of 60 requests finished, and the pool is full again" in printed
    assert ("swapped out" in printed) == swapped


def test_what_is_shared_is_computed_once(tmp_path):
    path, result = burst(tmp_path, 60), tmp_path / "figures.json"
    command = ["--trace", str(path), "--places", "16384", "--json", str(result)]
    computed = []
    for shared in ("0", "64"):
        assert replay.main([*command, "--shared-prompt", shared]) == 0
        figures = json.loads(result.read_text())["figures"]
        assert figures["preemptions"] == 0
        computed.append(figures["tokens_computed"])
    assert computed[1] < computed[0] - 30 * 48


def test_a_request_that_can_never_fit_is_told(tmp_path, capsys):
    path = trace(tmp_path, "2023-11-16 18:15:46,100,100")
    assert replay.main(["--trace", str(path), "--places", "160"]) == 2
    assert "can never fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "value"), [("--places", "8"), ("--budget", "0"), ("--rate", "0")]
)
def test_a_number_that_makes_no_sense_is_refused(option, value, capsys):
    with pytest.raises(SystemExit) as caught:
        replay.main([option, value])
    assert caught.value.code == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("file", ["/no/x.json", "."])
def test_a_file_that_cannot_be_written_is_told_before_the_run(
    file, capsys, monkeypatch
):
    monkeypatch.setattr(replay, "Replay", None)
    with pytest.raises(SystemExit) as caught:
        replay.main(["--requests", "1", "--json", file])
    assert caught.value.code == 2
    expected = f"--json must be a file that can be written, got {file}: "
    assert expected in capsys.readouterr().err


def test_a_run_that_fails_leaves_no_file_of_figures(tmp_path, capsys):
    file = tmp_path / "figures.json"
    assert replay.main(["--trace", str(tmp_path / "none"), "--json", str(file)]) == 2
    assert not file.exists()


@pytest.mark.parametrize(
    ("option", "value"), [("--rounds", "0"), ("--requests", "0"), ("--requests", "-1")]
)
def test_the_engine_is_not_measured_with_nothing(option, value, capsys, monkeypatch):
    engine = load("engine_benchmark", BENCHMARKS / "engine.py")
    monkeypatch.setattr(sys, "argv", ["engine.py", option, value])
    with pytest.raises(SystemExit) as caught:
        engine.main()
    assert caught.value.code == 2
    assert f"{option} must be at least 1, got {value}" in capsys.readouterr().err
