"""The grader. Tests import their words from here; the command line imports grade().

The way from a test to the learner's code, and who does what on it:

    claims        what a test says: expect, expect_raises, …
    proxy         what it holds in place of the learner's objects
    conversation  what it may touch (contract), and whether the type that came is right
    exchange      words for whatever comes instead of a value (failures)
    channel       one socket, one request at a time; codec and crossing say what crosses
    worker        the learner's process: loads the file (guard, given) and answers;
                  instruments are the helpers that measure in there

Around it: grading runs one pytest session (plugin) over papers, verdict keeps score,
bench and warm hand out workers, which zygote forks behind the walls of isolation, and
watch looks at what they use, limits at how long; hidden lends them objects of the
grader; history, explain and report tell what happened.

Tests of Triton exercises speak through kernels (with kernel_layout, kernel_checks and
kernel_source); in the worker triton_inside watches what kernels do (kernel_memory), and
ahead compiles them; triton_ready does beforehand what would take each worker time.

Names are loaded when first used: a worker, which is the learner's process, imports
modules of this package and must not drag pytest along.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from course.grader.claims import (
        expect,
        expect_close,
        expect_raises,
        expect_that,
        in_worker,
        measured,
        not_verified,
        rewrite_history,
        task,
    )
    from course.grader.errors import GraderError
    from course.grader.grading import grade, grade_variants
    from course.grader.hidden import Hidden
    from course.grader.kernel_layout import Huge
    from course.grader.kernels import (
        Compiled,
        Run,
        ahead_of_time,
        compiled,
        kernel_run,
        on_gpu,
    )
    from course.grader.report import ExerciseResult, Failure, Report, TaskResult

_MODULE_OF = {
    "Compiled": "kernels",
    "ExerciseResult": "report",
    "Failure": "report",
    "GraderError": "errors",
    "Hidden": "hidden",
    "Huge": "kernel_layout",
    "Report": "report",
    "Run": "kernels",
    "TaskResult": "report",
    "ahead_of_time": "kernels",
    "compiled": "kernels",
    "expect": "claims",
    "expect_close": "claims",
    "expect_raises": "claims",
    "expect_that": "claims",
    "grade": "grading",
    "grade_variants": "grading",
    "in_worker": "claims",
    "kernel_run": "kernels",
    "measured": "claims",
    "not_verified": "claims",
    "on_gpu": "kernels",
    "rewrite_history": "claims",
    "task": "claims",
}

__all__ = [
    "Compiled",
    "ExerciseResult",
    "Failure",
    "GraderError",
    "Hidden",
    "Huge",
    "Report",
    "Run",
    "TaskResult",
    "ahead_of_time",
    "compiled",
    "expect",
    "expect_close",
    "expect_raises",
    "expect_that",
    "grade",
    "grade_variants",
    "in_worker",
    "kernel_run",
    "measured",
    "not_verified",
    "on_gpu",
    "rewrite_history",
    "task",
]


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'course.grader' has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
