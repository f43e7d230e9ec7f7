"""Definitions of the package, sliced out of its files for a chapter's cells.

A cell of one line `# @include paged_attention.allocator.BlockAllocator` becomes that
definition: comments and decorators kept, headed by its file's name and by the imports
that it needs. `# @include …BlockAllocator: allocate, free` becomes an excerpt, a live
subclass of the imported class with these members alone. The package stays the only
place where a definition is typed. Standard library only; nothing is imported to slice.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "paged_attention"
INCLUDE = re.compile(r"^# @include\s+(?P<path>[\w.]+)(?:\s*:\s*(?P<members>.+))?$")
LONGEST = 60  # lines; what is longer than a cell should be two definitions

Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


class IncludeError(Exception):
    """An include that cannot be resolved; the message says what was looked for."""


@dataclass(frozen=True)
class Included:
    """The source of a cell that replaces an include."""

    source: str
    name: str  # what the cell defines


def expand(cell: str, root: Path, live: Iterable[str] = ()) -> Included | None:
    """The cell's replacement, or None if the cell is not an include.

    `live` are names that earlier cells of the chapter have defined by an include. They
    are not imported again, since that would undo what the reader changed in them.
    """
    lines = cell.strip().splitlines()
    if not any(line.lstrip().startswith("# @include") for line in lines):
        return None
    match = INCLUDE.match(lines[0]) if len(lines) == 1 else None
    if match is None:
        raise IncludeError(f"an include stands alone in its cell: {cell.strip()!r}")
    module = _Module.find(match["path"], root)
    if match["members"] is None:
        return _whole(module, module.definition(match["path"]), set(live))
    members = [name.strip() for name in match["members"].split(",")]
    return _excerpt(module, module.definition(match["path"]), members, set(live))


def _whole(module: "_Module", node: ast.stmt, live: set[str]) -> Included:
    name = _names_bound(node)[0]
    imports = module.imports_for([node], live | {name})
    source = _join(module.title, imports, module.slice(node))
    return Included(source, name)


def _excerpt(
    module: "_Module", node: ast.stmt, wanted: list[str], live: set[str]
) -> Included:
    if not isinstance(node, ast.ClassDef):
        raise IncludeError(f"only a class has members to choose: {module.name}")
    parts: list[ast.stmt] = []
    for name in wanted:
        found = [member for member in node.body if name in _names_bound(member)]
        if not found:
            raise IncludeError(f"{module.name}.{node.name} has no member {name}")
        parts.extend(found)
    imports = module.imports_for(parts, live | {node.name})
    if node.name not in live:
        imports.append(f"from {module.name} import {node.name}")
    head = f"class {node.name}({node.name}):  # excerpt: {', '.join(wanted)}"
    body = "\n\n".join(module.slice(part) for part in parts)
    return Included(_join(module.title, imports, f"{head}\n{body}"), node.name)


def _join(title: str, imports: list[str], definition: str) -> str:
    head = [title, *imports]
    # two blank lines where code stands before the definition, as a formatter would
    return "\n".join(head) + ("\n\n\n" if imports else "\n") + definition


class _Module:
    """One file of the package: its text, its definitions and its imports."""

    def __init__(self, name: str, path: Path, root: Path) -> None:
        self.name = name
        self.title = f"# {path.relative_to(root).as_posix()}"
        text = path.read_text(encoding="utf-8")
        self.lines = text.splitlines()
        self.tree = ast.parse(text)

    @classmethod
    def find(cls, dotted: str, root: Path) -> "_Module":
        """The module of paged_attention.module.Name."""
        name, _, _ = dotted.rpartition(".")
        if name.split(".")[0] != PACKAGE:
            raise IncludeError(f"{dotted} is not in {PACKAGE}")
        if name == f"{PACKAGE}.errors":
            raise IncludeError(f"errors are imported, never included: {dotted}")
        base = root.joinpath(*name.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.is_file():
                return cls(name, path, root)
        raise IncludeError(f"{dotted}: there is no module {name}")

    def definition(self, dotted: str) -> ast.stmt:
        wanted = dotted.rpartition(".")[2]
        for node in self.tree.body:
            if wanted in _names_bound(node):
                return node
        raise IncludeError(f"{self.name} defines no {wanted}")

    def slice(self, node: ast.stmt) -> str:
        """The node's lines, with its decorators and the comments right above it."""
        first = node.lineno
        if isinstance(node, Definition) and node.decorator_list:
            first = min(first, node.decorator_list[0].lineno)
        while first > 1 and self.lines[first - 2].strip().startswith("#"):
            first -= 1
        return "\n".join(self.lines[first - 1 : node.end_lineno])

    def imports_for(self, nodes: list[ast.stmt], known: set[str]) -> list[str]:
        """Import lines for the names that the nodes use, known ones left out."""
        used = {name.id for node in nodes for name in _names_in(node)} - known
        lines = list(self._import_lines(used))
        own = {name for node in self.tree.body for name in _names_bound(node)}
        if from_here := sorted(own & used):
            lines.append(f"from {self.name} import {', '.join(from_here)}")
        return lines

    def _import_lines(self, used: set[str]) -> Iterator[str]:
        for node in _imports(self.tree.body):
            if isinstance(node, ast.ImportFrom) and node.module == "__future__":
                yield ast.unparse(node)
                continue
            kept = [
                alias
                for alias in node.names
                if (alias.asname or alias.name.split(".")[0]) in used
            ]
            if not kept:
                continue
            if isinstance(node, ast.ImportFrom):
                source = self._absolute(node)
                yield ast.unparse(ast.ImportFrom(module=source, names=kept, level=0))
            else:
                yield ast.unparse(ast.Import(names=kept))

    def _absolute(self, node: ast.ImportFrom) -> str:
        if node.level == 0:
            return node.module or ""
        parents = self.name.split(".")[: -node.level]
        return ".".join([*parents, node.module] if node.module else parents)


def _imports(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Imports at the top of a module, those under `if TYPE_CHECKING` and try too."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If | ast.Try):
            yield from _imports(node.body)


def _names_in(node: ast.AST) -> Iterator[ast.Name]:
    return (child for child in ast.walk(node) if isinstance(child, ast.Name))


def _names_bound(node: ast.stmt) -> list[str]:
    """Names that a definition or an assignment binds where it stands."""
    if isinstance(node, Definition):
        return [node.name]
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return [t.id for t in targets if isinstance(t, ast.Name)]


def defined_names(code: str) -> dict[str, int]:
    """Names that code defines at its top level, each with its line."""
    return {
        name: node.lineno
        for node in ast.parse(code).body
        for name in _names_bound(node)
    }


def owned_names(root: Path) -> dict[str, str]:
    """Public classes and functions of the package, each with its module.

    Not those that draw: they are no part of the lesson, so their names are free.
    """
    owned: dict[str, str] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        if path.stem == "__main__" or "viz" in path.relative_to(root).parts:
            continue
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, Definition) and not node.name.startswith("_"):
                owned[node.name] = module.removesuffix(".__init__")
    return owned
