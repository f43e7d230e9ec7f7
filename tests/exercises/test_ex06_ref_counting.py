"""Exercise 06. Pools and tables are ours and stay in the grader.

No task uses another task's answer. Which block comes next is the pool's business: most
pools hand out their blocks out of order.
"""

import random
from itertools import combinations
from pathlib import Path

from course.grader import (
    Hidden,
    expect,
    expect_raises,
    expect_that,
    rewrite_history,
    task,
)
from course.grader.failures import fail
from course.grader.helpers.hidden_sharing import RIGHT, WRONG
from course.grader.helpers.hunt import Hunted, expect_all_caught
from course.grader.helpers.pools import OtherTable, Table, given_pool
from course.grader.helpers.walk import walk
from course.manifest import ROOT
from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import OutOfBlocksError, SharedBlockError
from paged_attention.sharing import copy_on_write, fork

SCATTERED = (5, 2, 7, 0, 3)  # what a pool of 8 hands out first


def filled(pool, block_size, num_tokens, kind=Table):
    table = kind(pool, block_size)
    table.append_tokens(num_tokens)
    return table


def forked(exercise, table):
    """A fork by the learner, which must be a table of its own."""
    child = exercise.fork_table(table)
    kind = type(table).__name__
    is_table, expected = type(child) is type(table), f"another {kind}"
    claim = "fork_table returns a table of the same class as the one that it is given"
    expect_that(is_table, claim, got=child, expected=expected)
    claim = "the fork is a table of its own, not the same one"
    expect_that(child is not table, claim, got=child, expected=expected)
    same_pool, text = child.allocator is table.allocator, "the allocator of its parent"
    expect_that(same_pool, "the fork's allocator", got=child.allocator, expected=text)
    expect(child.block_size, table.block_size, "the fork's block_size")
    return child


def expect_table(table, ids, num_tokens, claim):
    expect(table.block_ids, ids, f"block_ids: {claim}")
    expect(table.num_tokens, num_tokens, f"num_tokens: {claim}")


def expect_counts(pool, *tables, claim):
    """The rule: ref_count is the number of places, and free is who has none."""
    places = [block_id for table in tables for block_id in table.block_ids]
    expected = [places.count(block_id) for block_id in range(pool.num_blocks)]
    expect(pool._counts, expected, f"ref_counts: {claim}")
    free = [block_id for block_id, count in enumerate(expected) if count == 0]
    expect(sorted(pool.free_block_ids), free, f"free blocks: {claim}")


def expect_refused(error, call, table, claim):
    """The call raises, and neither pool nor table are changed by it."""
    pool = table.allocator
    ids, num_tokens, counts = table.block_ids, table.num_tokens, pool._counts
    expect_raises(error, call, table, claim=claim)
    expect_table(table, ids, num_tokens, "the refused call changed nothing")
    expect(pool._counts, counts, "ref_counts: the refused call changed nothing")


# 6.1


@task("6.1")
def test_a_fork_has_the_same_block(exercise):
    pool = given_pool(exercise, 2)
    table = filled(pool, 4, 4)
    child = forked(exercise, table)
    expect_table(child, [0], 4, "the fork of a table with one full block")
    expect_table(table, [0], 4, "its parent is as it was")
    expect(pool._counts, [2, 0], "ref_counts: block 0 stands in two tables")


@task("6.1")
def test_a_fork_has_all_blocks_and_takes_none(exercise):
    pool = given_pool(exercise, 3, (2, 0, 1))
    table = filled(pool, 4, 10)
    child = forked(exercise, table)
    expect_table(child, [2, 0, 1], 10, "the fork of a table with the whole pool")
    expect_counts(pool, table, child, claim="each block stands in two tables")


@task("6.1")
def test_an_empty_table_can_be_forked(exercise):
    pool = given_pool(exercise, 2)
    child = forked(exercise, Table(pool, 4))
    expect_table(child, [], 0, "the fork of an empty table")
    expect(child.append_tokens(1), [0], "the first token of the fork")


