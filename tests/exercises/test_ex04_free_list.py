"""Exercise 04. Which block comes first is free, so no test asks for a certain id.

Tests of a task use what tasks up to it ask for; 4.5 needs nothing but check_allocator.
"""

import random

import pytest

from course.grader import (
    Hidden,
    expect,
    expect_raises,
    expect_that,
    in_worker,
    measured,
    rewrite_history,
    task,
)
from course.grader.failures import fail
from course.grader.helpers.hidden_allocators import RIGHT, WRONG
from course.grader.helpers.hunt import Hunted, expect_all_caught
from course.grader.helpers.race import Race
from course.grader.helpers.walk import walk
from paged_attention.errors import DoubleFreeError, OutOfBlocksError

HELPERS = "course.grader.helpers.ex04"


def take(pool, n):
    return [pool.allocate() for _ in range(n)]


def expect_distinct(ids, among, claim):
    expected = f"different ids among {sorted(among)}"
    fits = len(set(ids)) == len(ids) and set(ids) <= set(among)
    expect_that(fits, claim, got=ids, expected=expected)


def counts(pool, num_blocks):
    return [pool.ref_count(block_id) for block_id in range(num_blocks)]


# 4.1


@task("4.1")
def test_a_new_pool_is_free(exercise):
    pool = exercise.FreeListAllocator(3)
    expect(pool.num_blocks, 3, "the size of the pool")
    expect(pool.num_free, 3, "all blocks of a new pool are free")


@task("4.1")
def test_a_pool_of_one_hands_out_block_0(exercise):
    pool = exercise.FreeListAllocator(1)
    expect(pool.allocate(), 0, "the only block of the pool has the id 0")
    expect(pool.num_free, 0, "the only block is in use")


@task("4.1")
def test_each_block_is_handed_out_once(exercise):
    pool = exercise.FreeListAllocator(4)
    ids = take(pool, 4)
    expect_distinct(ids, range(4), "a pool of 4 hands out 4 different blocks")
    expect(pool.num_free, 0, "all blocks are in use")


@task("4.1")
def test_an_empty_pool_raises(exercise):
    pool = exercise.FreeListAllocator(2)
    take(pool, 2)
    expect_raises(OutOfBlocksError, pool.allocate, claim="both blocks are in use")
    expect(pool.num_free, 0, "the refused call changed nothing")


@task("4.1")
def test_a_block_comes_back_after_free(exercise):
    pool = exercise.FreeListAllocator(1)
    block = pool.allocate()
    pool.free(block)
    expect(pool.num_free, 1, "the block that was given back is free")
    expect(pool.allocate(), block, "the only block of the pool comes again")


@task("4.1")
def test_an_error_does_not_spoil_the_pool(exercise):
    pool = exercise.FreeListAllocator(2)
    first, second = take(pool, 2)
    expect_raises(OutOfBlocksError, pool.allocate, claim="both blocks are in use")
    pool.free(second)
    expect(pool.allocate(), second, "the block that was given back is the free one")
    pool.free(first)
    expect(pool.num_free, 1, "one of two blocks is in use")


@task("4.1")
@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (2, 0, 1)])
def test_blocks_come_back_in_any_order(exercise, order):
    pool = exercise.FreeListAllocator(3)
    for life in ("second", "third"):
        ids = take(pool, 3)
        for place in order:
            pool.free(ids[place])
        expect(pool.num_free, 3, f"all are free before their {life} life")
    expect_distinct(take(pool, 3), range(3), "each of them is handed out once")
    expect_raises(OutOfBlocksError, pool.allocate, claim="and no fourth one")


@task("4.1")
def test_can_allocate_compares_with_what_is_free(exercise):
    pool = exercise.FreeListAllocator(3)
    pool.allocate()
    answers = [pool.can_allocate(n) for n in (0, 1, 2, 3)]
    expect(answers, [True, True, True, False], "2 blocks are free: can_allocate(0…3)")


@task("4.1")
@pytest.mark.parametrize("num_blocks", [0, -1])
def test_a_pool_has_at_least_one_block(exercise, num_blocks):
    claim = f"a pool of {num_blocks} blocks makes no sense"
    expect_raises(ValueError, exercise.FreeListAllocator, num_blocks, claim=claim)


@task("4.1")
def test_two_pools_know_nothing_of_each_other(exercise):
    one, two = exercise.FreeListAllocator(2), exercise.FreeListAllocator(3)
    expect_distinct(take(one, 2), range(2), "the first pool")
    expect(two.num_free, 3, "the second pool is as it was")
    expect_distinct(take(two, 3), range(3), "the second pool")


