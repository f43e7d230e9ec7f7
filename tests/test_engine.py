"""The engine makes the tokens that transformers makes, whatever happens on the way."""

import sys
from dataclasses import replace
from functools import cache

import pytest
import torch
from tiny_models import VOCAB, generate, make_model

from paged_attention import engine as engine_module
from paged_attention import hf
from paged_attention.allocator import BlockAllocator
from paged_attention.attention import paged_attention
from paged_attention.block_table import BlockTable
from paged_attention.engine import Engine
from paged_attention.outputs import Output
from paged_attention.params import SamplingParams
from paged_attention.requests import Request
from paged_attention.sampling import Draw, random_number, sample
from paged_attention.scheduler import Scheduler
from paged_attention.sharing import copy_on_write, fork

pytest.importorskip("transformers", reason="not verified: transformers is missing")

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma3", "phi3", "gpt2"]
MAX_TOKENS = 12

WAYS = {
    "blocks of one token": {"block_size": 1, "token_budget": 7},
    "blocks of 16": {"block_size": 16},
    "blocks of 128": {"block_size": 128, "token_budget": 11},
    "preempted, computed again": {
        "block_size": 4,
        "num_blocks": 14,
        "token_budget": 16,
    },
    "preempted, swapped": {
        "block_size": 4,
        "num_blocks": 14,
        "token_budget": 16,
        "num_host_blocks": 30,
    },
    "no prefix cache": {"block_size": 4, "token_budget": 16, "prefix_caching": False},
}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Two threads would cost a tiny model more than they give."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def random_prompt(length, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(VOCAB, (length,), generator=generator).tolist()


PROMPTS = [random_prompt(n, n) for n in (1, 5, 16, 17, 33, 40)]


@cache
def reference(architecture="llama"):
    return make_model(architecture)


@cache
def ours(architecture="llama"):
    return make_model(architecture)


@cache
def greedy_of_transformers(architecture="llama", num_tokens=MAX_TOKENS):
    return [generate(reference(architecture), p, num_tokens) for p in PROMPTS]


def tokens_of(outputs):
    return [output.token_ids for output in outputs]


def is_whole(engine):
    """Whether all blocks are back, and the counts agree with no table at all."""
    pool = engine.prefix_cache or engine.allocator
    pool.check([])
    return pool.num_free == pool.num_blocks


# `make test` tries one architecture in all ways, and the others in one.
EVERY_WAY = [
    pytest.param(
        architecture,
        way,
        marks=()
        if architecture == "llama" or way == "no prefix cache"
        else pytest.mark.proof,
    )
    for architecture in ARCHITECTURES
    for way in WAYS
]


@pytest.mark.parametrize(("architecture", "way"), EVERY_WAY)
def test_greedy_tokens_are_those_of_transformers(architecture, way):
    engine = Engine(ours(architecture), **WAYS[way])
    cold = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(cold) == greedy_of_transformers(architecture)
    assert (engine.stats.num_preemptions > 0) == way.startswith("preempted")
    if engine.host_cache is not None:
        assert engine.host_cache.key_cache(0).any(), "nothing was swapped out"
    # Once more, with what the prefix cache remembers.
    before = engine.stats.num_hit_tokens
    warm = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(warm) == greedy_of_transformers(architecture)
    if not way.startswith("preempted"):  # there, nothing outlives the crowd
        has_full_blocks = engine.cache.config.block_size < len(PROMPTS[-1])
        finds = engine.prefix_cache is not None and has_full_blocks
        assert (engine.stats.num_hit_tokens > before) == finds
    assert is_whole(engine)


class OneSlotWrong(Scheduler):
    """In one step, one token of a chunk is written into its neighbour's slot."""

    def schedule(self):
        plan = super().schedule()
        slots = plan.slot_mapping
        if plan.seq_lens and plan.seq_lens[0] == 33:
            slots[-3] = slots[-2]
        return plan


@pytest.mark.parametrize(
    "architecture",
    [
        pytest.param(each, marks=() if each == "llama" else pytest.mark.proof)
        for each in ARCHITECTURES
    ],
)
def test_one_slot_written_wrong_changes_the_tokens(architecture):
    """So equal tokens, above, do say that every slot was right."""
    options = {"block_size": 4, "prefix_caching": False}
    params = SamplingParams(40, ignore_eos=True)
    right = Engine(ours(architecture), **options).generate(PROMPTS[4], params)
    wrong = Engine(
        ours(architecture), **options, scheduler_class=OneSlotWrong
    ).generate(PROMPTS[4], params)
    assert tokens_of(right) != tokens_of(wrong)


