"""The master solution as `course solution` shows it: the notes, then the code."""

import ast
import re

from course.stubs import BEGIN, END, NOTES_BEGIN, NOTES_END

_MARKERS = (BEGIN, END, NOTES_BEGIN, NOTES_END, re.compile(r"^\s*# isort:"))


def readable(solution: str) -> str:
    """The solution without its contract, which the exercise has, and without markers.

    What is said about the whole of it stands in comments at the end of a NOTES block.
    """
    notes: list[str] = []
    code: list[str] = []
    for line in _without_docstring(solution).splitlines():
        if NOTES_END.match(line):
            notes += _pop_comments(code)
        if not any(marker.match(line) for marker in _MARKERS):
            code.append(line)
    parts = ["\n".join(lines).strip("\n") for lines in (notes, code)]
    text = "\n\n\n".join(part for part in parts if part)
    return re.sub(r"\n{4,}", "\n\n\n", text) + "\n"


def _without_docstring(source: str) -> str:
    tree = ast.parse(source)
    if ast.get_docstring(tree) is None:
        return source
    return "\n".join(source.splitlines()[tree.body[0].end_lineno :])


def _pop_comments(code: list[str]) -> list[str]:
    """Take the last lines away, as far as they are comments at the margin."""
    start = len(code)
    while start and (not code[start - 1] or code[start - 1].startswith("#")):
        start -= 1
    comments = code[start:]
    code[start:] = [""]
    return comments