MEASURED = {  # by many
    False: ("allocate", "can_allocate", "free", "num_free"),
    True: ("allocate_many", "free_many"),
}


def expect_same_steps(exercise, many):
    """Counts opcodes of Python: the same in each run, so the limit can be strict."""
    helper, kind = f"{HELPERS}:most_opcodes", exercise.FreeListAllocator
    names = MEASURED[many]
    small = measured(exercise, helper, kind, 100, many, names=names)
    large = measured(exercise, helper, kind, 2_000, many, names=names)
    for name, steps in small.items():
        if large[name] <= 3 * steps + 100:
            continue
        story = [
            f"pool of 100 blocks: {name} takes {steps} steps of Python",
            f"pool of 2,000 blocks: {name} takes {large[name]} steps of Python",
        ]
        rewrite_history(exercise, story)
        fail(
            f"{name} takes as many steps in a large pool as in a small one",
            expected=f"about {steps} steps, as in a pool of 100 blocks",
            got=f"{large[name]} steps in a pool of 2,000 blocks: a loop over them?",
        )


def expect_same_time(exercise, helper, sizes, *args, names):
    """Sees what C functions do. Only what is slow three times in a row is slow."""
    for _ in range(3):
        small, large = (
            measured(
                exercise, helper, exercise.FreeListAllocator, size, *args, names=names
            )
            for size in sizes
        )
        slow = [name for name in small if large[name] > 10 * small[name] + 3]
        if not slow:
            return
    name = slow[0]
    story = [
        f"pool of {size:,} blocks: {name} takes {spent[name]} µs"
        for size, spent in zip(sizes, (small, large), strict=True)
    ]
    rewrite_history(exercise, story)
    fail(
        f"{name} does as much work in a large pool as in a small one",
        expected=f"about {small[name]:.2f} µs, as in a pool of {sizes[0]} blocks",
        got=f"{large[name]:.1f} µs in a pool of {sizes[1]:,} blocks: does it search, "
        "sort, copy, or move a whole list (in, min, index, insert(0), pop(0))?",
    )


@task("4.1")
def test_the_steps_do_not_grow_with_the_pool(exercise):
    expect_same_steps(exercise, many=False)


@task("4.1")
def test_the_work_does_not_grow_with_the_pool(exercise):
    helper, sizes = f"{HELPERS}:least_microseconds", (100, 100_000)
    expect_same_time(exercise, helper, sizes, False, names=MEASURED[False])
    helper, sizes = f"{HELPERS}:sweep_microseconds", (100, 10_000)
    expect_same_time(exercise, helper, sizes, names=("allocate", "free"))


# 4.2


@task("4.2")
def test_an_allocated_block_has_one_holder(exercise):
    pool = exercise.FreeListAllocator(2)
    expect(counts(pool, 2), [0, 0], "nobody holds a free block")
    block = pool.allocate()
    expect(pool.ref_count(block), 1, "the block that was handed out")
    expect(pool.ref_count(1 - block), 0, "the other one is still free")


@task("4.2")
def test_a_shared_block_is_free_when_its_last_holder_goes(exercise):
    pool = exercise.FreeListAllocator(1)
    block = pool.allocate()
    pool.share(block)
    expect(pool.ref_count(block), 2, "two hold the block")
    pool.free(block)
    expect(pool.ref_count(block), 1, "one of two holders is left")
    expect(pool.num_free, 0, "a block that somebody holds is not free")
    expect_raises(OutOfBlocksError, pool.allocate, claim="somebody still holds block 0")
    pool.free(block)
    expect(pool.ref_count(block), 0, "no holder is left")
    expect(pool.num_free, 1, "the block is free now")


@task("4.2")
def test_num_free_counts_blocks_not_holders(exercise):
    pool = exercise.FreeListAllocator(4)
    block = pool.allocate()
    pool.share(block)
    pool.share(block)
    expect(pool.num_free, 3, "one block of four is in use, by three holders")
    expect(pool.can_allocate(3), True, "three blocks are free")


@task("4.2")
def test_a_second_life_starts_with_one_holder(exercise):
    pool = exercise.FreeListAllocator(1)
    block = pool.allocate()
    pool.share(block)
    pool.free(block)
    pool.free(block)
    block = pool.allocate()
    expect(pool.ref_count(block), 1, "the block was shared in its first life only")
    pool.free(block)
    expect(pool.num_free, 1, "its one holder has gone")


