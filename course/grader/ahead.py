"""In the worker: compile launches that were taken down, for a GPU that is not here.

The work is done by the package's `kernels.compile`; here an error of the compiler
becomes the learner's line and plain words.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from triton.compiler.errors import CompilationError

from paged_attention.kernels.compile import TARGETS, compile_kernel

MAX_ASSEMBLY = 400_000  # characters that are handed over

Captured = tuple[Any, dict[str, Any], dict[str, Any]]

# What the compiler says -> what it means. The first that fits is told.
IN_PLAIN_WORDS = (
    (
        r"Cannot access global variable (\w+)",
        "the kernel reads the global variable {0}, which only the interpreter lets "
        "pass: hand it over as an argument, or make it a tl.constexpr",
    ),
    (
        r"(?:All non-scalar|Input shapes should have|K >= |M >= )",
        "tl.dot takes no tile as small as this one: {message}",
    ),
    (
        r"num_warps (?:must|should)",
        "num_warps must be a power of 2",
    ),
    (
        r"arange's (?:range|arguments)|must be a power of 2|power of two",
        "the size of a tile must be a power of 2, and known before the launch "
        "(tl.constexpr)",
    ),
    (r"NameError\('?(\w+)|(\w+) is not defined", "the kernel knows no {0}"),
)


def compile_captured(
    captured: Sequence[Captured],
    target: str,
    aligned: bool,
    starts: Mapping[int, int],
) -> dict[str, Any]:
    """{"kernels": facts of each} or {"error": text, "line": n or None}.

    A kernel that is launched several times in the same way is compiled once.
    starts: address of a tensor -> which positional argument of the launcher it is
    """
    kernels: list[dict[str, Any]] = []
    seen: set[str] = set()
    for kernel, arguments, options in captured:
        arguments = {name: _plain(value) for name, value in arguments.items()}
        options = {name: value for name, value in options.items() if value is not None}
        key = f"{kernel.__name__} {_kinds(arguments)} {options}"
        if key in seen:
            continue
        seen.add(key)
        for name, value in arguments.items():
            if value is None or isinstance(value, tuple):
                text = f"{name} is {'None' if value is None else 'a tuple'}, which "
                text += "cannot be compiled here: hand over numbers and tensors"
                return {"error": text, "kernel": kernel.__name__, "line": None}
        try:
            compiled = compile_kernel(
                kernel, arguments, target, aligned=aligned, **options
            )
        except OSError:  # the compiler's own files: not for want of a better kernel
            raise
        except Exception as error:
            return _told(kernel, error)
        limit = TARGETS[target].max_shared_bytes
        kernels.append(
            {
                "kernel": kernel.__name__,
                "target": target,
                "num_registers": compiled.num_registers,
                "spill_bytes": compiled.spill_bytes,
                "shared_bytes": compiled.shared_bytes,
                "max_shared_bytes": limit,
                "load_bytes": dict(compiled.load_bytes),
                "num_mma": compiled.num_mma,
                "parameters": list(_parameters(kernel, arguments, starts)),
                "assembly": compiled.assembly[:MAX_ASSEMBLY].encode(),
            }
        )
    return {"kernels": kernels}


def _parameters(
    kernel: Any, arguments: Mapping[str, Any], starts: Mapping[int, int]
) -> Iterator[int | None]:
    """Which argument of the launcher each parameter of the machine code is."""
    for parameter in kernel.params:
        value = arguments[parameter.name]
        start = getattr(value, "data_ptr", None)
        is_free = not parameter.do_not_specialize
        if parameter.is_constexpr or (is_free and type(value) is int and value == 1):
            continue  # a constant: the compiled kernel has no such parameter
        yield starts.get(start()) if start else None


def _plain(value: Any) -> Any:
    return value.value if type(value).__name__ == "constexpr" else value


def _kinds(arguments: dict[str, Any]) -> list[Any]:
    """All that the compiler looks at, and a little more."""
    return [
        (name, value.dtype if hasattr(value, "dtype") else value)
        for name, value in arguments.items()
    ]


def _told(kernel: Any, error: Exception) -> dict[str, Any]:
    innermost: BaseException = error
    lines = []
    while True:
        node = getattr(innermost, "node", None)
        number = getattr(node, "lineno", None)
        if isinstance(innermost, CompilationError) and number is not None:
            lines.append(number)
        if innermost.__cause__ is None:
            break
        innermost = innermost.__cause__
    message = getattr(innermost, "error_message", None) or str(innermost)
    message = f"{message}".strip() or type(innermost).__name__
    if isinstance(innermost, NameError):
        message = f"NameError: {message}"
    line = lines[0] + _first_line(kernel) - 1 if lines else None
    return {"error": _in_plain_words(message), "kernel": kernel.__name__, "line": line}


def _first_line(kernel: Any) -> int:
    """Where the compiler's line 1 is in the file: the line of the kernel's `def`."""
    code = kernel.fn.__code__
    start = code.co_firstlineno  # of the first decorator
    source = kernel.raw_src
    skipped = next((i for i, text in enumerate(source) if _is_def(text)), 0)
    return start + skipped


def _is_def(text: str) -> bool:
    return text.lstrip().startswith(("def ", "async def "))


def _in_plain_words(message: str) -> str:
    for pattern, words in IN_PLAIN_WORDS:
        if match := re.search(pattern, message):
            found = [group for group in match.groups() if group]
            return words.format(*found, message=message)
    return message
