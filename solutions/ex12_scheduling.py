"""Exercise 12: who runs next, and who must leave.

Grade with `course grade 12`. You write the heart of one class, StepScheduler; it can
take the place of the package's own Scheduler. What stands outside of your regions
(constructor, add, schedule, finish_step, …) is given: read it, leave it as it is. You
may add methods and attributes of your own. Lists that a function is given are the same
after the call.

A request is a group: it begins with one sequence, its prompt, and may fork into several
(params.num_seqs at most). The sequences of a group run, leave and end together. Groups
are served in the order in which they came: nobody overtakes. In every step, groups that
run are planned first, the oldest first; what is left of the step's token_budget goes to
groups that are admitted. Which block is whose is the pool's business, and never graded.

    group       paged_attention.sequence.SequenceGroup
        .request_id     .sequences      a list: those that are not finished, in order
        .max_num_seqs   how many there may come to be (params.num_seqs, that is n or
                        beam_width); a step keeps a place for each
    sequence    paged_attention.sequence.Sequence
        .token_ids      the prompt and what was made so far
        .num_computed   for so many of them keys and values are written. The token that
                        was made last is never among them
        .num_to_compute == len(token_ids) - num_computed
        .table          its block table, or None if it does not run; between two steps
                        table.num_tokens == num_computed
        .status         SequenceStatus.WAITING (never ran), RUNNING, PREEMPTED, FINISHED
        .finish(reason) frees its table, sets table to None and status to FINISHED
        .params         .max_tokens, .num_seqs
    table       .num_tokens .num_blocks .block_size
        .block_ids              the list of its blocks (a copy)
        .translate(i) -> int    the block at place i
        .append_tokens(n) -> list[int]   room for n more tokens: their slots
        .free()                 gives back all its blocks; it is empty then
    self.pool   where all tables take their blocks from
        .num_blocks
        .num_free               with a prefix cache this counts blocks, too, that hold
                                something cached, as long as no table holds them
        .ref_count(block_id)    how many hold it
    self.new_table(sequence)    a table for a sequence that has none. With a prefix
                                cache it may begin with cached blocks: table.num_tokens
                                tokens (less than all) need not be computed, and the
                                table holds their blocks, so they are not free any more
    self.copy_on_write(table) -> list[tuple[int, int]]
                                before append_tokens: if the last block is partly filled
                                and others hold it too, the table gets a block of its
                                own for it. [(source, destination)], or [] mostly

num_blocks_for(num_tokens, block_size) from paged_attention.block may be used.

What is given, in short. StepScheduler(allocator, block_size, token_budget, max_seqs, …)
takes also a prefix_cache, which wraps the allocator; a host_allocator, of which it
makes no use (to swap is not asked for); and block_table_class, fork and copy_on_write.
    .waiting        a deque of groups; who is next stands first
    .running        a list of groups; the oldest stands first
    .add(sequence)          refuse_what_never_fits, then line_up(sequence), which makes
                            it a group at the end of waiting
    .schedule() -> Plan     continue_running; if nobody had to leave, then, while budget
                            is left, admit_next and plan_group for whom it admitted
    .finish_step(new_tokens)    what the model made of the plan's rows: num_computed
                            grows, tokens are appended, forks join the group, full
                            blocks are published, those that end give back their blocks
    Plan            one step; its lists are named at the class: scheduled, token_ids,
                    positions, slot_mapping, query_start_loc, seq_lens, block_tables,
                    copies, swap_out, swap_in (these two stay empty)
The engine copies what plan.copies says, in order, before anything is written; .plan is
the step that is being executed, .num_preemptions counts who had to leave.


Task 12.1   admission

    .owed_blocks(group) -> int
        The sequences of the group have tables. How many blocks do all tokens that they
        have now need, beyond the blocks that their tables have? (Tables that share
        blocks count each for itself.)

    .admit_next() -> SequenceGroup | None
        Admits the group that stands first in self.waiting, if it fits now:
        - a place for each sequence: the max_num_seqs of all groups in self.running and
          its own are self.max_seqs at most;
        - the blocks: each of its sequences is given a table by new_table. What it owes
          then, and what all running groups owe, is not more than what is free by then.
          (Who runs owes blocks while a part of its prompt is to come. schedule seldom
          asks then, for such a chunk has used up the budget; only a group of several
          may leave some over. The package's own scheduler does not count them.)
        If so, it moves from self.waiting to the end of self.running; its sequences are
        RUNNING, each with its table and with num_computed = table.num_tokens; it is
        returned. If not, or if nobody waits: None, and nothing has changed. A group
        behind the first one is never admitted in its place.


Task 12.2   a step under a token budget

    split_budget(to_compute, budget) -> list[int]          a function of the module
        to_compute: the num_to_compute of each sequence of a group, in order, each 1 or
        more. How many tokens does each compute in this step? All of them if the budget
        is enough for that. If not, no sequence may compute its newest token, since all
        of a group make their next tokens in the same step: each in turn computes as
        many as it may and as are left of the budget, so 0 is possible.

    Plan.add_row(sequence, slots)
        One more row of the plan: the next len(slots) tokens of the sequence, 1 or more,
        whose keys and values go into these slots. Its table has room for them already;
        num_computed still tells where they begin. All fields but swap_out, swap_in and
        copies grow; block_tables gets the table's block_ids.

    .blocks_needed(group, query_lens) -> int
        How many free blocks does it take if the sequences of the group compute so many
        tokens each? New blocks at the ends of the tables, and a copy wherever one
        writes into a partly filled last block that others hold as well. Whoever is the
        last holder by then writes in place: of two who hold a block and both write, one
        copies; if only one of them writes (query_len 0 writes nothing), it copies.

    .plan_group(group, plan) -> bool
        The group runs. What the plan has left of self.token_budget is split among its
        sequences. Each that computes something, in order: copy_on_write, whose pairs
        are added to plan.copies; append_tokens; add_row. True, also if the budget was
        used up and there was nothing to add. But if fewer blocks are free than all of
        that takes: False, and nothing has changed.


Task 12.3   preempt and resume

    .preempt(group) -> None
        A running group has to leave. Its blocks are given back, its tokens are kept and
        will all be computed again: PREEMPTED, table None, num_computed 0. It came
        before all that wait, so it stands first in self.waiting now.

    .continue_running(plan) -> list[SequenceGroup]
        Plans every group in self.running, the oldest first. While a group lacks blocks,
        the youngest one that runs is preempted (which may be that group itself); never
        one that is planned already, since the plan names its blocks. Returns those that
        were preempted, in the order in which they had to leave.

    .abort(request_id) -> None
        Ends all sequences of the request, with reason "aborted", and forgets it,
        whether it waits, runs, or was preempted; also between schedule and finish_step
        (then finish_step leaves its rows alone). If there is no such request, or none
        any more, nothing happens.


Task 12.4   refuse what can never fit

    .refuse_what_never_fits(sequence) -> None
        add calls it for a new sequence, which holds nothing yet. ValueError if the
        request could not finish even with the machine to itself. Its message names, as
        a number, what the request would need: the blocks, if the pool is too small for
        them, or the sequences, if a step is too small for those. At the worst all
        params.num_seqs sequences run up to max_tokens, sharing nothing; nobody needs
        the key and value of a token that was made last of all. In one step there are
        at most self.max_seqs sequences, and self.token_budget tokens: one for each
        sequence of a group. What just fits is not refused.
"""

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
        # BEGIN SOLUTION 12.2: one more row
        start = sequence.num_computed
        stop = start + len(slots)
        self.scheduled.append((sequence, len(slots)))
        self.token_ids.extend(sequence.token_ids[start:stop])
        self.positions.extend(range(start, stop))
        self.slot_mapping.extend(slots)
        self.query_start_loc.append(len(self.token_ids))
        self.seq_lens.append(stop)
        self.block_tables.append(_table_of(sequence).block_ids)
        # END SOLUTION


