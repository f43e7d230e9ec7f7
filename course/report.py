"""The grader's report, as a learner reads it."""

import ast
import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from course.files import UnusableFileError, chmod_for, read_file
from course.terminal import Field, Out

if TYPE_CHECKING:
    from course.grader import ExerciseResult, Failure, Report, TaskResult

STYLES = {
    "passed": "green",
    "failed": "bold red",
    "not verified": "yellow",
    "not solved yet": "dim",
}
SOURCE_CHARS = 60  # of a line that is not Python


class Reading:
    """What is shown of a report, and how.

    only: ids of the tasks to show, all if empty. target: what `--target` was given, ""
    for the learner's own files, which alone have hints. root: paths are shown from it.
    """

    def __init__(
        self, out: Out, root: Path, only: Collection[str] = (), target: str = ""
    ) -> None:
        self.out = out
        self.root = root
        self.only = only
        self.target = target

    def render(self, report: "Report") -> None:
        """Print verdicts, failures and what to type next."""
        for exercise in report.exercises:
            self._exercise(exercise)
        self._sum(report)

    def _tasks(self, exercise: "ExerciseResult") -> list["TaskResult"]:
        return [t for t in exercise.tasks if not self.only or t.id in self.only]

    def _exercise(self, exercise: "ExerciseResult") -> None:
        out, tasks = self.out, self._tasks(exercise)
        out.line()
        out.line(f"{exercise.stem}   {self._short(exercise.path)}", style="bold")
        width = max((len(task.title) for task in tasks), default=0)
        for task in tasks:
            verdict = verdict_of(task)
            points = f"{task.points} of {task.max_points}" if task.max_points else "-"
            cells = ["", task.id, task.title, points.rjust(6), verdict]
            out.row(cells, [0, 4, width, 6], style=STYLES[verdict])
        if exercise.problem:
            # one message is enough where the file itself cannot be used
            fields = list(self._problem_fields(exercise, exercise.problem))
            out.box("No task could be graded", fields, style="red")
            return
        for line in _waiting(tasks):
            out.line(line, indent=2)
        self.failures([t for t in tasks if t.failure and not is_unsolved(t)])

    def failures(self, tasks: list["TaskResult"]) -> None:
        """A box for each; but one line where the same error repeats.

        The same is an error at one line of the file, or one kind of value that no test
        can take.
        """
        from course.grader.report import PLAIN

        known: dict[tuple[str, str], str] = {}  # place and error -> the first task
        repeated: list[str] = []
        for task in tasks:
            failure = task.failure
            assert failure is not None, "only tasks with a failure are told"
            where = failure.location or (PLAIN if failure.expected == PLAIN else "")
            error = where, failure.got.partition(":")[0]
            if where and error in known:
                same = f"the same error as {known[error]}"
                if failure.location:
                    same += f" (line {where.rpartition(':')[2]})"
                repeated.append(f"{task.id} {task.title}: {same}")
                continue
            known[error] = task.id
            is_led = failure.follows in [each.id for each in tasks]
            fields = list(self._fields(task, failure, is_led))
            self.out.box(f"{task.id} {task.title}", fields, style="red")
        if repeated:
            self.out.line()
        for told in repeated:
            self.out.line(told, "red")

    def _problem_fields(
        self, exercise: "ExerciseResult", problem: str
    ) -> Iterator[Field]:
        yield "what", self._short(problem)
        if error := syntax_error_of(exercise):
            yield "where", f"{self._short(exercise.path)}:{error.lineno}"
            yield "line", _pointed_at(error)
        yield from _printed(exercise.printed)
        yield "next", self._after_a_problem(exercise)

    def _after_a_problem(self, exercise: "ExerciseResult") -> str:
        number = int(exercise.tasks[0].id.split(".")[0])
        if chmod := chmod_for(Path(exercise.path)):
            return self._short(chmod)
        if self.target:
            return f"course grade {number} --target {self.target}"
        if not Path(exercise.path).is_file():
            return f"course reset {number}"
        return f"change the file, then course grade {number}"

    def _fields(
        self, task: "TaskResult", failure: "Failure", is_led: bool
    ) -> Iterator[Field]:
        """is_led: another task that is shown may be the cause; so this one is short."""
        yield "claim", self._short(failure.claim or failure.test)
        if failure.history and not is_led:
            yield "done", self._short("\n".join(failure.history))
        if failure.expected:
            yield "expected", failure.expected
        if failure.got:
            yield "got", self._short(failure.got) + _about_none(failure)
        if failure.message:
            yield "what", self._short(failure.message)
        if not is_led:
            yield from _printed(failure.printed)
        if failure.location:
            yield "where", self._short(failure.location)
        yield "test", failure.test
        if is_led:
            yield "cause", f"may follow from {failure.follows}: look there first"
        yield "next", next_command(task.id, self.target)

    def _sum(self, report: "Report") -> None:
        out = self.out
        tasks = [
            task for exercise in report.exercises for task in self._tasks(exercise)
        ]
        points, most = sum(t.points for t in tasks), sum(t.max_points for t in tasks)
        passed = sum(task.status == "passed" for task in tasks)
        out.line()
        out.line(f"{passed} of {len(tasks)} tasks, {points} of {most} points", "bold")
        for line in _unverified(tasks):
            out.line(line, "yellow")
        if not self.target and (step := self._next_step(report)):
            out.line(f"next: {step}", "cyan")

    def _next_step(self, report: "Report") -> str:
        """For what was shown first; then for the other tasks of these exercises."""
        shown = [
            task for exercise in report.exercises for task in self._tasks(exercise)
        ]
        for exercise in report.exercises:
            if exercise.problem:
                return self._after_a_problem(exercise)
        for task in shown:
            if task.failure and task.failure.waits_for:
                return f"course grade {task.failure.waits_for}"
            if task.status == "failed":
                return next_command(task.id)
        for exercise in report.exercises:
            for task in exercise.tasks:
                if task.status == "failed":
                    return f"task {task.id}, {task.title}: course grade {task.id}"
        done = all(task.status == "passed" for task in shown)
        return "course status" if done else ""

    def _short(self, text: str) -> str:
        return text.replace(f"{self.root}/", "")


