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
    raise NotImplementedError("exercise 2.1: what is each place of the pool good for?")


class BuddyPool:
    def __init__(self, num_tokens: int) -> None:
        raise NotImplementedError("exercise 2.2: cut the pool into powers of two")

    @property
    def num_tokens(self) -> int:
        raise NotImplementedError("exercise 2.2: places in the pool")

    @property
    def num_free(self) -> int:
        raise NotImplementedError("exercise 2.2: free places")

    @property
    def largest_free(self) -> int:
        raise NotImplementedError("exercise 2.2: the largest free region")

    @property
    def free_regions(self) -> list[tuple[int, int]]:
        raise NotImplementedError("exercise 2.2: (start, size) of each free region")

    def can_allocate(self, num_tokens: int) -> bool:
        raise NotImplementedError("exercise 2.2: is one free region large enough?")

    def allocate(self, num_tokens: int) -> int:
        raise NotImplementedError("exercise 2.2: find a region and halve it until it fits")

    def size(self, start: int) -> int:
        raise NotImplementedError("exercise 2.2: the size of a region in use")

    def free(self, start: int) -> None:
        raise NotImplementedError("exercise 2.2: take it back and join it with its buddy")


def paging_waste(lengths: list[int], block_size: int) -> int:
    raise NotImplementedError("exercise 2.3: empty places in the last blocks")


def best_block_size(
    trace: list[tuple[int, int]],
    candidates: list[int],
    token_bytes: int,
    entry_bytes: int,
) -> int:
    raise NotImplementedError("exercise 2.3: the cheapest of the candidates")


# pristine stub, sha256 of the lines above: 2dd27b2e296ac899
