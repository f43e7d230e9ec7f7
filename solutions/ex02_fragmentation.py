"""Exercise 02: where reserved memory goes.

Grade with `course grade 2`. The tasks do not depend on each other. All sizes count
places: a place is the room for the keys and values of one token. Lists that a function
is given are the same after the call.


Task 2.1   classify_waste(num_places, rows, step, next_size) -> dict[str, int]

A pool has the places 0 … num_places - 1. Each sequence gets one region of it, all at
once, and keeps it until it ends. rows is the trace of what happened, a list of Row
(below; it is given) in any order:

    first_step      the step in which the sequence starts
    prompt_len      tokens that it holds in that step; in each later step one more
    output_len      the number of steps that it takes; then it ends, and from the next
                    step on its region is free
    asked           places that were asked for, at least prompt_len + output_len
    start, size     the region that was handed out: the places start … start + size - 1;
                    size is at least `asked`, since an allocator may round up

Two regions never overlap in the same step; in other steps they may. What is each place
of the pool good for in this step? The result has exactly these keys, and its values add
up to num_places:

    "tokens"        places that hold a token
    "reserved"      places that will hold one later: a sequence ends at
                    prompt_len + output_len tokens
    "internal"      places that were asked for and will never hold one
    "rounding"      places that were handed out without having been asked for
    "external"      free places that are too scattered: a sequence waits that wants
                    next_size places in a row; all free places together would be enough,
                    yet nowhere are so many free side by side. (The chapter's
                    "refused" is more: also those that lie side by side and do not
                    help, because its allocator hands out powers of two only.)
    "free"          free places otherwise: somewhere are enough side by side, or even
                    all together are too few; next_size is 0 if nobody waits

So one of the last two is always 0. With "external" it is the arrangement that is to
blame, with "free" it is not.


Task 2.2   class BuddyPool(num_tokens)

Every region has a power of two of places and starts at a multiple of its size. One that
is larger than needed is halved; the two halves are buddies. When both are free and
whole they become one region again. The buddy of a region starts at start ^ size.

    BuddyPool(num_tokens)       ValueError if num_tokens < 1. The pool is cut into the
                                powers of two of its binary digits, largest first:
                                6 places are a region of 4 at 0 and one of 2 at 4.
                                Regions that were never halves are never joined
    .num_tokens -> int          property: places in the pool
    .num_free -> int            property: places that are free
    .largest_free -> int        property: size of the largest free region, 0 if none
    .free_regions -> list[tuple[int, int]]      property: (start, size) of each free
                                region, sorted by start
    .can_allocate(num_tokens) -> bool           whether one free region is large enough
    .allocate(num_tokens) -> int                hand out a region, return its start.
                                Its size is the smallest power of two that is at least
                                num_tokens. It comes out of the smallest free region
                                that suffices, halved as often as possible; which one of
                                several such regions, and which half, is your choice.
                                OutOfBlocksError if no free region is large enough,
                                ValueError if num_tokens < 1
    .size(start) -> int         size of the region that was handed out at this start;
                                ValueError if none is in use there
    .free(start) -> None        take it back, and join buddies for as long as possible;
                                DoubleFreeError if none is in use there

Errors are imported from paged_attention.errors. Whatever raises leaves the pool exactly
as it was.


Task 2.3   paging_waste(lengths, block_size) -> int
           best_block_size(trace, candidates, token_bytes, entry_bytes) -> int

With paging a sequence holds only as many blocks of block_size places as its tokens
need at the moment.

paging_waste: how many places of their blocks are empty, for sequences that hold so many
tokens (a list[int], 0 or more each).

best_block_size: which block size of a list[int] costs the fewest bytes over a trace, a
list[tuple[int, int]] of (prompt_len, output_len), with the steps of task 2.1: such a
sequence holds prompt_len tokens in its first step, one more in each later one, and
takes output_len steps (both are 1 or more). In each of its steps it costs

    token_bytes     for each empty place of its blocks
    entry_bytes     for each of its blocks: an entry of its block table

The cost of a block size is the sum over all steps of all sequences, an int. If several
are equally cheap, the largest of them wins. ValueError if candidates is empty.
"""

from dataclasses import dataclass

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


@dataclass(frozen=True)
class Row:
    first_step: int
    prompt_len: int
    output_len: int
    asked: int
    start: int
    size: int


def classify_waste(
    num_places: int, rows: list[Row], step: int, next_size: int
) -> dict[str, int]:
    # BEGIN SOLUTION 2.1: what is each place of the pool good for?
    running = [r for r in rows if 0 <= step - r.first_step < r.output_len]
    waste = dict.fromkeys(
        ("tokens", "reserved", "internal", "rounding", "external", "free"), 0
    )
    # The places of a region, from the left: tokens, reserved, internal, rounding.
    in_use: set[int] = set()
    for row in running:
        held = row.prompt_len + step - row.first_step
        final = row.prompt_len + row.output_len
        waste["tokens"] += held
        waste["reserved"] += final - held
        waste["internal"] += row.asked - final
        waste["rounding"] += row.size - row.asked
        in_use.update(range(row.start, row.start + row.size))
    free = num_places - len(in_use)
    # Walk through the pool place by place: how many free ones are side by side?
    longest = run = 0
    for place in range(num_places):
        run = 0 if place in in_use else run + 1
        longest = max(longest, run)
    scattered = longest < next_size <= free
    waste["external" if scattered else "free"] = free
    return waste
    # END SOLUTION


