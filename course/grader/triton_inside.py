"""Every private name of Triton that the grader relies on, and nowhere else.

(What it can do without, and is only faster with, is in triton_ready.)

In a worker's process, installed by the warm process before any learner code:

    interpret   TRITON_INTERPRET=1. Each access of a kernel is checked against the
                tensors of its launch; programs can be run in reverse order
    compile     a launch is taken down and nothing is run (see helpers/kernels.py)
    gpu         a launch is counted and run

Triton promises none of these names. So a canary kernel is run when they are installed;
if anything is not as it was, the watch says so in `lost`. What is then left are the
guard bytes around every tensor, which show a store that hit them, after the fact.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from course.grader.kernel_memory import Extent, Memory, OutOfBoundsError

MODES = ("interpret", "compile", "gpu")
MAX_KEPT_BYTES = 64 << 20  # of a storage that is compared with itself later


@dataclass
class Watch:
    """What the kernels of one call did; begin() before each call."""

    mode: str
    lost: str = ""  # why accesses cannot be watched; "" if they are
    launches: list[dict[str, Any]] = field(default_factory=list)
    captured: list[tuple[Any, dict[str, Any], dict[str, Any]]] = field(
        default_factory=list
    )
    problem: OutOfBoundsError | None = None  # the first, even if it was swallowed
    # Storages that kernels wrote to, and their bytes after the last one that did.
    stored_in: dict[int, Any] = field(default_factory=dict)
    backwards: bool = False
    depth: int = 0  # > 0 while a kernel runs
    memory: Memory | None = None
    grid: tuple[int, ...] = (1, 1, 1)
    program: tuple[int, ...] = (0, 0, 0)

    def begin(self, backwards: bool = False) -> None:
        self.launches, self.captured = [], []
        self.problem, self.stored_in = None, {}
        self.backwards, self.depth, self.memory = backwards, 0, None

    def check(self, kind: str, pointers: Any, mask: Any, width: int) -> None:
        """Called before each access; raises OutOfBoundsError if it is a wrong one."""
        if self.memory is None:
            return
        wrong = self.memory.check(kind, pointers, mask, width)
        if wrong is None:
            return
        what, lanes = wrong
        error = OutOfBoundsError(f"{what}, program {self.program}, {lanes}")
        self.problem = self.problem or error
        raise error

    def open_launch(self, name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        launch = {"kernel": name, "grid": [], "programs": 0, "stored": {}}
        self.launches.append(launch)
        extents = [Extent(*pair) for pair in _tensors(arguments)]
        self.memory = Memory(extents)
        return launch

    def close_launch(self, launch: dict[str, Any]) -> None:
        assert self.memory is not None, "a launch that was not opened"
        launch["stored"] = self.memory.stored
        for extent in self.memory.extents:
            if self.mode != "interpret":
                self.stored_in[extent.storage] = None  # nobody knows
            elif extent.name in self.memory.stored:
                self.stored_in[extent.storage] = bytes_of(extent.tensor)
        self.memory = None


def bytes_of(tensor: Any) -> Any:
    """A copy of the whole storage below a tensor; None if it is a huge one."""
    storage = tensor.untyped_storage()
    return storage.clone() if storage.nbytes() <= MAX_KEPT_BYTES else None


_watch: Watch | None = None
_replaced: list[tuple[Any, str, Any]] = []  # what was where before


def current() -> Watch:
    """The watch of this process; installed now if it is none of the grader's own."""
    return _watch or install("interpret")


def install(mode: str) -> Watch:
    """Put the watch in place, and try it."""
    global _watch
    watch = Watch(mode)
    try:
        _keep_mode(mode)
        if mode == "interpret":
            _watch_interpreter(watch)
            _try_canary(watch)
        else:
            _watch_jit(watch)
    except Exception as error:  # whatever: those are private names
        _unwatch()
        watch.lost = f"{type(error).__name__}: {error}"
    watch.begin()
    _watch = watch
    return watch


def _keep_mode(mode: str) -> None:
    """Nothing that an exercise does to os.environ changes what @triton.jit makes."""
    from triton import knobs

    knobs.runtime.interpret = mode == "interpret"


def _replace(owner: Any, name: str, new: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, new)


def _unwatch() -> None:
    while _replaced:
        setattr(*_replaced.pop())


def _tensors(arguments: Mapping[str, Any]) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in arguments.items():
        if isinstance(value, tuple):
            parts = {f"{name}[{i}]": part for i, part in enumerate(value)}
            found += _tensors(parts)
        else:
            # A tensor, or what wraps one: a reinterpreted one, a descriptor.
            tensor = getattr(value, "base", None)
            tensor = value if tensor is None else tensor
            if hasattr(tensor, "untyped_storage"):
                found.append((name, tensor))
    return found


