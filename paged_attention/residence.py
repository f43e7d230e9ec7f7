"""Gives a group its tables, and takes them away: by recomputing or by swapping.

The scheduler decides who comes and who goes; here is how. Source: the paper, section
4.5, which compares the two ways to bring back what had to leave.
"""

from paged_attention.block_table import Allocator, BlockTable
from paged_attention.group_blocks import blocks_to_grow, distinct_blocks, move_tables
from paged_attention.prefix_cache import PrefixCache
from paged_attention.sequence import Sequence, SequenceGroup, SequenceStatus
from paged_attention.step_plan import StepPlan


class Residence:
    """Where the keys and values of a group are: in the pool, in host memory, nowhere.

    A group comes and goes as a whole, so that no part of it holds blocks for nothing.
    vLLM's v1 knows one of the two ways: what had to leave is computed again
    (`_preempt_request`). Blocks reach host memory through its connectors alone.
    """

    def __init__(
        self,
        allocator: Allocator,
        block_size: int,
        prefix_cache: PrefixCache | None,
        host_allocator: Allocator | None,
        block_table_class: type[BlockTable],
    ) -> None:
        if prefix_cache is not None:
            if prefix_cache.allocator is not allocator:
                raise ValueError("prefix_cache must wrap the allocator that is given")
            if prefix_cache.block_size != block_size:
                raise ValueError(
                    f"prefix_cache has blocks of {prefix_cache.block_size}, "
                    f"got block_size {block_size}"
                )
        # What tables are made on: every count and every shortage is seen from here.
        self.pool: Allocator = allocator if prefix_cache is None else prefix_cache
        self._block_size = block_size
        self._prefix_cache = prefix_cache
        self._host_allocator = host_allocator
        self._block_table_class = block_table_class

    def leave(self, group: SequenceGroup, plan: StepPlan) -> None:
        """Free all blocks of a running group that is not in the plan.

        They are copied to host memory if there is some with room for them. If not, all
        tokens are kept and will be computed again: what was made is never lost.
        """
        host, tables = self._host_allocator, group.tables
        if host is not None and len(distinct_blocks(tables)) <= host.num_free:
            # The plan swaps out before anything is written, so the pool may hand the
            # blocks on at once.
            host_tables, pairs = move_tables(tables, host)
            plan.swap_out += pairs
            for sequence, host_table in zip(group.sequences, host_tables, strict=True):
                sequence.table, sequence.host_table = None, host_table
                sequence.status = SequenceStatus.SWAPPED
            return
        for sequence, table in zip(group.sequences, tables, strict=True):
            table.free()
            # What it has published may be found again by `enter`, if nobody evicts it.
            sequence.table, sequence.num_computed = None, 0
            sequence.status = SequenceStatus.PREEMPTED

    def enter(self, group: SequenceGroup, plan: StepPlan) -> bool:
        """Give a waiting group its tables, if all it has to compute will fit.

        False, with nothing held, if not; cached blocks that were found have then been
        used just now, so they are evicted later. It is asked for all tokens, also where
        the budget lets the step compute only some: half a prompt would sit on its
        blocks and be the next to leave.
        """
        sequences, tables = group.sequences, group.host_tables
        swapped = bool(tables)  # a group lies there as a whole or not at all
        if not swapped:
            # Forks come back apart, each with all of its blocks: what they shared is
            # shared again only as far as the prefix cache finds it. `add` has reckoned
            # with that.
            tables = [self._new_table(sequence) for sequence in sequences]
        needed = blocks_to_grow(
            tables,
            [
                len(sequence.token_ids) - table.num_tokens
                for sequence, table in zip(sequences, tables, strict=True)
            ],
        )
        if swapped:
            # What it had comes back as well, a shared block once.
            needed += len(distinct_blocks(tables))
        # Cached blocks that were just found are held now, so they are no longer free.
        if needed > self.pool.num_free:
            if not swapped:
                for table in tables:
                    table.free()
            return False
        if swapped:
            tables, pairs = move_tables(tables, self.pool)
            plan.swap_in += pairs
        for sequence, table in zip(sequences, tables, strict=True):
            sequence.table, sequence.host_table = table, None
            # What was found in the cache, or came back, is computed already.
            sequence.num_computed = table.num_tokens
            sequence.status = SequenceStatus.RUNNING
        return True

    def _new_table(self, sequence: Sequence) -> BlockTable:
        if self._prefix_cache is None:
            return self._block_table_class(self.pool, self._block_size)
        # All tokens, also those that were made before a preemption.
        return self._prefix_cache.acquire(sequence.token_ids)
