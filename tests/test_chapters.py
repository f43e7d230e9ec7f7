"""Every chapter runs from its first cell to its last."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from asked import asked

from course.manifest import ROOT, load
from course.notebooks import build_notebook
from course.stubs import write_stub
from paged_attention.model_files import ModelMissingError, model_path

CHAPTERS = load().chapters
NEED_MODEL = {"13_real_model"}
IN_SHORT = {
    "05_block_table",
    "14_from_here_to_vllm",
}  # `make proof` executes the others


def model_is_here() -> bool:
    try:
        return bool(model_path("smollm2"))
    except ModelMissingError:
        return False


def course_with_fresh_exercises(folder: Path) -> Path:
    """This repository by links, beside exercises that no learner has touched."""
    for name in ("course", "paged_attention", "solutions"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "chapters").mkdir()
    for entry in (ROOT / "chapters").iterdir():
        (folder / "chapters" / entry.name).symlink_to(entry)
    for chapter in load(folder).chapters:
        if chapter.exercise:
            write_stub(chapter.solution_path, chapter.exercise_path)
    return folder


@pytest.fixture(scope="module")
def builds(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Future]]:
    """The chapters, two at a time: a kernel keeps one core busy."""
    root = course_with_fresh_exercises(tmp_path_factory.mktemp("course"))
    with ThreadPoolExecutor(max_workers=2) as pool:
        stems = set(asked(request, "stem"))
        if not model_is_here():
            stems -= NEED_MODEL
        chapters = [c for c in load(root).chapters if c.stem in stems]
        yield {each.stem: pool.submit(build_notebook, each) for each in chapters}
        pool.shutdown(cancel_futures=True)


@pytest.mark.parametrize(
    "stem",
    [
        pytest.param(
            chapter.stem, marks=() if chapter.stem in IN_SHORT else pytest.mark.proof
        )
        for chapter in CHAPTERS
    ],
)
def test_the_chapter_can_be_executed(stem: str, builds: dict[str, Future]) -> None:
    if stem not in builds:
        pytest.skip("not verified: no model file; run: course get-model")
    builds[stem].result()