class BuddyPool:
    def __init__(self, num_tokens: int) -> None:
        # BEGIN SOLUTION 2.2: cut the pool into powers of two
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
        self._num_tokens = num_tokens
        self._free: dict[int, int] = {}  # start -> size of a region
        self._used: dict[int, int] = {}
        start = 0
        while start < num_tokens:
            # The largest power of two that fits into the rest.
            size = 1 << ((num_tokens - start).bit_length() - 1)
            self._free[start] = size
            start += size
        # END SOLUTION

    @property
    def num_tokens(self) -> int:
        # BEGIN SOLUTION 2.2: places in the pool
        return self._num_tokens
        # END SOLUTION

    @property
    def num_free(self) -> int:
        # BEGIN SOLUTION 2.2: free places
        return sum(self._free.values())
        # END SOLUTION

    @property
    def largest_free(self) -> int:
        # BEGIN SOLUTION 2.2: the largest free region
        return max(self._free.values(), default=0)
        # END SOLUTION

    @property
    def free_regions(self) -> list[tuple[int, int]]:
        # BEGIN SOLUTION 2.2: (start, size) of each free region
        return sorted(self._free.items())
        # END SOLUTION

    def can_allocate(self, num_tokens: int) -> bool:
        # BEGIN SOLUTION 2.2: is one free region large enough?
        return num_tokens <= self.largest_free
        # END SOLUTION

    def allocate(self, num_tokens: int) -> int:
        # BEGIN SOLUTION 2.2: find a region and halve it until it fits
        if num_tokens < 1:
            raise ValueError(f"num_tokens must be >= 1, got {num_tokens}")
        fitting = [(size, s) for s, size in self._free.items() if size >= num_tokens]
        if not fitting:
            raise OutOfBlocksError(
                f"{num_tokens} places wanted, the largest region has "
                f"{self.largest_free}, {self.num_free} are free in all"
            )
        size, start = min(fitting)
        del self._free[start]
        while size // 2 >= num_tokens:
            size //= 2
            self._free[start + size] = size  # the upper half stays free
        self._used[start] = size
        return start
        # END SOLUTION

    def size(self, start: int) -> int:
        # BEGIN SOLUTION 2.2: the size of a region in use
        if start not in self._used:
            raise ValueError(f"no region in use starts at {start}")
        return self._used[start]
        # END SOLUTION

    def free(self, start: int) -> None:
        # BEGIN SOLUTION 2.2: take it back and join it with its buddy
        if start not in self._used:
            raise DoubleFreeError(f"no region in use starts at {start}")
        size = self._used.pop(start)
        while self._free.get(start ^ size) == size:  # free, and whole
            del self._free[start ^ size]
            start = min(start, start ^ size)
            size *= 2
        self._free[start] = size
        # END SOLUTION


def paging_waste(lengths: list[int], block_size: int) -> int:
    # BEGIN SOLUTION 2.3: empty places in the last blocks
    # -n % b is what is missing from n to the next multiple of b.
    return sum(-length % block_size for length in lengths)
    # END SOLUTION


def best_block_size(
    trace: list[tuple[int, int]],
    candidates: list[int],
    token_bytes: int,
    entry_bytes: int,
) -> int:
    # BEGIN SOLUTION 2.3: the cheapest of the candidates
    if not candidates:
        raise ValueError("there are no candidates to choose from")
    held = [
        length
        for prompt_len, output_len in trace
        for length in range(prompt_len, prompt_len + output_len)
    ]

    def cost(block_size: int) -> int:
        waste = paging_waste(held, block_size)
        blocks = (sum(held) + waste) // block_size
        return waste * token_bytes + blocks * entry_bytes

    return min(candidates, key=lambda block_size: (cost(block_size), -block_size))
    # END SOLUTION


# BEGIN NOTES
# 2.1  Two questions, kept apart: what is each place of a region in use good for, and is
# what lies between the regions large enough? The first needs no addresses at all. For
# the second one walk is enough; sorting the regions and looking at the gaps in between
# (the one in front of the first and the one behind the last included) is faster in a
# large pool. All free places count as external, the large holes too: what matters is
# that the next sequence cannot have any of them. And if even all together are too few,
# moving the regions would not help: that is a full pool, not a scattered one. Blocks of
# one size can never be scattered in this sense.
#
# 2.2  A dict of free regions serves here; each allocate looks at all of them. A list of
# starts per size (as in the package) finds one in log2(num_tokens) steps. The condition
# `self._free.get(buddy) == size` says all at once: the buddy is free, and nothing of it
# is in use, for then the region that starts there would be smaller. Beside a region of
# 2 at 2 may lie a free one of 2 at 4: a neighbour, not a buddy, and joining them would
# give a region of 4 that starts at 2. In a pool of 6 the region of 2 at 4 has its buddy
# at 6, which is never free, so no bound has to be checked.
#
# 2.3  Over a whole life, not at its end: a sequence that makes 1,000 tokens has every
# length on its way, and on average half a block is empty, whatever its last length is.
# From there: (b - 1) / 2 places of waste against length / b entries; the sum is least
# near b = sqrt(2 * length * entry_bytes / token_bytes), which is below 1 as soon as a
# token costs far more than an entry. Memory alone asks for tiny blocks; larger ones are
# for the work per block, which this count leaves out.
# END NOTES
