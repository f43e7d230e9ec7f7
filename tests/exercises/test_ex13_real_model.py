"""Exercise 13. Beams on tables of the grader; then the parts of five earlier exercises.

The parts serve in the worker. What they must make is made here, by the package's parts.
"""

import random
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import zip_longest

import pytest

from course.grader import (
    Hidden,
    expect,
    expect_close,
    expect_that,
    in_worker,
    not_verified,
    rewrite_history,
    task,
)
from course.grader.failures import CheckFailed, fail, is_unsolved
from course.grader.helpers.pools import Table, given_pool
from course.grader.report import NO_ERROR
from paged_attention.sharing import copy_on_write, fork

# Imported while the warm process does the same. Without transformers no test here runs:
# the exercise preloads it, so all are reported as not verified.
if find_spec("transformers"):
    import_module("course.grader.helpers.ex13")

SCATTERED = (5, 2, 7, 0, 3)  # what a pool of 8 hands out first

# 13.1


def copies_in_words(number):
    return "1 copy" if number == 1 else f"{number} copies"


class Search:
    """Beams, what their blocks hold, and what each must read."""

    def __init__(self, exercise, num_blocks, block_size, num_prompt_tokens, first=()):
        self.exercise = exercise
        self.pool = given_pool(exercise, num_blocks, first)
        self.rows = {}  # slot -> what was written there
        self.others = []  # tables of somebody else, and their text
        table = Table(self.pool, block_size)
        self.prompt = [f"prompt {i}" for i in range(num_prompt_tokens)]
        for slot, text in zip(
            table.append_tokens(num_prompt_tokens), self.prompt, strict=True
        ):
            self.rows[slot] = text
        self.live = [(0.0, [])]  # score and tokens, best first
        self.beams = [(table, [], 0.0)]
        self.tables = [table]
        self.num_copied = 0

    def shared_with_somebody(self):
        """A fork of the first beam that is no beam, and has written nothing."""
        text = self.prompt + self.live[0][1]
        self.others.append((fork(self.tables[0]), text))

    def step(self, log_probs, width):
        """One step; everything that was promised is checked."""
        minimum = self._copies_needed(log_probs, width)
        call = self.exercise.beam_step
        functions = Hidden(fork, "fork"), Hidden(copy_on_write, "copy_on_write")
        beams, copies = call(self.beams, log_probs, width, *functions)
        self._check_choice(beams)
        tables = [table for table, _, _ in beams]
        self._check_tables(tables)
        self._write(tables, copies)
        for table, (_, tokens) in zip(tables, self.live, strict=True):
            self._check_text(table, self.prompt + tokens, f"the beam with {tokens}")
        for table, text in self.others:
            self._check_text(table, text, "somebody else's text")
        if len(copies) != minimum:
            claim = "a block is copied only if a token goes into it and others hold it"
            got = f"{copies_in_words(len(copies))}: {copies}"
            fail(claim, expected=copies_in_words(minimum), got=got)
        self.num_copied += len(copies)
        self.beams, self.tables = beams, tables

    def _copies_needed(self, log_probs, width):
        """How many must be made; and who lives on, by looking at every candidate."""
        candidates = []
        for place, (score, tokens) in enumerate(self.live):
            for token, log_prob in enumerate(log_probs[place]):
                candidates.append((score + log_prob, [*tokens, token], place))
        candidates.sort(key=lambda candidate: -candidate[0])
        chosen = candidates[:width]
        self.live = [(score, tokens) for score, tokens, _ in chosen]
        writers = {}  # tail -> how many write to it
        for _, _, place in chosen:
            table = self.tables[place]
            if table.num_tokens % table.block_size:
                writers.setdefault(table.block_ids[-1], []).append(place)
        needed = 0
        for block_id, places in writers.items():
            outside = sum(block_id in table.block_ids for table, _ in self.others)
            needed += len(places) - (0 if outside else 1)
        return needed

    def _check_choice(self, beams):
        texts = [tokens for _, tokens, _ in beams]
        claim = "the best of all candidates live on, the best one first"
        expect(texts, [tokens for _, tokens in self.live], claim)
        for (_, _, got), (score, tokens) in zip(beams, self.live, strict=True):
            claim = f"the score of the beam with {tokens}"
            expect_close(got, score, claim, atol=1e-4)

    def _check_tables(self, tables):
        places = {}
        for table in [*tables, *(table for table, _ in self.others)]:
            if not isinstance(table, Table):
                expected = "a table like the one that it was given"
                fail("each beam has a table", expected=expected, got=repr(table))
            for block_id in table.block_ids:
                places[block_id] = places.get(block_id, 0) + 1
        num_different = len({id(table) for table in tables})
        if num_different != len(tables):
            claim, expected = (
                "each beam has a table of its own",
                f"{len(tables)} tables",
            )
            fail(claim, expected=expected, got=f"{num_different} that are different")
        length = len(self.prompt) + len(self.live[0][1])
        for table in tables:
            claim = f"a new beam has room for one token more than before: {table!r}"
            expect(table.num_tokens, length, f"{claim}, num_tokens")
        counts = {i: self.pool.ref_count(i) for i in range(self.pool.num_blocks)}
        held = {block_id: n for block_id, n in counts.items() if n}
        if held != places:
            fail(
                "the ref_count of each block is the number of tables that hold it; "
                "block: ref_count",
                expected=repr(dict(sorted(places.items()))),
                got=repr(dict(sorted(held.items()))),
                message=self._who_holds(held, places),
            )

    def _who_holds(self, held, places):
        """In words: blocks with a holder that is no table, and tables without one."""
        more = [i for i, n in sorted(held.items()) if n > places.get(i, 0)]
        fewer = [i for i, n in sorted(places.items()) if n > held.get(i, 0)]
        told = []
        if more:
            told.append(
                f"blocks {more} have a holder that is no table of a new beam: was the "
                "table of one that was dropped not freed?"
            )
        if fewer:
            told.append(f"blocks {fewer} were freed although a new beam holds them")
        return "; ".join(told)

    def _write(self, tables, copies):
        block_size = tables[0].block_size
        for source, destination in copies:
            for offset in range(block_size):
                text = self.rows.get(source * block_size + offset)
                self.rows[destination * block_size + offset] = text
        for table, (_, tokens) in zip(tables, self.live, strict=True):
            self.rows[table.slot(table.num_tokens - 1)] = tokens[-1]

    def _check_text(self, table, text, whose):
        got = [self.rows.get(slot) for slot in table.slots(0, table.num_tokens)]
        expect(got, text, f"{whose} is what {table!r} reads, in its blocks")


