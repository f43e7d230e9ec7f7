"""Stubs: made from solutions, never written over a learner's work."""

import pytest

from course.stubs import Fate, StubError, is_pristine, make_stub, write_stub

SOLUTION = '''"""The contract."""

import os


class Pool:
    def take(self) -> int:
        # BEGIN SOLUTION 4.1: pop the "head" of the list
        # why: it is at hand
        return 1
        # END SOLUTION

    def given(self) -> int:
        return 2


# BEGIN NOTES
# A secret.
# END NOTES
'''


def test_a_region_becomes_an_error_with_its_words():
    names: dict = {}
    exec(make_stub(SOLUTION, "ex"), names)
    with pytest.raises(NotImplementedError) as caught:
        names["Pool"]().take()
    assert str(caught.value) == 'exercise 4.1: pop the "head" of the list'
    assert names["Pool"]().given() == 2


def test_reasoning_does_not_reach_the_learner():
    stub = make_stub(SOLUTION, "ex")
    assert "why" not in stub and "secret" not in stub
    assert "BEGIN" not in stub and "END" not in stub
    assert '"""The contract."""' in stub


def test_a_fresh_stub_is_pristine():
    assert is_pristine(make_stub(SOLUTION, "ex"))


@pytest.mark.parametrize(
    "edit",
    [
        lambda stub: stub.replace("import os", "import sys"),
        lambda stub: stub + "x = 1\n",
        lambda stub: "\n" + stub,
        lambda stub: stub.rsplit("\n", 2)[0] + "\n",  # without its certificate
        lambda stub: "",
        lambda stub: SOLUTION,
    ],
)
def test_an_edited_stub_is_not_pristine(edit):
    assert not is_pristine(edit(make_stub(SOLUTION, "ex")))


@pytest.mark.parametrize(
    ("solution", "words"),
    [
        ("def f():\n    # BEGIN SOLUTION 1.1: x\n    return 1\n", "not closed"),
        ("# END SOLUTION\n", "not a marker that opens"),
        ("def f():\n    # BEGIN SOLUTION: x\n    # END SOLUTION\n", "not a marker"),
        ("# BEGIN NOTES\n# BEGIN SOLUTION 1.1: x\n# END NOTES\n", "inside a region"),
        ("# BEGIN SOLUTION 1.1: x\nx = 1\n# END SOLUTION\n", "raised when imported"),
        ("def f():\n# BEGIN SOLUTION 1.1: x\n# END SOLUTION\n", "would not be Python"),
    ],
)
def test_a_solution_without_a_usable_stub_is_refused(solution, words):
    with pytest.raises(StubError, match=words):
        make_stub(solution, "ex01.py")


@pytest.fixture
def paths(tmp_path):
    solution, exercise = tmp_path / "solution.py", tmp_path / "exercise.py"
    solution.write_text(SOLUTION)
    return solution, exercise


def test_a_missing_stub_is_written_and_then_up_to_date(paths):
    assert write_stub(*paths) is Fate.WRITTEN
    assert write_stub(*paths) is Fate.CURRENT
    assert is_pristine(paths[1].read_text())


def test_an_untouched_stub_of_an_older_solution_is_renewed(paths):
    paths[1].write_text(make_stub(SOLUTION.replace("Pool", "OldPool"), "ex"))
    assert write_stub(*paths) is Fate.WRITTEN
    assert "OldPool" not in paths[1].read_text()


def test_a_half_solved_exercise_is_left_alone(paths):
    write_stub(*paths)
    stub = paths[1].read_text()
    half = stub.replace("return 2", "return 3")
    paths[1].write_text(half)
    assert write_stub(*paths) is Fate.LEFT_ALONE
    assert paths[1].read_text() == half
