"""One piece of memory per sequence, reserved at its start: what paging replaces.

Sizes are in tokens here: one place holds the keys and values of one token. The slots of
a sequence are numbers in a row, so it also serves as the plain answer that a block
table is checked against. What is left out: moving a sequence to a larger piece.
"""

from dataclasses import dataclass

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def reserve_exact(prompt_len: int, output_len: int, max_len: int) -> int:
    """Places for a sequence whose end is known: Oracle in the paper, section 6.1."""
    _check_lengths(prompt_len, output_len, max_len)
    return prompt_len + output_len


def reserve_power_of_two(prompt_len: int, output_len: int, max_len: int) -> int:
    """Places for an answer guessed to within a factor of two (Pow2 in the paper).

    Only the output is rounded: the length of the prompt is known.
    """
    _check_lengths(prompt_len, output_len, max_len)
    return min(prompt_len + _power_of_two(output_len), max_len)


def reserve_max(prompt_len: int, output_len: int, max_len: int) -> int:
    """Places for the longest sequence that the model can take (Max in the paper)."""
    _check_lengths(prompt_len, output_len, max_len)
    return max_len


class BuddyAllocator:
    """Hands out regions of num_tokens places, each a power of two long.

    A region that is too large is halved; the two halves are buddies, and once both are
    free they are one region again. Every region starts at a multiple of its size, so
    the buddy of a region begins at start ^ size. Source: Knowlton, "A fast storage
    allocator", CACM 1965; the paper, section 6.1, gives Orca one.
    """

    def __init__(self, num_tokens: int) -> None:
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
        self.num_tokens = num_tokens
        self._size_of: dict[int, int] = {}  # start of a region in use -> its size
        # The pool is cut into the powers of two of its binary digits, largest first:
        # 13 places are regions of 8 from 0, of 4 from 8, and of 1 from 12.
        self._free: dict[int, set[int]] = {}  # size -> starts of free regions
        start = 0
        for digit in reversed(range(num_tokens.bit_length())):
            size = 1 << digit
            self._free[size] = set()
            if num_tokens & size:
                self._free[size].add(start)
                start += size

    @property
    def num_free(self) -> int:
        """How many places are free, in however many pieces."""
        return sum(size * len(starts) for size, starts in self._free.items())

    @property
    def largest_free(self) -> int:
        """The size of the largest free region; 0 if there is none."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    @property
    def free_regions(self) -> list[tuple[int, int]]:
        """Each free region as (start, size), by start."""
        return sorted((s, size) for size, starts in self._free.items() for s in starts)

    def can_allocate(self, num_tokens: int) -> bool:
        """Whether one free region has room for num_tokens."""
        return num_tokens <= self.largest_free

    def allocate(self, num_tokens: int) -> int:
        """The start of a region for num_tokens, rounded up to a power of two.

        Taken from the smallest free region that suffices, the one with the lowest start
        first. Raises OutOfBlocksError when no single region is large enough.
        """
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
        wanted = _power_of_two(num_tokens)
        fitting = [z for z, starts in self._free.items() if starts and z >= wanted]
        if not fitting:
            raise OutOfBlocksError(
                f"a region of {wanted} was asked for, the largest free one is "
                f"{self.largest_free} ({self.num_free} places are free in all)"
            )
        # The smallest, so that large regions stay whole for those who need them.
        size = min(fitting)
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > wanted:
            size //= 2
            self._free[size].add(start + size)  # keep the lower half
        self._size_of[start] = size
        return start

    def size(self, start: int) -> int:
        """How many places were handed out at this start."""
        if start not in self._size_of:
            raise ValueError(f"no region was handed out at {start}")
        return self._size_of[start]

    def free(self, start: int) -> None:
        """Take a region back, and join it with its buddy as long as that is free."""
        if start not in self._size_of:
            raise DoubleFreeError(f"no region is in use at {start}")
        size = self._size_of.pop(start)
        # Regions of 4 at 4 and at 8 lie side by side, and yet are no buddies: 4 ^ 4 is
        # 0. No size above the largest has an entry.
        while (start ^ size) in self._free.get(size, ()):
            self._free[size].remove(start ^ size)
            start = min(start, start ^ size)
            size *= 2
        self._free[size].add(start)


@dataclass(frozen=True, slots=True)
class Waste:
    """Places that a running sequence was given and has not filled, by their future.

    Asked for 20, given 32, 8 written, and it will end at 15: 7 reserved, 5 internal,
    12 rounding.
    """

    reserved: int  # will be filled before it ends
    internal: int  # asked for, and never filled
    rounding: int  # added by the allocator, and never filled


class Reservation:
    """One sequence in one region; its verbs are those of a BlockTable.

    Slot i is start + i. Nothing is shared, nothing grows beyond num_reserved.
    """

    def __init__(self, allocator: BuddyAllocator, num_reserved: int) -> None:
        self.allocator = allocator
        self.start = allocator.allocate(num_reserved)
        self.num_reserved = num_reserved  # asked for
        self.size = allocator.size(self.start)  # handed out
        self.num_tokens = 0  # written

    def append_tokens(self, n: int) -> list[int]:
        """The slots of n more tokens; ValueError beyond what was reserved."""
        if n < 0 or self.num_tokens + n > self.num_reserved:
            raise ValueError(
                f"n must be in 0 … {self.num_reserved - self.num_tokens}, got {n}"
            )
        self.num_tokens += n
        return self.slots(self.num_tokens - n, self.num_tokens)

    def slot(self, position: int) -> int:
        """Where the token at this position lies."""
        return self.slots(position, position + 1)[0]

    def slots(self, start: int, stop: int) -> list[int]:
        """The slots of the positions from start up to, not including, stop."""
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(
                f"positions must be below num_tokens ({self.num_tokens}), "
                f"got {start} … {stop - 1}"
            )
        return list(range(self.start + start, self.start + stop))

    def waste(self, final_len: int) -> Waste:
        """Where the empty places go, for a sequence that will end at final_len."""
        if not self.num_tokens <= final_len <= self.num_reserved:
            raise ValueError(
                f"final_len must be in {self.num_tokens} … {self.num_reserved}, "
                f"got {final_len}"
            )
        return Waste(
            reserved=final_len - self.num_tokens,
            internal=self.num_reserved - final_len,
            rounding=self.size - self.num_reserved,
        )

    def free(self) -> None:
        """Give the region back; the reservation is over."""
        if self.size == 0:  # by now the region may be another sequence's
            raise DoubleFreeError(f"the reservation at {self.start} is over already")
        self.allocator.free(self.start)
        self.num_reserved = self.size = self.num_tokens = 0


def _power_of_two(n: int) -> int:
    """The smallest power of two that is at least n, for n >= 1."""
    # 8 stays 8, since 7 has three binary digits; 9 becomes 16, since 8 has four.
    return 1 << (n - 1).bit_length()


def _check_lengths(prompt_len: int, output_len: int, max_len: int) -> None:
    if prompt_len < 0 or output_len < 1 or prompt_len + output_len > max_len:
        raise ValueError(
            f"prompt_len >= 0 and output_len >= 1 must fit into max_len {max_len}, "
            f"got {prompt_len} + {output_len}"
        )
