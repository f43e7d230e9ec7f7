"""How a test can end other than by holding."""

import re
from dataclasses import dataclass
from typing import NoReturn

import pytest

_STUB = re.compile(r"exercise (\d+\.\d+): ")


class CheckFailed(pytest.fail.Exception):
    """A claim about the learner's code that does not hold.

    It is pytest's own Failed, which is no Exception: neither `raises(Exception)` nor
    `except Exception` in a test can swallow it.
    """

    def __init__(
        self,
        claim: str = "",
        expected: str = "",
        got: str = "",
        message: str = "",
        location: str | None = None,
    ) -> None:
        self.claim = claim
        self.expected = expected
        self.got = got
        self.message = message  # what happened, when it is more than a wrong value
        self.location = location  # the learner's file:line, if known
        super().__init__(message or f"{claim}: expected {expected}, got {got}", False)


class NotVerified(pytest.skip.Exception):
    """A test that cannot run on this machine; it is never counted as passed."""


@dataclass(frozen=True)
class LearnerError:
    """What is known about an exception that came out of the learner's code.

    The exception that a test sees carries it as its attribute `learner`.
    """

    call: str  # "pool.allocate()"; below a helper, the learner's function, "Pool.free"
    name: str  # its class, as the learner's file names it
    text: str
    location: str | None  # "…/ex04_free_list.py:57"
    line: str  # the source text there
    function: str = ""  # the learner's that raised it, "Pool.free"
    changed: tuple[str, ...] = ()  # an argument, what it was, what it is


def fail(
    claim: str = "",
    *,
    expected: str = "",
    got: str = "",
    message: str = "",
    location: str | None = None,
) -> NoReturn:
    """End the test: CheckFailed with these words."""
    raise CheckFailed(claim, expected, got, message, location)


def fail_change(call: str, change: tuple[str, ...]) -> NoReturn:
    """A call changed an argument: what it is called, what it was, what it is."""
    name, was, now = change
    claim = f"{call} leaves what it is given as it was"
    fail(claim, expected=f"{name} is {was}", got=f"{name} is {now} after the call")


def is_unsolved(error: BaseException) -> bool:
    """Whether this is a stub's own `raise NotImplementedError("exercise 4.1: …")`."""
    return isinstance(error, NotImplementedError) and str(error).startswith("exercise ")


def task_of_stub(error: BaseException) -> str:
    """Whose stub it is, "4.1"; "" if it does not say."""
    match = _STUB.match(str(error)) if is_unsolved(error) else None
    return match[1] if match else ""
