"""Runs in the worker: a stage for the learner's scheduler.

Sequences, groups, tables and the pool are the package's, and live objects: they cannot
cross. So they stay here, known by the name of their request. `act` does one thing, and
tells all that is to be seen then. What it means is the grader's business (stage.py).
"""

import json
import random
from typing import Any

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.params import SamplingParams
from paged_attention.prefix_cache import PrefixCache
from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
from paged_attention.sharing import fork

FLAT = ("token_ids", "positions", "slot_mapping", "query_start_loc", "seq_lens")


class Stage:
    """One scheduler, its pool, and all sequences of which somebody spoke."""

    def __init__(self, num_blocks: int, block_size: int, caching: bool) -> None:
        self.pool = BlockAllocator(num_blocks)
        # Which block comes next is nobody's business, so it is a drawn one.
        taken = self.pool.allocate_many(num_blocks)
        self.pool.free_many(random.Random(num_blocks).sample(taken, num_blocks))
        self.block_size = block_size
        self.cache = PrefixCache(self.pool, block_size) if caching else None
        self.source: Any = self.pool if self.cache is None else self.cache
        self.scheduler: Any = None
        self.plan: Any = None
        self.held: list[int] = []
        self.groups: dict[str, SequenceGroup] = {}
        self.sequences: dict[str, list[Sequence]] = {}

    def table(self) -> BlockTable:
        return BlockTable(self.source, self.block_size)


_on: list[Stage] = []  # the one that was set up last


def act(name: str, args: list[Any]) -> str:
    """Do what one of the functions below does; result, plan and state as JSON.

    Lists are long here, and JSON crosses several times faster than values one by one.
    What is no plain value shows as text.
    """
    result = globals()[name](*args)
    seen = {"result": result, "plan": _look_at_plan(), "state": _look()}
    return json.dumps(seen, default=repr)


def look() -> None:
    """Nothing happens."""


def set_up(
    scheduler_class: Any,
    num_blocks: int,
    block_size: int,
    token_budget: int,
    max_seqs: int,
    caching: bool,
) -> None:
    """A new scheduler over a new pool."""
    stage = Stage(num_blocks, block_size, caching)
    stage.scheduler = scheduler_class(
        stage.pool,
        block_size,
        token_budget=token_budget,
        max_seqs=max_seqs,
        prefix_cache=stage.cache,
    )
    _on[:] = [stage]


# --- what happens around the scheduler ----------------------------------------------


def hold(num_blocks: int) -> None:
    """Somebody else takes blocks."""
    _on[0].held += _on[0].source.allocate_many(num_blocks)


def let_go() -> None:
    """Gives back what hold took."""
    _on[0].source.free_many(_on[0].held)
    _on[0].held = []


def share(name: str) -> None:
    """Somebody else holds the blocks of a request's first sequence, too."""
    stage = _on[0]
    shared = fork(_table(stage.sequences[name][0])).block_ids
    stage.held += [block_id for block_id in shared if block_id is not None]


def remember(token_ids: list[int]) -> None:
    """A sequence of these tokens has run and gone: the prefix cache knows it."""
    table = _on[0].table()
    table.append_tokens(len(token_ids))
    assert _on[0].cache is not None, "a stage with a prefix cache"
    _on[0].cache.publish(table, token_ids)
    table.free()


def place_group(
    name: str,
    token_ids: list[list[int]],
    num_written: list[int],
    forked: bool,
    runs: bool,
) -> None:
    """A group in the middle of its life, which the scheduler finds in its lists.

    forked: the tables share all blocks of the first one. Not runs: it was preempted,
    and stands first among those that wait.
    """
    stage = _on[0]
    params = SamplingParams(max_tokens=50, n=len(token_ids))
    sequences = [Sequence(name, tokens[:1], params) for tokens in token_ids]
    for sequence, tokens in zip(sequences, token_ids, strict=True):
        for token_id in tokens[1:]:
            sequence.append(token_id)
    stage.groups[name] = group = SequenceGroup(name, sequences, len(sequences))
    stage.sequences[name] = sequences
    for sequence, written in zip(sequences, num_written, strict=True):
        if not runs:
            sequence.status = SequenceStatus.PREEMPTED
            continue
        if forked and sequence is not sequences[0]:
            sequence.table = fork(_table(sequences[0]))
        else:
            sequence.table = stage.table()
            sequence.table.append_tokens(written)
        sequence.num_computed = written
        sequence.status = SequenceStatus.RUNNING
    if runs:
        stage.scheduler.running.append(group)
    else:
        stage.scheduler.waiting.appendleft(group)


# --- calls of the scheduler's methods -----------------------------------------------


