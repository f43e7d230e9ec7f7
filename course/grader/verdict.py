"""How points come about: only from tests that this process saw run, and hold.

A task passes if there is at least one test of it, and every one was collected, was run
through set-up, call and tear-down, and raised nothing. Exit codes, printed output and
reports written by others play no part.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from course.grader.blame import followers
from course.grader.errors import GraderError, is_machines
from course.grader.explain import failure_of
from course.grader.failures import NotVerified
from course.grader.paper import Paper
from course.grader.plugin import CONVERSATION, EXAM, Exam
from course.grader.report import ExerciseResult, Failure, TaskResult
from course.manifest import Task

# How far a test came, and what the next phase that raises nothing makes of it.
_NEXT = {
    ("collected", "setup"): "set up",
    ("set up", "call"): "ran",
    ("ran", "teardown"): "held",
}


class TaskDecided(pytest.skip.Exception):
    """A further test of a task that has failed already."""


@dataclass
class Score:
    """What was seen of one task of one paper."""

    tests: dict[str, str] = field(default_factory=dict)  # node id -> how far it came
    failure: Failure | None = None
    not_verified: str = ""  # why a test could not run
    called: frozenset[str] = frozenset()  # by the test that failed

    def count(self, state: str) -> int:
        return list(self.tests.values()).count(state)


class Verdict:
    """A pytest plugin for one session; its results are read after it."""

    def __init__(self, exam: Exam) -> None:
        self._exam = exam
        self._scores: dict[tuple[Paper, str], Score] = {}
        self._score_of: dict[str, Score] = {}  # by node id
        self._is_retry = False
        self.error: GraderError | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[EXAM] = self._exam

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._stop(GraderError(f"tests cannot be collected:\n{report.longrepr}"))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Note what must be seen to hold; leave out tasks that are not asked for."""
        kept: list[pytest.Item] = []
        for item in items:
            try:
                paper, task_id = _address(item)
            except GraderError as error:
                self._stop(error)
                continue
            if task_id in [task.id for task in paper.tasks]:
                score = self._scores.setdefault((paper, task_id), Score())
                score.tests[item.nodeid] = "collected"
                self._score_of[item.nodeid] = score
                kept.append(item)
        items[:] = kept

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self.error is not None or self._score_of[item.nodeid].failure is not None:
            raise TaskDecided

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Iterator[object]:
        """Run a test once more that failed with the process that forks workers.

        Somebody may have ended that one from outside, or the system, short of memory.
        Where no walls hold, learner code can do so, too; then it does it again.
        """
        lost = self._exam.bench.num_lost
        done = yield
        score = self._score_of[item.nodeid]
        is_lost = self._exam.bench.num_lost > lost
        if is_lost and score.tests[item.nodeid] == "failed" and not self._is_retry:
            score.tests[item.nodeid], score.failure = "collected", None
            self._exam.bench.try_again(_address(item)[0])
            self._is_retry = True
            item.ihook.pytest_runtest_protocol(item=item, nextitem=nextitem)
            self._is_retry = False
        return done

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Iterator[None]:
        score = self._score_of[item.nodeid]
        if call.excinfo is not None:
            self._note_end(item, call.excinfo.value, score)
        else:
            state = score.tests[item.nodeid]
            score.tests[item.nodeid] = state = _NEXT.get((state, call.when), state)
            if state == "held":
                self._see_that_it_asked(item)
        return (yield)

    def _note_end(self, item: pytest.Item, error: BaseException, score: Score) -> None:
        if isinstance(error, GraderError):
            self._stop(error)
        elif is_machines(error):
            self._stop(GraderError(f"{type(error).__name__}: {error}"))
        elif isinstance(error, TaskDecided):
            score.tests[item.nodeid] = "not run"
        elif isinstance(error, NotVerified):
            score.tests[item.nodeid] = "not verified"
            score.not_verified = score.not_verified or str(error)
        elif isinstance(error, pytest.skip.Exception):
            self._stop(GraderError(f"{item.name} skips itself; see not_verified()"))
        else:
            score.tests[item.nodeid] = "failed"
            conversation = item.stash.get(CONVERSATION, None)
            if score.failure is None:
                score.failure = failure_of(item, error, conversation)
                score.called = frozenset(conversation.called if conversation else ())

    def _see_that_it_asked(self, item: pytest.Item) -> None:
        conversation = item.stash.get(CONVERSATION, None)
        if conversation is None or conversation.num_calls == 0:
            self._stop(GraderError(f"{item.name} never touches the exercise"))

    def _stop(self, error: GraderError) -> None:
        self.error = self.error or error

    def result(self, paper: Paper) -> ExerciseResult:
        """The paper's marks, once the session is over."""
        self._note_followers(paper)
        tasks = tuple(self._task_result(paper, task) for task in paper.tasks)
        problem, printed = self._exam.bench.load_problem(paper)
        stem, file = paper.chapter.exercise_stem, paper.file
        digest = self._exam.bench.snapshot.sha256(file)
        return ExerciseResult(stem, str(file), tasks, problem, printed, digest)

    def _note_followers(self, paper: Paper) -> None:
        failed = {
            task.id: score
            for task in paper.tasks
            if (score := self._scores.get((paper, task.id)))
            and score.failure is not None
            and not (score.failure.is_unsolved or score.failure.waits_for)
        }
        if len(failed) < 2:
            return
        found = followers(
            {task: score.called for task, score in failed.items()},
            paper.chapter.solution_path.read_text(encoding="utf-8"),
            self._exam.bench.snapshot.read(paper.file).decode("utf-8", "replace"),
        )
        for task, cause in found.items():
            score = failed[task]
            assert score.failure is not None, "only these are in failed"
            score.failure = replace(score.failure, follows=cause)

    def _task_result(self, paper: Paper, task: Task) -> TaskResult:
        score = self._scores.get((paper, task.id), Score())
        if not score.tests:
            raise GraderError(f"task {task.id} has no test")
        held, unverified = score.count("held"), score.count("not verified")
        complete = held + unverified == len(score.tests)
        if score.failure is None and not complete:
            raise GraderError(f"task {task.id}: a test was neither held nor refuted")
        passed = complete and held > 0
        otherwise = "not verified" if complete else "failed"
        return TaskResult(
            task.id,
            task.title,
            task.points if passed else 0,
            task.points,
            "passed" if passed else otherwise,
            len(score.tests),
            unverified,
            score.failure,
            score.not_verified,
        )


def _address(item: pytest.Item) -> tuple[Paper, str]:
    """Whose answer a test is about, and to which task it belongs."""
    marks = list(item.iter_markers("task"))
    if len(marks) != 1:
        raise GraderError(f"{item.nodeid}: every test has exactly one @task")
    callspec = getattr(item, "callspec", None)
    if callspec is None or "exercise" not in callspec.params:
        raise GraderError(f"{item.nodeid}: every test uses the fixture `exercise`")
    paper: Paper = callspec.params["exercise"]
    task_id = marks[0].args[0]
    if task_id not in [task.id for task in paper.chapter.tasks]:
        raise GraderError(f"{item.nodeid}: the manifest has no task {task_id}")
    return paper, task_id
