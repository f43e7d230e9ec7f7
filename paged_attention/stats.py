"""How full the blocks are, and what happened to them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from paged_attention.block_table import BlockTable
from paged_attention.sequence import Sequence, SequenceStatus


@dataclass(frozen=True)
class Stats:
    """The pool at this moment, and counts since the engine was made."""

    num_blocks: int
    num_free: int  # those included that only the prefix cache holds
    num_cached: int  # published by the prefix cache, in use or not
    num_shared: int  # in more than one table
    used_share: float  # of the slots of the tables' blocks: those that hold a token
    num_seqs: int  # not finished
    num_steps: int
    num_tokens: int  # computed, of prompts and of what was made
    num_hit_tokens: int  # of prompts, not computed: the prefix cache had them
    num_preemptions: int  # sequences that had to leave


@dataclass
class Counts:
    """Kept by watching plans, so that any scheduler is counted alike."""

    num_steps: int = 0
    num_tokens: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    _started: set[Sequence] = field(default_factory=set)
    _running: set[Sequence] = field(default_factory=set)

    def see(self, plan: Any) -> None:
        """Before the step runs. Who waits is not looked at: there may be thousands."""
        rows = [sequence for sequence, _ in plan.scheduled]
        self.num_steps += 1
        self.num_tokens += len(plan.token_ids)
        # A sequence that comes back starts anew, but is no hit of its prompt's.
        for row, sequence in enumerate(rows):
            is_new = sequence not in self._started
            if is_new and len(sequence.token_ids) == sequence.num_prompt_tokens:
                # Where its first token stands: all before it came out of the cache.
                self.num_hit_tokens += plan.positions[plan.query_start_loc[row]]
        # Had a table in the last step, is not finished, and has none: it had to leave.
        self.num_preemptions += sum(
            s.table is None and s.status != SequenceStatus.FINISHED
            for s in self._running
        )
        started = {*self._started, *rows}
        self._started = {s for s in started if s.status != SequenceStatus.FINISHED}
        self._running = {s for s in self._started if s.table is not None}

    def see_forks(self, rows: Iterable[list[Sequence]]) -> None:
        """After the step: a fork may have to leave before any plan names it."""
        for row in rows:
            if len(row) > 1:
                going_on = {s for s in row if s.table is not None}
                self._started |= going_on
                self._running |= going_on


def stats_of(
    pool: Any, prefix_cache: Any, block_size: int, alive: list[Sequence], counts: Counts
) -> Stats:
    """pool: where the tables' blocks come from, the prefix cache if there is one."""
    blocks = filled_slots(s.table for s in alive if s.table is not None)
    num_slots = len(blocks) * block_size
    num_filled = sum(filled for filled, _ in blocks.values())
    return Stats(
        num_blocks=pool.num_blocks,
        num_free=pool.num_free,
        num_cached=0 if prefix_cache is None else len(prefix_cache.block_ids),
        num_shared=sum(holders > 1 for _, holders in blocks.values()),
        # Where no table has a block, none is wasted.
        used_share=num_filled / num_slots if num_slots else 1.0,
        num_seqs=len(alive),
        num_steps=counts.num_steps,
        num_tokens=counts.num_tokens,
        num_hit_tokens=counts.num_hit_tokens,
        num_preemptions=counts.num_preemptions,
    )


def filled_slots(tables: Iterable[BlockTable]) -> dict[int, tuple[int, int]]:
    """block_id -> (its slots that hold tokens, how many tables list it).

    A shared block counts once, as full as the table has it that fills it most. In
    blocks of 4, with 6 tokens in [3, 5] and 5 in [3, 8]: block 3 has 4 tokens and 2
    holders, block 5 has 2 tokens, block 8 one.
    """
    found: dict[int, tuple[int, int]] = {}
    for table in tables:
        left = table.num_tokens
        for block_id in table.block_ids:
            filled = min(left, table.block_size)
            left -= filled
            if block_id is not None:
                before, holders = found.get(block_id, (0, 0))
                found[block_id] = (max(before, filled), holders + 1)
    return found