@task("13.1")
def test_the_prompt_goes_on_with_its_best_token(exercise):
    search = Search(exercise, 4, 4, 6)
    search.step([[-2.0, -0.5, -1.5]], 1)


@task("13.1")
def test_the_prompt_becomes_three_beams(exercise):
    search = Search(exercise, 8, 4, 6, SCATTERED)
    search.step([[-2.0, -0.5, -1.5, -3.0]], 3)


@task("13.1")
def test_a_full_block_is_not_copied(exercise):
    search = Search(exercise, 8, 4, 8, SCATTERED)
    search.step([[-2.0, -0.5, -1.5, -3.0]], 3)
    expect(search.num_copied, 0, "copies, as the prompt fills its blocks exactly")


@task("13.1")
def test_one_beam_takes_all_places(exercise):
    """Scores are summed: the better beam's third token beats the other one's first."""
    search = Search(exercise, 8, 4, 5, SCATTERED)
    search.step([[-1.0, -5.0, -9.0]], 2)
    search.step([[-1.1, -1.2, -1.3], [-0.1, -0.2, -0.3]], 3)


@task("13.1")
def test_a_worse_beam_can_become_the_best(exercise):
    search = Search(exercise, 8, 4, 5, SCATTERED)
    search.step([[-1.0, -1.5, -9.0]], 2)
    search.step([[-3.0, -4.0, -5.0], [-0.5, -0.7, -6.0]], 2)


@task("13.1")
def test_every_candidate_lives_if_there_are_few(exercise):
    search = Search(exercise, 12, 4, 3)
    search.step([[-1.0, -0.5]], 5)
    search.step([[-0.3, -0.6], [-1.1, -1.3]], 5)