def _printed(text: str) -> list[Field]:
    from course.grader.report import end_of

    lines = end_of(text)
    return [("printed", "\n".join(lines))] if lines else []


def next_command(task_id: str, target: str = "") -> str:
    """What to type after this task has failed."""
    if target:
        return f"course grade {task_id} --target {target}"
    return f"course hint {task_id}   or, after a change, course grade {task_id}"


def _unverified(tasks: Sequence["TaskResult"]) -> Iterator[str]:
    """What this machine could not show: whole tasks, and parts of others; and why."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if task.status == "not verified":
            reasons.setdefault(("", task.not_verified), []).append(task.id)
        elif task.status == "passed" and task.num_not_verified:
            part = "passed, but for a part that is "
            reasons.setdefault((part, task.not_verified), []).append(task.id)
    for (part, reason), ids in reasons.items():
        why = f" ({reason})" if reason else ""
        yield f"{part}not verified on this machine: {', '.join(ids)}{why}"


def _about_none(failure: "Failure") -> str:
    """What the likeliest reason is for nothing where there should be something."""
    is_none = failure.got in ("None", "None (NoneType)")
    return ": is a `return` missing?" if is_none and failure.expected else ""


def syntax_error_of(exercise: "ExerciseResult") -> SyntaxError | None:
    """What keeps the file, if unchanged, from being Python; None if nothing does."""
    try:
        data = read_file(Path(exercise.path))
        if hashlib.sha256(data).hexdigest() == exercise.sha256:
            ast.parse(data)
    except SyntaxError as error:
        return error
    except (UnusableFileError, ValueError, RecursionError, MemoryError):
        pass
    return None


def _pointed_at(error: SyntaxError) -> str:
    """The line of source with a caret below the place."""
    line = (error.text or "").rstrip().replace("\t", " ")
    start = max(len(line) - len(line.lstrip()), (error.offset or 1) - SOURCE_CHARS)
    caret = max((error.offset or 1) - 1 - start, 0)
    return f"{line[start : start + SOURCE_CHARS + 20]}\n{' ' * caret}^"


def verdict_of(task: "TaskResult") -> str:
    return "not solved yet" if is_unsolved(task) else task.status


def _waiting(tasks: Sequence["TaskResult"]) -> Iterator[str]:
    """Which tasks ran into the stub of another one."""
    stubs: dict[tuple[str, str], list[str]] = {}
    for task in tasks:
        if task.failure and task.failure.waits_for:
            stub = task.failure.stub, task.failure.waits_for
            stubs.setdefault(stub, []).append(task.id)
    for (function, owner), ids in stubs.items():
        calls = "calls" if len(ids) == 1 else "call"
        yield f"{', '.join(ids)} {calls} {function} of {owner}, which is not solved yet"


def is_unsolved(task: "TaskResult") -> bool:
    return task.failure is not None and task.failure.is_unsolved
