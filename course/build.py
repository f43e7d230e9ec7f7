"""`course build`: notebooks from chapters/src, stubs from solutions."""

import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from course.files import UnusableFileError, write_file
from course.include import IncludeError
from course.manifest import Chapter
from course.stubs import Fate, StubError, write_stub

Say = Callable[[str], None]

# The README cannot show what a notebook draws, so its first picture gets a file.
README_PICTURE_FROM = "00"


def build(
    chapters: Iterable[Chapter], say: Say = print, stubs_only: bool = False
) -> int:
    """Write the notebooks and stubs of these chapters; the number of failures."""
    failures = 0
    for chapter in chapters:
        failures += not _build_stub(chapter, say)
        if not stubs_only:
            failures += not _build_notebook(chapter, say)
    return failures


def _build_stub(chapter: Chapter, say: Say) -> bool:
    if not chapter.exercise:
        return True
    name = shown(chapter.exercise_path, chapter)
    if not chapter.solution_path.exists():
        say(f"{name}: FAILED: {shown(chapter.solution_path, chapter)} is missing")
        return False
    try:
        fate = write_stub(chapter.solution_path, chapter.exercise_path)
    except (StubError, UnusableFileError) as error:
        say(f"{name}: FAILED: {error}")
        return False
    advice = f" (course reset {chapter.number} starts it afresh)"
    say(f"{name}: {fate.value}{advice if fate is Fate.LEFT_ALONE else ''}")
    return True


def _build_notebook(chapter: Chapter, say: Say) -> bool:
    from course.notebooks import ChapterError, build_notebook, first_picture

    name = shown(chapter.notebook, chapter)
    started = time.perf_counter()
    try:
        text = build_notebook(chapter, _progress(name))
    except FileNotFoundError:
        say(f"{name}: FAILED: {shown(chapter.source, chapter)} is missing")
        return False
    except (ChapterError, IncludeError) as error:
        say(f"{name}: FAILED: {error}")
        return False
    write_file(chapter.notebook, text)
    if chapter.id == README_PICTURE_FROM and (picture := first_picture(text)):
        write_file(chapter.notebook.with_suffix(".svg"), picture)
    say(f"{name}: written, {time.perf_counter() - started:.1f} s")
    return True


def _progress(name: str) -> Callable[[int, int], None]:
    """On a terminal, one line that counts the cells; elsewhere nothing."""

    def show(done: int, total: int) -> None:
        # cleared to its end, and left at its start for whatever is printed next
        sys.stdout.write(f"\x1b[K{name}: cell {done + 1} of {total}\r")
        sys.stdout.flush()

    return show if sys.stdout.isatty() else lambda done, total: None


def shown(path: Path, chapter: Chapter) -> str:
    return path.relative_to(chapter.root).as_posix()
