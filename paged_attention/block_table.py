"""Makes scattered blocks look like one contiguous sequence.

A block table is a list: entry i names the physical block that holds the tokens from
i * block_size on. With blocks of 4 and the table [7, 2, 9], token 6 is number 2 in
logical block 1, which is block 2: slot 2 * 4 + 2 = 10. Nobody above it knows where a
token lies, nobody below it knows which sequence a block belongs to. What is left out:
sharing a block on purpose (`sharing`) and finding one again by its content
(`prefix_cache`).
"""

from collections.abc import Iterable
from itertools import chain
from typing import Protocol

from paged_attention.block import num_blocks_for
from paged_attention.config import require_at_least
from paged_attention.errors import SharedBlockError


# A protocol and no base class: whoever writes an allocator need not know of it.
class Allocator(Protocol):
    """What tables ask of an allocator: ours, the prefix cache around it, yours."""

    @property
    def num_blocks(self) -> int: ...
    @property
    def num_free(self) -> int: ...
    def allocate(self) -> int: ...
    def allocate_many(self, n: int) -> list[int]: ...
    def share(self, block_id: int) -> None: ...
    def free(self, block_id: int) -> None: ...
    def free_many(self, block_ids: Iterable[int]) -> None: ...
    def ref_count(self, block_id: int) -> int: ...


