"""The way from a test to a learner's Triton kernels, and attacks on it.

A course of one exercise with two launchers: scale gives back a tensor, shift works in
place. Every answer is a variant of the solution; all are graded in one session.
"""

import io
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from course.grader import ExerciseResult, GraderError, Report, grade_variants
from course.report import Reading
from course.terminal import Out

ROOT = Path(__file__).parents[2]

pytestmark = [
    pytest.mark.proof,
    pytest.mark.skipif(
        find_spec("triton") is None, reason="not verified: Triton is not installed"
    ),
]

MANIFEST = """
[[chapter]]
id = "09"
name = "scale"
title = "Scale"
question = "?"
goal = "."
prerequisites = []
minutes = 1
exercise = true
preload = ["torch", "triton"]
refuses = ["paged_attention.kernels"]
call_seconds = 3
task = [
    { id = "9.1", title = "a", points = 1, kind = "build", hints = ["", "", ""] },
    { id = "9.2", title = "b", points = 1, kind = "build", hints = ["", "", ""] },
    { id = "9.3", title = "c", points = 1, kind = "build", hints = ["", "", ""] },
    { id = "9.4", title = "d", points = 1, kind = "build", hints = ["", "", ""] },
    { id = "9.5", title = "e", points = 1, kind = "build", hints = ["", "", ""] },
]
"""

SOLUTION = """\
'shift writes x.'
import torch
import triton
import triton.language as tl
from torch import Tensor

LIMIT = 1.0


@triton.jit
def scale_kernel(x_ptr, out_ptr, factor, n, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + place, mask=place < n, other=0.0)
    y = x * factor
    tl.store(out_ptr + place, y, mask=place < n)


@triton.jit
def shift_kernel(x_ptr, width, stride, TILE: tl.constexpr):
    row = tl.program_id(0)
    column = tl.arange(0, TILE)
    place = row * stride + column
    x = tl.load(x_ptr + place, mask=column < width, other=0.0)
    tl.store(x_ptr + place, x + 1.0, mask=column < width)


def scale(x: Tensor, factor: float) -> Tensor:
    out = torch.empty_like(x)
    n = x.numel()
    # BEFORE
    scale_kernel[(triton.cdiv(n, 4),)](x, out, factor, n, TILE=4)
    # AFTER
    return out


def shift(x: Tensor) -> None:
    rows, width = x.shape
    shift_kernel[(rows,)](x, width, x.stride(0), TILE=triton.next_power_of_2(width))
"""

TESTS = """\
import torch
from course.grader import (
    Huge, ahead_of_time, compiled, expect, expect_close, kernel_run, on_gpu, task
)

X = torch.arange(1.0, 11.0)


@task("9.1")
def test_every_number_is_scaled(exercise):
    run = kernel_run(exercise.scale, X, 2.0)
    expect_close(run.value, 2 * X, "every number is doubled", atol=0)
    (launch,) = run.launches
    expect((launch.grid, launch.stored), ((3, 1, 1), {"out_ptr": 10}), "3 tiles of 4")


@task("9.1")
def test_nothing_is_scaled_in_an_empty_tensor(exercise):
    expect(kernel_run(exercise.scale, X[:0], 2.0).value.numel(), 0, "nothing")


@task("9.2")
def test_rows_of_a_wider_tensor_are_shifted(exercise):
    wide = torch.full((3, 7), float("nan"))
    wide[:, 1:4] = torch.arange(9.0).reshape(3, 3)
    view = wide[:, 1:4]
    run = kernel_run(exercise.shift, view)
    expect_close(run.after(0), view + 1, "every number grows by 1", atol=0)


@task("9.2")
def test_a_huge_tensor_can_be_shifted(exercise):
    pool = Huge((4, 1 << 30), {3: torch.zeros(1 << 20)})
    expect(pool.shape, [4, 1 << 30], "4 GiB")
    both = torch.arange(12.0).reshape(2, 2, 3).transpose(0, 1)
    run = kernel_run(exercise.shift, both[:, 1])
    expect_close(run.after(0), both[:, 1] + 1, "a view of a view", atol=0)


@task("9.3")
@ahead_of_time
def test_both_compile(exercise):
    (scale,) = compiled(exercise.scale, torch.zeros(64), 2.0)
    expect(scale.spill_bytes, 0, "no spills")
    expect(scale.num_registers > 4, True, "it needs registers")
    expect("ld.global" in scale.assembly, True, "PTX is told")
    compiled(exercise.shift, torch.zeros(3, 3), target="sm_90")


@task("9.4")
def test_programs_have_no_order(exercise):
    run = kernel_run(exercise.shift, torch.zeros(3, 2), backwards=True)
    expect_close(run.after(0), torch.ones(3, 2), "in any order", atol=0)


@task("9.4")
@on_gpu
def test_the_same_on_a_gpu(exercise):
    test_programs_have_no_order(exercise)


@task("9.5")
@on_gpu
def test_on_a_gpu_only(exercise):
    kernel_run(exercise.scale, X, 2.0)
"""


