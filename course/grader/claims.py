"""What tests say about values. The words of a claim are what a learner reads first.

Got and expected are compared here, in the grader, by exact type and value: `True` is
not 1, `1.0` is not 1, a tuple is not a list.
"""

import math
import sys
from collections import abc
from typing import Any, TypeVar

import pytest

from course.grader.errors import GraderError
from course.grader.failures import NotVerified, fail, fail_change, is_unsolved
from course.grader.history import rounded, shown
from course.grader.proxy import Callable, Exercise, Link, Proxy

AnyFunction = abc.Callable[..., Any]
Test = TypeVar("Test", bound=AnyFunction)


def task(task_id: str) -> abc.Callable[[Test], Test]:
    """Mark a test as one of those that decide the task with this id."""
    return pytest.mark.task(task_id)


def not_verified(reason: str) -> None:
    """Leave a test that cannot run here; it is reported as not verified."""
    raise NotVerified(reason)


def in_worker(exercise: object, where: str, *args: object) -> Any:
    """Run the course's "module:function" beside the learner's live objects."""
    return _link_of(exercise).helper(where, args)


def measured(
    exercise: object, where: str, *args: object, names: abc.Iterable[str]
) -> Any:
    """The same for a helper that measures: a dict with one number for each of names.

    No measurement is none: the test fails if one lacks, is negative, or if all are 0.
    """
    numbers = in_worker(exercise, where, *args)
    wanted = sorted(names)
    is_whole = sorted(numbers) == wanted and min(numbers.values()) >= 0
    expect_that(
        is_whole and max(numbers.values()) > 0,
        f"{', '.join(wanted)} can be measured",
        got=numbers,
        expected="a number for each of them, and not all of them 0",
    )
    return numbers


def rewrite_history(exercise: object, lines: abc.Iterable[str] = ()) -> None:
    """Let the report tell these lines instead of the calls so far.

    For a test of many small cases, of which only the last matters; or of a race, which
    one call to a helper does not tell.
    """
    history = _link_of(exercise).history
    history.clear()
    for line in lines:
        history.add(line)


def _link_of(exercise: object) -> Link:
    if not isinstance(exercise, Exercise):
        raise GraderError("the first argument must be the fixture `exercise`")
    return exercise._link


def expect(got: object, expected: object, claim: str) -> None:
    """Claim that got has exactly the type and value of expected."""
    if not same(got, expected):
        note = "" if shown(got) != shown(expected) else _type_note(got, expected)
        fail(claim, expected=shown(expected), got=shown(got) + note)


def expect_that(condition: bool, claim: str, *, got: object, expected: str) -> None:
    """Claim a property; expected says in words what got should have been."""
    if type(condition) is not bool:
        raise GraderError(f"expect_that({claim!r}): the condition is not a bool")
    if not condition:
        fail(claim, expected=expected, got=shown(got))


def expect_raises(  # noqa: RET503 (fail() does not return)
    error_type: type[Exception],
    call: AnyFunction,
    *args: object,
    claim: str,
    **kwargs: object,
) -> str:
    """Claim that a call raises error_type (or a subclass); the error's message."""
    expected = f"the call raises {error_type.__name__}"
    try:
        if isinstance(call, Callable):  # no matter what it returns instead
            result = call._link.call(call, args, kwargs, checked=False)
        else:
            result = call(*args, **kwargs)
    except Exception as error:
        learner = getattr(error, "learner", None)
        if learner is None or is_unsolved(error):
            raise  # a bug of the test, or a task that is not solved yet
        if isinstance(error, error_type) and learner.changed:
            fail_change(f"{learner.call}, an error,", learner.changed)
        if isinstance(error, error_type):
            return learner.text
        got, location = f"{learner.name}: {learner.text}", learner.location
    else:
        location = None
        got = f"it returned {shown(result)}, without an error"
    fail(claim, expected=expected, got=got, location=location)