class BlockTable:
    """The blocks of one sequence, in order.

    Invariant: the table holds one reference to each block it lists, and lists as many
    as num_tokens needs. It writes only into blocks that it holds alone. Whatever raises
    leaves table and allocator as they were.

    A hole, None in block_ids, is a logical block that `drop_before` gave back; asking
    for a position in it is a ValueError. (vLLM puts its null block there, block 0,
    which nobody ever holds: so its tables are integers throughout.) Source: the paper,
    section 4.2.
    """

    def __init__(
        self,
        allocator: Allocator,
        block_size: int,
        block_ids: Iterable[int | None] = (),
        num_tokens: int = 0,
    ) -> None:
        """Takes over the references to block_ids: the caller gives up its own."""
        require_at_least(1, "block_size", block_size)
        self.allocator = allocator
        self.block_size = block_size
        self.num_tokens = num_tokens
        self._block_ids = list(block_ids)
        needed = num_blocks_for(num_tokens, block_size)
        if len(self._block_ids) != needed:
            raise ValueError(
                f"{num_tokens} tokens need {needed} blocks of {block_size}, "
                f"got {len(self._block_ids)}"
            )

    @property
    def num_blocks(self) -> int:
        """How many logical blocks there are, holes included."""
        return len(self._block_ids)

    @property
    def block_ids(self) -> list[int | None]:
        """The physical blocks in logical order, as a copy; None marks a hole."""
        return list(self._block_ids)

    def append_tokens(self, n: int) -> list[int]:
        """Make room for n more tokens and return their slots, all or nothing.

        Raises OutOfBlocksError when the pool is too small, SharedBlockError when the
        last block is partly filled and others hold it too: they would read the write.
        """
        if n < 0:
            raise ValueError(f"n must be >= 0, got {n}")
        # A full last block is not written again, so it may be shared by anybody.
        if n and self.num_tokens % self.block_size:
            tail = self.translate(self.num_blocks - 1)
            holders = self.allocator.ref_count(tail)
            if holders > 1:
                raise SharedBlockError(
                    f"block {tail} has {holders} holders: copy it before you write"
                )
        needed = num_blocks_for(self.num_tokens + n, self.block_size)
        # Mostly not: the last block has room. Where it has not, the next line is the
        # only one that can fail from here on, and it takes all blocks or none.
        if needed > self.num_blocks:
            self._block_ids += self.allocator.allocate_many(needed - self.num_blocks)
        self.num_tokens += n
        return self.slots(self.num_tokens - n, self.num_tokens)

    def translate(self, logical_block: int) -> int:
        """The physical block that holds a logical one."""
        return self.translate_many((logical_block,))[0]

    def translate_many(self, logical_blocks: Iterable[int]) -> list[int]:
        """The physical blocks that hold these logical ones.

        Raises IndexError outside the table, ValueError in a hole.
        """
        physical: list[int] = []
        for logical_block in logical_blocks:
            # Python would take -1 for the last block.
            if not 0 <= logical_block < len(self._block_ids):
                raise IndexError(
                    f"logical block must be in {self._up_to(self.num_blocks)}, "
                    f"got {logical_block}"
                )
            block_id = self._block_ids[logical_block]
            if block_id is None:
                raise ValueError(f"logical block {logical_block} was given back")
            physical.append(block_id)
        return physical

    def slot(self, position: int) -> int:
        """Where the token at this position lies: block_id * block_size + offset."""
        return self.slots(position, position + 1)[0]

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of the positions from start up to, not including, stop."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"positions must be in {self._up_to(self.num_tokens)}, "
                f"got {start} … {stop - 1}"
            )
        if start == stop:
            return []
        size = self.block_size
        first, last = start // size, (stop - 1) // size
        block_ids = self.translate_many(range(first, last + 1))
        if first == last:  # one block, as in a decode step: nothing to join
            at = (block_ids[0] - first) * size  # from a position to its slot
            return list(range(at + start, at + stop))
        runs = [range(b * size, (b + 1) * size) for b in block_ids]
        # Cut what lies behind stop, and before start: the positions 6 … 9 of [7, 2, 9]
        # are 8 … 11 and 36 … 39, of which 10, 11, 36 and 37 are left.
        runs[-1] = runs[-1][: stop - last * size]
        runs[0] = runs[0][start - first * size :]
        return list(chain.from_iterable(runs))

    def replace(self, logical_block: int, block_id: int) -> None:
        """Put another block in place: its reference is taken over, the old given up."""
        old = self.translate(logical_block)
        # First what can raise, then what cannot.
        self.allocator.free_many((old,))
        self._block_ids[logical_block] = block_id

    def truncate(self, num_tokens: int) -> None:
        """Forget all but the first num_tokens tokens; blocks left empty are freed.

        Raises ValueError where the new last block would be partly filled and is a hole:
        nothing could be appended to it.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(
                f"num_tokens must be in 0 … {self.num_tokens}, got {num_tokens}"
            )
        kept = num_blocks_for(num_tokens, self.block_size)
        if num_tokens % self.block_size:
            self.translate(kept - 1)  # raises in a hole
        # Before the list is cut: if an id is refused, the table still has all of them.
        self._give_back(range(kept, self.num_blocks))
        del self._block_ids[kept:]
        self.num_tokens = num_tokens

    def drop_before(self, position: int) -> None:
        """Give back the blocks whose tokens all stand before this position.

        They become holes, and nothing moves. For models in which every layer looks
        through a sliding window. Raises IndexError beyond num_tokens.
        """
        if not 0 <= position <= self.num_tokens:
            raise IndexError(
                f"position must be in 0 … {self.num_tokens}, got {position}"
            )
        # Rounded down: a block with one token left to see is kept.
        passed = range(position // self.block_size)
        self._give_back(passed)
        for logical_block in passed:
            self._block_ids[logical_block] = None

    def free(self) -> None:
        """Give back everything; the table is empty then and may be used again."""
        self.truncate(0)

    # Leaves the list as it is: its two callers cut it or put holes into it.
    def _give_back(self, logical_blocks: range) -> None:
        # Tail first: a prefix cache forgets the end of a prompt before its beginning.
        held = (self._block_ids[i] for i in reversed(logical_blocks))
        self.allocator.free_many([b for b in held if b is not None])

    @staticmethod
    def _up_to(num: int) -> str:
        """What can be asked for when there are num, in the words of an error."""
        return f"0 … {num - 1}" if num else "a table that is not empty"
