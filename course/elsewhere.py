"""Where each part of the package lives in vLLM, nano-vllm and transformers.

The list is elsewhere.toml; chapter 14 shows it. Names are looked up in source files,
so nothing is imported and nothing but the sources has to be there. Standard library
only.
"""

import argparse
import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from course.manifest import ROOT

OTHERS = ("vllm", "nano-vllm", "transformers")


@cache
def read() -> dict[str, Any]:
    """The list as it stands in the file: versions, and the parts in order."""
    text = (ROOT / "course" / "elsewhere.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


def table(group: str) -> str:
    """The parts of one group as a table in Markdown."""
    versions = read()["versions"]
    heads = ["", "here", *(f"{name} {versions[name]}" for name in OTHERS)]
    heads[2] = heads[2].replace("vllm", "vLLM")
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    for part in read()["part"]:
        if part["group"] == group:
            cells = [part["what"]]
            cells += [_cell(part[column]) for column in ("ours", *OTHERS)]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def missing(column: str, folder: Path) -> list[str]:
    """The listed names of one column that the sources in folder don't define."""
    return [
        f"{path}: {name}"
        for part in read()["part"]
        for place in part[column]
        for path, name in _names(place)
        if name not in _defined(folder / path)
    ]


def count(column: str) -> int:
    """How many names are listed in one column."""
    places = [place for part in read()["part"] for place in part[column]]
    return sum(1 for place in places for _ in _names(place))


def _cell(places: list[str]) -> str:
    """Each file once, with its names; short enough for a narrow column."""
    shown: list[str] = []
    for place in places:
        path, _, names = place.partition(": ")
        shown += [f"<code>{_breakable(name)}</code>" for name in names.split(", ")]
        shown.append(_breakable(path))
    return "<br>".join(shown) or "–"


def _breakable(name: str) -> str:
    """Where a narrow column may go on in the next line."""
    return re.sub(r"(?<=[/._])(?!py$)", "<wbr>", name)


def _names(place: str) -> Iterator[tuple[str, str]]:
    path, _, names = place.partition(": ")
    for name in names.split(", "):
        yield path, name


def _defined(path: Path) -> frozenset[str]:
    """Names at the top of a file, and members as Class.member; empty if it isn't there.

    Definitions under `if` and `try` count, for they are often chosen by platform.
    """
    if not path.is_file():
        return frozenset()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return frozenset(_names_in(tree.body, ""))


def _names_in(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield prefix + node.name
            yield from _names_in(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
        elif isinstance(node, ast.If | ast.Try):
            yield from _names_in(node.body, prefix)
            yield from _names_in(node.orelse, prefix)


def main() -> int:
    """Check columns against unpacked sources; 1 if a name is not there."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    for name in OTHERS:
        parser.add_argument(f"--{name}", dest=name, type=Path, metavar="FOLDER")
    folders = vars(parser.parse_args())
    num_missing = 0
    for name, folder in folders.items():
        if folder is not None:
            absent = missing(name, folder)
            num_missing += len(absent)
            print(f"{name}: {count(name) - len(absent)} of {count(name)} names found")
            print(*(f"  not there: {each}" for each in absent), sep="\n")
    return 1 if num_missing else 0


if __name__ == "__main__":
    raise SystemExit(main())