# --- sampling ---


def sampled_by_hand(prompt, params, index, num_tokens):
    """Token after token with transformers' model, nothing cached."""
    token_ids = list(prompt)
    for _ in range(num_tokens):
        with torch.inference_mode():
            ids = torch.tensor([token_ids])
            logits = reference()(ids, attention_mask=torch.ones_like(ids)).logits[0]
        number = random_number(params.seed, index, len(token_ids))
        draw = Draw(params.temperature, params.top_p, number)
        token_ids += sample(logits[-1:], [draw])
    return token_ids[len(prompt) :]


def roomier(way, num_blocks):
    """A group must fit as a whole; where blocks are short, they still are."""
    options = dict(WAYS[way])
    return options | {"num_blocks": num_blocks} if "num_blocks" in options else options


SAMPLED = SamplingParams(8, temperature=1.5, top_p=0.9, n=3, seed=7, ignore_eos=True)


@pytest.mark.parametrize("way", WAYS)
def test_n_samples_share_the_prompt_and_each_draws_its_own(way):
    engine = Engine(ours(), **roomier(way, 18))
    for prompt in PROMPTS[2:4]:
        engine.add_request(prompt, SAMPLED)
    ended, most_shared = {}, 0
    while engine.has_work:
        for output in engine.step():
            ended[output.request_id, output.index] = output.token_ids
        most_shared = max(most_shared, engine.stats.num_shared)
    for request_id, prompt in enumerate(PROMPTS[2:4]):
        expected = [sampled_by_hand(prompt, SAMPLED, i, 8) for i in range(3)]
        assert [ended[request_id, i] for i in range(3)] == expected
        assert len({*map(tuple, expected)}) == 3
    assert most_shared > 0
    assert (engine.stats.num_preemptions > 0) == way.startswith("preempted")
    assert is_whole(engine)


def test_a_seeded_request_does_not_depend_on_the_batch():
    alone = Engine(ours()).generate(PROMPTS[5], SAMPLED)
    engine = Engine(ours(), num_blocks=60, block_size=4, token_budget=16)
    for prompt in PROMPTS[:5]:
        engine.add_request(prompt, replace(SAMPLED, seed=1))
    among_others = engine.generate(PROMPTS[5], SAMPLED)
    assert tokens_of(among_others) == tokens_of(alone)


def test_without_a_seed_two_requests_draw_differently():
    params = replace(SAMPLED, seed=None, n=1)
    first, second = Engine(ours()).generate([PROMPTS[2]] * 2, params)
    assert first.token_ids != second.token_ids


# --- beam search ---


def beams_of_transformers(prompt, width, n, num_tokens):
    ids = torch.tensor([prompt])
    made = reference().generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=num_tokens,
        num_beams=width,
        num_return_sequences=n,
        do_sample=False,
    )
    found = []
    for row in made[:, len(prompt) :].tolist():
        end = row.index(2) + 1 if 2 in row else len(row)  # padding stands behind EOS
        found.append(row[:end])
    return found


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    ("width", "n"), [pytest.param(2, 1, marks=pytest.mark.proof), (4, 3)]
)
def test_beams_are_those_of_transformers(width, n, way):
    engine = Engine(ours(), **roomier(way, width * 7))
    params = SamplingParams(10, n=n, beam_width=width)
    outputs = engine.generate(PROMPTS[:4], params)
    expected = [beams_of_transformers(p, width, n, 10) for p in PROMPTS[:4]]
    assert tokens_of(outputs) == [tokens for beams in expected for tokens in beams]
    assert [output.index for output in outputs] == [*range(n)] * 4
    assert (engine.stats.num_preemptions > 0) == way.startswith("preempted")
    assert is_whole(engine)


def test_a_beam_search_is_seen_once_and_best_first():
    engine = Engine(ours())
    engine.add_request(PROMPTS[1], SamplingParams(6, n=2, beam_width=3))
    steps = []
    while engine.has_work:
        steps.append(engine.step())
    assert [len(outputs) for outputs in steps] == [0] * 5 + [2]
    assert [o.finish_reason for o in steps[-1]] == ["length", "length"]


