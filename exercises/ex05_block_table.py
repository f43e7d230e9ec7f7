"""Exercise 05: a table that makes scattered blocks look like one contiguous sequence.

Grade with `course grade 5`. All tasks but 5.4 build one class; it grows with each task.
At the end it can take the place of the package's own block table.

A table belongs to one sequence. Its tokens have the positions 0 … num_tokens - 1, and
every block_size of them share a logical block: 0, 1, 2, and so on. For each logical
block the table knows the physical block that holds it, by its block_id. A token's slot
is block_id * block_size + offset. Nothing else is stored anywhere: no keys, no values.

The allocator is an object like that of chapter 04, and is given to you. These are its
methods that you need; any free block may come next, and ids need not be neighbours:

    .allocate_many(n) -> list[int]  n free blocks or none: OutOfBlocksError
    .free_many(block_ids)           one holder less for each id in this list, or for
                                    none: DoubleFreeError
    .ref_count(block_id) -> int     how many hold the block

The table holds its blocks: one reference for each entry that is not None. Errors are
imported from paged_attention.errors: OutOfBlocksError and SharedBlockError (which is a
ValueError). Whatever raises, in your code or in the allocator, leaves the table and the
allocator exactly as they were. Lists that are given are the same after the call.

A logical block may be a hole: it was given back, and None stands in its place. A hole
is counted as a block, and its tokens as tokens, but it has no physical block. Asking
for one of them is a ValueError; asking for a block or position that never was, -1
included, is an IndexError.


Task 5.1   translate

    LogicalTable(allocator, block_size, block_ids=(), num_tokens=0)
                                a table of the blocks block_ids (a list of int | None).
                                It takes over the references of whoever calls it, so no
                                count changes. ValueError if these are not as many
                                blocks as num_tokens tokens need
    .allocator .block_size      as given
    .num_tokens -> int          how many tokens there are
    .num_blocks -> int          how many logical blocks there are
    .block_ids -> list          the physical block of each logical one, as a copy:
                                changing it, or the list that was given, does not
                                change the table
    .translate(logical_block) -> int    its physical block
    .slot(position) -> int              the slot of the token at this position


Task 5.2   append_tokens(n) -> list[int]

Makes room for n more tokens, n 0 or more, and returns their n slots in order. The last
block is filled before new blocks are taken, and no more are taken than are needed. All
or nothing: OutOfBlocksError if there are too few, ValueError if n < 0.

If the last block is partly filled and others hold it too (its ref_count is above 1),
they would read what is written there: SharedBlockError, unless n is 0. A full last
block may be shared, since nothing more is written to it. Where the partly filled block
is a hole, nothing can be written: ValueError, unless n is 0.


Task 5.3   many at once

    .translate_many(logical_blocks) -> list[int]    the physical block of each of these;
                                                    logical_blocks is a list or a range
    .slots(start, stop) -> list[int]    the slots of the positions start … stop - 1;
                                        IndexError unless
                                        0 <= start <= stop <= num_tokens

A step of an engine asks for thousands of slots, so slots goes from block to block: for
the tokens inside a block Python itself makes the numbers, as range does. With ten
blocks of 16 tokens slots takes as many steps of Python as with ten blocks of 1,024 (no
loop over tokens, no comprehension over them).


Task 5.4   pad_tables(tables) -> list[list[int]]
           kernel_slots(block_tables, seq_lens, block_size) -> list[list[int]]

A kernel gets the tables of all sequences as one rectangle of numbers. pad_tables makes
it from a list of LogicalTable: a row for each table with its physical blocks, all rows
as long as the longest, -1 behind the last block and in place of a hole. No tables, no
rows: [].

kernel_slots goes the other way, and knows nothing else, as a kernel does. For each row
of block_tables (list[list[int]]) and its number of tokens in seq_lens (list[int]): the
slots of these tokens, in order. Tokens in a hole are left out. What stands behind the
blocks that seq_lens asks for is never looked at: it can be -1 or any other number.


Task 5.5   give back

    .truncate(num_tokens) -> None   forget all but the first num_tokens tokens, and give
                                    back the blocks that hold none of them. ValueError
                                    for more than there are, or fewer than 0; ValueError
                                    as well if the last block would be partly filled and
                                    is a hole, since nothing could be appended to it
    .drop_before(position) -> None  give back all blocks whose tokens all stand before
                                    this position; each of them becomes a hole, and
                                    num_tokens stays. IndexError unless
                                    0 <= position <= num_tokens
    .replace(logical_block, block_id) -> None   put another block in place of this one:
                                    the table takes over its reference, and gives back
                                    the old block
    .free() -> None                 give back all; the table is empty then, and may be
                                    used again

Blocks are given back from the last one to the first: a cache of prefixes, in chapter
07, forgets first what was given back first. The same id may stand in two places of a
table; then the table holds it twice, and gives it back once for each place.
"""

from collections.abc import Iterable
from typing import Any

from paged_attention.errors import SharedBlockError


class LogicalTable:
    def __init__(
        self,
        allocator: Any,
        block_size: int,
        block_ids: Iterable[int | None] = (),
        num_tokens: int = 0,
    ) -> None:
        self.allocator: Any = allocator
        self.block_size: int = block_size
        self.num_tokens: int = num_tokens
        raise NotImplementedError("exercise 5.1: keep the blocks, if they are as many as the tokens need")

    @property
    def num_blocks(self) -> int:
        raise NotImplementedError("exercise 5.1: how many logical blocks there are")

    @property
    def block_ids(self) -> list[int | None]:
        raise NotImplementedError("exercise 5.1: the physical blocks, as a copy")

    def translate(self, logical_block: int) -> int:
        raise NotImplementedError("exercise 5.1: look the physical block up")

    def slot(self, position: int) -> int:
        raise NotImplementedError("exercise 5.1: where the token at this position lies")

    def append_tokens(self, n: int) -> list[int]:
        raise NotImplementedError("exercise 5.2: make room for n tokens, or for none")

    def translate_many(self, logical_blocks: Iterable[int]) -> list[int]:
        raise NotImplementedError("exercise 5.3: look several physical blocks up")

    def slots(self, start: int, stop: int) -> list[int]:
        raise NotImplementedError("exercise 5.3: the slots of start … stop - 1, block by block")

    def truncate(self, num_tokens: int) -> None:
        raise NotImplementedError("exercise 5.5: forget the end")

    def drop_before(self, position: int) -> None:
        raise NotImplementedError("exercise 5.5: forget the beginning")

    def replace(self, logical_block: int, block_id: int) -> None:
        raise NotImplementedError("exercise 5.5: swap one block for another")

    def free(self) -> None:
        raise NotImplementedError("exercise 5.5: give back everything")


def pad_tables(tables: list[LogicalTable]) -> list[list[int]]:
    raise NotImplementedError("exercise 5.4: one row per table, -1 where there is no block")


def kernel_slots(
    block_tables: list[list[int]], seq_lens: list[int], block_size: int
) -> list[list[int]]:
    raise NotImplementedError("exercise 5.4: the slots of each sequence, from the rectangle alone")


# pristine stub, sha256 of the lines above: 15542807fb7c1e05
