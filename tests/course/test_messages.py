"""What a learner reads after a wrong answer to one of the exercises."""

import re
import tomllib
from pathlib import Path

import pytest

from course.grader import Failure, grade_variants
from course.manifest import load
from course.stubs import make_stub

pytestmark = pytest.mark.proof


def failure_of(task_id: str, text: str, folder: Path) -> Failure:
    """How the task fails in a file with this text."""
    chapter = load().chapter_of(task_id)
    path = folder / chapter.exercise_path.name
    path.write_text(text, encoding="utf-8")
    results = grade_variants(chapter.id, {"wrong": path}, only={"wrong": task_id})
    (task,) = results["wrong"].tasks
    assert task.failure is not None
    return task.failure


def wrong(task_id: str, name: str, folder: Path) -> Failure:
    """How the task fails in one of the course's wrong answers."""
    chapter = load().chapter_of(task_id)
    text = chapter.wrong_answers_path.read_text(encoding="utf-8")
    (change,) = [w for w in tomllib.loads(text)["wrong"] if w["name"] == name]
    solution = chapter.solution_path.read_text(encoding="utf-8")
    assert change["find"] in solution
    changed = solution.replace(change["find"], change["replace"])
    return failure_of(task_id, changed, folder)


def test_a_wrong_scale_is_seen_with_small_numbers(tmp_path):
    failure = wrong("1.3", "no_scale", tmp_path)
    assert "head_dim 4" in failure.claim and "weights" in failure.claim
    assert (failure.expected, failure.got[:3]) == ("0.75 at [0, 0]", "0.9")
    assert "0.5493, 0.5493" in failure.history[1]
    assert not re.search(r"\d\.\d{5}", "".join(failure.history))


@pytest.mark.parametrize(
    ("task_id", "name", "told"),
    [
        ("1.3", "keeps_the_callers_tensor", "fills its three tensors with NaN"),
        ("3.4", "two_allocations", "value_cache(0) lies in a storage of its own"),
        ("3.4", "halves_apart", "key_cache(0) starts at number 0 with strides [72"),
    ],
)
def test_what_the_course_did_itself_is_told_in_words(tmp_path, task_id, name, told):
    story = "\n".join(wrong(task_id, name, tmp_path).history)
    assert told in story
    assert "{" not in story and "_tensors(" not in story and "places(" not in story


def test_a_layout_that_is_not_contiguous_is_told_in_words(tmp_path):
    solution = load().chapter(3).solution_path.read_text(encoding="utf-8")
    changed = solution.replace(
        "return permuted.clone(memory_format=torch.contiguous_format)",
        "return permuted",
    )
    story = "\n".join(failure_of("3.2", changed, tmp_path).history)
    assert "result = convert_layout(tensor, 'block offset head dim'," in story
    assert "convert_and_look" not in story and "{" not in story


def test_a_hunt_that_never_ends_asks_about_a_loop(tmp_path, monkeypatch):
    for module in ("hidden", "exchange"):
        monkeypatch.setattr(f"course.grader.{module}.MAX_CALLBACKS", 50)
    solution = load().chapter(4).solution_path
    stub = make_stub(solution.read_text(encoding="utf-8"), solution.name)
    start = stub.index("def check_allocator(")
    loop = "    while True:\n        allocator_class(3).can_allocate(1)\n"
    text = f"{stub[:start]}def check_allocator(allocator_class):\n{loop}"
    failure = failure_of("4.5", text, tmp_path)
    assert failure.message.endswith(
        " made more than 50 calls on what it was given, which is the limit, and was "
        "ended: does a loop never end?\n"
        "It was at this line: allocator_class(3).can_allocate(1)"
    )


def test_a_race_that_fills_the_memory_is_told_as_that(tmp_path, monkeypatch):
    monkeypatch.setattr("course.grader.warm.MEMORY", 128 << 20)
    solution = load().chapter(4).solution_path.read_text(encoding="utf-8")
    place = "            self._num_free -= 1\n"
    assert solution.count(place) == 1
    loop = "            while True:\n                KEPT.append((len(KEPT), 0))\n"
    text = "KEPT = []\n" + solution.replace(place, place + loop)
    failure = failure_of("4.4", text, tmp_path)
    where = ("FreeListAllocator.allocate", "your code")
    assert failure.message.startswith(where) and failure.printed == ""
    assert "out of memory, an exercise may use 128 MiB" in failure.got


def test_a_bug_hunt_tells_what_was_caught_and_names_one_bug_that_was_missed(tmp_path):
    failure = wrong("4.5", "no_misuse", tmp_path)
    right, *bugs = failure.history
    assert right == "right 1 … 5 not accused"
    assert "caught: free gives a block back" in bugs[0]
    assert sum("its bug:" in line for line in bugs) == 1
    assert sum(" MISSED" in line for line in bugs) > 1
    assert failure.got.endswith(" of 20 bugs caught, 0 of 5 right ones accused")


def test_a_bug_hunt_that_accuses_a_right_one_names_no_bug(tmp_path):
    failure = wrong("4.5", "asks_for_an_order", tmp_path)
    assert any("ACCUSED, it " in line for line in failure.history)
    assert "caught: " not in "".join(failure.history)
    assert failure.history[-1].startswith("bug 1 … ")  # one line for what they share
    assert "wrong allocators made it raise" in failure.got


def test_what_a_call_did_to_the_pool_stands_below_it(tmp_path):
    history = wrong("5.2", "takes_what_it_can_get", tmp_path).history
    (at,) = [i for i, line in enumerate(history) if "append_tokens(13)" in line]
    assert history[at + 1] == "    ↳ pool.allocate_many(1) -> [1]"
    assert history[at + 4] == "table.block_ids -> [0, 1, 2]"


@pytest.mark.parametrize(
    ("task_id", "name", "told"),
    [
        ("5.4", "none_in_the_matrix", "[[None, 1], [0, -1]]: the None at [0][0] is no"),
        ("6.3", "a_hole_becomes_free", ": the None in [1] is no int"),
    ],
)
def test_a_stray_value_in_a_result_is_named(tmp_path, task_id, name, told):
    failure = wrong(task_id, name, tmp_path)
    assert told in failure.got
    if task_id == "5.4":
        assert "table2 = LogicalTable(pool, 4, [0], 4)" in failure.history


def test_a_count_says_what_is_counted(tmp_path):
    failure = wrong("7.1", "the_rest_has_a_hash", tmp_path)
    words = "number of hashes: one for each full block of 4 in 1 token"
    assert failure.claim == words


@pytest.mark.parametrize(
    ("find", "replace", "got"),
    [
        ("if owed > self.pool", "if owed >= self.pool", "None, and it still waits"),
        ("        return group\n", "", "None, but it runs: is a `return` missing?"),
    ],
)
def test_none_from_admit_next_says_whether_the_group_runs(tmp_path, find, replace, got):
    solution = load().chapter(12).solution_path.read_text(encoding="utf-8")
    assert solution.count(find) == 1
    failure = failure_of("12.1", solution.replace(find, replace), tmp_path)
    assert (failure.expected, failure.got) == ("'A'", got)