@task("13.1")
def test_a_dropped_beam_makes_room_in_a_full_pool(exercise):
    """The copy needs a block, and the only one is that of the beam that is dropped."""
    search = Search(exercise, 2, 4, 1)
    search.step([[-1.0, -1.5, -9.0]], 2)
    expect(search.pool.num_free, 0, "blocks that are free now")
    search.step([[-0.5, -0.7, -6.0], [-3.0, -4.0, -5.0]], 2)


@task("13.1")
def test_what_somebody_else_holds_is_not_written(exercise):
    """Even a beam that goes on alone has to copy then."""
    search = Search(exercise, 8, 4, 6, SCATTERED)
    search.shared_with_somebody()
    search.step([[-2.0, -0.5, -1.5, -3.0]], 1)
    search.shared_with_somebody()
    search.step([[-2.0, -0.5, -1.5, -3.0]], 2)


@task("13.1")
def test_many_steps_leave_no_block_behind(exercise):
    for seed, (block_size, width) in enumerate([(1, 2), (2, 3), (3, 4), (4, 3)]):
        chance = random.Random(seed)
        search = Search(exercise, 60, block_size, 1 + seed)
        if seed % 2:
            search.shared_with_somebody()
        for _ in range(8):
            search.step(
                [[chance.gauss(-3, 1.5) for _ in range(5)] for _ in search.live], width
            )
        for table in search.tables:
            table.free()
        for table, _ in search.others:
            table.free()
        expect(search.pool.num_free, 60, "free blocks, when all beams are released")


# 13.2 to 13.6

HELPERS = "course.grader.helpers.ex13"

# The learner's function: its keywords, whose file does the work, and what must be seen
# to run there. A tuple: one of these.
PARTS = {
    "my_allocator": (
        ["allocator_class"],
        "ex04_free_list",
        [("allocate_many", "allocate"), ("free_many", "free"), ("share",)],
    ),
    "my_block_table": (
        ["block_table_class"],
        "ex05_block_table",
        [("append_tokens",), ("block_ids",), ("free",)],
    ),
    "my_sharing": (
        ["copy_on_write", "fork"],
        "ex06_ref_counting",
        [("fork_table",), ("copy_before_write",)],
    ),
    "my_attention": (["attention"], "ex08_paged_attention", [("attend_over_blocks",)]),
    "my_scheduler": (
        ["scheduler_class"],
        "ex12_scheduling",
        [("schedule",), ("plan_group",), ("finish_step",)],
    ),
}


@cache
def made_by_ours(setting):
    """What the package's own parts make in this setting, in the grader."""
    from course.grader.helpers import ex13

    result = ex13.serve(setting, {})
    tried = {"roomy": "num_hit_tokens", "tight": "num_preemptions"}[setting]
    assert result[tried] > 0, f"{setting} does not try what it is there for"
    return result


def part(exercise, name):
    """The learner's function, once it is seen to name the right keywords."""
    keywords, _, _ = PARTS[name]
    got = in_worker(exercise, f"{HELPERS}:keywords_of", getattr(exercise, name))
    expect(got, keywords, f"{name}() returns a dict with these keywords of Engine")
    return getattr(exercise, name)


@contextmanager
def work_of(stem):
    """What goes wrong in here may well be the fault of that file: say what to do."""
    command = f"course grade {int(stem[2:4])}"
    advice = f"{command} may show a smaller case"
    try:
        yield
        return
    except CheckFailed as error:
        if command not in error.message:
            error.message = f"{error.message}; {advice}" if error.message else advice
        raise
    except Exception as error:
        learner = getattr(error, "learner", None)
        is_ours = learner is None or is_unsolved(error)
        if is_ours or "ex13_real_model" in (learner.location or ""):
            raise
    # Not in the handler: what led to this failure needs no second telling.
    here = f" here: {learner.line}" if learner.line else ""
    call = "the engine" if learner.call.startswith("serve_with") else learner.call
    fail(
        expected=NO_ERROR,
        got=f"{learner.name}: {learner.text}",
        message=f"{call} raised it{here}; {advice}",
        location=learner.location,
    )