def split_budget(to_compute: list[int], budget: int) -> list[int]:
    """How many tokens each sequence of a group computes in this step."""
    # BEGIN SOLUTION 12.2: all, or each what it may
    if sum(to_compute) <= budget:
        return to_compute
    query_lens: list[int] = []
    for num_tokens in to_compute:
        query_lens.append(min(num_tokens - 1, budget - sum(query_lens)))
    return query_lens
    # END SOLUTION


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
        """ValueError for a request that could not finish even if it were alone."""
        # BEGIN SOLUTION 12.4: could it finish if it were alone?
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
        # END SOLUTION

    def line_up(self, sequence: Sequence) -> None:
        """A new group, at the end of those that wait."""
        group = SequenceGroup(sequence.request_id, [sequence], sequence.params.num_seqs)
        self.waiting.append(group)

    # --- 12.1: admission ---

    def owed_blocks(self, group: SequenceGroup) -> int:
        """The blocks that its tokens need, less those that it has."""
        # BEGIN SOLUTION 12.1: needed, less what is there
        return sum(
            num_blocks_for(len(sequence.token_ids), self.block_size)
            - _table_of(sequence).num_blocks
            for sequence in group.sequences
        )
        # END SOLUTION

    def admit_next(self) -> SequenceGroup | None:
        """The group that was first to wait and runs now; None if it has to go on."""
        # BEGIN SOLUTION 12.1: the first that waits, if it fits
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
        # END SOLUTION

    def new_table(self, sequence: Sequence) -> Any:
        """A table for a sequence that has none, with what is cached of its tokens."""
        if self.prefix_cache is not None:
            return self.prefix_cache.acquire(sequence.token_ids)
        return self.block_table_class(self.pool, self.block_size)

    # --- 12.2: a step under a token budget ---

    def blocks_needed(self, group: SequenceGroup, query_lens: list[int]) -> int:
        """The free blocks that it takes to append so many tokens, copies included."""
        # BEGIN SOLUTION 12.2: new blocks and copies
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
        # END SOLUTION

    def plan_group(self, group: SequenceGroup, plan: Plan) -> bool:
        """Rows for a running group; False, and nothing done, if blocks are missing."""
        # BEGIN SOLUTION 12.2: count for all of it, then do it
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
        # END SOLUTION

    # --- 12.3: preempt and resume ---

    def preempt(self, group: SequenceGroup) -> None:
        """A running group has to leave: it will be computed again from its tokens."""
        # BEGIN SOLUTION 12.3: free the blocks, keep the tokens
        for sequence in group.sequences:
            _table_of(sequence).free()
            sequence.table, sequence.num_computed = None, 0
            sequence.status = SequenceStatus.PREEMPTED
        self.running.remove(group)
        self.waiting.appendleft(group)
        # END SOLUTION

    def continue_running(self, plan: Plan) -> list[SequenceGroup]:
        """Plan all running groups, the oldest first; those that had to leave for it."""
        # BEGIN SOLUTION 12.3: the youngest leaves for the oldest
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
        # END SOLUTION

    def abort(self, request_id: Hashable) -> None:
        """End a request, wherever it is."""
        # BEGIN SOLUTION 12.3: end it, wherever it is
        for group in self._groups():
            if group.request_id == request_id:
                for sequence in group.sequences:
                    sequence.finish("aborted")
                place = self.running if group in self.running else self.waiting
                place.remove(group)
        # END SOLUTION

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


