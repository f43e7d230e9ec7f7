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
        # BEGIN SOLUTION 5.1: keep the blocks, if they are as many as the tokens need
        self._ids = list(block_ids)
        needed = self._blocks_for(num_tokens)
        if len(self._ids) != needed:
            raise ValueError(
                f"{num_tokens} tokens need {needed} blocks, got {len(self._ids)}"
            )
        # END SOLUTION

    @property
    def num_blocks(self) -> int:
        # BEGIN SOLUTION 5.1: how many logical blocks there are
        return len(self._ids)
        # END SOLUTION

    @property
    def block_ids(self) -> list[int | None]:
        # BEGIN SOLUTION 5.1: the physical blocks, as a copy
        return self._ids.copy()
        # END SOLUTION

    def translate(self, logical_block: int) -> int:
        # BEGIN SOLUTION 5.1: look the physical block up
        # Checked by hand, because a list takes -1 for its last element.
        if not 0 <= logical_block < len(self._ids):
            raise IndexError(f"there is no logical block {logical_block}")
        block_id = self._ids[logical_block]
        if block_id is None:
            raise ValueError(f"logical block {logical_block} is a hole")
        return block_id
        # END SOLUTION

    def slot(self, position: int) -> int:
        # BEGIN SOLUTION 5.1: where the token at this position lies
        if not 0 <= position < self.num_tokens:
            raise IndexError(f"there is no position {position}")
        logical_block, offset = divmod(position, self.block_size)
        return self.translate(logical_block) * self.block_size + offset
        # END SOLUTION

    def append_tokens(self, n: int) -> list[int]:
        # BEGIN SOLUTION 5.2: make room for n tokens, or for none
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        if n > 0 and self.num_tokens % self.block_size > 0:
            last = self.translate(self.num_blocks - 1)
            if self.allocator.ref_count(last) > 1:
                raise SharedBlockError(f"others read block {last} as well")
        needed = self._blocks_for(self.num_tokens + n)
        self._ids += self.allocator.allocate_many(needed - self.num_blocks)
        old, self.num_tokens = self.num_tokens, self.num_tokens + n
        return [self.slot(position) for position in range(old, old + n)]
        # END SOLUTION

    def translate_many(self, logical_blocks: Iterable[int]) -> list[int]:
        # BEGIN SOLUTION 5.3: look several physical blocks up
        return [self.translate(logical_block) for logical_block in logical_blocks]
        # END SOLUTION

    def slots(self, start: int, stop: int) -> list[int]:
        # BEGIN SOLUTION 5.3: the slots of start … stop - 1, block by block
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"there are no positions {start} … {stop - 1}")
        slots: list[int] = []
        position = start
        while position < stop:
            logical_block, offset = divmod(position, self.block_size)
            count = min(self.block_size - offset, stop - position)
            first = self.translate(logical_block) * self.block_size + offset
            slots.extend(range(first, first + count))
            position += count
        return slots
        # END SOLUTION

    def truncate(self, num_tokens: int) -> None:
        # BEGIN SOLUTION 5.5: forget the end
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"0 … {self.num_tokens} tokens can be kept")
        kept = self._blocks_for(num_tokens)
        if num_tokens % self.block_size > 0:
            self.translate(kept - 1)  # raises if it is a hole
        self._give_back(self._ids[kept:])
        del self._ids[kept:]
        self.num_tokens = num_tokens
        # END SOLUTION

    def drop_before(self, position: int) -> None:
        # BEGIN SOLUTION 5.5: forget the beginning
        if not 0 <= position <= self.num_tokens:
            raise IndexError(f"there is no position {position}")
        passed = position // self.block_size
        self._give_back(self._ids[:passed])
        self._ids[:passed] = [None] * passed
        # END SOLUTION

    def replace(self, logical_block: int, block_id: int) -> None:
        # BEGIN SOLUTION 5.5: swap one block for another
        self._give_back([self.translate(logical_block)])
        self._ids[logical_block] = block_id
        # END SOLUTION

    def free(self) -> None:
        # BEGIN SOLUTION 5.5: give back everything
        self.truncate(0)
        # END SOLUTION

    # BEGIN NOTES
    def _blocks_for(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def _give_back(self, block_ids: list[int | None]) -> None:
        held = [block_id for block_id in block_ids if block_id is not None]
        self.allocator.free_many(held[::-1])

    # END NOTES


def pad_tables(tables: list[LogicalTable]) -> list[list[int]]:
    # BEGIN SOLUTION 5.4: one row per table, -1 where there is no block
    width = max((table.num_blocks for table in tables), default=0)
    rows = []
    for table in tables:
        row = [-1 if block_id is None else block_id for block_id in table.block_ids]
        rows.append(row + [-1] * (width - len(row)))
    return rows
    # END SOLUTION


def kernel_slots(
    block_tables: list[list[int]], seq_lens: list[int], block_size: int
) -> list[list[int]]:
    # BEGIN SOLUTION 5.4: the slots of each sequence, from the rectangle alone
    all_slots = []
    for row, seq_len in zip(block_tables, seq_lens, strict=True):
        slots = []
        for position in range(seq_len):
            block_id = row[position // block_size]
            if block_id >= 0:
                slots.append(block_id * block_size + position % block_size)
        all_slots.append(slots)
    return all_slots
    # END SOLUTION


# BEGIN NOTES
# 5.1  A list is enough: the logical block is the index. A dict from logical to physical
# block works as well, and is what a page table with holes is often drawn as; it costs
# more memory and cannot be handed to a kernel as it stands. The trap is Python's own:
# ids[-1] is the last block, so a position that is off by one reads another token's
# place instead of failing. Room behind the last token is not a position either.
#
# 5.2  Think in totals, not in steps: the blocks that num_tokens + n tokens need, less
# the blocks that are there. A loop that takes a block whenever one is full is right
# too, if it gives back what it took when the pool runs dry. Everything that can raise
# comes before the first change. allocate_many(0) is allowed, so "nothing needed" is no
# case of its own.
#
# 5.3  A slot per token costs a division, a check and a lookup per token; a range per
# block costs them per block. The package takes whole blocks and cuts both ends off,
# which saves min() and the running position. Or keep a flat list with the slot of every
# token, fill it in append_tokens and cut it here: faster still, for 8 bytes per token.
#
# 5.4  -1 is the one number that is never a block. It must not get into arithmetic: -1 *
# block_size + offset is a slot of the last block in Python, and an address before the
# tensor in a kernel. Rows made by [[-1] * width] * n are n times the same row.
#
# 5.5  truncate, free and drop_before are one thing: give back a run of entries. The
# checks come first, then free_many, which takes all or nothing, then our own change. A
# loop over `free` is half done when the third block raises. A block that holds position
# `position` itself stays, so drop_before rounds down where truncate rounds up.
# END NOTES