def served(exercise, name, setting):
    """What an engine with this part of the learner's made; it is whole and theirs."""
    _, stem, must_run = PARTS[name]
    function, number = part(exercise, name), int(stem[2:4])
    where = f"{HELPERS}:serve_with"
    with work_of(stem):
        try:
            result = in_worker(exercise, where, function, setting, stem)
        finally:
            story = f"Engine(model, **{name}()) serves six requests, {HOW[setting]}"
            rewrite_history(exercise, [story])
    if "unsolved" in result:
        fail(
            f"exercise {number} serves a model",
            message=f"exercise {number} is not solved yet ({result['unsolved']}): "
            f"course grade {number}",
        )
    for one_of in must_run:
        claim = f"{' or '.join(one_of)} of your file {stem}.py runs"
        calls = sum(result["calls"].get(function, 0) for function in one_of)
        expect_that(calls > 0, claim, got=calls, expected="1 call or more")
    return result


def check_part(exercise, name):
    """Alone beside the package's other parts, in a large pool and in a small one."""
    _, stem, _ = PARTS[name]
    for setting in ("roomy", "tight"):
        ours, got = made_by_ours(setting), served(exercise, name, setting)
        with work_of(stem):
            compare(ours, got, setting)


HOW = {
    "roomy": "in a large pool, with a prefix cache and a sliding window",
    "tight": "in a small pool, where some have to leave",
}


def first_difference(right, answer):
    """Of two [request, which of its answers, *tokens]."""
    number, index, *expected = right
    if answer[:2] != right[:2]:
        got = f"answer {answer[1]} of request {answer[0]}"
        return {"expected": f"answer {index} of request {number}", "got": got}
    got = answer[2:]
    at = 0
    for at, (one, other) in enumerate(zip_longest(expected, got)):
        if one != other:
            break
    return {
        "expected": f"answer {index} of request {number} goes on {expected[at:][:5]} "
        f"after {at} tokens",
        "got": f"{got[at:][:5]}",
    }


def compare(ours, got, setting):
    """What the learner's part made, with what the package's made."""
    how = HOW[setting]
    claim = f"the same answers as with the package's part, {how}"
    for right, answer in zip(ours["answers"], got["answers"], strict=False):
        if answer != right:
            fail(claim, **first_difference(right, answer))
    expect(len(got["answers"]), len(ours["answers"]), f"{claim}: how many")
    expect(got["num_free"], ours["num_blocks"], f"free blocks at the end, {how}")
    if setting == "roomy":
        claim, hits = "what is cached is not computed again", got["num_hit_tokens"]
        expected = "some tokens, of prompts that begin alike"
        expect_that(hits > 0, claim, got=hits, expected=expected)
    if setting == "tight":
        claim = "somebody had to leave, so small is the pool"
        left = got["num_preemptions"]
        expect_that(left > 0, claim, got=left, expected="1 or more")


@task("13.2")
def test_your_allocator_serves(exercise):
    check_part(exercise, "my_allocator")


@task("13.3")
def test_your_block_table_serves(exercise):
    check_part(exercise, "my_block_table")


@task("13.4")
def test_your_fork_and_copy_on_write_serve(exercise):
    check_part(exercise, "my_sharing")


@task("13.5")
def test_your_attention_serves(exercise):
    check_part(exercise, "my_attention")


@task("13.6")
def test_your_scheduler_serves(exercise):
    check_part(exercise, "my_scheduler")


@cache
def answers_of_smollm2():
    """What the package's parts make of it; None without the model."""
    from course.grader.helpers import ex13
    from paged_attention.model_files import ModelMissingError

    try:
        return ex13.serve_smollm2([])
    except ModelMissingError:
        return None


@pytest.mark.proof
@task("13.6")
def test_smollm2_answers_through_all_parts_that_are_solved(exercise):
    expected = answers_of_smollm2()
    if expected is None:
        not_verified("SmolLM2 is not here: course get-model")
    # One that is not solved, or not right, loses its own task.
    names = [name for name in PARTS if is_solved(exercise, name)]
    functions = [getattr(exercise, name) for name in names]
    got = in_worker(exercise, f"{HELPERS}:serve_smollm2", functions)
    claim = f"SmolLM2's first tokens through {', '.join(names)}, as with the package's"
    expect(got, expected, claim)


def is_solved(exercise, name):
    """Whether the part makes the right tokens where there is room for all."""
    _, stem, _ = PARTS[name]
    function, where = getattr(exercise, name), f"{HELPERS}:serve_with"
    try:
        got = in_worker(exercise, where, function, "roomy", stem)
    except Exception:
        return False
    return got.get("answers") == made_by_ours("roomy")["answers"]