def _watch_interpreter(watch: Watch) -> None:
    from triton.runtime import interpreter

    builder, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx
    call = executor.__call__

    def set_grid_dim(*grid: int) -> None:
        watch.grid = tuple(int(size) for size in grid)
        watch.launches[-1]["grid"] = list(watch.grid)
        set_dim(*grid)

    def set_grid_idx(*program: int) -> None:
        if watch.backwards:
            program = tuple(
                size - 1 - i for i, size in zip(program, watch.grid, strict=True)
            )
        watch.program = program
        watch.launches[-1]["programs"] += 1
        set_idx(*program)

    def launch(self: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.grid, int):  # Triton would say that it has no len()
            raise TypeError(
                f"a grid is a tuple, as in kernel[(n,)](…): got {self.grid}"
            )
        watch.depth += 1
        entry = watch.open_launch(self.fn.__name__, _bound(self.fn, args, kwargs))
        try:
            return call(self, *args, **kwargs)
        except interpreter.InterpreterError as error:
            # The kernel's own error, with the kernel's own line.
            cause: BaseException = error
            while isinstance(cause, interpreter.InterpreterError) and cause.__cause__:
                cause = cause.__cause__
            cause = _in_plain_words(cause)
        finally:
            watch.close_launch(entry)
            watch.depth -= 1
        raise cause

    function = interpreter.InterpretedFunction
    call_function = function.__call__

    def call_from_a_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        if watch.depth == 0:
            name = self.fn.__name__
            raise TypeError(f"a kernel is launched as {name}[grid](…): here is no grid")
        return call_function(self, *args, **kwargs)

    _replace(function, "__call__", call_from_a_kernel)
    _replace(interpreter, "_interpreter", _Accesses(interpreter._interpreter, watch))
    _replace(builder, "set_grid_dim", set_grid_dim)
    _replace(builder, "set_grid_idx", set_grid_idx)
    _replace(executor, "__call__", launch)


def _in_plain_words(error: BaseException) -> BaseException:
    """The same error, where its own words would send the reader elsewhere."""
    # Triton 3.9 asks the type of a torch tensor, 3.7 the tensor's method `type`.
    words = str(error)
    if not words.startswith(("'torch.dtype' object", "'builtin_function_or_method'")):
        return error
    told = TypeError(
        "tl.load and tl.store take a pointer that the kernel was given as an argument, "
        "got a torch tensor (of the file?)"
    )
    return told.with_traceback(error.__traceback__)


def _bound(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    names = inspect.signature(function).parameters
    kwargs = {name: value for name, value in kwargs.items() if name in names}
    return inspect.signature(function).bind(*args, **kwargs).arguments


class _Accesses:
    """Stands for the interpreter's native part; looks at each access before it."""

    def __init__(self, native: Any, watch: Watch) -> None:
        self._native = native
        self._watch = watch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def load(self, pointers: Any, mask: Any, other: Any, dtype: Any) -> Any:
        mask = _as_bool(mask)
        self._watch.check("load", pointers, mask, dtype.itemsize)
        return self._native.load(pointers, mask, other, dtype)

    def store(self, pointers: Any, value: Any, mask: Any) -> Any:
        mask = _as_bool(mask)
        self._watch.check("store", pointers, mask, value.dtype.itemsize)
        return self._native.store(pointers, value, mask)

    def atomic_rmw(
        self, operation: Any, pointers: Any, value: Any, mask: Any, order: Any
    ) -> Any:
        mask = _as_bool(mask)
        self._watch.check("atomic access", pointers, mask, value.dtype.itemsize)
        return self._native.atomic_rmw(operation, pointers, value, mask, order)

    def atomic_cas(self, pointers: Any, compare: Any, value: Any, order: Any) -> Any:
        self._watch.check("atomic access", pointers, True, value.dtype.itemsize)
        return self._native.atomic_cas(pointers, compare, value, order)


def _as_bool(mask: Any) -> Any:
    """A tile's mask & a scalar condition is int in Triton 3.9, which loads refuse."""
    return mask if mask.dtype == bool else mask != 0


def _try_canary(watch: Watch) -> None:
    """Raise unless a kernel's launches and accesses are all seen."""
    import torch

    from course.grader import triton_canary

    canary: Any = triton_canary.canary
    source = torch.arange(10, dtype=torch.float32)
    wide, count = torch.zeros(20), torch.zeros(1, dtype=torch.int32)
    destination = wide[::2]  # every other element: the rest is not the kernel's
    watch.begin(backwards=True)
    canary[(3,)](source, wide, count, 10, TILE=4)
    seen = {"kernel": "canary", "grid": [3, 1, 1], "programs": 3}
    seen["stored"] = {"destination_ptr": 10, "count_ptr": 3}
    copied = torch.equal(wide[:10], source) and int(count) == 3
    _see(copied and watch.launches == [seen], "a right launch")
    _see(watch.program == (0, 0, 0), "programs in reverse order")
    watch.begin()
    expected = "load outside 'source_ptr' at element 10 (it has 10), program (2, 0, 0)"
    _see(_told(canary, source, wide, count, 12).startswith(expected), "a wild load")
    expected = "store outside 'destination_ptr' at offset 1 "
    _see(_told(canary, source, destination, count, 4).startswith(expected), "a gap")
    _see(_told(canary, source, wide, count[:0], 4).startswith("atomic"), "an atomic")


def _told(kernel: Any, *arguments: Any) -> str:
    try:
        kernel[(3,)](*arguments, TILE=4)
    except OutOfBoundsError as error:
        return str(error)
    return ""


def _see(condition: bool, what: str) -> None:
    if not condition:
        raise RuntimeError(f"the canary did not see {what}")


def _watch_jit(watch: Watch) -> None:
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def launch(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        watch.depth += 1
        try:
            names = [parameter.name for parameter in self.params]
            options = {k: v for k, v in kwargs.items() if k not in names}
            named = {k: v for k, v in kwargs.items() if k in names}
            bound = inspect.signature(self.fn).bind(*args, **named)
            bound.apply_defaults()
            entry = watch.open_launch(self.fn.__name__, bound.arguments)
            size: Any = grid(dict(bound.arguments)) if callable(grid) else grid
            entry["grid"] = [int(n) for n in (*size, 1, 1)[:3]]
            entry["programs"] = entry["grid"][0] * entry["grid"][1] * entry["grid"][2]
            watch.close_launch(entry)
            if watch.mode == "compile":
                watch.captured.append((self, dict(bound.arguments), options))
                return None
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        finally:
            watch.depth -= 1

    _replace(JITFunction, "run", launch)
