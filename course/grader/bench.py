"""Where learner files meet workers: warm processes, one conversation per test."""

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from course.grader import isolation
from course.grader.channel import Channel
from course.grader.contract import Contract, read
from course.grader.conversation import Conversation
from course.grader.crossing import place_in_stack
from course.grader.errors import GraderError
from course.grader.exchange import Ending
from course.grader.explain import words_for
from course.grader.failures import CheckFailed, fail
from course.grader.limits import ALL, Stopwatch
from course.grader.local import LocalLine
from course.grader.paper import Paper, Snapshot
from course.grader.warm import WarmPool, WarmProcess, missing_module


class Bench:
    """Hands each test a fresh worker, and remembers files that cannot be loaded."""

    def __init__(self, warm: WarmPool | None, snapshot: Snapshot | None = None) -> None:
        self._warm = warm  # None: learner code runs in this process
        self.snapshot = snapshot or Snapshot()
        self._did_not_load: dict[Paper, tuple[BaseException, Conversation]] = {}
        self._spent: dict[Paper, float] = {}  # seconds of the learner's code, so far

    @contextmanager
    def open(self, paper: Paper, mode: str = "") -> Iterator[Conversation]:
        """A conversation about paper, its file not yet loaded; mode: of its kernels."""
        if paper in self._did_not_load:
            yield self._did_not_load[paper][1]
        elif self._warm is None:
            yield from _local(paper, self.snapshot)
        else:
            warm = self._warm.process(paper.chapter.preload, mode)
            before = self._spent.get(paper, 0.0)
            with _remote(paper, self.snapshot, warm, mode) as (conversation, watch):
                try:
                    yield conversation
                finally:
                    self._spent[paper] = before + watch.spent

    def cannot_run(self, paper: Paper, mode: str) -> str | None:
        """Why a test of paper cannot be run on this machine; None if it can."""
        if name := missing_module(paper.chapter.preload):
            where = ": it exists for Linux alone" if name == "triton" else ""
            return f"{name} is not installed here{where}"
        if mode == "gpu" and not importlib.import_module("torch").cuda.is_available():
            return "there is no CUDA GPU here"
        if self._warm is not None or "triton" not in paper.chapter.preload:
            return None
        if mode:
            return "it takes a process of its own"
        if os.environ.get("TRITON_INTERPRET") != "1":
            return "set TRITON_INTERPRET=1 before pytest starts, to debug kernels"
        return None

    def load(self, paper: Paper, conversation: Conversation) -> None:
        """Load the learner's file; what went wrong once is not tried again."""
        most = ALL * paper.chapter.call_seconds
        if self._spent.get(paper, 0.0) > most:
            fail(message=f"was not reached: the tests before it took {most:g} seconds")
        if paper in self._did_not_load:
            raise self._did_not_load[paper][0].with_traceback(None)
        try:
            conversation.load()
        except GraderError:
            raise
        except (Exception, CheckFailed) as error:
            self._did_not_load[paper] = error, conversation
            raise

    @property
    def num_lost(self) -> int:
        """How many workers ended because the process that forked them did."""
        return self._warm.num_lost if self._warm else 0

    def try_again(self, paper: Paper) -> None:
        """Forget that paper's file could not be loaded."""
        self._did_not_load.pop(paper, None)

    def load_problem(self, paper: Paper) -> tuple[str | None, str]:
        """Why paper's file could not be loaded, if so, and what it printed then."""
        if paper not in self._did_not_load:
            return None, ""
        error, conversation = self._did_not_load[paper]
        return words_for(error), conversation.printed()


@contextmanager
def _remote(
    paper: Paper, snapshot: Snapshot, warm: WarmProcess, mode: str
) -> Iterator[tuple[Conversation, Stopwatch]]:
    contract = read(paper.chapter.solution_path)
    seconds = paper.chapter.call_seconds * (3 if mode else 1)  # compilers take time
    # Not with torch, whose threads would be kept on that processor, too.
    with isolation.one_cpu(not paper.chapter.preload) as cpu:
        files = {n: (file, snapshot.read(file)) for n, file in paper.files.items()}
        worker = warm.fork(files, {**_order(paper, contract), "cpu": cpu})
        line = Channel(worker.wire, warm.watch.look)
        try:
            texts = {
                str(f): data.decode("utf-8", "replace") for f, data in files.values()
            }

            def end() -> Ending:
                status = warm.reap(worker, ask=True)
                return Ending(status, place_in_stack(worker.stack, texts))

            file = str(files[paper.module][0])
            conversation = Conversation(
                line, contract, seconds, end, worker.printed, file, texts[file]
            )
            yield conversation, line.stopwatch
        finally:
            warm.reap(worker, wait=False)


def _order(paper: Paper, contract: Contract) -> dict[str, Any]:
    """What a worker must know beside its files (see worker.py)."""
    return {
        "module": paper.module,
        "refuses": list(paper.chapter.refuses),
        "refused_to": paper.refused_to if paper.needs else {},
        "classes": list(contract.classes),
    }


def _local(paper: Paper, snapshot: Snapshot) -> Iterator[Conversation]:
    files = {name: (str(path), str(path)) for name, path in paper.files.items()}
    contract = read(paper.chapter.solution_path)
    line = LocalLine({"files": files, **_order(paper, contract)})
    try:
        seconds = paper.chapter.call_seconds
        text = snapshot.read(paper.file).decode("utf-8", "replace")
        yield Conversation(
            line, contract, seconds, Ending, lambda: "", str(paper.file), text
        )
    finally:
        line.close()
