import random
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.config import CacheConfig
from paged_attention.contiguous import (
    BuddyAllocator,
    Reservation,
    Waste,
    reserve_exact,
    reserve_max,
    reserve_power_of_two,
)
from paged_attention.errors import DoubleFreeError, OutOfBlocksError
from paged_attention.kv_cache import KVCache


@pytest.mark.parametrize("num_tokens", [1, 2, 3, 7, 16, 100, 15_728])
def test_a_pool_of_any_size_is_cut_into_aligned_powers_of_two(num_tokens):
    pool = BuddyAllocator(num_tokens)
    end = 0
    for start, size in pool.free_regions:
        assert (start, size & (size - 1), start % size) == (end, 0, 0)
        end += size
    assert end == num_tokens == pool.num_tokens == pool.num_free


def test_a_region_is_the_next_power_of_two_at_a_multiple_of_its_size():
    pool = BuddyAllocator(64)
    starts = [pool.allocate(n) for n in (1, 3, 5, 16, 9)]
    assert starts == [0, 4, 8, 16, 32]
    assert [pool.size(start) for start in starts] == [1, 4, 8, 16, 16]


def test_the_smallest_free_region_that_suffices_is_taken_the_lowest_first():
    pool = BuddyAllocator(64)
    small, _, large, _ = (pool.allocate(n) for n in (8, 8, 16, 32))
    pool.free(large)
    pool.free(small)
    assert pool.free_regions == [(0, 8), (16, 16)]
    assert pool.allocate(5) == 0
    assert pool.allocate(5) == 16
    assert pool.free_regions == [(24, 8)]


def test_enough_places_in_two_pieces_are_not_enough():
    pool = BuddyAllocator(64)
    starts = [pool.allocate(16) for _ in range(4)]
    pool.free(starts[0])
    pool.free(starts[2])
    assert (pool.num_free, pool.largest_free) == (32, 16)
    assert pool.can_allocate(16)
    assert not pool.can_allocate(17)
    with pytest.raises(OutOfBlocksError, match=r"largest free one is 16 \(32 places"):
        pool.allocate(17)
    assert pool.free_regions == [(0, 16), (32, 16)]


def test_two_free_halves_that_are_no_buddies_stay_apart():
    pool = BuddyAllocator(64)
    starts = [pool.allocate(16) for _ in range(4)]
    pool.free(starts[1])
    pool.free(starts[2])  # neighbours, but of different parents
    assert pool.free_regions == [(16, 16), (32, 16)]
    pool.free(starts[0])
    assert pool.free_regions == [(0, 32), (32, 16)]


def test_a_refused_call_changes_nothing():
    pool = BuddyAllocator(8)
    start = pool.allocate(3)
    before = pool.free_regions
    for n in (0, -1):
        with pytest.raises(ValueError, match=f"got {n}"):
            pool.allocate(n)
    with pytest.raises(DoubleFreeError, match="at 4"):
        pool.free(4)
    with pytest.raises(ValueError, match="at 4"):
        pool.size(4)
    assert pool.free_regions == before
    pool.free(start)
    with pytest.raises(DoubleFreeError, match="at 0"):
        pool.free(start)
    with pytest.raises(ValueError, match="got 0"):
        BuddyAllocator(0)


@given(st.integers(1, 80), st.integers(0, 2**32))
def test_regions_never_overlap_and_join_again_when_all_are_freed(num_tokens, seed):
    rng = random.Random(seed)
    pool = BuddyAllocator(num_tokens)
    at_first, in_use = pool.free_regions, {}
    for _ in range(40):
        if in_use and rng.random() < 0.4:
            start = rng.choice(list(in_use))
            del in_use[start]
            pool.free(start)
        else:
            n = rng.randint(1, num_tokens)
            if not pool.can_allocate(n):
                with pytest.raises(OutOfBlocksError):
                    pool.allocate(n)
                continue
            start = pool.allocate(n)
            assert n <= pool.size(start) < 2 * n
            in_use[start] = pool.size(start)
        free = pool.free_regions
        covered = sorted([*in_use.items(), *free])
        assert all(a + size == b for (a, size), (b, _) in pairwise(covered))
        assert covered[0][0] == 0
        assert sum(covered[-1]) == num_tokens
        assert not any((start ^ size, size) in free for start, size in free)
    for start in in_use:
        pool.free(start)
    assert pool.free_regions == at_first


@pytest.mark.parametrize(
    ("policy", "places"),
    [(reserve_exact, 125), (reserve_power_of_two, 132), (reserve_max, 2048)],
)
def test_each_policy_asks_for_what_the_paper_says(policy, places):
    assert policy(100, 25, 2048) == places