@task("6.1")
def test_a_fork_can_be_forked(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = filled(pool, 4, 6)
    child = forked(exercise, table)
    grandchild = forked(exercise, child)
    expect_table(grandchild, [5, 2], 6, "the fork of a fork")
    claim = "each block stands in three tables"
    expect_counts(pool, table, child, grandchild, claim=claim)


@task("6.1")
def test_what_one_table_appends_is_not_in_the_other(exercise):
    for grows in ("fork", "parent"):
        pool = given_pool(exercise, 8, SCATTERED)
        table = filled(pool, 4, 8)
        child = forked(exercise, table)
        one, other = (child, table) if grows == "fork" else (table, child)
        one.append_tokens(3)
        expect_table(other, [5, 2], 8, f"it did not grow, only the {grows} did")
        expect_table(one, [5, 2, 7], 11, f"the {grows} has grown")
        expect_counts(pool, one, other, claim="block 7 stands in one table only")


@task("6.1")
def test_a_block_is_free_when_both_have_gone(exercise):
    for first in ("fork", "parent"):
        pool = given_pool(exercise, 3)
        table = filled(pool, 4, 4)
        child = forked(exercise, table)
        goes, stays = (child, table) if first == "fork" else (table, child)
        goes.free()
        expect_table(stays, [0], 4, f"after the {first} was freed")
        expect(pool._counts, [1, 0, 0], f"ref_counts: the {first} was freed")
        stays.append_tokens(1)
        [block_id] = pool.allocate_many(1)
        claim = "whoever comes next gets a block that nobody holds"
        expect(block_id, 2, claim)
        stays.free()
        expect(pool._counts, [0, 0, 1], "ref_counts: both were freed")


@task("6.1")
def test_a_fork_is_of_the_same_class(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = filled(pool, 4, 6, OtherTable)
    expect_table(forked(exercise, table), [5, 2], 6, "the fork of an OtherTable")


@task("6.1")
def test_a_hole_stays_a_hole(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = filled(pool, 4, 10)
    table.drop_before(8)
    child = forked(exercise, table)
    expect_table(child, [None, None, 7], 10, "the fork of a table with two holes")
    expect(pool._counts[7], 2, "ref_count of the block that is there")
    table.free()
    child.free()
    expect(pool.num_free, 8, "num_free: both were freed")


@task("6.1")
def test_an_id_at_two_places_is_counted_twice(exercise):
    pool = given_pool(exercise, 2)
    block_id = pool.allocate()
    pool.share(block_id)
    table = Table(pool, 4, [block_id, block_id], 8)
    child = forked(exercise, table)
    expect(pool._counts, [4, 0], "ref_counts: block 0 stands at two places, twice")
    table.free()
    expect(pool._counts, [2, 0], "ref_counts: the parent was freed")
    child.free()
    expect(pool._counts, [0, 0], "ref_counts: both were freed")


@task("6.1")
def test_a_fork_is_not_half_done(exercise):
    pool = given_pool(exercise, 4, (2, 0, 3, 1))
    table = filled(pool, 4, 12)
    pool.free(0)
    claim = "block 0 was given back behind the table's back, so it cannot be shared"
    expect_refused(ValueError, exercise.fork_table, table, claim=claim)


# 6.2


def copied(exercise, table, expected, claim):
    rule = "; a pair is (source, destination)" if expected else ""
    expect(exercise.copy_before_write(table), expected, claim + rule)


@task("6.2")
def test_nothing_is_copied_where_nobody_shares(exercise):
    for num_tokens in (3, 4, 5, 0):
        pool = given_pool(exercise, 4)
        table = filled(pool, 4, num_tokens)
        ids = table.block_ids
        copied(exercise, table, [], f"{num_tokens} tokens, and nobody shares a block")
        expect_table(table, ids, num_tokens, "there was nothing to do")
        expect_counts(pool, table, claim="there was nothing to do")


@task("6.2")
def test_a_shared_last_block_is_copied(exercise):
    pool = given_pool(exercise, 2)
    table = filled(pool, 4, 3)
    child = fork(table)
    claim = "block 0 has room for the next token, and both tables hold it"
    copied(exercise, child, [(0, 1)], claim)
    expect_table(child, [1], 3, "the fork has a block of its own")
    expect_table(table, [0], 3, "its parent is as it was")
    expect_counts(pool, table, child, claim="each block stands in one table")
    expect(child.append_tokens(1), [7], "now the next token can be appended")
    expect(table.append_tokens(1), [3], "to the other table as well")


@task("6.2")
def test_only_the_last_block_is_copied(exercise):
    for num_tokens in (9, 11):
        pool = given_pool(exercise, 8, SCATTERED)
        table = filled(pool, 4, num_tokens)
        child = fork(table)
        copied(exercise, child, [(7, 0)], "only block 7 is not full")
        expect_table(child, [5, 2, 0], num_tokens, "block 0 in place of block 7")
        expect_table(table, [5, 2, 7], num_tokens, "the other table is as it was")
        expect_counts(pool, table, child, claim="full blocks stay shared")


@task("6.2")
def test_a_full_last_block_stays_shared(exercise):
    for block_size, num_tokens in ((4, 8), (4, 4), (1, 3)):
        pool = given_pool(exercise, 8, SCATTERED)
        table = filled(pool, block_size, num_tokens)
        child, ids = fork(table), table.block_ids
        claim = "the last block is full: the next token goes into a new one"
        copied(exercise, child, [], claim)
        expect_table(child, ids, num_tokens, "there was nothing to do")
        expect_counts(pool, table, child, claim="all blocks stay shared")


@task("6.2")
def test_the_last_holder_writes_in_place(exercise):
    pool = given_pool(exercise, 4)
    table = filled(pool, 4, 2)
    child = fork(table)
    grandchild = fork(child)
    copied(exercise, child, [(0, 1)], "three tables hold block 0")
    copied(exercise, child, [], "once more: now it is alone in block 1")
    copied(exercise, table, [(0, 2)], "two tables still hold block 0")
    copied(exercise, grandchild, [], "nobody else holds block 0 any more")
    tables = table, child, grandchild
    expect_counts(pool, *tables, claim="each block stands in one table")


@task("6.2")
def test_without_a_free_block_nothing_is_changed(exercise):
    pool = given_pool(exercise, 2)
    table = filled(pool, 4, 6)
    child = fork(table)
    call, claim = exercise.copy_before_write, "block 1 is shared, and none is free"
    expect_refused(OutOfBlocksError, call, child, claim=claim)
    expect_table(table, [0, 1], 6, "the other table is as it was")
    table.free()
    copied(
        exercise, child, [], "nobody else holds block 1 any more: no block is needed"
    )


@task("6.2")
def test_a_full_pool_does_not_matter_where_nothing_is_copied(exercise):
    pool = given_pool(exercise, 2)
    table = filled(pool, 4, 8)
    child = fork(table)
    copied(exercise, child, [], "both blocks are full, so no block is needed")
    expect_counts(pool, table, child, claim="there was nothing to do")


@task("6.2")
def test_holes_do_not_matter(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = filled(pool, 4, 10)
    table.drop_before(8)
    child = fork(table)
    copied(exercise, child, [(7, 5)], "block 7 is not full, and both tables hold it")
    expect_table(child, [None, None, 5], 10, "two holes and a block of its own")
    expect(pool._counts[7], 1, "ref_count of block 7, which the parent holds")


class Memory:
    """Tables and what their blocks hold; every token has a number of its own."""

    def __init__(self, exercise):
        self.exercise = exercise
        self.pool = given_pool(exercise, 5)
        self.tables = [(Table(self.pool, 3), [])]  # with the tokens it must hold
        self.rows = {}  # slot -> token
        self.next_token = 0

    def fork(self, place):
        table, tokens = self.tables[place % len(self.tables)]
        self.tables.append((fork(table), list(tokens)))
        return self.agree()

    def free(self, place):
        table, tokens = self.tables[place % len(self.tables)]
        table.free()
        tokens.clear()
        return self.agree()

    def write(self, place):
        """Two tokens: copy if needed, append, fill the slots."""
        table, tokens = self.tables[place % len(self.tables)]
        call, full = self.exercise.copy_before_write, self.pool.num_free == 0
        is_shared = len(tokens) % 3 and self.pool.ref_count(table.block_ids[-1]) > 1
        if is_shared and full:
            claim = "a copy is needed, and no block is free"
            return expect_refused(OutOfBlocksError, call, table, claim=claim)
        pairs = call(table)
        expect(len(pairs), int(bool(is_shared)), "how many blocks are copied")
        for source, destination in pairs:
            for offset in range(3):
                token = self.rows.get(3 * source + offset)
                self.rows[3 * destination + offset] = token
        try:
            slots = table.append_tokens(2)
        except OutOfBlocksError:
            return self.agree()
        except SharedBlockError as error:
            fail("the next token can be appended now", expected="slots", got=str(error))
        for slot in slots:
            self.rows[slot] = self.next_token
            tokens.append(self.next_token)
            self.next_token += 1
        return self.agree()

    def agree(self):
        for table, tokens in self.tables:
            got = [self.rows.get(slot) for slot in table.slots(0, table.num_tokens)]
            expect(got, tokens, f"what {table!r} reads is what was written to it")
        tables = [table for table, _ in self.tables]
        expect_counts(self.pool, *tables, claim="after these calls")


@task("6.2")
def test_every_table_reads_its_own_tokens_after_any_calls(exercise):
    """The same random calls each time; the report has the fewest that still fail."""

    def choices(chance):
        return chance.choice(["fork", "free", "write", "write"]), chance.randrange(3)

    def run(calls):
        memory = Memory(exercise)
        for name, *args in calls:
            getattr(memory, name)(*args)

    walk(choices, run, num_walks=15, length=12)


# 6.3


RELEASES = [
    # tables, order, freed by each, in words
    ([[3, 1]], [0], [{1, 3}], "one table alone"),
    ([[0, 1], [0, 1]], [0, 1], [set(), {0, 1}], "a table and its fork"),
    ([[0, 1], [0, 1]], [1, 0], [set(), {0, 1}], "the fork goes first"),
    ([[0, 1], [0, 1]], [1], [set()], "only the fork goes, and brings nothing"),
    ([[0, 1], [0, 2]], [0, 1], [{1}, {0, 2}], "a shared beginning"),
    ([[0, 1], [0, 2]], [1, 0], [{2}, {0, 1}], "a shared beginning, the other way"),
    ([[4], [2], [9]], [2, 0], [{9}, {4}], "nothing is shared, and 2 stays"),
    ([[0, 1]], [], [], "nobody goes"),
    ([[], [5]], [0, 1], [set(), {5}], "an empty table goes first"),
    (
        [[0, 1, 2], [0, 1, 3], [0, 4]],
        [1, 2, 0],
        [{3}, {4}, {0, 1, 2}],
        "three of a family",
    ),
    (
        [[0, 1, 2], [0, 1, 3], [0, 4]],
        [0, 1, 2],
        [{2}, {1, 3}, {0, 4}],
        "three of a family, in another order",
    ),
    ([[None, 1], [None, 1]], [0, 1], [set(), {1}], "None is a hole, no block"),
    ([[3, 3]], [0], [{3}], "one id at two places of a table"),
    ([[3, 3], [3]], [0, 1], [set(), {3}], "one id at three places, two go first"),
    ([[3, 3], [3]], [1, 0], [set(), {3}], "one id at three places, one goes first"),
    ([[3, 3], [3]], [0], [set()], "one place of three is left"),
]


@task("6.3")
def test_a_block_is_freed_by_its_last_holder(exercise):
    for tables, order, freed, claim in RELEASES:
        rewrite_history(exercise)
        claim += ": a block is freed by the last of all tables that hold it"
        expect(exercise.freed_by_each(tables, order), freed, claim)


@task("6.3")
def test_the_pool_says_the_same(exercise):
    """Families of forks on a real pool: in any order, each block is freed once."""
    for seed in range(8):
        chance = random.Random(seed)
        pool = given_pool(exercise, 16)
        tables = [filled(pool, 2, 4), filled(pool, 2, 2)]
        for _ in range(3):
            child = fork(chance.choice(tables))
            tables.append(child)
            child.append_tokens(2 * chance.randrange(3))
        all_ids = [table.block_ids for table in tables]
        order = chance.sample(range(5), 5 if seed % 2 else 3)
        freed_by, before = [], set(pool.free_block_ids)
        for place in order:
            tables[place].free()
            freed_by.append(set(pool.free_block_ids) - before)
            before = set(pool.free_block_ids)
        rewrite_history(exercise)
        claim = "what a pool says when these tables are released in this order"
        expect(exercise.freed_by_each(all_ids, order), freed_by, claim)


# 6.4

DRAWN = [[0, 1, 5], [2, 1], [4, 5, 7]]  # the picture that is often drawn
PICTURES = [
    # tables, tokens, block_size, impossible, in words
    ([[3]], [[7, 8]], 2, set(), "one sequence alone"),
    ([[0, 1], [2, 3]], [[7, 8, 9], [7, 8, 9]], 2, set(), "nothing is shared"),
    (
        [[0, 1], [0, 2]],
        [[7, 8, 9, 9], [7, 8, 5, 9]],
        2,
        set(),
        "a shared beginning, then different tokens in different blocks",
    ),
    (
        [[0, 1], [0, 1]],
        [[7, 8, 9, 9], [7, 8, 5, 9]],
        2,
        {1},
        "block 1 would hold 9, 9 and 5, 9",
    ),
    ([[0], [0]], [[7, 8], [7, 9]], 2, {0}, "block 0 would hold 7, 8 and 7, 9"),
    (
        [[0, 1], [2, 1]],
        [[7, 8, 9, 9], [6, 8, 9, 9]],
        2,
        {1},
        "the tokens in block 1 are the same, but those before it are not",
    ),
    (
        [[0, 1], [2, 1]],
        [[7, 8, 9, 9], [7, 8, 9, 9]],
        2,
        set(),
        "all tokens are the same; both had computed the first two, in 0 and in 2",
    ),
    (
        [[0, 1], [2, 1]],
        [[7, 8, 9, 9], [8, 7, 9, 9]],
        2,
        {1},
        "the tokens before block 1 are the same two, in another order",
    ),
    (
        [[0, 1, 2], [3, 4, 2]],
        [[7, 8, 9, 9, 5, 5], [6, 8, 9, 9, 5, 5]],
        2,
        {2},
        "the tokens in block 2 and just before it are the same, but not the first ones",
    ),
    (
        [[0, 1], [1]],
        [[7, 8, 7, 8], [7, 8]],
        2,
        {1},
        "block 1 has the same tokens at other positions",
    ),
    ([[0, 1], [1]], [[7, 7, 7, 7], [7, 7]], 2, {1}, "the same tokens, moved"),
    ([[0, 0]], [[7, 7, 7, 7]], 2, {0}, "one block at two places of one sequence"),
    ([[0, 1], [0, 1]], [[7, 8, 9], [7, 8, 9]], 2, set(), "a last block with room"),
    (
        [[0, 1], [0, 1]],
        [[7, 8, 9, 5], [7, 8, 9]],
        2,
        set(),
        "the second sequence does not read the row of the 5",
    ),
    (
        [[0, 1], [0]],
        [[7, 8, 9, 5, 4], [7, 8, 9, 6]],
        4,
        {0},
        "three tokens agree in block 0, but the fourth ones differ",
    ),
    (
        [[0], [0], [0]],
        [[7, 8], [7, 8, 9], [7, 8, 5]],
        4,
        {0},
        "the first agrees with both others, but they do not agree",
    ),
    (
        [[0, 1], [0, 2], [0, 1]],
        [[1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 9]],
        2,
        {1},
        "three share block 0, two share block 1 and should not",
    ),
    (
        [[0, 1, 2], [0, 1, 3]],
        [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 8, 6]],
        2,
        set(),
        "what comes later does not matter",
    ),
    (DRAWN, [[1, 2, 3], [4, 5], [6, 7, 8]], 1, {1, 5}, "the picture, all different"),
    (
        DRAWN,
        [[1, 2, 3, 4, 5, 6], [9, 9, 3, 4], [8, 8, 5, 6, 7, 7]],
        2,
        {1, 5},
        "the picture, with the same tokens in the shared blocks",
    ),
    (
        DRAWN,
        [[1, 2, 3, 4, 5, 6], [1, 2, 3, 4], [8, 8, 5, 6, 7, 7]],
        2,
        {5},
        "the picture, if sequences 1 and 2 begin alike",
    ),
    ([[0], []], [[3], []], 2, set(), "a sequence without tokens"),
    ([], [], 2, set(), "no sequences"),
]


@task("6.4")
def test_pictures_are_judged(exercise):
    for tables, tokens, block_size, impossible, claim in PICTURES:
        rewrite_history(exercise)
        got = exercise.impossible_blocks(tables, tokens, block_size)
        expect(got, impossible, claim)


def judged(tables, tokens, block_size):
    """Compares each two places of a block, as far as both sequences go in it."""
    places = {}
    for sequence, ids in enumerate(tables):
        for logical_block, block_id in enumerate(ids):
            places.setdefault(block_id, []).append((logical_block, tokens[sequence]))
    impossible = set()
    for block_id, held in places.items():
        for (one, its), (two, others) in combinations(held, 2):
            n = min((one + 1) * block_size, len(its), len(others))
            if one != two or its[:n] != others[:n]:
                impossible.add(block_id)
    return impossible


@task("6.4")
def test_many_small_pictures_are_judged(exercise):
    chance = random.Random(0)
    for number in range(60):
        block_size = chance.choice([1, 2, 3])
        num_sequences = 2 + number // 30
        tokens, tables = [], []
        for _ in range(num_sequences):
            length = chance.randrange(1, 3 * block_size + 1)
            tokens.append([chance.choice([7, 7, 8]) for _ in range(length)])
            num_blocks = -(-length // block_size)
            tables.append([2 * i + chance.randrange(2) for i in range(num_blocks)])
            if chance.random() < 0.2:
                tables[-1][chance.randrange(num_blocks)] = chance.randrange(5)
        rewrite_history(exercise)
        got = exercise.impossible_blocks(tables, tokens, block_size)
        claim = f"sequences with few different tokens, in blocks of {block_size}"
        expect(got, judged(tables, tokens, block_size), claim)


@task("6.4")
def test_what_forks_and_copies_lead_to_is_possible(exercise):
    """A real pool, from which real tables were forked, and written after a copy."""
    for seed in range(4):
        chance = random.Random(seed)
        family = [(BlockTable(BlockAllocator(40), 3), [])]
        for token in range(12):
            table, tokens = chance.choice(family)
            if len(family) < 4 and chance.random() < 0.4:
                family.append((fork(table), list(tokens)))
            copy_on_write(table)
            table.append_tokens(1)
            tokens.append(token)
        rewrite_history(exercise)
        tables = [table.block_ids for table, _ in family]
        all_tokens = [tokens for _, tokens in family]
        got = exercise.impossible_blocks(tables, all_tokens, 3)
        expect(got, set(), "forks and copies on write have led to this picture")


# 6.5


def find_of(exercise, each):
    """What check_sharing says about a set, and where; None if it finds nothing."""
    classes = Hidden(each.allocator_class), Hidden(each.table_class)
    functions = Hidden(each.fork), Hidden(each.copy_on_write)
    try:
        exercise.check_sharing(*classes, *functions)
    except Exception as error:
        learner = getattr(error, "learner", None)
        if learner is None or isinstance(error, NotImplementedError):
            raise
        text = learner.text
        if learner.name == "AssertionError" and not text:
            text = "ids may come in any order: read them from block_ids"
        where = ""
        if learner.location:
            where = f" (at {short(learner.location)}: {learner.line})"
        return f"{learner.name}: {text}{where}"
    return None


def short(location):
    """exercises/ex06_ref_counting.py:57, wherever the course lies."""
    path = Path(location)
    return path.relative_to(ROOT) if path.is_relative_to(ROOT) else path


@task("6.5")
def test_all_bugs_are_caught_and_nobody_is_accused(exercise):
    # In an order drawn anew: to count the calls must not do for looking at the sets.
    sets = [*RIGHT, *WRONG]
    finds = {
        id(each): find_of(exercise, each)
        for each in random.SystemRandom().sample(sets, len(sets))
    }
    expect_all_caught(
        exercise,
        "check_sharing",
        "set",
        [Hunted(each.does, finds[id(each)]) for each in RIGHT],
        [Hunted(each.does, finds[id(each)], f"hint: {each.hint}") for each in WRONG],
    )
