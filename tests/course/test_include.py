"""Includes: definitions of the package, sliced for a chapter's cells."""

import pytest

from course.include import IncludeError, defined_names, expand, owned_names


def include(root, text, live=()):
    included = expand(f"# @include {text}", root, live)
    assert included is not None
    return included.source


def test_a_definition_keeps_its_comments_and_decorators(tiny_course):
    source = include(tiny_course, "paged_attention.pool.Pool")
    assert "# A pool with nothing to it.\n@dataclass\nclass Pool:" in source
    assert "# all of them are free" in source and "# ids" in source


def test_a_definition_is_headed_by_its_file(tiny_course):
    source = include(tiny_course, "paged_attention.pool.Pool")
    assert source.startswith("# paged_attention/pool.py\n")


def test_a_definition_brings_exactly_the_imports_it_needs(tiny_course):
    lines = include(tiny_course, "paged_attention.pool.Pool").splitlines()
    assert lines[1:6] == [
        "from dataclasses import dataclass, field",
        "from paged_attention.errors import OutOfBlocksError",
        "from paged_attention.pool import LIMIT",
        "",
        "",
    ]
    assert not any("collections" in line or "import os" in line for line in lines)


def test_what_an_earlier_cell_made_live_is_not_imported_over_it(tiny_course):
    text = "paged_attention.pool.count"
    assert "from paged_attention.pool import Pool" in include(tiny_course, text)
    assert "import Pool" not in include(tiny_course, text, live=["Pool"])


def test_an_excerpt_is_a_live_subclass_with_the_chosen_members(tiny_course):
    source = include(tiny_course, "paged_attention.pool.Pool: num_free, take")
    head = "class Pool(Pool):  # excerpt: num_free, take\n    # how many there are\n"
    assert head + "    @property\n    def num_free" in source
    assert "from paged_attention.pool import LIMIT" in source
    assert "from paged_attention.pool import Pool" in source
    assert "__post_init__" not in source and "dataclass" not in source


def test_a_second_excerpt_adds_to_the_first(tiny_course):
    source = include(tiny_course, "paged_attention.pool.Pool: take", live=["Pool"])
    assert "import Pool" not in source


def test_other_cells_are_no_includes(tiny_course):
    assert expand("print('# @include')", tiny_course) is None
    assert expand("", tiny_course) is None


@pytest.mark.parametrize(
    ("cell", "words"),
    [
        ("# @include paged_attention.pool.Missing", "defines no Missing"),
        ("# @include paged_attention.missing.Pool", "no module"),
        ("# @include os.path.join", "is not in paged_attention"),
        ("# @include paged_attention.errors.OutOfBlocksError", "imported, never"),
        ("# @include paged_attention.pool.Pool: missing", "no member missing"),
        ("# @include paged_attention.pool.count: x", "only a class"),
        ("# @include paged_attention.pool.Pool\nPool(2)", "stands alone"),
        ("x = 1\n# @include paged_attention.pool.Pool", "stands alone"),
    ],
)
def test_an_include_that_does_not_resolve_says_why(tiny_course, cell, words):
    with pytest.raises(IncludeError, match=words):
        expand(cell, tiny_course)


def test_the_package_owns_its_public_classes_and_functions(tiny_course):
    assert owned_names(tiny_course) == {
        "OutOfBlocksError": "paged_attention.errors",
        "Pool": "paged_attention.pool",
        "count": "paged_attention.pool",
    }


def test_defined_names_are_those_at_the_top_level():
    code = "import a\nb = 1\ndef c(): d = 2\nclass E:\n    f = 3\ng: int = 4\n"
    assert defined_names(code) == {"b": 2, "c": 3, "E": 4, "g": 6}
