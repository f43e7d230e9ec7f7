"""Errors that may cross: built-in ones and the package's three, by name.

An error of a learner's own class arrives as the nearest class in its family that both
sides know: to a test, `class PoolError(ValueError)` is a ValueError. What ends a
process or a test (SystemExit, pytest.skip) is not an error that a test can expect; it
is described in words instead.
"""

import builtins
import errno
import re
import resource
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any

from course.grader import isolation
from paged_attention.errors import (
    DoubleFreeError,
    OutOfBlocksError,
    SharedBlockError,
)

MAX_TEXT = 2_000  # characters of an error's message

# A full disk, or one that fails; too many files open in the whole system.
MACHINES = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENFILE)
OUR_LIMITS = {
    errno.EFBIG: (resource.RLIMIT_FSIZE, isolation.MAX_FILE_BYTES),
    errno.EMFILE: (resource.RLIMIT_NOFILE, isolation.MAX_OPEN_FILES),
}

OURS = (OutOfBlocksError, DoubleFreeError, SharedBlockError)
_FRAME = re.compile(r'^  File "(.*)", line (\d+) in (.*)$', re.MULTILINE)
_NOT_FROM_ONE_STRING = (UnicodeError, BaseExceptionGroup, Warning)

ERRORS: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (*vars(builtins).values(), *OURS)
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, _NOT_FROM_ONE_STRING)
}
_NAMES = {kind: name for name, kind in ERRORS.items()}


def plain_text(text: str, limit: int = MAX_TEXT) -> str:
    """text made safe to show: no control characters, at most limit characters."""
    if len(text) <= limit and text.isprintable():
        return text
    if len(text) > limit:
        text = f"{text[: limit // 2]} … {text[-limit // 2 :]}"
    return "".join(
        char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1]
        for char in text
    )


def text_of(error: BaseException) -> str:
    """The error's message; whatever its own __str__ does."""
    try:
        if isinstance(error, KeyError) and len(error.args) == 1:
            text = error.args[0]  # str() would add quotes once more on each side
        else:
            text = error
        return str(text)[:MAX_TEXT]
    except Exception:
        return "(its message cannot be shown)"


def describe(error: Exception, files: Mapping[str, str]) -> dict[str, Any]:
    """The error as data. files: code file name -> None; marks the learner's lines."""
    known = next((kind for kind in type(error).__mro__ if kind in _NAMES), Exception)
    return {
        "type": _NAMES[known],
        "name": type(error).__name__[:200],
        "text": text_of(error),
        "where": _last_line_in(error.__traceback__, files),
    }


def describe_learners(
    error: Exception, files: Mapping[str, str], memory: int | None
) -> dict[str, Any]:
    """The same for an error in the learner's process, with what an exercise may use.

    memory: bytes of it; None where nothing limits it.
    """
    described = describe(error, files)
    number = getattr(error, "errno", None)
    if memory and _is_short_of_memory(error, described["text"]):
        limit = f"an exercise may use {memory >> 20:,} MiB: does a loop never end?"
        text = described["text"]
        described["text"] = f"{text} ({limit})" if text else f"out of memory, {limit}"
    elif number == errno.EFBIG:
        limit = isolation.MAX_FILE_BYTES >> 20
        described["text"] += f" (it printed or wrote more than {limit} MiB)"
    elif number == errno.EMFILE:
        described["text"] += f" (it may open {isolation.MAX_OPEN_FILES} files at once)"
    elif number == errno.EAGAIN or described["text"] == "can't start new thread":
        limit = isolation.MAX_TASKS
        described["text"] += f" (it may run {limit} processes and threads at once)"
    if isinstance(error, ModuleNotFoundError) and error.name:
        for original in files:
            if Path(original).with_name(f"{error.name}.py").exists():
                described["text"] += (
                    f" (only {Path(original).name} itself is graded, not the "
                    "files beside it: move what it needs into it)"
                )
    return described


def words_for_machine(error: BaseException, files: Mapping[str, str]) -> str:
    """What the machine lacks that no exercise is to blame for; "" if it is not that."""
    if not isinstance(error, OSError):
        return ""
    theirs = _last_line_in(error.__traceback__, files) is not None
    if theirs and error.errno not in MACHINES:
        # A limit below our own was there before, as of `ulimit -f`.
        limit, most = OUR_LIMITS.get(error.errno or 0, (None, 0))
        if limit is None or resource.getrlimit(limit)[0] >= most:
            return ""
    return f"{type(error).__name__}: {text_of(error)}"


def _is_short_of_memory(error: Exception, text: str) -> bool:
    told = ("can't allocate memory", "std::bad_alloc")  # by torch, in a RuntimeError
    return isinstance(error, MemoryError) or any(words in text for words in told)


def rebuild(data: Mapping[str, Any]) -> Exception:
    """The exception that describe() wrote down."""
    return ERRORS[data["type"]](str(data["text"]))


def _last_line_in(
    trace: TracebackType | None, files: Mapping[str, str]
) -> list[Any] | None:
    """The place of the innermost frame in one of files."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if place := place_of(frame.f_code, line, files):
            return place
    return None


def place_of(code: CodeType, line: int, files: Mapping[str, str]) -> list[Any] | None:
    """[file, line, source text, function], if it is in one of files."""
    return _place(code.co_filename, line, code.co_qualname, files)


def _place(
    file: str, line: int, function: str, files: Mapping[str, str]
) -> list[Any] | None:
    if file not in files:
        return None
    lines = files[file].splitlines()
    text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
    return [file, line, text[:200], function[:200]]


def place_in_stack(stack: str, files: Mapping[str, str]) -> list[Any] | None:
    """The innermost place in one of files, of a stack as faulthandler writes it."""
    # The thread that was asked comes last; it may wait for others, which are above.
    for thread in reversed(stack.split("hread 0x")):
        for file, line, function in _FRAME.findall(thread):
            if place := _place(file, int(line), function, files):
                return place
    return None


def words_for_leaving(error: BaseException) -> str | None:
    """What happened, for an exception that is no ordinary error; else None."""
    if isinstance(error, SystemExit):
        return f"called sys.exit({text_of(error)})"
    outcomes = vars(sys.modules.get("_pytest.outcomes", builtins))
    for kind, call in (("Skipped", "skip"), ("Failed", "fail"), ("Exit", "exit")):
        if kind in outcomes and isinstance(error, outcomes[kind]):
            return f"called pytest.{call}({text_of(error)!r})"
    if not isinstance(error, Exception):
        return f"raised {type(error).__name__}({text_of(error)!r})"
    return None