@task("4.2")
def test_a_free_block_cannot_be_freed(exercise):
    pool = exercise.FreeListAllocator(2)
    block = pool.allocate()
    pool.free(block)
    claim = f"block {block} was given back before"
    expect_raises(DoubleFreeError, pool.free, block, claim=claim)
    expect(counts(pool, 2), [0, 0], "the refused call changed no ref_count")
    expect(pool.num_free, 2, "the refused call changed nothing")
    expect_distinct(take(pool, 2), range(2), "each block is still handed out once")
    expect_raises(OutOfBlocksError, pool.allocate, claim="there are only two blocks")


@task("4.2")
def test_a_block_that_was_never_in_use_cannot_be_freed(exercise):
    pool = exercise.FreeListAllocator(2)
    expect_raises(DoubleFreeError, pool.free, 0, claim="block 0 is free from the start")
    expect(pool.num_free, 2, "the refused call changed nothing")


@task("4.2")
def test_a_free_block_cannot_be_shared(exercise):
    pool = exercise.FreeListAllocator(2)
    block = pool.allocate()
    pool.free(block)
    claim = f"nobody holds block {block}"
    expect_raises(ValueError, pool.share, block, claim=claim)
    expect(counts(pool, 2), [0, 0], "the refused call changed no ref_count")
    expect(pool.num_free, 2, "the refused call changed nothing")


@task("4.2")
@pytest.mark.parametrize("method", ["ref_count", "share", "free"])
def test_an_id_that_does_not_exist_is_refused(exercise, method):
    pool = exercise.FreeListAllocator(2)
    take(pool, 2)
    call = {"ref_count": pool.ref_count, "share": pool.share, "free": pool.free}[method]
    for block_id in (2, -1, -2, 1000):
        claim = f"a pool of 2 has the blocks 0 and 1, no block {block_id}"
        expect_raises(ValueError, call, block_id, claim=claim)
        expect(counts(pool, 2), [1, 1], "the refused call changed no ref_count")
        expect(pool.num_free, 0, "the refused call changed nothing")


class Books:
    """What must be true of a pool: the number of holders of each block."""

    def __init__(self, pool, num_blocks):
        self.pool = pool
        self.held = [0] * num_blocks

    @property
    def free(self):
        return [i for i, count in enumerate(self.held) if count == 0]

    def allocate(self):
        if not self.free:
            expect_raises(OutOfBlocksError, self.pool.allocate, claim="none is free")
            return
        block_id = self.pool.allocate()
        expect_distinct([block_id], self.free, "a block that is free is handed out")
        self.held[block_id] = 1

    def share(self, block_id):
        if self.held[block_id] == 0:
            call = self.pool.share
            expect_raises(ValueError, call, block_id, claim=f"{block_id} is free")
            return
        self.pool.share(block_id)
        self.held[block_id] += 1

    def free_one(self, block_id):
        if self.held[block_id] == 0:
            call, claim = self.pool.free, f"block {block_id} is free already"
            expect_raises(DoubleFreeError, call, block_id, claim=claim)
            return
        self.pool.free(block_id)
        self.held[block_id] -= 1

    def allocate_many(self, n):
        if n > len(self.free):
            claim = f"{len(self.free)} blocks are free, {n} are wanted"
            call = self.pool.allocate_many
            expect_raises(OutOfBlocksError, call, n, claim=claim)
            return
        ids = self.pool.allocate_many(n)
        expect(len(ids), n, f"allocate_many({n}) gives {n} blocks")
        expect_distinct(ids, self.free, "they were free")
        for block_id in ids:
            self.held[block_id] = 1

    def free_many(self, ids):
        if any(ids.count(block_id) > self.held[block_id] for block_id in ids):
            claim = "an id stands there more often than its block has holders"
            expect_raises(DoubleFreeError, self.pool.free_many, ids, claim=claim)
            return
        self.pool.free_many(ids)
        for block_id in ids:
            self.held[block_id] -= 1

    def agree(self):
        claim = "holders of each block, after these calls"
        expect(counts(self.pool, len(self.held)), self.held, claim)
        expect(self.pool.num_free, len(self.free), "free blocks, after these calls")


def expect_books_to_agree(exercise, choices):
    """The same random calls each time; the report has the fewest that still fail."""

    def run(calls):
        rewrite_history(exercise)
        books = Books(exercise.FreeListAllocator(3), 3)
        for name, *args in calls:
            getattr(books, name)(*args)
        books.agree()

    walk(choices, run, num_walks=25, length=25)


