"""The command line: `course grade 4` and its siblings.

Exit codes: 0 all asked is well, 1 some of it is not, 2 wrong usage, 3 the grader itself
failed, 128 + n ended by signal n. What a command needs is imported when it runs, so
that `course` starts at once.
"""

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.arguments import make_parser
from course.manifest import ROOT, Chapter, Manifest, UnknownChapterError, load
from course.terminal import Out
from paged_attention.signals import (
    forget_reader,
    interrupt_in,
    say_interrupted,
    signals_interrupt,
)

if TYPE_CHECKING:
    from course.progress import Progress

OK, FAILED, USAGE, GRADER_FAILED = 0, 1, 2, 3

# They do nothing but tell: who has seen enough of that has all that was asked for.
TELLING = ("status", "hint", "solution", "run")


class UsageError(Exception):
    """What was asked for does not exist; the message says what does."""


class Session:
    """One call of `course`: what was typed, and what all commands share."""

    def __init__(self, options: argparse.Namespace, root: Path) -> None:
        self.options = options
        self.root = root
        self.out = Out()

    @property
    def manifest(self) -> Manifest:
        return load(self.root)

    def chapters(self) -> list[Chapter]:
        """The chapters that were asked for, each once; all of them if none was."""
        asked = [self.manifest.chapter(which) for which in self.options.chapters]
        return list(dict.fromkeys(asked)) or list(self.manifest.chapters)

    def exercise(self, which: str) -> Chapter:
        chapter = self.manifest.chapter(which)
        if which.endswith(".py"):
            places = [Path(which).resolve(), (self.root / which).resolve()]
            if chapter.exercise_path.resolve() not in places:
                number = chapter.number
                raise UsageError(
                    f"for that file: course grade {number} --target {which}"
                )
        if not chapter.exercise:
            having = ", ".join(c.id for c in self.manifest.chapters if c.exercise)
            raise UsageError(
                f"chapter {chapter.id} has no exercise; these have one: {having}"
            )
        return chapter


def main(argv: Sequence[str] | None = None, root: Path = ROOT) -> int:
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    parser = make_parser()
    options = parser.parse_args(argv)
    if options.command is None:
        parser.print_help()
        return USAGE
    try:
        with signals_interrupt(), _reader_may_leave():
            return COMMANDS[options.command](Session(options, root))
    except (KeyboardInterrupt, Exception) as error:
        return _exit_code(error)
    return OK if options.command in TELLING else FAILED  # it was left in the middle


def _exit_code(error: BaseException) -> int:
    """What the shell is told about an error, after a line for whoever reads."""
    if (interrupt := interrupt_in(error)) is not None:
        return say_interrupted(interrupt)
    if isinstance(error, (UnknownChapterError, UsageError)):
        print(f"course: {error}", file=sys.stderr)
        return USAGE
    if isinstance(error, OSError):  # a folder that cannot be written, a full disk
        place = f"{error.filename}: " if error.filename else ""
        print(f"course: {place}{error.strerror or error}", file=sys.stderr)
        try:
            sys.stdout.flush()
        except OSError:
            forget_reader()
        return USAGE
    if isinstance(error, tomllib.TOMLDecodeError):  # only files of the course are TOML
        print(f"course: a .toml file: {error}; see git diff", file=sys.stderr)
        return USAGE
    if isinstance(error, ModuleNotFoundError):
        print(f"course: {error}; to repair .venv: make setup", file=sys.stderr)
        return FAILED
    raise error


@contextmanager
def _reader_may_leave() -> Iterator[None]:
    """End what is within, in silence, when nobody reads it: `course status | head`."""
    try:
        yield
        sys.stdout.flush()  # else the end of Python would, and would say so
    except BrokenPipeError:
        forget_reader()


def _grade(session: Session) -> int:
    from course.parts import ALL_YOURS, SERVING
    from course.progress import Progress
    from course.report import Reading

    options = session.options
    tasks, exercises = _asked(session)
    target = _target(options.target, session.root)
    if target.is_file() and len(exercises) > 1:
        raise UsageError(f"{target} is one file: name the exercise that it answers")
    session.out.transient("grading …")
    try:
        from course import grader

        ids = [chapter.id for chapter in exercises]
        report = grader.grade(
            ids,
            target,
            root=session.root,
            begin=lambda stem: session.out.progress(f"grading {stem} …"),
        )
    except Exception as error:
        if interrupt_in(error) is not None:
            raise
        return _grader_failed(error)
    if target == session.root / "exercises":
        Progress(session.root).record(exercises, report)
    shown = "" if target == session.root / "exercises" else options.target
    results = [t for exercise in report.exercises for t in exercise.tasks]
    done = {task.id for task in results if task.status == "passed"}
    with _reader_may_leave():  # the verdict stands all the same
        Reading(session.out, session.root, tasks, shown).render(report)
        if not shown and done >= SERVING:
            session.out.line(ALL_YOURS, "green")
    if options.json is not None:
        _write_json(options.json, report.to_json())
    if not tasks:
        return OK if report.ok else FAILED
    return OK if tasks <= done else FAILED