@pytest.mark.parametrize(
    ("prompt_len", "output_len", "places"),
    [(0, 1, 1), (10, 32, 42), (10, 33, 74), (1000, 900, 2024), (1100, 900, 2048)],
)
def test_only_the_output_is_rounded_and_the_model_is_the_limit(
    prompt_len, output_len, places
):
    assert reserve_power_of_two(prompt_len, output_len, 2048) == places


@pytest.mark.parametrize("policy", [reserve_exact, reserve_power_of_two, reserve_max])
@pytest.mark.parametrize("lengths", [(-1, 5), (5, 0), (2000, 49)])
def test_a_sequence_that_cannot_be_is_refused_by_every_policy(policy, lengths):
    with pytest.raises(ValueError, match=rf"got {lengths[0]} \+ {lengths[1]}"):
        policy(*lengths, 2048)


def test_the_slots_of_a_reservation_are_numbers_in_a_row():
    pool = BuddyAllocator(64)
    Reservation(pool, 10)
    sequence = Reservation(pool, 20)
    assert sequence.append_tokens(3) == [32, 33, 34]
    assert sequence.append_tokens(2) == [35, 36]
    assert sequence.slots(1, 4) == [33, 34, 35]
    assert sequence.slot(4) == 36
    assert sequence.slots(5, 5) == []


def test_a_reservation_does_not_grow_and_is_not_read_past_its_end():
    sequence = Reservation(BuddyAllocator(16), 5)
    sequence.append_tokens(4)
    for n in (2, -1):
        with pytest.raises(ValueError, match=f"n must be in 0 … 1, got {n}"):
            sequence.append_tokens(n)
    for start, stop in ((-1, 2), (2, 5), (3, 2)):
        with pytest.raises(IndexError, match=f"got {start} … {stop - 1}"):
            sequence.slots(start, stop)
    assert (sequence.num_tokens, sequence.size) == (4, 8)


@given(st.integers(0, 300), st.integers(1, 300), st.data())
def test_tokens_and_waste_make_up_the_region(prompt_len, output_len, data):
    made = data.draw(st.integers(0, output_len))
    policies = st.sampled_from([reserve_exact, reserve_power_of_two, reserve_max])
    num_reserved = data.draw(policies)(prompt_len, output_len, 600)
    sequence = Reservation(BuddyAllocator(1024), num_reserved)
    sequence.append_tokens(prompt_len + made)
    waste = sequence.waste(prompt_len + output_len)
    parts = (waste.reserved, waste.internal, waste.rounding)
    assert min(parts) >= 0
    assert sequence.num_tokens + sum(parts) == sequence.size
    assert waste.reserved == output_len - made


def test_waste_is_told_apart_by_its_future():
    sequence = Reservation(BuddyAllocator(64), 4 + 16)  # 4 in, 9 out, Pow2
    sequence.append_tokens(6)
    assert sequence.waste(13) == Waste(reserved=7, internal=7, rounding=12)
    for final_len in (5, 21):
        with pytest.raises(ValueError, match=f"got {final_len}"):
            sequence.waste(final_len)


def test_a_reservation_that_is_over_frees_nobody_elses_region():
    pool = BuddyAllocator(16)
    first = Reservation(pool, 16)
    first.free()
    second = Reservation(pool, 16)
    assert second.start == first.start
    with pytest.raises(DoubleFreeError, match="over already"):
        first.free()
    with pytest.raises(ValueError, match="0 … 0, got 1"):
        first.append_tokens(1)
    assert pool.num_free == 0


def test_a_paged_sequence_reads_back_as_the_contiguous_one():
    torch.manual_seed(0)
    rng = random.Random(0)
    shape = {"num_layers": 1, "num_kv_heads": 2, "head_dim": 3, "dtype": "float32"}
    paged = KVCache(CacheConfig(**shape, num_blocks=40, block_size=5))
    plain = KVCache(CacheConfig(**shape, num_blocks=1, block_size=512))
    allocator, buddies = BlockAllocator(40), BuddyAllocator(512)
    sequences = [(BlockTable(allocator, 5), Reservation(buddies, 60)) for _ in range(3)]
    for _ in range(80):
        pair = rng.choice(sequences)
        n = rng.randint(0, min(12, 60 - pair[0].num_tokens))
        key, value = torch.randn(2, n, 2, 3)
        for cache, sequence in zip((paged, plain), pair, strict=True):
            slots = torch.tensor(sequence.append_tokens(n), dtype=torch.int64)
            cache.write(0, key, value, slots)
        for table, reservation in sequences:
            start, stop = reservation.start, reservation.start + reservation.num_tokens
            got = paged.gather(0, table.block_ids, table.num_tokens)
            assert torch.equal(got[0], plain.key_cache(0)[0, start:stop])
            assert torch.equal(got[1], plain.value_cache(0)[0, start:stop])
        if pair[0].num_tokens > 50:
            sequences.remove(pair)
            for sequence in pair:
                sequence.free()
            sequences.append((BlockTable(allocator, 5), Reservation(buddies, 60)))
