"""Where learner files meet workers: warm processes, one conversation per test."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course.grader import isolation
from course.grader.channel import Channel
from course.grader.contract import Contract, read
from course.grader.conversation import Conversation
from course.grader.errors import GraderError
from course.grader.explain import words_for
from course.grader.failures import CheckFailed
from course.grader.local import LocalLine
from course.grader.paper import Paper
from course.grader.warm import WarmPool, WarmProcess


class Bench:
    """Hands each test a fresh worker, and remembers files that cannot be loaded."""

    def __init__(self, warm: WarmPool | None) -> None:
        self._warm = warm  # None: learner code runs in this process
        self._did_not_load: dict[Paper, tuple[BaseException, Conversation]] = {}

    @contextmanager
    def open(self, paper: Paper) -> Iterator[Conversation]:
        """A conversation about paper, its file not yet loaded."""
        if paper in self._did_not_load:
            yield self._did_not_load[paper][1]
        elif self._warm is None:
            yield from _local(paper)
        else:
            yield from _remote(paper, self._warm.process(paper.chapter.preload))

    def load(self, paper: Paper, conversation: Conversation) -> None:
        """Load the learner's file; what went wrong once is not tried again."""
        if paper in self._did_not_load:
            raise self._did_not_load[paper][0].with_traceback(None)
        try:
            conversation.load()
        except GraderError:
            raise
        except (Exception, CheckFailed) as error:
            self._did_not_load[paper] = error, conversation
            raise

    def load_problem(self, paper: Paper) -> tuple[str | None, str]:
        """Why paper's file could not be loaded, if so, and what it printed then."""
        if paper not in self._did_not_load:
            return None, ""
        error, conversation = self._did_not_load[paper]
        return words_for(error), conversation.printed()


def _remote(paper: Paper, warm: WarmProcess) -> Iterator[Conversation]:
    contract = read(paper.chapter.solution_path)
    seconds = paper.chapter.call_seconds
    # Not with torch, whose threads would be kept on that processor, too.
    with isolation.one_cpu(not paper.chapter.preload) as cpu:
        worker = warm.fork(paper.files, {**_order(paper, contract), "cpu": cpu})
        line = Channel(worker.wire, warm.watch.look)
        try:
            yield Conversation(
                line, contract, seconds, lambda: warm.reap(worker), worker.printed
            )
        finally:
            warm.reap(worker, wait=False)


def _order(paper: Paper, contract: Contract) -> dict[str, Any]:
    """What a worker must know beside its files (see worker.py)."""
    return {
        "module": paper.chapter.exercise_stem,
        "refuses": list(paper.chapter.refuses),
        "classes": list(contract.classes),
    }


def _local(paper: Paper) -> Iterator[Conversation]:
    files = {name: (str(path), str(path)) for name, path in paper.files.items()}
    contract = read(paper.chapter.solution_path)
    line = LocalLine({"files": files, **_order(paper, contract)})
    try:
        seconds = paper.chapter.call_seconds
        yield Conversation(line, contract, seconds, lambda: 0, lambda: "")
    finally:
        line.close()
