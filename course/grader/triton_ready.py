"""What Triton would do anew in every worker: done once, before they are forked.

It is for speed alone; no kernel becomes another one. So where Triton has changed, and a
private name is not what it was, that part is left out and nothing is said.
"""

import inspect
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import triton.language as tl

from course.grader.triton_canary import canary


def make_ready(mode: str, folder: Path) -> None:
    """mode: of triton_inside, installed by now; folder: where files may lie a while."""
    parts: dict[str, list[Callable[[], None]]] = {
        "interpret": [_rewrite_library, _look_once],
        "compile": [lambda: _compile_one(folder)],
    }
    for part in parts.get(mode, []):
        with suppress(Exception):
            part()


def _rewrite_library() -> None:
    """The interpreter rewrites tl.sum, tl.cdiv and so on at their first call."""
    from triton.runtime.interpreter import InterpretedFunction

    for module in (tl, tl.standard):
        for function in list(vars(module).values()):
            if isinstance(function, InterpretedFunction):
                function.rewrite()


def _look_once() -> None:
    """It looks for built-ins among all names of tl at every call within a kernel."""
    from triton.runtime import interpreter

    found: dict[Any, list[tuple[str, Any]]] = {}

    def patch_builtins(owner: Any, *rest: Any) -> None:
        if owner not in found:
            found[owner] = [
                (name, member)
                for name, member in inspect.getmembers(owner)
                if tl.core.is_builtin(member)
            ]
        for name, member in found[owner]:
            # Within a kernel most of them are replaced already.
            if getattr(owner, name, None) is member:
                interpreter._patch_attr(owner, name, member, *rest)

    before = interpreter._patch_builtin
    interpreter._patch_builtin = patch_builtins
    try:
        canary[(1,)](*_arguments().values())
    except Exception:
        interpreter._patch_builtin = before
        raise


def _arguments() -> dict[str, Any]:
    return {
        "source_ptr": torch.empty(4),
        "destination_ptr": torch.empty(4),
        "count_ptr": torch.empty(1, dtype=torch.int32),
        "n": 4,
        "TILE": 4,
    }


def _compile_one(folder: Path) -> None:
    """The first compilation imports the compiler and hashes all of Triton's files."""
    # Not in a worker that interprets: it is part of what exercise 11 refuses.
    from paged_attention.kernels.compile import compile_kernel

    with tempfile.TemporaryDirectory(dir=folder) as cache:
        os.environ["TRITON_CACHE_DIR"] = cache  # workers have one of their own
        try:
            compile_kernel(canary, _arguments(), "sm_80")
        finally:
            del os.environ["TRITON_CACHE_DIR"]