def change(*pairs: tuple[str, str]) -> str:
    text = SOLUTION
    for old, new in pairs:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


BEFORE, AFTER = "    # BEFORE\n", "    # AFTER\n"
LAUNCH = "    scale_kernel[(triton.cdiv(n, 4),)](x, out, factor, n, TILE=4)\n"
LOAD = "tl.load(x_ptr + place, mask=place < n, other=0.0)"

ONE_LINER = """\
import torch


def scale(x, factor):
    return x * factor


def shift(x):
    x += 1
"""

FAKE = '''
class Fake:
    """Looks like a kernel and computes in Python."""

    def __getitem__(self, grid):
        return self.run

    def run(self, x, out, factor, n, TILE):
        out.set_(torch.tensor([v * factor for v in x.tolist()]))


scale_kernel = Fake()


def scale(x'''

# name -> (source, task, what the failure says)
ANSWERS = {
    "torch": (ONE_LINER, "9.1", "the file has no function marked @triton.jit"),
    "torch in place": (ONE_LINER, "9.2", "the file has no function marked @triton.jit"),
    "kernel beside": (
        change((AFTER, "    out = x * factor\n")),
        "9.1",
        "no kernel has written to",
    ),
    "kernel, then torch": (
        change((AFTER, "    out.copy_(x * factor)\n")),
        "9.1",
        "a call of torch's ",
    ),
    "written by indexing": (
        change((LAUNCH, LAUNCH + "    out[:] = 2.0\n")),
        "9.1",
        "a call of torch's __setitem__",
    ),
    "python": (
        change((AFTER, "    out = torch.tensor([v * factor for v in x.tolist()])\n")),
        "9.1",
        "no kernel has written to",
    ),
    "faked launch": (
        change(("\ndef scale(x", FAKE)),
        "9.1",
        "it launched none",
    ),
    "grid": (
        change(("(triton.cdiv(n, 4),)]", "triton.cdiv(n, 4)]")),
        "9.1",
        "a grid is a tuple, as in kernel[(n,)](…): got 3",
    ),
    "wrong type": (
        change(("    return out\n", "    return out, n\n")),
        "9.1",
        "a value of type Tensor",
    ),
    "tuple": (
        change(
            (
                "def shift_kernel(x_ptr, width, stride,",
                "def shift_kernel(x_ptr, width, s,",
            ),
            ("row * stride +", "row * s[0] +"),
            ("x.stride(0), TILE", "x.stride(), TILE"),
        ),
        "9.3",
        "s is a tuple, which cannot be compiled here",
    ),
    "by address": (
        change(
            (
                "    rows, width = x.shape\n",
                "    rows, width = x.shape\n"
                "    import ctypes\n"
                "    for row in range(rows):\n"
                "        at = x.data_ptr() + 4 * row * x.stride(0)\n"
                "        there = (ctypes.c_float * width).from_address(at)\n"
                "        there[:] = [v + 1 for v in there]\n"
                "    x = torch.zeros(rows, width)\n",
            )
        ),
        "9.2",
        "x changed without one",
    ),
    "operators": (
        change((LAUNCH, LAUNCH + "    torch.ops.aten.mul.out(x, 2.0, out=out)\n")),
        "9.1",
        "a call of torch's mul",
    ),
    "by address, afterwards": (
        change(
            (
                AFTER,
                "    import ctypes\n"
                "    there = (ctypes.c_float * n).from_address(out.data_ptr())\n"
                "    there[:] = [v * factor for v in x.tolist()]\n",
            ),
            ("place, y, mask", "place, 0 * y, mask"),
        ),
        "9.1",
        "what it returned changed again after the last launch",
    ),
    "in a thread": (
        change(
            (
                AFTER,
                "    import threading\n"
                "    work = lambda: out.copy_(x * factor)\n"
                "    thread = threading.Thread(target=work)\n"
                "    thread.start()\n"
                "    thread.join()\n",
            ),
            ("place, y, mask", "place, 0 * y, mask"),
        ),
        "9.1",
        "what it returned changed again after the last launch",
    ),
    "element by element": (
        change(
            (
                "TILE=triton.next_power_of_2(width))\n",
                "TILE=1)\n"
                "    for i, row in enumerate(before):\n"
                "        for j, v in enumerate(row):\n"
                "            x[i, j].fill_(v + 1)\n",
            ),
            (
                "    rows, width = x.shape\n",
                "    rows, width = x.shape\n    before = x.tolist()\n",
            ),
        ),
        "9.2",
        "x changed again after the last launch",
    ),
    "no grid": (
        change((LAUNCH, "    scale_kernel(x, out, factor, n, TILE=4)\n")),
        "9.1",
        "a kernel is launched as scale_kernel[grid](…): here is no grid",
    ),
    "a tensor of the file": (
        change(
            ("LIMIT = 1.0", "LIMIT = torch.zeros(10)"),
            ("tl.store(out_ptr + place, y", "tl.store(LIMIT + place, y"),
        ),
        "9.1",
        "tl.load and tl.store take a pointer that the kernel was given",
    ),
    "autotune": (
        change(
            (
                "@triton.jit\ndef scale_kernel",
                "@triton.autotune([triton.Config({'TILE': 4}), "
                "triton.Config({'TILE': 8})], key=['n'])\n"
                "@triton.jit\ndef scale_kernel",
            ),
            ("factor, n, TILE=4)", "factor, n)"),
        ),
        "9.1",
        "@triton.autotune does (it measures on one)",
    ),
    "three warps": (
        change(("factor, n, TILE=4)", "factor, n, TILE=4, num_warps=3)")),
        "9.3",
        "num_warps must be a power of 2",
    ),
    "no launch": (change((LAUNCH, "")), "9.1", "has no line like kernel[grid]"),
    "no mask": (
        change((LOAD, "tl.load(x_ptr + place)")),
        "9.1",
        "load outside 'x_ptr' at element 10 (it has 10), program (2, 0, 0), "
        "2 of 4 active lanes",
    ),
    "store without a mask": (
        change(("y, mask=place < n)", "y)")),
        "9.1",
        "store outside 'out_ptr' at element 10 (it has 10), program (2, 0, 0), "
        "2 of 4 active lanes",
    ),
    "swallowed": (
        change(
            (LOAD, "tl.load(x_ptr + place)"),
            (
                LAUNCH,
                "    try:\n    " + LAUNCH + "    except Exception:\n        pass\n",
            ),
        ),
        "9.1",
        "load outside 'x_ptr' at element 10",
    ),
    "far away": (
        change((LOAD, "tl.load(x_ptr + (place.to(tl.int64) << 40))")),
        "9.1",
        "load outside 'x_ptr' at element 1099511627776 (it has 10)",
    ),
    "no other": (
        change((LOAD, "tl.load(x_ptr + place, mask=place < n)")),
        "9.1",
        "tl.load(x_ptr + place, mask=place < n)",
    ),
    "hangs": (
        change(("    y = x * factor\n", "    while True:\n        y = x * factor\n")),
        "9.1",
        "did not come back within 3 seconds",
    ),
    "crashes": (
        change((BEFORE, "    import os\n    os.abort()\n")),
        "9.1",
        "crashed: Aborted",
    ),
    "error in a kernel": (
        change(("y = x * factor", "y = x * facto")),
        "9.1",
        "name 'facto' is not defined",
    ),
    "patches torch": (
        change((BEFORE, "    torch.Tensor.copy_ = print\n")),
        "9.1",
        "torch.Tensor.copy_ = print",
    ),
    "patches triton": (
        change((BEFORE, "    setattr(tl, 'load', tl.load)\n")),
        "9.1",
        "setattr(tl, 'load', tl.load)",
    ),
    "copied answer": (
        change((BEFORE, "    import paged_attention.kernels.cache_ops\n")),
        "9.1",
        "is refused",
    ),
    "the grader's own": (
        change((BEFORE, "    import course.grader.triton_inside\n")),
        "9.1",
        "is refused",
    ),
    "reads a gap": (
        change(("mask=column < width, other", "mask=column <= width, other")),
        "9.2",
        "load outside 'x_ptr' at offset 3 ",
    ),
    "strides taken for granted": (
        change(("row * stride + column", "row * width + column")),
        "9.2",
        " outside 'x_ptr' at offset ",
    ),
    "plain global": (
        change(("x * factor", "x * factor * LIMIT")),
        "9.3",
        "the kernel reads the global variable LIMIT",
    ),
    "tile": (
        change(("tl.arange(0, TILE)\n    x", "tl.arange(0, 5)\n    x")),
        "9.3",
        "power of 2",
    ),
    "small dot": (
        change(
            (
                "y = x * factor",
                "y = x * factor + tl.sum(tl.dot(x[:, None], x[None, :]))",
            )
        ),
        "9.3",
        "tl.dot takes no tile as small as this",
    ),
    "order": (
        # Each row looks whether the first one has been done before it.
        change(
            ("x + 1.0", "x + tl.where((row == 0) | (tl.load(x_ptr) > 0), 1.0, 0.0)")
        ),
        "9.4",
        "in any order",
    ),
    "interpreter only": (
        change(("y = x * factor", "y = x * factor\n    print([v for v in (1, 2)])")),
        "9.3",
        "machine code",
    ),
}


