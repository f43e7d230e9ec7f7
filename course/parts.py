"""The parts of an engine that the learner has built: which can serve, and why others
can't.

A part is what an exercise `provides` in the manifest. It serves if the grader passes
every task that it consists of, for the file as it is now.
"""

import ast
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from course.files import read_file
from course.manifest import Chapter, Manifest
from course.progress import Progress, Standing
from course.stubs import BEGIN

TITLES = {
    "allocator_class": "allocator",
    "block_table_class": "block table",
    "fork": "fork",
    "copy_on_write": "copy-on-write",
    "attention": "attention",
    "scheduler_class": "scheduler",
}

# In these tasks of exercise 13 the parts serve a model, one in each.
SERVING = frozenset(["13.2", "13.3", "13.4", "13.5", "13.6"])
ALL_YOURS = (
    "All five parts are yours: you have built an engine that serves a language model."
)


@dataclass(frozen=True)
class Part:
    """One exercise's contribution to an engine."""

    chapter: Chapter
    provides: Mapping[str, str]  # keyword of Engine -> name in the exercise
    is_mine: bool
    why: str

    @property
    def title(self) -> str:
        return ", ".join(TITLES[keyword] for keyword in self.provides)


def parts_of(
    manifest: Manifest, progress: Progress, grade: Callable[[list[Chapter]], None]
) -> list[Part]:
    """All parts, in the order of their chapters.

    grade: called with the exercises whose verdict is missing or out of date; it grades
    them and records what came out in progress.
    """
    having = [c for c in manifest.chapters if c.provides.keys() & TITLES.keys()]
    states = ("not graded", "edited since")
    if stale := [c for c in having if progress.standing(c).state in states]:
        grade(stale)
    return [_part(chapter, progress.standing(chapter)) for chapter in having]


def _part(chapter: Chapter, standing: Standing) -> Part:
    keywords = {k: name for k, name in chapter.provides.items() if k in TITLES}
    tasks = tasks_of(chapter)
    missing = [task_id for task_id in tasks if task_id not in standing.passed]
    if standing.state == "graded" and not missing:
        return Part(chapter, keywords, True, f"passes {', '.join(tasks)}")
    words = {
        "missing": f"the file is missing: course reset {chapter.number}",
        "unusable": standing.problem,
        "not started": "not started",
        "graded": f"not solved: {', '.join(missing)} (course grade {chapter.number})",
    }
    # Whatever else there is could not be graded, which grade has told.
    return Part(chapter, keywords, False, words.get(standing.state, "not graded"))


def tasks_of(chapter: Chapter) -> list[str]:
    """The tasks that make up what the exercise provides, of all that it has.

    Those whose regions lie in its classes and functions: a hunt for bugs, for instance,
    is graded in the same file, but serves nobody.
    """
    text = chapter.solution_path.read_text(encoding="utf-8")
    lines = text.splitlines()
    found: dict[str, None] = {}
    for node in ast.parse(text).body:
        if getattr(node, "name", None) in chapter.provides.values():
            for line in lines[node.lineno - 1 : node.end_lineno]:
                if match := BEGIN.match(line):
                    found[match["task"]] = None
    return sorted(found)


def load_part(part: Part) -> dict[str, Any]:
    """The keywords for Engine, from the learner's file, which runs in this process."""
    module = _load(part.chapter)
    return {keyword: getattr(module, name) for keyword, name in part.provides.items()}


def _load(chapter: Chapter) -> ModuleType:
    # Not by import, which would leave compiled code beside the learner's files.
    code = compile(read_file(chapter.exercise_path), chapter.exercise_path, "exec")
    module = ModuleType(chapter.exercise_stem)
    module.__file__ = str(chapter.exercise_path)
    # A dataclass, for instance, looks its own module up.
    sys.modules[module.__name__] = module
    exec(code, vars(module))
    return module


def place_of(error: BaseException, parts: list[Part]) -> tuple[Part, str, str] | None:
    """Whose code an error came out of, "file:line", and that line; None if nobody's.

    The innermost of the learner's lines: what is below it was called with what the
    learner gave.
    """
    by_file = {str(part.chapter.exercise_path): part for part in parts if part.is_mine}
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if part := by_file.get(frame.filename):
            path = part.chapter.exercise_path.relative_to(part.chapter.root)
            return part, f"{path}:{frame.lineno}", frame.line or ""
    return None
