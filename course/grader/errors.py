"""What goes wrong with the grader itself. Light: every part of it may import this."""

from collections.abc import Iterator
from contextlib import contextmanager


class GraderError(Exception):
    """The grader failed: a test that breaks its contract, or a broken set-up.

    It is never the learner's fault and ends the grading.
    """


def is_machines(error: BaseException) -> bool:
    """Whether the grader's own code lacked memory, files, processes or disk."""
    # What came from the learner's code says so (exchange.py).
    return isinstance(error, (OSError, MemoryError)) and "learner" not in vars(error)


@contextmanager
def as_own_failures() -> Iterator[None]:
    """What the grader's own code lacks is told in one line, as its failure."""
    try:
        yield
    except (OSError, MemoryError) as error:
        raise GraderError(f"{type(error).__name__}: {error}") from error


class UnknownNameError(GraderError, AttributeError):
    """A test touches a name that the exercise's contract does not have.

    Also an AttributeError, because tools ask any object for names of their own.
    """
