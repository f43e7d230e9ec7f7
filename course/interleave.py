"""Forces two calls into each other, opcode by opcode.

CPython switches threads so rarely inside straight-line code that an unlocked free list
can survive a stress test of millions of operations. Here nothing is left to luck: the
first call is stopped before its k-th opcode, the second runs in another thread, then
the first goes on; and that for every k. Each such run is one that threads may produce
by themselves, so what goes wrong here is a bug.

From Python 3.12 on `sys.monitoring` sees the opcodes: there `sys.settrace` misses those
of a function's first run. Each version of Python has opcodes of its own, so a count
holds for the version that ran.

A second call that waits for a lock which the first one holds is noticed and left
waiting: the first goes on, gives the lock back, and both end. Any kind of lock will do,
since what is looked at is whether the thread sleeps, not what it sleeps on.
"""

import linecache
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any, Generic, TypeVar

from course.grader.errors import GraderError

Subject = TypeVar("Subject")
Action = Callable[[Subject], Any]


@dataclass(frozen=True)
class _Patience:
    """When a thread is taken to wait: it is seen asleep in one place, so often.

    No clock decides: on a busy machine a thread that could run may have to wait long.
    """

    pause: float  # seconds between two looks
    looks: int  # in a row


_WAITS = _Patience(0.00001, 2)  # for a lock, perhaps of the other call
_STUCK = _Patience(0.05, 20)  # for a lock that no call gives back
_LOOKS_ELSEWHERE = 100  # where the system does not say which threads sleep

_COURSE = os.path.dirname(__file__) + os.sep  # nothing is stopped or counted in here
_KNOWN = compile("seen = True", "<known to run>", "exec")


class StuckError(Exception):
    """A call that waits for a lock although no other call is going on."""


@dataclass(frozen=True)
class Outcome:
    """What a call returned, or the exception that it raised."""

    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True)
class Interleaving(Generic[Subject]):
    """One run: where the first call was stopped and what came out."""

    subject: Subject
    opcode: int  # the first call was stopped before this one, counted from 1
    line: int  # … which belongs to this line of the file
    source: str  # the text of that line
    waited: bool  # the second call had to wait for a lock
    first: Outcome
    second: Outcome

    @property
    def is_stuck(self) -> bool:
        """Whether a call waits for ever: the pool is locked, or both wait in a ring."""
        outcomes = (self.first, self.second)
        return any(isinstance(outcome.error, StuckError) for outcome in outcomes)


def every_interleaving(
    make: Callable[[], Subject],
    first: Action[Subject],
    second: Action[Subject],
) -> Iterator[Interleaving[Subject]]:
    """Stop first(subject) before each of its opcodes in turn and run second(subject).

    Each run has a fresh subject from make(). Methods are called by a lambda,
    `lambda pool: pool.allocate()`; opcodes of the lambda itself and of files in course/
    don't count. A run in which a call is stuck (StuckError) is the last one.
    """
    _expect_to_see_opcodes()
    opcode = 1
    while run := run_paused(make, first, second, opcode):
        yield run
        if run.is_stuck:
            return
        opcode += 1


def run_paused(
    make: Callable[[], Subject],
    first: Action[Subject],
    second: Action[Subject],
    opcode: int,
) -> Interleaving[Subject] | None:
    """The run in which first is stopped before one opcode; None if it has fewer."""
    subject = make()
    stopped_at: tuple[int, str] | None = None
    waited = False

    def stop(frame: FrameType) -> None:
        nonlocal stopped_at, waited
        line = frame.f_lineno
        text = linecache.getline(frame.f_code.co_filename, line, frame.f_globals)
        stopped_at = line, text.strip()
        one.is_watching = True
        waited = other.start_and_watch(lambda: second(subject))
        one.is_watching = False

    counter = _OpcodeCounter(opcode, stop)
    with _thread() as one, _thread() as other:
        one.start(lambda: counter.run(lambda: first(subject), skip=first))
        outcome = one.join()
        if stopped_at is not None:
            line, text = stopped_at
            second_outcome = other.join()
        elif one.is_stuck:  # all by itself
            line, text, second_outcome = 0, "", Outcome()
        else:
            return None
        return Interleaving(
            subject, opcode, line, text, waited, outcome, second_outcome
        )


