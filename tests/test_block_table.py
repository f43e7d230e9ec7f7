import pytest

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import DoubleFreeError, OutOfBlocksError, SharedBlockError
from paged_attention.sharing import fork


def table_of(num_tokens: int, block_size: int = 4, num_blocks: int = 6) -> BlockTable:
    table = BlockTable(BlockAllocator(num_blocks), block_size)
    table.append_tokens(num_tokens)
    return table


def state_of(table: BlockTable) -> object:
    pool = table.allocator
    counts = [pool.ref_count(block_id) for block_id in range(pool.num_blocks)]
    return table.block_ids, table.num_tokens, counts, pool.free_block_ids


def scattered() -> BlockTable:
    """32 tokens in blocks 5 and 8 of a pool whose next free block is 2."""
    pool = BlockAllocator(10)
    pool.allocate_many(10)
    pool.free(2)
    return BlockTable(pool, 16, [5, 8], 32)


def test_one_more_token_makes_32_grow_by_a_block_and_nobody_above_notices():
    table = scattered()
    assert table.append_tokens(1) == [2 * 16]
    assert table.block_ids == [5, 8, 2]
    assert table.slots(14, 18) == [5 * 16 + 14, 5 * 16 + 15, 8 * 16, 8 * 16 + 1]
    assert table.slot(32) == 32


