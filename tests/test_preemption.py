"""Who leaves and how it comes back; copies and aborts; anything, in any order."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from serving import Server, random_server, random_step, rows, status

from paged_attention import (
    BlockAllocator,
    SamplingParams,
    Scheduler,
    Sequence,
    StepPlan,
)

# --- preemption ---------------------------------------------------------------------


@pytest.mark.parametrize("num_host_blocks", [0, 1, 2, 4])
@pytest.mark.parametrize("prefix_caching", [False, True])
def test_outputs_under_preemption_equal_the_unhurried_run(
    num_host_blocks, prefix_caching
):
    # A17: 4 blocks of 4; A and B, 5 tokens and 6 to make each, need 3 each.
    server = Server(
        4, 4, num_host_blocks=num_host_blocks, prefix_caching=prefix_caching
    )
    for name in "AB":
        server.add(name, [ord(name)] * 5, max_tokens=6, ignore_eos=True)
    server.run()  # compares each with `alone`
    assert list(server.finished) == ["A", "B"]
    assert server.scheduler.num_preemptions == 1
    swapped = [plan.swap_out for plan in server.plans if plan.swap_out]
    # A host pool of one block cannot take two, so B is computed again.
    assert [len(pairs) for pairs in swapped] == ([2] if num_host_blocks >= 2 else [])
    server.assert_full()


def test_the_youngest_leaves_and_comes_back_first():
    server = Server(num_blocks=5, block_size=4)
    for name in "abc":
        server.add(name, [ord(name)] * 4, max_tokens=9, ignore_eos=True)
    server.step()
    server.add("d", [1] * 4, max_tokens=2, ignore_eos=True)
    plan = server.step()  # all of them need a second block, and 2 are free
    assert rows(plan) == [("a", 1), ("b", 1)]
    assert status(server) == {
        "a": ["running"],
        "b": ["running"],
        "c": ["preempted"],
        "d": ["waiting"],
    }
    server.run()
    ran = [[name for name, _ in rows(plan)] for plan in server.plans[2:]]
    first = {name: next(i for i, r in enumerate(ran) if name in r) for name in "cd"}
    assert first["c"] <= first["d"]


def test_a_preempted_sequence_loses_no_token_and_holds_nothing():
    server = Server(num_blocks=3, block_size=4)
    server.add("a", [1] * 4, max_tokens=9, ignore_eos=True)
    server.add("b", [2] * 3, max_tokens=9, ignore_eos=True)
    server.step()
    server.step()
    made = list(server.unfinished["b"].first.token_ids)
    server.step()
    b = server.unfinished["b"].first
    assert (b.status, b.table, b.num_computed) == ("preempted", None, 0)
    assert b.token_ids == made and len(made) == 5
    server.run()


def test_a_swapped_sequence_computes_nothing_twice():
    server = Server(num_blocks=4, block_size=4, num_host_blocks=4)
    for name in "ab":
        server.add(name, [ord(name)] * 5, max_tokens=6, ignore_eos=True)
    server.run()
    computed = sum(len(plan.token_ids) for plan in server.plans)
    assert computed == 2 * (5 + 6 - 1)


def test_a_step_that_preempts_admits_nobody():
    server = Server(num_blocks=4, block_size=2)
    server.add("a", [1] * 2, max_tokens=4, ignore_eos=True)
    server.add("b", [2] * 5, max_tokens=3, ignore_eos=True)
    server.step()
    server.add("small", [3], max_tokens=1)
    plan = server.step()  # a needs a block; b leaves three behind
    assert rows(plan) == [("a", 1)]
    assert server.pool.num_free == 2
    assert status(server)["small"] == ["waiting"]
    server.run()


def test_what_is_planned_in_a_step_is_not_preempted_in_it():
    server = Server(num_blocks=4, block_size=1)
    for name in "abc":
        server.add(name, [ord(name)], max_tokens=4, ignore_eos=True)
    server.step()
    # One block is free: a takes it, b pushes c out, and a stays in the plan.
    assert rows(server.step()) == [("a", 1), ("b", 1)]
    server.run()


def preempt_youngest(scheduler: Scheduler) -> StepPlan:
    """As if it had to leave in a step; the plan says what is to be swapped out."""
    group, plan = scheduler._running.pop(), StepPlan()
    scheduler._residence.leave(group, plan)
    scheduler._waiting.appendleft(group)
    return plan


# --- a copy, and who comes after -----------------------------------------------------


def test_a_group_that_lacks_one_block_for_a_copy_is_preempted_whole():
    # A19, A20: two sequences share a half full block; each needs to write to it.
    server = Server(num_blocks=5, block_size=4)
    server.add("old", [9] * 6, max_tokens=4, ignore_eos=True)
    server.add("pair", [1] * 6, max_tokens=3, n=2, ignore_eos=True)
    server.step()
    assert server.pool.num_free == 1
    held = server.allocator.allocate()  # now none is left for the copy
    plan = server.scheduler.schedule()
    assert rows(plan) == [("old", 1)]
    assert plan.copies == []
    assert status(server)["pair"] == ["preempted", "preempted"]
    server.allocator.free(held)


def test_a_pair_copies_the_shared_block_once_and_writes_each_its_own():
    server = Server(num_blocks=6, block_size=4)
    server.add("pair", [1] * 6, max_tokens=3, n=2, ignore_eos=True)
    server.step()
    plan = server.step()
    assert plan.copies == [(1, 2)]
    assert plan.block_tables == [[0, 2], [0, 1]]
    assert plan.slot_mapping == [2 * 4 + 2, 1 * 4 + 2]
    server.run()


def test_a_copy_is_kept_when_a_younger_group_has_to_leave_in_the_same_step():
    # A20: 6 blocks; the pair needs one for its copy, and c leaves to make room for b.
    server = Server(num_blocks=6, block_size=2)
    server.add("pair", [1] * 3, max_tokens=2, n=2, ignore_eos=True)
    server.add("b", [2] * 2, max_tokens=3, ignore_eos=True)
    server.add("c", [3] * 3, max_tokens=3, ignore_eos=True)
    server.step()
    assert server.pool.num_free == 1
    plan = server.step()
    assert rows(plan) == [("pair", 1), ("pair", 1), ("b", 1)]
    ((source, destination),) = plan.copies
    assert [source in table for table in plan.block_tables] == [False, True, False]
    assert [destination in table for table in plan.block_tables] == [True, False, False]
    assert status(server)["c"] == ["preempted"]
    server.run()


def test_blocks_that_were_dropped_are_holes_in_the_plan():
    scheduler = Scheduler(BlockAllocator(5), 2, token_budget=9, max_seqs=1)
    sequence = Sequence("a", [1] * 7, SamplingParams(max_tokens=3))
    scheduler.add(sequence)
    scheduler.schedule()
    scheduler.finish_step([[1]])
    sequence.table.drop_before(4)
    plan = scheduler.schedule()
    assert plan.block_tables == [[None, None, 2, 3]]
    assert plan.slot_mapping == [7]


def test_blocks_that_a_group_shares_are_swapped_once_and_shared_again():
    server = Server(num_blocks=6, block_size=4, num_host_blocks=6)
    server.add("old", [9] * 7, max_tokens=9, ignore_eos=True)
    server.add("pair", [1] * 8, max_tokens=5, n=2, ignore_eos=True)
    server.run()
    (out,) = [plan.swap_out for plan in server.plans if plan.swap_out]
    (back,) = [plan.swap_in for plan in server.plans if plan.swap_in]
    # Two blocks of the prompt, listed in both tables, and one of each sequence's own.
    assert len({block for block, _ in out}) == len(out) == 4
    assert [host for _, host in out] == [host for host, _ in back]
    server.assert_full()


def test_a_group_is_admitted_only_when_all_of_it_fits():
    server = Server(num_blocks=6, block_size=2, token_budget=40)
    server.add("old", [9] * 3, max_tokens=5, ignore_eos=True)
    server.add("pair", [1] * 3, max_tokens=4, n=2, ignore_eos=True)
    while status(server).get("pair") != ["preempted", "preempted"]:
        server.step()
    while server.pool.num_free < 2 * 3:
        # Room for one of the two would not do.
        assert status(server)["pair"] == ["preempted", "preempted"]
        server.step()
    assert [name for name, _ in rows(server.step())] == ["pair", "pair"]
    server.run()


def test_a_group_that_has_shrunk_is_asked_anew_whether_it_fits():
    pool = BlockAllocator(6)
    scheduler = Scheduler(pool, 4, token_budget=20, max_seqs=2)
    params = SamplingParams(max_tokens=6, n=2)
    scheduler.add(Sequence("pair", [1] * 6, params, (7,)))
    scheduler.schedule()
    ((_, second),) = scheduler.finish_step([[1, 2]])
    preempt_youngest(scheduler)
    held = pool.allocate_many(3)
    assert scheduler.schedule().scheduled == []  # two of them need 4 blocks, 3 are free
    pool.free_many(held)
    assert len(scheduler.schedule().scheduled) == 2
    scheduler.finish_step([[7], [2]])
    preempt_youngest(scheduler)
    held = pool.allocate_many(3)
    assert scheduler.schedule().scheduled == [(second, 8)]  # alone it needs 2


def test_a_group_waits_until_the_budget_has_a_token_for_each_of_it():
    server = Server(num_blocks=8, block_size=2, token_budget=2, num_host_blocks=8)
    server.add("old", [9] * 2, max_tokens=9, ignore_eos=True)
    server.add("pair", [1] * 2, max_tokens=4, n=2, ignore_eos=True)
    while status(server).get("pair") != ["running", "running"]:
        server.step()
    plan = preempt_youngest(server.scheduler)
    server.memory.copy_blocks(plan.swap_out, into=server.host_memory)
    # It would fit, but of two tokens old takes one: its blocks would lie idle.
    assert rows(server.step()) == [("old", 1)]
    assert status(server)["pair"] == ["swapped", "swapped"]
    server.run()


def test_a_group_that_is_computed_again_makes_its_tokens_together():
    server = Server(num_blocks=8, block_size=2, token_budget=4)
    server.add("old", [9] * 3, max_tokens=7, ignore_eos=True)
    server.add("beams", [1] * 3, max_tokens=5, beam_width=2, ignore_eos=True)
    server.run()
    assert server.scheduler.num_preemptions > 0
    for plan, makes in zip(server.plans, server.makes, strict=True):
        beams = [m for m, (i, _) in zip(makes, rows(plan), strict=True) if i == "beams"]
        assert len(set(beams)) <= 1


# --- abort --------------------------------------------------------------------------


def stages(num_host_blocks: int) -> dict[str, Server]:
    """Servers whose request "b" is in each of the states that a request can be in."""
    servers = {}
    for stage in ("waiting", "half prefilled", "running", "preempted", "finished"):
        server = Server(
            6, 4, token_budget=7, num_host_blocks=num_host_blocks, prefix_caching=True
        )
        server.add("a", [1] * 6, max_tokens=9, ignore_eos=True)
        if stage == "half prefilled":
            server.abort("a")
            server.add("a", [1] * 3, max_tokens=9, ignore_eos=True)
        server.add("b", [2] * 5, max_tokens=7, n=2, ignore_eos=True)
        wanted = {
            "waiting": lambda b: b.status == "waiting",
            "half prefilled": lambda b: b.num_computed == 4,
            "running": lambda b: b.num_computed == 6,
            "preempted": lambda b: b.status in ("preempted", "swapped"),
            "finished": lambda b: b.status == "finished",
        }[stage]
        while not wanted(server.first("b")):
            server.step()
        servers[stage] = server
    return servers


@pytest.mark.parametrize("num_host_blocks", [0, 8])
def test_abort_in_every_state_and_twice_leaves_a_full_pool(num_host_blocks):
    for stage, server in stages(num_host_blocks).items():
        others = status(server)["a"]
        server.abort("b")
        server.abort("b")
        assert status(server)["a"] == others, stage
        server.abort("a")
        server.assert_full()
        assert server.scheduler.schedule().scheduled == []


def test_abort_between_schedule_and_finish_ends_the_row():
    server = Server(8, 4)
    server.add("a", [1] * 4, max_tokens=4, ignore_eos=True)
    server.add("b", [2] * 4, max_tokens=4, ignore_eos=True)
    server.step(abort={"before": "a"})
    server.run()
    assert list(server.finished) == ["b"]
    server.assert_full()


def test_an_aborted_sequence_says_so_and_keeps_its_tokens():
    server = Server(8, 4)
    server.add("a", [1] * 4, max_tokens=4, ignore_eos=True)
    server.step()
    sequence = server.unfinished["a"].first
    server.abort("a")
    assert (sequence.status, sequence.finish_reason) == ("finished", "aborted")
    assert len(sequence.token_ids) == 5


# --- anything, in any order ---------------------------------------------------------


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.integers(0, 2**32))
def test_whatever_happens_outputs_are_right_and_the_pool_ends_full(seed):
    rng = random.Random(seed)
    server = random_server(rng)
    for name in range(60):
        random_step(server, rng, name)
    server.run()
    server.assert_full()
