"""Arguments are as they were after each call, unless the stub says what is written."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_exercise import answer, write_course

from course.grader import contract, grade
from course.grader.unchanged import first_change


def function(numbers: Any, tables: Any = None) -> None: ...


SAME = object()
NAN = float("nan")


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ([1, 2], [1, 2], None),
        ([1, 2], [1], ("the list numbers", "[1, 2]", "[1]")),
        ([1], [True], ("the list numbers", "[1]", "[True]")),
        ([1, 2], [2, 1], ("the list numbers", "[1, 2]", "[2, 1]")),
        ({1: [2]}, {1: [3]}, ("the dict numbers", "{1: [2]}", "{1: [3]}")),
        ({1: 2, 3: 4}, {3: 4, 1: 2}, None),
        ({1}, set(), ("the set numbers", "{1}", "set()")),
        (([1], 2), ([], 2), ("the tuple numbers", "([1], 2)", "([], 2)")),
        ([NAN, SAME], [float("nan"), SAME], None),
        ([[7] * 90, [1]], [[7] * 90, []], ("numbers[1]", "[1]", "[]")),
        (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), None),
        (torch.zeros(3, 3), torch.eye(3), ("numbers[0, 0]", "0.0", "1.0")),
        (
            torch.zeros(1, 2),
            torch.zeros(2, 1),
            (
                "numbers",
                "tensor float32 [1, 2] [[0.0, 0.0]]",
                "tensor float32 [2, 1] [[0.0], [0.0]]",
            ),
        ),
    ],
)
def test_the_first_change_is_named_with_what_was_and_what_is(
    before: object, after: object, change: tuple[str, str, str] | None
) -> None:
    assert first_change(function, [(0, before, after)]) == change


def test_a_changed_argument_is_called_as_the_learner_calls_it() -> None:
    named = first_change(function, [(0, [1], [1]), (1, [2], [])])
    assert named == ("the list tables", "[2]", "[]")
    unknown = first_change(lambda *args: None, [(1, [2], [])])
    assert unknown == ("the list argument 2", "[2]", "[]")


def test_what_may_be_written_is_what_the_docstring_says(tmp_path: Path) -> None:
    path = tmp_path / "ex.py"
    path.write_text(
        '"""It is all the same after the call, except that copy writes keys and\n'
        'values, merge\nwrites out, and step uses up beams."""\n'
        "def copy(source, keys, values) -> None: ...\n"
        "def merge(out, part) -> None: ...\n"
        "def step(beams, scores) -> None: ...\n"
        "def read(out) -> None: ...\n"
    )
    writes = {name: m.writes for name, m in contract.read(path).members.items()}
    assert writes == {
        "copy": {"keys", "values", 1, 2},
        "merge": {"out", 0},
        "step": {"beams", 0},
        "read": set(),
    }


@pytest.mark.parametrize(
    ("body", "test"),
    [
        ("x.pop()\n    return 2", "exercise.twice([1, 2])"),
        ("x.pop()\n    return 2", "exercise.twice(x=[1, 2])"),
        (
            "x.pop()\n    raise ValueError",
            "expect_raises(ValueError, exercise.twice, [1, 2], claim='it raises')",
        ),
    ],
    ids=["returns", "by name", "raises"],
)
def test_a_call_that_changes_its_argument_fails_whatever_else_it_does(
    tmp_path: Path, body: str, test: str
) -> None:
    course = write_course(tmp_path)
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    path.write_text(
        "from course.grader import expect_raises, task\n\n"
        f'@task("5.1")\ndef test_x(exercise):\n    {test}\n'
    )
    (course / "ex04_pool.py").write_text(answer())
    file = course / "ex05_twice.py"
    file.write_text(f"def twice(x):\n    {body}\n")
    failure = grade(["5"], file, root=course).exercises[0].tasks[0].failure
    assert failure is not None
    assert failure.expected == "the list x is [1, 2]"
    assert failure.got == "the list x is [1] after the call"
    assert failure.claim.startswith("twice(") and "as it was" in failure.claim