# Other ways to write the solution: all that can be graded here passes.
RIGHT = {
    "interpreter asked for": "import os\nos.environ['TRITON_INTERPRET'] = '1'\n"
    + SOLUTION,
    "interpreter refused": "import os\nos.environ['TRITON_INTERPRET'] = '0'\n"
    + SOLUTION,
    "no gradients": change(("def scale(x", "@torch.no_grad()\ndef scale(x")),
    "kernel in a class": change(
        (
            "@triton.jit\ndef scale_kernel(x_ptr, out_ptr, factor, n, "
            "TILE: tl.constexpr):\n"
            "    place = tl.program_id(0) * TILE + tl.arange(0, TILE)\n"
            f"    x = {LOAD}\n"
            "    y = x * factor\n"
            "    tl.store(out_ptr + place, y, mask=place < n)\n",
            "class Kernels:\n"
            "    @staticmethod\n"
            "    @triton.jit\n"
            "    def scale(x_ptr, out_ptr, factor, n, TILE: tl.constexpr):\n"
            "        place = tl.program_id(0) * TILE + tl.arange(0, TILE)\n"
            f"        x = {LOAD}\n"
            "        tl.store(out_ptr + place, x * factor, mask=place < n)\n",
        ),
        ("    scale_kernel[", "    Kernels.scale["),
    ),
    "made by a call": change(
        ("@triton.jit\ndef scale_kernel(", "def plain("),
        ("\ndef scale(x", "\nscale_kernel = triton.jit(plain)\n\n\ndef scale(x"),
    ),
}


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("a course")
    files = {
        "course/manifest.toml": MANIFEST,
        "solutions/ex09_scale.py": SOLUTION,
        "tests/exercises/test_ex09_scale.py": TESTS,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def results(course: Path) -> dict[str, ExerciseResult]:
    variants = {"solution": course / "solutions/ex09_scale.py"}
    sources = {name: source for name, (source, *_) in ANSWERS.items()} | RIGHT
    for name, source in sources.items():
        variants[name] = course / f"{name}.py"
        variants[name].write_text(source, encoding="utf-8")
    only = {name: task for name, (_, task, _) in ANSWERS.items()}
    return grade_variants("09", variants, only=only, root=course)


def test_the_solution_passes_all_that_can_be_run_here(
    results: dict[str, ExerciseResult],
) -> None:
    result = results["solution"]
    failures = [task.failure for task in result.tasks if task.failure]
    assert failures == []
    assert [task.status for task in result.tasks[:4]] == ["passed"] * 4


@pytest.mark.parametrize("name", RIGHT)
def test_the_solution_may_be_written_otherwise(
    results: dict[str, ExerciseResult], name: str
) -> None:
    tasks = results[name].tasks[:4]
    assert [task.failure for task in tasks if task.failure] == []
    assert [task.status for task in tasks] == ["passed"] * 4


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_none_is_told_why(
    results: dict[str, ExerciseResult], name: str
) -> None:
    _, task_id, said = ANSWERS[name]
    (task,) = results[name].tasks
    failure = task.failure
    assert (task.id, task.status, task.points) == (task_id, "failed", 0)
    assert failure is not None
    told = f"{failure.claim}; expected {failure.expected}; got {failure.got}; "
    assert said in told + failure.message


def test_a_task_that_only_a_gpu_decides_is_not_verified_without_one(
    results: dict[str, ExerciseResult],
) -> None:
    torch = pytest.importorskip("torch")
    part, whole = results["solution"].tasks[3:]
    if torch.cuda.is_available():
        assert (part.status, whole.status) == ("passed", "passed")
        return
    assert (part.status, part.points, part.num_not_verified) == ("passed", 1, 1)
    assert (whole.status, whole.points) == ("not verified", 0)
    assert part.not_verified == whole.not_verified == "there is no CUDA GPU here"
    assert not results["solution"].ok


def test_the_line_that_is_told_is_the_one_in_the_kernel(
    results: dict[str, ExerciseResult], course: Path
) -> None:
    def line_of(name: str, text: str) -> str:
        lines = (course / f"{name}.py").read_text().splitlines()
        (number,) = (i for i, line in enumerate(lines, 1) if text in line)
        return f"{course / name}.py:{number}"

    for name, text in {
        "no mask": "tl.load(x_ptr + place)",
        "plain global": "x * factor * LIMIT",
        "no other": "x = tl.load(x_ptr + place, mask=place < n)",
        "kernel, then torch": "out.copy_(x * factor)",
    }.items():
        failure = results[name].tasks[0].failure
        assert failure is not None
        assert failure.location == line_of(name, text)


def test_a_part_that_was_not_verified_is_named_beside_what_passed(
    results: dict[str, ExerciseResult], course: Path
) -> None:
    part, whole = results["solution"].tasks[3:]
    if whole.status == "passed":
        pytest.skip("not verified: there is a GPU here")
    exercise = ExerciseResult("ex09_scale", "x.py", (part, whole))
    stream = io.StringIO()
    Reading(Out(stream), course, target="x.py").render(Report((exercise,)))
    told = " ".join(stream.getvalue().split())
    assert "1 of 2 tasks, 1 of 2 points" in told
    assert "passed, but for a part that is not verified on this machine: 9.4" in told
    assert " not verified on this machine: 9.5 (there is no CUDA GPU here)" in told


@pytest.mark.parametrize("marked", [False, True])
def test_a_test_in_the_wrong_mode_is_a_mistake_of_the_grader(
    course: Path, tmp_path: Path, marked: bool
) -> None:
    """The learner's code plays no part in it."""
    for file in course.rglob("*ex09_scale.py"):
        copy = tmp_path / file.relative_to(course)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(file.read_text())
    (tmp_path / "course").mkdir()
    (tmp_path / "course/manifest.toml").write_text(MANIFEST)
    call = "kernel_run" if marked else "compiled"
    (tmp_path / "tests/exercises/test_ex09_scale.py").write_text(
        TESTS
        + f"""
@task("9.1")
{"@ahead_of_time" if marked else ""}
def test_in_the_wrong_mode(exercise):
    {call}(exercise.scale, X, 2.0)
"""
    )
    variants = {"solution": tmp_path / "solutions/ex09_scale.py"}
    with pytest.raises(GraderError, match="@ahead_of_time"):
        grade_variants("09", variants, only={"solution": "9.1"}, root=tmp_path)


def in_fresh_process(code: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_without_triton_nothing_of_such_an_exercise_is_verified(course: Path) -> None:
    told = in_fresh_process(
        f"""
import sys
sys.modules["triton"] = None
from pathlib import Path
from course.grader import grade
root = Path({str(course)!r})
report = grade(["09"], root / "solutions", root=root)
for task in report.exercises[0].tasks:
    print(task.status, task.points, task.not_verified)
print(report.ok)
"""
    )
    each = "not verified 0 triton is not installed here: it exists for Linux alone"
    assert told.splitlines() == [each] * 5 + ["False"]


@pytest.mark.parametrize(
    "change",
    [
        "del interpreter.GridExecutor",
        "interpreter.InterpreterBuilder.set_grid_idx = lambda self, *at: setattr("
        "self, 'grid_idx', at)\ninterpreter.interpreter_builder = None",
        "class Native: pass\nnative = interpreter._interpreter\n"
        "interpreter.InterpreterBuilder.create_masked_load = lambda self, p, m, o, *_: "
        "interpreter.TensorHandle(native.load(p.data, m.data, o.data, "
        "interpreter._get_np_dtype(p.get_element_ty())), p.get_element_ty())",
    ],
    ids=["a name is gone", "another is gone", "accesses go another way"],
)
def test_where_triton_is_not_as_known_the_watch_says_so(
    tmp_path: Path, change: str
) -> None:
    told = in_fresh_process(
        f"""
import triton.runtime.interpreter as interpreter
{change}
from course.grader import triton_inside
print("lost:", triton_inside.install("interpret").lost)
""",
        TRITON_INTERPRET="1",
    )
    assert told.startswith("lost: ")
    assert len(told) > len("lost: \n")


def test_without_the_watch_guards_show_a_store_beside_a_tensor(tmp_path: Path) -> None:
    (tmp_path / "scale.py").write_text(SOLUTION)
    code = """
import torch
import triton.runtime.interpreter as interpreter
native = interpreter._interpreter
interpreter.InterpreterBuilder.create_masked_store = lambda self, p, v, m, *_: (
    native.store(p.data, v.data, m.data)
)
from course.grader import triton_inside
print(triton_inside.install("interpret").lost)
from course.grader.helpers.kernels import run
from scale import scale, scale_kernel
x = torch.arange(10.0)
view = {"view": [0, [10], [1], 0]}
reply = run(scale, [x], [view, {"value": 2.0}], {}, False)
print(torch.equal(reply["value"], 2 * x), reply["from_kernel"], reply["guards"])
def wild(x):
    scale_kernel[(3,)](x, x[5:], 2.0, 10, TILE=4)
print(run(wild, [x], [view], {}, False)["guards"])
"""
    told = in_fresh_process(code, TRITON_INTERPRET="1", PYTHONPATH=str(tmp_path))
    lost, right, wrong = told.splitlines()
    assert lost == "RuntimeError: the canary did not see a right launch"
    assert right == "True True [True]"
    assert wrong == "[False]"


READY = """
import pathlib
from course.grader import triton_inside, triton_ready
from triton.runtime import cache, interpreter
import triton.language as tl
{change}
watch = triton_inside.install({mode!r})
triton_ready.make_ready({mode!r}, pathlib.Path({folder!r}))
rewritten = tl.sum.fn in interpreter.InterpretedFunction.rewritten_fn
looks_once = interpreter._patch_builtin.__module__ == triton_ready.__name__
print(rewritten, looks_once, cache.triton_key.cache_info().currsize, watch.lost)
"""


def test_what_each_worker_would_do_anew_is_done_before(tmp_path: Path) -> None:
    code = READY.format(mode="interpret", folder=str(tmp_path), change="")
    told = in_fresh_process(code, TRITON_INTERPRET="1")
    assert told.split() == ["True", "True", "0"]
    code = READY.format(mode="compile", folder=str(tmp_path), change="")
    assert in_fresh_process(code).split() == ["False", "False", "1"]
    assert list(tmp_path.iterdir()) == []


def test_where_triton_is_not_as_known_kernels_are_only_slower(tmp_path: Path) -> None:
    change = """
patch_attr = interpreter._patch_attr
def patch_builtin(owner, *rest):
    for name, member in list(vars(owner).items()):
        if tl.core.is_builtin(member):
            patch_attr(owner, name, member, *rest)
interpreter._patch_builtin = patch_builtin
del interpreter._patch_attr
"""
    code = READY.format(mode="interpret", folder=str(tmp_path), change=change)
    told = in_fresh_process(code, TRITON_INTERPRET="1")
    assert told.split() == ["True", "False", "0"]
