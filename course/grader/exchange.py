"""Requests to the worker, and the words for whatever comes back instead of a value.

Every failure leaves here as an exception: the learner's own error, rebuilt by name; or
CheckFailed, which no test can swallow, for a death, a deadline, bytes that are no
reply, a value that cannot cross. Once dead, an exchange stays dead.
"""

import os
import signal
from collections.abc import Callable
from typing import Any, NamedTuple, NoReturn, Protocol

from course.grader import codec
from course.grader.channel import (
    Answer,
    HungUpError,
    JunkError,
    TooMuchError,
)
from course.grader.codec import FromWire, UnfitError, UnwantedError
from course.grader.crossing import plain_text, rebuild
from course.grader.errors import GraderError
from course.grader.failures import LearnerError, fail, fail_change
from course.grader.hidden import MAX_CALLBACKS, HiddenObjects, TooManyCallbacksError
from course.grader.history import History
from course.grader.limits import TooLateError
from course.grader.report import PLAIN
from course.grader.worker import EXIT_BROKEN, EXIT_NO_MEMORY

Message = dict[str, Any]
Reply = tuple[Message, memoryview]


class Line(Protocol):
    """How requests reach the learner's code: in another process, or in this one."""

    def exchange(
        self, message: Message, blobs: list[bytes], seconds: float, answer: Answer
    ) -> Reply: ...


class Ending(NamedTuple):
    """How a worker ended, and where in the learner's code it was before."""

    status: int = 0  # a wait status
    place: list[Any] | None = None  # file, line, source text, function


class Exchange:
    """Requests to one worker, one after the other."""

    def __init__(self, line: Line, history: History, end: Callable[[], Ending]) -> None:
        self._line = line
        self._history = history
        self._end = end  # kills and reaps the worker
        self._dead: str | None = None
        self._died_at: str | None = None  # the learner's file:line, if known
        self._lost: GraderError | None = None  # the grader could not find out
        self.hidden = HiddenObjects()

    def finish(self, seconds: float) -> None:
        """See that nothing but replies came over the line."""
        if self._dead is None:
            self.request({"do": "end"}, [], "the end of the test", seconds)

    def request(  # noqa: RET503 (fail() does not return)
        self,
        message: Message,
        blobs: list[bytes],
        text: str,
        seconds: float,
        handle: FromWire | None = None,
    ) -> Any:
        """The value that comes back; text is the call as a test would write it."""
        if self._lost is not None:
            raise self._lost
        if self._dead is not None:
            fail(message=self._dead, location=self._died_at)
        self.hidden.start_call()
        outcome, body = self._outcome(message, blobs, text, seconds, handle)
        if outcome == "value":
            return body
        if outcome == "raised":
            error, data = body
            self._raise(error, data, text, message["do"] == "helper")
        if outcome == "machine":
            self._lose(text, body)
        # What is left are refusals: the worker lives on, but there is no value.
        self._history.add(text if outcome == "changed" else f"{text}: {body}")
        if outcome == "missing":
            fail(message=body)
        if outcome == "changed":
            fail_change(text, body)
        if outcome == "unfit":
            fail(f"{text} returns what can be compared", expected=PLAIN, got=body)
        fail(message=f"{text} {body} instead of returning")

    def _outcome(  # noqa: RET503
        self,
        message: Message,
        blobs: list[bytes],
        text: str,
        seconds: float,
        handle: FromWire | None,
    ) -> tuple[str, Any]:
        try:
            answer = self.hidden.answer
            reply, rest = self._line.exchange(message, blobs, seconds, answer)
            return _read(reply, rest, handle or _no_objects)
        except TooLateError as error:
            reason = str(error)
            if num_calls := self.hidden.num_calls:
                reason += f" (Of {MAX_CALLBACKS:,} calls that it may make on what it "
                reason += f"was given, it made {num_calls:,}.)"
            certain = False  # it may have ended, and a child have kept the line open
        except HungUpError:
            reason, certain = "", False
        except JunkError as error:
            reason = f"wrote to the grader's own connection ({error}); only the "
            reason += "values that it returns count"
            certain = True
        except TooMuchError as error:
            reason, certain = f"{error} and was ended", True
        except TooManyCallbacksError:
            reason = f"made more than {MAX_CALLBACKS:,} calls on what it was given, "
            reason += "which is the limit, and was ended: does a loop never end?"
            certain = True
        except GraderError as error:
            self._lose(text, str(error))
        except KeyboardInterrupt:  # a reply is under way that nobody will read
            self._dead = f"{text} was interrupted"
            raise
        self._history.add(f"{text}: no reply")
        status, place = self._end()
        # How the process ended says more than that it was silent: "crashed" or "exited"
        # in place of "did not come back". SIGKILL after a deadline was our own.
        if not certain and (not reason or os.WIFEXITED(status)):
            reason = _words_for_status(status)
        self._dead = f"{text} {reason}"
        if place is not None:
            file, number, line, _ = place
            self._died_at = f"{file}:{number}"
            self._dead += f"\nIt was at this line: {plain_text(line)}"
        fail(message=self._dead, location=self._died_at)

    def _lose(self, text: str, why: str) -> NoReturn:
        """End the conversation without a verdict."""
        function = text.partition("(")[0]  # all this is to be one line
        self._lost = GraderError(f"{function}: {why}")
        raise self._lost from None

    def _raise(
        self, error: Exception, data: Message, text: str, from_helper: bool
    ) -> None:
        name, message = plain_text(str(data["name"])), plain_text(str(data["text"]))
        location, line, call, function = None, "", text, ""
        if data["where"]:
            where = (plain_text(str(part)) for part in data["where"])
            file, number, line, function = where
            location = f"{file}:{number}"
            # Nobody knows a helper's name: say which function of the learner's it was.
            call = function if from_helper else text
        elif from_helper and isinstance(error, MemoryError):
            call = "your code"  # no memory was left to note where
        self._history.add(f"{text} raised {name}: {message}")
        changed = _change(data.get("changed"))
        learner = LearnerError(call, name, message, location, line, function, changed)
        vars(error)["learner"] = learner
        # In this process (pdb), a debugger opens where the learner's code failed.
        original = getattr(self._line, "last_error", None)
        raise error.with_traceback(original and original.__traceback__)