def line_up(name: str, token_ids: list[int], params: dict[str, Any]) -> None:
    """A new request, past the check of task 12.4."""
    _come(name, token_ids, params, "line_up")


def add(name: str, token_ids: list[int], params: dict[str, Any]) -> None:
    """A new request."""
    _come(name, token_ids, params, "add")


def _come(name: str, token_ids: list[int], params: dict[str, Any], how: str) -> None:
    stage = _on[0]
    sequence = Sequence(name, token_ids, SamplingParams(**params))
    getattr(stage.scheduler, how)(sequence)
    stage.sequences[name] = [sequence]
    waiting = stage.scheduler.waiting
    stage.groups[name] = next(g for g in waiting if g.request_id == name)


def owed_blocks(name: str) -> int:
    return _on[0].scheduler.owed_blocks(_on[0].groups[name])


def admit_next() -> str | None:
    """The name of the group that it returned."""
    return _name(_on[0].scheduler.admit_next())


def blocks_needed(name: str, query_lens: list[int]) -> int:
    return _on[0].scheduler.blocks_needed(_on[0].groups[name], query_lens)


def new_plan(plan_class: Any) -> None:
    _on[0].plan = plan_class()


def add_row(name: str, num_tokens: int) -> None:
    """Make room for the next tokens of a sequence alone, then Plan.add_row."""
    sequence = _on[0].sequences[name][0]
    _on[0].plan.add_row(sequence, _table(sequence).append_tokens(num_tokens))


def plan_group(name: str) -> bool:
    return _on[0].scheduler.plan_group(_on[0].groups[name], _on[0].plan)


def preempt(name: str) -> None:
    _on[0].scheduler.preempt(_on[0].groups[name])


def continue_running() -> list[str | None]:
    """The names of those that it returned."""
    return [_name(group) for group in _on[0].scheduler.continue_running(_on[0].plan)]


def abort(name: str) -> None:
    _on[0].scheduler.abort(name)


def schedule() -> None:
    _on[0].plan = _on[0].scheduler.schedule()


def finish_step(new_tokens: list[list[int] | None]) -> None:
    """Hand in what the step made, and keep the sequences in order."""
    stage = _on[0]
    rows = stage.scheduler.finish_step(new_tokens)
    for (sequence, _), tokens, row in zip(
        stage.plan.scheduled, new_tokens, rows, strict=True
    ):
        if tokens is not None:
            others = stage.sequences[sequence.request_id]
            place = _place(others, sequence)
            others[place : place + 1] = row or [sequence]


# --- what is to be seen -------------------------------------------------------------


def _look_at_plan() -> dict[str, Any] | None:
    """The plan as plain lists, whatever kind of rows it is made of."""
    plan = _on[0].plan
    if plan is None:
        return None
    scheduled: list[Any] = []
    for sequence, query_len in plan.scheduled:
        name = getattr(sequence, "request_id", repr(sequence))
        place = _place(_on[0].sequences.get(name, []), sequence)
        scheduled.append([name, place, query_len])
    told: dict[str, Any] = {name: list(getattr(plan, name)) for name in FLAT}
    told["scheduled"] = scheduled
    told["block_tables"] = [list(row) for row in plan.block_tables]
    told["copies"] = [list(pair) for pair in plan.copies]
    return told


def _look() -> dict[str, Any]:
    """Pool and sequences: request -> what each of its sequences is like."""
    stage = _on[0]
    blocks = range(stage.pool.num_blocks)
    return {
        "num_free": stage.source.num_free,
        "ref_counts": [stage.pool.ref_count(block_id) for block_id in blocks],
        "held": list(stage.held),
        "waiting": [_name(group) for group in stage.scheduler.waiting],
        "running": [_name(group) for group in stage.scheduler.running],
        "sequences": {
            name: [_told(sequence) for sequence in sequences]
            for name, sequences in stage.sequences.items()
        },
    }


def _told(sequence: Sequence) -> dict[str, Any]:
    table = sequence.table
    return {
        "status": str(sequence.status),
        "num_computed": sequence.num_computed,
        "token_ids": list(sequence.token_ids),
        "finish_reason": sequence.finish_reason,
        "block_ids": None if table is None else list(table.block_ids),
        "num_tokens": None if table is None else table.num_tokens,
    }


def _name(group: Any) -> str | None:
    if group is None:
        return None
    return getattr(group, "request_id", f"no group but {group!r}")


def _table(sequence: Sequence) -> BlockTable:
    assert sequence.table is not None, "a sequence that runs"
    return sequence.table


def _place(sequences: list[Sequence], sequence: object) -> int:
    """Where it stands among them; -1 if it is none of them."""
    places = [i for i, one in enumerate(sequences) if one is sequence]
    return places[0] if places else -1
