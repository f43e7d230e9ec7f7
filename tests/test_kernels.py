"""The kernels' tests, each run in a process of its own, where it can be chosen how.

TRITON_INTERPRET counts at the import of a kernel, so one process cannot do both.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent


def in_fresh_process(command: list[str], **environment: str) -> str:
    """What it printed. Raises AssertionError, with all of it, unless it ended well."""
    inherited = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, *command],
        env={**inherited, **environment},
        cwd=TESTS.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


KERNELS = ["-m", "pytest", "-q", str(TESTS / "in_interpreter" / "kernels.py")]


def test_kernels_in_the_interpreter():
    in_fresh_process([*KERNELS, "-m", "not proof"], TRITON_INTERPRET="1")


@pytest.mark.proof
def test_kernels_in_the_interpreter_at_length():
    in_fresh_process([*KERNELS, "-m", "proof"], TRITON_INTERPRET="1")


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available(), reason="not verified: there is no GPU"
)
def test_kernels_on_the_gpu():
    in_fresh_process(KERNELS)


ATTEND = """
import torch
from attention_cases import make_batch
from paged_attention import paged_attention
def attend(**options):
    try:
        make_batch([5]).run(paged_attention, **options)
        print("done")
    except RuntimeError as error:
        print(error)
"""


def said(code: str, **environment: str) -> str:
    environment["PYTHONPATH"] = str(TESTS)
    return in_fresh_process(["-c", ATTEND + code], **environment)


@pytest.mark.proof
def test_without_a_gpu_and_the_interpreter_a_kernel_call_says_what_to_do():
    told = said('attend(backend="triton")')
    assert "set TRITON_INTERPRET=1 in the environment before Python starts" in told


@pytest.mark.proof
def test_an_interpreter_that_is_wished_for_too_late_is_pointed_out():
    told = said(
        "import os, importlib\n"
        'importlib.import_module("paged_attention.kernels.backend")\n'
        'os.environ["TRITON_INTERPRET"] = "1"\n'
        'attend(backend="triton")'
    )
    assert "was set after our kernels were imported" in told
    assert "Kernel > Restart" in told


@pytest.mark.proof
def test_without_triton_only_its_kernels_are_missing():
    told = said(
        'import sys\nsys.modules["triton"] = None\n'
        'attend()\nattend(backend="torch")\nattend(backend="triton")'
    )
    assert told.splitlines()[:2] == ["done", "done"]
    assert "need Triton, which is not installed" in told


@pytest.mark.proof
def test_float64_is_left_to_torch():
    told = said(
        "batch = make_batch([5], dtype=torch.float64)\n"
        "try:\n"
        '    batch.run(paged_attention, backend="triton")\n'
        "except ValueError as error:\n"
        "    print(error)",
        TRITON_INTERPRET="1",
    )
    assert "float16, bfloat16 or float32, got torch.float64" in told
