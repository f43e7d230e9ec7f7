"""Wrong answers are caught by their own task; right answers of another kind are not.

A wrong answer is the solution with one place replaced, and the misconception behind it
in words and the test that catches it, which runs first: the others then need not. All
answers to one exercise are graded in one session. `make test` grades one wrong answer
to each task, the first; `make proof` the others, and the right ones.
"""

import tomllib
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from asked import asked

from course.grader import ExerciseResult, grade_variants
from course.manifest import Chapter, load

EXERCISES = [chapter for chapter in load().chapters if chapter.exercise]
AT_LEAST = {
    "02": 8,
    "04": 10,
    "05": 8,
    "06": 14,
    "07": 8,
    "08": 10,
    "09": 8,
    "10": 10,
    "11": 10,
    "12": 12,
    "13": 24,
}  # wrong ones; elsewhere 5

Results = Callable[[Chapter], dict[str, ExerciseResult]]

each_exercise = pytest.mark.parametrize(
    "chapter", EXERCISES, ids=[chapter.id for chapter in EXERCISES]
)


@cache
def wrong_answers(chapter: Chapter) -> list[dict[str, str]]:
    if not chapter.wrong_answers_path.exists():
        return []
    text = chapter.wrong_answers_path.read_text(encoding="utf-8")
    return tomllib.loads(text)["wrong"]


def right_answers(chapter: Chapter) -> dict[str, Path]:
    paths = sorted(chapter.right_answers_dir.glob("*.py"))
    return {f"right {path.stem}": path for path in paths}


def each_wrong_answer(*, proof: bool) -> pytest.MarkDecorator:
    """With proof, all but the first answer to a task are marked so."""
    cases = []
    for chapter in EXERCISES:
        tasks = set()
        for entry in wrong_answers(chapter):
            marks = [pytest.mark.proof] if proof and entry["task"] in tasks else []
            tasks.add(entry["task"])
            name = f"{chapter.id}-{entry['name']}"
            cases.append(pytest.param(chapter, entry, id=name, marks=marks))
    return pytest.mark.parametrize(("chapter", "entry"), cases)


def each_right_answer() -> pytest.MarkDecorator:
    cases = [
        pytest.param(chapter, name, id=f"{chapter.id}-{name}")
        for chapter in EXERCISES
        for name in right_answers(chapter)
    ]
    return pytest.mark.parametrize(("chapter", "name"), cases)


@pytest.fixture(scope="module")
def results(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    kept_warm: None,
) -> Results:
    """Grades the answers to an exercise when the first of them is asked for."""
    wrong, right = asked(request, "entry"), asked(request, "name")

    @cache
    def results_of(chapter: Chapter) -> dict[str, ExerciseResult]:
        folder = tmp_path_factory.mktemp(chapter.id)
        solution = chapter.solution_path.read_text(encoding="utf-8")
        answers = right_answers(chapter)
        variants = {name: answers[name] for name in answers if name in right}
        own_task: dict[str, str] = {}
        first: dict[str, str] = {}
        for entry in wrong_answers(chapter):
            if entry not in wrong:
                continue
            own_task[entry["name"]] = entry["task"]
            first[entry["name"]] = entry["caught_by"]
            path = variants[entry["name"]] = folder / f"{entry['name']}.py"
            text = solution.replace(entry["find"], entry["replace"])
            path.write_text(text, encoding="utf-8")
        return grade_variants(chapter.id, variants, only=own_task, first=first)

    return results_of


@each_exercise
def test_an_exercise_has_enough_wrong_answers(chapter: Chapter) -> None:
    entries = wrong_answers(chapter)
    assert len(entries) >= AT_LEAST.get(chapter.id, 5)
    names = Counter(entry["name"] for entry in entries)
    assert [name for name, count in names.items() if count > 1] == []


@each_exercise
def test_every_task_has_a_wrong_answer(chapter: Chapter) -> None:
    tasks = {task.id for task in chapter.tasks}
    assert {entry["task"] for entry in wrong_answers(chapter)} == tasks


@each_wrong_answer(proof=False)
def test_a_wrong_answer_is_one_change_to_the_solution_with_a_reason(
    chapter: Chapter, entry: dict[str, str]
) -> None:
    solution = chapter.solution_path.read_text(encoding="utf-8")
    assert solution.count(entry["find"]) == 1
    assert entry["replace"] != entry["find"]
    assert len(entry["misconception"].split()) >= 4


@each_wrong_answer(proof=True)
def test_a_wrong_answer_loses_its_own_task(
    results: Results, chapter: Chapter, entry: dict[str, str]
) -> None:
    result = results(chapter)[entry["name"]]
    assert result.problem is None
    (task,) = result.tasks
    assert task.id == entry["task"]
    assert task.status == "failed" and task.failure is not None
    assert task.failure.test == entry["caught_by"]


@pytest.mark.proof
@each_right_answer()
def test_a_right_answer_of_another_kind_scores_everything(
    results: Results, chapter: Chapter, name: str
) -> None:
    result = results(chapter)[name]
    assert result.ok, [task.failure for task in result.tasks if task.failure]
    assert result.points == result.max_points


def test_exercise_04_has_four_right_answers_of_another_kind() -> None:
    assert len(right_answers(load().chapter("04"))) >= 4
