"""Judges what `helpers.ex04.races` saw. Runs in the grader.

Two calls at the same time must act as if one had come after the other. Which of them
comes first, and which free blocks are handed out, is left open.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

Call = Sequence[Any]  # a method's name and its argument; numbers name blocks in use
_Done = tuple[str, Call, Sequence[Any]]  # its thread, the call, what came of it


class Problem(NamedTuple):
    """What neither order of the two calls explains."""

    expected: str
    got: str


class _NotAllowed(Exception):
    """An order of the two calls does not explain a run; what it would have led to."""

    def __init__(self, expected: str, got: str, results_agree: bool = False) -> None:
        super().__init__(expected, got)
        self.expected, self.got = expected, got
        self.results_agree = results_agree  # only the pool afterwards is another one


@dataclass(frozen=True)
class Race:
    """One run of two calls: what was in use before, and what came out."""

    num_blocks: int
    ref_counts: list[int]  # of the blocks in use before the race
    calls: tuple[Call, Call]
    run: dict[str, Any]

    def claim(self) -> str:
        first, second = map(self._text, self.calls)
        if not self.run["line"]:
            return f"{first}, then {second} in another thread"
        return f"{first} and {second} at once act like one after the other"

    def problem(self) -> Problem | None:
        """None if the calls, one after the other in some order, may end like this."""
        outcomes = self.run["first"], self.run["second"]
        both = [*zip("AB", self.calls, outcomes, strict=True)]
        for _, call, outcome in both:
            if outcome[0] == "raised" and "StuckError" in outcome[1]:
                return Problem(f"{self._text(call)} ends", f"it {outcome[2]}")
        orders = [both, both[::-1]] if self.run["line"] else [both]
        problems: list[tuple[str, _NotAllowed]] = []  # of each order, in words
        for order in orders:
            try:
                self._follow(order)
                return None
            except _NotAllowed as error:
                problems.append((f"{order[0][0]} comes before {order[1][0]}", error))
        return _nearest(problems, self._endings(both))

    def _endings(self, both: Sequence[_Done]) -> str:
        return "\n".join(
            f"{thread}: {self._text(call)}{_ending(outcome) or ' raised no error'}"
            for thread, call, outcome in both
        )

    def story(self) -> list[str]:
        """The run, step by step, for the history of the report."""
        first, second = map(self._text, self.calls)
        first_end, second_end = map(_ending, (self.run["first"], self.run["second"]))
        lines = [f"pool = FreeListAllocator({self.num_blocks})"]
        for block_id, count in zip(self.run["held"], self.ref_counts, strict=True):
            lines.append(f"block {block_id} is in use, ref_count {count}")
        if self.run["line"]:
            lines += [
                f"thread A: {first} stops before a step of line {self.run['line']}:",
                f"              {self.run['source']}",
                f"thread B: {second}{second_end}",
                f"thread A: {first} goes on{first_end}",
            ]
        else:
            lines += [
                f"thread A: {first}{first_end}",
                f"thread B: {second}{second_end}",
            ]
        return lines

    def _follow(self, order: Sequence[_Done]) -> None:
        """Raise _NotAllowed unless this order explains everything."""
        holders = [0] * self.num_blocks
        for block_id, count in zip(self.run["held"], self.ref_counts, strict=True):
            holders[block_id] = count
        for thread, call, outcome in order:
            holders = self._after(holders, thread, call, outcome)
        self._compare_with(holders)

    def _after(
        self, holders: list[int], thread: str, call: Call, outcome: Sequence[Any]
    ) -> list[int]:
        """The holders of each block after a call that had the pool to itself."""
        text, wanted = f"{thread}'s {self._text(call)}", self._ids(call)
        free = _places_of_zero(holders)
        takes = call[0].startswith("allocate")
        n = call[1] if takes and len(call) == 2 else 1
        if takes:
            error = "OutOfBlocksError" if n > len(free) else None
        else:
            lacks = any(wanted.count(i) > holders[i] for i in wanted)
            refusal = "ValueError" if call[0] == "share" else "DoubleFreeError"
            error = refusal if lacks else None
        raised = outcome[1] if outcome[0] == "raised" else []
        if error not in raised if error else raised:
            ending = f"raises {error}" if error else "raises no error"
            got = _ending(outcome) if raised else " raised no error"
            raise _NotAllowed(f"{text} {ending}", f"{text}{got}")
        if error:
            return holders
        if takes:
            wanted = outcome[1] if call[0] == "allocate_many" else [outcome[1]]
            is_list = type(wanted) is list and all(type(i) is int for i in wanted)
            if not is_list or len(set(wanted)) != n or not set(wanted) <= set(free):
                count = "a block" if call[0] == "allocate" else f"{n} blocks"
                expected = f"{text} gives {count} out of {free}, which are free then"
                got = f"{text}{_ending(outcome)}, not free any more"
                raise _NotAllowed(expected, got)
        change = -1 if call[0].startswith("free") else 1
        return [count + change * wanted.count(i) for i, count in enumerate(holders)]

    def _compare_with(self, holders: list[int]) -> None:
        """What is seen of the pool afterwards must be what the holders say."""
        free = _places_of_zero(holders)
        if len(self.run["after"]) == 1:
            expected = "a pool that everybody can use after that"
            raise _NotAllowed(expected, self.run["after"][0], True)
        num_free, ref_counts, rest = self.run["after"]
        rest = sorted(rest) if all(type(i) is int for i in rest) else rest
        for what, expected, got in [
            ("ref_count of each block", holders, ref_counts),
            ("num_free", len(free), num_free),
            ("blocks that can be had after that", free, rest),
        ]:
            if got != expected:
                raise _NotAllowed(f"{what}: {expected}", f"{what}: {got}", True)

    def _ids(self, call: Call) -> list[int]:
        """The blocks that a call names."""
        if call[0].startswith("allocate"):
            return []
        places = call[1] if call[0] == "free_many" else [call[1]]
        return [self.run["held"][place] for place in places]

    def _text(self, call: Call) -> str:
        if call[0] in ("free", "share"):
            return f"{call[0]}({self._ids(call)[0]})"
        if call[0] == "free_many":
            return f"free_many({self._ids(call)})"
        return f"{call[0]}({', '.join(map(str, call[1:]))})"


def _nearest(problems: Sequence[tuple[str, _NotAllowed]], endings: str) -> Problem:
    """What is wrong, seen from the order that explains most; else from all of them."""
    for order, error in problems:
        if error.results_agree:
            as_when = f", as when {order}" * (len(problems) > 1)
            return Problem(error.expected + as_when, error.got)
    if len(problems) == 1:
        return Problem(problems[0][1].expected, problems[0][1].got)
    wanted = [f"if {order}, {error.expected}" for order, error in problems]
    return Problem("\n".join(wanted), endings)


def _ending(outcome: Sequence[Any]) -> str:
    if outcome[0] == "raised":
        return f" raised {outcome[1][0]}: {outcome[2]}"
    return "" if outcome[1] is None else f" -> {outcome[1]}"


def _places_of_zero(counts: list[int]) -> list[int]:
    return [place for place, count in enumerate(counts) if count == 0]
