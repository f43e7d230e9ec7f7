"""Admission tries, gives everything back, counts, and takes it again if it fits."""

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paged_attention.block import num_blocks_for
from paged_attention.block_table import BlockTable
from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
from paged_attention.sharing import copy_on_write, fork


@dataclass(eq=False)
class Plan:
    """One step, as the engine reads it; row i belongs to scheduled[i].

    The tokens of all rows stand one after the other, without padding: those of row i
    from query_start_loc[i] to query_start_loc[i + 1].
    """

    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)  # query_len
    token_ids: list[int] = field(default_factory=list)  # [num_tokens]
    positions: list[int] = field(default_factory=list)  # [num_tokens]
    slot_mapping: list[int] = field(default_factory=list)  # [num_tokens]
    query_start_loc: list[int] = field(default_factory=lambda: [0])  # [num_rows + 1]
    seq_lens: list[int] = field(default_factory=list)  # [num_rows], new tokens included
    block_tables: list[list[int | None]] = field(default_factory=list)  # not padded
    copies: list[tuple[int, int]] = field(default_factory=list)  # (source, destination)
    # For schedulers that swap: this one computes again.
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    swap_in: list[tuple[int, int]] = field(default_factory=list)

    def add_row(self, sequence: Sequence, slots: list[int]) -> None:
        """The next tokens of a sequence, as many as there are slots."""
        start = sequence.num_computed
        stop = start + len(slots)
        self.scheduled.append((sequence, len(slots)))
        self.token_ids.extend(sequence.token_ids[start:stop])
        self.positions.extend(range(start, stop))
        self.slot_mapping.extend(slots)
        self.query_start_loc.append(len(self.token_ids))
        self.seq_lens.append(stop)
        self.block_tables.append(_table_of(sequence).block_ids)


def split_budget(to_compute: list[int], budget: int) -> list[int]:
    """How many tokens each sequence of a group computes in this step."""
    if sum(to_compute) <= budget:
        return to_compute
    query_lens: list[int] = []
    for num_tokens in to_compute:
        query_lens.append(min(num_tokens - 1, budget - sum(query_lens)))
    return query_lens