# BEGIN NOTES
def _table_of(sequence: Sequence) -> Any:
    """Its table, for a sequence that must have one."""
    if sequence.table is None:
        raise RuntimeError(f"a sequence of {sequence.request_id!r} has no table")
    return sequence.table


# 12.1  Take first, count then. Cached blocks that nobody holds are free, until this
# very prompt takes them: counted before, they would be spent twice. Counting by hand
# (needed, less hits, against free less the hits that nobody holds) gives the same. The
# promise to running prompts is what keeps a newcomer from being the first to leave one
# step later. What is not promised is the tokens still to be made: nobody knows how many
# there will be, and to keep blocks for max_tokens would be reservation again.
#
# 12.2  A row is the same for a chunk of a prompt and for a decode: there is no second
# kind of step. min(writers, holders - 1): everybody but the last holder copies; if a
# holder does not write, all writers copy. Half of a group's blocks are of no use, so
# they are counted for all of it before the first is taken.
#
# 12.3  self.running[-1] cannot be planned, because the groups in front of num_planned
# are, and num_planned is at most its place. A preempted sequence comes back through the
# same door as a new one: its prompt is longer by what was made. With a prefix cache
# most of it is found again, if its blocks were not needed meanwhile.
#
# 12.4  14 tokens and 8 to make are 21 keys, not 22. What just fits must not be refused,
# and what can never fit must be, at once: it would be preempted by itself for ever, or
# hold up all others. max_tokens counts although a stop token may come early.
# END NOTES
