"""The commands around an exercise: status, hint, reset, solution."""

import shutil
import time
from pathlib import Path

from course.answer import readable
from course.files import UnusableFileError, chmod_for, read_text, write_file
from course.manifest import Chapter, Manifest, Task
from course.progress import Progress, Standing
from course.stubs import is_pristine, make_stub
from course.terminal import Out


def status(manifest: Manifest, progress: Progress, out: Out) -> int:
    """How far the learner is, from the last verdicts, and what to do next."""
    out.line("PagedAttention from scratch", style="bold")
    out.line()
    widths = [2, max(len(c.title) for c in manifest.chapters), 8]
    reached = most = 0
    for chapter in manifest.chapters:
        points, words, style = "", "to read", "dim"
        if not chapter.notebook.exists():
            words = "not here yet"
        elif chapter.exercise:
            standing = progress.standing(chapter)
            if chapter.points:
                points = f"{standing.points:2} of {chapter.points:2}"
            words, style = _in_words(chapter, standing)
            reached, most = reached + standing.points, most + chapter.points
        out.row([chapter.id, chapter.title, points, words], widths, style)
    out.line()
    out.line(f"{reached} of {most} points", style="bold")
    out.line(f"next: {_next_step(manifest, progress)}", style="cyan")
    return 0


def _in_words(chapter: Chapter, standing: Standing) -> tuple[str, str]:
    if standing.state == "edited since":
        return f"edited since it was graded: course grade {chapter.number}", "yellow"
    if standing.state == "not graded":
        return f"not graded yet: course grade {chapter.number}", "yellow"
    if standing.state == "missing":
        return f"the file is missing: course reset {chapter.number}", "red"
    if standing.state == "unusable":
        problem = standing.problem.replace(f"{chapter.root}/", "")
        return f"{problem}: {_way_out(chapter)}", "red"
    if standing.state == "not started":
        return "not started", "dim"
    passed = [task.id for task in chapter.tasks if task.id in standing.passed]
    if len(passed) == len(chapter.tasks):
        return "done", "green"
    return f"passed: {', '.join(passed) or 'none'}", ""


def _way_out(chapter: Chapter) -> str:
    """What to type where the file of an exercise cannot be used."""
    chmod = chmod_for(chapter.exercise_path).replace(f"{chapter.root}/", "")
    return chmod or f"course reset {chapter.number}"


def _next_step(manifest: Manifest, progress: Progress) -> str:
    for chapter in manifest.chapters:
        if not (chapter.exercise and chapter.notebook.exists()):
            continue
        standing = progress.standing(chapter)
        if standing.state in ("missing", "unusable"):
            return _way_out(chapter)
        if standing.state == "not started":
            return (
                f"read chapters/{chapter.notebook.name} (course lab {chapter.number}), "
                f"then solve exercises/{chapter.exercise_path.name}"
            )
        if standing.state != "graded":
            return f"course grade {chapter.number}"
        for task in chapter.tasks:
            if task.id not in standing.passed:
                return f"task {task.id}, {task.title}: course hint {task.id} helps"
    return "everything that is here is solved"


def hint(chapter: Chapter, task: Task, progress: Progress, out: Out) -> int:
    """Show the hints seen so far and one more."""
    shown = progress.reveal(task)
    out.line(f"{task.id} {task.title}", style="bold")
    for number, text in enumerate(shown, start=1):
        out.line()
        newest = number == len(shown)
        out.line(f"hint {number} of {len(task.hints)}", "bold" if newest else "dim")
        out.line(text, "" if newest else "dim", indent=2)
    out.line()
    if len(shown) < len(task.hints):
        out.line(f"more: course hint {task.id}", "cyan")
    else:
        out.line(
            f"That was the last hint. When {chapter.number} passes, "
            f"course solution {chapter.number} shows another way.",
            "cyan",
        )
    return 0


def reset(chapter: Chapter, out: Out) -> int:
    """Put the stub back; what the learner wrote is copied away first."""
    solution = chapter.solution_path
    stub = make_stub(solution.read_text(encoding="utf-8"), solution.name)
    path = chapter.exercise_path
    shown = path.relative_to(chapter.root)
    if path.exists():
        try:
            present = read_text(path)
        except UnusableFileError as error:  # a folder or a pipe: only moved, not read
            backup = path.rename(_backup_name(path)).relative_to(chapter.root)
            out.line(f"{error}; it is {backup} now".replace(f"{chapter.root}/", ""))
        else:
            if present == stub:
                out.line(f"{shown} is untouched; there is nothing to reset")
                return 0
            if not is_pristine(present):
                backup = shutil.copy2(path, _backup_name(path))
                backup = Path(backup).relative_to(chapter.root)
                out.line(f"your version is kept in {backup}; to have it back:")
                out.log(f"  cp {backup} {shown}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, stub)
    out.line(f"{shown} is as it was at the start")
    return 0


def _backup_name(path: Path) -> Path:
    """A name in backups/ that is not taken."""
    folder = path.parent / "backups"
    folder.mkdir(exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    target, number = folder / f"{path.stem}.{stamp}.py", 1
    while target.exists():
        number += 1
        target = folder / f"{path.stem}.{stamp}-{number}.py"
    return target


def solution(chapter: Chapter, progress: Progress, out: Out, anyway: bool) -> int:
    """Print the master solution, to those who have one of their own."""
    standing = progress.standing(chapter)
    number = chapter.number
    open_tasks = [task for task in chapter.tasks if task.id not in standing.passed]
    if not anyway and (open_tasks or standing.state != "graded"):
        helps = f"course hint {open_tasks[0].id} helps; " if open_tasks else ""
        out.line(
            f"The solution shows after course grade {number} has passed every task of "
            f"your file as it is now ({_in_words(chapter, standing)[0]}). "
            f"{helps}course solution {number} --anyway shows it."
        )
        return 1
    out.line(str(chapter.solution_path.relative_to(chapter.root)), style="bold")
    out.line()
    out.code(readable(chapter.solution_path.read_text(encoding="utf-8")))
    return 0
