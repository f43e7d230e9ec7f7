"""The scheduler on a fake model, with small pools and the right values worked out."""

import pytest
from fake_model import alone
from serving import Server, rows, status

from paged_attention import (
    BlockAllocator,
    BlockTable,
    OutOfBlocksError,
    PrefixCache,
    SamplingParams,
    Scheduler,
    Sequence,
    StepPlan,
    copy_on_write,
    fork,
)

# --- one step -----------------------------------------------------------------------


def test_a_mixed_batch_is_laid_out_row_after_row():
    server = Server(num_blocks=8, block_size=4, token_budget=6)
    server.add("a", [10, 11, 12, 13, 14], max_tokens=3, ignore_eos=True)
    server.add("b", [20, 21, 22], max_tokens=3, ignore_eos=True)
    first = server.step()
    # a: two blocks; b got what was left of the budget, one token.
    assert rows(first) == [("a", 5), ("b", 1)]
    assert first.token_ids == [10, 11, 12, 13, 14, 20]
    assert first.positions == [0, 1, 2, 3, 4, 0]
    assert first.slot_mapping == [0, 1, 2, 3, 4, 8]
    assert first.query_start_loc == [0, 5, 6]
    assert first.seq_lens == [5, 1]
    assert first.block_tables == [[0, 1], [2]]
    second = server.step()
    # a makes one token per step, b goes on with its prompt beside it.
    assert rows(second) == [("a", 1), ("b", 2)]
    assert second.token_ids[1:] == [21, 22]
    assert second.positions == [5, 1, 2]
    assert second.slot_mapping == [5, 9, 10]
    assert second.seq_lens == [6, 3]
    # The first step ended in the middle of b's prompt.
    assert server.makes == [[True, False], [True, True]]


def test_the_plan_is_empty_when_nothing_is_left_to_do():
    server = Server(num_blocks=2, block_size=4)
    assert server.scheduler.schedule().scheduled == []
    assert server.scheduler.schedule().scheduled == []
    assert server.scheduler.finish_step([]) == []


def test_a_prompt_longer_than_the_budget_takes_several_steps():
    server = Server(num_blocks=8, block_size=4, token_budget=6)
    server.add("a", list(range(15)), max_tokens=1)
    assert [rows(server.step()) for _ in range(3)] == [
        [("a", 6)],
        [("a", 6)],
        [("a", 3)],
    ]
    assert list(server.finished) == ["a"]


def test_running_sequences_come_before_new_prompts():
    server = Server(num_blocks=16, block_size=4, token_budget=4)
    server.add("a", [1, 2, 3], max_tokens=4, ignore_eos=True)
    server.step()
    server.add("b", list(range(9)), max_tokens=2, ignore_eos=True)
    assert rows(server.step()) == [("a", 1), ("b", 3)]
    assert rows(server.step()) == [("a", 1), ("b", 3)]
    assert rows(server.step()) == [("a", 1), ("b", 3)]
    assert rows(server.step()) == [("b", 1)]


def test_nobody_overtakes_one_that_waits():
    server = Server(num_blocks=4, block_size=4)
    server.add("a", list(range(8)), max_tokens=4, ignore_eos=True)
    server.step()
    server.add("large", list(range(12)), max_tokens=1)
    server.add("small", [1], max_tokens=1)
    assert rows(server.step()) == [("a", 1)]
    assert status(server)["small"] == ["waiting"]
    server.run()
    assert list(server.finished) == ["a", "large", "small"]


def test_no_more_sequences_run_than_max_seqs():
    server = Server(num_blocks=16, block_size=4, max_seqs=3)
    server.add("pair", [1], max_tokens=2, n=2, ignore_eos=True)
    server.add("one", [2], max_tokens=2, ignore_eos=True)
    server.add("late", [3], max_tokens=2, ignore_eos=True)
    assert rows(server.step()) == [("pair", 1), ("one", 1)]
    assert rows(server.step()) == [("pair", 1), ("pair", 1), ("one", 1)]
    server.run()


def test_a_sample_that_has_ended_makes_room_for_another_request():
    scheduler = Scheduler(BlockAllocator(32), 4, token_budget=16, max_seqs=4)
    scheduler.add(Sequence("a", [1, 2], SamplingParams(9, n=4, stop_token_ids=(0,))))
    scheduler.schedule()
    scheduler.finish_step([[5, 6, 7, 8]])
    scheduler.add(Sequence("b", [4], SamplingParams(2, n=2)))
    assert rows(scheduler.schedule()) == [("a", 1)] * 4
    scheduler.finish_step([[5], [0], [7], [0]])
    # Two are left of four, and none of them forks any more.
    assert rows(scheduler.schedule()) == [("a", 1), ("a", 1), ("b", 1)]
    scheduler.finish_step([[5], [7], [1, 2]])


