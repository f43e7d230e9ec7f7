"""The table of a bug hunt: what was caught, and who accused. Runs in the grader."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from course.grader import rewrite_history
from course.grader.failures import fail


class Hunted(NamedTuple):
    """One of those that the learner's function looked at."""

    does: str
    found: str | None  # what the function said; None if it found nothing
    hint: str = ""  # to a bug that was missed


def expect_all_caught(
    exercise: Any,
    function: str,
    noun: str,
    right: Sequence[Hunted],
    wrong: Sequence[Hunted],
) -> None:
    """Claim that each wrong one is found and no right one; the report has all rows."""
    accused = sum(each.found is not None for each in right)
    raised = sum(each.found is not None for each in wrong)
    if not accused and raised == len(wrong):
        return
    rows: list[tuple[str, int, str]] = []
    first: dict[str | None, int] = {}  # what was found -> the right one it accused
    for number, each in enumerate(right, 1):
        same = first.setdefault(each.found, number)
        found = each.found if same == number else f"the same as right {same}"
        told = f"ACCUSED, it {each.does}: {found}"
        verdict = "not accused" if each.found is None else told
        rows.append(("right", number, verdict))
    for number, each in enumerate(wrong, 1):
        if each.found is None:
            verdict = f"MISSED, {each.hint}" if each.hint else "MISSED"
        elif accused:  # the names of the bugs are for those who have found them
            verdict = "raised, as for a right one: that proves nothing"
        else:
            verdict = f"caught: {each.does}"
        rows.append(("bug", number, verdict))
    rewrite_history(exercise, _grouped(rows))
    what = f"wrong {noun}s made it raise" if accused else "bugs caught"
    fail(
        f"{function} catches all bugs and accuses nothing that is right",
        expected=f"{len(wrong)} of {len(wrong)} bugs caught, "
        f"0 of {len(right)} right ones accused",
        got=f"{raised} of {len(wrong)} {what}, "
        f"{accused} of {len(right)} right ones accused",
    )


def _grouped(rows: list[tuple[str, int, str]]) -> Iterator[str]:
    """One line where several in a row have the same verdict."""
    for (kind, verdict), group in groupby(rows, lambda row: (row[0], row[2])):
        numbers = [number for _, number, _ in group]
        last = f" … {numbers[-1]}" if len(numbers) > 1 else ""
        yield f"{kind} {numbers[0]}{last}".ljust(8) + f" {verdict}"
