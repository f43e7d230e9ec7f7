"""Exercise 02. Where a buddy pool puts a region is free, so no test asks for a start.

What must be free follows from what is in use: the largest aligned pieces of the rest.
"""

import pytest

from course.grader import expect, expect_raises, expect_that, rewrite_history, task
from course.grader.helpers.walk import walk
from paged_attention.errors import DoubleFreeError, OutOfBlocksError

# 2.1

KEYS = ("tokens", "reserved", "internal", "rounding", "external", "free")


def places(*counts):
    return dict(zip(KEYS, counts, strict=True))


def make_row(exercise, start, size, asked, prompt_len, output_len, first_step=0):
    return exercise.Row(
        first_step=first_step,
        prompt_len=prompt_len,
        output_len=output_len,
        asked=asked,
        start=start,
        size=size,
    )


@task("2.1")
def test_an_empty_pool_is_free(exercise):
    got = exercise.classify_waste(8, [], 0, 0)
    expect(got, places(0, 0, 0, 0, 0, 8), "nobody is there, and nobody waits")
    got = exercise.classify_waste(8, [], 0, 8)
    expect(got, places(0, 0, 0, 0, 0, 8), "who waits fits exactly")


@task("2.1")
def test_a_region_is_told_apart_from_its_left_to_its_right(exercise):
    row = make_row(exercise, 0, 16, asked=11, prompt_len=3, output_len=4)
    got = exercise.classify_waste(16, [row], 0, 0)
    claim = "3 tokens, 7 in the end, 11 asked for, 16 handed out"
    expect(got, places(3, 4, 4, 5, 0, 0), claim)


@task("2.1")
def test_each_step_turns_one_reserved_place_into_a_token(exercise):
    row = make_row(exercise, 0, 8, asked=8, prompt_len=2, output_len=3)
    for step, tokens in [(0, 2), (1, 3), (2, 4)]:
        got = exercise.classify_waste(8, [row], step, 0)
        claim = f"step {step} of three, prompt of 2, 5 tokens in the end"
        expect(got, places(tokens, 5 - tokens, 3, 0, 0, 0), claim)


@task("2.1")
def test_a_region_is_free_before_its_first_step_and_after_its_last(exercise):
    row = make_row(exercise, 0, 4, 4, prompt_len=2, output_len=2, first_step=5)
    for step, expected in [
        (4, places(0, 0, 0, 0, 0, 4)),
        (5, places(2, 2, 0, 0, 0, 0)),
        (6, places(3, 1, 0, 0, 0, 0)),
        (7, places(0, 0, 0, 0, 0, 4)),
    ]:
        got = exercise.classify_waste(4, [row], step, 0)
        expect(got, expected, f"step {step}; it takes the steps 5 and 6")


@task("2.1")
def test_a_region_may_have_one_owner_after_another(exercise):
    one = make_row(exercise, 0, 4, 3, prompt_len=1, output_len=2, first_step=0)
    two = make_row(exercise, 0, 4, 4, prompt_len=3, output_len=1, first_step=2)
    got = exercise.classify_waste(4, [two, one], 1, 0)
    expect(got, places(2, 1, 0, 1, 0, 0), "step 1 belongs to the first of them")
    got = exercise.classify_waste(4, [two, one], 2, 0)
    expect(got, places(3, 1, 0, 0, 0, 0), "step 2 belongs to the second one")


def full_row(exercise, start, size):
    """In step 0 it has a token in each place but one, which is reserved."""
    return make_row(exercise, start, size, size, prompt_len=size - 1, output_len=1)


@task("2.1")
def test_free_places_that_are_scattered_are_external_waste(exercise):
    row = full_row(exercise, 2, 4)
    got = exercise.classify_waste(8, [row], 0, 4)
    claim = "2 places are free on either side of it, 4 in a row are wanted: all 4 that "
    expect(got, places(3, 1, 0, 0, 4, 0), claim + "are free count as external")