# --- when a text ends ---


def test_a_stop_token_ends_the_text_and_stands_in_it():
    whole = greedy_of_transformers(num_tokens=8)[3]
    stop = whole[4]
    assert stop not in whole[:4]
    params = SamplingParams(8, stop_token_ids=(stop,))
    (output,) = Engine(ours()).generate(PROMPTS[3], params)
    assert (output.token_ids, output.finish_reason) == (whole[:5], "stop")


def test_eos_ends_a_text_unless_it_is_ignored():
    model = ours()
    whole = greedy_of_transformers(num_tokens=8)[3]
    eos, model.generation_config.eos_token_id = (
        model.generation_config.eos_token_id,
        [whole[2], 5],
    )
    try:
        engine = Engine(model)
    finally:
        model.generation_config.eos_token_id = eos
    assert engine.eos_token_ids == {whole[2], 5}
    (ended,) = engine.generate(PROMPTS[3], SamplingParams(8))
    assert (ended.token_ids, ended.finish_reason) == (whole[:3], "stop")
    (ignored,) = engine.generate(PROMPTS[3], SamplingParams(8, ignore_eos=True))
    assert (ignored.token_ids, ignored.finish_reason) == (whole, "length")


# --- requests come and go ---


def test_step_returns_what_grew():
    engine = Engine(ours(), token_budget=8, block_size=4)
    first = engine.add_request(PROMPTS[3], SamplingParams(3, ignore_eos=True))
    seen = [engine.step() for _ in range(5)]
    assert not engine.has_work and engine.step() == []
    assert [len(outputs) for outputs in seen] == [0, 0, 1, 1, 1]  # 17 tokens by 8
    expected = greedy_of_transformers()[3][:3]
    assert [o.token_ids for (o,) in seen[2:]] == [expected[: i + 1] for i in range(3)]
    assert [o.finish_reason for (o,) in seen[2:]] == [None, None, "length"]
    assert {o.request_id for (o,) in seen[2:]} == {first}


@pytest.mark.parametrize("num_steps", range(6))
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(3),
        replace(SAMPLED, max_tokens=3),
        SamplingParams(3, beam_width=2),
    ],
    ids=["one", "n", "beams"],
)
def test_abort_in_any_state_gives_everything_back(params, num_steps):
    engine = Engine(ours(), token_budget=8, block_size=4, num_blocks=30)
    other = engine.add_request(PROMPTS[1], SamplingParams(3, ignore_eos=True))
    request_id = engine.add_request(PROMPTS[3], params)
    outputs = [output for _ in range(num_steps) for output in engine.step()]
    was_over = any(o.finish_reason for o in outputs if o.request_id == request_id)
    engine.abort(request_id)
    engine.abort(request_id)
    left = []
    while engine.has_work:
        left += engine.step()
    aborted = [o for o in left if o.request_id == request_id]
    assert was_over or aborted
    assert all(o.finish_reason == "aborted" for o in aborted)
    texts = [o.token_ids for o in outputs + left if o.request_id == other]
    assert texts[-1] == greedy_of_transformers()[1][:3]
    assert is_whole(engine)


def test_generate_keeps_what_other_requests_make_for_the_next_step():
    engine = Engine(ours())
    other = engine.add_request(PROMPTS[1], SamplingParams(3, ignore_eos=True))
    engine.generate(PROMPTS[3], SamplingParams(6, ignore_eos=True))
    kept = engine.step()
    assert [o.request_id for o in kept] == [other] * 3
    assert kept[-1].finish_reason == "length"


def test_generate_that_is_interrupted_leaves_nothing_behind():
    def attention(query, *args, **options):
        raise KeyboardInterrupt

    engine = Engine(make_model(), attention=attention)
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, SamplingParams(3))
    assert not engine.has_work and engine.sequences == []
    assert is_whole(engine)


def test_after_a_step_that_failed_the_engine_goes_on():
    failing = [True]

    def attention(*args, **options):
        if failing:
            raise RuntimeError("out of memory")
        return paged_attention(*args, **options)

    engine = Engine(ours(), attention=attention, token_budget=8)
    failing.clear()
    waiting = engine.add_request(PROMPTS[1], SamplingParams(3, ignore_eos=True))
    engine.step()
    failing.append(True)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    failing.clear()
    (aborted,) = engine.step()
    assert (aborted.request_id, aborted.finish_reason) == (waiting, "aborted")
    outputs = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(outputs) == greedy_of_transformers()


