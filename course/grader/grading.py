"""Grade files: one quiet pytest session in this process, for any number of papers."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from course.grader import isolation
from course.grader.errors import GraderError, as_own_failures
from course.grader.paper import Paper, Snapshot, paper_in
from course.grader.report import ExerciseResult, Failure, Report, TaskResult
from course.grader.warm import WarmPool, missing_module
from course.manifest import ROOT, load

if TYPE_CHECKING:
    import pytest

# Parts of pytest that a silent session does not need; they cost time or print.
_WITHOUT = (
    "cacheprovider",
    "terminal",
    "faulthandler",
    "junitxml",
    "logging",
    "doctest",
    "unraisableexception",  # it collects all garbage at the end of a session
)


def grade(
    exercise_ids: Sequence[str],
    target: Path,
    *,
    root: Path = ROOT,
    begin: Callable[[str], None] = lambda stem: None,
) -> Report:
    """Grade the answers in target, a folder, or a file if one exercise is asked for.

    begin is told the stem of each exercise whose tests begin.
    GraderError if the grader itself failed. Learner code cannot cause that.
    """
    manifest = load(root)
    chapters = [manifest.chapter(which) for which in exercise_ids]
    for chapter in chapters:
        if not chapter.exercise:
            raise ValueError(f"chapter {chapter.id} has no exercise")
    if Path(target).is_file() and len(chapters) != 1:
        raise ValueError(f"{target} is one file; name the one exercise that it answers")
    papers = [
        paper_in(Path(target), chapter, manifest, variant="learner")
        for chapter in chapters
    ]
    results, walls = grade_papers(papers, begin=begin)
    return Report(tuple(results), walls)


def grade_variants(
    exercise_id: str,
    variants: Mapping[str, Path],
    *,
    only: Mapping[str, str] | None = None,
    first: Mapping[str, str] | None = None,
    root: Path = ROOT,
) -> dict[str, ExerciseResult]:
    """Grade many answers to one exercise in one session; by name of the variant.

    What the exercise needs of earlier ones comes from the solutions. For a variant that
    is in `only`, just the task named there is graded. For one that is in `first`, the
    test named there comes before the others: if it fails, they need not run.
    """
    manifest = load(root)
    chapter = manifest.chapter(exercise_id)
    needs = paper_in(chapter.solution_path, chapter, manifest).needs
    asked = {name: frozenset([task]) for name, task in (only or {}).items()}
    papers = [
        Paper(chapter, Path(file).absolute(), needs, name, asked.get(name))
        for name, file in variants.items()
    ]
    results, _ = grade_papers(papers, first or {})
    return dict(zip(variants, results, strict=True))


@as_own_failures()
def grade_papers(
    papers: Sequence[Paper],
    first: Mapping[str, str] = MappingProxyType({}),
    begin: Callable[[str], None] = lambda stem: None,
) -> tuple[list[ExerciseResult], list[str]]:
    """Results in the order of papers, and the walls around the learner's code.

    first: variant -> the test of it that runs before the others.
    """
    _refuse_without_torch(papers)
    snapshot = Snapshot()
    problems = [paper.problem(snapshot) for paper in papers]
    sound = [
        paper
        for paper, problem in zip(papers, problems, strict=True)
        if problem is None
    ]
    warm = WarmPool()
    try:
        for paper in sound:
            _start(warm, paper)  # they import while pytest is imported
        graded = _run(sound, warm, snapshot, first, begin) if sound else {}
        walls = warm.walls
    except KeyboardInterrupt:
        warm.kill()  # nobody waits for what they still import
        raise
    finally:
        warm.close()
    results = [
        graded[paper] if problem is None else _without_tests(paper, problem, snapshot)
        for paper, problem in zip(papers, problems, strict=True)
    ]
    return results, walls


def _refuse_without_torch(papers: Sequence[Paper]) -> None:
    """Triton is not everywhere, so what lacks it is "not verified"; torch has to be."""
    needed = [name for paper in papers for name in paper.chapter.preload]
    if lacking := missing_module([name for name in needed if name == "torch"]):
        raise GraderError(f"{lacking} is not installed; to bring it: make setup")


def _start(warm: WarmPool, paper: Paper) -> None:
    """Start the processes that paper's tests are sure to need."""
    preload = paper.chapter.preload
    if missing_module(preload):
        return
    warm.process(preload)
    if "triton" in preload:
        warm.process(preload, "compile")


class _Order:
    """A pytest plugin: the tests in `first` run before the others of their variant."""

    def __init__(self, first: Mapping[str, str]) -> None:
        self._first = first

    def pytest_collection_modifyitems(self, items: "list[pytest.Item]") -> None:
        items.sort(key=lambda item: not self._is_first(item))

    def _is_first(self, item: "pytest.Item") -> bool:
        callspec = getattr(item, "callspec", None)
        paper = callspec.params.get("exercise") if callspec else None
        return paper is not None and (
            getattr(item, "originalname", "") == self._first.get(paper.variant)
        )


class _Begin:
    """A pytest plugin: says which exercise's tests begin."""

    def __init__(self, begin: Callable[[str], None]) -> None:
        self._begin = begin
        self._file = ""

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        file = nodeid.partition("::")[0]
        if file != self._file:
            self._file = file
            self._begin(Path(file).stem.removeprefix("test_"))


def _run(
    papers: Sequence[Paper],
    warm: WarmPool,
    snapshot: Snapshot,
    first: Mapping[str, str],
    begin: Callable[[str], None],
) -> dict[Paper, ExerciseResult]:
    import pytest

    from course.grader.bench import Bench
    from course.grader.plugin import Exam
    from course.grader.verdict import Verdict

    tests = list(dict.fromkeys(str(paper.chapter.tests_path) for paper in papers))
    verdict = Verdict(Exam(papers, Bench(warm, snapshot)))
    arguments = [
        *tests,
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-o", "addopts="),
        *("-p", "course.grader.plugin", "--import-mode=importlib", "--assert=plain"),
        *("--noconftest", "--disable-plugin-autoload", "--capture=sys"),
    ]
    arguments += [part for name in _WITHOUT for part in ("-p", f"no:{name}")]
    with _undisturbed(), isolation.unreadable_memory():
        code = pytest.main(arguments, plugins=[verdict, _Order(first), _Begin(begin)])
    if verdict.error is not None:
        raise verdict.error
    if code == pytest.ExitCode.INTERRUPTED:
        raise KeyboardInterrupt
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise GraderError(f"pytest ended with {code!r}")
    return {paper: verdict.result(paper) for paper in papers}


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Leave out what the caller's folder or environment would add to pytest."""
    path = list(sys.path)
    here = {"", os.getcwd()}
    sys.path[:] = [entry for entry in path if entry not in here]
    removed = {
        name: os.environ.pop(name)
        for name in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST")
        if name in os.environ
    }
    try:
        yield
    finally:
        sys.path[:] = path
        os.environ.update(removed)


def _without_tests(paper: Paper, problem: str, snapshot: Snapshot) -> ExerciseResult:
    """Every task failed, because there is nothing to run."""
    tasks = tuple(
        TaskResult(
            task.id,
            task.title,
            0,
            task.points,
            "failed",
            0,
            failure=Failure("", "there is an answer", message=problem),
        )
        for task in paper.tasks
    )
    return ExerciseResult(
        paper.chapter.exercise_stem,
        str(paper.file),
        tasks,
        problem,
        sha256=snapshot.sha256(paper.file),
    )
