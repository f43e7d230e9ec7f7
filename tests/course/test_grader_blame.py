"""What is said of a failure that may follow from another one."""

import io
from pathlib import Path

import pytest
from tiny_exercise import answer, write_course

from course.grader import grade
from course.grader.blame import followers
from course.report import Reading
from course.terminal import Out

SOLUTION = """
class Pool:
    def __init__(self):
        # BEGIN SOLUTION 1.1: begin
        self.free = []
        # END SOLUTION

    def take(self):
        # BEGIN SOLUTION 1.1: take
        return self.free.pop()
        # END SOLUTION

    def take_many(self, n):
        # BEGIN SOLUTION 1.2: take many
        return [self.take() for _ in range(n)]
        # END SOLUTION

def alone():
    # BEGIN SOLUTION 1.3: stand alone
    return 1
    # END SOLUTION
"""


@pytest.mark.parametrize(
    ("failed", "follows"),
    [
        ({"1.1": ["Pool", "take"], "1.2": ["Pool", "take_many"]}, {"1.2": "1.1"}),
        # its test ran nothing that the failing test of 1.1 ran
        ({"1.1": ["take"], "1.3": ["alone"]}, {}),
        ({"1.2": ["Pool", "take_many"]}, {}),
        # the cause may have the higher number
        ({"1.1": ["take", "alone"], "1.3": ["alone"]}, {"1.1": "1.3"}),
        # each runs the other's: the first one is the first cause
        ({"1.1": ["take", "take_many"], "1.2": ["take_many"]}, {"1.2": "1.1"}),
    ],
    ids=["calls it", "has nothing of it", "alone", "backwards", "both ways"],
)
def test_a_failure_follows_from_one_whose_functions_its_test_ran(
    failed: dict[str, list[str]], follows: dict[str, str]
) -> None:
    assert followers(failed, SOLUTION, SOLUTION) == follows


def test_what_a_helper_calls_is_run_too() -> None:
    helper = "course.grader.helpers.ex12:act"
    schedule = "course.grader.helpers.ex12:admit_next"
    solution = SOLUTION.replace("take_many", "admit_next")
    failed = {"1.1": ["Pool", "take"], "1.3": [helper, schedule]}
    assert followers(failed, solution, solution) == {"1.3": "1.1"}


def test_an_answer_that_is_no_python_follows_from_nothing() -> None:
    failed = {"1.1": ["take"], "1.2": ["take_many"]}
    assert followers(failed, SOLUTION, "def take(:") == {}


def test_a_follower_is_short_but_in_full_where_it_is_asked_for_alone(
    tmp_path: Path,
) -> None:
    course = write_course(tmp_path)
    solution = course / "solutions" / "ex04_pool.py"
    line = "        self._free = list(range(num_blocks))\n"
    marked = f"        # BEGIN SOLUTION 4.1: make it\n{line}"
    solution.write_text(solution.read_text().replace(line, marked))
    file = course / "ex04_pool.py"
    file.write_text(answer().replace("range(num_blocks)", "range(1, num_blocks + 1)"))
    report = grade(["4"], file, root=course)
    failures = {t.id: t.failure for t in report.exercises[0].tasks if t.failure}
    assert {task: f.follows for task, f in failures.items()} == {
        "4.1": "",
        "4.3": "4.1",
    }

    def shown(*only: str) -> str:
        stream = io.StringIO()
        Reading(Out(stream), course, only).render(report)
        return stream.getvalue()

    assert shown().count("may follow from 4.1: look there first") == 1
    assert shown().count("  done ") == 1 and shown().count("  got ") == 2
    assert "may follow" not in shown("4.3") and "  done " in shown("4.3")