@task("4.2")
def test_the_books_agree_after_any_sequence_of_calls(exercise):
    def choices(chance):
        name = chance.choice(["allocate", "share", "free_one"])
        return (name,) if name == "allocate" else (name, chance.randrange(3))

    expect_books_to_agree(exercise, choices)


# 4.3


@task("4.3")
def test_several_blocks_are_different(exercise):
    pool = exercise.FreeListAllocator(5)
    ids = pool.allocate_many(3)
    expect(len(ids), 3, "three blocks were asked for")
    expect_distinct(ids, range(5), "they are different blocks")
    expect(pool.num_free, 2, "two of five are left")
    expect([pool.ref_count(i) for i in ids], [1, 1, 1], "each has one holder")


@task("4.3")
def test_the_whole_pool_can_be_taken_at_once(exercise):
    pool = exercise.FreeListAllocator(3)
    expect(sorted(pool.allocate_many(3)), [0, 1, 2], "all blocks of a pool of 3")
    expect_raises(OutOfBlocksError, pool.allocate, claim="all blocks are in use")


@task("4.3")
def test_no_block_can_be_taken(exercise):
    pool = exercise.FreeListAllocator(1)
    expect(pool.allocate_many(0), [], "no blocks are asked for")
    pool.allocate()
    expect(pool.allocate_many(0), [], "that works in an empty pool as well")


@task("4.3")
def test_too_many_blocks_are_refused_and_none_is_taken(exercise):
    pool = exercise.FreeListAllocator(3)
    held = pool.allocate()
    claim = "three blocks are wanted, two are free"
    expect_raises(OutOfBlocksError, pool.allocate_many, 3, claim=claim)
    expect(pool.num_free, 2, "the refused call took nothing")
    expected = [1 if i == held else 0 for i in range(3)]
    expect(counts(pool, 3), expected, "the refused call changed no ref_count")
    rest = [i for i in range(3) if i != held]
    expect(sorted(pool.allocate_many(2)), rest, "both free blocks can still be had")


@task("4.3")
def test_a_negative_number_is_refused(exercise):
    pool = exercise.FreeListAllocator(2)
    expect_raises(ValueError, pool.allocate_many, -1, claim="-1 blocks make no sense")
    expect(pool.num_free, 2, "the refused call changed nothing")


@task("4.3")
def test_several_blocks_are_given_back(exercise):
    pool = exercise.FreeListAllocator(3)
    first, second, third = take(pool, 3)
    pool.free_many([third, first])
    expect(pool.num_free, 2, "two of three were given back")
    expect(pool.ref_count(second), 1, "the one that was not named is still in use")
    expected = sorted([first, third])
    expect(sorted(take(pool, 2)), expected, "those that came back are handed out")


@task("4.3")
def test_an_empty_list_changes_nothing(exercise):
    pool = exercise.FreeListAllocator(2)
    pool.allocate()
    pool.free_many([])
    expect(pool.num_free, 1, "nothing was given back")


@task("4.3")
def test_one_id_twice_takes_two_holders_away(exercise):
    pool = exercise.FreeListAllocator(2)
    block = pool.allocate()
    pool.share(block)
    pool.free_many([block, block])
    expect(pool.ref_count(block), 0, "both holders have gone")
    expect(pool.num_free, 2, "the block is free, once")
    expect_distinct(take(pool, 2), range(2), "each block is handed out once")
    expect_raises(OutOfBlocksError, pool.allocate, claim="there are only two blocks")


@task("4.3")
def test_one_id_twice_with_one_holder_is_refused(exercise):
    pool = exercise.FreeListAllocator(2)
    block = pool.allocate()
    claim = f"block {block} has one holder, so it cannot be freed twice"
    expect_raises(DoubleFreeError, pool.free_many, [block, block], claim=claim)
    expect(pool.ref_count(block), 1, "the refused call took no holder away")
    expect(pool.num_free, 1, "the refused call gave nothing back")


@task("4.3")
def test_a_free_block_behind_others_stops_all(exercise):
    pool = exercise.FreeListAllocator(4)
    first, second, free = take(pool, 3)
    pool.share(second)
    pool.free(free)
    before = counts(pool, 4)
    claim = f"block {free} is free, so none of the three is given back"
    ids = [first, second, free]
    expect_raises(DoubleFreeError, pool.free_many, ids, claim=claim)
    expect(counts(pool, 4), before, "the refused call changed no ref_count")
    expect(pool.num_free, 2, "the refused call gave nothing back")
    pool.free_many([first, second, second])
    expect_distinct(take(pool, 4), range(4), "each block is handed out once")


@task("4.3")
@pytest.mark.parametrize("bad", [3, -1])
def test_an_id_that_does_not_exist_stops_all(exercise, bad):
    pool = exercise.FreeListAllocator(3)
    first, second, _ = take(pool, 3)
    claim = f"a pool of 3 has no block {bad}, so nothing is given back"
    ids = [first, bad, second]
    expect_raises(ValueError, pool.free_many, ids, claim=claim)
    expect(counts(pool, 3), [1, 1, 1], "the refused call changed no ref_count")
    expect(pool.num_free, 0, "the refused call gave nothing back")


@task("4.3")
def test_the_books_agree_after_any_calls_for_many_blocks(exercise):
    def choices(chance):
        name = chance.choice(["allocate_many", "share", "free_many"])
        if name == "free_many":
            return name, [chance.randrange(3) for _ in range(chance.randrange(5))]
        return name, chance.randrange(3 if name == "share" else 4)

    expect_books_to_agree(exercise, choices)


@task("4.3")
def test_many_blocks_take_no_more_steps_in_a_large_pool(exercise):
    expect_same_steps(exercise, many=True)
    helper, sizes = f"{HELPERS}:least_microseconds", (100, 100_000)
    expect_same_time(exercise, helper, sizes, True, names=MEASURED[True])


# 4.4

ALLOCATE = ["allocate"]
RACES = [
    # num_blocks, holders of the blocks in use, first call, second call
    (3, [], ALLOCATE, ALLOCATE),
    (1, [], ALLOCATE, ALLOCATE),
    (2, [1, 1], ["free", 0], ["free", 1]),
    (2, [1], ALLOCATE, ["free", 0]),
    (2, [1], ["free", 0], ALLOCATE),
    (2, [1], ["free", 0], ["free", 0]),
    (2, [2], ["free", 0], ["free", 0]),
    (2, [1], ["share", 0], ["share", 0]),
    (2, [1], ["share", 0], ["free", 0]),
    (2, [1], ["free", 0], ["share", 0]),
    (3, [], ["allocate_many", 2], ["allocate_many", 2]),
    (2, [], ["allocate_many", 2], ALLOCATE),
    (2, [1], ["allocate_many", 1], ["free_many", [0]]),
    (2, [1, 1], ["free_many", [0, 1]], ["free", 1]),
    # A refused call must not show what it would have done: no block is taken for a
    # moment, none is free for a moment.
    (2, [], ["allocate_many", 3], ALLOCATE),
    (1, [1], ["free_many", [0, 0]], ALLOCATE),
]


@task("4.4")
def test_two_calls_at_once_act_like_one_after_the_other(exercise):
    for num_blocks, holders, *calls in RACES:
        kind = exercise.FreeListAllocator
        helper = f"{HELPERS}:races"
        runs = in_worker(exercise, helper, kind, num_blocks, holders, *calls)
        for seen in runs:
            race = Race(num_blocks, holders, calls, seen)
            if problem := race.problem():
                rewrite_history(exercise, race.story())
                fail(race.claim(), expected=problem.expected, got=problem.got)
        expect_that(
            {0} < {seen["line"] for seen in runs},
            f"{calls[0][0]} and {calls[1][0]} can be tried at once",
            got=runs,
            expected="runs of both, one after the other and at once",
        )


# 4.5


def check(exercise, kind):
    """What check_allocator says about a hidden class; None if it finds nothing."""
    rewrite_history(exercise)
    try:
        exercise.check_allocator(Hidden(kind))
    except Exception as error:
        learner = getattr(error, "learner", None)
        if learner is None or isinstance(error, NotImplementedError):
            raise
        where = f" at {learner.location}" if learner.location else ""
        return f"{learner.name}{where}: {learner.text or learner.line}"
    return None


@task("4.5")
def test_wrong_allocators_are_found_and_right_ones_not_accused(exercise):
    # In one process and an order drawn anew: to count the calls, or to look at the
    # process, must not do for looking at the allocator.
    kinds = [*RIGHT, *WRONG]
    drawn = random.SystemRandom().sample(kinds, len(kinds))
    finds = {kind: check(exercise, kind) for kind in drawn}
    missed = next((kind for kind in WRONG if finds[kind] is None), None)
    expect_all_caught(
        exercise,
        "check_allocator",
        "allocator",
        [Hunted(kind.__doc__, finds[kind]) for kind in RIGHT],
        [  # of the bugs that were missed, one at a time is named
            Hunted(
                kind.__doc__,
                finds[kind],
                f"its bug: {kind.__doc__}" if kind is missed else "",
            )
            for kind in WRONG
        ],
    )
