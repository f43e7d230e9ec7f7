"""Chapter 14's list of places in other engines: it names what is there."""

from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import pytest

from course import elsewhere
from course.manifest import ROOT


def installed() -> str | None:
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def test_every_place_of_ours_is_there():
    assert elsewhere.missing("ours", ROOT / "paged_attention") == []


@pytest.mark.skipif(
    installed() != elsewhere.read()["versions"]["transformers"],
    reason=f"not verified: transformers is {installed()}, the list is for another",
)
def test_every_place_in_transformers_is_there():
    spec = find_spec("transformers")
    assert spec is not None
    assert spec.origin is not None
    assert elsewhere.missing("transformers", Path(spec.origin).parent) == []


def test_a_name_that_is_not_there_is_told(tmp_path):
    absent = elsewhere.missing("nano-vllm", tmp_path)
    assert len(absent) == elsewhere.count("nano-vllm")
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "scheduler.py").write_text(
        "class Scheduler:\n    def schedule(self): ...\n"
    )
    found = {*absent} - {*elsewhere.missing("nano-vllm", tmp_path)}
    assert found == {"engine/scheduler.py: Scheduler.schedule"}


def test_a_table_has_a_row_for_each_part_of_its_group():
    parts = elsewhere.read()["part"]
    for group in {part["group"] for part in parts}:
        rows = elsewhere.table(group).splitlines()[2:]
        assert len(rows) == sum(part["group"] == group for part in parts)
        assert all(row.count("|") == 6 for row in rows)