def failing_once(function, after):
    """As the function, but one call fails: the next one after so many."""
    calls = []

    def fails(*args, **options):
        calls.append(args)
        if len(calls) == after + 1:
            raise RuntimeError("a part broke")
        return function(*args, **options)

    return fails


def parts_that_fail(part, after):
    """Engine options by which this part fails once."""
    if part in ("counts", "settle"):
        return {}
    if part == "fork":
        return {"fork": failing_once(fork, after)}
    if part == "copy_on_write":
        return {"copy_on_write": failing_once(copy_on_write, after)}
    if part == "append_tokens":
        append = failing_once(BlockTable.append_tokens, after)
        table_class = type("Table", (BlockTable,), {"append_tokens": append})
        return {"block_table_class": table_class}
    method = failing_once(getattr(Scheduler, part), after)
    return {"scheduler_class": type("Planner", (Scheduler,), {part: method})}


@pytest.mark.parametrize("after", [2, 7])
@pytest.mark.parametrize(
    "part",
    [
        "fork",
        "copy_on_write",
        "append_tokens",
        "schedule",
        "counts",
        "finish_step",
        "settle",
    ],
)
def test_a_part_that_fails_spoils_no_tokens_and_keeps_no_blocks(
    part, after, monkeypatch
):
    options = {"block_size": 4, "num_blocks": 60, "token_budget": 16}
    engine = Engine(ours(), **options, **parts_that_fail(part, after))
    if part == "counts":  # no drop-in, but Ctrl-C comes everywhere
        engine._counts.see = failing_once(engine._counts.see, after)
    if part == "settle":
        settle = failing_once(engine_module.settle, after)
        monkeypatch.setattr(engine_module, "settle", settle)
    for prompt in PROMPTS[:4]:
        engine.add_request(prompt, SamplingParams(MAX_TOKENS))
        engine.add_request(prompt, replace(SAMPLED, max_tokens=3))
    last, num_failures = {}, 0
    while engine.has_work:
        try:
            for output in engine.step():
                last[output.request_id, output.index] = output
        except RuntimeError as error:
            assert str(error) == "a part broke"
            num_failures += 1
    assert num_failures == 1
    assert is_whole(engine)
    # Whoever was not aborted has the tokens that it would have had anyway.
    assert {request_id for request_id, _ in last} == set(range(8))
    for (request_id, index), output in last.items():
        prompt = PROMPTS[request_id // 2]
        expected = greedy_of_transformers()[request_id // 2]
        if request_id % 2:
            expected = sampled_by_hand(prompt, SAMPLED, index, 3)
        if output.finish_reason == "aborted":
            expected = expected[: len(output.token_ids)]
        assert output.token_ids == expected


@pytest.mark.parametrize("n", [1, 3])
def test_what_ended_in_a_step_that_failed_is_told_all_the_same(n, monkeypatch):
    engine = Engine(ours(), block_size=4, num_blocks=60)
    settle = engine_module.settle
    monkeypatch.setattr(engine_module, "settle", failing_once(settle, 0))
    params = SamplingParams(1, n=n, temperature=1.0 if n > 1 else 0.0)
    engine.add_request(PROMPTS[1], params)
    with pytest.raises(RuntimeError, match="a part broke"):
        engine.step()
    # Of three, two were forks of which nobody had heard.
    (output,) = engine.step()
    assert output.finish_reason == "length" and len(output.token_ids) == 1
    assert is_whole(engine) and not engine.has_work


def test_a_request_that_is_interrupted_while_it_is_queued_was_never_there(monkeypatch):
    engine = Engine(ours())
    add = engine.scheduler.add
    engine.scheduler.add = lambda sequence: add(sequence) or interrupt()

    def interrupt(*_):
        raise KeyboardInterrupt

    for _ in range(2):  # while it is queued, and before
        with pytest.raises(KeyboardInterrupt):
            engine.add_request(PROMPTS[1])
        assert not engine.has_work and not engine.sequences
        engine.scheduler.add = add
        monkeypatch.setattr(engine_module.random, "getrandbits", interrupt)
    monkeypatch.undo()
    outputs = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(outputs) == greedy_of_transformers()


def test_an_end_is_told_once_even_if_what_comes_after_it_fails():
    class Table(BlockTable):
        fails = False

        def drop_before(self, position):
            if Table.fails:
                raise RuntimeError("a part broke")
            super().drop_before(position)

    options = {"block_size": 2, "num_blocks": 60, "prefix_caching": False}
    engine = Engine(ours("mistral"), block_table_class=Table, **options)
    drawn = SamplingParams(6, n=3, temperature=2.0, seed=1, ignore_eos=True)
    (first, _, _) = tokens_of(engine.generate(PROMPTS[2], drawn))
    assert first[2] not in first[:2]
    engine.add_request(PROMPTS[2], replace(drawn, stop_token_ids=(first[2],)))
    outputs = engine.step() + engine.step()
    Table.fails = True
    with pytest.raises(RuntimeError, match="a part broke"):
        engine.step()
    outputs += engine.step()
    ends = [o.index for o in outputs if o.finish_reason]
    assert sorted(ends) == [0, 1, 2]
    assert [o.token_ids for o in outputs if o.finish_reason == "stop"] == [first[:3]]


def interrupted_at(number, *functions):
    """For sys.settrace: Ctrl-C at one of the lines that these functions run."""
    lines = []

    def on_line(frame, event, _):
        if event == "line":
            lines.append(frame.f_lineno)
            if len(lines) == number:
                raise KeyboardInterrupt
        return on_line

    codes = [function.__code__ for function in functions]
    return lambda frame, *_: on_line if frame.f_code in codes else None


def test_an_interrupt_of_generate_at_any_line_loses_no_output_of_others():
    for number in range(1, 200):
        engine = Engine(ours(), num_blocks=20)
        others = [
            engine.add_request(prompt, SamplingParams(n, ignore_eos=True))
            for n, prompt in enumerate(PROMPTS[:2], start=2)
        ]
        before = sys.gettrace()
        sys.settrace(interrupted_at(number, Engine.generate, Engine._complete))
        try:
            engine.generate(PROMPTS[2], SamplingParams(3, ignore_eos=True))
        except KeyboardInterrupt:
            is_interrupted = True
        else:
            is_interrupted = False
        finally:
            sys.settrace(before)
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        ended = [o.request_id for o in outputs if o.finish_reason]
        assert sorted(ended) == others, f"line event {number}"
        assert {o.request_id for o in outputs} <= {*others}
        assert is_whole(engine)
        if not is_interrupted:
            break
    assert number > 20 and not is_interrupted


def test_an_interrupt_at_any_line_of_a_step_leaves_the_engine_whole():
    for number in range(1, 200):
        engine = Engine(ours(), num_blocks=20)
        for prompt in PROMPTS[:3]:
            engine.add_request(prompt, SamplingParams(2, ignore_eos=True))
        before = sys.gettrace()
        sys.settrace(interrupted_at(number, Engine._carry_out))
        try:
            engine.step()
        except KeyboardInterrupt:
            is_interrupted = True
        else:
            is_interrupted = False
        finally:
            sys.settrace(before)
        outputs = []
        while engine.has_work:
            outputs += engine.step()
        ended = [o.request_id for o in outputs if o.finish_reason]
        assert sorted(ended) == [0, 1, 2], f"line event {number}"
        assert is_whole(engine)
        if not is_interrupted:
            break
    assert number > 10 and not is_interrupted


def test_what_was_told_before_an_interrupt_is_not_forgotten(monkeypatch):
    engine = Engine(ours())
    for prompt in PROMPTS[:2]:
        engine.add_request(prompt, SamplingParams(1))
    tell, told = Request.outputs, []

    def interrupted_at_the_second(*args):
        told.append(args)
        if len(told) == 2:
            raise KeyboardInterrupt
        return tell(*args)

    monkeypatch.setattr(Request, "outputs", interrupted_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        engine.step()
    outputs = engine.step()
    assert [(o.request_id, o.finish_reason) for o in outputs] == [
        (0, "length"),
        (1, "length"),
    ]


def test_a_step_that_fails_forgets_no_output_and_keeps_their_order():
    failing = []

    def attention(*args, **options):
        if failing:
            raise RuntimeError("out of memory")
        return paged_attention(*args, **options)

    engine = Engine(make_model(), attention=attention)
    params = SamplingParams(5, ignore_eos=True)
    first, second = (engine.add_request(p, params) for p in PROMPTS[1:3])
    engine.step()
    engine.abort(first)
    failing.append(True)
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.step()
    assert [o.request_id for o in engine.step()] == [first, second]

    failing.clear()
    other = engine.add_request(PROMPTS[1], params)
    steps = []

    def failing_at_the_third():
        steps.append(1)
        failing.extend([True] * (len(steps) == 3))
        Engine._advance(engine)

    engine._advance = failing_at_the_third
    with pytest.raises(RuntimeError, match="out of memory"):
        engine.generate(PROMPTS[2], params)
    outputs = engine.step()
    assert {o.request_id for o in outputs} == {other}
    assert [o.finish_reason for o in outputs] == [None, None, "aborted"]


def test_what_was_being_swapped_when_a_step_failed_is_lost_too():
    engine = Engine(ours(), **WAYS["preempted, swapped"])
    copy_blocks = engine.cache.copy_blocks

    def failing(pairs, into=None):
        if pairs and into is not None:
            raise RuntimeError("no host memory")
        copy_blocks(pairs, into)

    engine.cache.copy_blocks = failing
    with pytest.raises(RuntimeError, match="no host memory"):
        engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    engine.cache.copy_blocks = copy_blocks
    assert is_whole(engine) and not engine.sequences
    outputs = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(outputs) == greedy_of_transformers()
    for prompt in PROMPTS:
        engine.add_request(prompt, SamplingParams(MAX_TOKENS))
    engine.cache.copy_blocks = failing
    with pytest.raises(RuntimeError, match="no host memory"):
        while engine.has_work:
            engine.step()
    engine.cache.copy_blocks = copy_blocks
    assert all(s.host_table is None for s in engine.sequences)


@pytest.mark.parametrize("num_host_blocks", [0, 20])
def test_where_every_layer_slides_a_text_needs_no_more_than_its_window(
    num_host_blocks,
):
    options = {"block_size": 4, "num_blocks": 14, "num_host_blocks": num_host_blocks}
    options |= {"prefix_caching": False, "token_budget": 16}
    engine = Engine(ours("mistral"), **options)
    (long,) = engine.generate(PROMPTS[5][:20], SamplingParams(30, ignore_eos=True))
    assert long.token_ids == generate(
        reference("mistral"), PROMPTS[5][:20], 30, eos_token_id=None
    )
    engine.add_request(PROMPTS[5], SamplingParams(10, ignore_eos=True))
    for _ in range(8):
        engine.step()
    # 7 tokens can be seen: they lie in three blocks of 4 at most.
    assert engine.stats.num_blocks - engine.stats.num_free <= 3
    outputs = engine.generate(PROMPTS, SamplingParams(MAX_TOKENS))
    assert tokens_of(outputs) == greedy_of_transformers("mistral")
    assert is_whole(engine)


def test_one_prompt_or_several():
    engine = Engine(ours())
    assert engine.generate([], SamplingParams(2)) == []
    one = tokens_of(engine.generate(PROMPTS[1], SamplingParams(2)))
    array = torch.tensor(PROMPTS[1]).numpy()
    tensor = torch.tensor(PROMPTS[1])
    for several in (
        *([PROMPTS[1]], iter([PROMPTS[1]])),
        *(array, [array], tensor, [tensor], tensor[None]),
    ):
        assert tokens_of(engine.generate(several, SamplingParams(2))) == one


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], SamplingParams(2), "at least one token"),
        ([3, VOCAB], SamplingParams(2), "token ids must be in 0 … 127, got 128"),
        ([3, -1], SamplingParams(2), "got -1"),
        ([3, 4.7], SamplingParams(2), "a token id must be an int, got 4.7"),
        ([3] * 500, SamplingParams(14), "500 tokens and 14 to make .* 512 positions"),
        ("text", SamplingParams(2), "no tokenizer"),
        ([3] * 30, SamplingParams(20), "can never fit"),
    ],
)
def test_what_can_never_be_served_is_refused_at_once(prompt, params, message):
    engine = Engine(ours(), num_blocks=10, block_size=4)
    with pytest.raises(ValueError, match=message):
        engine.generate([PROMPTS[1], prompt], params)
    assert not engine.has_work
    assert is_whole(engine)


