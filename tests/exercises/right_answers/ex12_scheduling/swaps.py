"""Copies to host memory who has to leave, if there is some with room."""

from collections import Counter, deque
from collections.abc import Callable, Hashable
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
        self.host = host_allocator
        self.swapped_out = []  # pairs for the next plan
        self.swapped_in = []

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
        if group.host_tables:
            if not self._swap_in(group):
                return None
            for sequence in group.sequences:
                sequence.status = SequenceStatus.RUNNING
            self.running.append(self.waiting.popleft())
            return group
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

    def preempt(self, group):
        self.running.remove(group)
        self.waiting.appendleft(group)
        blocks = [b for s in group.sequences for b in s.table.block_ids]
        if self.host is not None and len(blocks) <= self.host.num_free:
            for sequence in group.sequences:
                pairs = self._move(sequence.table, self.host)
                self.swapped_out += pairs
                sequence.host_table = self.block_table_class(
                    self.host,
                    self.block_size,
                    [b for _, b in pairs],
                    sequence.table.num_tokens,
                )
                sequence.table.free()
                sequence.table = None
                sequence.status = SequenceStatus.SWAPPED
            return
        for sequence in group.sequences:
            sequence.table.free()
            sequence.table, sequence.num_computed = None, 0
            sequence.status = SequenceStatus.PREEMPTED

    def _move(self, table, pool):
        new_ids = pool.allocate_many(table.num_blocks)
        return list(zip(table.block_ids, new_ids, strict=True))

    def _swap_in(self, group):
        tables = [sequence.host_table for sequence in group.sequences]
        lengths = [len(sequence.token_ids) for sequence in group.sequences]
        needed = sum(num_blocks_for(n, self.block_size) for n in lengths)
        if needed + sum(map(self.owed_blocks, self.running)) > self.pool.num_free:
            return False
        for sequence, table in zip(group.sequences, tables, strict=True):
            pairs = self._move(table, self.pool)
            self.swapped_in += pairs
            sequence.table = self.block_table_class(
                self.pool, self.block_size, [b for _, b in pairs], table.num_tokens
            )
            table.free()
            sequence.host_table = None
        return True

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
        plan.swap_out, self.swapped_out = self.swapped_out, []
        self.num_preemptions += len(left)
        # Whoever had to leave does not fit at once, and nobody overtakes it.
        while not left and len(plan.token_ids) < self.token_budget:
            group = self.admit_next()
            if group is None:
                break
            self.plan_group(group, plan)
        plan.swap_in, self.swapped_in = self.swapped_in, []
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
