"""What tests may touch, read from the master solution without running it.

Public functions, classes, their methods, properties and annotated attributes, each with
the type it declares. A name that is not here is a bug of the test; a value of another
type than declared is a failure of the learner's code, named at the seam: `True` passes
for 1 nowhere.
"""

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from course.grader.errors import UnknownNameError
from course.grader.history import shown
from course.grader.proxy import Handle

SIMPLE = {
    "int": int,
    "bool": bool,
    "float": float,
    "str": str,
    "bytes": bytes,
    "None": type(None),
}
CONTAINERS = ("list", "tuple", "dict", "set")


@dataclass(frozen=True)
class Declared:
    """A declared type: from SIMPLE or CONTAINERS, "|", "Any", "Tensor" or a class."""

    name: str
    args: tuple["Declared", ...] = ()
    text: str = ""
    open_ended: bool = False  # tuple[int, ...]

    def admits(self, value: object) -> bool:
        """Whether a value that crossed is of this type."""
        if self.name == "Any":
            return True
        if self.name == "|":
            return any(option.admits(value) for option in self.args)
        if isinstance(value, Handle):
            return self.name == value._member
        if self.name in SIMPLE:
            kind = type(value)
            return kind is SIMPLE[self.name] or (self.name == "float" and kind is int)
        if self.name == "Tensor":
            torch = sys.modules.get("torch")
            return torch is not None and type(value) is torch.Tensor
        return type(value).__name__ == self.name and self._admits_items(value)

    def _admits_items(self, value: object) -> bool:
        if not self.args:
            return True
        if isinstance(value, dict):
            keys, values = self.args
            return all(keys.admits(k) and values.admits(v) for k, v in value.items())
        assert isinstance(value, list | tuple | set), "no other container crosses"
        if isinstance(value, tuple) and not self.open_ended:
            return len(value) == len(self.args) and all(
                map(Declared.admits, self.args, value)
            )
        return all(map(self.args[0].admits, value))

    def misfit(self, value: object, place: str = "") -> str:
        """Which item is of a wrong type: "the None at [0][0] is no int"; "" if none."""
        if self.name == "|":
            found = (option.misfit(value, place) for option in self.args)
            return next(filter(None, found), "")
        for where, declared, item in self._parts(value):
            if not declared.admits(item):
                where = place + where
                at = f"in {where or 'it'}" if isinstance(value, set) else f"at {where}"
                kind = declared.text or declared.name
                told = f"the {shown(item, 60)} {at} is no {kind}{advice_for(item)}"
                return declared.misfit(item, where) or told
        return ""

    def _parts(self, value: object) -> "Iterator[tuple[str, Declared, object]]":
        """Place, declared type and value of each item of such a container."""
        if not self.args or type(value).__name__ != self.name:
            return
        if isinstance(value, dict):
            for key, item in value.items():
                yield f"[{shown(key, 60)}]", self.args[1], item
        elif isinstance(value, set):
            for item in value:
                yield "", self.args[0], item
        elif isinstance(value, list | tuple):
            is_fixed = isinstance(value, tuple) and not self.open_ended
            kinds = self.args if is_fixed else self.args * len(value)
            for place, (kind, item) in enumerate(zip(kinds, value, strict=False)):
                yield f"[{place}]", kind, item


def advice_for(value: object) -> str:
    """How to make a plain number of a tensor that holds one."""
    shape = getattr(value, "shape", None)
    return ": write x.item() for x" if shape is not None and not len(shape) else ""


@dataclass(frozen=True)
class Member:
    """A function, method or value, and what it returns; None if it does not say."""

    name: str
    kind: str  # "function", "value"
    returns: Declared | None
    static: bool = False  # may be called on the class
    writes: frozenset[int | str] = frozenset()  # arguments that it may change


@dataclass(frozen=True)
class Contract:
    """Everything that tests may touch in one module."""

    path: Path
    members: dict[str, Member] = field(default_factory=dict)
    classes: dict[str, dict[str, Member]] = field(default_factory=dict)