def one_after_the_other(
    make: Callable[[], Subject],
    first: Action[Subject],
    second: Action[Subject],
) -> Interleaving[Subject]:
    """The run in which first ends before second begins; its opcode and line are 0."""
    subject = make()
    with _thread() as one, _thread() as other:
        one.start(lambda: first(subject))
        outcome = one.join()
        waited = other.start_and_watch(lambda: second(subject))
        return Interleaving(subject, 0, 0, "", waited, outcome, other.join())


def in_another_thread(action: Callable[[], Any]) -> Outcome:
    """What came of action(), which has the error StuckError if it waits for ever."""
    with _thread() as other:
        other.start(action)
        return other.join()


def count_opcodes(action: Callable[[], Any]) -> int:
    """How many opcodes of Python action() executes; what C functions do is not seen.

    A measure of work that is the same in every run. Exceptions are passed on.
    """
    _expect_to_see_opcodes()
    counter = _OpcodeCounter()
    counter.run(action, skip=action)
    return counter.count


def _expect_to_see_opcodes() -> None:
    """Without this a Python that shows none would look like an answer without any."""
    counter = _OpcodeCounter()
    counter.run(lambda: exec(_KNOWN, {}), skip=exec)
    if counter.count == 0:
        version = sys.version.split()[0]
        raise GraderError(f"Python {version} shows no opcodes: none can be counted")