def expect_close(
    got: object, expected: object, claim: str, *, atol: float, rtol: float = 0.0
) -> None:
    """Claim that floats or tensors agree: |got - expected| <= atol + rtol * |expected|.

    Tensors must agree in shape and dtype, and got must be finite wherever expected is,
    and NaN wherever expected is NaN.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(expected, torch.Tensor):
        _expect_close_tensors(torch, got, expected, claim, atol, rtol)
    elif not isinstance(got, int | float) or isinstance(got, bool):
        fail(claim, expected=shown(expected), got=shown(got))
    elif not isinstance(expected, int | float):
        raise GraderError(f"expect_close({claim!r}) compares numbers and tensors")
    elif not (got == expected or abs(got - expected) <= atol + rtol * abs(expected)):
        near = f" (within {atol + rtol * abs(expected):g})" if atol or rtol else ""
        wanted, came = _told_apart(expected, got)
        fail(claim, expected=wanted + near, got=came)


def _expect_close_tensors(
    torch: Any, got: Any, expected: Any, claim: str, atol: float, rtol: float
) -> None:
    if not isinstance(got, torch.Tensor):
        fail(claim, expected=shown(expected), got=shown(got))
    if got.dtype != expected.dtype or got.shape != expected.shape:
        fail(claim, expected=_kind_of(expected), got=_kind_of(got))
    wide = torch.float64
    difference = (got.to(wide) - expected.to(wide)).abs()
    excess = difference - (atol + rtol * expected.to(wide).abs())
    alike = (got == expected) | (got.isnan() & expected.isnan())
    excess = torch.where(alike, -1.0, excess).nan_to_num(nan=math.inf)
    if excess.numel() == 0 or excess.max() <= 0:
        return
    worst = int(excess.reshape(-1).argmax())
    index = [int(i) for i in torch.unravel_index(torch.tensor(worst), got.shape)]
    wrong = int((excess > 0).sum())
    off = float(difference.reshape(-1)[worst])
    values = expected.reshape(-1)[worst].item(), got.reshape(-1)[worst].item()
    wanted, came = _told_apart(*values)
    fail(
        claim,
        expected=f"{wanted} at {index}",
        got=f"{came} at {index}{'' if math.isnan(off) else f', off by {off:.2g}'}; "
        f"the worst of {wrong} wrong elements of {got.numel()}",
    )


def _told_apart(expected: float, got: float) -> tuple[str, str]:
    """Both numbers with 4 digits, or with all of them if it takes those to differ."""
    wanted, came = rounded(expected), rounded(got)
    alike = float(wanted) == float(came)  # 2001 and 2001.0 are the same to a reader
    return (repr(expected), repr(got)) if alike else (wanted, came)


def same(got: Any, expected: Any) -> bool:
    """Equal, and of the same types all the way down. NaN is the same as NaN."""
    if isinstance(got, Proxy) or isinstance(expected, Proxy):
        return bool(got == expected)  # which fails the test, and says why
    kind = type(expected)
    if type(got) is not kind:
        return False
    if kind in (list, tuple):
        return len(got) == len(expected) and all(map(same, got, expected))
    if kind is dict:
        return _typed(got) == _typed(expected) and all(
            same(got[key], value) for key, value in expected.items()
        )
    if kind is set:
        return _typed(got) == _typed(expected)
    if kind is float:
        return got == expected or (math.isnan(got) and math.isnan(expected))
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        return got.dtype == expected.dtype and torch.equal(got, expected)
    return bool(got == expected)


def _typed(keys: Any) -> set[Any]:
    """Keys with their types, since 1, True and 1.0 are equal as keys."""

    def typed(key: Any) -> Any:
        value = tuple(map(typed, key)) if isinstance(key, tuple) else key
        return type(key), value

    return set(map(typed, keys))


def _kind_of(tensor: Any) -> str:
    return f"tensor {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _type_note(got: object, expected: object) -> str:
    if type(got) is type(expected):
        return " (it differs in what is not shown)"
    return f" ({type(got).__name__}, not {type(expected).__name__})"
