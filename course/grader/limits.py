"""How long one call may take: the learner's own time is limited, not the machine's.

Two clocks can end a call. One counts the processor time of the worker and of its
children. The other counts sleep: time in which they neither ran nor waited for a
processor, and the grader did not either; a lock that is never given back, or `sleep`.
On a busy machine both stop, so the wall clock comes last and blames the machine.

Where the system does not tell these times (macOS), the wall clock alone is left.
"""

from dataclasses import dataclass

from course.grader.errors import GraderError

TOGETHER = 6  # all calls of one test get so many times what one call gets
ALL = 12  # and all tests of an exercise
STARVED = 60  # so many times that by the wall clock: the machine is busy
UNSEEN = 6  # the same, where nothing else can be seen
LONGEST_STEP = 1.0  # seconds; a machine that stood still between two looks adds no more


@dataclass(frozen=True)
class Look:
    """What was seen of a worker and its children at one moment, since its start."""

    too_much: str | None = None  # what is over a limit, in words
    cpu: float | None = None  # seconds of processor time; None where nothing tells
    delay: float | None = None  # seconds of waiting for a processor, and the grader's
    on_disk: bool = False  # whether one of them waits for a disk just now


class TooLateError(Exception):
    """A call used up its time; the message says which, and what may be the cause."""


class Stopwatch:
    """Measures the calls to one worker, each from the first look at it to the last."""

    def __init__(self) -> None:
        self._cpu_in_all = self._slept_before = self.cpu = self.slept = 0.0
        self.begin(0.0, 0.0)

    def begin(self, seconds: float, now: float) -> None:
        """A call that may take so many seconds."""
        self._slept_before += max(self.slept, 0.0)
        self.cpu = self.slept = 0.0
        self._seconds = seconds
        self._start = self._last = now
        self._seen: Look | None = None

    @property
    def spent(self) -> float:
        """Seconds that the worker has used so far, as far as they were seen."""
        return self._cpu_in_all + self._slept_before + max(self.slept, 0.0)

    def see(self, look: Look, now: float) -> None:
        """Count what has passed since the last look."""
        step = min(now - self._last, LONGEST_STEP)
        before, self._last = self._seen, now
        if look.cpu is None:
            return
        self._seen, self._cpu_in_all = look, max(look.cpu, self._cpu_in_all)
        if before is None or before.cpu is None:
            return
        # A child that ended takes its delay along: a sum may fall, a clock may not.
        ran = max(0.0, look.cpu - before.cpu)
        self.cpu += ran
        if look.delay is not None and before.delay is not None and not look.on_disk:
            self.slept += step - ran - max(0.0, look.delay - before.delay)

    def check(self, now: float) -> None:
        """TooLateError if the learner's time is up, GraderError if the machine's is."""
        seconds, wall = self._seconds, now - self._start
        if self.cpu > seconds:
            raise TooLateError(
                f"did not come back within {seconds:g} seconds of processor time: "
                "does a loop never end?"
            )
        if self.slept > seconds:
            raise TooLateError(
                f"did not come back: it has slept for {seconds:g} seconds. Does it "
                "wait for a lock that is never given back?"
            )
        if self.spent > TOGETHER * seconds:
            raise TooLateError(
                "was ended: with it, the calls of this test took more than "
                f"{TOGETHER * seconds:g} seconds"
            )
        is_seen = self._seen is not None and self._seen.delay is not None
        if not is_seen and wall > UNSEEN * seconds:
            raise TooLateError(
                f"did not come back within {UNSEEN * seconds:g} seconds: "
                "does a loop never end, or does it wait for a lock?"
            )
        if wall > STARVED * seconds:
            raise GraderError(
                f"this machine is busy: it gave the call {self.cpu:.1f} of the "
                f"{seconds:g} seconds that it may run, in {wall:.0f} seconds. "
                "Nothing was decided; run it again"
            )
