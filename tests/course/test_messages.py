"""What a learner reads after a wrong answer to one of the exercises."""

import re
import tomllib
from pathlib import Path

import pytest

from course.grader import Failure, grade_variants
from course.manifest import load
from course.stubs import make_stub


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
        " made 50 calls on what it was given and was stopped: does a loop never end?"
    )
