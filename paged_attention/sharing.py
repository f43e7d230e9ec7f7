"""Two sequences, one set of blocks: share on a fork, copy on a write.

Counts belong to the block, once, and the allocator keeps them. So both functions are
short: each reference that a table lists is counted, and no block with two holders is
written.

The paper and vLLM's first engine had both. vLLM's v1 has neither: n answers are n
requests that find one another's prompt in the prefix cache, and what lies in a partly
filled block is computed by each of them. That saves this file, and costs up to a
block of tokens for each answer.
"""

from typing import TypeVar

from paged_attention.block_table import BlockTable

Table = TypeVar("Table", bound=BlockTable)


def fork(table: Table) -> Table:
    """A second table over the same blocks, each counted once more.

    No key or value moves. The two lists are independent: what is appended to one does
    not lengthen the other. Source: the paper, section 4.4, parallel sampling.
    """
    # Of a hole nobody holds anything.
    allocator, shared = table.allocator, [b for b in table.block_ids if b is not None]
    done = 0  # how many were counted, should one of them fail
    try:
        for block_id in shared:
            allocator.share(block_id)
            done += 1
    except Exception:
        allocator.free_many(shared[:done])
        raise
    return type(table)(allocator, table.block_size, table.block_ids, table.num_tokens)


def copy_on_write(table: BlockTable) -> list[tuple[int, int]]:
    """Make the table's partly filled last block its own, so that it may be appended to.

    Returns the pair of blocks (source, destination) whose content is to be copied
    before the next write, or [] if there is nothing to do: the last block is full, or
    nobody else holds it. Raises OutOfBlocksError, and changes nothing, when no block is
    free for the copy.

    Blocks of 4, two tables [3, 5] with 6 tokens each, block 8 is free: whoever asks
    first becomes [3, 8], and gets [(5, 8)].
    """
    if table.num_tokens % table.block_size == 0:
        return []
    last = table.num_blocks - 1
    source = table.translate(last)
    if table.allocator.ref_count(source) == 1:
        return []
    # What can fail comes before any change. The source stays intact until the copy is
    # made, since its other holders keep it.
    destination = table.allocator.allocate()
    table.replace(last, destination)
    return [(source, destination)]