class _OpcodeCounter:
    """Runs an action in this thread, counts opcodes, calls stop at one of them."""

    def __init__(
        self, stop_at: int = 0, stop: Callable[[FrameType], None] | None = None
    ) -> None:
        self.count = 0
        self._stop_at = stop_at
        self._stop = stop
        self._skipped_code: object = None
        self._thread = self._tool = 0

    def run(self, action: Callable[[], Any], skip: Callable[..., Any]) -> Any:
        # A lambda only makes the call; stopping inside it would show nothing.
        code = getattr(skip, "__code__", None)
        if code is not None and code.co_name == "<lambda>":
            self._skipped_code = code
        if sys.version_info >= (3, 12):
            return self._run_monitored(action)
        return self._run_traced(action)

    def _run_traced(self, action: Callable[[], Any]) -> Any:
        before = sys.gettrace()
        # From here on every opcode counts, so nothing of our own may be called.
        sys.settrace(self._on_call)
        try:
            return action()
        finally:
            is_kept = sys.gettrace() == self._on_call
            sys.settrace(before)
            if not is_kept:
                raise RuntimeError("the call switched the tracing off (sys.settrace)")

    def _on_call(self, frame: FrameType, event: str, arg: object) -> Any:
        if not self._sees(frame.f_code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return self._on_opcode

    def _on_opcode(self, frame: FrameType, event: str, arg: object) -> Any:
        if event == "opcode":
            self._before_opcode(frame)
        return self._on_opcode

    if sys.version_info >= (3, 12):

        def _run_monitored(self, action: Callable[[], Any]) -> Any:
            self._thread = threading.get_ident()
            self._tool = _free_tool()
            monitoring, event = sys.monitoring, sys.monitoring.events.INSTRUCTION
            monitoring.register_callback(self._tool, event, self._on_instruction)
            monitoring.set_events(self._tool, event)
            try:
                return action()
            finally:
                monitoring.set_events(self._tool, 0)

        def _on_instruction(self, code: CodeType, offset: int) -> None:
            # Other threads are monitored as well.
            if threading.get_ident() != self._thread or not self._sees(code):
                return
            if self.count + 1 == self._stop_at:  # the last that matters
                sys.monitoring.set_events(self._tool, 0)
            self._before_opcode(sys._getframe(1))

    def _sees(self, code: CodeType) -> bool:
        is_ours = code.co_filename.startswith(_COURSE)
        return not is_ours and code is not self._skipped_code

    def _before_opcode(self, frame: FrameType) -> None:
        self.count += 1
        if self.count == self._stop_at and self._stop is not None:
            self._stop(frame)  # nothing is traced in here


if sys.version_info >= (3, 12):

    def _free_tool() -> int:
        """A debugger or a profiler may have some; one that is ours serves again."""
        get_tool, name = sys.monitoring.get_tool, "course.interleave"
        tool = next(tool for tool in range(6) if get_tool(tool) in (None, name))
        if get_tool(tool) is None:
            sys.monitoring.use_tool_id(tool, name)
        return tool


_idle_threads: list["_OtherThread"] = []  # starting one takes longer than a run


@contextmanager
def _thread() -> Iterator["_OtherThread"]:
    thread = _idle_threads.pop() if _idle_threads else _OtherThread()
    yield thread
    if not thread.is_stuck:
        _idle_threads.append(thread)


class _OtherThread:
    """A thread that is given one action at a time, and watched."""

    def __init__(self) -> None:
        self.is_stuck = False
        self.is_watching = False  # another thread: that is a reason to wait
        self._action: Callable[[], Any] = lambda: None
        self._outcome = Outcome()
        self._called = threading.Lock()  # free when there is something to do
        self._busy = threading.Lock()  # held until the action has ended
        self._status: int | None = None  # a descriptor; tells whether it sleeps
        self._called.acquire()
        # A daemon, since one that is stuck for ever must not keep the process alive.
        self._thread = threading.Thread(target=self._work, daemon=True)
        self._thread.start()

    def start(self, action: Callable[[], Any]) -> None:
        self._action = action
        self._outcome = Outcome()
        self._busy.acquire()
        self._called.release()

    def start_and_watch(self, action: Callable[[], Any]) -> bool:
        """Let the action run until it ends (False) or waits for a lock (True)."""
        self.start(action)
        return not self._ends(_WAITS)

    def _ends(self, patience: _Patience) -> bool:
        """Whether the action ends; it is enough that it does not seem to wait."""
        looks, last_place = 0, None
        while not self._busy.acquire(timeout=patience.pause):
            asleep, place = self._is_asleep(), self._place()
            moves = asleep is False or place != last_place or self.is_watching
            looks, last_place = (0 if moves else looks + 1), place
            most = _LOOKS_ELSEWHERE if asleep is None else patience.looks
            if looks >= most:
                return False
        self._busy.release()
        return True

    def join(self) -> Outcome:
        """What came out of the last action, once nothing holds it up any more."""
        if self._ends(_STUCK):
            return self._outcome
        self.is_stuck = True
        return Outcome(error=StuckError("waits for ever for a lock nobody gives back"))

    def _work(self) -> None:
        # Opened here, because only the thread itself knows its file by a name that is
        # right inside of containers as well.
        with suppress(OSError):
            self._status = os.open("/proc/thread-self/stat", os.O_RDONLY)
        while self._called.acquire():
            try:
                self._outcome = Outcome(self._action())
            except BaseException as error:  # SystemExit would vanish in a thread
                self._outcome = Outcome(error=error)
            self._busy.release()

    def _is_asleep(self) -> bool | None:
        """Whether the system says that the thread sleeps; None if it does not say.

        A thread that waits for the interpreter's lock sleeps as well, while we look.
        That is why its place has to stay the same between several looks, in between
        which that lock was free.
        """
        status = self._status
        if status is None:
            return None
        try:
            # "1234 (name) S …": the name may contain blanks and brackets.
            return os.pread(status, 200, 0).rpartition(b")")[2].split()[:1] == [b"S"]
        except OSError:
            return None

    def _place(self) -> tuple[int, int] | None:
        frame = sys._current_frames().get(self._thread.ident or 0)
        return None if frame is None else (id(frame), frame.f_lasti)