@pytest.mark.parametrize("prompts", [5, None, b"ab", {5: 1}, {3, 4}], ids=repr)
def test_what_is_no_prompt_is_refused_and_shown(prompts):
    engine = Engine(ours(), num_blocks=10)
    with pytest.raises(ValueError) as refused:
        engine.generate(prompts)
    assert str(refused.value).endswith(f"list of token ids, got {prompts!r}")


def test_the_last_token_needs_no_position():
    prompt = random_prompt(512, 3)
    engine = Engine(ours())
    expected = generate(reference(), prompt, 1)
    assert tokens_of(engine.generate([prompt], SamplingParams(1))) == [expected]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": "smollm2"}, "'smollm2': Engine.from_pretrained loads one"),
        ({"max_seqs": 0}, "max_seqs must be an integer >= 1, got 0"),
        ({"max_seqs": 2.5}, "max_seqs must be an integer >= 1, got 2.5"),
    ],
)
def test_what_makes_no_engine_says_why(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        Engine(**{"model": ours(), **arguments})


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_blocks": 0},
        {"block_size": 0},
        {"token_budget": 0},
        {"num_host_blocks": -1},
        {"num_blocks": 3, "memory_bytes": 2**20},
        {"memory_bytes": 10},
        {"allocator_class": dict},
    ],
)
def test_where_there_is_no_engine_the_model_is_as_it_was(arguments):
    model = make_model().train()
    before = model.state_dict()
    with pytest.raises((TypeError, ValueError)):
        Engine(model, **arguments)
    assert model.training
    assert generate(model.eval(), PROMPTS[1], 3) == greedy_of_transformers()[1][:3]
    assert model.state_dict().keys() == before.keys()