@task("2.1")
def test_free_places_are_not_external_waste_if_the_next_one_fits(exercise):
    row = full_row(exercise, 2, 2)
    for wanted in (4, 3):
        got = exercise.classify_waste(8, [row], 0, wanted)
        claim = f"4 places in a row are free behind it, {wanted} are wanted"
        expect(got, places(1, 1, 0, 0, 0, 6), claim)
    got = exercise.classify_waste(8, [row], 0, 5)
    expect(got, places(1, 1, 0, 0, 6, 0), "6 are free, but no 5 of them in a row")


@task("2.1")
def test_a_full_pool_is_not_a_scattered_one(exercise):
    row = full_row(exercise, 2, 4)
    got = exercise.classify_waste(8, [row], 0, 5)
    claim = "5 places are wanted and only 4 are free: no arrangement would help"
    expect(got, places(3, 1, 0, 0, 0, 4), claim)


@task("2.1")
def test_what_is_free_side_by_side_is_one_piece(exercise):
    """Between two regions in use lie two that others have given back."""
    rows = [
        full_row(exercise, 0, 2),
        make_row(exercise, 2, 2, 2, prompt_len=1, output_len=1, first_step=7),
        make_row(exercise, 4, 2, 2, prompt_len=1, output_len=1, first_step=7),
        full_row(exercise, 6, 2),
    ]
    got = exercise.classify_waste(8, rows, 0, 4)
    claim = "the places 2 … 5 are free, whoever will have them later"
    expect(got, places(2, 2, 0, 0, 0, 4), claim)


@task("2.1")
def test_a_pool_with_everything(exercise):
    rows = [
        make_row(exercise, 96, 32, asked=20, prompt_len=7, output_len=9, first_step=3),
        make_row(exercise, 0, 16, asked=16, prompt_len=10, output_len=6, first_step=2),
        make_row(exercise, 32, 4, asked=3, prompt_len=1, output_len=1, first_step=5),
        make_row(exercise, 32, 8, asked=7, prompt_len=1, output_len=3, first_step=2),
    ]
    got = exercise.classify_waste(150, rows, 5, 60)
    # Free: 16 … 31, 36 … 95 (60 places in a row), 128 … 149.
    expect(got, places(23, 11, 5, 13, 0, 98), "step 5, 60 are wanted")


# 2.2


def sizes(pool):
    return sorted(size for _, size in pool.free_regions)


@task("2.2")
def test_a_new_pool_is_one_region(exercise):
    pool = exercise.BuddyPool(8)
    expect(pool.num_tokens, 8, "the size of the pool")
    expect(pool.num_free, 8, "all places are free")
    expect(pool.largest_free, 8, "in one region")
    claim = "free_regions has (start, size): one region of 8, which starts at 0"
    expect(pool.free_regions, [(0, 8)], claim)


@task("2.2")
def test_the_whole_pool_can_be_handed_out(exercise):
    for num_tokens in (1, 8):
        pool = exercise.BuddyPool(num_tokens)
        expect(pool.allocate(num_tokens), 0, "the whole pool, which starts at 0")
        expect(pool.size(0), num_tokens, "a power of two is not rounded up")
        expect(pool.num_free, 0, "nothing is left")
        expect(pool.largest_free, 0, "no region is left")
        expect(pool.free_regions, [], "no region is left")


@task("2.2")
def test_a_size_is_rounded_up_to_a_power_of_two(exercise):
    for wanted, size in [(1, 1), (2, 2), (3, 4), (4, 4), (5, 8), (8, 8), (9, 16)]:
        rewrite_history(exercise)
        pool = exercise.BuddyPool(16)
        start = pool.allocate(wanted)
        expect(pool.size(start), size, f"{wanted} places were asked for")
        fits = start in range(0, 16, size)
        claim = "a region starts at a multiple of its size"
        expect_that(fits, claim, got=start, expected=f"one of {[*range(0, 16, size)]}")
        expect(pool.num_free, 16 - size, "the rest is free")


