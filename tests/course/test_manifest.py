"""The manifest: the one list of chapters, tasks, points and hints."""

import ast
import re
import subprocess
import sys

import pytest

from course.manifest import ROOT, Task, UnknownChapterError, load

CHAPTERS = load().chapters
EXERCISES = [chapter for chapter in CHAPTERS if chapter.exercise]
TASKS = [task for chapter in CHAPTERS for task in chapter.tasks]


@pytest.mark.parametrize("name", [4, "4", "04", "ex04", "EX04", "04_free_list"])
def test_a_chapter_answers_to_all_its_names(name):
    assert load().chapter(name).stem == "04_free_list"


@pytest.mark.parametrize("name", ["99", "", "4.1", "free_list", "-1"])
def test_an_unknown_chapter_is_answered_in_a_line_with_those_that_exist(name):
    with pytest.raises(UnknownChapterError) as caught:
        load().chapter(name)
    there = "there are 00 to 14: course status lists them"
    assert str(caught.value) == f"no chapter {name or repr('')}; {there}"


def test_an_unknown_task_is_answered_with_those_that_exist():
    with pytest.raises(UnknownChapterError, match=r"no task 4\.9; .* 4\.5"):
        load().task("4.9")


def test_ids_have_two_digits_and_go_up():
    ids = [chapter.id for chapter in CHAPTERS]
    assert ids == sorted(set(ids))
    assert all(len(id_) == 2 and id_.isdigit() for id_ in ids)


def test_two_fifths_of_the_points_are_not_to_be_had_by_copying_the_chapter():
    for chapter in EXERCISES:
        own = sum(task.points for task in chapter.tasks if task.kind != "build")
        points = sum(task.points for task in chapter.tasks)
        assert own >= 0.4 * points, f"chapter {chapter.id}: {own} of {points} points"


def test_tasks_are_numbered_within_their_chapter():
    for chapter in CHAPTERS:
        wanted = [f"{chapter.number}.{k + 1}" for k in range(len(chapter.tasks))]
        assert [task.id for task in chapter.tasks] == wanted
        assert bool(chapter.tasks) == chapter.exercise


def test_prerequisites_and_needs_come_earlier():
    for chapter in CHAPTERS:
        earlier = {c.id for c in CHAPTERS if c.number < chapter.number}
        assert set(chapter.prerequisites) <= earlier, chapter.stem
        with_exercise = {c.id for c in EXERCISES} & earlier
        assert set(chapter.needs) <= with_exercise, chapter.stem


def test_what_an_exercise_refuses_exists_and_is_not_the_errors():
    for chapter in EXERCISES:
        for module in chapter.refuses:
            path = ROOT.joinpath(*module.split("."))
            is_package = (path / "__init__.py").is_file()
            assert is_package or path.with_suffix(".py").is_file()
            assert module != "paged_attention.errors"


def test_what_an_exercise_provides_is_defined_in_its_solution():
    for chapter in EXERCISES:
        tree = ast.parse(chapter.solution_path.read_text(encoding="utf-8"))
        names = {getattr(node, "name", None) for node in tree.body}
        assert set(chapter.provides.values()) <= names, chapter.stem


def test_two_points_in_five_are_not_for_copying_the_chapter():
    beyond = sum(task.points for task in TASKS if task.kind != "build")
    assert beyond >= 0.4 * sum(task.points for task in TASKS)


def test_hints_are_three_different_sentences():
    for task in TASKS:
        assert len(set(task.hints)) == 3, task.id
        assert all(len(hint) > 20 for hint in task.hints), task.id


def test_every_text_of_a_chapter_is_there():
    for chapter in CHAPTERS:
        assert chapter.question.endswith("?"), chapter.stem
        assert chapter.goal.endswith("."), chapter.stem
        assert chapter.title and chapter.minutes > 0, chapter.stem


def test_the_readme_maps_the_chapters_that_are_here():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (\d\d) \| (.+) \| (.+) \|$", readme, re.MULTILINE)
    here = [(id_, name, question) for id_, name, question in rows if "](" in name]
    assert [id_ for id_, _, _ in here] == [chapter.id for chapter in CHAPTERS]
    for chapter, (_, name, question) in zip(CHAPTERS, here, strict=True):
        assert name.endswith(f"](chapters/{chapter.notebook.name})")
        assert question == chapter.question


def test_the_notebooks_that_are_here_are_those_of_the_chapters():
    present = sorted(path.name for path in (ROOT / "chapters").glob("*.ipynb"))
    assert present == [chapter.notebook.name for chapter in CHAPTERS]


@pytest.mark.parametrize("task_id", ["4.99", "04.1", "4.x"])
def test_a_task_that_is_not_there_is_answered_with_those_of_its_chapter(task_id):
    with pytest.raises(UnknownChapterError) as caught:
        load().task(task_id)
    tasks = "4.1, 4.2, 4.3, 4.4, 4.5"
    assert str(caught.value) == f"no task {task_id}; there are: {tasks}"


@pytest.mark.parametrize(
    "wrong", [{"kind": "quiz"}, {"points": -1}, {"hints": ("only one",)}]
)
def test_a_wrong_task_is_refused(wrong):
    right = {"id": "4.1", "title": "t", "points": 1, "kind": "hunt"}
    with pytest.raises(ValueError, match=r"task 4\.1"):
        Task(**{**right, "hints": ("a", "b", "c"), **wrong})


def test_the_manifest_needs_only_the_standard_library():
    code = (
        "import sys, course.manifest as m; m.load();"
        "print([n for n in sys.modules if n.split('.')[0] in"
        " ('torch', 'rich', 'nbformat', 'jupytext', 'pytest', 'numpy')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr
