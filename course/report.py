"""The grader's report, as a learner reads it."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from course.terminal import Field, Out

if TYPE_CHECKING:
    from course.grader import ExerciseResult, Failure, Report, TaskResult

STYLES = {
    "passed": "green",
    "failed": "bold red",
    "not verified": "yellow",
    "not solved yet": "dim",
}
# The last lines are the ones that say where a program stopped.
PRINTED_LINES = 8


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
        self._sum([t for e in report.exercises for t in self._tasks(e)])

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
            fields = [("what", exercise.problem), *_printed(exercise.printed)]
            out.box("No task could be graded", fields, style="red")
            return
        for task in tasks:
            if task.failure and not is_unsolved(task):
                fields = list(self._fields(task, task.failure))
                out.box(f"{task.id} {task.title}", fields, style="red")

    def _fields(self, task: "TaskResult", failure: "Failure") -> Iterator[Field]:
        yield "claim", failure.claim or failure.test
        if failure.history:
            yield "done", "\n".join(failure.history)
        if failure.expected:
            yield "expected", failure.expected
        if failure.got:
            yield "got", failure.got
        if failure.message:
            yield "what", self._short(failure.message)
        yield from _printed(failure.printed)
        if failure.location:
            yield "where", self._short(failure.location)
        yield "test", failure.test
        yield "next", next_command(task.id, self.target)

    def _sum(self, tasks: list["TaskResult"]) -> None:
        out = self.out
        points, most = sum(t.points for t in tasks), sum(t.max_points for t in tasks)
        passed = sum(task.status == "passed" for task in tasks)
        out.line()
        out.line(f"{passed} of {len(tasks)} tasks, {points} of {most} points", "bold")
        if unverified := [t.id for t in tasks if t.status == "not verified"]:
            out.line(f"not verified on this machine: {', '.join(unverified)}", "yellow")
        failed = next((task for task in tasks if task.status == "failed"), None)
        if self.target:
            return
        if failed is not None:
            out.line(f"next: {next_command(failed.id)}", "cyan")
        elif passed == len(tasks):
            out.line("next: course status", "cyan")

    def _short(self, text: str) -> str:
        return text.replace(f"{self.root}/", "")


def _printed(text: str) -> list[Field]:
    lines = text.strip("\n").split("\n")
    if lines == [""]:
        return []
    more = ["…"] if len(lines) > PRINTED_LINES else []
    return [("printed", "\n".join(more + lines[-PRINTED_LINES:]))]


def next_command(task_id: str, target: str = "") -> str:
    """What to type after this task has failed."""
    number = int(task_id.split(".")[0])
    if target:
        return f"course grade {number} --target {target}"
    return f"course hint {task_id}   or, after a change, course grade {number}"


def verdict_of(task: "TaskResult") -> str:
    return "not solved yet" if is_unsolved(task) else task.status


def is_unsolved(task: "TaskResult") -> bool:
    return task.failure is not None and task.failure.is_unsolved