@task("2.2")
def test_what_is_halved_leaves_the_other_halves_free(exercise):
    pool = exercise.BuddyPool(16)
    pool.allocate(1)
    expect(sizes(pool), [1, 2, 4, 8], "sizes of the free regions: 16 was halved")
    expect(pool.largest_free, 8, "the largest of them")


@task("2.2")
def test_free_regions_are_sorted_by_start(exercise):
    pool = exercise.BuddyPool(16)
    pool.allocate(1)
    regions = pool.free_regions
    expect(regions, sorted(regions), "free_regions are sorted by start")


@task("2.2")
def test_the_smallest_region_that_suffices_is_taken(exercise):
    pool = exercise.BuddyPool(16)
    pool.allocate(1)
    for wanted, left in [(2, [1, 4, 8]), (3, [1, 8]), (1, [8])]:
        pool.allocate(wanted)
        expect(sizes(pool), left, f"sizes that are free after {wanted} more were taken")


@task("2.2")
def test_two_halves_that_are_free_are_one_again(exercise):
    for order in ((0, 1), (1, 0)):
        rewrite_history(exercise)
        pool = exercise.BuddyPool(2)
        starts = [pool.allocate(1), pool.allocate(1)]
        expect(sorted(starts), [0, 1], "each place is handed out once")
        pool.free(starts[order[0]])
        expect(sizes(pool), [1], "one half is free")
        pool.free(starts[order[1]])
        expect(pool.free_regions, [(0, 2)], "both halves were given back")


@task("2.2")
def test_joining_goes_on_to_the_whole_pool(exercise):
    pool = exercise.BuddyPool(16)
    start = pool.allocate(1)
    pool.free(start)
    expect(pool.free_regions, [(0, 16)], "1, 1, 2, 4 and 8 were joined")
    expect(pool.largest_free, 16, "all of it is one region")


@task("2.2")
def test_neighbours_that_are_not_buddies_stay_apart(exercise):
    for order in ((1, 2), (2, 1)):
        rewrite_history(exercise)
        pool = exercise.BuddyPool(4)
        starts = sorted(pool.allocate(1) for _ in range(4))
        expect(starts, [0, 1, 2, 3], "each place is handed out once")
        pool.free(order[0])
        pool.free(order[1])
        claim = "1 and 2 are neighbours; the buddy of 1 is 0, that of 2 is 3"
        expect(pool.free_regions, [(1, 1), (2, 1)], claim)
        expect(pool.can_allocate(2), False, "no region of 2 is free")
        expect_raises(
            OutOfBlocksError, pool.allocate, 2, claim="no region of 2 is free"
        )
        expect(pool.free_regions, [(1, 1), (2, 1)], "the refused call changed nothing")
        pool.free(0)
        expect(pool.free_regions, [(0, 2), (2, 1)], "0, 1 and 2 are free, 3 is in use")


@task("2.2")
def test_a_buddy_that_is_not_whole_is_not_joined(exercise):
    pool = exercise.BuddyPool(8)
    half = pool.allocate(4)
    quarter = pool.allocate(2)
    pool.free(half)
    claim = f"the buddy of {half} was halved, and one half of it is in use"
    expect(sizes(pool), [2, 4], claim)
    pool.free(quarter)
    expect(pool.free_regions, [(0, 8)], "now all of it is free")


@task("2.2")
def test_a_pool_of_any_size_is_cut_into_powers_of_two(exercise):
    for num_tokens, regions in [
        (1, [(0, 1)]),
        (3, [(0, 2), (2, 1)]),
        (6, [(0, 4), (4, 2)]),
        (21, [(0, 16), (16, 4), (20, 1)]),
    ]:
        rewrite_history(exercise)
        pool = exercise.BuddyPool(num_tokens)
        expect(pool.free_regions, regions, f"{num_tokens} as a sum of powers of two")
        expect(pool.num_free, num_tokens, "all places are free")
        starts = [pool.allocate(1) for _ in range(num_tokens)]
        expect(sorted(starts), [*range(num_tokens)], "each place is handed out once")
        for start in starts:
            pool.free(start)
        claim = "all was given back; only halves of one region are joined"
        expect(pool.free_regions, regions, claim)


