"""Exercise 05. The pool is ours and stays in the grader; the table is the learner's.

Tests of a task use what tasks up to it ask for. Holes come from the constructor until
5.5 makes them. Which block comes next is the pool's business: most pools hand out their
blocks out of order.
"""

from course.grader import (
    expect,
    expect_raises,
    expect_that,
    in_worker,
    measured,
    rewrite_history,
    task,
)
from course.grader.failures import fail
from course.grader.helpers.pools import given_pool
from course.grader.helpers.walk import walk
from paged_attention.errors import (
    DoubleFreeError,
    OutOfBlocksError,
    SharedBlockError,
)

HELPERS = "course.grader.helpers.ex05"
SCATTERED = (5, 2, 7, 0, 3)  # what a pool of 8 hands out first


def filled(exercise, pool, block_size, num_tokens):
    """A table with so many tokens, made by the constructor alone."""
    ids = pool.allocate_many(-(-num_tokens // block_size))
    table = exercise.LogicalTable(pool, block_size, ids, num_tokens)
    return table, ids


def expect_table(table, ids, num_tokens, claim):
    expect(table.block_ids, ids, f"block_ids: {claim}")
    expect(table.num_blocks, len(ids), f"num_blocks: {claim}")
    expect(table.num_tokens, num_tokens, f"num_tokens: {claim}")


def expect_refused(error, call, *args, table, pool, claim):
    """The call raises, and neither table nor pool are changed by it."""
    seen = table.block_ids, table.num_tokens
    counts, free = pool._counts, pool.free_block_ids
    expect_raises(error, call, *args, claim=claim)
    expect_table(table, *seen, "the refused call changed nothing")
    expect(pool._counts, counts, "ref_counts: the refused call changed nothing")
    got = sorted(pool.free_block_ids)
    expect(got, sorted(free), "free blocks: the refused call changed nothing")


def slots_of(ids, block_size, num_tokens):
    """The slots of all tokens of a table without holes, worked out one by one."""
    places = [(ids[p // block_size], p % block_size) for p in range(num_tokens)]
    return [block_id * block_size + offset for block_id, offset in places]


# 5.1


@task("5.1")
def test_an_empty_table_has_nothing(exercise):
    pool = given_pool(exercise, 2)
    table = exercise.LogicalTable(pool, 4)
    expect_table(table, [], 0, "a new table without blocks")
    expect(pool.num_free, 2, "num_free: making a table takes no block")


@task("5.1")
def test_one_block_is_translated(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 4)
    expect(table.translate(0), ids[0], "logical block 0 lies in the only block")
    expect_table(table, ids, 4, "what the table was given")
    expect(table.block_size, 4, "block_size is kept")
    same = table.allocator is pool
    text = "the object that the constructor was given"
    expect_that(same, "allocator is kept", got=table.allocator, expected=text)


@task("5.1")
def test_each_logical_block_has_its_physical_block(exercise):
    pool = given_pool(exercise, 8, (5, 0, 7))
    table, ids = filled(exercise, pool, 4, 10)
    claim = "translate(0), (1), (2): 0 is a block like any other"
    expect([table.translate(i) for i in range(3)], ids, claim)
    expect_table(table, ids, 10, "10 tokens in blocks of 4")


@task("5.1")
def test_a_table_takes_over_the_references(exercise):
    pool = given_pool(exercise, 3)
    table, ids = filled(exercise, pool, 4, 8)
    claim = "ref_counts: the caller's references are the table's now; none is added"
    expect(pool._counts, [1, 1, 0], claim)
    expect_table(table, ids, 8, "what the table was given")


@task("5.1")
def test_32_tokens_lie_in_blocks_5_and_8(exercise):
    pool = given_pool(exercise, 9, (5, 8, 2))
    table, _ = filled(exercise, pool, 16, 32)
    got = [table.slot(position) for position in (0, 15, 16, 31)]
    claim = "slots of positions 0, 15, 16, 31 in blocks 5 and 8 of 16 tokens"
    expect(got, [80, 95, 128, 143], claim)


@task("5.1")
def test_each_position_has_its_slot(exercise):
    for block_size in (1, 3, 4):
        pool = given_pool(exercise, 8, SCATTERED)
        num_tokens = 2 * block_size + 1
        table, ids = filled(exercise, pool, block_size, num_tokens)
        got = [table.slot(position) for position in range(num_tokens)]
        claim = f"the slots of positions 0 … {num_tokens - 1}"
        expect(got, slots_of(ids, block_size, num_tokens), claim)


@task("5.1")
def test_a_block_that_is_not_there_has_no_translation(exercise):
    for logical_block in (2, -1, -2, 100):
        pool = given_pool(exercise, 8, SCATTERED)
        table, _ = filled(exercise, pool, 4, 8)
        claim = f"the table has the logical blocks 0 and 1, no block {logical_block}"
        expect_raises(IndexError, table.translate, logical_block, claim=claim)


@task("5.1")
def test_a_position_without_a_token_has_no_slot(exercise):
    for position in (6, 7, 8, -1, -6):
        pool = given_pool(exercise, 8, SCATTERED)
        table, _ = filled(exercise, pool, 4, 6)
        claim = f"6 tokens have the positions 0 … 5, and {position} is none of them"
        expect_raises(IndexError, table.slot, position, claim=claim)


@task("5.1")
def test_a_hole_is_counted_but_has_no_place(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    first, last = pool.allocate_many(2)
    table = exercise.LogicalTable(pool, 4, [first, None, last], 10)
    expect_table(table, [first, None, last], 10, "with a hole in the middle")
    expect(table.translate(2), last, "the block behind the hole")
    expect(table.slot(9), 4 * last + 1, "the last token")
    claim = "logical block 1 is a hole"
    expect_raises(ValueError, table.translate, 1, claim=claim)
    for position in (4, 7):
        claim = f"position {position} lies in logical block 1, a hole"
        expect_raises(ValueError, table.slot, position, claim=claim)
    claim = "a table with a hole has no block -1 either"
    expect_raises(IndexError, table.translate, -1, claim=claim)


@task("5.1")
def test_a_table_has_as_many_blocks_as_its_tokens_need(exercise):
    for num_tokens in (0, 4, 9):
        pool = given_pool(exercise, 3)
        ids = pool.allocate_many(2)
        claim = f"{num_tokens} tokens do not need 2 blocks of 4"
        make = exercise.LogicalTable
        expect_raises(ValueError, make, pool, 4, ids, num_tokens, claim=claim)
        expect(pool._counts, [1, 1, 0], "ref_counts: the caller keeps what it has")


@task("5.1")
def test_what_is_changed_outside_does_not_change_the_table(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 8)
    got = in_worker(exercise, f"{HELPERS}:block_ids_after_a_change", table)
    make = f"table = LogicalTable(pool, 4, {ids}, 8)"
    rewrite_history(exercise, [make, "table.block_ids.append(99)", "table.block_ids"])
    expect(got, ids, "what is done to the list that block_ids gave is not seen")
    helper = f"{HELPERS}:block_ids_after_a_change_of_what_was_given"
    got = in_worker(exercise, helper, exercise.LogicalTable, pool, 4, list(ids))
    make = "table = LogicalTable(pool, 4, ids, 8)"
    story = [f"ids = {ids}", make, "ids[0] = 99", "ids.append(77)", "table.block_ids"]
    rewrite_history(exercise, story)
    expect(got, ids, "what is done to the list that the table was given is not seen")


# 5.2


@task("5.2")
def test_the_first_token_takes_a_block(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = exercise.LogicalTable(pool, 4)
    expect(table.append_tokens(1), [20], "the first slot of block 5")
    expect_table(table, [5], 1, "after one token")
    expect(pool.num_free, 7, "num_free: one of 8 blocks is in use")


@task("5.2")
def test_a_block_is_filled_before_the_next_is_taken(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = exercise.LogicalTable(pool, 2)
    got = [table.append_tokens(1) for _ in range(4)]
    claim = "one token at a time: both slots of block 5, then both of block 2"
    expect(got, [[10], [11], [4], [5]], claim)
    expect(pool.num_free, 6, "num_free: two of 8 blocks are in use")


@task("5.2")
def test_32_tokens_grow_by_one_into_block_2(exercise):
    pool = given_pool(exercise, 9, (5, 8, 2))
    table = exercise.LogicalTable(pool, 16)
    slots = [*range(80, 96), *range(128, 144)]
    expect(table.append_tokens(32), slots, "32 tokens fill blocks 5 and 8")
    expect(table.append_tokens(1), [32], "the next one is the first of block 2")
    expect_table(table, [5, 8, 2], 33, "after 33 tokens")


@task("5.2")
def test_new_tokens_fill_the_last_block_and_go_on_in_new_ones(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 6)
    slots = [10, 11, *range(28, 32), 0]
    expect(table.append_tokens(7), slots, "2 more in block 2, 4 in block 7, 1 in 0")
    expect_table(table, [*ids, 7, 0], 13, "6 tokens and 7 more")
    expect([table.slot(position) for position in range(6, 13)], slots, "slot agrees")


@task("5.2")
def test_a_block_is_taken_at_the_border_and_not_before(exercise):
    for block_size, held in ((4, 3), (4, 4), (1, 2), (3, 2)):
        num_blocks = -(-held // block_size)
        pool = given_pool(exercise, num_blocks)
        table, ids = filled(exercise, pool, block_size, held)
        room = num_blocks * block_size - held
        if room:
            slots = table.append_tokens(room)
            expect(len(slots), room, "there is room in the last block")
            expect_table(table, ids, held + room, "no block was needed")
        claim = "the last block is full, and no block is free"
        call = table.append_tokens
        expect_refused(OutOfBlocksError, call, 1, table=table, pool=pool, claim=claim)


@task("5.2")
def test_no_tokens_need_nothing(exercise):
    pool = given_pool(exercise, 1)
    table = exercise.LogicalTable(pool, 4)
    expect(table.append_tokens(0), [], "no tokens, no slots")
    expect_table(table, [], 0, "nothing was appended")
    table.append_tokens(4)
    expect(table.append_tokens(0), [], "no tokens, no slots, also behind a full block")
    expect_table(table, [0], 4, "nothing was appended")


@task("5.2")
def test_a_negative_number_is_refused(exercise):
    pool = given_pool(exercise, 2)
    table, _ = filled(exercise, pool, 4, 6)
    call, claim = table.append_tokens, "-1 tokens make no sense"
    expect_refused(ValueError, call, -1, table=table, pool=pool, claim=claim)


@task("5.2")
def test_too_many_tokens_are_refused_and_no_block_is_taken(exercise):
    pool = given_pool(exercise, 3)
    table, ids = filled(exercise, pool, 4, 2)
    call, claim = table.append_tokens, "13 tokens need 3 blocks more, and 2 are free"
    expect_refused(OutOfBlocksError, call, 13, table=table, pool=pool, claim=claim)
    claim = "fewer tokens still go where they would have gone before"
    expect(table.append_tokens(2), [2, 3], claim)
    expect_table(table, ids, 4, "the only block is full now")


@task("5.2")
def test_a_shared_block_is_not_written(exercise):
    for n in (1, 2, 3, 100):
        pool = given_pool(exercise, 8, SCATTERED)
        table, ids = filled(exercise, pool, 4, 6)
        pool.share(ids[1])
        call = table.append_tokens
        claim = f"block {ids[1]} is partly filled, and somebody else reads it too"
        expect_refused(SharedBlockError, call, n, table=table, pool=pool, claim=claim)
    pool.free(ids[1])
    expect(table.append_tokens(1), [10], "the other holder has gone: write on")


@task("5.2")
def test_a_hole_is_not_written(exercise):
    for n in (2, 1, 5):
        pool = given_pool(exercise, 4)
        table = exercise.LogicalTable(pool, 4, [None], 3)
        call = table.append_tokens
        claim = "the last block has room for one token, but it is a hole"
        expect_refused(ValueError, call, n, table=table, pool=pool, claim=claim)


@task("5.2")
def test_a_new_block_comes_after_a_hole_without_room(exercise):
    pool = given_pool(exercise, 4)
    table = exercise.LogicalTable(pool, 4, [None], 4)
    expect(table.append_tokens(1), [0], "the hole has no room: block 0 is taken")


@task("5.2")
def test_appending_nothing_to_a_shared_block_is_allowed(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 6)
    pool.share(ids[1])
    expect(table.append_tokens(0), [], "append_tokens(0) writes nothing")
    expect_table(table, ids, 6, "nothing was appended")
    table = exercise.LogicalTable(pool, 4, [None], 3)
    expect(table.append_tokens(0), [], "append_tokens(0) writes nothing, in a hole too")


@task("5.2")
def test_full_blocks_may_be_shared(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 8)
    for block_id in ids:
        pool.share(block_id)
    claim = "both blocks are full, so nothing that others read is written"
    expect(table.append_tokens(1), [28], claim)
    expect(table.append_tokens(1), [29], "block 7 belongs to this table alone")


@task("5.2")
def test_two_tables_do_not_get_into_each_others_way(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    one, two = exercise.LogicalTable(pool, 2), exercise.LogicalTable(pool, 3)
    got = [one.append_tokens(1), two.append_tokens(2), one.append_tokens(2)]
    expect(got, [[10], [6, 7], [11, 14]], "tokens of two tables, in turns")
    expect_table(one, [5, 7], 3, "the first table")
    expect_table(two, [2], 2, "the second table")
    expect(pool._counts, [0, 0, 1, 0, 0, 1, 0, 1], "ref_counts: one holder each")


# 5.3


@task("5.3")
def test_several_blocks_are_translated(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 12)
    expect(table.translate_many([0]), [ids[0]], "translate_many([0])")
    got = table.translate_many([2, 0, 0, 1])
    expect(got, [ids[2], ids[0], ids[0], ids[1]], "in the order that was asked for")
    expect(table.translate_many([]), [], "translate_many([])")
    got = in_worker(exercise, f"{HELPERS}:translate_range", table, 0, 3)
    expect(got, ids, "translate_many(range(0, 3))")


@task("5.3")
def test_one_block_that_is_not_there_is_an_error(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    first, last = pool.allocate_many(2)
    table = exercise.LogicalTable(pool, 4, [first, None, last], 12)
    for bad in (3, -1):
        claim = f"the table has the logical blocks 0 … 2, no block {bad}"
        expect_raises(IndexError, table.translate_many, [0, bad], claim=claim)
    claim = "logical block 1 is a hole"
    expect_raises(ValueError, table.translate_many, [0, 1], claim=claim)
    got = table.translate_many([0, 2])
    expect(got, [first, last], "the hole is not among those that are asked for")


@task("5.3")
def test_slots_of_one_block(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, _ = filled(exercise, pool, 4, 4)
    expect(table.slots(0, 4), [20, 21, 22, 23], "all slots of block 5")
    expect(table.slots(1, 3), [21, 22], "positions 1 and 2")
    expect(table.slots(3, 4), [23], "the last position")


@task("5.3")
def test_slots_is_slot_for_each_position(exercise):
    for block_size, num_tokens in ((4, 10), (1, 3)):
        pool = given_pool(exercise, 8, SCATTERED)
        table, ids = filled(exercise, pool, block_size, num_tokens)
        expected = slots_of(ids, block_size, num_tokens)
        for start in range(num_tokens + 1):
            for stop in range(start, num_tokens + 1):
                claim = (
                    f"the slots of positions from {start} up to, not including, {stop}"
                )
                expect(table.slots(start, stop), expected[start:stop], claim)


@task("5.3")
def test_slots_of_positions_that_are_not_there(exercise):
    for bad in ((0, 7), (-1, 2), (4, 3), (7, 7), (-2, -1), (6, 8)):
        pool = given_pool(exercise, 8, SCATTERED)
        table, _ = filled(exercise, pool, 4, 6)
        claim = f"slots{bad}: 0 <= start <= stop <= 6 does not hold"
        expect_raises(IndexError, table.slots, *bad, claim=claim)


@task("5.3")
def test_slots_of_an_empty_table(exercise):
    table = exercise.LogicalTable(given_pool(exercise, 2), 4)
    expect(table.slots(0, 0), [], "no positions, no slots")
    claim = "an empty table has no position 0"
    expect_raises(IndexError, table.slots, 0, 1, claim=claim)


@task("5.3")
def test_slots_around_a_hole(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    first, last = pool.allocate_many(2)
    table = exercise.LogicalTable(pool, 4, [first, None, last], 10)
    expect(table.slots(1, 4), [21, 22, 23], "positions before the hole")
    expect(table.slots(8, 10), [8, 9], "positions behind the hole")
    for bad in [(3, 5), (7, 9), (0, 10), (5, 6)]:
        claim = "some of positions 4 … 7 are asked for, and they lie in a hole"
        expect_raises(ValueError, table.slots, *bad, claim=claim)


@task("5.3")
def test_no_positions_have_no_slots_and_ask_nothing_of_a_hole(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table = exercise.LogicalTable(pool, 4, [None, *pool.allocate_many(1)], 6)
    for position in (0, 2, 4, 6):
        expect(table.slots(position, position), [], "no positions, no slots")


@task("5.3")
def test_the_steps_of_slots_grow_with_the_blocks_not_with_the_tokens(exercise):
    pool = given_pool(exercise, 10)
    ids = pool.allocate_many(10)
    helper = f"{HELPERS}:steps_of_slots"
    kind = exercise.LogicalTable
    small, large = (
        measured(exercise, helper, kind, pool, size, ids, names=["slots"])["slots"]
        for size in (16, 1024)
    )
    if large > 2 * small + 100:
        fail(
            "slots takes as many steps of Python for ten large blocks as for ten small",
            expected=f"about {small:,} steps, as for 10 blocks of 16 tokens",
            got=f"{large:,} steps for 10 blocks of 1,024 tokens: a loop over tokens?",
        )


# 5.4


def rows_of(exercise, *all_ids, block_size=4):
    """A table of full blocks for each list of ids, in one pool."""
    held = sum(block_id is not None for ids in all_ids for block_id in ids)
    pool = given_pool(exercise, max(held, 1) + 4)
    pool.allocate_many(held)
    tables = []
    for ids in all_ids:
        table = exercise.LogicalTable(pool, block_size, ids, block_size * len(ids))
        tables.append(table)
    return tables


RECTANGLES = [
    ([[0]], [[0]]),
    ([[1, 0]], [[1, 0]]),
    ([[0], [2, 1]], [[0, -1], [2, 1]]),
    ([[2, 0, 1], [], [3]], [[2, 0, 1], [-1, -1, -1], [3, -1, -1]]),
    ([[None, 1], [0]], [[-1, 1], [0, -1]]),
    ([[0], [None, None, 1]], [[0, -1, -1], [-1, -1, 1]]),
    ([[1, None], [0]], [[1, -1], [0, -1]]),
    ([[], []], [[], []]),
    ([], []),
]


@task("5.4")
def test_tables_become_a_rectangle(exercise):
    for all_ids, expected in RECTANGLES:
        tables = rows_of(exercise, *all_ids)
        claim = f"tables with block_ids {all_ids} as one rectangle"
        if any(None in ids for ids in all_ids):
            claim += " (None is a hole; a hole is -1 in the matrix)"
        expect(exercise.pad_tables(tables), expected, claim)


@task("5.4")
def test_each_row_is_a_list_of_its_own(exercise):
    tables = rows_of(exercise, [], [], [0, 1])
    helper = f"{HELPERS}:pad_and_change"
    rows, after, held = in_worker(exercise, helper, exercise.pad_tables, tables)
    expect(rows, [[-1, -1], [-1, -1], [0, 1]], "two empty tables and one of two blocks")
    claim = "after rows[0][0] = 99 the other rows are as before"
    expect(after[1:], rows[1:], claim)
    tables = rows_of(exercise, [0, 1])
    rows, after, held = in_worker(exercise, helper, exercise.pad_tables, tables)
    expect(held, [[0, 1]], "after rows[0][0] = 99 the table is as before")


WALKS = [
    # block_tables, seq_lens, block_size, slots, in words
    ([[5]], [1], 4, [[20]], "one token in block 5"),
    ([[5, 2]], [6], 4, [[20, 21, 22, 23, 8, 9]], "6 tokens, 2 of them in block 2"),
    ([[5, 2]], [4], 4, [[20, 21, 22, 23]], "4 tokens are in block 5 alone"),
    ([[3, 0, 1]], [3], 1, [[3, 0, 1]], "blocks of one token"),
    ([[2, -1], [0, 1]], [2, 3], 2, [[4, 5], [0, 1, 2]], "a row with padding"),
    ([[2, 99]], [2], 2, [[4, 5]], "a row with any number behind its blocks"),
    ([[9, 9], [1, -1]], [0, 1], 3, [[], [3]], "a sequence without tokens"),
    (
        [[-1, 3]],
        [3],
        2,
        [[6]],
        "positions 0 and 1 lie in a hole: it is -1 in the matrix",
    ),
    (
        [[-1, 3, -1, 0]],
        [8],
        2,
        [[6, 7, 0, 1]],
        "two holes of 2 tokens each: a hole is -1 in the matrix",
    ),
    ([[-1, 2]], [3], 3, [[]], "all 3 tokens lie in a hole: it is -1 in the matrix"),
    (
        [[0, -1]],
        [4],
        3,
        [[0, 1, 2]],
        "the last token lies in a hole: it is -1 in the matrix",
    ),
    ([[]], [0], 3, [[]], "a row of length 0"),
    ([], [], 3, [], "no sequences"),
]


@task("5.4")
def test_the_rectangle_tells_the_slots(exercise):
    for matrix, seq_lens, block_size, slots, claim in WALKS:
        rewrite_history(exercise)
        expect(exercise.kernel_slots(matrix, seq_lens, block_size), slots, claim)


@task("5.4")
def test_there_and_back(exercise):
    """pad_tables, then kernel_slots: what `slot` says of each token."""
    tables = rows_of(exercise, [4, 0, 1], [], [None, 3], [2], block_size=3)
    matrix = exercise.pad_tables(tables)
    got = exercise.kernel_slots(matrix, [8, 0, 6, 1], 3)
    expected = [[12, 13, 14, 0, 1, 2, 3, 4], [], [9, 10, 11], [6]]
    expect(got, expected, "the slots of 8, 0, 6 and 1 tokens, from pad_tables alone")


# 5.5


@task("5.5")
def test_truncate_gives_back_the_blocks_behind(exercise):
    for kept in (9, 8, 10, 5, 4, 1, 0):
        pool = given_pool(exercise, 4)
        table, ids = filled(exercise, pool, 4, 10)
        table.truncate(kept)
        num_blocks = -(-kept // 4)
        expect_table(table, ids[:num_blocks], kept, f"{kept} of 10 tokens are kept")
        expected = [1] * num_blocks + [0] * (4 - num_blocks)
        expect(pool._counts, expected, "ref_counts: what holds no token is given back")


@task("5.5")
def test_truncate_to_a_length_that_makes_no_sense(exercise):
    for kept in (11, -1):
        pool = given_pool(exercise, 4)
        table, _ = filled(exercise, pool, 4, 10)
        call, claim = table.truncate, f"{kept} of 10 tokens cannot be kept"
        expect_refused(ValueError, call, kept, table=table, pool=pool, claim=claim)


@task("5.5")
def test_what_was_truncated_can_be_written_again(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, _ = filled(exercise, pool, 4, 10)
    table.truncate(5)
    expect(table.append_tokens(2), [9, 10], "block 2 has room behind position 4")
    table.truncate(4)
    expect_raises(IndexError, table.slot, 4, claim="4 tokens have no position 4")
    [slot] = table.append_tokens(1)
    claim = "the slot of the fifth token, in the block that was taken for it"
    expect(slot, 4 * table.translate(1), claim)


@task("5.5")
def test_free_gives_back_everything_once(exercise):
    pool = given_pool(exercise, 4)
    table, _ = filled(exercise, pool, 4, 10)
    table.free()
    expect_table(table, [], 0, "after free")
    expect(pool._counts, [0, 0, 0, 0], "ref_counts: all blocks are free")
    table.free()
    expect_table(table, [], 0, "free once more has nothing to give back")
    expect(len(table.append_tokens(5)), 5, "a table may be used again after free")
    expect(pool.num_free, 2, "num_free: 5 tokens lie in 2 of 4 blocks")


@task("5.5")
def test_a_block_that_others_hold_stays_in_use(exercise):
    pool = given_pool(exercise, 4)
    table, ids = filled(exercise, pool, 4, 8)
    pool.share(ids[0])
    table.free()
    expect(pool._counts, [1, 0, 0, 0], "ref_counts: the other holder of block 0 stays")


@task("5.5")
def test_the_last_block_is_given_back_first(exercise):
    for name in ("free", "truncate", "drop_before"):
        pool = given_pool(exercise, 8, SCATTERED)
        table, ids = filled(exercise, pool, 4, 12)
        if name == "free":
            table.free()
        elif name == "truncate":
            table.truncate(0)
        else:
            table.drop_before(12)
        claim = f"{name} gives back from the last block to the first"
        expect(pool._given_back, ids[::-1], claim)


@task("5.5")
def test_drop_before_makes_holes_of_what_has_passed(exercise):
    for position in (0, 3, 4, 5, 8, 9, 10):
        pool = given_pool(exercise, 4)
        table, ids = filled(exercise, pool, 4, 10)
        table.drop_before(position)
        passed = position // 4
        expected = [None] * passed + ids[passed:]
        claim = f"a hole is what stands before {position} as a whole; all tokens count"
        expect_table(table, expected, 10, claim)
        expected = [0] * passed + [1] * (3 - passed) + [0]
        expect(pool._counts, expected, "ref_counts: what has passed is given back")
        if passed:
            claim = "position 0 lies in a hole"
            expect_raises(ValueError, table.slot, 0, claim=claim)
        expect(table.slot(9), 4 * ids[2] + 1, "the last token is where it was")


@task("5.5")
def test_drop_before_a_position_that_is_not_there(exercise):
    for position in (11, -1):
        pool = given_pool(exercise, 4)
        table, _ = filled(exercise, pool, 4, 10)
        call, claim = table.drop_before, f"0 <= {position} <= 10 does not hold"
        expect_refused(IndexError, call, position, table=table, pool=pool, claim=claim)


@task("5.5")
def test_a_window_slides_on(exercise):
    pool = given_pool(exercise, 3)
    table, _ = filled(exercise, pool, 2, 4)
    for position in (2, 2, 3):
        table.drop_before(position)
        expect_table(table, [None, 1], 4, "block 0 is given back once")
    expect(table.append_tokens(2), [0, 1], "block 0 comes again, at the end")
    table.drop_before(4)
    expect_table(table, [None, None, 0], 6, "the second block has passed as well")
    expect(pool._counts, [1, 0, 0], "ref_counts: one block is enough for the window")
    table.free()
    expect(pool.num_free, 3, "num_free: a hole has nothing to give back")


@task("5.5")
def test_truncate_may_not_end_inside_a_hole(exercise):
    for kept in (7, 5, 1):
        pool = given_pool(exercise, 4)
        table, _ = filled(exercise, pool, 4, 10)
        table.drop_before(8)
        call = table.truncate
        claim = f"the block of position {kept - 1} would be the last, and is a hole"
        expect_refused(ValueError, call, kept, table=table, pool=pool, claim=claim)
    pool = given_pool(exercise, 4)
    table, _ = filled(exercise, pool, 4, 10)
    table.drop_before(8)
    table.truncate(8)
    expect_table(table, [None, None], 8, "the last block is full: a hole does no harm")
    table.truncate(4)
    expect_table(table, [None], 4, "one hole is left")
    expect(len(table.append_tokens(1)), 1, "the next token gets a block of its own")
    expect(pool.num_free, 3, "num_free: that block is the only one in use")


@task("5.5")
def test_replace_puts_another_block_in_place(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    table, ids = filled(exercise, pool, 4, 6)
    new = pool.allocate()
    table.replace(1, new)
    expect_table(table, [ids[0], new], 6, f"block {new} in place of block {ids[1]}")
    counts = [int(block_id in (ids[0], new)) for block_id in range(8)]
    expect(pool._counts, counts, "ref_counts: one reference taken over, one given back")
    expect(table.slot(5), 4 * new + 1, "the last token lies in the new block")


@task("5.5")
def test_replace_of_a_shared_block_leaves_it_to_the_others(exercise):
    pool = given_pool(exercise, 3)
    table, ids = filled(exercise, pool, 4, 4)
    pool.share(ids[0])
    table.replace(0, pool.allocate())
    expect(pool._counts, [1, 1, 0], "ref_counts: the other holder keeps block 0")


@task("5.5")
def test_only_what_is_there_can_be_replaced(exercise):
    pool = given_pool(exercise, 8, SCATTERED)
    first, last, new = pool.allocate_many(3)
    table = exercise.LogicalTable(pool, 4, [first, None, last], 12)
    call = table.replace
    for bad in (3, -1):
        claim = f"the table has the logical blocks 0 … 2, no block {bad}"
        expect_refused(IndexError, call, bad, new, table=table, pool=pool, claim=claim)
    claim = "logical block 1 is a hole: there is nothing to give back"
    expect_refused(ValueError, call, 1, new, table=table, pool=pool, claim=claim)


@task("5.5")
def test_an_id_that_stands_twice_is_given_back_twice(exercise):
    pool = given_pool(exercise, 3)
    block = pool.allocate()
    pool.share(block)
    table = exercise.LogicalTable(pool, 4, [block, block], 8)
    table.truncate(4)
    expect(pool._counts, [1, 0, 0], "ref_counts: one of two places was given back")
    pool.share(block)
    table = exercise.LogicalTable(pool, 4, [block, block], 8)
    table.free()
    expect(pool._counts, [0, 0, 0], "ref_counts: the table held the block twice")


@task("5.5")
def test_an_error_of_the_allocator_leaves_all_as_it_was(exercise):
    # Somebody else has given back a block that was not theirs; it is noticed here.
    for name in ("free", "truncate", "drop_before", "replace"):
        pool = given_pool(exercise, 4)
        table, ids = filled(exercise, pool, 4, 12)
        new = pool.allocate()
        pool.free(ids[0])
        calls = {
            "free": [table.free],
            "truncate": [table.truncate, 0],
            "drop_before": [table.drop_before, 12],
            "replace": [table.replace, 0, new],
        }
        claim = f"block {ids[0]} was given back behind the table's back"
        error, call = DoubleFreeError, calls[name]
        expect_refused(error, *call, table=table, pool=pool, claim=claim)


class Books:
    """What must be true of a table in blocks of 3, worked out token by token."""

    def __init__(self, exercise):
        self.pool = given_pool(exercise, 4, (2, 0, 3))
        self.table = exercise.LogicalTable(self.pool, 3)
        self.tokens = []  # the slot of each token, None in a hole

    @property
    def ids(self):
        firsts = self.tokens[::3]
        return [None if slot is None else slot // 3 for slot in firsts]

    def refused(self, error, claim, call, *args):
        table, pool = self.table, self.pool
        expect_refused(error, call, *args, table=table, pool=pool, claim=claim)

    def append_tokens(self, n):
        call, room = self.table.append_tokens, -len(self.tokens) % 3
        if -(-(n - room) // 3) > self.pool.num_free:
            return self.refused(OutOfBlocksError, "too few blocks are free", call, n)
        slots = call(n)
        expect(len(slots), n, f"append_tokens({n}) gives {n} slots")
        self.tokens += slots
        return self.agree()

    def truncate(self, kept):
        call = self.table.truncate
        if kept > len(self.tokens) or (kept % 3 and self.tokens[kept - 1] is None):
            claim = f"{kept} tokens are too many, or would end inside a hole"
            return self.refused(ValueError, claim, call, kept)
        call(kept)
        del self.tokens[kept:]
        return self.agree()

    def drop_before(self, position):
        call = self.table.drop_before
        if position > len(self.tokens):
            claim = f"there are only {len(self.tokens)} tokens"
            return self.refused(IndexError, claim, call, position)
        call(position)
        passed = position // 3 * 3
        self.tokens[:passed] = [None] * passed
        return self.agree()

    def agree(self):
        ids, table = self.ids, self.table
        expect_table(table, ids, len(self.tokens), "after these calls")
        counts = [int(block_id in ids) for block_id in range(4)]
        expect(self.pool._counts, counts, "ref_counts, after these calls")
        first = sum(slot is None for slot in self.tokens)
        got = table.slots(first, len(self.tokens))
        expect(got, self.tokens[first:], "the slots behind the holes, as appended")


@task("5.5")
def test_the_books_agree_after_any_calls(exercise):
    """The same random calls each time; the report has the fewest that still fail."""

    def choices(chance):
        name = chance.choice(["append_tokens"] * 2 + ["truncate", "drop_before"])
        return name, chance.randrange(8)

    def run(calls):
        books = Books(exercise)
        for name, *args in calls:
            getattr(books, name)(*args)

    walk(choices, run, num_walks=15, length=15)