def _read(reply: Message, blobs: memoryview, handle: FromWire) -> tuple[str, Any]:
    """What kind of reply it is, and what it holds; JunkError if neither."""
    # What does not fit exactly one of these forms ends the conversation.
    try:
        ((outcome, body),) = reply.items()
        if outcome == "value":
            return outcome, codec.Reader(blobs, handle).decode(body)
        if outcome == "raised":
            return outcome, (rebuild(body), dict(body))
        if outcome == "changed":
            return outcome, _change(body)
        if outcome in ("missing", "unfit", "left", "machine"):
            return outcome, plain_text(str(body))
    except UnwantedError as error:
        return "unfit", str(error)
    except UnfitError as error:
        raise JunkError(str(error)) from error
    except (AttributeError, LookupError, TypeError, ValueError):
        pass
    raise JunkError("a reply that makes no sense")


def _change(body: Any) -> tuple[str, ...]:
    """(argument, what it was, what it is) as the worker sees it; () if none."""
    return tuple(plain_text(str(part)) for part in body or ())


def _no_objects(tag: str, body: object) -> object:
    raise UnfitError("an unknown kind of value")


def _words_for_status(status: int) -> str:
    """How a worker ended that was expected to reply."""
    if os.WIFEXITED(status):
        code = os.WEXITSTATUS(status)
        if code == EXIT_BROKEN:
            return (
                "broke the process that runs it: it patched a built-in, "
                "or closed a descriptor that was not its own"
            )
        if code == EXIT_NO_MEMORY:
            return (
                "used up the memory that an exercise may have, and the process that "
                "runs it ended: does a loop never end?"
            )
        return f"ended its process with exit code {code}, as os._exit({code}) does"
    number = os.WTERMSIG(status)
    name = signal.Signals(number).name
    if number == signal.SIGKILL:
        return f"was killed ({name}) or closed its connection to the grader"
    return f"crashed: {signal.strsignal(number)} ({name})"