def test_without_budget_nobody_is_admitted():
    server = Server(num_blocks=16, block_size=4, token_budget=4)
    server.add("a", [1, 2, 3, 4], max_tokens=2)
    server.add("b", [5], max_tokens=2)
    server.step()
    assert status(server)["b"] == ["waiting"]
    server.run()


@pytest.mark.parametrize("num_free", [0, 1])
def test_a_block_is_taken_only_for_the_first_token_in_it(num_free):
    # A10: with nothing free 3 -> 4 tokens needs no block, 4 -> 5 needs one.
    server = Server(num_blocks=2, block_size=4)
    server.add("a", [1, 2, 3], max_tokens=4, ignore_eos=True)
    server.step()
    held = server.allocator.allocate_many(1 - num_free)
    assert server.scheduler.schedule().seq_lens == [4]
    assert server.pool.num_free == num_free
    server.scheduler.finish_step([[9]])
    plan = server.scheduler.schedule()
    # The pool has room for it, but somebody else holds the block: it has to leave.
    assert plan.seq_lens == ([5] if num_free else [])
    server.allocator.free_many(held)


def test_three_prompts_of_16_leave_3_of_6_blocks():
    # A10: the token that was just made takes no place before the next step.
    server = Server(num_blocks=6, block_size=16)
    for name in "abc":
        server.add(name, [ord(name)] * 16, max_tokens=2, ignore_eos=True)
    server.step()
    assert server.pool.num_free == 3
    server.step()
    assert server.pool.num_free == 6


# --- what can never fit -------------------------------------------------------------


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(17, 1), (14, 8), (1, 17)])
def test_what_can_never_fit_is_refused_and_the_next_one_runs(num_prompt, max_tokens):
    # A18: 16 places.
    server = Server(num_blocks=4, block_size=4)
    with pytest.raises(ValueError, match=r"can never fit: 1 x \d+ tokens .* 4$"):
        server.add("large", [1] * num_prompt, max_tokens=max_tokens)
    server.add("next", [1, 2], max_tokens=3)
    server.run()
    assert list(server.finished) == ["next"]
    server.assert_full()


@pytest.mark.parametrize(("num_prompt", "max_tokens"), [(16, 1), (14, 3), (1, 16)])
def test_what_just_fits_runs_to_its_end(num_prompt, max_tokens):
    # The last token that is made needs no place: nothing comes after it.
    server = Server(num_blocks=4, block_size=4)
    server.add("large", [1] * num_prompt, max_tokens=max_tokens, ignore_eos=True)
    server.run()
    server.assert_full()


@pytest.mark.parametrize("params", [{"n": 3}, {"beam_width": 3}])
def test_a_group_that_can_never_fit_or_run_is_refused(params):
    with pytest.raises(ValueError, match=r"3 x 8 tokens .* need 6 blocks of 4"):
        Server(5, 4).add("a", [1] * 4, max_tokens=5, **params)
    for limit in ({"max_seqs": 2}, {"token_budget": 2}):
        with pytest.raises(ValueError, match="3 sequences in one step"):
            Server(6, 4, **limit).add("a", [1] * 4, max_tokens=5, **params)
    server = Server(6, 4, max_seqs=3, token_budget=3)
    server.add("a", [1] * 4, max_tokens=5, **params)
    server.run()
    server.assert_full()


@pytest.mark.parametrize("prompt", [[], [1]])
def test_an_empty_prompt_and_a_second_request_of_one_name_are_refused(prompt):
    server = Server(4, 4)
    server.add("a", [1], max_tokens=2, ignore_eos=True)
    with pytest.raises(ValueError, match=r"'[ab]' (is here already|has an empty)"):
        server.add("a" if prompt else "b", prompt)
    server.run()
    server.add("a", [1], max_tokens=2)  # the first one has ended
    server.run()


def test_a_sequence_that_has_run_cannot_be_added_again():
    server = Server(4, 4)
    server.add("a", [1], max_tokens=1)
    server.run()
    with pytest.raises(ValueError, match="must be new, got finished"):
        server.scheduler.add(server.finished["a"].first)


