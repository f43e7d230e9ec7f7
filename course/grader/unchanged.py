"""In the worker: what a call did to the arguments that it was given.

A call may keep what it is given, and read it; the caller still owns it. So values are
compared as they were sent and as they are after the call: lists, dicts and sets all the
way down, tensors by shape and bytes. Objects, the learner's or the grader's, change by
their methods and are only compared by identity.
"""

import inspect
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any

from course.grader.history import MAX_VALUE, rounded, shown

Change = tuple[str, str, str]  # what it is called, what it was, what it is


def is_open(wire: Any) -> bool:
    """Whether what crossed in this form can be changed by who gets it."""
    if type(wire) is not dict:
        return type(wire) is list
    is_container = not wire.keys().isdisjoint(("dict", "set", "tensor"))
    return is_container or any(map(is_open, wire.get("tuple", ())))


def first_change(
    function: Callable[..., Any], pairs: Iterable[tuple[int | str, Any, Any]]
) -> Change | None:
    """The first of (position or name, before, after) that is not the same any more."""
    for label, before, after in pairs:
        if found := _compare(before, after, ""):
            place, was, now = found
            texts = shown(before), shown(after)
            if texts[0] != texts[1] and max(map(len, texts)) < MAX_VALUE:
                place, (was, now) = "", texts  # short enough to be shown as a whole
            kind = type(before).__name__
            name = f"{_name_of(function, label)}{place}"
            # a tensor's text says by itself what it is
            return name if place or kind == "Tensor" else f"the {kind} {name}", was, now
    return None


def _name_of(function: Callable[..., Any], label: int | str) -> str:
    if isinstance(label, str):
        return label
    try:
        return list(inspect.signature(function).parameters)[label]
    except (IndexError, TypeError, ValueError):
        return f"argument {label + 1}"


def _compare(before: Any, after: Any, place: str) -> Change | None:
    """Where two values differ first, and what is there; None if nowhere."""
    changed = place, shown(before), shown(after)
    kind = type(before)
    if type(after) is not kind:
        return changed
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor:
        return _compare_tensors(torch, before, after, place)
    if kind is list or kind is tuple:
        parts = enumerate(zip(before, after, strict=False))
        found = (_compare(was, now, f"{place}[{i}]") for i, (was, now) in parts)
        return changed if len(before) != len(after) else next(filter(None, found), None)
    if kind is dict:
        if before.keys() != after.keys():
            return changed
        found = (_compare(before[k], after[k], f"{place}[{shown(k)}]") for k in before)
        return next(filter(None, found), None)
    if kind is float and math.isnan(before):
        return None if math.isnan(after) else changed
    if kind in (int, bool, str, float, bytes, set, type(None)):
        return None if before == after else changed
    return None if before is after or inspect.ismethod(before) else changed


def _compare_tensors(torch: Any, before: Any, after: Any, place: str) -> Change | None:
    if before.shape != after.shape or before.dtype != after.dtype:
        return place, shown(before), shown(after)
    wrong = (before != after) & ~(before.isnan() & after.isnan())
    if not wrong.any():
        return None
    index = [int(i) for i in wrong.nonzero()[0]]
    was, now = (rounded(each[tuple(index)].item()) for each in (before, after))
    return f"{place}{index}" if index else place, was, now
