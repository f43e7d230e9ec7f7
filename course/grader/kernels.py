"""What a test of a Triton exercise says: call a launcher, and look at all it left.

    run = kernel_run(exercise.copy_vector, source, destination)
    expect_close(run.after(1), expected, "…", atol=0)

The tensors of a test are laid out in the worker exactly as they are here: strides,
gaps, two views of one buffer. Apart from what the test claims, each call is seen to use
a kernel, to leave alone what lies beside its tensors, and to access nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import pytest

from course.grader.errors import GraderError
from course.grader.failures import fail
from course.grader.history import shown
from course.grader.kernel_checks import HOST_CALLS, Call
from course.grader.kernel_layout import Layout
from course.grader.kernel_source import read
from course.grader.proxy import Callable

HELPERS = "course.grader.helpers.kernels"

# A test carries at most one of these; without, kernels are interpreted on the CPU.
ahead_of_time = pytest.mark.kernels("compile")  # for compiled(): no GPU is needed
on_gpu = pytest.mark.kernels("gpu")  # kernel_run() runs there; without one not verified


@dataclass(frozen=True)
class Launch:
    """One kernel[grid](…) that was seen."""

    kernel: str
    grid: tuple[int, ...]
    stored: dict[str, int]  # parameter -> elements stored; empty where not watched


@dataclass(frozen=True)
class Run:
    """One call of a launcher, and what it left."""

    value: Any
    launches: list[Launch]
    _after: list[Any] = field(repr=False)

    def after(self, i: int) -> Any:
        """The content of positional argument i after the call; of a Huge, its rows."""
        return self._after[i]


@dataclass(frozen=True)
class Compiled:
    """What a kernel became on a GPU that is not here."""

    kernel: str
    target: str
    num_registers: int  # per thread
    spill_bytes: int  # per thread
    shared_bytes: int  # per program
    max_shared_bytes: int  # that the target has for a program
    load_bytes: dict[int, int]  # width of a load -> how many such instructions
    num_mma: int
    # Which positional argument of the launcher each parameter is (None: another one).
    parameters: list[int | None] = field(repr=False)
    assembly: str = field(repr=False)


def kernel_run(
    launcher: Any,
    *args: Any,
    backwards: bool = False,
    allows: Sequence[str] = (),
    **kwargs: Any,
) -> Run:
    """launcher(*args, **kwargs) where kernels run, and all that can be said of it.

    backwards  run the programs of each launch in reverse order: no order is promised
    allows     more names of torch that this launcher may call
    """
    link = _link_of(launcher)
    if link.mode == "compile":
        raise GraderError("kernel_run() in a test @ahead_of_time, where nothing runs")
    layout = Layout()
    sent = [layout.send(arg, i) for i, arg in enumerate(args)]
    named = {name: layout.send(arg, name) for name, arg in kwargs.items()}
    told = _told(launcher, args, kwargs)
    if backwards:
        told += "   (programs in reverse order)"
    reply = link.helper(
        f"{HELPERS}:run", (launcher, layout.storages, sent, named, backwards), told
    )
    value = reply["value"]
    if value is not None:
        link.history.add(f"-> {shown(value)}")
    if reply["lost"]:
        link.history.add(f"(accesses are not watched here: {reply['lost']})")
    declared = launcher._member.returns
    if declared is not None and not declared.admits(value):
        fail(
            f"{told} returns the type that the exercise declares",
            expected=f"a value of type {declared.text or declared.name}",
            got=f"{shown(value)} ({type(value).__name__})",
        )
    source = read(link.source)
    writes = launcher._member.writes
    call = Call(launcher._label, link.file, source, layout, reply, writes)
    call.check(frozenset(allows) | HOST_CALLS)
    after = [layout.after(each, reply["storages"]) for each in sent]
    launches = [
        Launch(each["kernel"], tuple(each["grid"]), each["stored"])
        for each in reply["launches"]
    ]
    return Run(value, launches, after)


def compiled(
    launcher: Any,
    *args: Any,
    target: str = "sm_80",
    aligned: bool = True,
    **kwargs: Any,
) -> list[Compiled]:
    """Compile each kernel that this call would launch; fails if one does not compile.

    Only in a test marked @ahead_of_time. aligned=False: no tensor is known to begin at
    a multiple of 16 bytes.
    """
    link = _link_of(launcher)
    if link.mode != "compile":
        raise GraderError("compiled() belongs into a test marked @ahead_of_time")
    layout = Layout()
    sent = [layout.send(arg, i) for i, arg in enumerate(args)]
    named = {name: layout.send(arg, name) for name, arg in kwargs.items()}
    told = _told(launcher, args, kwargs)
    message = (launcher, layout.storages, sent, named, target, aligned)
    reply = link.helper(f"{HELPERS}:compile_launches", message, f"{told}   ({target})")
    if "error" in reply:
        line = reply["line"]
        fail(
            f"{reply['kernel']} compiles for a GPU ({target})",
            expected="machine code",
            got=str(reply["error"]),
            location=f"{link.file}:{line}" if type(line) is int else None,
        )
    if not reply["kernels"]:
        source = read(link.source)
        Call(launcher._label, link.file, source, layout, reply).no_kernel(
            "it launched none"
        )
    made = []
    for entry in reply["kernels"]:
        text = bytes(entry["assembly"]).decode("utf-8", "replace")
        made.append(Compiled(**{**entry, "assembly": text}))
    return made


def _told(launcher: Any, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    """The call by argument names, with the strides of views of a wider tensor."""
    label = launcher._label
    function = read(launcher._link.source).functions.get(label)
    names = [each.arg for each in function.args.args] if function else []
    parts = [
        f"{name}={_with_strides(arg)}" if name else _with_strides(arg)
        for name, arg in zip_longest(names[: len(args)], args)
    ]
    parts += [f"{name}={_with_strides(arg)}" for name, arg in kwargs.items()]
    return f"{label}({', '.join(parts)})"


def _with_strides(value: Any) -> str:
    is_view = hasattr(value, "is_contiguous") and not value.is_contiguous()
    return shown(value, 60) + (f" strides {list(value.stride())}" if is_view else "")


def _link_of(launcher: Any) -> Any:
    if not isinstance(launcher, Callable):
        raise GraderError("the first argument must be a function of `exercise`")
    return launcher._link
