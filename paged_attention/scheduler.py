"""Who runs next, and who must leave: one plan per step, under a token budget.

Prompts are computed in chunks beside sequences that make one token per step
(continuous batching). First come, first served: who came later runs only with what the
others leave, and is the first to go when blocks run out. What is left out: priorities,
and more than one step in flight.
"""

from collections import deque
from collections.abc import Callable, Hashable
from collections.abc import Sequence as Row

from paged_attention.block import num_blocks_for
from paged_attention.block_table import Allocator, BlockTable
from paged_attention.group_blocks import blocks_to_grow, shared_budget
from paged_attention.prefix_cache import PrefixCache
from paged_attention.residence import Residence
from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
from paged_attention.sharing import copy_on_write, fork
from paged_attention.step_plan import StepPlan, check_tokens, fork_tables

__all__ = ["Scheduler", "StepPlan"]


class Scheduler:
    """Plans step after step: `schedule`, execute the plan, `finish_step`.

    Invariants: every running group came before every waiting one. Only running
    sequences hold blocks of the pool. While anything is unfinished, each step computes
    at least one token: the oldest group may push all others out, and `add` refused it
    if it could not fit even then.
    Source: the paper, section 4.5; `Scheduler.schedule` in vLLM's v1/core/sched.
    """

    def __init__(
        self,
        allocator: Allocator,
        block_size: int,
        *,
        token_budget: int,
        max_seqs: int,
        prefix_cache: PrefixCache | None = None,
        host_allocator: Allocator | None = None,
        block_table_class: type[BlockTable] = BlockTable,
        fork: Callable[[BlockTable], BlockTable] = fork,
        copy_on_write: Callable[[BlockTable], list[tuple[int, int]]] = copy_on_write,
    ) -> None:
        """With a prefix_cache, which must wrap the allocator, tables are made on it.

        With a host_allocator, whose blocks are of the same size, a preempted group is
        copied there, unless it is full; otherwise it is computed again.
        """
        sizes: dict[str, object] = {
            "block_size": block_size,
            "token_budget": token_budget,
            "max_seqs": max_seqs,
        }
        for name, value in sizes.items():
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} must be a whole number >= 1, got {value!r}")
        self.block_size = block_size
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.num_preemptions = 0  # of groups; `Stats` counts their sequences
        self._residence = Residence(
            allocator, block_size, prefix_cache, host_allocator, block_table_class
        )
        self._pool = self._residence.pool
        self._prefix_cache = prefix_cache
        self._fork = fork
        self._copy_on_write = copy_on_write
        self._groups: dict[Hashable, SequenceGroup] = {}  # by request_id
        self._waiting: deque[SequenceGroup] = deque()  # the one that came first, first
        self._running: list[SequenceGroup] = []  # likewise
        self._plan: StepPlan | None = None  # the step that is being executed
        # Whoever did not fit, and how many blocks were free then; see `_admit`.
        self._refused: tuple[SequenceGroup | None, int] = (None, 0)

    # --- requests come and go ---

    def add(self, sequence: Sequence) -> None:
        """Let a new sequence wait for its turn.

        Raises ValueError, with the numbers, for one that could never fit: it would
        block all that come after it for ever.
        """
        if sequence.request_id in self._groups:
            raise ValueError(f"request {sequence.request_id!r} is here already")
        if sequence.status != SequenceStatus.WAITING:
            raise ValueError(
                f"request {sequence.request_id!r} must be new, got {sequence.status}"
            )
        if not sequence.token_ids:
            raise ValueError(f"request {sequence.request_id!r} has an empty prompt")
        params = sequence.params
        # Nobody needs the key and value of the last token, so it takes no place.
        length = len(sequence.token_ids) + params.max_tokens - 1
        # As if its sequences shared nothing: after a preemption they may not.
        needed = num_blocks_for(length, self.block_size) * params.num_seqs
        if needed > self._pool.num_blocks:
            raise ValueError(
                f"request {sequence.request_id!r} can never fit: {params.num_seqs} x "
                f"{length} tokens (prompt {len(sequence.token_ids)}, max_tokens "
                f"{params.max_tokens}) need {needed} blocks of {self.block_size}, "
                f"the pool has {self._pool.num_blocks}"
            )
        # The newest tokens of a group are computed in one step, or not yet.
        at_once = min(self.max_seqs, self.token_budget)
        if params.num_seqs > at_once:
            raise ValueError(
                f"request {sequence.request_id!r} can never run: {params.num_seqs} "
                f"sequences in one step, max_seqs is {self.max_seqs} and token_budget "
                f"{self.token_budget}"
            )
        group = SequenceGroup(sequence.request_id, [sequence], params.num_seqs)
        self._groups[group.request_id] = group
        self._waiting.append(group)

    def abort(self, request_id: Hashable) -> None:
        """End all sequences of a request, wherever they are; unknown ids are ignored.

        Also allowed between `schedule` and `finish_step`: the rows of the step are then
        computed for nothing, into blocks that nobody gets before the next step.
        """
        group = self._groups.pop(request_id, None)
        if group is None:
            return
        for sequence in group.sequences:
            sequence.finish("aborted")
        (self._running if group in self._running else self._waiting).remove(group)

    # --- one step ---

    def schedule(self) -> StepPlan:
        """Choose what the next step computes, and take the blocks for it.

        First the running groups, the oldest first; one that lacks blocks pushes out the
        youngest. Only if nobody had to leave are there blocks for groups that wait.
        The plan is empty when nothing is left to do.

        With a budget of 8, two sequences that make a token and a prompt of 20, the
        steps have 1 + 1 + 6 tokens three times, and then 1 + 1 + 2.
        """
        if self._plan is not None:
            raise RuntimeError("finish_step must come before the next schedule")
        plan = StepPlan()
        # Running and waiting are two passes over one rule, as in vLLM: a sequence gets
        # what it lacks, be it the rest of a prompt or the one token it made last.
        num_preemptions = self.num_preemptions
        self._continue_running(plan)
        # Whoever had to leave would not fit again, and nobody overtakes it.
        if self.num_preemptions == num_preemptions:
            self._admit(plan)
        # An empty plan is not executed, so no `finish_step` will come for it.
        if plan.scheduled:
            self._plan = plan
        return plan

    def _continue_running(self, plan: StepPlan) -> None:
        num_planned = 0
        while num_planned < len(self._running):
            group = self._running[num_planned]
            # The youngest stands last, so what is planned already cannot be hit.
            while not self._plan_group(group, plan):
                victim = self._running.pop()
                self._residence.leave(victim, plan)
                self.num_preemptions += 1
                # It came before all that wait, so it stands before them.
                self._waiting.appendleft(victim)
                # Then it was the youngest itself, and nobody is left to be planned.
                if victim is group:
                    return
            num_planned += 1

    def _admit(self, plan: StepPlan) -> None:
        # Forks that are still to come have their places already.
        num_seqs = sum(group.max_num_seqs for group in self._running)
        while self._waiting:
            group = self._waiting[0]
            num_seqs += group.max_num_seqs
            # With a token for each of its sequences, some of them go on for certain.
            has_budget = plan.num_tokens + len(group.sequences) <= self.token_budget
            # Whoever does not fit holds up all behind it: nobody overtakes.
            if num_seqs > self.max_seqs or not has_budget:
                return
            # To look for cached blocks takes long, and with no more blocks free than
            # when it was refused, and no prompt published since (`_note_written`), it
            # would be refused again.
            refused, num_free = self._refused
            if group is refused and self._pool.num_free <= num_free:
                return
            if not self._residence.enter(group, plan):
                self._refused = (group, self._pool.num_free)
                return
            self._refused = (None, 0)  # when it leaves and waits again, it is another
            self._running.append(self._waiting.popleft())
            self._plan_group(group, plan)  # `enter` has looked further ahead: it fits

    def _plan_group(self, group: SequenceGroup, plan: StepPlan) -> bool:
        """Put a running group into the plan, as far as the budget goes.

        False, with nothing done, when there are too few blocks for all of it.
        """
        # Nothing left is no failure: the group keeps its blocks and goes on in a later
        # step.
        left = self.token_budget - len(plan.token_ids)
        if len(group.sequences) == 1:
            return self._plan_sequence(group.sequences[0], left, plan)
        query_lens = shared_budget([s.num_to_compute for s in group.sequences], left)
        # First the copies and the new blocks of all, counted; then the deed.
        if blocks_to_grow(group.tables, query_lens) > self._pool.num_free:
            return False
        rows = zip(group.sequences, group.tables, query_lens, strict=True)
        for sequence, table, query_len in rows:
            if query_len > 0:
                # In this order: `append_tokens` refuses to write into a shared block.
                plan.copies += self._copy_on_write(table)
                plan.add_row(sequence, table.append_tokens(query_len))
        return True

    def _plan_sequence(self, sequence: Sequence, left: int, plan: StepPlan) -> bool:
        """The same for a sequence alone. It shares full blocks only, so none is copied.

        Most rows are such, and this runs once for each in every step.
        """
        table = sequence.table
        assert table is not None, "what runs has a table"
        query_len = min(left, sequence.num_to_compute)
        length = table.num_tokens + query_len
        needed = num_blocks_for(length, self.block_size) - table.num_blocks
        # Mostly none, and then the pool need not be asked.
        if needed > 0 and needed > self._pool.num_free:
            return False
        if query_len > 0:
            plan.add_row(sequence, table.append_tokens(query_len))
        return True

    # --- after the step ---

    def finish_step(self, new_tokens: Row[list[int] | None]) -> list[list[Sequence]]:
        """Take in what the step made: new_tokens[i] belongs to scheduled[i].

        None where the row makes no token yet. Otherwise a list: the first token
        continues the sequence, each further one a fork of it, and [] drops a beam.
        Returns each row's sequences in the order of its tokens, those that finished
        included; a row that was aborted meanwhile gives [], whatever its tokens are.
        """
        # Without a plan there is nothing to take in, and [] alone is accepted.
        plan = StepPlan() if self._plan is None else self._plan
        check_tokens(plan, new_tokens)
        self._note_written(plan)
        # The last line that can fail; it may be tried again, for nothing is counted
        # twice above.
        forks = fork_tables(plan, new_tokens, self._fork)
        self._plan = None
        rows: list[list[Sequence]] = []
        for i, tokens in enumerate(new_tokens):
            sequence, _ = plan.scheduled[i]
            row: list[Sequence] = []
            if tokens is not None and sequence.table is not None:  # else: aborted
                # By far the most rows: one token, no fork, nobody dropped.
                if len(tokens) == 1:
                    row = [sequence]
                    sequence.append(tokens[0])
                else:
                    row = self._branch(sequence, tokens, forks.get(i, []))
                if len(row) != 1 or sequence.finish_reason is not None:
                    self._regroup(sequence, row)
            rows.append(row)
        return rows

    def _branch(
        self, sequence: Sequence, tokens: list[int], tables: list[BlockTable | None]
    ) -> list[Sequence]:
        """A twin over each of the tables for the tokens after the first; none: drop."""
        if not tokens:
            sequence.finish(None)
            return []
        # The twins first: they continue the sequence as it was.
        row = [sequence, *map(sequence.twin, tables)]
        for one, token_id in zip(row, tokens, strict=True):
            one.append(token_id)
        return row

    def _note_written(self, plan: StepPlan) -> None:
        """What the step wrote is there now, and may be found by others."""
        size = self.block_size
        for (sequence, _), seq_len in zip(plan.scheduled, plan.seq_lens, strict=True):
            if sequence.table is None:
                continue  # aborted: who knows what was written
            before, sequence.num_computed = sequence.num_computed, seq_len
            # Most steps of a decode fill no block, so there is nothing to publish.
            if self._prefix_cache is not None and seq_len // size > before // size:
                token_ids = sequence.token_ids
                if seq_len < len(token_ids):  # a chunk: the rest is not written yet
                    token_ids = token_ids[:seq_len]
                self._prefix_cache.publish(sequence.table, token_ids)
                if before < sequence.num_prompt_tokens:
                    # Whoever waits with the same beginning needs fewer blocks now.
                    self._refused = (None, 0)

    def _regroup(self, sequence: Sequence, row: list[Sequence]) -> None:
        """Let those of its row that go on take the place of a sequence in its group."""
        group = self._groups[sequence.request_id]
        # In its place, not at the end: who comes first is planned first.
        place = group.sequences.index(sequence)
        # Whoever ended with its token has given its table back already.
        group.sequences[place : place + 1] = [s for s in row if s.table is not None]
        if sequence.params.beam_width is None:
            # Samples fork once, behind the prompt: whoever has ended needs no place.
            group.max_num_seqs = len(group.sequences)
        if not group.sequences:
            self._running.remove(group)
            del self._groups[group.request_id]