class StepScheduler:
    """Plans step after step: schedule, execute the plan, finish_step.

    Running groups came before waiting ones, and only they hold blocks.
    """

    def __init__(
        self,
        allocator: Any,
        block_size: int,
        *,
        token_budget: int,
        max_seqs: int,
        prefix_cache: Any = None,
        host_allocator: Any = None,  # for schedulers that swap
        block_table_class: Any = BlockTable,
        fork: Callable[[Any], Any] = fork,
        copy_on_write: Callable[[Any], list[tuple[int, int]]] = copy_on_write,
    ) -> None:
        self.pool = allocator if prefix_cache is None else prefix_cache
        self.prefix_cache = prefix_cache
        self.block_size = block_size
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.block_table_class = block_table_class
        self.fork = fork
        self.copy_on_write = copy_on_write
        self.waiting: deque[SequenceGroup] = deque()  # who is next stands first
        self.running: list[SequenceGroup] = []  # the oldest stands first
        self.plan: Plan | None = None  # the step that is being executed
        self.num_preemptions = 0

    # --- 12.4: a request comes ---

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its turn; ValueError if that would be in vain."""
        if any(g.request_id == sequence.request_id for g in self._groups()):
            raise ValueError(f"request {sequence.request_id!r} is here already")
        if not sequence.token_ids:
            raise ValueError(f"request {sequence.request_id!r} has an empty prompt")
        self.refuse_what_never_fits(sequence)
        self.line_up(sequence)

    def refuse_what_never_fits(self, sequence):
        params = sequence.params
        last_position = len(sequence.token_ids) + params.max_tokens - 2
        each = last_position // self.block_size + 1
        for name, limit, needed in (
            ("blocks", self.pool.num_blocks // each, each * params.num_seqs),
            ("max_seqs", self.max_seqs, params.num_seqs),
            ("token_budget", self.token_budget, params.num_seqs),
        ):
            if params.num_seqs > limit:
                raise ValueError(f"it can never run: it needs {needed} {name}")

    def line_up(self, sequence: Sequence) -> None:
        """A new group, at the end of those that wait."""
        group = SequenceGroup(sequence.request_id, [sequence], sequence.params.num_seqs)
        self.waiting.append(group)

    # --- 12.1: admission ---

    def owed_blocks(self, group):
        owed = 0
        for sequence in group.sequences:
            room = sequence.table.num_blocks * self.block_size
            while room < len(sequence.token_ids):
                room += self.block_size
                owed += 1
        return owed

    def admit_next(self):
        places = self.max_seqs - sum(group.max_num_seqs for group in self.running)
        if not self.waiting or self.waiting[0].max_num_seqs > places:
            return None
        group = self.waiting.popleft()
        free_before = self.pool.num_free
        tables = [self.new_table(sequence) for sequence in group.sequences]
        spent = free_before - self.pool.num_free
        missing = sum(
            -(-len(sequence.token_ids) // self.block_size) - table.num_blocks
            for sequence, table in zip(group.sequences, tables, strict=True)
        )
        for table in tables:
            table.free()
        promised = sum(self.owed_blocks(each) for each in self.running)
        if spent + missing + promised > free_before:
            self.waiting.appendleft(group)
            return None
        for sequence in group.sequences:
            sequence.table = table = self.new_table(sequence)
            sequence.num_computed = table.num_tokens
            sequence.status = SequenceStatus.RUNNING
        self.running.append(group)
        return group

    def new_table(self, sequence: Sequence) -> Any:
        """A table for a sequence that has none, with what is cached of its tokens."""
        if self.prefix_cache is not None:
            return self.prefix_cache.acquire(sequence.token_ids)
        return self.block_table_class(self.pool, self.block_size)

    # --- 12.2: a step under a token budget ---

    def blocks_needed(self, group: SequenceGroup, query_lens: list[int]) -> int:
        """The free blocks that it takes to append so many tokens, copies included."""
        needed = 0
        writers: Counter[int] = Counter()  # partly filled block -> how many write to it
        for sequence, query_len in zip(group.sequences, query_lens, strict=True):
            table = _table_of(sequence)
            length = table.num_tokens + query_len
            needed += num_blocks_for(length, self.block_size) - table.num_blocks
            if query_len > 0 and table.num_tokens % self.block_size > 0:
                writers[table.translate(table.num_blocks - 1)] += 1
        for block_id, num_writers in writers.items():
            # Each leaves the block with a copy of it, but the last holder stays.
            needed += min(num_writers, self.pool.ref_count(block_id) - 1)
        return needed

    def plan_group(self, group, plan):
        left = self.token_budget - len(plan.token_ids)
        query_lens = split_budget([s.num_to_compute for s in group.sequences], left)
        if self.blocks_needed(group, query_lens) > self.pool.num_free:
            return False
        todo = [(s, n) for s, n in zip(group.sequences, query_lens, strict=True) if n]
        # All copies first, then all appends: the last holder is the same either way.
        slots = []
        for sequence, n in todo:
            plan.copies += self.copy_on_write(sequence.table)
            slots.append(sequence.table.append_tokens(n))
        for (sequence, _), each in zip(todo, slots, strict=True):
            plan.add_row(sequence, each)
        return True

    # --- 12.3: preempt and resume ---

    def preempt(self, group: SequenceGroup) -> None:
        """A running group has to leave: it will be computed again from its tokens."""
        for sequence in group.sequences:
            _table_of(sequence).free()
            sequence.table, sequence.num_computed = None, 0
            sequence.status = SequenceStatus.PREEMPTED
        self.running.remove(group)
        self.waiting.appendleft(group)

    def continue_running(self, plan):
        todo, left = deque(self.running), []
        while todo:
            if self.plan_group(todo[0], plan):
                todo.popleft()
                continue
            youngest = todo.pop()
            self.preempt(youngest)
            left.append(youngest)
        return left

    def abort(self, request_id):
        ended = [g for g in self._groups() if g.request_id == request_id]
        self.running = [g for g in self.running if g not in ended]
        self.waiting = deque(g for g in self.waiting if g not in ended)
        for group in ended:
            for sequence in list(group.sequences):
                sequence.finish("aborted")

    # --- given: one step ---

    def schedule(self) -> Plan:
        """What the next step computes; no rows if nothing is left to do."""
        if self.plan is not None:
            raise RuntimeError("finish_step must come before the next schedule")
        plan = Plan()
        left = self.continue_running(plan)
        self.num_preemptions += len(left)
        # Whoever had to leave does not fit at once, and nobody overtakes it.
        while not left and len(plan.token_ids) < self.token_budget:
            group = self.admit_next()
            if group is None:
                break
            self.plan_group(group, plan)
        if plan.scheduled:
            self.plan = plan
        return plan

    def finish_step(self, new_tokens: list[list[int] | None]) -> list[list[Sequence]]:
        """Take in what the step made; each row's sequences, in token order.

        new_tokens[i] is None while row i is a chunk of a prompt. Else it is a list: the
        first token continues the sequence, each further one a fork; [] drops a beam.
        """
        plan = Plan() if self.plan is None else self.plan
        num_rows = len(plan.scheduled)
        if len(new_tokens) != num_rows:
            raise ValueError(
                f"{num_rows} rows were planned, got tokens for {len(new_tokens)}"
            )
        self.plan = None
        rows: list[list[Sequence]] = []
        steps = zip(plan.scheduled, plan.seq_lens, new_tokens, strict=True)
        for (sequence, _), seq_len, tokens in steps:
            row: list[Sequence] = []
            if sequence.table is not None:  # else it was aborted meanwhile
                sequence.num_computed = seq_len
                if self.prefix_cache is not None:
                    written = sequence.token_ids[:seq_len]
                    self.prefix_cache.publish(sequence.table, written)
                if tokens is not None:
                    row = self._branch(sequence, tokens)
            rows.append(row)
        return rows

    def _branch(self, sequence: Sequence, tokens: list[int]) -> list[Sequence]:
        """The sequence and its forks, with one more token each; none: drop it."""
        if tokens:
            # All forks first: they continue the sequence as it was.
            twins = [sequence.twin(self.fork(sequence.table)) for _ in tokens[1:]]
            row = [sequence, *twins]
            for one, token_id in zip(row, tokens, strict=True):
                one.append(token_id)
        else:
            sequence.finish(None)
            row = []
        group = next(each for each in self.running if sequence in each.sequences)
        place = group.sequences.index(sequence)
        group.sequences[place : place + 1] = [
            one for one in row if one.table is not None
        ]
        if not group.sequences:
            self.running.remove(group)
        return row

    def _groups(self) -> list[SequenceGroup]:
        return [*self.running, *self.waiting]


def _table_of(sequence: Sequence) -> Any:
    """Its table, for a sequence that must have one."""
    if sequence.table is None:
        raise RuntimeError(f"a sequence of {sequence.request_id!r} has no table")
    return sequence.table