@pytest.mark.parametrize("block_size", [1, 3, 4, 16])
def test_slots_are_the_slots_one_by_one(block_size):
    pool = BlockAllocator(40)
    taken = pool.allocate_many(40)
    pool.free_many(taken[::2] + taken[1::2])  # so that ids come in no simple order
    table = BlockTable(pool, block_size)
    appended = table.append_tokens(37) if block_size > 1 else table.append_tokens(29)
    one_by_one = [
        table.block_ids[p // block_size] * block_size + p % block_size
        for p in range(table.num_tokens)
    ]
    assert appended == one_by_one
    for start in range(table.num_tokens + 1):
        for stop in range(start, table.num_tokens + 1):
            assert table.slots(start, stop) == one_by_one[start:stop]
    assert [table.slot(p) for p in range(table.num_tokens)] == one_by_one


@pytest.mark.parametrize(
    ("num_tokens", "more", "new_blocks"), [(3, 1, 0), (4, 1, 1), (0, 0, 0), (4, 5, 2)]
)
def test_a_block_is_taken_only_when_the_last_one_is_full(num_tokens, more, new_blocks):
    table = table_of(num_tokens)
    before = table.num_blocks
    assert len(table.append_tokens(more)) == more
    assert table.num_blocks == before + new_blocks


def test_the_last_slot_of_a_full_pool_can_be_filled_and_one_more_cannot():
    table = table_of(3, num_blocks=1)
    assert table.append_tokens(1) == [3]
    before = state_of(table)
    with pytest.raises(OutOfBlocksError):
        table.append_tokens(1)
    assert state_of(table) == before


def test_three_prompts_of_16_leave_3_of_6_blocks():
    pool = BlockAllocator(6)
    for _ in range(3):
        BlockTable(pool, 16).append_tokens(16)
    assert pool.num_free == 3


def test_append_is_all_or_nothing():
    table = table_of(5, num_blocks=3)
    before = state_of(table)
    with pytest.raises(OutOfBlocksError, match="2 blocks were asked for, 1 of 3"):
        table.append_tokens(8)
    assert state_of(table) == before


def test_a_shared_partly_filled_tail_is_not_written():
    table = table_of(5)
    other = fork(table)
    before = state_of(table)
    with pytest.raises(SharedBlockError, match="block 1 has 2 holders"):
        table.append_tokens(1)
    assert state_of(table) == before
    other.free()
    assert table.append_tokens(1) == [5]


def test_a_shared_full_tail_is_no_hindrance():
    table = table_of(8)
    fork(table)
    assert table.append_tokens(1) == [8]
    assert table.append_tokens(0) == []


@pytest.mark.parametrize("position", [-1, 5, 8])
def test_a_position_outside_the_table_is_an_index_error(position):
    with pytest.raises(IndexError, match=f"in 0 … 4, got {position}"):
        table_of(5).slot(position)


@pytest.mark.parametrize("logical_block", [-1, 2])
def test_a_logical_block_outside_the_table_is_an_index_error(logical_block):
    table = table_of(5)
    with pytest.raises(IndexError, match=f"in 0 … 1, got {logical_block}"):
        table.translate(logical_block)
    with pytest.raises(IndexError):
        table.translate_many([0, logical_block])


@pytest.mark.parametrize(("start", "stop"), [(2, 1), (0, 6), (-1, 2)])
def test_a_range_outside_the_table_is_an_index_error(start, stop):
    with pytest.raises(IndexError):
        table_of(5).slots(start, stop)


def test_translate_many_is_translate_for_each():
    table = scattered()
    assert table.translate_many([1, 0, 1]) == [8, 5, 8]
    assert [table.translate(0), table.translate(1)] == [5, 8]


def test_block_ids_is_a_copy():
    table = table_of(5)
    table.block_ids.append(7)
    assert table.num_blocks == 2


@pytest.mark.parametrize("kept", [0, 1, 4, 5, 8, 9])
def test_truncate_frees_the_blocks_left_empty(kept):
    table = table_of(9)
    expected = table.slots(0, kept)
    table.truncate(kept)
    assert table.slots(0, kept) == expected
    assert table.num_blocks == -(-kept // 4)
    assert table.allocator.num_free == 6 - table.num_blocks
    table.allocator.check([table])


@pytest.mark.parametrize("num_tokens", [-1, 10])
def test_truncate_to_a_length_that_it_never_had_is_refused(num_tokens):
    table = table_of(9)
    before = state_of(table)
    with pytest.raises(ValueError, match=f"in 0 … 9, got {num_tokens}"):
        table.truncate(num_tokens)
    assert state_of(table) == before


@pytest.mark.parametrize(
    ("position", "holes"), [(0, 0), (3, 0), (4, 1), (7, 1), (8, 2), (9, 2)]
)
def test_drop_before_gives_back_whole_blocks_and_moves_nothing(position, holes):
    table = table_of(9)
    before = table.block_ids
    table.drop_before(position)
    assert table.block_ids == [None] * holes + before[holes:]
    assert (table.num_blocks, table.num_tokens) == (3, 9)
    assert table.slots(holes * 4, 9) == list(range(holes * 4, 9))
    table.allocator.check([table])


def test_drop_before_again_frees_nothing_twice():
    table = table_of(9)
    table.drop_before(4)
    table.drop_before(8)
    assert table.allocator.num_free == 5
    table.allocator.check([table])


@pytest.mark.parametrize("position", [-1, 10])
def test_drop_before_outside_the_table_is_an_index_error(position):
    with pytest.raises(IndexError, match=f"in 0 … 9, got {position}"):
        table_of(9).drop_before(position)


def test_a_hole_says_that_it_is_one():
    table = table_of(9)
    table.drop_before(4)
    for ask in (
        lambda: table.translate(0),
        lambda: table.translate_many([1, 0]),
        lambda: table.slot(3),
        lambda: table.slots(3, 5),
        lambda: table.replace(0, 5),
        lambda: table.truncate(2),
    ):
        before = state_of(table)
        with pytest.raises(ValueError, match="logical block 0 was given back"):
            ask()
        assert state_of(table) == before
    table.truncate(4)  # the hole stays, and nothing in it is asked for
    assert table.block_ids == [None]
    assert table.append_tokens(1)


def test_a_dropped_full_tail_is_no_hindrance_to_the_next_block():
    table = table_of(8)
    table.drop_before(8)
    assert table.block_ids == [None, None]
    table.append_tokens(1)
    table.allocator.check([table])


def test_free_gives_back_everything_once_tail_first():
    table = table_of(9)
    table.drop_before(4)
    table.free()
    assert table.allocator.num_free == 6
    assert (table.block_ids, table.num_tokens) == ([], 0)
    table.free()  # nothing is held, so nothing happens
    table.allocator.check([table])
    assert table.allocator.free_block_ids[:3] == [1, 2, 0]  # block 0 was dropped first


def test_replace_takes_over_one_reference_and_gives_up_the_other():
    table = table_of(5)
    other = fork(table)
    new = table.allocator.allocate()
    table.replace(1, new)
    assert (table.block_ids, other.block_ids) == ([0, new], [0, 1])
    table.allocator.check([table, other])


def test_a_table_must_list_the_blocks_that_its_tokens_need():
    pool = BlockAllocator(4)
    with pytest.raises(ValueError, match="5 tokens need 2 blocks of 4, got 1"):
        BlockTable(pool, 4, [0], 5)
    with pytest.raises(ValueError, match="4 tokens need 1 blocks of 4, got 2"):
        BlockTable(pool, 4, [0, 1], 4)


@pytest.mark.parametrize("block_size", [4.0, 0, True, None])
def test_a_block_size_is_a_whole_number(block_size):
    with pytest.raises(
        ValueError, match=f"block_size must be .* >= 1, got {block_size}"
    ):
        BlockTable(BlockAllocator(4), block_size)


def test_an_empty_table_says_that_it_is_empty():
    table = table_of(0)
    for ask in (lambda: table.slot(0), lambda: table.slots(0, 1)):
        with pytest.raises(IndexError, match="that is not empty, got 0 … 0"):
            ask()
    with pytest.raises(IndexError, match="that is not empty, got 0"):
        table.translate(0)
    assert table.slots(0, 0) == []


def test_a_negative_count_of_tokens_is_refused():
    with pytest.raises(ValueError, match="n must be >= 0, got -1"):
        table_of(5).append_tokens(-1)


def test_one_block_twice_in_a_table_is_counted_twice_and_freed_once():
    pool = BlockAllocator(2)
    block = pool.allocate()
    pool.share(block)
    table = BlockTable(pool, 4, [block, block], 8)
    other = fork(table)
    assert pool.ref_count(block) == 4
    pool.check([table, other])
    table.free()
    other.free()
    pool.check([])
    assert pool.num_free == 2
    with pytest.raises(DoubleFreeError):
        pool.free(block)
