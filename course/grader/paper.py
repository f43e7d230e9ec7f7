"""One answer to one exercise: which files are taken for it, and as they were when."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from course.files import UnusableFileError, read_file
from course.manifest import Chapter, Manifest, Task, load


class Snapshot:
    """Files as they were when first asked for: one for each grading.

    A learner may save while the tests run. All tests, of all exercises that need a
    file, get the same bytes of it; what was saved meanwhile waits for the next grading.
    """

    def __init__(self) -> None:
        self._bytes: dict[Path, bytes] = {}

    def read(self, file: Path) -> bytes:
        """The file's bytes; UnusableFileError if it was none."""
        if file not in self._bytes:
            self._bytes[file] = read_file(file)
        return self._bytes[file]

    def sha256(self, file: Path) -> str:
        """By which progress tells whether a file has changed; "" if it is none."""
        try:
            return hashlib.sha256(self.read(file)).hexdigest()
        except UnusableFileError:
            return ""


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
    def module(self) -> str:
        """Its name as a module."""
        return self.chapter.exercise_stem

    @property
    def files(self) -> dict[str, Path]:
        """Module name -> file, all that a worker gets to see."""
        return {**self.needs, self.module: self.file}

    @property
    def refused_to(self) -> dict[str, list[str]]:
        """Module name -> package modules that would be its answer."""
        manifest = load(self.chapter.root)
        return {name: list(manifest.chapter(name).refuses) for name in self.files}

    def problem(self, snapshot: Snapshot) -> str | None:
        """Why nothing can be graded, as far as the files alone tell."""
        try:
            for file in self.files.values():
                snapshot.read(file)
        except UnusableFileError as error:
            return str(error)
        return None


def paper_in(
    target: Path, chapter: Chapter, manifest: Manifest, variant: str = ""
) -> Paper:
    """The answer in a folder, or the file itself; what it needs lies beside it."""
    target = target.absolute()
    is_file = target.exists() and not target.is_dir()  # read() tells what else it is
    folder = target.parent if is_file else target
    file = target if is_file else folder / chapter.exercise_path.name
    needed = [manifest.chapter(which) for which in chapter.needs]
    needs = {each.exercise_stem: folder / each.exercise_path.name for each in needed}
    return Paper(chapter, file, needs, variant)