@pytest.mark.parametrize("name", ["block_size", "token_budget", "max_seqs"])
@pytest.mark.parametrize("value", [0, -1, 1.5, None, "8"])
def test_a_scheduler_that_could_run_nothing_is_refused(name, value):
    limits = {"block_size": 4, "token_budget": 8, "max_seqs": 2, name: value}
    with pytest.raises(ValueError) as caught:
        Scheduler(BlockAllocator(4), **limits)
    assert str(caught.value) == f"{name} must be a whole number >= 1, got {value!r}"


def test_a_prefix_cache_of_another_pool_or_block_size_is_refused():
    pool = BlockAllocator(4)
    for cache in (PrefixCache(BlockAllocator(4), 4), PrefixCache(pool, 8)):
        with pytest.raises(ValueError, match="prefix_cache"):
            Scheduler(pool, 4, token_budget=8, max_seqs=2, prefix_cache=cache)


# --- prefix cache -------------------------------------------------------------------


def test_hits_that_lie_in_the_free_list_still_cost_free_blocks():
    # A7: pool 3, bs 4: A's two blocks are cached and free, C holds the third one.
    server = Server(num_blocks=3, block_size=4, prefix_caching=True)
    prompt = list(range(8))
    server.add("A", prompt, max_tokens=1)
    server.run()
    server.add("C", [9, 9], max_tokens=2, ignore_eos=True)
    server.step()
    server.add("B", [*prompt, 8], max_tokens=1)  # 2 hits and 1 new, with 2 free
    cached = server.cache.evictable_block_ids
    assert server.pool.num_free == 2
    assert rows(server.step()) == [("C", 1)]  # and C is finished
    assert status(server)["B"] == ["waiting"]
    assert server.cache.evictable_block_ids == cached
    assert rows(server.step()) == [("B", 1)]  # 8 of its 9 tokens were cached
    server.assert_full()


def test_what_is_refused_for_want_of_blocks_changes_nothing():
    server = Server(num_blocks=3, block_size=4, prefix_caching=True)
    server.add("A", list(range(8)), max_tokens=1)
    server.run()
    server.add("C", [9, 9], max_tokens=2, ignore_eos=True)
    server.step()
    server.add("B", list(range(9)), max_tokens=1)
    before = [server.pool.ref_count(block_id) for block_id in range(3)]
    order = server.cache.evictable_block_ids
    server.scheduler.schedule()
    assert [server.pool.ref_count(block_id) for block_id in range(3)] == before
    assert server.cache.evictable_block_ids == order


def test_who_was_refused_is_looked_up_again_only_when_that_may_help(monkeypatch):
    server = Server(num_blocks=4, block_size=4, prefix_caching=True)
    server.add("old", [1] * 5, max_tokens=9, ignore_eos=True)
    server.add("large", [2] * 9, max_tokens=1)
    looked_up = []
    acquire = server.cache.acquire
    monkeypatch.setattr(
        server.cache, "acquire", lambda ids: looked_up.append(ids[0]) or acquire(ids)
    )
    server.run()
    # old itself; large beside it, then after old's prompt was published, then alone.
    assert looked_up == [1, 2, 2, 2]


def test_who_waits_needs_fewer_blocks_once_its_beginning_was_published():
    # Pool 4, bs 4: two prompts of 9 tokens need 3 blocks each, or 4 if they share two.
    server = Server(num_blocks=4, block_size=4, prefix_caching=True)
    for name in (90, 91):
        server.add(name, [*range(8), name], max_tokens=3, ignore_eos=True)
    assert rows(server.step()) == [(90, 9)]
    assert server.pool.num_free == 1
    # As many are free as when it was refused, and it fits.
    assert rows(server.step()) == [(90, 1), (91, 1)]
    server.run()


@pytest.mark.parametrize(
    ("num_tokens", "cached"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)]
)
def test_a_prompt_that_is_cached_whole_still_leaves_a_token_to_run(num_tokens, cached):
    # A9, bs 4: the second time all but the cached tokens run, with the same output.
    server = Server(num_blocks=8, block_size=4, prefix_caching=True)
    prompt = list(range(num_tokens))
    for name in ("first", "second"):
        server.add(name, prompt, max_tokens=3, ignore_eos=True)
        plan = server.step()
        server.run()
    assert rows(plan) == [("second", num_tokens - cached)]
    assert plan.positions[0] == cached
    first, second = (server.finished[name].outputs() for name in ("first", "second"))
    assert first == second == alone(prompt, SamplingParams(3, ignore_eos=True))


