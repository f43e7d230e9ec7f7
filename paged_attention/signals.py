"""How a command ends that is told to: Ctrl-C, SIGTERM, a closed terminal or pipe.

For `python -m paged_attention` and `course` alike; imports nothing that takes time.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from types import FrameType

SOON = 0.01  # seconds


class SignalError(KeyboardInterrupt):
    """A signal; args has its number.

    A class of its own also because Python, once code in a string was left by a plain
    KeyboardInterrupt, ends as if by Ctrl-C, whatever exit code it is given.
    """


@contextlib.contextmanager
def signals_interrupt() -> Iterator[None]:
    """Let SIGTERM and a closed terminal do what Ctrl-C does: unwind, and clean up.

    An interrupt is lost if it comes within a callback of C code, as when an import or
    the collection of garbage calls one: Python reports it to a hook and goes on. And
    C++ code that initializes a module ends the process for it. So what was lost, and
    what comes at such a time, is raised a little later.
    """
    pending: list[KeyboardInterrupt] = []
    numbers: list[int] = []  # of the signals that came
    report = sys.unraisablehook

    def interrupt(number: int, frame: FrameType | None) -> None:
        numbers.append(number)
        pending[:] = [SignalError(number)]
        raise_pending(number, frame)

    def keep(unraisable: "sys.UnraisableHookArgs") -> None:
        cause = interrupt_in(unraisable.exc_value)
        if cause is None:
            report(unraisable)
            return
        pending[:] = [type(cause)(*cause.args)]
        signal.setitimer(signal.ITIMER_REAL, SOON)  # raised here, it would be lost

    def raise_pending(number: int, frame: FrameType | None) -> None:
        if _imports_torch(frame):
            signal.setitimer(signal.ITIMER_REAL, SOON)
        elif pending:
            raise pending.pop()

    usual = (signal.SIG_DFL, signal.default_int_handler)
    handlers = {
        number: interrupt
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) in usual  # nohup ignores one: so be it
    }
    handlers[signal.SIGALRM] = raise_pending
    before = {number: signal.signal(number, do) for number, do in handlers.items()}
    sys.unraisablehook = keep
    try:
        yield
        if pending:
            raise pending.pop()
    except KeyboardInterrupt as error:
        # A library that catches them may have raised another in its place.
        if numbers and not isinstance(error, SignalError):
            raise SignalError(numbers[0]) from error
        raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = report
        for number, do in before.items():
            signal.signal(number, do)


def _imports_torch(frame: FrameType | None) -> bool:
    """Whether this frame was called by the import of torch, most of which is C++."""
    while frame is not None:
        if (
            frame.f_globals.get("__name__") == "torch"
            and frame.f_code.co_name == "<module>"
        ):
            return True
        frame = frame.f_back
    return False


def interrupt_in(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt that an error is, or that it comes from."""
    # While we unwind, a closed terminal raises anew; an import wraps what ended it.
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def say_interrupted(error: KeyboardInterrupt) -> int:
    """The exit code that shells expect, after a line for whoever reads."""
    with contextlib.suppress(OSError):
        print("\ninterrupted", file=sys.stderr)
    return 128 + (error.args[0] if isinstance(error, SignalError) else signal.SIGINT)


def forget_reader() -> None:
    """When nothing more can be printed: a reader has left, as in `… | head`."""
    # Python flushes once more at its end, and would fail there again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
