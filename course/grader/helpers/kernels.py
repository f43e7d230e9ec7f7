"""In the worker: call a learner's launcher on tensors that lie exactly as in the test.

Tensors cross as the storages that they are views of, so K and V of one buffer are views
of one buffer here as well. Every storage lies between guard bytes.
"""

import copy
import mmap
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from course.grader.kernel_layout import mark_unwritten
from course.grader.triton_inside import Watch, current
from course.grader.unchanged import first_change

GUARD = 4096  # bytes on either side: all ones, which is NaN in every float type
MAX_OPS = 100
EMPTY = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")


def run(
    function: Any, storages: list, args: list, kwargs: dict, backwards: bool
) -> dict[str, Any]:
    """The result of the call, all storages after it, and what was launched."""
    watch = current()
    device = "cuda" if watch.mode == "gpu" else "cpu"
    placed = [_place(storage, device) for storage in storages]
    built = [_build(arg, placed) for arg in args]
    named = {name: _build(arg, placed) for name, arg in kwargs.items()}
    watch.begin(backwards)
    plain = [(i, copy.deepcopy(a["value"])) for i, a in enumerate(args) if "value" in a]
    with _TorchCalls(watch, function) as calls, _no_driver_told():
        value = function(*built, **named)
    if watch.problem is not None:  # the learner's code caught it
        raise watch.problem
    if device == "cuda":
        torch.cuda.synchronize()
    return {
        "value": value,
        "from_kernel": _from_kernel(value, watch),
        "storages": [
            _read(tensor, s) for (tensor, _), s in zip(placed, storages, strict=True)
        ],
        "written": [_is_written(tensor, watch) for tensor, _ in placed],
        "changed_later": _changed_later(value, placed, watch),
        "guards": [_is_whole(buffer) for _, buffer in placed],
        "changed": first_change(function, [(i, old, built[i]) for i, old in plain]),
        "launches": watch.launches,
        "calls": calls.seen,
        "lost": watch.lost,
        "mode": watch.mode,
    }


def compile_launches(
    function: Any, storages: list, args: list, kwargs: dict, target: str, aligned: bool
) -> dict[str, Any]:
    """What the kernels that a call launches become on a GPU that is not here."""
    from course.grader.ahead import compile_captured

    watch = current()
    placed = [_place(storage, "cpu") for storage in storages]
    built = [_build(arg, placed) for arg in args]
    named = {name: _build(arg, placed) for name, arg in kwargs.items()}
    watch.begin()
    with _no_driver_told():
        function(*built, **named)
    starts = {each.data_ptr(): i for i, each in enumerate(built) if _is_tensor(each)}
    return compile_captured(watch.captured, target, aligned, starts)


@contextmanager
def _no_driver_told() -> Iterator[None]:
    """Say what asks for a GPU, where Triton says that it has no driver."""
    try:
        yield
    except RuntimeError as error:
        if "active drivers" not in str(error):
            raise
        words = "Triton looks for a GPU here, and there is none. @triton.autotune does "
        words += "(it measures on one): choose the sizes of tiles yourself"
        raise RuntimeError(words).with_traceback(error.__traceback__) from None


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


def _place(storage: Any, device: str) -> tuple[Any, Any]:
    """The storage as a flat tensor; and the buffer with its guards, if it has some."""
    if type(storage) is dict:
        return _place_huge(storage, device), None
    size = storage.numel() * storage.element_size()
    buffer = torch.full((size + 2 * GUARD,), 255, dtype=torch.uint8, device=device)
    flat = buffer[GUARD : GUARD + size].view(storage.dtype)
    flat.copy_(storage)
    return flat, buffer


def _place_huge(storage: dict[str, Any], device: str) -> Any:
    """Zeros of which hardly any are ever touched, so that they take no memory."""
    dtype = getattr(torch, storage["dtype"])
    count = storage["num_elements"]
    if device == "cuda":
        flat = torch.zeros(count, dtype=dtype, device=device)
    else:
        size = count * dtype.itemsize
        flags = mmap.MAP_SHARED | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        flat = torch.frombuffer(mmap.mmap(-1, size, flags=flags), dtype=dtype)
    for start, part in storage["parts"]:
        flat[start : start + part.numel()] = part
    return flat


def _build(arg: dict[str, Any], placed: list) -> Any:
    if "value" in arg:
        return arg["value"]
    number, shape, stride, offset = arg["view"]
    flat, _ = placed[number]
    return flat.as_strided(shape, stride, flat.storage_offset() + offset)


def _read(flat: Any, storage: Any) -> Any:
    if type(storage) is not dict:
        return flat.clone()
    parts = storage["parts"]
    return [flat[start : start + part.numel()].clone() for start, part in parts]


def _is_whole(buffer: Any) -> bool:
    """Whether the guards on both sides are as they were."""
    if buffer is None:
        return True
    return bool((buffer[:GUARD] == 255).all() and (buffer[-GUARD:] == 255).all())


def _from_kernel(value: Any, watch: Watch) -> bool:
    """Whether every tensor of the result lies where a kernel has written."""
    if isinstance(value, list | tuple):
        return all(_from_kernel(part, watch) for part in value)
    if not isinstance(value, torch.Tensor) or value.numel() == 0:
        return True
    return _is_written(value, watch)


def _is_written(tensor: Any, watch: Watch) -> bool:
    """Whether a kernel has written to this memory, as far as can be seen."""
    return bool(watch.lost) or tensor.untyped_storage().data_ptr() in watch.stored_in


def _changed_later(value: Any, placed: list, watch: Watch) -> list[int | None]:
    """Storages with other bytes than a kernel left there; None: of a returned one."""
    found: list[int | None] = [
        i for i, (tensor, _) in enumerate(placed) if _is_other(tensor, watch)
    ]
    parts = value if isinstance(value, list | tuple) else [value]
    if any(isinstance(each, torch.Tensor) and _is_other(each, watch) for each in parts):
        found.append(None)
    return found


def _is_other(tensor: Any, watch: Watch) -> bool:
    left = watch.stored_in.get(tensor.untyped_storage().data_ptr())
    if left is None:
        return False
    both = [
        torch.empty(0, dtype=torch.uint8).set_(storage)  # pyright: ignore
        for storage in (left, tensor.untyped_storage())
    ]
    return not torch.equal(*both)


def _fill(tensor: Any) -> None:
    """NaN for memory that holds anything: what no kernel writes is then seen."""
    if tensor.dtype in (torch.float32, torch.float16, torch.bfloat16):
        mark_unwritten(tensor)
    elif tensor.is_floating_point():
        tensor.fill_(float("nan"))
    elif tensor.dtype in (torch.int32, torch.int64):
        tensor.fill_(torch.iinfo(tensor.dtype).max)


class _TorchCalls(TorchFunctionMode):
    """Notes what the launcher calls of torch: name -> line of the first call.

    What it allocates is filled, since fresh memory is often 0 by accident.
    """

    def __init__(self, watch: Watch, function: Any) -> None:
        super().__init__()
        self.seen: dict[str, int] = {}
        self._watch = watch
        code = getattr(function, "__code__", None)
        self._file = code.co_filename if code else ""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if self._watch.depth == 0 and len(self.seen) < MAX_OPS:
            name = getattr(func, "__name__", str(func))
            if name not in self.seen:
                self.seen[name] = self._line()
        result = func(*args, **(kwargs or {}))
        if self._watch.depth == 0 and getattr(func, "__name__", "") in EMPTY:
            _fill(result)
        return result

    def _line(self) -> int:
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._file:
            frame = frame.f_back
        return frame.f_lineno if frame else 0
