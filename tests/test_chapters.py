"""Every chapter runs from its first cell to its last, whatever exercises/ holds."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from course.manifest import Chapter, load
from course.notebooks import build_notebook

CHAPTERS = load().chapters


@pytest.fixture(scope="module")
def builds() -> Iterator[dict[Chapter, Future[str]]]:
    """All chapters, two at a time: a kernel keeps one core busy."""
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {chapter: pool.submit(build_notebook, chapter) for chapter in CHAPTERS}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda chapter: chapter.stem)
def test_the_chapter_can_be_executed(chapter, builds):
    builds[chapter].result()
