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
    raise NotImplementedError("exercise 6.1: a second table over the same blocks")


def copy_before_write(table: Any) -> list[tuple[int, int]]:
    raise NotImplementedError("exercise 6.2: see to it that the next token can be appended")


def freed_by_each(tables: list[list[int | None]], order: list[int]) -> list[set[int]]:
    raise NotImplementedError("exercise 6.3: which blocks become free by each release?")


def impossible_blocks(
    tables: list[list[int]], tokens: list[list[int]], block_size: int
) -> set[int]:
    raise NotImplementedError("exercise 6.4: which blocks would have to hold two different things?")


def check_sharing(
    allocator_class: Callable[..., Any],
    table_class: Callable[..., Any],
    fork: Callable[..., Any],
    copy_on_write: Callable[..., Any],
) -> None:
    raise NotImplementedError("exercise 6.5: find every broken promise, accuse nobody else")


# pristine stub, sha256 of the lines above: 6e7ee2ba15ae36ea