def test_nothing_is_found_that_was_planned_and_never_computed():
    # A12: aborted before the step ran.
    server = Server(num_blocks=8, block_size=4, prefix_caching=True)
    server.add("a", list(range(8)), max_tokens=2)
    plan = server.scheduler.schedule()
    server.scheduler.abort("a")
    assert server.scheduler.finish_step([[0]]) == [[]]
    assert rows(plan) == [("a", 8)]
    assert server.cache.acquire(list(range(8))).num_tokens == 0


def test_after_the_first_chunk_only_its_full_blocks_are_found():
    # A12: 8 tokens, a budget of 6, bs 4: after step 1 only block 0 can be found.
    server = Server(num_blocks=8, block_size=4, token_budget=6, prefix_caching=True)
    prompt = [*range(8), 99]
    for num_found in (4, 8):
        server.add(num_found, prompt[:8], max_tokens=2)
        server.step()
        table = server.cache.acquire(prompt)
        assert table.num_tokens == num_found
        table.free()


def test_a_preempted_sequence_finds_its_own_blocks_again():
    server = Server(num_blocks=5, block_size=4, prefix_caching=True)
    server.add("a", [1] * 6, max_tokens=4, ignore_eos=True)
    server.add("b", [2] * 8, max_tokens=4, ignore_eos=True)
    server.step()
    server.scheduler._residence.leave(server.scheduler._running[1], StepPlan())
    server.scheduler._waiting.append(server.scheduler._running.pop())
    plan = server.step()
    assert rows(plan) == [("a", 1), ("b", 1)]  # not 9 tokens
    server.run()


# --- after the step -----------------------------------------------------------------


def test_a_stop_token_ends_a_sequence_and_its_block_goes_to_the_next():
    scheduler = Scheduler(BlockAllocator(1), 4, token_budget=8, max_seqs=2)
    scheduler.add(Sequence("a", [1, 2], SamplingParams(3, stop_token_ids=(7,)), (8,)))
    for stop in (7, 8):
        name = "a" if stop == 7 else "b"
        if name == "b":
            params = SamplingParams(3, stop_token_ids=(7,))
            scheduler.add(Sequence("b", [1, 2], params, (8,)))
        assert rows(scheduler.schedule()) == [(name, 2)]
        ((sequence,),) = scheduler.finish_step([[stop]])
        assert (sequence.finish_reason, sequence.token_ids) == ("stop", [1, 2, stop])


def test_a_beam_is_dropped_and_another_forked():
    forked = []
    scheduler = Scheduler(
        BlockAllocator(9),
        4,
        token_budget=8,
        max_seqs=2,
        fork=lambda table: forked.append(table) or fork(table),
    )
    params = SamplingParams(max_tokens=4, beam_width=2)
    scheduler.add(Sequence("a", [1, 2], params, (7,)))
    scheduler.schedule()
    ((first, second),) = scheduler.finish_step([[3, 4]])
    assert [one.token_ids for one in (first, second)] == [[1, 2, 3], [1, 2, 4]]
    scheduler.schedule()
    dropped, row = scheduler.finish_step([[], [5, 7, 6]])
    assert dropped == []
    assert (first.status, first.finish_reason, first.table) == ("finished", None, None)
    # Three tokens for two beams: the one that ends takes no place, and no fork.
    assert len(forked) == 2
    assert [one.token_ids[2:] for one in row] == [[4, 5], [4, 7], [4, 6]]
    assert [one.finish_reason for one in row] == [None, "stop", None]
    assert row[0] is second
    plan = scheduler.schedule()
    assert plan.scheduled == [(row[0], 1), (row[2], 1)]
    assert scheduler.finish_step([[], []]) == [[], []]
    assert scheduler.schedule().scheduled == []


def test_a_first_token_that_ends_does_not_end_the_forks():
    pool = BlockAllocator(9)
    scheduler = Scheduler(pool, 4, token_budget=8, max_seqs=2)
    scheduler.add(Sequence("a", [1] * 6, SamplingParams(max_tokens=4, n=2), (7,)))
    scheduler.schedule()
    ((first, second),) = scheduler.finish_step([[7, 3]])
    assert (first.status, second.status) == ("finished", "running")
    assert scheduler.schedule().copies == []  # nobody else holds the last block
    pool.check([second.table])


