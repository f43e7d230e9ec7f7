"""What an answer's source says about its kernels, read in the grader and never run.

It proves that kernels are there and are launched from the function that is graded; the
worker counts the launches (triton_inside.py). Neither of the two alone would do: source
can lie about what runs, a worker about what it counts.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

PATCHABLE = ("torch", "triton", "numpy", "sys", "builtins")


@dataclass(frozen=True)
class Complaint:
    """What is wrong in a line."""

    line: int
    text: str


@dataclass(frozen=True)
class Source:
    """The functions of a file, and which of them are kernels."""

    functions: dict[str, ast.FunctionDef]
    kernels: dict[str, ast.FunctionDef]  # also those in a class or a function
    modules: dict[str, str]  # name in the file -> what it was imported as
    tree: ast.Module

    def launches(self, launcher: str) -> bool:
        """Whether launcher, or what it uses of the file, has k[grid](…) and a kernel.

        Whether k is that kernel is not asked: it may come out of a table, or as an
        argument.
        """
        nodes = [n for part in self._reachable(launcher) for n in ast.walk(part)]
        named = {n.id for n in nodes if isinstance(n, ast.Name)}
        named |= {n.attr for n in nodes if isinstance(n, ast.Attribute)}
        named &= self.kernels.keys()
        return bool(named) and any(_is_launch(n, named) for n in nodes)

    def _reachable(self, name: str) -> Iterator[ast.AST]:
        """What stands at the top of the file and is reached by name, but no kernel."""
        everything: dict[str, ast.AST] = {}
        for node in self.tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                everything[node.name] = node
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    everything |= dict.fromkeys(_names(target), node)
        # A kernel in a class may have the name of a launcher.
        seen = {k for k, node in self.kernels.items() if everything.get(k) is node}
        waiting = [name]
        while waiting:
            current = waiting.pop()
            if current in seen or current not in everything:
                continue
            seen.add(current)
            yield everything[current]
            waiting += _names(everything[current])

    def loads_without_other(self) -> Iterator[Complaint]:
        """Masked loads that do not say what the lanes get that are masked off."""
        for kernel in self.kernels.values():
            for node in ast.walk(kernel):
                if isinstance(node, ast.Call) and self._is_load(node.func):
                    given = {keyword.arg: keyword.value for keyword in node.keywords}
                    given |= dict(
                        zip(("pointer", "mask", "other"), node.args, strict=False)
                    )
                    if not _is_none(given.get("mask")) and _is_none(given.get("other")):
                        text = ast.unparse(node)
                        yield Complaint(node.lineno, text)

    def _is_load(self, function: ast.expr) -> bool:
        meant = self._meaning(function)
        return meant in ("triton.language.load", "triton.language.core.load")

    def _meaning(self, node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{self._meaning(node.value)}.{node.attr}"
        if isinstance(node, ast.Name):
            return self.modules.get(node.id, node.id)
        return "?"

    def patches(self) -> Iterator[Complaint]:
        """Assignments to what belongs to torch, Triton or Python."""
        for node in ast.walk(self.tree):
            if not isinstance(node, ast.stmt | ast.Call):
                continue
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign | ast.Delete):
                targets = node.targets
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "setattr":
                targets = [
                    ast.Attribute(argument, "", ast.Store())
                    for argument in node.args[:1]
                ]
            for target in targets:
                if isinstance(target, ast.Subscript):
                    target = target.value
                meant = self._meaning(target)
                root = meant.split(".")[0]
                if isinstance(target, ast.Attribute) and root in PATCHABLE:
                    yield Complaint(node.lineno, ast.unparse(node)[:60])


@cache
def read(text: str) -> Source:
    """Read a file that Python has read before."""
    tree = ast.parse(text)
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for name in node.names:
                known = name.asname or name.name.split(".")[0]
                modules[known] = name.name if name.asname else known
        elif isinstance(node, ast.ImportFrom):
            for name in node.names:
                modules[name.asname or name.name] = f"{node.module}.{name.name}"
    functions = {
        node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)
    }
    source = Source(functions, {}, modules, tree)
    source.kernels.update(_kernels(source))
    return source


def _kernels(source: Source) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions marked @triton.jit, wherever they stand; and k of k = triton.jit(f)."""
    jit = ("triton.jit", "triton.runtime.jit.jit")
    for node in ast.walk(source.tree):
        if isinstance(node, ast.FunctionDef):
            for mark in node.decorator_list:
                mark = mark.func if isinstance(mark, ast.Call) else mark
                if source._meaning(mark) in jit:
                    yield node.name, node
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made_of = [arg.id for arg in node.value.args if isinstance(arg, ast.Name)]
            if source._meaning(node.value.func) in jit and made_of:
                function = source.functions.get(made_of[0])
                if function is not None:
                    for target in node.targets:
                        yield from ((name, function) for name in _names(target))


def _is_launch(node: ast.AST, kernels: set[str]) -> bool:
    """Whether it is k[grid](…); or k[grid], where k is the very name of a kernel."""
    if isinstance(node, ast.Call):
        return isinstance(node.func, ast.Subscript)
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        return node.value.id in kernels
    return False


def _names(node: ast.AST) -> set[str]:
    return {each.id for each in ast.walk(node) if isinstance(each, ast.Name)}


def _is_none(node: ast.expr | None) -> bool:
    return node is None or (isinstance(node, ast.Constant) and node.value is None)
