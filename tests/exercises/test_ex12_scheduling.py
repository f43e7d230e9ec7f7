"""Exercise 12. The scheduler is the learner's; sequences, tables and pool are given.

They all live in the worker and are told as plain data (see helpers/stage.py). Tests of
a task use what tasks up to it ask for. Blocks hold 4 tokens, unless it is said
otherwise; which of them comes next is drawn.
"""

import itertools
import random
import re

from course.grader import expect, expect_raises, expect_that, rewrite_history, task
from course.grader.failures import fail, is_unsolved
from course.grader.helpers import step_books as books
from course.grader.helpers.fake_model import FakeMemory
from course.grader.helpers.stage import Stage
from course.grader.helpers.walk import walk


def tokens(num_tokens, first=10):
    return list(range(first, first + num_tokens))


def sequence(stage, name, place=0):
    return stage.state["sequences"][name][place]


def expect_status(stage, name, status, claim):
    expect(sequence(stage, name)["status"], status, f"status of {name}: {claim}")


def expect_admitted(stage, name, claim):
    got = stage.admit_next()
    if got is None and name is not None:  # None is a value like others here
        runs = name in stage.state["running"]
        what = "but it runs: is a `return` missing?" if runs else "and it still waits"
        fail(claim, expected=repr(name), got=f"None, {what}")
    expect(got, name, claim)


# 12.1


