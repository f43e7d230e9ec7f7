"""What must be true of a step: claims about a plan and a state that ex12.py tells."""

from collections.abc import Iterable
from typing import Any

from course.grader import expect, expect_that
from course.grader.failures import fail

Plan = dict[str, Any]
State = dict[str, Any]


def check_rows(plan: Plan, state: State, block_size: int) -> None:
    """Every flat list of the plan, derived anew from its rows and their sequences."""
    expected: dict[str, list[Any]] = {"token_ids": [], "positions": []}
    expected |= {"slot_mapping": [], "query_start_loc": [0]}
    expected |= {"seq_lens": [], "block_tables": []}
    for name, place, query_len in plan["scheduled"]:
        sequences = state["sequences"].get(name, [])
        if place < 0 or sequences[place]["block_ids"] is None:
            fail(
                "whoever is in the plan runs, and has a table",
                expected="rows of sequences that run",
                got=f"a row of {name}, which does not run",
            )
        one = sequences[place]
        start, stop = one["num_computed"], one["num_computed"] + query_len
        block_ids = one["block_ids"]
        claim = (
            f"the table of {name} has room for what is computed and {query_len} more"
        )
        expect(one["num_tokens"], stop, claim)
        expected["token_ids"] += one["token_ids"][start:stop]
        expected["positions"] += range(start, stop)
        expected["slot_mapping"] += [
            block_ids[position // block_size] * block_size + position % block_size
            for position in range(start, stop)
        ]
        expected["query_start_loc"].append(len(expected["token_ids"]))
        expected["seq_lens"].append(stop)
        expected["block_tables"].append(block_ids)
    for field, values in expected.items():
        expect(
            plan[field], values, f"plan.{field} of these rows: {rows_in_words(plan)}"
        )


def check_writes(plan: Plan, state: State, block_size: int) -> None:
    """Nobody writes where somebody else reads."""
    slots = plan["slot_mapping"]
    twice = sorted({slot for slot in slots if slots.count(slot) > 1})
    expect(twice, [], "slots that two tokens of one step are written to")
    for block_id in sorted({slot // block_size for slot in slots}):
        claim = f"block {block_id} is written, so one table alone holds it (ref_count)"
        expect(state["ref_counts"][block_id], 1, claim)


def check_groups(plan: Plan, state: State) -> None:
    """The sequences of a group make their next tokens in the same step."""
    makes: dict[str, list[bool]] = {}
    for (name, place, _), seq_len in zip(
        plan["scheduled"], plan["seq_lens"], strict=True
    ):
        length = len(state["sequences"][name][place]["token_ids"])
        makes.setdefault(name, []).append(seq_len == length)
    for name, made in makes.items():
        num_alive = len(alive(state, name))
        expect_that(
            sum(made) in (0, num_alive),
            f"all sequences of {name} make their next tokens in the same step",
            got=f"{sum(made)} of {num_alive} compute their newest token",
            expected="all of them or none",
        )


def check_made(before: State, state: State) -> None:
    """To plan a step changes the tokens of nobody."""
    for name, sequences in before["sequences"].items():
        for one, now in zip(sequences, state["sequences"][name], strict=True):
            claim = f"{name} ({now['status']}) keeps its prompt and what it has made"
            expect(now["token_ids"], one["token_ids"], claim)


def check_order(state: State, order: Iterable[str]) -> None:
    """order: the names of all requests, as they came."""
    waiting = ""
    for name in order:
        found = statuses(state, name) - {"finished"}
        expect_that(
            len(found) <= 1,
            f"the sequences of {name} run, leave and wait together",
            got=f"some are {' and some '.join(sorted(found))}",
            expected="one status for all of them",
        )
        if not waiting and {"waiting", "preempted"} & found:
            waiting = name
        expect_that(
            not (waiting and "running" in found),
            "first come, first served: nobody overtakes",
            got=f"{name} runs while {waiting} waits",
            expected=f"{waiting} runs first: it came before {name}",
        )


def check_counts(state: State, is_cached: bool) -> None:
    """Each block is counted once for each table that holds it, and free without one."""
    holders = [0] * len(state["ref_counts"])
    for block_id in state["held"]:
        holders[block_id] += 1
    for name, sequences in state["sequences"].items():
        for one in sequences:
            for block_id in one["block_ids"] or ():
                holders[block_id] += 1
            if one["status"] != "running":
                claim = f"{name} does not run ({one['status']}), so it has no table"
                expect(one["block_ids"], None, claim)
    in_use = sum(count > 0 for count in holders)
    expect(state["num_free"], len(holders) - in_use, "blocks that no table holds, free")
    for block_id, count in enumerate(holders):
        got = state["ref_counts"][block_id]
        if is_cached and got == count + 1:
            continue  # the cache is a holder, too, of what it knows
        claim = f"block {block_id}: its ref_count is the number of its holders"
        expect(got, count, claim)


def alive(state: State, name: str) -> list[dict[str, Any]]:
    return [s for s in state["sequences"][name] if s["status"] != "finished"]


def statuses(state: State, name: str) -> set[str]:
    return {one["status"] for one in state["sequences"].get(name, [])}


def rows_in_words(plan: Plan) -> str:
    """Who runs, and how many tokens of each."""
    rows = [f"{name} {query_len}" for name, _, query_len in plan["scheduled"]]
    return f"{listed(rows)} tokens" if rows else "no rows"


def others_in_words(before: State, state: State) -> str:
    """Who had to leave, and who waits."""
    names = state["sequences"]
    left = [
        name
        for name in names
        if "running" in statuses(before, name) and "preempted" in statuses(state, name)
    ]
    waits = [n for n in names if {"waiting", "preempted"} & statuses(state, n)]
    words = f"; {listed(left)} had to leave" if left else ""
    return words + (f"; waiting: {listed(waits)}" if waits else "")


def listed(words: Iterable[object]) -> str:
    *most, last = [str(word) for word in words] or [""]
    return f"{', '.join(most)} and {last}" if most else last
