"""A group as a whole: its share of a step, the blocks it needs, and how they move.

Its tables share blocks, so none of this can be said of one table alone.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Row

from paged_attention.block import num_blocks_for
from paged_attention.block_table import Allocator, BlockTable


def distinct_blocks(tables: Iterable[BlockTable]) -> list[int]:
    """The blocks that the tables hold, each once, in order."""
    # A dict, for a set has no order, and whoever moves blocks goes by it.
    held = dict.fromkeys(b for table in tables for b in table.block_ids)
    return [b for b in held if b is not None]


def shared_budget(num_to_compute: list[int], budget: int) -> list[int]:
    """How many tokens each sequence of a group computes in this step.

    A group makes its next tokens as one, since beams are compared. So until the budget
    is enough for all, each of them stops before its newest token.
    """
    # Three beams that come back, with [5, 1, 1] to compute and a budget of 6, get
    # [4, 0, 0]: a step later all three have their newest token left, and make one.
    if sum(num_to_compute) <= budget:
        return num_to_compute
    query_lens: list[int] = []
    # First come, first served within the group too; what is left over goes on.
    for num_tokens in num_to_compute:
        query_lens.append(min(num_tokens - 1, budget))
        budget -= query_lens[-1]
    return query_lens


def blocks_to_grow(tables: Row[BlockTable], num_tokens: Row[int]) -> int:
    """How many free blocks it takes to append num_tokens[i] to tables[i], for all i.

    New blocks and copies are counted together: half of them would be of no use. Of k
    tables that share a partly filled last block, all but the last one to write copy it.
    """
    needed = 0
    writers: dict[int, int] = {}  # shared tail -> how many of the tables write to it
    for table, n in zip(tables, num_tokens, strict=True):
        size, length = table.block_size, table.num_tokens
        # Holes count on both sides, so they cancel out.
        needed += num_blocks_for(length + n, size) - table.num_blocks
        if n and length % size:
            tail = table.translate(table.num_blocks - 1)
            writers[tail] = writers.get(tail, 0) + 1
            # The last of all holders writes in place; if another holder does not
            # write in this step, everybody copies. A prefix cache holds full blocks
            # only, so it is never among them.
            if writers[tail] < table.allocator.ref_count(tail):
                needed += 1
    return needed


def move_tables(
    tables: Row[BlockTable], allocator: Allocator
) -> tuple[list[BlockTable], list[tuple[int, int]]]:
    """Tables on another pool, over copies of the same blocks; the old ones are freed.

    Returns them with the pairs (old block, new block) that are to be copied. A block
    that several tables share is copied once, and shared again: [3, 5] and [3, 8] may
    become [0, 1] and [0, 2], with (3, 0), (5, 1) and (8, 2) to copy. What others hold
    as well stays where it is for them. Raises OutOfBlocksError, and changes nothing,
    when the other pool is too small.

    The old blocks are free when this returns, and nothing is copied yet: do it before
    anybody writes.
    """
    block_ids = distinct_blocks(tables)
    moved = dict(zip(block_ids, allocator.allocate_many(len(block_ids)), strict=True))
    fresh = set(moved.values())  # held once: by the first table that lists it
    result: list[BlockTable] = []
    for table in tables:
        new_ids = [None if b is None else moved[b] for b in table.block_ids]
        for block_id in new_ids:
            if block_id in fresh:
                fresh.remove(block_id)
            elif block_id is not None:
                allocator.share(block_id)
        result.append(
            type(table)(allocator, table.block_size, new_ids, table.num_tokens)
        )
    for table in tables:
        table.free()
    return result, list(moved.items())
