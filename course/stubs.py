"""Exercise stubs, made from the solutions.

A region `# BEGIN SOLUTION 4.1: pop the head` … `# END SOLUTION` becomes a
NotImplementedError with the same words; `# BEGIN NOTES` … `# END NOTES` goes away. A
stub certifies itself in its last line: so an untouched stub of any older version is
recognised, and a file that the learner has touched never is.
"""

import ast
import hashlib
import json
import re
from enum import Enum
from pathlib import Path

from course.files import read_text, write_file

BEGIN = re.compile(
    r"^(?P<indent>\s*)# BEGIN SOLUTION (?P<task>\d+\.\d+): (?P<what>.+)$"
)
END = re.compile(r"^\s*# END SOLUTION\s*$")
NOTES_BEGIN = re.compile(r"^\s*# BEGIN NOTES\s*$")
NOTES_END = re.compile(r"^\s*# END NOTES\s*$")
MARKER = re.compile(r"#\s*(BEGIN|END)\s+(SOLUTION|NOTES)", re.IGNORECASE)
CERTIFICATE = "# pristine stub, sha256 of the lines above: "


class StubError(Exception):
    """A solution from which no stub can be made; the message names file and line."""


class Fate(Enum):
    """What happened to an exercise file when its stub was to be written."""

    WRITTEN = "written"
    CURRENT = "up to date"
    LEFT_ALONE = "left alone: it has been edited"


def make_stub(solution: str, name: str) -> str:
    """The stub that belongs to the text of a solution; name is for error messages."""
    body = _without_regions(solution.splitlines(), name)
    text = re.sub(r"\n{4,}", "\n\n\n", "\n".join(body).strip("\n")) + "\n\n\n"
    _check_raises_are_in_functions(text, name)
    return text + CERTIFICATE + _digest(text) + "\n"


def is_pristine(text: str) -> bool:
    """Whether the text is a stub, of whatever version, that nobody has edited."""
    *body, last = text.splitlines() or [""]
    if not last.startswith(CERTIFICATE):
        return False
    return last.removeprefix(CERTIFICATE) == _digest("\n".join(body) + "\n")


def write_stub(solution: Path, exercise: Path) -> Fate:
    """Write the stub over a missing file or a pristine stub, never over a learner's.

    UnusableFileError if what is there is no file.
    """
    stub = make_stub(solution.read_text(encoding="utf-8"), solution.name)
    if exercise.exists():
        present = read_text(exercise)
        if present == stub:
            return Fate.CURRENT
        if not is_pristine(present):
            return Fate.LEFT_ALONE
    exercise.parent.mkdir(parents=True, exist_ok=True)
    write_file(exercise, stub)
    return Fate.WRITTEN


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _without_regions(lines: list[str], name: str) -> list[str]:
    kept: list[str] = []
    closing: re.Pattern[str] | None = None  # the marker that ends the open region
    for number, line in enumerate(lines, start=1):
        if closing is not None:
            if closing.match(line):
                closing = None
            elif MARKER.search(line):
                raise StubError(f"{name}:{number}: a marker inside a region: {line!r}")
        elif match := BEGIN.match(line):
            indent, task, what = match.groups()
            message = json.dumps(f"exercise {task}: {what.strip()}", ensure_ascii=False)
            kept.append(f"{indent}raise NotImplementedError({message})")
            closing = END
        elif NOTES_BEGIN.match(line):
            closing = NOTES_END
        elif MARKER.search(line):
            raise StubError(f"{name}:{number}: not a marker that opens: {line!r}")
        else:
            kept.append(line.rstrip())
    if closing is not None:
        raise StubError(f"{name}: the last region is not closed")
    return kept


def _check_raises_are_in_functions(stub: str, name: str) -> None:
    """A stub must be importable: what is missing may only be missed when called."""
    try:
        tree = ast.parse(stub)
    except SyntaxError as error:
        message = f"{name}: the stub would not be Python: {error.msg}: {error.text!r}"
        raise StubError(message) from None
    pending: list[ast.AST] = [tree]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Raise):
            line = stub.splitlines()[node.lineno - 1].strip()
            raise StubError(f"{name}: raised when imported: {line}")
        pending.extend(ast.iter_child_nodes(node))
