"""A stub's docstring is the whole contract: a test touches nothing it does not name.

What tests may touch is fixed by the grader: the public names of the solution, see
course/grader/contract.py. So it is enough that the docstring names all of these, their
parameters, and every error that a test asks for.
"""

import ast
import re
from pathlib import Path

import pytest

from course.grader.contract import is_kernel, read
from course.manifest import Chapter, load
from course.stubs import make_stub

EXERCISES = [chapter for chapter in load().chapters if chapter.exercise]

each_exercise = pytest.mark.parametrize(
    "chapter", EXERCISES, ids=[chapter.id for chapter in EXERCISES]
)


def docstring_of_stub(chapter: Chapter) -> str:
    solution = chapter.solution_path
    stub = make_stub(solution.read_text(encoding="utf-8"), solution.name)
    return ast.get_docstring(ast.parse(stub)) or ""


def missing(words: set[str], text: str) -> list[str]:
    return sorted(word for word in words if not re.search(rf"\b{word}\b", text))


def public_names(path: Path) -> set[str]:
    contract = read(path)
    names = {*contract.members, *contract.classes}
    for members in contract.classes.values():
        names |= set(members)
    return {name for name in names if not name.startswith("_")}


def parameters(path: Path) -> set[str]:
    """Of public functions, of public methods, and of the constructors."""
    names: set[str] = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        is_public = isinstance(node, ast.FunctionDef) and not (
            node.name.startswith("_") and node.name != "__init__"
        )
        if is_public and not is_kernel(node) and not _is_nested(node, tree):
            arguments = node.args
            every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
            names |= {argument.arg for argument in every}
    return names - {"self"}


def _is_nested(node: ast.AST, tree: ast.Module) -> bool:
    """Inside a function, or inside a class whose name is private."""
    for outer in ast.walk(tree):
        hides = isinstance(outer, ast.FunctionDef) or (
            isinstance(outer, ast.ClassDef) and outer.name.startswith("_")
        )
        if hides and outer is not node and node in ast.walk(outer):
            return True
    return False


def errors_asked_for(path: Path) -> set[str]:
    """The names that stand first in expect_raises(…)."""
    calls = (
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "expect_raises"
    )
    return {call.args[0].id for call in calls if isinstance(call.args[0], ast.Name)}


@each_exercise
def test_the_docstring_names_all_that_tests_may_touch(chapter: Chapter) -> None:
    text = docstring_of_stub(chapter)
    assert missing(public_names(chapter.solution_path), text) == []


@each_exercise
def test_the_docstring_names_every_parameter(chapter: Chapter) -> None:
    text = docstring_of_stub(chapter)
    assert missing(parameters(chapter.solution_path), text) == []


@each_exercise
def test_the_docstring_names_every_error_that_a_test_asks_for(
    chapter: Chapter,
) -> None:
    errors = errors_asked_for(chapter.tests_path)
    known = {name for name in errors if name.endswith(("Error", "Exception"))}
    assert missing(known, docstring_of_stub(chapter)) == []


@each_exercise
def test_the_docstring_has_a_heading_for_each_task(chapter: Chapter) -> None:
    headings = re.findall(r"^Task (\d+\.\d+)\b", docstring_of_stub(chapter), re.M)
    assert headings == [task.id for task in chapter.tasks]


@each_exercise
def test_a_stub_says_that_arguments_stay_as_they_are(chapter: Chapter) -> None:
    takes_lists = re.compile(r"\w+: (?:list|dict|set|Tensor)\b")
    if takes_lists.search(chapter.solution_path.read_text(encoding="utf-8")):
        words = " ".join(docstring_of_stub(chapter).split())
        assert words.count("the same after the call") == 1