@task("12.1")
def test_what_a_group_owes(exercise):
    """Blocks of 4; a token more or less, from nothing to a full table."""
    for length, written, owed in [
        (1, 0, 1),
        (4, 0, 1),
        (5, 0, 2),
        (9, 4, 2),
        (8, 4, 1),
        (8, 3, 1),
        (4, 3, 0),
        (5, 4, 1),
        (6, 5, 0),
    ]:
        stage = Stage(exercise, 8)
        stage.place("A", tokens(length), written=[written])
        needed, has = -(-length // 4), -(-written // 4)
        claim = f"{length} tokens need {needed} blocks of 4, the table has {has}"
        expect(stage.owed_blocks("A"), owed, claim)


@task("12.1")
def test_every_sequence_of_a_group_owes(exercise):
    stage = Stage(exercise, 8)
    stage.place("A", tokens(9), tokens(5), tokens(6), written=[4, 4, 5])
    claim = "9, 5 and 6 tokens need 3, 2 and 2 blocks; the tables have 1, 1 and 2"
    expect(stage.owed_blocks("A"), 2 + 1 + 0, claim)


@task("12.1")
def test_nobody_waits(exercise):
    stage = Stage(exercise, 4)
    expect_admitted(stage, None, "nobody waits")
    stage.line_up("A", tokens(3))
    stage.admit_next()
    expect_admitted(stage, None, "the only one runs already")


@task("12.1")
def test_who_is_admitted_runs(exercise):
    stage = Stage(exercise, 4)
    stage.line_up("A", tokens(5))
    expect_admitted(stage, "A", "the group that was admitted")
    expect_status(stage, "A", "running", "it was admitted")
    one = sequence(stage, "A")
    expect(one["num_computed"], 0, "num_computed of A: nothing was cached")
    expect(one["block_ids"], [], "blocks of A: its table is there, and still empty")
    expect(stage.state["running"], ["A"], "scheduler.running")
    expect(stage.state["waiting"], [], "scheduler.waiting")


@task("12.1")
def test_first_come_first_served(exercise):
    stage = Stage(exercise, 8)
    for name in "ABC":
        stage.line_up(name, tokens(4))
    got = [stage.admit_next() for _ in range(4)]
    expect(got, ["A", "B", "C", None], "groups in the order in which they came")
    expect(stage.state["running"], ["A", "B", "C"], "scheduler.running, oldest first")


@task("12.1")
def test_the_whole_prompt_must_fit(exercise):
    for num_tokens, more in itertools.product((1, 4, 5, 8, 9, 12), (-1, 0)):
        needed = -(-num_tokens // 4)
        num_free = needed + more
        stage = Stage(exercise, 4)
        stage.hold(4 - num_free)
        stage.line_up("A", tokens(num_tokens))
        expected = "A" if num_free == needed else None
        claim = f"{num_tokens} tokens need {needed} blocks, {num_free} are free: A "
        claim += "is admitted" if expected else "has to wait"
        expect_admitted(stage, expected, claim)


def expect_nothing_changed(stage, before, name):
    claim = f"{name} was not admitted, so it has no table (None, not an empty one)"
    expect(sequence(stage, name)["block_ids"], None, claim)
    for what in ("waiting", "running", "num_free", "ref_counts"):
        claim = f"{name} was not admitted, so nothing has changed: {what}"
        expect(stage.state[what], before[what], claim)


@task("12.1")
def test_who_does_not_fit_stays_as_it_was(exercise):
    stage = Stage(exercise, 2)
    stage.line_up("A", tokens(9))
    before = stage.state
    expect_admitted(stage, None, "9 tokens need 3 blocks, 2 are free")
    expect_status(stage, "A", "waiting", "it was not admitted")
    expect_nothing_changed(stage, before, "A")


@task("12.1")
def test_nobody_overtakes(exercise):
    stage = Stage(exercise, 4)
    stage.hold(2)
    stage.line_up("A", tokens(9))
    stage.line_up("B", tokens(2))
    claim = "A is first and needs 3 blocks, 2 are free; B would fit, but may not "
    expect_admitted(stage, None, f"{claim}overtake A, so no group is admitted")
    stage.let_go()
    expect_admitted(stage, "A", "A is still the first to wait, and fits now")
    expect_admitted(stage, "B", "B comes after it")


@task("12.1")
def test_places_are_kept_for_all_that_a_group_may_have(exercise):
    """A request for n=3 begins with one sequence, and will need three places."""
    for max_seqs, expected in [(3, None), (4, "B"), (5, "B")]:
        stage = Stage(exercise, 8, max_seqs=max_seqs)
        stage.line_up("A", tokens(2), n=3, max_tokens=4)
        stage.line_up("B", tokens(2))
        expect_admitted(stage, "A", f"max_seqs is {max_seqs}, A may have 3")
        claim = f"A may have 3 sequences, B has 1, max_seqs is {max_seqs}: B "
        claim += "is admitted" if expected else "has to wait"
        expect_admitted(stage, expected, claim)
    stage = Stage(exercise, 8, max_seqs=3)
    stage.line_up("A", tokens(2))
    stage.line_up("B", tokens(2), n=3, max_tokens=4)
    stage.admit_next()
    claim = "A has 1 sequence, B may have 3, max_seqs is 3: B has to wait"
    expect_admitted(stage, None, claim)


@task("12.1")
def test_blocks_are_kept_for_prompts_that_are_computed_in_chunks(exercise):
    """A has 1 block of 3 so far; if B took its other two, B would leave soon after."""
    for num_blocks, expected in [(4, None), (5, "B")]:
        stage = Stage(exercise, num_blocks)
        stage.place("A", tokens(12), written=[4])
        stage.line_up("B", tokens(8))
        claim = f"B needs 2, A has 1 and owes 2, the pool has {num_blocks}: B "
        claim += "is admitted" if expected else "has to wait"
        expect_admitted(stage, expected, claim)


@task("12.1")
def test_who_was_just_admitted_owes_as_well(exercise):
    stage = Stage(exercise, 5)
    stage.line_up("A", tokens(12))
    stage.line_up("B", tokens(9))
    expect_admitted(stage, "A", "3 of 5 blocks")
    claim = "5 blocks are free, but A, which runs, owes 3; B needs 3: B has to wait"
    expect_admitted(stage, None, claim)


@task("12.1")
def test_cached_blocks_need_not_be_computed(exercise):
    stage = Stage(exercise, 4, caching=True)
    stage.remember(tokens(8))
    stage.line_up("A", tokens(9))
    expect_admitted(stage, "A", "2 blocks are cached, and 2 more are free")
    claim = "num_computed of A: its first 8 tokens were found in the cache"
    expect(sequence(stage, "A")["num_computed"], 8, claim)
    expect(sequence(stage, "A")["num_tokens"], 8, "tokens in the table of A")


@task("12.1")
def test_cached_blocks_that_nobody_holds_are_spent_when_they_are_found(exercise):
    """A pool of 3: two hits and a new block need all of it, and one is taken."""
    stage = Stage(exercise, 3, caching=True)
    stage.remember(tokens(8))
    stage.hold(1)
    stage.line_up("A", tokens(9))
    before = stage.state
    expect(before["num_free"], 2, "the two cached blocks can be had")
    claim = "the 2 free blocks are the hits themselves; for token 9 there is none: "
    claim += "A has to wait"
    expect_admitted(stage, None, claim)
    expect_nothing_changed(stage, before, "A")
    stage.let_go()
    expect_admitted(stage, "A", "now there is a third block")
    expect(sequence(stage, "A")["num_computed"], 8, "num_computed of A: 2 hits")


@task("12.1")
def test_cached_blocks_that_others_hold_cost_nothing(exercise):
    stage = Stage(exercise, 4, caching=True)
    stage.remember(tokens(8))
    stage.line_up("A", tokens(9))
    stage.line_up("B", tokens(10))
    expect_admitted(stage, "A", "2 hits, and a new block")
    claim = "B shares 2 blocks with A, which holds them; it takes the last free one"
    expect_admitted(stage, "B", claim)


@task("12.1")
def test_a_group_comes_back_as_a_whole(exercise):
    """It was preempted with two sequences of two blocks each."""
    for num_blocks, expected in [(3, None), (4, "A")]:
        stage = Stage(exercise, num_blocks)
        stage.place("A", tokens(6), tokens(7, 30), written=[0, 0], runs=False)
        before = stage.state
        claim = f"two sequences need 2 blocks each, the pool has {num_blocks}: A "
        claim += "is admitted" if expected else "has to wait"
        expect_admitted(stage, expected, claim)
        got = [one["status"] for one in stage.state["sequences"]["A"]]
        if expected:
            expect(got, ["running"] * 2, "status of both sequences")
            claim = "each of them has a table"
            tables = [one["block_ids"] for one in stage.state["sequences"]["A"]]
            expect(tables, [[], []], claim)
        else:
            expect(got, ["preempted"] * 2, "status of both sequences")
            expect_nothing_changed(stage, before, "A")


@task("12.1")
def test_a_group_that_does_not_fit_lets_go_of_all_that_it_found(exercise):
    stage = Stage(exercise, 3, caching=True)
    stage.remember(tokens(8))
    stage.place("A", tokens(9), tokens(9), written=[0, 0], runs=False)
    before = stage.state
    claim = "both sequences find 2 blocks cached and need a new one each, 1 is free: "
    claim += "A has to wait"
    expect_admitted(stage, None, claim)
    expect_nothing_changed(stage, before, "A")


@task("12.1")
def test_to_be_refused_often_costs_nothing(exercise):
    stage = Stage(exercise, 3, caching=True)
    stage.remember(tokens(8))
    stage.hold(1)
    stage.line_up("A", tokens(9))
    before = stage.state
    for _ in range(20):
        stage.admit_next()
    rewrite_history(exercise, ["admit_next() was called 20 times in vain"])
    expect_nothing_changed(stage, before, "A")


# 12.2


@task("12.2")
def test_the_budget_is_split_in_order(exercise):
    for to_compute, budget, query_lens in [
        ([5], 8, [5]),
        ([5], 5, [5]),
        ([5], 4, [4]),
        ([5], 1, [1]),
        ([5], 0, [0]),
        ([1], 1, [1]),
        ([1], 0, [0]),
        ([1, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 1], 2, [0, 0, 0]),
        ([3, 3], 6, [3, 3]),
        ([3, 3], 5, [2, 2]),
        ([3, 3], 4, [2, 2]),
        ([3, 3], 3, [2, 1]),
        ([3, 3], 1, [1, 0]),
        ([1, 4, 2], 6, [0, 3, 1]),
        ([1, 4, 2], 2, [0, 2, 0]),
    ]:
        rewrite_history(exercise)
        got = exercise.split_budget(to_compute, budget)
        claim = f"{to_compute} tokens to compute, a budget of {budget}: "
        claim += (
            "it is enough, so all are computed"
            if sum(to_compute) <= budget
            else "it is not enough for all, so no sequence computes its newest token; "
            "each in turn takes of the others what is left of the budget"
        )
        expect(got, query_lens, claim)


def expect_rows(stage, rows, why=""):
    """rows: (name, query_len) of each row that the plan should have."""
    got = [(name, query_len) for name, _, query_len in stage.plan["scheduled"]]
    claim = "rows of the plan, with the tokens of each (plan.scheduled)"
    expect(got, rows, f"{why}: {claim}" if why else claim)
    books.check_rows(stage.plan, stage.state, stage.block_size)
    books.check_writes(stage.plan, stage.state, stage.block_size)


@task("12.2")
def test_a_row_for_a_prompt(exercise):
    stage = Stage(exercise, 8)
    stage.place("A", tokens(6), written=[0])
    stage.new_plan()
    stage.add_row("A", 6)
    expect_rows(stage, [("A", 6)])


@task("12.2")
def test_a_row_begins_where_the_last_step_ended(exercise):
    for written, num_tokens in [(4, 3), (3, 5), (8, 1), (5, 1)]:
        stage = Stage(exercise, 8)
        stage.place("A", tokens(12), written=[written])
        stage.new_plan()
        stage.add_row("A", num_tokens)
        expect_rows(stage, [("A", num_tokens)])


@task("12.2")
def test_rows_stand_one_after_the_other(exercise):
    """A decode, a chunk in the middle of a prompt, a whole prompt."""
    stage = Stage(exercise, 8)
    stage.place("A", tokens(6), written=[5])
    stage.place("B", tokens(11, 30), written=[4])
    stage.place("C", tokens(3, 50), written=[0])
    stage.new_plan()
    for name, num_tokens in [("A", 1), ("B", 6), ("C", 3)]:
        stage.add_row(name, num_tokens)
    expect_rows(stage, [("A", 1), ("B", 6), ("C", 3)])


@task("12.2")
def test_new_blocks_at_the_end_of_a_table(exercise):
    for written, query_len, needed in [
        (0, 1, 1),
        (0, 4, 1),
        (0, 5, 2),
        (3, 1, 0),
        (3, 2, 1),
        (4, 1, 1),
        (4, 0, 0),
        (5, 3, 0),
        (5, 4, 1),
        (5, 0, 0),
    ]:
        stage = Stage(exercise, 8)
        stage.place("A", tokens(12), written=[written])
        claim = f"a table with {written} tokens in blocks of 4 gets {query_len} more"
        expect(stage.blocks_needed("A", [query_len]), needed, claim)


@task("12.2")
def test_a_shared_block_is_copied_by_all_writers_but_the_last(exercise):
    """Sequences with 6 tokens in the same two blocks, the second of them half full."""
    for query_lens, needed in [
        ([1, 1], 1),
        ([1, 0], 1),
        ([0, 1], 1),
        ([0, 0], 0),
        ([1, 1, 1], 2),
        ([0, 1, 1], 2),
        ([1, 0, 0], 1),
        ([2, 2], 1),
        ([3, 1], 2),
        ([3, 3], 3),
    ]:
        stage = Stage(exercise, 12)
        stage.place(
            "A",
            *[tokens(12)] * len(query_lens),
            written=[6] * len(query_lens),
            forked=True,
        )
        told = f"{len(query_lens)} sequences share 6 tokens and compute {query_lens}: "
        rule = "a new block beyond 8 tokens, and a copy for each that writes, but none "
        rule += "for the last one to hold the half full block"
        expect(stage.blocks_needed("A", query_lens), needed, told + rule)


@task("12.2")
def test_who_holds_a_block_outside_of_the_group_counts_as_well(exercise):
    for num_sequences in (1, 2):
        stage = Stage(exercise, 12)
        sequences = [tokens(12)] * num_sequences
        stage.place("A", *sequences, written=[6] * num_sequences, forked=True)
        stage.share("A")
        claim = f"{num_sequences} of A and somebody else hold a half full block, and "
        claim += "somebody else keeps it: each of A that writes copies it"
        needed = stage.blocks_needed("A", [1] * num_sequences)
        expect(needed, num_sequences, claim)


@task("12.2")
def test_who_computes_nothing_copies_nothing(exercise):
    stage = Stage(exercise, 12, token_budget=1)
    stage.place("A", tokens(7), tokens(8), tokens(8), written=[6, 6, 6], forked=True)
    stage.new_plan()
    expect(stage.plan_group("A"), True, "a copy for the second sequence, 10 are free")
    expect_rows(stage, [("A", 1)], "of a budget of 1 only the second sequence gets one")
    claim = "len(plan.copies): one sequence writes into the block that three hold"
    expect(len(stage.plan["copies"]), 1, claim)


@task("12.2")
def test_full_blocks_are_never_copied(exercise):
    stage = Stage(exercise, 12)
    stage.place("A", tokens(12), tokens(12), written=[8, 8], forked=True)
    claim = "two sequences share 2 full blocks: each needs a new one, nobody a copy"
    expect(stage.blocks_needed("A", [1, 1]), 2, claim)
    stage = Stage(exercise, 12)
    stage.place("A", tokens(12), tokens(12), written=[6, 6])
    claim = "two sequences with blocks of their own, half full"
    expect(stage.blocks_needed("A", [1, 1]), 0, claim)


@task("12.2")
def test_only_the_block_that_is_written_counts(exercise):
    """Both found the first block cached; their second ones are their own."""
    stage = Stage(exercise, 12, caching=True)
    stage.remember(tokens(4))
    for name, first in [("A", 50), ("B", 70)]:
        stage.line_up(name, tokens(4) + tokens(2, first))
        stage.admit_next()
    stage.new_plan()
    for name in "AB":
        stage.plan_group(name)
    claim = (
        "A and B share their first block, which is full: neither writes into it again"
    )
    for name in "AB":
        expect(stage.blocks_needed(name, [1]), 0, claim)


@task("12.2")
def test_a_prompt_within_the_budget(exercise):
    for length, written, budget, query_len in [
        (6, 0, 8, 6),
        (6, 0, 6, 6),
        (6, 0, 5, 5),
        (6, 5, 8, 1),
        (12, 4, 3, 3),
    ]:
        stage = Stage(exercise, 8, token_budget=budget)
        stage.place("A", tokens(length), written=[written])
        stage.new_plan()
        claim = f"{length} tokens, {written} of them computed, token_budget {budget}"
        expect(stage.plan_group("A"), True, claim)
        expect_rows(stage, [("A", query_len)])


@task("12.2")
def test_a_mixed_batch_shares_the_budget(exercise):
    """Two decodes, the end of a prompt, the beginning of one, and nothing for E."""
    stage = Stage(exercise, 12, token_budget=9)
    stage.place("A", tokens(9), written=[8])
    stage.place("B", tokens(7, 30), written=[6])
    stage.place("C", tokens(8, 50), written=[5])
    stage.place("D", tokens(12, 70), written=[2])
    stage.place("E", tokens(3, 90), written=[2])
    stage.new_plan()
    for name in "ABCDE":
        claim = f"{name} lacks no block, so True, also if the budget is used up"
        expect(stage.plan_group(name), True, claim)
    why = "A and B have 1 token to compute, C 3; of the budget of 9, 4 are left for D"
    expect_rows(stage, [("A", 1), ("B", 1), ("C", 3), ("D", 4)], why)
    expect(stage.plan["copies"], [], "copies: nothing is shared")


@task("12.2")
def test_a_group_waits_until_the_budget_is_enough_for_all(exercise):
    stage = Stage(exercise, 12, token_budget=3)
    stage.place("A", tokens(3), written=[2])
    stage.place("B", *[tokens(7, 30)] * 3, written=[6] * 3)
    stage.new_plan()
    expect(stage.plan_group("A"), True, "one token")
    claim = "2 tokens are left and B has 3 sequences: it waits, but lacks no block"
    expect(stage.plan_group("B"), True, claim)
    expect_rows(stage, [("A", 1)])
    claim = "tokens in the tables of B, of which none takes part"
    got = [one["num_tokens"] for one in stage.state["sequences"]["B"]]
    expect(got, [6, 6, 6], claim)


def expect_unchanged(stage, before, claim):
    expect(stage.plan["scheduled"], [], f"{claim}: plan.scheduled")
    expect(stage.plan["copies"], [], f"{claim}: plan.copies")
    for what in ("sequences", "num_free", "ref_counts"):
        expect(stage.state[what], before[what], f"{claim}: {what}")


@task("12.2")
def test_without_enough_blocks_nothing_is_done(exercise):
    for num_free in (0, 1, 2):
        stage = Stage(exercise, 8)
        stage.place("A", tokens(12), written=[3])
        stage.hold(7 - num_free)
        stage.new_plan()
        before = stage.state
        claim = f"9 more tokens need 2 more blocks, {num_free} are free"
        expect(stage.plan_group("A"), num_free == 2, claim)
        if num_free < 2:
            expect_unchanged(stage, before, "nothing has changed")
        else:
            expect_rows(stage, [("A", 9)])


@task("12.2")
def test_no_block_is_needed_in_a_full_pool(exercise):
    """3 -> 4 tokens need none, 4 -> 5 one, in blocks of 4."""
    for length, expected in [(4, True), (5, False)]:
        stage = Stage(exercise, 4)
        stage.place("A", tokens(length), written=[length - 1])
        stage.hold(3)
        stage.new_plan()
        claim = f"from {length - 1} to {length} tokens, and no block is free"
        expect(stage.plan_group("A"), expected, claim)


@task("12.2")
def test_a_group_takes_all_its_blocks_or_none(exercise):
    """Three sequences share a half full block: two copies, or nothing at all."""
    for num_free in (0, 1, 2):
        stage = Stage(exercise, 4)
        stage.place("A", *[tokens(7)] * 3, written=[6] * 3, forked=True)
        stage.hold(2 - num_free)
        stage.new_plan()
        before = stage.state
        claim = f"two of three sequences need a copy, {num_free} blocks are free"
        expect(stage.plan_group("A"), num_free == 2, claim)
        if num_free < 2:
            expect_unchanged(stage, before, "nothing has changed")
        else:
            expect_rows(stage, [("A", 1)] * 3)


@task("12.2")
def test_a_group_takes_copies_and_new_blocks_together(exercise):
    """The copy of the first is there, the new block of the second is not."""
    stage = Stage(exercise, 6)
    stage.place("A", tokens(9), tokens(9, 30), written=[7, 7], forked=True)
    stage.hold(2)
    stage.new_plan()
    before = stage.state
    claim = "from 7 to 9 tokens: each needs a new block, one a copy; 2 are free"
    expect(stage.plan_group("A"), False, claim)
    expect_unchanged(stage, before, "nothing has changed")


@task("12.2")
def test_copies_keep_what_was_written(exercise):
    """Two forks write; then each reads back its own tokens, on a fake model."""
    stage = Stage(exercise, 8)
    stage.place("A", [1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 9], written=[6, 6])
    stage.place("B", [1, 2, 3, 7], [1, 2, 3, 9], written=[3, 3], forked=True)
    memory = FakeMemory(8, 4)
    written = [one for name in "AB" for one in stage.state["sequences"][name]]
    for one in written:  # as an earlier step has done
        slots = [one["block_ids"][i // 4] * 4 + i % 4 for i in range(one["num_tokens"])]
        plan = {"copies": [], "scheduled": [("it", 0, len(slots))]}
        plan |= {"positions": list(range(len(slots))), "slot_mapping": slots}
        plan |= {"query_start_loc": [0, len(slots)]}
        plan |= {"token_ids": one["token_ids"], "block_tables": [one["block_ids"]]}
        memory.execute(plan)
    stage.new_plan()
    for name in "AB":
        expect(stage.plan_group(name), True, f"there are blocks for {name}")
    expect_rows(stage, [("A", 1), ("A", 1), ("B", 1), ("B", 1)])
    claim = "len(plan.copies): the two sequences of B share a half full block"
    expect(len(stage.plan["copies"]), 1, claim)
    memory.execute(stage.plan)
    for name, place in itertools.product("AB", (0, 1)):
        one = sequence(stage, name, place)
        memory.read(name, one["block_ids"], one["token_ids"])


# 12.3


@task("12.3")
def test_who_is_preempted_gives_back_its_blocks_and_keeps_its_tokens(exercise):
    stage = Stage(exercise, 6)
    stage.place("A", tokens(9), written=[8])
    before = sequence(stage, "A")["token_ids"]
    stage.preempt("A")
    one = sequence(stage, "A")
    expect(one["status"], "preempted", "status of A")
    expect(one["block_ids"], None, "the table of A, which had to leave")
    expect(one["num_computed"], 0, "num_computed of A: all is to be computed again")
    expect(one["token_ids"], before, "tokens of A: nothing that was made is lost")
    expect(stage.state["num_free"], 6, "free blocks, after A gave back its own")
    expect(stage.state["running"], [], "scheduler.running, after A had to leave")
    expect(stage.state["waiting"], ["A"], "scheduler.waiting, after A had to leave")


@task("12.3")
def test_a_group_leaves_as_a_whole(exercise):
    stage = Stage(exercise, 6)
    stage.place("A", tokens(7), tokens(7, 30), written=[6, 6], forked=True)
    stage.preempt("A")
    for i, one in enumerate(stage.state["sequences"]["A"]):
        whose = f"sequence {i} of A, which leaves as a whole"
        expect(one["status"], "preempted", f"status of {whose}")
        expect(one["block_ids"], None, f"the table of {whose}")
        expect(one["num_computed"], 0, f"num_computed of {whose}")
    expect(stage.state["num_free"], 6, "free blocks")


@task("12.3")
def test_who_had_to_leave_is_first_to_come_back(exercise):
    stage = Stage(exercise, 8)
    for name in "AB":
        stage.place(name, tokens(4), written=[3])
    stage.line_up("C", tokens(4))
    stage.preempt("B")
    expect(stage.state["waiting"], ["B", "C"], "scheduler.waiting: B came before C")
    expect(stage.state["running"], ["A"], "scheduler.running")
    stage.preempt("A")
    claim = "scheduler.waiting: A came before B"
    expect(stage.state["waiting"], ["A", "B", "C"], claim)


@task("12.3")
def test_all_that_run_are_planned_the_oldest_first(exercise):
    stage = Stage(exercise, 8, token_budget=4)
    stage.place("A", tokens(4), written=[3])
    stage.place("B", tokens(6, 30), written=[4])
    stage.place("C", tokens(5, 50), written=[3])
    stage.new_plan()
    expect(stage.continue_running(), [], "nobody had to leave: blocks are free")
    expect_rows(stage, [("A", 1), ("B", 2), ("C", 1)])
    expect(stage.state["running"], ["A", "B", "C"], "scheduler.running")


@task("12.3")
def test_nobody_runs(exercise):
    stage = Stage(exercise, 4)
    stage.line_up("A", tokens(2))
    stage.new_plan()
    expect(stage.continue_running(), [], "nobody runs, so nobody has to leave")
    expect_rows(stage, [])


@task("12.3")
def test_the_youngest_leaves(exercise):
    """A needs a block, none is free: C goes, which gives back one, and B stays."""
    stage = Stage(exercise, 3)
    stage.place("A", tokens(5), written=[4])
    stage.place("B", tokens(3, 30), written=[2])
    stage.place("C", tokens(3, 50), written=[2])
    stage.new_plan()
    claim = "A lacks one block; C, the youngest, has one, so C alone has to leave"
    expect(stage.continue_running(), ["C"], claim)
    expect_status(stage, "C", "preempted", "it had to leave")
    expect_rows(stage, [("A", 1), ("B", 1)], "C has made room for A, and B lacks none")
    expect(stage.state["waiting"], ["C"], "scheduler.waiting")


@task("12.3")
def test_as_many_leave_as_must_and_no_more(exercise):
    """A needs two blocks; C and D have one each."""
    stage = Stage(exercise, 5)
    stage.place("A", tokens(8), written=[0])
    stage.place("B", tokens(3, 30), written=[2])
    stage.hold(2)
    stage.place("C", tokens(3, 50), written=[2])
    stage.place("D", tokens(3, 70), written=[2])
    stage.line_up("E", tokens(2, 90))
    stage.new_plan()
    claim = "A lacks 2 blocks; D and C, the youngest, have one each: D leaves, then C"
    expect(stage.continue_running(), ["D", "C"], claim)
    expect_rows(stage, [("A", 8), ("B", 1)])
    claim = "scheduler.waiting, in the order in which they came"
    expect(stage.state["waiting"], ["C", "D", "E"], claim)


@task("12.3")
def test_who_lacks_blocks_and_is_the_youngest_leaves_itself(exercise):
    stage = Stage(exercise, 2)
    stage.place("A", tokens(4), written=[3])
    stage.place("B", tokens(5, 30), written=[4])
    stage.new_plan()
    expect(stage.continue_running(), ["B"], "B needs a block, and nobody is younger")
    expect_status(stage, "A", "running", "it is planned")
    expect_rows(stage, [("A", 1)])


@task("12.3")
def test_what_is_planned_is_not_preempted(exercise):
    """A gets the last block; then B lacks one. A's block is in the plan already."""
    stage = Stage(exercise, 4)
    stage.place("A", tokens(5), written=[4])
    stage.place("B", tokens(9, 30), written=[8])
    stage.new_plan()
    expect(stage.continue_running(), ["B"], "A is planned, so B itself has to leave")
    expect_rows(stage, [("A", 1)])


@task("12.3")
def test_copies_in_the_plan_are_of_those_that_run(exercise):
    """A group that leaves has planned no copy: its target may be another's by then."""
    stage = Stage(exercise, 4)
    stage.place("A", *[tokens(3)] * 2, written=[2, 2], forked=True)
    stage.place("B", tokens(3, 50), tokens(3, 70), written=[2, 2], forked=True)
    stage.hold(1)
    stage.new_plan()
    expect(stage.continue_running(), ["B"], "one block is free, both need a copy")
    expect_rows(stage, [("A", 1), ("A", 1)])
    copies = stage.plan["copies"]
    held = {b for one in stage.state["sequences"]["A"] for b in one["block_ids"]}
    expect(len(copies), 1, "len(plan.copies): of the two of A one copies")
    expect_that(
        set(itertools.chain(*copies)) <= held,
        "the copy is within the blocks of A",
        got=copies,
        expected=f"both of the blocks {sorted(held)}",
    )


@task("12.3")
def test_two_that_do_not_fit_together(exercise):
    """A pool of 4 blocks; A and B need 3 each in the end."""
    stage = Stage(exercise, 4)
    stage.line_up("A", tokens(5), max_tokens=6)
    stage.line_up("B", tokens(5, 30), max_tokens=6)
    stage.run()


@task("12.3")
def test_what_fills_the_pool_to_its_last_place_is_served(exercise):
    """The last token that is made takes no place: nothing is computed from it."""
    for length, max_tokens in [(16, 1), (14, 3), (1, 16), (13, 4)]:
        stage = Stage(exercise, 4)
        stage.line_up("A", tokens(length), max_tokens=max_tokens)
        stage.run()


@task("12.3")
def test_long_prompts_in_chunks(exercise):
    for budget in (8, 3, 1):
        stage = Stage(exercise, 9, token_budget=budget, max_seqs=3)
        for number, length in enumerate((9, 3, 7, 1)):
            stage.line_up("ABCD"[number], tokens(length, 20 * number), max_tokens=4)
        stage.run()


@task("12.3")
def test_groups_that_have_to_leave(exercise):
    """Their tables share blocks when they leave, and not when they come back."""
    for kind, caching in itertools.product(("n", "beam_width"), (False, True)):
        stage = Stage(exercise, 12, token_budget=7, max_seqs=7, caching=caching)
        stage.line_up("A", tokens(6), max_tokens=9)
        stage.line_up("B", tokens(6), max_tokens=7, **{kind: 3})
        stage.line_up("C", tokens(9), max_tokens=4, **{kind: 2})
        stage.run()


@task("12.3")
def test_who_waits_is_aborted(exercise):
    stage = Stage(exercise, 4)
    stage.hold(4)
    stage.line_up("A", tokens(5))
    stage.line_up("B", tokens(5))
    stage.step_in_vain()
    stage.abort("A")
    expect_aborted(stage, "A")
    expect(stage.state["waiting"], ["B"], "scheduler.waiting, after A was aborted")
    stage.let_go()
    stage.run()


@task("12.3")
def test_who_runs_is_aborted(exercise):
    """Half prefilled at first, then with all of its prompt, then with a token made."""
    for num_steps in (1, 2, 3):
        stage = Stage(exercise, 8, token_budget=6)
        stage.line_up("A", tokens(9), max_tokens=5)
        stage.line_up("B", tokens(5, 30), max_tokens=5)
        for _ in range(num_steps):
            stage.step()
        stage.abort("A")
        expect_aborted(stage, "A")
        stage.run()


def expect_aborted(stage, name):
    for one in stage.state["sequences"][name]:
        expect(one["status"], "finished", f"status of {name}, which was aborted")
        reason = one["finish_reason"] or "no reason"
        expect(reason, "aborted", f"finish_reason of {name}")
    stage.check_state()


@task("12.3")
def test_who_was_preempted_is_aborted(exercise):
    stage = Stage(exercise, 4)
    stage.line_up("A", tokens(5), max_tokens=6)
    stage.line_up("B", tokens(5, 30), max_tokens=6)
    stage.step_until(
        lambda: "preempted" in books.statuses(stage.state, "B"), "B is preempted"
    )
    stage.abort("B")
    expect_aborted(stage, "B")
    expect(stage.state["waiting"], [], "scheduler.waiting")
    stage.run()


@task("12.3")
def test_a_group_is_aborted_as_a_whole(exercise):
    stage = Stage(exercise, 12)
    stage.line_up("A", tokens(6), max_tokens=6, n=3)
    stage.line_up("B", tokens(6, 30), max_tokens=6)
    stage.step()
    stage.step()
    stage.abort("A")
    expect_aborted(stage, "A")
    expect(stage.state["running"], ["B"], "scheduler.running")
    stage.run()


@task("12.3")
def test_abort_twice_or_of_nobody(exercise):
    stage = Stage(exercise, 8)
    stage.line_up("A", tokens(5), max_tokens=2)
    stage.line_up("B", tokens(5, 30), max_tokens=4)
    stage.abort("nobody")
    stage.step()
    stage.abort("B")
    stage.abort("B")
    stage.run()
    stage.abort("A")
    expect(sequence(stage, "A")["finish_reason"], "length", "A was finished by then")
    stage.expect_full()


@task("12.3")
def test_abort_in_the_middle_of_a_step(exercise):
    for name in "AB":
        stage = Stage(exercise, 12, token_budget=9)
        stage.line_up("A", tokens(5), max_tokens=5, n=2)
        stage.line_up("B", tokens(9, 30), max_tokens=5)
        stage.step()
        stage.step(abort=name)
        expect_aborted(stage, name)
        stage.run()


@task("12.3")
def test_any_requests_in_any_order(exercise):
    """Small pools, small budgets, groups, prefixes, aborts: all must come out right."""

    def choices(chance):
        kind = chance.random()
        if kind < 0.45:
            prompt = [chance.randrange(2) for _ in range(chance.randint(1, 8))]
            params = {"max_tokens": chance.choice([1, 3, 6])}
            if chance.random() < 0.4:
                params[chance.choice(["n", "beam_width"])] = chance.choice([2, 3])
            return "come", prompt, params
        if kind < 0.55:
            return "abort", chance.randrange(3), chance.random() < 0.5
        return ("step",)

    def run_calls(calls):
        chance = random.Random(len(calls))
        stage = Stage(
            exercise,
            chance.choice([14, 21, 24]),
            2,
            token_budget=chance.choice([3, 5, 12]),
            max_seqs=chance.choice([3, 6]),
            caching=chance.random() < 0.5,
        )
        for number, (name, *arguments) in enumerate(calls):
            open_requests = stage.unfinished()
            if name == "come":
                prompt, params = arguments
                width = params.get("n", params.get("beam_width", 1))
                length = len(prompt) + params["max_tokens"] - 1
                if -(-length // 2) * width <= stage.num_blocks:
                    stage.line_up(f"R{number}", prompt, **params)
            elif name == "step":
                stage.step()
            elif open_requests:
                place, in_step = arguments
                target = open_requests[place % len(open_requests)]
                if in_step:
                    stage.step(abort=target)
                else:
                    stage.abort(target)
        stage.run()

    walk(choices, run_calls, num_walks=10, length=24)


# 12.4


def expect_refused(stage, name, prompt, claim, needed, **params):
    """ValueError that names what would be needed, and nothing has changed."""
    before = stage.state
    text = expect_raises(ValueError, stage.add, name, prompt, claim=claim, **params)
    expect_that(
        str(needed) in re.findall(r"\d+", text),
        f"{claim}: the error says how many the request would need",
        got=text,
        expected=f"the number {needed} in it",
    )
    expect(stage.look()["waiting"], before["waiting"], f"{claim}: scheduler.waiting")
    expect(stage.state["num_free"], before["num_free"], f"{claim}: free blocks")


def expect_taken(stage, name, prompt, claim, **params):
    """It is not refused. Whether it runs then is the business of the other tasks."""
    try:
        stage.add(name, prompt, **params)
    except Exception as error:
        learner = getattr(error, "learner", None)
        if learner is None or is_unsolved(error):
            raise
        fail(
            f"{claim}: it just fits, so it is not refused",
            expected="no error",
            got=f"{learner.name}: {learner.text}",
            location=learner.location,
        )


@task("12.4")
def test_a_prompt_larger_than_the_pool(exercise):
    """A pool of 16 tokens."""
    stage = Stage(exercise, 4)
    claim = "a prompt of 17 tokens needs 5 blocks of 4, the pool has 4"
    expect_refused(stage, "A", tokens(17), claim, 5)
    claim = "16 tokens and 1 to make, which takes no place, need 4 blocks of 4"
    expect_taken(stage, "B", tokens(16), claim)


@task("12.4")
def test_what_is_to_be_made_counts_too(exercise):
    stage = Stage(exercise, 4)
    claim = "14 tokens and 8 to make need 21 places, so 6 blocks; the pool has 4"
    expect_refused(stage, "A", tokens(14), claim, 6, max_tokens=8)
    claim = "5 tokens and 4 to make need 8 places, so 2 blocks of 4"
    expect_taken(stage, "B", tokens(5), claim, max_tokens=4)


@task("12.4")
def test_what_just_fits_is_served(exercise):
    """The last token that is made takes no place: nothing is computed from it."""
    for length, max_tokens in [(16, 1), (14, 3), (1, 16), (13, 4)]:
        stage = Stage(exercise, 4)
        claim = f"{length} tokens and {max_tokens} to make, of which the last takes no "
        claim += "place, need 16 places, so 4 blocks of 4"
        expect_taken(stage, "A", tokens(length), claim, max_tokens=max_tokens)
        stage = Stage(exercise, 4)
        claim = f"{length} tokens and {max_tokens + 1} to make: one more than 16 places"
        more = max_tokens + 1
        expect_refused(stage, "A", tokens(length), claim, 5, max_tokens=more)


@task("12.4")
def test_a_group_needs_blocks_for_all_its_sequences(exercise):
    for kind, num_blocks in itertools.product(("n", "beam_width"), (5, 6)):
        fits = num_blocks == 6
        stage = Stage(exercise, num_blocks)
        claim = f"3 sequences of 8 tokens need 2 blocks each, the pool has {num_blocks}"
        params = {"max_tokens": 3, kind: 3}
        if fits:
            expect_taken(stage, "A", tokens(6), claim, **params)
        else:
            expect_refused(stage, "A", tokens(6), claim, 6, **params)


@task("12.4")
def test_blocks_are_rounded_up_for_each_sequence(exercise):
    stage = Stage(exercise, 4)
    claim = "3 sequences of 5 tokens need 2 blocks each, not 15 tokens in 4 blocks"
    expect_refused(stage, "A", tokens(3), claim, 6, max_tokens=3, n=3)


@task("12.4")
def test_more_sequences_than_a_step_may_have(exercise):
    limits = [(2, 64), (8, 2)]
    for kind, (max_seqs, budget) in itertools.product(("n", "beam_width"), limits):
        stage = Stage(exercise, 12, max_seqs=max_seqs, token_budget=budget)
        claim = f"3 sequences, max_seqs is {max_seqs}, token_budget {budget}"
        params = {"max_tokens": 2, kind: 3}
        expect_refused(stage, "A", tokens(2), claim, 3, **params)
        claim = f"2 sequences, max_seqs is {max_seqs}, token_budget {budget}"
        expect_taken(stage, "B", tokens(2), claim, max_tokens=4, **{kind: 2})


@task("12.4")
def test_who_others_hold_up_is_not_refused(exercise):
    """That the pool is full now does not matter: it will not be for ever."""
    stage = Stage(exercise, 4)
    stage.hold(4)
    claim = "13 tokens and 4 to make need 4 blocks, as many as the pool has; that they "
    claim += "are not free now does not matter"
    expect_taken(stage, "A", tokens(13), claim, max_tokens=4)


@task("12.4")
def test_a_long_prompt_may_be_longer_than_the_budget(exercise):
    stage = Stage(exercise, 4, token_budget=1)
    claim = "14 tokens and 3 to make need 4 blocks of 4; a prompt may be longer than "
    claim += "token_budget, for it is computed in chunks"
    expect_taken(stage, "A", tokens(14), claim, max_tokens=3)


@task("12.4")
def test_the_next_request_is_taken_after_one_was_refused(exercise):
    stage = Stage(exercise, 4)
    claim = "5 tokens and 6 to make need 3 blocks of 4"
    expect_taken(stage, "A", tokens(5), claim, max_tokens=6)
    claim = "2 sequences of 11 tokens need 3 blocks each, the pool has 4"
    expect_refused(stage, "B", tokens(5), claim, 6, max_tokens=7, n=2)
    claim = "6 tokens and 3 to make need 2 blocks of 4"
    expect_taken(stage, "C", tokens(6, 30), claim, max_tokens=3)
    claim = "scheduler.waiting: B was refused"
    expect(stage.state["waiting"], ["A", "C"], claim)
