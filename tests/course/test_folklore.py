"""The claims and their verdicts, as chapter 14 collects them from the chapters."""

import nbformat
import pytest

from course import folklore
from course.manifest import ROOT, load

CLAIMS = [f"F{number}" for number in range(1, 26)]

MANIFEST = """
[[chapter]]
id = "00"
name = "first"
title = "First"
question = "?"
goal = "."
prerequisites = []
minutes = 1
exercise = false
"""


@pytest.fixture
def course(tmp_path):
    """A course of one chapter; give its text."""
    (tmp_path / "course").mkdir()
    (tmp_path / "course" / "manifest.toml").write_text(MANIFEST)
    (tmp_path / "chapters" / "src").mkdir(parents=True)

    def write(text: str):
        (tmp_path / "chapters" / "src" / "00_first.md").write_text(text)
        return tmp_path

    return write


def test_each_claim_is_there_with_its_words_and_a_verdict():
    claims = folklore.claims()
    assert [claim.id for claim in claims] == CLAIMS
    for claim in claims:
        assert len(claim.text) > 20, claim.id
        assert claim.verdicts, claim.id


def test_each_row_of_a_chapters_table_agrees_with_its_verdict_boxes():
    assert folklore.unpaired() == []


def test_chapter_14_shows_the_verdicts_that_the_chapters_give_now():
    notebook = nbformat.read(load().chapter(14).notebook, as_version=4)
    shown = [
        output.data["text/markdown"]
        for cell in notebook.cells
        for output in cell.get("outputs", [])
        if "text/markdown" in output.get("data", {})
    ]
    advice = "a verdict has changed since it was built; run: course build 14"
    assert folklore.table(ROOT) in shown, advice


BOX = "> **Claim F1.** The sky is blue.\n\n> **Verdict F1: holds if** it is day.\n"


def test_a_claim_is_read_with_its_verdict_and_a_link(course):
    root = course(BOX + "\n| F1 the sky | holds by day |\n")
    assert "| F1 | The sky is blue. | [00](00_first.ipynb): holds by day |" in (
        folklore.table(root)
    )
    assert folklore.unpaired(root) == []


@pytest.mark.parametrize(
    "rows",
    ["", "| F1 the sky | wrong |\n", "| F1 a | holds |\n| F2 b | holds |\n"],
    ids=["no row", "another verdict", "no box"],
)
def test_a_row_that_does_not_fit_the_boxes_is_told(course, rows):
    assert folklore.unpaired(course(f"{BOX}\n{rows}"))


def test_a_claim_without_a_verdict_is_open(course):
    root = course("> **Claim F1.** The sky is blue.\n\n| F1 sky | open: chapter 6 |\n")
    assert folklore.table(root).endswith("| F1 | The sky is blue. | open |")
    assert folklore.unpaired(root) == []