@task("2.2")
def test_enough_in_all_is_not_enough_in_one_piece(exercise):
    pool = exercise.BuddyPool(7)
    claim = "5 places need a region of 8; the regions of this pool are 4, 2 and 1"
    expect(pool.can_allocate(5), False, claim)
    expect_raises(OutOfBlocksError, pool.allocate, 5, claim=claim)
    expect(pool.free_regions, [(0, 4), (4, 2), (6, 1)], "nothing has changed")


@task("2.2")
def test_can_allocate_compares_with_the_largest_region(exercise):
    pool = exercise.BuddyPool(8)
    pool.allocate(3)
    answers = [pool.can_allocate(n) for n in (1, 3, 4, 5)]
    expect(answers, [True, True, True, False], "a region of 4 is free: 1, 3, 4, 5?")


@task("2.2")
@pytest.mark.parametrize("num_tokens", [0, -1])
def test_less_than_one_place_is_refused(exercise, num_tokens):
    claim = f"{num_tokens} places make no sense"
    expect_raises(ValueError, exercise.BuddyPool, num_tokens, claim=claim)
    pool = exercise.BuddyPool(4)
    expect_raises(ValueError, pool.allocate, num_tokens, claim=claim)
    expect(pool.free_regions, [(0, 4)], "the refused call changed nothing")


@task("2.2")
def test_a_region_is_given_back_once(exercise):
    pool = exercise.BuddyPool(4)
    claim = "nothing was handed out yet"
    expect_raises(DoubleFreeError, pool.free, 0, claim=claim)
    one, two = pool.allocate(1), pool.allocate(1)
    pool.free(one)
    before = pool.free_regions
    claim = f"the region at {one} was given back before"
    expect_raises(DoubleFreeError, pool.free, one, claim=claim)
    expect(pool.free_regions, before, "the refused call changed nothing")
    pool.free(two)
    expect_raises(DoubleFreeError, pool.free, 0, claim="all was given back")
    expect(pool.free_regions, [(0, 4)], "the refused call changed nothing")


@task("2.2")
def test_two_pools_know_nothing_of_each_other(exercise):
    one, two = exercise.BuddyPool(4), exercise.BuddyPool(4)
    start = one.allocate(4)
    expect(two.free_regions, [(0, 4)], "the second pool is as it was")
    claim = "nothing was handed out of the second pool"
    expect_raises(DoubleFreeError, two.free, start, claim=claim)
    expect_raises(ValueError, two.size, start, claim=claim)


@task("2.2")
def test_only_the_start_of_a_region_in_use_names_it(exercise):
    pool = exercise.BuddyPool(8)
    start = pool.allocate(4)
    pool.free(start)
    claim = f"the region at {start} was given back"
    expect_raises(ValueError, pool.size, start, claim=claim)
    start = pool.allocate(4)
    for wrong in (start + 1, start ^ 4, -1, 8):
        claim = f"no region in use starts at {wrong}"
        expect_raises(ValueError, pool.size, wrong, claim=claim)
        expect_raises(DoubleFreeError, pool.free, wrong, claim=claim)
    expect(pool.size(start), 4, "the refused calls changed nothing")
    expect(pool.free_regions, [(start ^ 4, 4)], "the refused calls changed nothing")


def canonical(num_tokens, in_use):
    """The free regions: the largest aligned pieces of what is not in use."""
    used = {p for start, size in in_use.items() for p in range(start, start + size)}

    def pieces(start, size):
        if used.isdisjoint(range(start, start + size)):
            return [(start, size)]
        if size == 1:
            return []
        half = size // 2
        return pieces(start, half) + pieces(start + half, half)

    free, start = [], 0
    for digit in reversed(range(num_tokens.bit_length())):
        if num_tokens & 1 << digit:
            free += pieces(start, 1 << digit)
            start += 1 << digit
    return free


class Books:
    """What must be true of a pool: which regions are in use."""

    def __init__(self, pool, num_tokens):
        self.pool = pool
        self.num_tokens = num_tokens
        self.in_use = {}

    def allocate(self, wanted):
        free = canonical(self.num_tokens, self.in_use)
        fitting = [size for _, size in free if size >= wanted]
        if not fitting:
            claim = f"the free regions are {free}, {wanted} places are wanted"
            expect_raises(OutOfBlocksError, self.pool.allocate, wanted, claim=claim)
            return
        start = self.pool.allocate(wanted)
        size = 1 << (wanted - 1).bit_length()
        starts = [
            place
            for region, whole in free
            if whole == min(fitting)
            for place in range(region, region + whole, size)
        ]
        claim = f"{wanted} places come out of one of the smallest regions that suffice"
        expected = f"one of {starts}: (start, size) that were free: {free}"
        expect_that(start in starts, claim, got=start, expected=expected)
        expect(self.pool.size(start), size, "the smallest power of two that suffices")
        self.in_use[start] = size

    def free(self, place):
        starts = sorted(self.in_use)
        if starts:
            start = starts[place % len(starts)]
            self.pool.free(start)
            del self.in_use[start]

    def agree(self):
        expected = canonical(self.num_tokens, self.in_use)
        claim = f"free regions, while {sorted(self.in_use.items())} are in use"
        expect(self.pool.free_regions, expected, claim)
        total = sum(size for _, size in expected)
        expect(self.pool.num_free, total, "the sum of their sizes")


@task("2.2")
@pytest.mark.parametrize("num_tokens", [16, 22])
def test_the_books_agree_after_any_sequence_of_calls(exercise, num_tokens):
    def choices(chance):
        name = chance.choice(["allocate", "free"])
        return name, chance.choice([1, 1, 2, 3, 4, 5]) if name == "allocate" else (
            chance.randrange(8)
        )

    def run(calls):
        rewrite_history(exercise)
        pool = exercise.BuddyPool(num_tokens)
        books = Books(pool, num_tokens)
        for name, argument in calls:
            getattr(books, name)(argument)
        books.agree()

    walk(choices, run, num_walks=25, length=20)


# 2.3


@task("2.3")
def test_a_block_that_is_partly_filled_wastes_the_rest(exercise):
    for length, empty in [(1, 3), (3, 1), (5, 3), (6, 2)]:
        got = exercise.paging_waste([length], 4)
        expect(got, empty, f"empty places: {length} tokens in blocks of 4")


@task("2.3")
def test_full_blocks_waste_nothing(exercise):
    for length in (4, 8, 40):
        got = exercise.paging_waste([length], 4)
        expect(got, 0, f"empty places: {length} tokens fill blocks of 4")


@task("2.3")
def test_a_sequence_without_tokens_has_no_block(exercise):
    expect(exercise.paging_waste([], 4), 0, "there are no sequences")
    expect(exercise.paging_waste([0], 4), 0, "0 tokens need no block")


@task("2.3")
def test_each_sequence_has_its_own_last_block(exercise):
    got = exercise.paging_waste([1, 2, 16, 17], 16)
    expect(got, 15 + 14 + 0 + 15, "15, 14, 0 and 15 empty places")
    got = exercise.paging_waste([1, 5, 12], 12)
    expect(got, 11 + 7 + 0, "any block size will do: 12")
    got = exercise.paging_waste([1, 5, 12], 1)
    expect(got, 0, "blocks of one token are always full")


