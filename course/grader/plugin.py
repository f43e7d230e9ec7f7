"""The pytest plugin: `exercise` for tests, and whose file it stands for.

`pytest tests/exercises` runs the tests against the solutions. Who names test files of
exercises and nothing else is at work on them: then the learner's files are tested, as
with `--exercises`. `--target` names the solutions, a folder or a file. The first and
the last line say whose files were tested. With `--pdb`, or `--in-process`, the
learner's code runs in pytest's own process.

`course grade` adds a second plugin (verdict.py) that fixes the papers and keeps score.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from course.grader.bench import Bench
from course.grader.conversation import Conversation
from course.grader.errors import GraderError
from course.grader.explain import as_text, failure_of
from course.grader.failures import CheckFailed, NotVerified
from course.grader.paper import Paper, paper_in
from course.grader.proxy import Exercise
from course.grader.warm import WarmPool
from course.manifest import Manifest, load


class Exam:
    """Which papers each test file is run on, and the bench that runs them."""

    def __init__(self, papers: Sequence[Paper], bench: Bench) -> None:
        self.bench = bench
        self._papers: dict[Path, list[Paper]] = {}
        for paper in papers:
            self._papers.setdefault(paper.chapter.tests_path, []).append(paper)

    def papers_for(self, tests_path: Path) -> list[Paper]:
        return self._papers.get(tests_path, [])


FOLDERS = ("solutions", "exercises")
EXAM = pytest.StashKey[Exam]()
TARGET = pytest.StashKey[str]()  # one of FOLDERS, or a path
CONVERSATION = pytest.StashKey[Conversation]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("course", "whose exercises are tested")
    group.addoption(
        "--exercises",
        action="store_true",
        help="test the learner's files in exercises/ instead of the solutions",
    )
    group.addoption("--target", metavar="PATH", help="test this folder or file")
    group.addoption(
        "--in-process",
        action="store_true",
        help="run exercise code in this process (implied by --pdb)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "task(id): the task that a test decides")
    config.addinivalue_line("markers", "kernels(mode): what becomes of Triton kernels")
    if EXAM in config.stash:  # course grade brought its own
        return
    manifest = load()
    target = config.getoption("--target")
    if not target:
        mine = config.getoption("--exercises") or _names_exercises(config, manifest)
        target = "exercises" if mine else "solutions"
    root = manifest.chapters[0].root
    where = root / target if target in FOLDERS else Path(target)
    config.stash[TARGET] = target
    papers = [
        paper_in(where, chapter, manifest)
        for chapter in manifest.chapters
        if chapter.exercise
    ]
    warm = WarmPool()
    config.add_cleanup(warm.close)
    config.stash[EXAM] = Exam(papers, Bench(None if _in_process(config) else warm))


def _names_exercises(config: pytest.Config, manifest: Manifest) -> bool:
    """Whether the command line names test files of exercises and nothing else."""
    folder = config.invocation_params.dir
    named = {(folder / each.partition("::")[0]).resolve() for each in config.args}
    return named <= {chapter.tests_path for chapter in manifest.chapters}


def pytest_report_header(config: pytest.Config) -> str:
    return f"exercises: those of {config.stash[TARGET]}, {_whose(config)}"


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session) -> Iterator[None]:
    """After all that pytest prints: whose files were tested."""
    yield
    config = session.config
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None or TARGET not in config.stash:
        return
    reports = [report for each in terminal.stats.values() for report in each]
    ids = [each.nodeid for each in reports if isinstance(each, pytest.TestReport)]
    tests = dict.fromkeys(config.rootpath / each.partition("::")[0] for each in ids)
    files = [p.file for path in tests for p in config.stash[EXAM].papers_for(path)]
    if files:
        shown = (
            files[0] if len(files) == 1 else f"{len(files)} files of {files[0].parent}"
        )
        words = f"tested: {shown}, {_whose(config)}"
        terminal.write_line(words.replace(f"{load().chapters[0].root}/", ""))


def _whose(config: pytest.Config) -> str:
    ways = {
        "solutions": "not yours (to test yours: --exercises)",
        "exercises": "yours (to test the solutions: --target solutions)",
    }
    return ways.get(config.stash[TARGET], "as --target says")


def _in_process(config: pytest.Config) -> bool:
    return any(config.getoption(name, False) for name in ("--in-process", "usepdb"))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once per paper; for a lone one without a name, leave the id plain."""
    if "exercise" not in metafunc.fixturenames:
        return
    papers = metafunc.config.stash[EXAM].papers_for(metafunc.definition.path)
    if len(papers) > 1 or any(paper.variant for paper in papers):
        names = [paper.variant for paper in papers]
        metafunc.parametrize("exercise", papers, indirect=True, ids=names)


@pytest.fixture
def exercise(request: pytest.FixtureRequest) -> Iterator[Exercise]:
    """The learner's module, as an inert proxy; a fresh worker for every test."""
    exam = request.config.stash[EXAM]
    papers = exam.papers_for(request.path)
    if not papers:
        raise GraderError(f"{request.path.name} belongs to no exercise of the manifest")
    paper = getattr(request, "param", papers[0])
    mark = request.node.get_closest_marker("kernels")
    mode = mark.args[0] if mark else ""
    if reason := exam.bench.cannot_run(paper, mode):
        raise NotVerified(reason)
    with exam.bench.open(paper, mode) as conversation:
        request.node.stash[CONVERSATION] = conversation
        conversation.mode = mode
        exam.bench.load(paper, conversation)
        yield conversation.exercise
        conversation.finish()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Iterator[Any]:
    """Plain pytest shows what course grade would: history, expected, got."""
    report = yield
    error, target = (
        call.excinfo and call.excinfo.value,
        item.config.stash.get(TARGET, ""),
    )
    if error is None or not target:  # course grade lays it out itself
        return report
    debugging = _in_process(item.config)  # then the learner's own frames are wanted
    learner_raised = "learner" in vars(error) and not debugging
    if isinstance(error, CheckFailed) or learner_raised:
        failure = failure_of(item, error, item.stash.get(CONVERSATION, None))
        report.longrepr = as_text(failure, item, target)
    return report
