"""What a request may ask for, and one sequence's own state."""

import math

import pytest

from paged_attention import BlockAllocator, BlockTable, SamplingParams, Sequence
from paged_attention.group_blocks import blocks_to_grow, move_tables, shared_budget
from paged_attention.sharing import fork


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_tokens", 0),
        ("max_tokens", 1.5),
        ("max_tokens", True),
        ("temperature", -0.1),
        ("temperature", math.nan),
        ("temperature", math.inf),
        ("temperature", None),
        ("temperature", "1"),
        ("top_p", 0.0),
        ("top_p", 1.1),
        ("top_p", None),
        ("n", 0),
        ("beam_width", 0),
        ("stop_token_ids", [-1]),
        ("stop_token_ids", ["a"]),
        ("stop_token_ids", 7),
        ("seed", -1),
        ("seed", 0.5),
    ],
)
def test_a_value_that_makes_no_sense_is_named(name, value):
    shown = value[0] if isinstance(value, list) else value
    with pytest.raises(ValueError, match=f"got {shown!r}|got {shown}"):
        SamplingParams(**{name: value})


def test_more_results_than_beams_are_refused():
    with pytest.raises(ValueError, match="n=3 of 2 beams"):
        SamplingParams(n=3, beam_width=2)


@pytest.mark.parametrize("drawn", [{"temperature": 0.5}, {"top_p": 0.5}])
def test_beam_search_draws_nothing(drawn):
    with pytest.raises(ValueError, match="beam search draws nothing"):
        SamplingParams(beam_width=2, **drawn)


@pytest.mark.parametrize(
    ("params", "num_seqs"),
    [({}, 1), ({"n": 3}, 3), ({"beam_width": 4}, 4), ({"n": 2, "beam_width": 4}, 4)],
)
def test_a_request_has_as_many_sequences_as_n_or_beams(params, num_seqs):
    assert SamplingParams(**params).num_seqs == num_seqs


def test_params_are_plain_values_that_compare_and_hash():
    assert SamplingParams(stop_token_ids=[1, 2]) == SamplingParams(
        stop_token_ids=(1, 2)
    )
    assert len({SamplingParams(), SamplingParams(), SamplingParams(n=2)}) == 2


@pytest.mark.parametrize(
    ("made", "reason"), [([5], None), ([5, 6, 5], "length"), ([5, 8], "stop")]
)
def test_a_sequence_ends_with_its_last_token_or_a_stop_token(made, reason):
    sequence = Sequence("a", (1, 2), SamplingParams(3, stop_token_ids=(9,)), (8,))
    for token_id in made:
        assert sequence.finish_reason is None
        sequence.append(token_id)
    assert sequence.finish_reason == reason
    assert (sequence.status == "finished") == (reason is not None)
    assert sequence.token_ids == [1, 2, *made]
    assert sequence.num_prompt_tokens == 2


@pytest.mark.parametrize("token_ids", ["hi", [1, 2.0], [None], [[1, 2]]])
def test_a_prompt_that_is_no_list_of_ints_is_refused(token_ids):
    with pytest.raises(ValueError, match=r"token_ids of request 'a' must be ints, got"):
        Sequence("a", token_ids, SamplingParams())


def test_a_stop_token_in_the_prompt_or_as_the_last_one_allowed_is_no_trouble():
    sequence = Sequence("a", [9, 9], SamplingParams(1, stop_token_ids=(9,)))
    sequence.append(9)
    assert sequence.finish_reason == "stop"  # not "length": the text is complete


def test_a_twin_and_its_sequence_go_separate_ways():
    sequence = Sequence("a", [1, 2], SamplingParams(4))
    twin = sequence.twin(None)
    twin.append(5)
    assert (sequence.token_ids, twin.token_ids) == ([1, 2], [1, 2, 5])
    assert (twin.request_id, twin.num_prompt_tokens) == ("a", 2)
    assert twin != sequence


# --- the blocks of a group ----------------------------------------------------------


@pytest.mark.parametrize(
    ("num_tables", "num_tokens", "expected"),
    [
        (1, [1], 0),  # alone, with room in its last block
        (1, [3], 1),
        (2, [1, 1], 1),  # one copies, the other one writes in place
        (2, [1, 0], 1),  # the other one still reads the block
        (3, [1, 1, 0], 2),
        (3, [1, 1, 1], 2),
        (3, [3, 1, 1], 3),  # two copies, and a new block behind the first
        (2, [0, 0], 0),
    ],
)
def test_new_blocks_and_copies_are_counted_together(num_tables, num_tokens, expected):
    pool = BlockAllocator(9)
    table = BlockTable(pool, 4)
    table.append_tokens(6)
    tables = [table, *(fork(table) for _ in range(num_tables - 1))]
    assert blocks_to_grow(tables, num_tokens) == expected


@pytest.mark.parametrize(
    ("num_to_compute", "budget", "expected"),
    [
        ([1, 1, 1], 3, [1, 1, 1]),
        ([1, 1, 1], 2, [0, 0, 0]),  # all of them or none
        ([5, 5], 10, [5, 5]),
        ([5, 5], 9, [4, 4]),  # each stops before its newest token
        ([5, 5], 6, [4, 2]),
        ([1, 5], 5, [0, 4]),
        ([5, 5], 0, [0, 0]),
    ],
)
def test_a_group_shares_the_budget_and_ends_together(num_to_compute, budget, expected):
    assert shared_budget(num_to_compute, budget) == expected


def test_tables_move_with_their_sharing_and_their_holes():
    pool, host = BlockAllocator(9), BlockAllocator(9)
    table = BlockTable(pool, 2)
    table.append_tokens(7)
    table.drop_before(2)
    foreign = fork(table)
    moved, pairs = move_tables([table, fork(table)], host)
    assert [one.block_ids for one in moved] == [[None, 0, 1, 2]] * 2
    assert pairs == [(1, 0), (2, 1), (3, 2)]
    assert [one.num_tokens for one in moved] == [7, 7]
    host.check(moved)
    pool.check([foreign])  # what others hold stays where it is


def test_tables_that_do_not_fit_stay_where_they_are():
    pool, host = BlockAllocator(9), BlockAllocator(1)
    table = BlockTable(pool, 2)
    table.append_tokens(3)
    with pytest.raises(Exception, match="2 blocks were asked for"):
        move_tables([table], host)
    pool.check([table])
    host.check([])