def _asked(session: Session) -> tuple[set[str], list[Chapter]]:
    """What to show (task ids; empty: all) and which exercises to run for it."""
    tasks: set[str] = set()
    exercises: dict[Chapter, None] = {}
    for which in session.options.chapters:
        if _is_task(which):
            tasks.add(session.manifest.task(which).id)
            exercises[session.manifest.chapter_of(which)] = None
        else:
            exercises[session.exercise(which)] = None
    if tasks:
        # `grade 3 4.1` shows all of 3 and one task of 4
        for which in session.options.chapters:
            if not _is_task(which):
                tasks |= {task.id for task in session.exercise(which).tasks}
    having = [c for c in session.manifest.chapters if c.exercise]
    return tasks, [c for c in having if c in exercises] or having


def _is_task(which: str) -> bool:
    return "." in which and not which.endswith((".py", ".ipynb"))


def _target(text: str, root: Path) -> Path:
    if not text:
        return root / "exercises"
    if text in ("solutions", "exercises"):
        return root / text
    path = Path(text).resolve()
    if not path.exists():
        raise UsageError(f"--target: there is no {text}; solutions or a path is wanted")
    return path


def _write_json(path: Path, data: dict[str, Any]) -> None:
    text = json.dumps(data, indent=2, ensure_ascii=False)
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--json: {path}: {error.strerror}") from None


def _grader_failed(error: Exception) -> int:
    import traceback

    print("course: the grader itself failed; nothing was graded", file=sys.stderr)
    if type(error).__name__ == "GraderError":
        print(error, file=sys.stderr)
    else:
        traceback.print_exception(error)
    print("`course doctor` may know why", file=sys.stderr)
    return GRADER_FAILED


def _build(session: Session) -> int:
    from course.build import build

    options, out = session.options, session.out
    if not options.check:
        failures = build(session.chapters(), out.log, stubs_only=options.stubs)
        return FAILED if failures else OK
    from course.build_check import check

    findings = check(session.chapters())
    for note in findings.notes:
        out.log(f"note: {note}", "yellow")
    for problem in findings.problems:
        out.log(problem, "red")
    if not findings.problems:
        out.line("notebooks and stubs are what their sources give")
    return FAILED if findings.problems else OK


def _status(session: Session) -> int:
    from course import learner
    from course.progress import Progress

    return learner.status(session.manifest, Progress(session.root), session.out)


def _hint(session: Session) -> int:
    from course import learner
    from course.progress import Progress

    which = session.options.task
    if not _is_task(which):
        tasks = session.exercise(which).tasks
        listed = "\n".join(f"  course hint {task.id}   {task.title}" for task in tasks)
        raise UsageError(f"a hint for which task?\n{listed}")
    task = session.manifest.task(which)
    chapter = session.manifest.chapter_of(which)
    return learner.hint(chapter, task, Progress(session.root), session.out)


def _reset(session: Session) -> int:
    from course import learner

    return learner.reset(session.exercise(session.options.chapter), session.out)


def _solution(session: Session) -> int:
    from course import learner
    from course.progress import Progress

    chapter = session.exercise(session.options.chapter)
    progress, anyway = Progress(session.root), session.options.anyway
    return learner.solution(chapter, progress, session.out, anyway)


def _doctor(session: Session) -> int:
    from course.doctor import examine

    return OK if examine(session.root, session.out) else FAILED


def _lab(session: Session) -> int:
    from course.lab import serve

    options = session.options
    chapter = session.manifest.chapter(options.chapter)
    return serve(chapter, session.out, options.host, options.port, options.browser)


def _run(session: Session) -> int:
    from course import run
    from course.grader.errors import GraderError

    options, out = session.options, session.out
    try:
        run.check_model(options.model)
        parts: list[Any] = []
        if options.mine:
            from course.parts import parts_of
            from course.progress import Progress

            progress = Progress(session.root)
            grade = partial(_grade_again, session, progress)
            parts = parts_of(session.manifest, progress, grade)
            run.show_parts(parts, out)
        prompts = options.prompts or run.PROMPTS
        run.serve(options.model, prompts, options.max_tokens, parts, out)
    except run.NotServedError as error:
        if interrupt_in(error) is not None:
            raise
        with _reader_may_leave():
            out.stream.flush()
        print(f"course run: {error}", file=sys.stderr)
        return FAILED
    except GraderError as error:
        return _grader_failed(error)
    return OK


def _grade_again(
    session: Session, progress: "Progress", chapters: list[Chapter]
) -> None:
    """Bring the verdicts on the learner's files up to date."""
    from course import grader

    numbers = ", ".join(str(chapter.number) for chapter in chapters)
    session.out.transient(f"grading {numbers} …")
    ids = [chapter.id for chapter in chapters]
    target = session.root / "exercises"
    progress.record(chapters, grader.grade(ids, target, root=session.root))
    session.out.transient("")


def _get_model(session: Session) -> int:
    from course.get_model import ModelError, get_model

    try:
        get_model(session.root, session.out.line, force=session.options.force)
    except ModelError as error:
        print(f"course get-model: {error}", file=sys.stderr)
        return FAILED
    return OK


COMMANDS: dict[str, Callable[[Session], int]] = {
    "grade": _grade,
    "status": _status,
    "hint": _hint,
    "reset": _reset,
    "solution": _solution,
    "doctor": _doctor,
    "lab": _lab,
    "run": _run,
    "get-model": _get_model,
    "build": _build,
}
