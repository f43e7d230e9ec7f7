"""Exercise 06: sequences that share blocks, and how that goes wrong.

Grade with `course grade 6`. The tasks do not depend on each other. fork_table and
copy_before_write can take the place of the package's own fork and copy_on_write.

Tables and allocators are given to you. They are the package's, or others like them:

    table.allocator .block_size .num_tokens .num_blocks
    table.block_ids             a copy of its list; None is a hole (a block that was
                                given back while later ones stay)
    table.translate(logical_block) -> int       its physical block
    table.append_tokens(n) -> list[int]         slots; SharedBlockError if the last
                                                block is partly filled and its
                                                ref_count is above 1 (unless n is 0)
    table.replace(logical_block, block_id)      takes over the reference to the new
                                                block, gives the old one back
    table.truncate(num_tokens) .drop_before(position) .free()   after free the table
                                                is empty: free once more does nothing
    type(table)(allocator, block_size, block_ids, num_tokens)
                                a new table of these blocks. It takes over the
                                references of its caller: it counts nothing itself

    allocator.allocate() -> int .allocate_many(n) -> list[int]  OutOfBlocksError
    allocator.share(block_id)                   one holder more; ValueError for a free
                                                block
    allocator.free(block_id) .free_many(block_ids)      one holder less per entry;
                                                DoubleFreeError if there is none
    allocator.ref_count(block_id) .num_free .num_blocks

The rule behind everything: a block's ref_count is the number of places in all tables
where it stands (an id may stand at two places of one table), and a block is free if
that number is 0. Whatever raises, in your code or in the allocator, leaves tables and
allocator exactly as they were. Errors: OutOfBlocksError, SharedBlockError and
DoubleFreeError (both ValueErrors), from paged_attention.errors. Lists that a function
is given are the same after the call.


Task 6.1   fork_table(table) -> a table

A second table of the same class over the same blocks, with as many tokens. No block is
taken, no key or value is moved. Afterwards each of the two goes its own way: what
happens to one does not lengthen or change the list of the other, and they may be freed
in any order.


Task 6.2   copy_before_write(table) -> list[tuple[int, int]]

Makes sure that the next token can be appended. If that token would be written into a
block that others hold too, the table gets a block of its own in its place, and the
result is one pair [(source, destination)] of block ids: what is in source must be
copied to destination before anything is written there (the caller does that). In all
other cases there is nothing to do, and the result is []. Blocks that are full stay
shared. OutOfBlocksError if no block is free for the copy.


Task 6.3   freed_by_each(tables, order) -> list[set[int]]

A scheduler wants to know what it gains by letting sequences go. tables is a list with
the block_ids (a list of int | None) of all tables that there are; nobody else holds a
block. They are released one after the other, as order says: it is a list of places in
tables, each at most once, and not every table need be in it. The result has one set for
each release, with the ids of the blocks that become free by it.


Task 6.4   impossible_blocks(tables, tokens, block_size) -> set[int]

Somebody shows you a picture: sequences, their tokens, and which block holds which part
of them. Can sharing prefixes have led to it? A block of keys and values can serve two
sequences only if it would hold the same for both; and what it holds depends on its
tokens, on their positions, and on all tokens before them. A sequence reads of its last
block only what its own tokens wrote.

    tables      list[list[int]]: the block_ids of each sequence, no holes
    tokens      list[list[int]]: the token ids of each sequence, as many as its table
                has room for, or fewer in the last block
    the result  the ids of all blocks that not all places where they stand could share;
                the empty set if the picture is possible

Sequences may have computed the same tokens at the same time; then these are in two
blocks, and that is possible. Example, in blocks of 2: tokens [7, 8, 9, 9] in blocks
[0, 1] and tokens [7, 8, 5, 9] in blocks [0, 2] are possible; with [0, 1] for both of
them block 1 is impossible.


Task 6.5   check_sharing(allocator_class, table_class, fork, copy_on_write) -> None

A hunt for bugs: a test for four things that belong together and that you have not seen.
They have the methods and promises above: allocator_class(num_blocks) makes an
allocator, table_class(allocator, block_size, block_ids=(), num_tokens=0) a table; fork
is like fork_table, copy_on_write like copy_before_write. Use them, and return (None) if
all promises are kept. Raise AssertionError, best with a sentence that says what is
wrong, if not; `assert x == y, "sentence"` does that. Any other exception that escapes
counts as a find as well.

Your function is called with eleven sets that have one bug each, and with three that are
right: their allocators hand out blocks in different orders. Most of the bugs are of the
kinds that chapter 06 shows; others break a promise above, such as which error a call
raises. It must find every wrong one and accuse no right one. It may use each set as
often as it likes (50,000 calls of methods, 5 seconds). To try it on what is right, with
your own solutions of 6.1 and 6.2, type in a terminal

    cd exercises
    ../.venv/bin/python -i ex06_ref_counting.py

and then, in Python,

    from paged_attention import BlockAllocator, BlockTable
    check_sharing(BlockAllocator, BlockTable, fork_table, copy_before_write)
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from paged_attention.errors import OutOfBlocksError, SharedBlockError


def fork_table(table: Any) -> Any:
    # BEGIN SOLUTION 6.1: a second table over the same blocks
    counted: list[int] = []
    try:
        for block_id in table.block_ids:
            if block_id is not None:
                table.allocator.share(block_id)
                counted.append(block_id)
    except Exception:
        table.allocator.free_many(counted)
        raise
    return type(table)(
        table.allocator, table.block_size, table.block_ids, table.num_tokens
    )
    # END SOLUTION


def copy_before_write(table: Any) -> list[tuple[int, int]]:
    # BEGIN SOLUTION 6.2: see to it that the next token can be appended
    if table.num_tokens % table.block_size == 0:
        return []  # the next token goes into a new block
    last = table.num_blocks - 1
    source = table.translate(last)
    if table.allocator.ref_count(source) == 1:
        return []
    destination = table.allocator.allocate()
    table.replace(last, destination)
    return [(source, destination)]
    # END SOLUTION


def freed_by_each(tables: list[list[int | None]], order: list[int]) -> list[set[int]]:
    # BEGIN SOLUTION 6.3: which blocks become free by each release?
    counts = Counter(block_id for block_ids in tables for block_id in block_ids)
    freed_by = []
    for place in order:
        freed = set()
        for block_id in tables[place]:
            counts[block_id] -= 1
            if block_id is not None and counts[block_id] == 0:
                freed.add(block_id)
        freed_by.append(freed)
    return freed_by
    # END SOLUTION


def impossible_blocks(
    tables: list[list[int]], tokens: list[list[int]], block_size: int
) -> set[int]:
    # BEGIN SOLUTION 6.4: which blocks would have to hold two different things?
    # What one row of a block holds: its token and all before it (so its position too).
    held: dict[tuple[int, int], set[tuple[int, ...]]] = {}
    for block_ids, token_ids in zip(tables, tokens, strict=True):
        for position in range(len(token_ids)):
            block_id = block_ids[position // block_size]
            row = block_id, position % block_size
            held.setdefault(row, set()).add(tuple(token_ids[: position + 1]))
    return {block_id for (block_id, _), kinds in held.items() if len(kinds) > 1}
    # END SOLUTION


def check_sharing(
    allocator_class: Callable[..., Any],
    table_class: Callable[..., Any],
    fork: Callable[..., Any],
    copy_on_write: Callable[..., Any],
) -> None:
    # BEGIN SOLUTION 6.5: find every broken promise, accuse nobody else
    for parent_first in (True, False):
        pool = allocator_class(8)
        parent = table_class(pool, 4)
        parent.append_tokens(6)
        child = fork(parent)
        grandchild = fork(child)
        tables = [parent, child, grandchild]
        _check(pool, tables, "after two forks")
        _check_shared_tail(pool, child, tables, copy_on_write)
        child.append_tokens(7)
        _check(pool, tables, "after one of three grew")
        for table in tables if parent_first else tables[::-1]:
            table.free()
            _check(pool, tables, "after one was released")
            newcomer = table_class(pool, 4)
            newcomer.append_tokens(4)
            _check(pool, [*tables, newcomer], "after the next one came")
            table.free()
            _check(pool, [*tables, newcomer], "after it was released once more")
            newcomer.free()
    _check_full_pool(allocator_class(2), table_class, fork, copy_on_write)
    _check_one_id_at_two_places(allocator_class(3), table_class, fork)
    # END SOLUTION


# BEGIN NOTES
def _check(pool: Any, tables: list[Any], when: str) -> None:
    """The rule: ref_count is the number of places, and free is who has none."""
    places = Counter(b for table in tables for b in table.block_ids if b is not None)
    for block_id in range(pool.num_blocks):
        count = pool.ref_count(block_id)
        expected = places[block_id]
        assert count == expected, f"{when}: block {block_id} {expected}, not {count}"
    assert pool.num_free == pool.num_blocks - len(places), f"{when}: num_free"
    for table in tables:
        needed = -(-table.num_tokens // table.block_size)
        assert table.num_blocks == needed, f"{when}: {needed} blocks are needed"


def _check_shared_tail(
    pool: Any, table: Any, tables: list[Any], copy_on_write: Callable[..., Any]
) -> None:
    before = [each.block_ids for each in tables]
    try:
        table.append_tokens(1)
    except SharedBlockError:
        pass
    else:
        raise AssertionError("a block that others read was written")
    assert [each.block_ids for each in tables] == before, "refused: nothing changes"
    _check(pool, tables, "after a refused write")
    source = table.block_ids[-1]
    pairs = copy_on_write(table)
    assert pairs == [(source, table.block_ids[-1])], "source and destination"
    assert pairs[0][0] != pairs[0][1], "the copy is another block"
    _check(pool, tables, "after a copy")
    assert copy_on_write(table) == [], "now it is alone in its block"


def _check_full_pool(
    pool: Any,
    table_class: Callable[..., Any],
    fork: Callable[..., Any],
    copy_on_write: Callable[..., Any],
) -> None:
    """Nothing may change where no block is left for the copy."""
    parent = table_class(pool, 4)
    parent.append_tokens(6)
    child = fork(parent)
    before = child.block_ids
    try:
        copy_on_write(child)
    except OutOfBlocksError:
        pass
    else:
        raise AssertionError("no block was free for the copy")
    assert child.block_ids == before, "refused: nothing changes"
    _check(pool, [parent, child], "after a copy that found no block")


def _check_one_id_at_two_places(
    pool: Any, table_class: Callable[..., Any], fork: Callable[..., Any]
) -> None:
    block_id = pool.allocate()
    pool.share(block_id)
    parent = table_class(pool, 4, [block_id, block_id], 8)
    child = fork(parent)
    _check(pool, [parent, child], "an id at two places of both tables")
    child.free()
    _check(pool, [parent, child], "one of them was released")
    parent.free()
    _check(pool, [parent, child], "both were released")


# 6.1  Count first, make the table then: if share raises for the third block, two counts
# have to be taken back, and no half-made table is about. block_ids gives a copy, so the
# two lists are apart by themselves; a table that kept the list it was given would not
# be. type(table) keeps the caller's own class; BlockTable(…) would turn it into ours.
#
# 6.2  Three questions, the cheap ones first. Take the new block before the old one is
# given up: allocate may raise, and then everything is as it was. Who forks and never
# writes pays nothing. The last holder of a block has a count of 1 and writes in place.
#
# 6.3  The order decides who frees what, never how often: each block is freed once, by
# its last holder. So a fork that wrote nothing brings nothing when it goes alone, which
# is why schedulers preempt groups as a whole.
#
# 6.4  Not the ids of the blocks before decide, but the tokens before: [0, 3] and [2, 3]
# are possible if 0 and 2 hold the same. Comparing the block's own tokens is not enough:
# a key of layer 2 has seen, through attention in layer 1, all that came before. In the
# picture that is often drawn, tables [0, 1, 5], [2, 1], [4, 5, 7], block 5 stands at
# place 2 and place 1, and block 1 behind different tokens.
#
# 6.5  One rule, checked after every call, finds all but a few. What is left are
# promises about what does not happen: write after a fork without asking, free twice,
# run out of blocks in the middle, and look at the table that you did not touch.
# END NOTES
