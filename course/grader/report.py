"""What grading found, as plain data for the terminal, for JSON and for tests."""

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

Status = Literal["passed", "failed", "not verified"]

PRINTED_LINES = 3

# What a failure expects, where a test was given an error or what it cannot compare.
NO_ERROR = "the call returns without an error"
PLAIN = "plain Python types, tensors, or objects of given classes"
UNSOLVED = "not solved yet: "  # so begins the message of a stub that is still there


@dataclass(frozen=True)
class Failure:
    """The first failure of a task: what was done, what should be, what was."""

    test: str
    claim: str
    history: tuple[str, ...] = ()  # the calls of that test, shortened in the middle
    expected: str = ""
    got: str = ""
    message: str = ""  # what happened, where it is more than a wrong value
    printed: str = ""  # the end of what the learner's code printed
    location: str | None = None  # the learner's file:line, if known
    waits_for: str = ""  # another task, if it is that one's stub that was called
    stub: str = ""  # the function that has this stub
    follows: str = ""  # the task whose failure may be the cause of this one

    @property
    def is_unsolved(self) -> bool:
        """Whether the task failed only because a stub is still there."""
        return self.message.startswith(UNSOLVED)


def end_of(printed: str) -> list[str]:
    """The last lines of what was printed, and how many others there were."""
    lines = printed.strip("\n").split("\n")
    if len(lines) > PRINTED_LINES:
        left_out = len(lines) - PRINTED_LINES
        lines = [f"… {left_out} lines more; remove the print", *lines[left_out:]]
    return lines if lines != [""] else []


@dataclass(frozen=True)
class TaskResult:
    id: str
    title: str
    points: int
    max_points: int
    status: Status
    num_tests: int
    num_not_verified: int = 0
    failure: Failure | None = None
    not_verified: str = ""  # why those could not run here, the first reason


@dataclass(frozen=True)
class ExerciseResult:
    """One learner's file, graded. problem: why no test could run at all."""

    stem: str
    path: str
    tasks: tuple[TaskResult, ...]
    problem: str | None = None
    printed: str = ""
    sha256: str = ""  # of the bytes that were graded; "" if there were none

    @property
    def points(self) -> int:
        return sum(task.points for task in self.tasks)

    @property
    def max_points(self) -> int:
        return sum(task.max_points for task in self.tasks)

    @property
    def ok(self) -> bool:
        return all(task.status == "passed" for task in self.tasks)


@dataclass(frozen=True)
class Report:
    exercises: tuple[ExerciseResult, ...]
    isolation: list[str] = field(default_factory=list)  # the walls that held, in words

    @property
    def points(self) -> int:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def max_points(self) -> int:
        return sum(exercise.max_points for exercise in self.exercises)

    @property
    def ok(self) -> bool:
        return all(exercise.ok for exercise in self.exercises)

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the sums written out."""
        exercises = [
            {**asdict(exercise), "points": exercise.points}
            | {"max_points": exercise.max_points, "ok": exercise.ok}
            for exercise in self.exercises
        ]
        return {
            "points": self.points,
            "max_points": self.max_points,
            "ok": self.ok,
            "exercises": exercises,
            "isolation": list(self.isolation),
        }
