"""What the learner has reached: hints seen, and the verdict on each file as it was.

Kept in .course/ at the root, a folder that ignores itself. A verdict belongs to the
exact bytes that were graded; after an edit it is history, not progress.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.files import UnusableFileError, read_file, write_file
from course.manifest import Chapter, Task
from course.stubs import is_pristine

if TYPE_CHECKING:
    from course.grader import Report


@dataclass(frozen=True)
class Standing:
    """Where the learner stands with one exercise."""

    # "missing", "unusable", "not started", "not graded", "edited since" or "graded"
    state: str
    passed: frozenset[str] = frozenset()  # task ids, by the last verdict
    points: int = 0
    problem: str = ""  # what makes the file unusable


class Progress:
    """The state of one course folder; every change is written at once."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".course"
        self._path = self._folder / "progress.json"
        data: Any = {}
        # Nothing yet, or nothing that can be read: start again.
        with contextlib.suppress(UnusableFileError, ValueError, RecursionError):
            data = json.loads(read_file(self._path))
        self._data: dict[str, Any] = {
            "hints": _those(data, "hints", _is_stage),
            "grades": _those(data, "grades", _is_grade),
        }

    def reveal(self, task: Task) -> tuple[str, ...]:
        """The task's hints up to the next stage, which is now revealed too."""
        stage = min(self._data["hints"].get(task.id, 0) + 1, len(task.hints))
        self._data["hints"][task.id] = stage
        self._save()
        return task.hints[:stage]

    def record(self, chapters: list[Chapter], report: "Report") -> None:
        """Remember a report on the learner's own files."""
        by_stem = {exercise.stem: exercise for exercise in report.exercises}
        for chapter in chapters:
            result = by_stem.get(chapter.exercise_stem)
            if result is None or not result.sha256:
                continue
            self._data["grades"][chapter.id] = {
                "sha256": result.sha256,
                "passed": [t.id for t in result.tasks if t.status == "passed"],
                "points": sum(task.points for task in result.tasks),
            }
        self._save()

    def standing(self, chapter: Chapter) -> Standing:
        path = chapter.exercise_path
        if not path.exists():
            return Standing("missing")
        try:
            data = read_file(path)
        except UnusableFileError as error:
            return Standing("unusable", problem=str(error))
        if is_pristine(data.decode("utf-8", "replace")):
            return Standing("not started")
        grade = self._data["grades"].get(chapter.id)
        if grade is None:
            return Standing("not graded")
        is_same = grade["sha256"] == hashlib.sha256(data).hexdigest()
        state = "graded" if is_same else "edited since"
        return Standing(state, frozenset(grade["passed"]), grade["points"])

    def _save(self) -> None:
        # A read-only checkout can still be graded; `course doctor` says that it is one.
        with contextlib.suppress(OSError):
            self._folder.mkdir(exist_ok=True)
            (self._folder / ".gitignore").write_text("*\n", encoding="utf-8")
            write_file(self._path, json.dumps(self._data, indent=1))


def _those(data: Any, part: str, is_one: Callable[[Any], bool]) -> dict[str, Any]:
    """The entries that are what this version writes; another may have written it."""
    entries = data.get(part) if isinstance(data, dict) else None
    if not isinstance(entries, dict):
        return {}
    return {key: entry for key, entry in entries.items() if is_one(entry)}


def _is_stage(entry: Any) -> bool:
    return isinstance(entry, int) and entry >= 0


def _is_grade(entry: Any) -> bool:
    match entry:
        case {"sha256": str(), "passed": list(passed), "points": int()}:
            return all(isinstance(task_id, str) for task_id in passed)
    return False
