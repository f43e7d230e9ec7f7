"""A plan is its rows; the flat lists are made of them when asked for, as tuples."""

from collections import deque
from collections.abc import Callable, Hashable
from itertools import accumulate
from typing import Any

from paged_attention.block import num_blocks_for
from paged_attention.block_table import BlockTable
from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
from paged_attention.sharing import copy_on_write, fork


class Plan:
    def __init__(self):
        self.rows = []
        self.copies, self.swap_out, self.swap_in = [], (), ()

    def add_row(self, sequence, slots):
        self.rows.append(
            (sequence, sequence.num_computed, tuple(slots), sequence.table.block_ids)
        )

    @property
    def scheduled(self):
        return tuple((sequence, len(slots)) for sequence, _, slots, _ in self.rows)

    @property
    def positions(self):
        return tuple(
            start + i for _, start, slots, _ in self.rows for i in range(len(slots))
        )

    @property
    def token_ids(self):
        return tuple(
            sequence.token_ids[start + i]
            for sequence, start, slots, _ in self.rows
            for i in range(len(slots))
        )

    @property
    def slot_mapping(self):
        return tuple(slot for _, _, slots, _ in self.rows for slot in slots)

    @property
    def query_start_loc(self):
        return (0, *accumulate(len(slots) for _, _, slots, _ in self.rows))

    @property
    def seq_lens(self):
        return tuple(start + len(slots) for _, start, slots, _ in self.rows)

    @property
    def block_tables(self):
        return tuple(tuple(block_ids) for _, _, _, block_ids in self.rows)


def split_budget(to_compute, budget):
    if budget >= sum(to_compute):
        return list(to_compute)
    before = accumulate((n - 1 for n in to_compute[:-1]), initial=0)
    return [
        max(0, min(n - 1, budget - used))
        for n, used in zip(to_compute, before, strict=True)
    ]


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

    def refuse_what_never_fits(self, sequence: Sequence) -> None:
        num_seqs, max_tokens = sequence.params.num_seqs, sequence.params.max_tokens
        # The last token is made, but nothing is computed from it: it takes no place.
        length = len(sequence.token_ids) + max_tokens - 1
        needed = num_blocks_for(length, self.block_size) * num_seqs
        if needed > self.pool.num_blocks:
            raise ValueError(
                f"it can never fit: {num_seqs} x {length} tokens need {needed} blocks "
                f"of {self.block_size}, the pool has {self.pool.num_blocks}"
            )
        if num_seqs > min(self.max_seqs, self.token_budget):
            raise ValueError(
                f"it can never run: {num_seqs} sequences in one step, but max_seqs is "
                f"{self.max_seqs} and token_budget {self.token_budget}"
            )

    def line_up(self, sequence: Sequence) -> None:
        """A new group, at the end of those that wait."""
        group = SequenceGroup(sequence.request_id, [sequence], sequence.params.num_seqs)
        self.waiting.append(group)

    # --- 12.1: admission ---

    def owed_blocks(self, group: SequenceGroup) -> int:
        """The blocks that its tokens need, less those that it has."""
        return sum(
            num_blocks_for(len(sequence.token_ids), self.block_size)
            - _table_of(sequence).num_blocks
            for sequence in group.sequences
        )

    def admit_next(self) -> SequenceGroup | None:
        """The group that was first to wait and runs now; None if it has to go on."""
        if not self.waiting:
            return None
        group = self.waiting[0]
        if sum(each.max_num_seqs for each in [*self.running, group]) > self.max_seqs:
            return None
        for sequence in group.sequences:
            sequence.table = self.new_table(sequence)
        owed = sum(self.owed_blocks(each) for each in [*self.running, group])
        # Asked for only now: cached blocks that were found are free no longer.
        if owed > self.pool.num_free:
            for sequence in group.sequences:
                _table_of(sequence).free()
                sequence.table = None
            return None
        for sequence in group.sequences:
            sequence.num_computed = _table_of(sequence).num_tokens
            sequence.status = SequenceStatus.RUNNING
        self.running.append(self.waiting.popleft())
        return group

    def new_table(self, sequence: Sequence) -> Any:
        """A table for a sequence that has none, with what is cached of its tokens."""
        if self.prefix_cache is not None:
            return self.prefix_cache.acquire(sequence.token_ids)
        return self.block_table_class(self.pool, self.block_size)

    # --- 12.2: a step under a token budget ---

    def blocks_needed(self, group, query_lens):
        # As it will happen, one after the other, on a copy of the counts.
        counts, needed = {}, 0
        for sequence, n in zip(group.sequences, query_lens, strict=True):
            table = sequence.table
            room = table.num_blocks * self.block_size - table.num_tokens
            needed += -(-max(0, n - room) // self.block_size)
            if n and room:
                tail = table.block_ids[-1]
                count = counts.setdefault(tail, self.pool.ref_count(tail))
                if count > 1:
                    needed += 1
                    counts[tail] -= 1
        return needed

    def plan_group(self, group: SequenceGroup, plan: Plan) -> bool:
        """Rows for a running group; False, and nothing done, if blocks are missing."""
        to_compute = [sequence.num_to_compute for sequence in group.sequences]
        budget = self.token_budget - len(plan.token_ids)
        query_lens = split_budget(to_compute, budget)
        if self.blocks_needed(group, query_lens) > self.pool.num_free:
            return False
        for sequence, query_len in zip(group.sequences, query_lens, strict=True):
            if query_len > 0:
                table = _table_of(sequence)
                plan.copies.extend(self.copy_on_write(table))
                plan.add_row(sequence, table.append_tokens(query_len))
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

    def continue_running(self, plan: Plan) -> list[SequenceGroup]:
        """Plan all running groups, the oldest first; those that had to leave for it."""
        left: list[SequenceGroup] = []
        num_planned = 0
        while num_planned < len(self.running):
            if self.plan_group(self.running[num_planned], plan):
                num_planned += 1
            else:
                # The last one is not planned: at least this group itself is behind.
                left.append(self.running[-1])
                self.preempt(self.running[-1])
        return left

    def abort(self, request_id: Hashable) -> None:
        """End a request, wherever it is."""
        for group in self._groups():
            if group.request_id == request_id:
                for sequence in group.sequences:
                    sequence.finish("aborted")
                place = self.running if group in self.running else self.waiting
                place.remove(group)

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
