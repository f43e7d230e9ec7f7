"""One answer to one exercise: which files are taken for it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course.manifest import Chapter, Manifest, Task

MAX_SOURCE = 1 << 20  # bytes of a learner's file


@dataclass(frozen=True, eq=False)
class Paper:
    """A learner's file, and those of earlier exercises that it needs."""

    chapter: Chapter
    file: Path
    needs: Mapping[str, Path] = field(default_factory=dict)  # module name -> its file
    variant: str = ""  # tells several answers to one exercise apart
    only: frozenset[str] | None = None  # the tasks to grade; None: all

    @property
    def tasks(self) -> list[Task]:
        """The tasks that are graded."""
        tasks = self.chapter.tasks
        return [task for task in tasks if self.only is None or task.id in self.only]

    @property
    def files(self) -> dict[str, Path]:
        """Module name -> file, all that a worker gets to see."""
        return {**self.needs, self.chapter.exercise_stem: self.file}

    def problem(self) -> str | None:
        """Why nothing can be graded, as far as the files alone tell."""
        for file in self.files.values():
            if not file.is_file():
                return f"{file} is not there"
            if file.stat().st_size > MAX_SOURCE:
                return f"{file} is larger than 1 MiB"
        return None


def paper_in(
    target: Path, chapter: Chapter, manifest: Manifest, variant: str = ""
) -> Paper:
    """The answer in a folder, or the file itself; what it needs lies beside it."""
    target = target.absolute()
    is_file = target.is_file()
    folder = target.parent if is_file else target
    file = target if is_file else folder / chapter.exercise_path.name
    needed = [manifest.chapter(which) for which in chapter.needs]
    needs = {each.exercise_stem: folder / each.exercise_path.name for each in needed}
    return Paper(chapter, file, needs, variant)
