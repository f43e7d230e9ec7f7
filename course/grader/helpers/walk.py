"""Random sequences of calls, and the smallest one that fails. Runs in the grader.

Hypothesis does it better, but importing it and asking it takes half a second, and a
verdict on exercise 04 is to come within two.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from course.grader.failures import CheckFailed

Call = tuple[Any, ...]
MOST_ATTEMPTS = 300  # to make a failing walk smaller


def walk(
    choices: Callable[[random.Random], Call],
    run: Callable[[Sequence[Call]], None],
    num_walks: int,
    length: int,
) -> None:
    """Run num_walks sequences of calls, always the same; short ones first.

    run makes new objects, does the calls, and lets CheckFailed escape. The first walk
    that fails is made smaller by leaving calls out, then run once more.
    """
    chance = random.Random(0)
    for number in range(1, num_walks + 1):
        calls = [choices(chance) for _ in range(max(2, length * number // num_walks))]
        try:
            run(calls)
        except CheckFailed:
            run(_smaller(run, calls))
            run(calls)
            raise  # it held this time: what was seen to fail has failed all the same


def _smaller(
    run: Callable[[Sequence[Call]], None], calls: Sequence[Call]
) -> Sequence[Call]:
    """Leave out halves, quarters, … single calls, for as long as it still fails."""
    attempts = 0
    size = len(calls) // 2
    while size:
        start = 0
        while start < len(calls) and attempts < MOST_ATTEMPTS:
            fewer = [*calls[:start], *calls[start + size :]]
            attempts += 1
            if _fails(run, fewer):
                calls = fewer
            else:
                start += size
        size //= 2
    return calls


def _fails(run: Callable[[Sequence[Call]], None], calls: Sequence[Call]) -> bool:
    try:
        run(calls)
    except CheckFailed:
        return True
    return False
