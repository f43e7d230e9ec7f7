"""The list of chapters, tasks, points and hints, read from manifest.toml.

Standard library only, so that every command can start from here at once. Where a file
of a chapter lies follows from its stem and is said here, nowhere else.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("build", "transfer", "hunt")


class UnknownChapterError(KeyError):
    """A chapter or task that does not exist; the message says which do."""

    def __str__(self) -> str:
        return str(self.args[0])


@dataclass(frozen=True)
class Task:
    """One graded piece of an exercise."""

    id: str
    title: str
    points: int
    kind: str  # one of KINDS
    hints: tuple[str, ...]  # nudge, approach, nearly the code

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"task {self.id}: kind must be one of {KINDS}")
        if len(self.hints) != 3:
            raise ValueError(f"task {self.id}: 3 hints wanted, got {len(self.hints)}")
        if self.points < 0:
            raise ValueError(f"task {self.id}: points must be >= 0, got {self.points}")


@dataclass(frozen=True)
class Chapter:
    """One chapter, its exercise, and where their files lie."""

    id: str  # two digits
    name: str
    title: str
    question: str
    goal: str
    prerequisites: tuple[str, ...]
    minutes: int
    exercise: bool
    preload: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    refuses: tuple[str, ...] = ()
    provides: Mapping[str, str] = field(default_factory=dict, hash=False)
    call_seconds: float = 5
    tasks: tuple[Task, ...] = ()
    root: Path = ROOT

    @property
    def number(self) -> int:
        return int(self.id)

    @property
    def stem(self) -> str:
        return f"{self.id}_{self.name}"

    @property
    def exercise_stem(self) -> str:
        return f"ex{self.stem}"

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def source(self) -> Path:
        return self.root / "chapters" / "src" / f"{self.stem}.md"

    @property
    def notebook(self) -> Path:
        return self.root / "chapters" / f"{self.stem}.ipynb"

    @property
    def exercise_path(self) -> Path:
        return self.root / "exercises" / f"{self.exercise_stem}.py"

    @property
    def solution_path(self) -> Path:
        return self.root / "solutions" / f"{self.exercise_stem}.py"

    @property
    def tests_path(self) -> Path:
        return self.root / "tests" / "exercises" / f"test_{self.exercise_stem}.py"

    @property
    def wrong_answers_path(self) -> Path:
        folder = self.root / "tests" / "exercises" / "wrong_answers"
        return folder / f"{self.exercise_stem}.toml"

    @property
    def right_answers_dir(self) -> Path:
        return self.root / "tests" / "exercises" / "right_answers" / self.exercise_stem


@dataclass(frozen=True)
class Manifest:
    """All chapters, in order."""

    chapters: tuple[Chapter, ...]

    def chapter(self, which: str | int) -> Chapter:
        """The chapter meant by 4, "4", "04", "ex04", "04_free_list", or its file."""
        text = str(which).strip().lower()
        if text.endswith((".py", ".ipynb")):
            text = Path(text).stem
        for chapter in self.chapters:
            names = {chapter.id, str(chapter.number), chapter.stem}
            if text in names | {f"ex{name}" for name in names}:
                return chapter
        known = f"{self.chapters[0].id} to {self.chapters[-1].id}"
        asked = text or repr(which)
        raise UnknownChapterError(
            f"no chapter {asked}; there are {known}: course status lists them"
        )

    def task(self, task_id: str) -> Task:
        chapter = self.chapter(task_id.partition(".")[0])
        tasks = {task.id: task for task in chapter.tasks}
        if task_id not in tasks:
            known = ", ".join(tasks) or f"none in chapter {chapter.id}"
            raise UnknownChapterError(f"no task {task_id}; there are: {known}")
        return tasks[task_id]

    def chapter_of(self, task_id: str) -> Chapter:
        """The chapter whose exercise has this task."""
        self.task(task_id)
        return self.chapter(task_id.split(".")[0])


@cache
def load(root: Path = ROOT) -> Manifest:
    """Read root/course/manifest.toml; read once per root."""
    path = root / "course" / "manifest.toml"
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    return Manifest(tuple(_chapter(entry, root) for entry in data["chapter"]))


def _chapter(entry: dict[str, Any], root: Path) -> Chapter:
    tasks = tuple(
        Task(**{**task, "hints": tuple(task["hints"])})
        for task in entry.get("task", ())
    )
    fields: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in entry.items()
        if key != "task"
    }
    return Chapter(**fields, tasks=tasks, root=root)