def test_a_ctrl_c_while_the_engine_is_made_leaves_the_model_as_it_was(monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    model = make_model()
    monkeypatch.setattr(hf, "pack_linear_layers", interrupt)
    with pytest.raises(KeyboardInterrupt):
        Engine(model)
    assert generate(model, PROMPTS[1], 3) == greedy_of_transformers()[1][:3]


def test_a_fork_that_has_to_leave_before_its_first_step_is_counted():
    options = {"block_size": 3, "num_blocks": 5, "prefix_caching": False}
    engine = Engine(ours(), **options)
    engine.add_request([3] * 6, SamplingParams(6, ignore_eos=True))
    drawn = SamplingParams(3, n=3, temperature=2.0, seed=1, ignore_eos=True)
    engine.add_request([3], drawn)
    num_left, schedule = [], engine.scheduler.schedule

    def watched():
        before = [s for s in engine.sequences if s.table is not None]
        plan = schedule()
        num_left.append(sum(s.table is None for s in before))
        return plan

    engine.scheduler.schedule = watched
    while engine.has_work:
        engine.step()
    assert engine.stats.num_preemptions == sum(num_left) == 3


def test_params_of_another_kind_are_refused():
    engine = Engine(ours(), num_blocks=10)
    with pytest.raises(TypeError, match=r"must be SamplingParams, got \{'max_tokens'"):
        engine.add_request([3], {"max_tokens": 3})
    assert not engine.has_work


def test_logits_that_are_nan_make_no_token():
    def nowhere(query, *_, **__):
        return torch.full_like(query, torch.nan)

    engine = Engine(ours(), attention=nowhere)
    for params in (SamplingParams(2), SamplingParams(2, temperature=1.0)):
        with pytest.raises(RuntimeError, match="logits are NaN"):
            engine.generate([PROMPTS[1]], params)
        assert is_whole(engine)
    with pytest.raises(RuntimeError, match="logits are NaN"):
        engine.generate([PROMPTS[1]], SamplingParams(2, beam_width=2))


class PlansNothing(Scheduler):
    def schedule(self):
        return replace(super().schedule(), scheduled=[])


def test_a_scheduler_that_plans_nothing_is_no_endless_loop():
    engine = Engine(ours(), scheduler_class=PlansNothing)
    with pytest.raises(RuntimeError, match="planned nothing, but 1 requests"):
        engine.generate(PROMPTS[1], SamplingParams(2))


# --- sizes, drop-ins, stats ---


def test_the_pool_is_as_large_as_asked_or_as_fits():
    block_bytes = 2 * 3 * 2 * 8 * 4 * 16  # K and V, layers, heads, dim, bytes, tokens
    assert Engine(ours(), num_blocks=11).stats.num_blocks == 11
    engine = Engine(ours(), memory_bytes=block_bytes * 6 - 1)
    assert engine.stats.num_blocks == engine.allocator.num_blocks == 5
    # By default no more than max_seqs texts of 512 tokens could use.
    assert Engine(ours(), max_seqs=3).stats.num_blocks == 3 * 32
    with pytest.raises(ValueError, match="num_blocks or memory_bytes, not both"):
        Engine(ours(), num_blocks=3, memory_bytes=10**6)


def test_every_part_can_be_replaced():
    used = set()

    def noting(name, function):
        def noted(*args, **options):
            used.add(name)
            return function(*args, **options)

        return noted

    class Allocator(BlockAllocator):
        allocate_many = noting("allocator", BlockAllocator.allocate_many)

    class Table(BlockTable):
        append_tokens = noting("table", BlockTable.append_tokens)

    class Planner(Scheduler):
        schedule = noting("scheduler", Scheduler.schedule)

    def attention(query, *args, query_start_loc, scale, window):
        used.add("decode" if query_start_loc is None else "attention")
        return torch.zeros_like(query)

    engine = Engine(
        make_model(),
        allocator_class=Allocator,
        block_table_class=Table,
        fork=noting("fork", fork),
        copy_on_write=noting("copy_on_write", copy_on_write),
        scheduler_class=Planner,
        attention=attention,
    )
    engine.generate(PROMPTS[3], SAMPLED)
    names = "allocator table scheduler fork copy_on_write attention decode"
    assert used == set(names.split())


def test_stats_count_slots_blocks_and_tokens():
    engine = Engine(ours(), num_blocks=20, block_size=4)
    prompt = PROMPTS[3][:10]
    engine.add_request(prompt, SamplingParams(5, temperature=1.0, n=2, seed=0))
    engine.step()
    stats = engine.stats
    # Ten tokens in three blocks, which both samples hold.
    assert (stats.num_free, stats.num_shared, stats.num_cached) == (17, 3, 2)
    assert stats.used_share == pytest.approx(10 / 12)
    engine.step()
    stats = engine.stats
    # One of them writes the last block, the other has copied it.
    assert (stats.num_free, stats.num_shared) == (16, 2)
    assert stats.used_share == pytest.approx((8 + 3 + 3) / 16)
    assert (stats.num_steps, stats.num_tokens, stats.num_seqs) == (2, 12, 2)
    while engine.has_work:
        engine.step()
    assert engine.stats.num_free == 20 and engine.stats.num_seqs == 0
    engine.generate(prompt, SamplingParams(2))
    assert engine.stats.num_hit_tokens == 8


# --- text ---


class Letters:
    """A tokenizer that knows letters, and half a character."""

    chat_template = "[{}]"
    eos_token_id = None

    def __call__(self, text, add_special_tokens=True):
        ids = [ord(c) - ord("a") + 3 for c in text if c.isalpha()]
        return type("Encoded", (), {"input_ids": [1] * add_special_tokens + ids})

    def apply_chat_template(self, messages, add_generation_prompt, tokenize):
        assert messages[0]["role"] == "user" and add_generation_prompt and not tokenize
        return f"u{messages[0]['content']}a"

    def decode(self, token_ids, *, skip_special_tokens):
        return "".join("\ufffd" if t >= 29 else chr(t + 94) for t in token_ids)


def test_text_goes_through_the_chat_template_unless_raw():
    engine = Engine(ours(), Letters())
    letters = {c: ord(c) - ord("a") + 3 for c in "uba"}
    assert engine.tokenize("b") == [letters[c] for c in "uba"]
    assert engine.tokenize("b", raw=True) == [1, letters["b"]]
    text = engine.generate("b", SamplingParams(3))
    tokens = engine.generate(engine.tokenize("b"), SamplingParams(3))
    assert tokens_of(text) == tokens_of(tokens)


def test_half_a_character_is_withheld_while_the_text_grows():
    growing = Output(0, 0, [4, 5, 40], None, Letters())
    assert growing.text == "bc"
    assert replace(growing, finish_reason="length").text == "bc\ufffd"
    assert Output(0, 0, [4], "length").text == ""
