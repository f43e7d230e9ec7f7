import pytest

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import OutOfBlocksError, SharedBlockError
from paged_attention.sharing import copy_on_write, fork


class OtherTable(BlockTable):
    """A learner's table is another class."""


def table_of(num_tokens: int, num_blocks: int = 6) -> BlockTable:
    table = BlockTable(BlockAllocator(num_blocks), 4)
    table.append_tokens(num_tokens)
    return table


def test_a_fork_counts_every_block_once_more():
    table = table_of(5)
    other = fork(table)
    assert other.block_ids == table.block_ids
    assert [table.allocator.ref_count(b) for b in table.block_ids] == [2, 2]
    table.allocator.check([table, other])


def test_a_fork_is_a_table_of_the_same_class():
    assert type(fork(OtherTable(BlockAllocator(1), 4))) is OtherTable


def test_what_is_appended_to_a_table_does_not_lengthen_its_fork():
    table = table_of(4)
    other = fork(table)
    table.append_tokens(3)
    assert (other.num_tokens, other.num_blocks) == (4, 1)
    table.allocator.check([table, other])


@pytest.mark.parametrize("first_to_go", [0, 1])
def test_a_block_that_one_of_two_gave_up_is_not_handed_out(first_to_go):
    table = table_of(4)
    tables = [table, fork(table)]
    shared = table.block_ids[0]
    pool = table.allocator
    tables.pop(first_to_go).free()
    assert pool.ref_count(shared) == 1
    tables[0].append_tokens(1)
    others = pool.allocate_many(pool.num_free)
    assert shared not in others


def test_a_fork_of_a_table_with_holes_keeps_them():
    table = table_of(9)
    table.drop_before(4)
    other = fork(table)
    assert other.block_ids == [None, 1, 2]
    table.allocator.check([table, other])


def test_copy_on_write_returns_the_pair_and_leaves_the_other_table_alone():
    table = table_of(6)
    other = fork(table)
    assert copy_on_write(table) == [(1, 2)]
    assert (table.block_ids, other.block_ids) == ([0, 2], [0, 1])
    table.allocator.check([table, other])
    assert table.append_tokens(1) == [2 * 4 + 2]
    assert copy_on_write(other) == []  # it holds block 1 alone now


@pytest.mark.parametrize("num_tokens", [0, 4, 8])
def test_a_full_tail_needs_no_copy(num_tokens):
    table = table_of(num_tokens)
    fork(table)
    assert copy_on_write(table) == []


def test_copy_on_write_without_a_free_block_changes_nothing():
    table = table_of(6, num_blocks=2)
    other = fork(table)
    with pytest.raises(OutOfBlocksError):
        copy_on_write(table)
    assert table.block_ids == other.block_ids == [0, 1]
    table.allocator.check([table, other])
    with pytest.raises(SharedBlockError):
        table.append_tokens(1)


def test_a_fork_that_fails_halfway_counts_nothing():
    table = table_of(9)
    pool, share, calls = table.allocator, table.allocator.share, []

    def share_that_fails_the_third_time(block_id):
        calls.append(block_id)
        if len(calls) == 3:
            raise RuntimeError("third share")
        share(block_id)

    pool.share = share_that_fails_the_third_time
    with pytest.raises(RuntimeError, match="third share"):
        fork(table)
    pool.check([table])
