"""Every chapter runs from its first cell to its last, whatever exercises/ holds."""

import pytest

from course.manifest import load
from course.notebooks import build_notebook

CHAPTERS = load().chapters


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_the_chapter_can_be_executed(chapter):
    build_notebook(chapter)
