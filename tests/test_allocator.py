import signal
import sys

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from pool_model import PoolModel

from paged_attention.allocator import BlockAllocator
from paged_attention.block import KVBlock
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


def state_of(pool: BlockAllocator) -> tuple[list[int], list[int]]:
    counts = [pool.ref_count(block_id) for block_id in range(pool.num_blocks)]
    return counts, pool.free_block_ids


class Table:
    """The least that `check` needs of a block table."""

    def __init__(self, *block_ids: int | None) -> None:
        self.block_ids = list(block_ids)


def test_a_new_pool_is_all_free_and_hands_out_block_0_first():
    pool = BlockAllocator(3)
    assert pool.num_blocks == pool.num_free == 3
    assert pool.free_block_ids == [0, 1, 2]
    assert pool.allocate() == 0
    assert pool.allocate_many(2) == [1, 2]


def test_the_block_freed_last_is_handed_out_first():
    pool = BlockAllocator(4)
    pool.allocate_many(4)
    pool.free_many([2, 0])
    assert pool.allocate_many(2) == [0, 2]


def test_an_empty_pool_raises_and_stays_as_it_was():
    pool = BlockAllocator(1)
    pool.allocate()
    before = state_of(pool)
    with pytest.raises(OutOfBlocksError, match="all 1 blocks are in use"):
        pool.allocate()
    assert state_of(pool) == before


def test_allocate_many_takes_all_or_nothing():
    pool = BlockAllocator(3)
    pool.allocate()
    before = state_of(pool)
    with pytest.raises(OutOfBlocksError, match="3 blocks were asked for, 2 of 3"):
        pool.allocate_many(3)
    assert state_of(pool) == before
    assert pool.allocate_many(0) == []
    assert len(pool.allocate_many(2)) == 2


def test_a_shared_block_is_free_only_after_its_last_holder_gave_it_up():
    pool = BlockAllocator(2)
    block = pool.allocate()
    pool.share(block)
    pool.free(block)
    assert (pool.ref_count(block), pool.num_free) == (1, 1)
    pool.free(block)
    assert (pool.ref_count(block), pool.num_free) == (0, 2)


def test_freeing_twice_in_one_call_is_fine_for_a_block_with_two_holders():
    pool = BlockAllocator(2)
    block = pool.allocate()
    pool.share(block)
    pool.free_many([block, block])
    assert pool.free_block_ids == [0, 1]
    pool.check()


@pytest.mark.parametrize("entries", [[1, 1], [0, 1, 0, 1], [2], [1, 2], [0, 0, 0]])
def test_one_free_too_many_raises_and_frees_nothing(entries):
    pool = BlockAllocator(3)
    pool.allocate_many(2)
    pool.share(0)
    before = state_of(pool)
    with pytest.raises(DoubleFreeError, match="is free already"):
        pool.free_many(entries)
    assert state_of(pool) == before
    with pytest.raises(DoubleFreeError, match="block 2 is free already"):
        pool.free(2)
    assert state_of(pool) == before


def test_free_many_takes_any_iterable_and_undoes_it_too():
    pool = BlockAllocator(3)
    pool.allocate_many(3)
    pool.free_many(i for i in (0, 1))
    before = state_of(pool)
    with pytest.raises(DoubleFreeError):
        pool.free_many(i for i in (2, 2))
    assert state_of(pool) == before


@pytest.mark.parametrize("block_id", [-1, 3, 10**9])
def test_a_block_that_does_not_exist_is_refused_by_its_number(block_id):
    pool = BlockAllocator(3)
    pool.allocate_many(3)
    before = state_of(pool)
    calls = [pool.free, pool.share, pool.ref_count, lambda i: pool.free_many([0, i])]
    for call in calls:
        with pytest.raises(ValueError, match=f"be in 0 … 2, got {block_id}$") as caught:
            call(block_id)
        assert not isinstance(caught.value, DoubleFreeError)
    assert state_of(pool) == before


def test_a_free_block_cannot_be_shared():
    pool = BlockAllocator(2)
    with pytest.raises(ValueError, match="block 1 is free, so it cannot be shared"):
        pool.share(1)
    assert state_of(pool) == ([0, 0], [0, 1])


@pytest.mark.parametrize("num_blocks", [0, -3])
def test_a_pool_without_blocks_is_refused(num_blocks):
    with pytest.raises(ValueError, match=f"num_blocks must be >= 1, got {num_blocks}"):
        BlockAllocator(num_blocks)


def test_a_negative_number_of_blocks_is_refused():
    pool = BlockAllocator(2)
    with pytest.raises(ValueError, match="n must be >= 0, got -1"):
        pool.allocate_many(-1)
    assert pool.num_free == 2


@pytest.mark.parametrize("n", [2.5, "2", None])
def test_a_number_of_blocks_that_is_none_is_refused(n):
    pool = BlockAllocator(3)
    with pytest.raises(ValueError, match=f"n must be an int, got {n!r}"):
        pool.allocate_many(n)
    assert pool.allocate_many(3) == [0, 1, 2]


