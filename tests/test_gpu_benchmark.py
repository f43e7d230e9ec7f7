"""What can be held of benchmarks/gpu.py where there is no GPU."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FILE = Path(__file__).parent.parent / "benchmarks" / "gpu.py"
spec = importlib.util.spec_from_file_location("gpu_benchmark", FILE)
assert spec is not None and spec.loader is not None
gpu = importlib.util.module_from_spec(spec)
sys.modules["gpu_benchmark"] = gpu  # dataclasses look themselves up there
spec.loader.exec_module(gpu)


def test_a_step_of_decode_reads_all_keys_and_values_once():
    case = gpu.Case(2, 100, 1, num_heads=32, num_kv_heads=8, head_dim=128)
    assert case.kv_bytes == 2 * 100 * 8 * 128 * 2 * 2
    assert case.moved_bytes == case.kv_bytes + 2 * (2 * 32 * 128 * 2)


def test_operations_are_those_of_the_pairs_that_see_each_other():
    """4 per number of a pair: a product and a sum, for the score and for the value."""
    whole = gpu.Case(1, 5, 5, num_heads=1, num_kv_heads=1, head_dim=1)
    assert whole.operations == 4 * (1 + 2 + 3 + 4 + 5)
    chunk = gpu.Case(3, 5, 2, num_heads=7, num_kv_heads=1, head_dim=10)
    assert chunk.operations == 4 * 10 * 3 * 7 * (4 + 5)


def test_cases_that_do_not_fit_are_told_from_those_that_do():
    case = gpu.Case(128, 16384, 1, num_heads=32, num_kv_heads=32)
    assert not case.fits(64 * 2**30)  # 32 GiB of keys and values, twice
    assert case.fits(96 * 2**30)


def test_the_cases_span_what_they_should():
    cases = list(gpu.decode_cases())
    assert {case.num_seqs for case in cases} >= {1, 32, 128}
    assert {case.seq_len for case in cases} >= {128, 2048, 16384}
    assert {(case.num_heads, case.num_kv_heads) for case in cases} == {
        (32, 8),
        (32, 32),
    }
    assert len(set(cases)) == len(cases)
    prefills = list(gpu.prefill_cases())
    assert all(1 < case.query_len <= case.seq_len for case in prefills)
    assert any(case.query_len < case.seq_len for case in prefills)
    assert len(set(prefills)) == len(prefills)


def test_time_for_all_cases_is_within_six_minutes():
    num_jobs = 4 * len(list(gpu.decode_cases())) + 2 * len(list(gpu.prefill_cases()))
    assert num_jobs * gpu.SECONDS_PER_JOB < gpu.TIME_LIMIT - gpu.TEST_LIMIT
    assert gpu.TIME_LIMIT < 6 * 60


def test_the_file_is_named_after_the_device():
    assert gpu.file_of("NVIDIA H100 80GB HBM3").name == "gpu_nvidia_h100_80gb_hbm3.json"


def test_a_wrong_answer_is_not_timed():
    right = torch.ones(3)
    gpu.check("ours", right + 0.01, right)
    for wrong in (right + 0.1, right * float("nan")):
        with pytest.raises(AssertionError, match="ours is off by"):
            gpu.check("ours", wrong, right)


@pytest.mark.proof
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so_and_ends_with_2():
    done = subprocess.run([sys.executable, FILE], capture_output=True, text=True)
    assert done.returncode == 2
    assert "no GPU that torch can use" in done.stderr


@pytest.mark.proof
def test_the_whole_loop_runs_dry():
    command = [sys.executable, FILE, "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 cases left out" in done.stdout