@cache
def read(path: Path) -> Contract:
    """The contract that the module at path declares."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    names = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    members = dict(_members(tree.body, names, ""))
    for function in tree.body:
        if isinstance(function, ast.FunctionDef) and function.name in members:
            writes = _written(function, ast.get_docstring(tree) or "")
            members[function.name] = replace(members[function.name], writes=writes)
    contract = Contract(path, members)
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            members: dict[str, Member] = {}
            for base in node.bases:  # a class of the same file
                members |= contract.classes.get(ast.unparse(base), {})
            members |= dict(_members(node.body, names, node.name))
            contract.classes[node.name] = members
    return contract


def _written(function: ast.FunctionDef, text: str) -> frozenset[int | str]:
    """The arguments, by place and by name, that text says a function writes."""
    places = [arg.arg for arg in function.args.args]
    one = rf"(?:{'|'.join(places)})\b"
    words = (
        rf"\b{function.name}\s+(?:writes|uses\s+up)\s+({one}(?:(?:,|\s+and)\s+{one})*)"
    )
    said = re.search(words, text) if places else None
    names = re.split(r",\s+|\s+and\s+", said[1]) if said else []
    return frozenset(names) | {places.index(each) for each in names}


def _members(
    body: list[ast.stmt], classes: set[str], owner: str
) -> Iterator[tuple[str, Member]]:
    for node in body:
        found: list[Member] = []
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            declared = parse_type(node.annotation, classes, owner)
            found = [Member(node.target.id, "value", declared)]
        elif isinstance(node, ast.FunctionDef) and owner and node.name == "__init__":
            found = _attributes(node, classes, owner)
        elif isinstance(node, ast.FunctionDef) and not is_kernel(node):
            found = [_function(node, classes, owner)]
        for member in found:
            if not member.name.startswith("_"):
                yield member.name, member


def is_kernel(function: ast.FunctionDef) -> bool:
    """A Triton kernel is for its launcher alone; the learner's may be any other."""
    marks = (ast.unparse(mark).partition("(")[0] for mark in function.decorator_list)
    return any(mark.rpartition(".")[2] == "jit" for mark in marks)


def _attributes(init: ast.FunctionDef, classes: set[str], owner: str) -> list[Member]:
    """What `self.num_blocks: int = num_blocks` in a constructor declares."""
    return [
        Member(node.target.attr, "value", parse_type(node.annotation, classes, owner))
        for node in ast.walk(init)
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Attribute)
    ]


def _function(node: ast.FunctionDef, classes: set[str], owner: str) -> Member:
    marks = {ast.unparse(mark).rpartition(".")[2] for mark in node.decorator_list}
    returns = parse_type(node.returns, classes, owner) if node.returns else None
    kind = "value" if marks & {"property", "cached_property"} else "function"
    static = bool(marks & {"staticmethod", "classmethod"})
    return Member(node.name, kind, returns, static)


def parse_type(node: ast.expr, classes: set[str], owner: str) -> Declared | None:
    """The declared type; None if it is of a form that cannot be checked."""
    text = ast.unparse(node)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return parse_type(ast.parse(node.value, mode="eval").body, classes, owner)
    if isinstance(node, ast.Constant) and node.value is None:
        return Declared("None", (), text)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        parts = [parse_type(side, classes, owner) for side in (node.left, node.right)]
        return Declared("|", _all(parts), text) if None not in parts else None
    name = text.rpartition(".")[2]
    if isinstance(node, ast.Subscript):
        return _subscript(node, text, classes, owner)
    if name in SIMPLE or name in CONTAINERS or name in ("Any", "Tensor"):
        return Declared(name, (), text)
    if name == "object":
        return Declared("Any", (), text)
    if name == "Self":
        return Declared(owner, (), owner)
    return Declared(name, (), text) if name in classes else None


def _subscript(
    node: ast.Subscript, text: str, classes: set[str], owner: str
) -> Declared | None:
    base = ast.unparse(node.value).rpartition(".")[2]
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    open_ended = ast.unparse(parts[-1]) == "..."
    inner = [
        parse_type(part, classes, owner) for part in parts[: len(parts) - open_ended]
    ]
    if base not in (*CONTAINERS, "Optional") or None in inner:
        return None
    if base == "Optional":
        return Declared("|", (*_all(inner), Declared("None")), text)
    return Declared(base, _all(inner), text, open_ended)


def _all(parts: list[Declared | None]) -> tuple[Declared, ...]:
    return tuple(part for part in parts if part is not None)


def unknown(contract: Contract, what: str) -> UnknownNameError:
    return UnknownNameError(f"a test touches {what}, which {contract.path.name} lacks")
