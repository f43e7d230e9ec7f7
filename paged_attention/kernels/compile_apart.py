"""Compile kernels from where they are interpreted: in a process of its own.

TRITON_INTERPRET counts at the import of a kernel, so a notebook that interprets kernels
cannot compile one. Here the kernel's name or source goes to a fresh Python without that
variable, which compiles it and hands back what `compile` found. One such process serves
any number of jobs: most of its time goes into importing torch and Triton.
"""

import importlib
import importlib.util
import inspect
import os
import pickle
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.runtime.interpreter import InterpretedFunction

from paged_attention.kernels.compile import Compiled, compile_kernel, compile_launch


@dataclass(frozen=True)
class Job:
    """One kernel for one target.

    kernel     a kernel, of a module or of a notebook's cell; or "path/of/file.py:name";
               or a function that makes a Launch, such as `decode_launch`
    arguments  of a kernel by name, all of them, constexprs too; of a function that
               makes a Launch in order. A tensor's numbers are not used.
    target     a key of `compile.TARGETS`
    aligned    whether every tensor begins at a multiple of 16 bytes
    options    num_warps, num_stages; of a Launch they are given already
    """

    kernel: Any
    arguments: Mapping[str, Any] | Sequence[Any]
    target: str
    aligned: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)


def compile_in_subprocess(*jobs: Job) -> list[Compiled]:
    """Each job compiled. Raises RuntimeError with what the compiler said."""
    with tempfile.TemporaryDirectory() as folder:
        portable = [_portable(job, Path(folder), i) for i, job in enumerate(jobs)]
        environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
        done = subprocess.run(
            [sys.executable, "-m", __spec__.name],
            input=pickle.dumps(portable),
            capture_output=True,
            env=environment,
            check=False,
        )
    if done.returncode != 0:
        told = done.stderr.decode(errors="replace").strip()
        raise RuntimeError(f"the compiling process died ({done.returncode}): {told}")
    answers = pickle.loads(done.stdout)
    if isinstance(answers, str):
        raise RuntimeError(answers)
    return answers


def _portable(job: Job, folder: Path, number: int) -> Job:
    """The job with nothing in it that another process cannot know."""
    where = job.kernel
    if not isinstance(where, str):
        function = getattr(where, "fn", where)
        where = f"{function.__module__}:{function.__name__}"
        if function.__module__ == "__main__":
            # A cell has no file that could be imported, so it gets one.
            file = folder / f"kernel_{number}.py"
            file.write_text(source_of(job.kernel), encoding="utf-8")
            where = f"{file}:{function.__name__}"
    if isinstance(job.arguments, Mapping):
        arguments = {k: _without_memory(v) for k, v in job.arguments.items()}
    else:
        arguments = tuple(map(_without_memory, job.arguments))
    return replace(job, kernel=where, arguments=arguments, options=dict(job.options))


def _without_memory(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(
        value.shape, value.stride(), dtype=value.dtype, device="meta"
    )


def source_of(kernel: Any) -> str:
    """A file with this kernel and whatever it uses, of its module's top level."""
    parts = ["import triton\nimport triton.language as tl\n"]
    parts += _sources(kernel, {"triton", "tl"})
    return "\n\n".join(parts)


def _sources(kernel: Any, known: set[str]) -> Iterator[str]:
    """Of what the kernel uses first, then its own."""
    function = kernel.fn
    known.add(function.__name__)
    for name in function.__code__.co_names:
        value = function.__globals__.get(name)
        if name in known or value is None:
            continue
        if isinstance(value, InterpretedFunction | triton.JITFunction):
            module = value.fn.__module__
            if module == function.__module__:
                yield from _sources(value, known)
            else:
                yield f"from {module} import {value.fn.__name__} as {name}"
        elif isinstance(value, types.ModuleType):
            yield f"import {value.__name__} as {name}"
        elif isinstance(value, int | float):
            # A kernel takes no global that is not a constexpr.
            yield f"{name} = tl.constexpr({value!r})"
        elif isinstance(value, triton.language.constexpr):
            yield f"{name} = tl.constexpr({value.value!r})"
        known.add(name)
    yield textwrap.dedent(inspect.getsource(function))


def _find(where: str) -> Any:
    """The object that "module:name" or "file.py:name" says."""
    place, _, name = where.rpartition(":")
    if not place.endswith(".py"):
        return getattr(importlib.import_module(place), name)
    spec = importlib.util.spec_from_file_location("kernel_to_compile", place)
    if spec is None or spec.loader is None or not Path(place).is_file():
        raise ValueError(f"{where!r} names no file; seen from {Path.cwd()}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def _compile(job: Job) -> Compiled:
    found = _find(job.kernel)
    if isinstance(job.arguments, Mapping):
        return compile_kernel(
            found, job.arguments, job.target, aligned=job.aligned, **job.options
        )
    launch = replace(found(*job.arguments), **job.options)
    return compile_launch(launch, job.target, aligned=job.aligned)


def main() -> None:
    jobs = pickle.load(sys.stdin.buffer)
    answers: list[Compiled] | str = []
    for job in jobs:
        try:
            answers.append(_compile(job))
        except Exception as error:
            # The compiler's own words; how it came to them is nobody's business.
            name = job.kernel.rpartition(":")[2]
            answers = f"{name} for {job.target}: {type(error).__name__}: {error}"
            break
    sys.stdout.buffer.write(pickle.dumps(answers))


if __name__ == "__main__":
    main()
