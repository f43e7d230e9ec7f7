"""What a file's text says about its kernels."""

import pytest

from course.grader.kernel_source import read

KERNELS = """
import torch, triton
import triton.language as tl

@triton.jit
def one(x_ptr, n, TILE: tl.constexpr):
    place = tl.arange(0, TILE)
    tl.store(x_ptr + place, tl.load(x_ptr + place, mask=place < n))

@triton.jit
def two(x_ptr):
    tl.store(x_ptr, 0)

TABLE = {1: one, 2: two}
"""


@pytest.mark.parametrize(
    "body",
    [
        "one[(1,)](x)",
        "(one if len(x) else two)[(1,)](x)",
        "kernel = one\n    kernel[(1,)](x)",
        "kernel: object = one\n    kernel[(1,)](x)",
        "(kernel := one)[(1,)](x)",
        "for kernel in (one, two):\n        kernel[(1,)](x)",
        "run = one[(1,)]\n    run(x)",
        "TABLE[1][(1,)](x)",
        "launch(one, x)\n\ndef launch(kernel, x):\n    kernel[(1,)](x)",
        "Runner().run(x)\n\nclass Runner:\n    def run(self, x):\n        one[(1,)](x)",
    ],
)
def test_a_launch_is_found_however_the_kernel_gets_there(body):
    assert read(f"{KERNELS}\ndef launcher(x):\n    {body}").launches("launcher")


@pytest.mark.parametrize(
    "body",
    [
        "return x * 2",
        "return x[(1,)](x)",  # no kernel is named
        "return one, x[0]",  # nothing is launched
        "one(x)",
        'x.note = "one[(1,)](x)"',
        "return x\n\ndef another(x):\n    one[(1,)](x)",
    ],
)
def test_what_launches_no_kernel_is_told_apart(body):
    assert not read(f"{KERNELS}\ndef launcher(x):\n    {body}").launches("launcher")


@pytest.mark.parametrize(
    "text",
    [
        "class Kernels:\n    @staticmethod\n    @triton.jit\n    def launcher(x): pass"
        "\n\ndef launcher(x):\n    Kernels.launcher[(1,)](x)",
        "def launcher(x):\n    @triton.jit()\n    def inner(x): pass"
        "\n    inner[(1,)](x)",
        "def plain(x): pass\n\nmade = triton.jit(plain)"
        "\n\ndef launcher(x):\n    made[(1,)](x)",
    ],
    ids=["in a class", "in the launcher", "made by a call"],
)
def test_a_kernel_may_stand_elsewhere(text):
    source = read(f"import triton\n\n{text}")
    assert source.launches("launcher")
    assert not read(text.replace("triton.jit", "print")).launches("launcher")


def test_a_launcher_may_be_a_lambda():
    assert read(f"{KERNELS}\nlauncher = lambda x: one[(1,)](x)").launches("launcher")


def test_a_masked_load_must_say_what_the_other_lanes_get():
    (load,) = read(KERNELS).loads_without_other()
    assert (load.line, load.text) == (8, "tl.load(x_ptr + place, mask=place < n)")
