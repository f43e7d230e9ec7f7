"""Which failures may follow from another one: one bug often costs several tasks.

Task B may follow from task A if both failed, and B's failing test runs a function of A
that A's failing test runs as well. What a test runs is estimated by names: what it
called, and whatever those functions mention, in the learner's file and in the helpers.
So it says "may", and a task that fails alone is never said to follow.
"""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

from course.manifest import ROOT
from course.stubs import BEGIN

Graph = Mapping[str, frozenset[str]]  # function or class -> the names it mentions


def followers(
    failed: Mapping[str, Iterable[str]], solution: str, answer: str
) -> dict[str, str]:
    """Task -> the task that it may follow from.

    failed: task, in their order -> what its failing test called: names of the
    learner's, and "module:function" of helpers.
    """
    tasks = list(failed)
    owned = _owned(solution)
    runs = {task: _reach(failed[task], _mentions(answer)) for task in tasks}

    def uses(later: str, first: str) -> bool:
        return bool(owned.get(first, set()) & runs[first] & runs[later])

    causes = {
        task: [
            other
            for i, other in enumerate(tasks)
            if other != task
            and uses(task, other)
            # Where each runs the other's functions, the earlier one comes first.
            and (i < tasks.index(task) or not uses(other, task))
        ]
        for task in tasks
    }
    roots = [task for task in tasks if not causes[task]]
    firsts = {task: [each for each in roots if each in causes[task]] for task in tasks}
    return {task: first[0] for task, first in firsts.items() if first}


def _owned(solution: str) -> dict[str, set[str]]:
    """Task -> the functions that it asks for; a constructor is called as its class."""
    lines = solution.splitlines()
    owned: dict[str, set[str]] = {}
    for name, node in _functions(ast.parse(solution)):
        for line in lines[node.lineno - 1 : node.end_lineno]:
            if region := BEGIN.match(line):
                owned.setdefault(region["task"], set()).add(name)
    return owned


def _functions(tree: ast.Module) -> Iterable[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    is_constructor = member.name == "__init__"
                    yield node.name if is_constructor else member.name, member


def _mentions(source: str) -> Graph:
    try:
        functions = _functions(ast.parse(source))
        graph: dict[str, frozenset[str]] = {}
        for name, function in functions:
            graph[name] = graph.get(name, frozenset()) | _names_in(function)
        return graph
    except (SyntaxError, ValueError, RecursionError):
        return {}


def _names_in(function: ast.FunctionDef) -> frozenset[str]:
    names: set[str] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.Name):
            names.add(node.id)
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
    return frozenset(names)


def _reach(called: Iterable[str], graph: Graph) -> set[str]:
    """Everything that may run when these are called."""
    waiting: list[str] = []
    for name in called:
        module, _, function = name.rpartition(":")
        waiting += _of_helper(module, function) if module else [name]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name not in reached:
            reached.add(name)
            waiting += graph.get(name, ())
    return reached


def _of_helper(module: str, function: str) -> set[str]:
    path = Path(ROOT, *module.split(".")).with_suffix(".py")
    return _reach([function], _mentions(path.read_text(encoding="utf-8")))
