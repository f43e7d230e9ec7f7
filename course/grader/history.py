"""What a test did with the learner's code, written down for the report."""

import linecache
import re
import sys
from collections import deque
from pathlib import Path
from typing import Any

from course.grader.crossing import plain_text

FIRST, LAST = 8, 16  # lines kept at either end of a long history
INNER_FIRST, INNER_LAST = 5, 9  # of what one call did: the last fits with its call
MAX_VALUE = 120  # characters of one value

_HERE = str(Path(__file__).parent)
_ASSIGNMENT = re.compile(r"\s*(\w+)\s*=\s*\w+\.\w+\(")


def shown(value: Any, limit: int = MAX_VALUE) -> str:
    """A short repr; tensors by dtype, shape and, if small, values."""
    if type(value) is int or value is None:
        return str(value) if value is None or value.bit_length() < 400 else "a huge int"
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        text = f"tensor {kind} {list(value.shape)}"
        return f"{text} {rounded(value.tolist())}" if value.numel() <= 8 else text
    if type(value) is tuple and torch is not None:
        parts = [shown(part, limit) for part in value]
        if any(isinstance(part, torch.Tensor) for part in value):
            return f"({', '.join(parts)})"
    if type(value) in (list, tuple, set) and len(value) > 40:
        some = ", ".join(shown(item, 30) for item in list(value)[:8])
        return f"{type(value).__name__} of {len(value)}: {some}, …"
    return plain_text(repr(value), limit)


def rounded(value: Any) -> str:
    """Numbers, of a tensor or alone, with the 4 digits that one recognises them by."""
    if isinstance(value, list):
        return f"[{', '.join(map(rounded, value))}]"
    text = repr(value)
    if not isinstance(value, float) or value.is_integer() or len(text) <= 6:
        return text
    return f"{value:.4g}"


class _Lines:
    """So many lines from either end."""

    def __init__(self, first: int, last: int) -> None:
        self._max_first = first
        self._first: list[str] = []
        self._last: deque[str] = deque(maxlen=last)
        self._left_out = 0

    def add(self, line: str) -> None:
        if len(self._first) < self._max_first:
            self._first.append(line)
            return
        self._left_out += len(self._last) == self._last.maxlen
        self._last.append(line)

    def all(self) -> list[str]:
        middle = [f"… {self._left_out} more …"] if self._left_out else []
        return [*self._first, *middle, *self._last]


class History:
    """The lines of one test."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._lines = _Lines(FIRST, LAST)
        self._inner = _Lines(INNER_FIRST, INNER_LAST)
        self._labels: dict[str, int] = {}

    def add(self, line: str) -> None:
        """One line; below it what the learner's code called meanwhile."""
        self._lines.add(line)
        for inner in self._inner.all():
            self._lines.add(f"    ↳ {inner}")
        self._inner = _Lines(INNER_FIRST, INNER_LAST)

    def add_inner(self, line: str) -> None:
        """What the learner's code calls, in a call that is still to be added."""
        self._inner.add(line)

    def lines(self) -> list[str]:
        return self._lines.all()

    def label(self, class_name: str) -> str:
        """What to call a new object: as the test calls it, if that can be seen."""
        match = _ASSIGNMENT.match(_line_of_the_test())
        words = re.findall(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])", class_name)
        label = match[1] if match else words[-1].lower() if words else class_name
        self._labels[label] = count = self._labels.get(label, 0) + 1
        return label if count == 1 else f"{label}{count}"


def _line_of_the_test() -> str:
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    if frame is None:
        return ""
    return linecache.getline(frame.f_code.co_filename, frame.f_lineno)


def call_text(label: str, args: tuple[object, ...], kwargs: dict[str, object]) -> str:
    """pool.allocate(3, exact=True)"""
    shown_args = [shown(arg, 60) for arg in args]
    shown_args += [f"{name}={shown(value, 60)}" for name, value in kwargs.items()]
    return f"{label}({', '.join(shown_args)})"