@pytest.mark.parametrize(
    ("new_tokens", "message"),
    [
        ([], "2 rows were scheduled, got tokens for 0"),
        ([[1], [1]], "row 1 expects None: it is a chunk of a prompt, got [1]"),
        ([None, None], "row 0 expects a list, got None"),
        ([1, None], "row 0 expects a list, got 1"),
        ([(1,), None], "row 0 expects a list, got (1,)"),
        ([[1, 2], None], "may have 1 sequences at once, got tokens for 2"),
    ],
)
def test_tokens_that_cannot_be_are_refused_and_change_nothing(new_tokens, message):
    server = Server(8, 4, token_budget=6, prefix_caching=True)
    server.add("a", [1] * 5, max_tokens=4, ignore_eos=True)
    server.add("b", [2] * 5, max_tokens=4, ignore_eos=True)
    server.scheduler.schedule()
    tables = [server.first(name).table for name in "ab"]
    with pytest.raises(ValueError) as caught:
        server.scheduler.finish_step(new_tokens)
    assert message in str(caught.value)
    server.cache.check(tables)
    assert [server.first(name).num_computed for name in "ab"] == [0, 0]
    assert server.scheduler.finish_step([[1], None])[1] == []


def test_a_step_must_be_finished_before_the_next():
    server = Server(8, 4)
    server.add("a", [1] * 5, max_tokens=4)
    server.scheduler.schedule()
    with pytest.raises(RuntimeError, match="finish_step"):
        server.scheduler.schedule()


def test_a_fork_that_fails_leaves_no_reference_and_may_be_tried_again():
    # A19
    calls = []

    def failing_fork(table: BlockTable) -> BlockTable:
        calls.append(table)
        if len(calls) == 2:
            raise OutOfBlocksError("no more")
        return fork(table)

    pool = BlockAllocator(9)
    scheduler = Scheduler(pool, 4, token_budget=8, max_seqs=4, fork=failing_fork)
    sequence = Sequence("a", [1] * 6, SamplingParams(max_tokens=4, n=3))
    scheduler.add(sequence)
    scheduler.schedule()
    with pytest.raises(OutOfBlocksError):
        scheduler.finish_step([[3, 4, 5]])
    pool.check([sequence.table])
    assert sequence.token_ids == [1] * 6
    (row,) = scheduler.finish_step([[3, 4, 5]])
    pool.check([one.table for one in row])


# --- other people's parts -----------------------------------------------------------


class OthersPool:
    """Only what a learner's allocator has to have; the oldest free block goes first."""

    def __init__(self, num_blocks: int) -> None:
        self.counts = [0] * num_blocks
        self.free_ids = list(range(num_blocks))

    num_blocks = property(lambda self: len(self.counts))
    num_free = property(lambda self: len(self.free_ids))

    def can_allocate(self, n: int) -> bool:
        return n <= self.num_free

    def allocate(self) -> int:
        return self.allocate_many(1)[0]

    def allocate_many(self, n: int) -> list[int]:
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} of {self.num_free}")
        taken, self.free_ids = self.free_ids[:n], self.free_ids[n:]
        for block_id in taken:
            self.counts[block_id] = 1
        return taken

    def share(self, block_id: int) -> None:
        self.counts[block_id] += 1

    def free(self, block_id: int) -> None:
        self.free_many([block_id])

    def free_many(self, block_ids) -> None:
        for block_id in block_ids:
            self.counts[block_id] -= 1
            if self.counts[block_id] == 0:
                self.free_ids.append(block_id)

    def ref_count(self, block_id: int) -> int:
        return self.counts[block_id]


class OthersTable(BlockTable):
    pass


@pytest.mark.parametrize("prefix_caching", [False, True])
def test_parts_of_somebody_else_serve_as_well(prefix_caching):
    used = []
    server = Server(
        9,
        2,
        allocator_class=OthersPool,
        prefix_caching=prefix_caching,
        block_table_class=OthersTable,
        fork=lambda table: used.append("fork") or fork(table),
        copy_on_write=lambda table: used.append("copy") or copy_on_write(table),
    )
    server.add("a", [1] * 5, max_tokens=6, ignore_eos=True)
    server.add("b", [2] * 3, max_tokens=4, beam_width=2)
    server.add("c", [1] * 4, max_tokens=4, n=2)
    server.run()
    server.assert_full()
    assert set(used) == {"fork", "copy"}
