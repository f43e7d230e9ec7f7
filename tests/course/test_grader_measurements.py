"""Helpers that measure run in the learner's process, apart from learner code."""

from pathlib import Path

import pytest
from tiny_exercise import answer, write_course

from course.grader import GraderError, grade
from course.grader.instruments import READ_AHEAD, ROOT, Instruments

pytestmark = pytest.mark.proof

RACE = """
from course.grader import in_worker

@task("4.1")
def test_two_calls_at_once(exercise):
    race = ["allocate"], ["allocate"]
    in_worker(exercise, "course.grader.helpers.ex04:races", exercise.Pool, 2, [], *race)
"""
BLINDED = """
import gc
for kind in gc.get_objects():
    if type(kind) is type and kind.__name__ == "_OpcodeCounter":
        kind.run = lambda self, action, skip: action()
"""


def test_a_python_that_shows_no_opcodes_is_the_graders_failure(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    with (course / "tests/exercises/test_ex04_pool.py").open("a") as file:
        file.write(RACE)
    (course / "ex04_pool.py").write_text(answer(allocate=BLINDED))
    with pytest.raises(GraderError, match=r"Python 3\.\d+\.\d+ shows no opcodes"):
        grade(["4"], course, root=course)


def test_all_helpers_are_read_before_learner_code_runs() -> None:
    instruments = Instruments()
    instruments.read_ahead()
    helpers = {path.stem for path in (ROOT / "course/grader/helpers").glob("ex*.py")}
    read = {name.rpartition(".")[2] for name in instruments._code}
    assert read == helpers | {"errors", "interleave", "kernels"}
    assert all((ROOT / "course").glob(pattern) for pattern in READ_AHEAD)


def test_a_helper_is_no_module_that_can_be_found() -> None:
    race = Instruments().function("course.grader.helpers.ex04:races")
    assert Path(race.__code__.co_filename).name == "ex04.py"
    import course.grader.helpers.ex04 as found

    assert race is not found.races and race.__globals__ is not vars(found)
