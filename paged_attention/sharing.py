"""Two sequences, one set of blocks: share on a fork, copy on a write.

Counts belong to the block, once, and the allocator keeps them. So both functions are
short: each reference that a table lists is counted, and no block with two holders is
written.
"""

from typing import TypeVar

from paged_attention.block_table import BlockTable

Table = TypeVar("Table", bound=BlockTable)


def fork(table: Table) -> Table:
    """A second table over the same blocks, each counted once more.

    No key or value moves. The two lists are independent: what is appended to one does
    not lengthen the other. Source: the paper, section 4.4, parallel sampling.
    """
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
    """
    if table.num_tokens % table.block_size == 0:
        return []
    last = table.num_blocks - 1
    source = table.translate(last)
    if table.allocator.ref_count(source) == 1:
        return []
    # The source stays intact until the copy is made: its other holders keep it.
    destination = table.allocator.allocate()
    table.replace(last, destination)
    return [(source, destination)]
