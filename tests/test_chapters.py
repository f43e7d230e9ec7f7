"""Every chapter runs from its first cell to its last."""

import os
import shutil
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from asked import asked

from course import notebooks
from course.manifest import ROOT, load
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
    """This repository by links, beside exercises that no learner has touched.

    A command `course` of its own works on them, and shows paths from this folder.
    """
    shutil.copytree(ROOT / "course", folder / "course")
    for name in ("paged_attention", "solutions", "tests", "pyproject.toml"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "bin").mkdir()
    command = folder / "bin" / "course"
    main = folder / "course" / "__main__.py"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{main}" "$@"\n')
    command.chmod(0o755)
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
    environment = notebooks.kernel_environment()
    environment["PATH"] = f"{root / 'bin'}{os.pathsep}{environment['PATH']}"
    with (
        ThreadPoolExecutor(max_workers=2) as pool,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(notebooks, "kernel_environment", lambda: environment)
        stems = set(asked(request, "stem"))
        if not model_is_here():
            stems -= NEED_MODEL
        chapters = [c for c in load(root).chapters if c.stem in stems]
        yield {
            each.stem: pool.submit(notebooks.build_notebook, each) for each in chapters
        }
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
