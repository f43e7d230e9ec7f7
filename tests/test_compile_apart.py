"""Compiling from a process that interprets: what goes over, and what comes back."""

import pytest
import torch
import triton
import triton.language as tl
from test_kernels import TESTS, in_fresh_process

from paged_attention.kernels.compile import compile_launch
from paged_attention.kernels.compile_apart import Job, compile_in_subprocess, source_of
from paged_attention.kernels.decode import decode_launch

STEP = tl.constexpr(3)


@triton.jit
def stepped(x):
    return x + STEP


@triton.jit
def stepping_kernel(out_ptr, x_ptr, size, TILE: tl.constexpr):
    place = tl.arange(0, TILE)
    x = tl.load(x_ptr + place, mask=place < size, other=0.0)
    tl.store(out_ptr + place, stepped(x), mask=place < size)


def meta(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


@pytest.mark.proof
def test_the_source_holds_all_that_the_kernel_uses(tmp_path):
    file = tmp_path / "alone.py"
    file.write_text(source_of(stepping_kernel))
    x = torch.empty(64)
    arguments = {"out_ptr": x, "x_ptr": x, "size": 64, "TILE": 64}
    (got,) = compile_in_subprocess(Job(f"{file}:stepping_kernel", arguments, "sm_80"))
    assert got.target == "sm_80" and got.spill_bytes == 0 and max(got.load_bytes) >= 4


@pytest.mark.proof
def test_a_launch_is_compiled_as_it_would_be_here():
    query, caches = meta(4, 9, 64), [meta(9, 16, 3, 64)] * 2
    tables, lens = meta(4, 3, dtype=torch.int32), meta(4, dtype=torch.int32)
    arguments = (query, query, *caches, tables, lens, 0.1)
    here = compile_launch(decode_launch(*arguments), "sm_90")
    apart, narrow = compile_in_subprocess(
        Job(decode_launch, arguments, "sm_90"),
        Job(decode_launch, arguments, "sm_90", aligned=False),
    )
    assert apart == here
    assert max(narrow.load_bytes) < 16


@pytest.mark.proof
def test_what_the_compiler_says_is_handed_on(tmp_path):
    file = tmp_path / "odd.py"
    file.write_text(source_of(stepping_kernel))
    x = torch.empty(64)
    arguments = {"out_ptr": x, "x_ptr": x, "size": 64, "TILE": 63}
    job = Job(f"{file}:stepping_kernel", arguments, "sm_80")
    try:
        compile_in_subprocess(job)
    except RuntimeError as error:
        assert "stepping_kernel for sm_80" in str(error)
        assert "power of 2" in str(error)
    else:
        raise AssertionError("a tile of 63 was compiled")


INTERPRETING = """
import torch
from paged_attention.kernels.compile_apart import Job, compile_in_subprocess
from paged_attention.kernels.launch import is_interpreted
from test_compile_apart import stepping_kernel
assert is_interpreted(stepping_kernel)
x = torch.empty(64)
arguments = {"out_ptr": x, "x_ptr": x, "size": 64, "TILE": 64}
stepping_kernel.fn.__module__ = "__main__"  # as if it stood in a cell
print(compile_in_subprocess(Job(stepping_kernel, arguments, "sm_80")))
"""


@pytest.mark.proof
def test_a_process_that_interprets_can_have_its_kernels_compiled():
    environment = {"TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS)}
    told = in_fresh_process(["-c", INTERPRETING], **environment)
    assert "target='sm_80'" in told