class Interrupted(int):
    """A block id at which Ctrl-C is pressed."""

    def __hash__(self):
        raise KeyboardInterrupt


class InterruptedList(list):
    """A list in which Ctrl-C is pressed just after something was appended."""

    def append(self, item):
        super().append(item)
        raise KeyboardInterrupt


def test_ctrl_c_in_free_many_changes_nothing():
    pool = BlockAllocator(4)
    held = pool.allocate_many(3)
    pool.share(1)
    with pytest.raises(KeyboardInterrupt):
        pool.free_many([0, 1, 1, Interrupted(2)])
    assert [pool.ref_count(block_id) for block_id in range(4)] == [1, 2, 1, 0]
    pool._free = InterruptedList(pool._free)
    with pytest.raises(KeyboardInterrupt):
        pool.free_many([1, 2, 0])
    assert [pool.ref_count(block_id) for block_id in range(4)] == [1, 2, 1, 0]
    assert pool.free_block_ids == [3]
    pool.check([Table(*held), Table(1)])


def test_allocation_goes_through_the_kvblock_records():
    pool = BlockAllocator(3)
    records = [pool._blocks[block_id] for block_id in range(3)]
    assert all(type(record) is KVBlock for record in records)
    block = pool.allocate()
    assert [record.ref_count for record in records] == [1, 0, 0]
    records[block].ref_count = 5  # the record is the count, not a copy of it
    assert pool.ref_count(block) == 5
    records[block].ref_count = 1
    pool.free(block)
    assert pool._free[-1] is records[block]  # the list holds the records themselves


def test_check_finds_each_way_to_break_the_pool():
    def broken(break_it) -> str:
        pool = BlockAllocator(3)
        pool.allocate()
        break_it(pool)
        with pytest.raises(AssertionError) as caught:
            pool.check()
        return str(caught.value)

    def lose_a_block(pool):
        pool._free.pop()

    def list_a_block_twice(pool):
        pool._free.append(pool._free[0])

    def list_a_block_in_use(pool):
        pool._free.append(pool._blocks[0])

    def count_below_zero(pool):
        pool._blocks[1].ref_count = -1

    assert "block 1 has ref_count 0 and stands 0 times" in broken(lose_a_block)
    assert "block 2 has ref_count 0 and stands 2 times" in broken(list_a_block_twice)
    assert "block 0 has ref_count 1 and stands 1 times" in broken(list_a_block_in_use)
    assert "block 1 has ref_count -1" in broken(count_below_zero)


def test_check_compares_the_counts_with_the_tables():
    pool = BlockAllocator(4)
    pool.allocate_many(2)
    pool.share(1)
    pool.check([Table(0, 1), Table(1, None)])
    with pytest.raises(AssertionError, match=r"block 1 has ref_count 2, .* 1 times"):
        pool.check([Table(0, 1)])
    with pytest.raises(AssertionError, match=r"block 2 has ref_count 0, .* 1 times"):
        pool.check([Table(0, 1), Table(1, 2)])
    with pytest.raises(AssertionError, match=r"block 0 has ref_count 1, .* 0 times"):
        pool.check([])  # no table at all: so somebody leaks


class AllocatorMachine(RuleBasedStateMachine):
    """Any sequence of calls, valid or not, against the model."""

    @initialize(num_blocks=st.integers(1, 6))
    def make(self, num_blocks):
        self.model = PoolModel(BlockAllocator(num_blocks))

    def block(self, number: int) -> int:
        return number % len(self.model.counts)

    @rule()
    def allocate(self):
        self.model.allocate()

    @rule(n=st.integers(0, 7))
    def allocate_many(self, n):
        self.model.allocate_many(n)

    @rule(number=st.integers(0, 5))
    def share(self, number):
        self.model.share(self.block(number))

    @rule(number=st.integers(0, 5))
    def free(self, number):
        self.model.free(self.block(number))

    @rule(numbers=st.lists(st.integers(0, 5), max_size=7))
    def free_many(self, numbers):
        self.model.free_many([self.block(number) for number in numbers])

    @invariant()
    def agrees_with_the_model(self):
        self.model.check()


TestAnySequenceOfCalls = AllocatorMachine.TestCase
TestAnySequenceOfCalls.settings = settings(max_examples=80, derandomize=True)


@pytest.mark.skipif(sys.platform == "win32", reason="there is no such timer")
def test_a_ctrl_c_never_keeps_the_lock():
    """Real interrupts at 300 moments nobody chose; whoever keeps the lock hangs."""

    def interrupt(number, frame):
        raise KeyboardInterrupt

    pool = BlockAllocator(64)
    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for _ in range(300):
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.0003)
                while True:
                    pool.free_many(pool.allocate_many(2))
            except KeyboardInterrupt:
                assert not pool._lock.locked()
            # It may have come between the two calls: then the blocks are the test's.
            pool.free_many([i for i in range(64) if pool.ref_count(i)])
            pool.check([])
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