def best(exercise, trace, candidates, token_bytes, entry_bytes):
    return exercise.best_block_size(trace, candidates, token_bytes, entry_bytes)


def cost_of(trace, block_size, token_bytes, entry_bytes):
    total = 0
    for prompt_len, output_len in trace:
        for made in range(output_len):
            blocks = -(-(prompt_len + made) // block_size)
            empty = blocks * block_size - prompt_len - made
            total += empty * token_bytes + blocks * entry_bytes
    return total


@task("2.3")
def test_if_only_waste_costs_the_smallest_block_wins(exercise):
    got = best(exercise, [(3, 1)], [1, 2, 4], 1, 0)
    expect(got, 1, "3 tokens: blocks of 1 waste no place, the others one")


@task("2.3")
def test_if_only_entries_cost_the_largest_block_wins(exercise):
    got = best(exercise, [(3, 1)], [1, 2, 4], 0, 1)
    expect(got, 4, "3 tokens need 3, 2 or 1 blocks")


@task("2.3")
def test_waste_and_entries_are_weighed_in_bytes(exercise):
    for token_bytes, entry_bytes, expected in [(3, 1, 1), (1, 1, 2), (1, 5, 4)]:
        got = best(exercise, [(5, 1)], [1, 2, 4], token_bytes, entry_bytes)
        costs = [cost_of([(5, 1)], b, token_bytes, entry_bytes) for b in (1, 2, 4)]
        claim = f"5 tokens in blocks of 1, 2, 4 cost {costs} bytes"
        expect(got, expected, claim)


@task("2.3")
def test_every_step_counts_not_only_the_last(exercise):
    """8 tokens fill blocks of 4 and of 8, but on the way there the 8 waste more."""
    got = best(exercise, [(1, 8)], [4, 8], 1, 1)
    costs = [cost_of([(1, 8)], b, 1, 1) for b in (4, 8)]
    claim = f"a sequence holds 1, 2, … 8 tokens; blocks of 4 and 8 cost {costs}"
    expect(got, 4, claim)


@task("2.3")
def test_the_last_token_made_is_not_held_any_more(exercise):
    """Prompt 4, one step: 4 tokens, never 5."""
    got = best(exercise, [(4, 1)], [4, 5], 10, 1)
    expect(got, 4, "one step with 4 tokens: blocks of 4 are full, one of 5 is not")


@task("2.3")
def test_of_equally_cheap_sizes_the_largest_wins(exercise):
    for candidates in ([2, 1, 4], [4, 2, 1], [1, 4, 2]):
        got = best(exercise, [(4, 1)], candidates, 1, 0)
        expect(got, 4, f"4 tokens waste nothing with any of {candidates}")


@task("2.3")
def test_a_mean_length_is_not_enough(exercise):
    trace = [(15, 1), (1, 1)]
    costs = [cost_of(trace, b, 2, 1) for b in (5, 8)]
    got = best(exercise, trace, [8, 5], 2, 1)
    claim = f"15 tokens and 1 token cost {costs} in blocks of 5 and 8"
    expect(got, 5, claim + "; their mean, 8, would fill blocks of 8")


@task("2.3")
def test_the_best_size_is_that_of_adding_everything_up(exercise):
    trace = [(161, 40), (19, 58), (5, 1), (1, 120)]
    sizes = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32]
    for entry_bytes in (0, 1, 4, 30, 200, 3_000):
        costs = {b: cost_of(trace, b, 2, entry_bytes) for b in sizes}
        expected = max(b for b in sizes if costs[b] == min(costs.values()))
        got = best(exercise, trace, sizes, 2, entry_bytes)
        claim = f"cost in bytes, block size by block size: {costs}"
        expect(got, expected, claim)


@task("2.3")
def test_without_candidates_there_is_no_best_one(exercise):
    call, claim = exercise.best_block_size, "there is nothing to choose from"
    expect_raises(ValueError, call, [(3, 1)], [], 1, 1, claim=claim)
