import numpy as np
import pytest
import torch

from paged_attention import prefix_cache
from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import DoubleFreeError, OutOfBlocksError, SharedBlockError
from paged_attention.prefix_cache import PrefixCache
from paged_attention.sharing import copy_on_write, fork


def cache_of(num_blocks: int, block_size: int = 4) -> PrefixCache:
    return PrefixCache(BlockAllocator(num_blocks), block_size)


def run(cache: PrefixCache, tokens: list[int]) -> BlockTable:
    """One request, up to where all of its prompt is written and published."""
    table = cache.acquire(tokens)
    table.append_tokens(len(tokens) - table.num_tokens)
    cache.publish(table, tokens)
    return table


def hits(cache: PrefixCache, tokens: list[int]) -> int:
    """How many tokens are found; the state is afterwards as before."""
    table = cache.acquire(tokens)
    found = table.num_tokens
    table.free()
    return found


@pytest.mark.parametrize(
    ("num_tokens", "cached"), [(3, 0), (4, 0), (5, 4), (7, 4), (8, 4), (9, 8)]
)
def test_the_same_prompt_again_leaves_at_least_one_token_to_compute(num_tokens, cached):
    cache = cache_of(8)
    tokens = list(range(num_tokens))
    run(cache, tokens).free()
    assert hits(cache, tokens) == cached
    cache.check([])


def test_a_longer_prompt_shares_the_blocks_of_a_shorter_one():
    cache = cache_of(8)
    first = run(cache, list(range(10)))
    second = cache.acquire([*range(8), 70, 80])
    assert second.block_ids == first.block_ids[:2]
    assert [cache.ref_count(b) for b in first.block_ids] == [3, 3, 1]
    cache.check([first, second])


def test_equal_tokens_after_other_tokens_are_no_hit():
    cache = cache_of(8)
    run(cache, [1, 2, 3, 4, 5, 6, 7, 8])
    assert hits(cache, [9, 9, 9, 9, 5, 6, 7, 8, 0]) == 0
    assert hits(cache, [5, 6, 7, 8, 0]) == 0


@pytest.mark.parametrize(
    ("stored", "asked"),
    [
        ([65] * 4, [321] * 4),
        ([1, 2, 3, 4], [4, 3, 2, 1]),
        ([0, 0, 0, -1], [0, 0, 0, -2]),
    ],
)
def test_tokens_that_a_weak_hash_confuses_are_told_apart(stored, asked):
    cache = cache_of(8)
    run(cache, [*stored, 0])
    assert hits(cache, [*asked, 0]) == 0
    assert hits(cache, [*stored, 0]) == 4


def test_with_one_hash_for_everything_no_foreign_block_is_ever_found(monkeypatch):
    monkeypatch.setattr(prefix_cache, "block_key", lambda parent, tokens: 7)
    cache = cache_of(20)
    prompts = [[1] * 9, [2] * 9, [1] * 4 + [2] * 5, [2] * 4 + [1] * 5, [1] * 13]
    written: dict[int, tuple[int, ...]] = {}  # block -> all tokens up to its end
    for prompt in prompts * 2:
        table = cache.acquire(prompt)
        for i, block_id in enumerate(table.block_ids):
            assert written[block_id] == tuple(prompt[: (i + 1) * 4])
        table.append_tokens(len(prompt) - table.num_tokens)
        for i, block_id in enumerate(table.block_ids):
            written[block_id] = tuple(prompt[: (i + 1) * 4])
        cache.publish(table, prompt)
        cache.check([table])
        table.free()
    assert hits(cache, [1] * 9) == 4  # the one key leads to the block published first


def test_no_hit_on_a_block_that_was_overwritten():
    cache = cache_of(2)
    x, y = [1, 2, 3, 4, 5], [6, 7, 8, 9, 10]
    run(cache, x).free()
    run(cache, y).free()
    assert hits(cache, x) == 0
    assert hits(cache, y) == 4
    cache.check([])


def test_ten_thousand_requests_leave_an_index_no_larger_than_the_pool():
    cache = cache_of(5)
    for i in range(10_000):
        run(cache, [i, 1, 2, 3, i + 1, 5, 6, 7, 8]).free()
    assert len(cache._by_key) <= 5
    cache.check([])


def test_hits_that_lie_in_the_free_list_still_cost_free_blocks():
    cache = cache_of(3)
    run(cache, list(range(8))).free()
    cache.allocate()
    assert cache.num_free == 2
    table = cache.acquire([*range(8), 8])
    assert (table.num_tokens, cache.num_free) == (8, 0)
    with pytest.raises(OutOfBlocksError):
        table.append_tokens(1)
    table.free()
    assert (cache.num_free, hits(cache, [*range(8), 8])) == (2, 8)


def test_nothing_is_found_that_was_not_written():
    cache = cache_of(4)
    tokens = list(range(8))
    table = cache.acquire(tokens)
    table.append_tokens(8)
    table.free()  # aborted before the step
    assert hits(cache, tokens) == 0
    table = cache.acquire(tokens)
    table.append_tokens(6)  # the first chunk of the prefill
    cache.publish(table, tokens[:6])
    assert hits(cache, tokens) == 4
    cache.check([table])


@pytest.mark.parametrize(("evicted", "found"), [(0, 0), (1, 4), (2, 8)])
def test_hits_end_at_the_first_block_that_was_evicted(evicted, found):
    cache = cache_of(4)
    tokens = list(range(13))
    table = run(cache, tokens)
    victim = table.block_ids[evicted]
    table.free()
    cache._evictable.move_to_end(victim, last=False)
    cache._evict()
    assert hits(cache, tokens) == found


def test_only_new_content_is_found_after_truncate_and_rewrite():
    cache = cache_of(6)
    table = run(cache, list(range(8)))
    table.truncate(4)
    table.append_tokens(5)
    tokens = [*range(4), 70, 71, 72, 73, 74]
    cache.publish(table, tokens)
    assert hits(cache, [*range(8), 9]) == 8  # the cache kept the old block as well
    assert hits(cache, tokens) == 8
    assert cache.acquire(tokens).block_ids == table.block_ids[:2]


def test_a_published_block_is_not_written_in_place_after_a_truncate():
    cache = cache_of(6)
    table = run(cache, list(range(8)))
    table.truncate(6)
    with pytest.raises(SharedBlockError):
        table.append_tokens(1)
    ((source, _),) = copy_on_write(table)
    table.append_tokens(2)
    cache.publish(table, [*range(6), 70, 71])
    other = cache.acquire([*range(8), 9])
    assert other.block_ids[1] == source
    cache.check([table, other])


def test_the_tail_of_a_prompt_is_evicted_before_its_head():
    cache = cache_of(4)
    tokens = list(range(13))
    run(cache, tokens).free()
    cache.allocate()  # the block that was free
    for found in (8, 4, 0):
        cache.allocate()
        assert hits(cache, tokens) == found


def test_the_least_recently_used_prompt_is_evicted_first():
    cache = cache_of(4)
    old, new = [1] * 5, [2] * 5
    run(cache, old).free()
    run(cache, new).free()
    hits(cache, old)  # used again
    cache.allocate_many(3)
    assert (hits(cache, old), hits(cache, new)) == (4, 0)


def test_a_block_in_use_is_never_evicted():
    cache = cache_of(3)
    table = run(cache, list(range(8)))
    cache.allocate()
    with pytest.raises(OutOfBlocksError, match="1 blocks were asked for, 0 of 3"):
        cache.allocate()
    assert hits(cache, [*range(8), 9]) == 8
    table.free()
    assert cache.num_free == 2


def test_when_too_few_could_be_evicted_none_is():
    cache = cache_of(4)
    run(cache, list(range(9))).free()
    cache.allocate_many(2)
    with pytest.raises(OutOfBlocksError, match="3 blocks were asked for, 2 of 4"):
        cache.allocate_many(3)
    assert hits(cache, list(range(9))) == 8


def test_the_older_of_two_equal_blocks_is_found():
    cache = cache_of(8)
    tokens = list(range(8))
    first, second = BlockTable(cache, 4), BlockTable(cache, 4)
    for table in (first, second):
        table.append_tokens(8)
        cache.publish(table, tokens)
    assert cache.acquire([*tokens, 9]).block_ids == first.block_ids
    second.free()
    assert cache.num_free == 6


def test_a_chain_may_go_on_from_a_block_that_was_not_published_itself():
    cache = cache_of(8)
    first = run(cache, list(range(4)))
    twin = BlockTable(cache, 4)
    twin.append_tokens(8)
    cache.publish(twin, list(range(8)))
    longer = cache.acquire(list(range(9)))
    assert longer.block_ids == [first.block_ids[0], twin.block_ids[1]]
    cache.check([first, twin, longer])


def test_a_chain_is_found_again_after_its_beginning_was_evicted_and_published_anew():
    cache = cache_of(8)
    tokens = list(range(9))
    table = run(cache, tokens)
    head = table.block_ids[0]
    table.free()
    cache._evictable.move_to_end(head, last=False)
    cache._evict()
    assert hits(cache, tokens) == 0
    run(cache, list(range(4)))
    assert hits(cache, tokens) == 8


def test_a_table_cannot_give_up_the_reference_of_the_cache():
    cache = cache_of(4)
    table = run(cache, list(range(4)))
    block = table.block_ids[0]
    with pytest.raises(DoubleFreeError, match="held by the cache alone"):
        cache.free_many([block, block])
    cache.check([table])
    table.free()
    with pytest.raises(DoubleFreeError):
        cache.free(block)
    cache.check([])


def test_a_forked_published_block_is_freed_by_its_last_table():
    cache = cache_of(4)
    table = run(cache, list(range(4)))
    other = fork(table)
    table.free()
    assert cache.num_free == 3
    other.free()
    assert cache.num_free == 4
    cache.check([])


def test_more_tokens_than_the_table_holds_cannot_be_published():
    cache = cache_of(4)
    table = cache.acquire([1])
    table.append_tokens(4)
    with pytest.raises(ValueError, match="5 tokens cannot have been written"):
        cache.publish(table, [1, 2, 3, 4, 5])


def test_tokens_that_could_never_be_found_again_are_refused():
    cache = cache_of(8)
    tokens = torch.arange(9)
    with pytest.raises(ValueError, match="token_ids must be ints, got Tensors"):
        cache.acquire(tokens)
    table = cache.acquire(tokens.tolist())
    table.append_tokens(9)
    with pytest.raises(ValueError, match="token_ids must be ints, got Tensors"):
        cache.publish(table, tokens)
    assert hits(cache, tokens.tolist()) == 0
    cache.check([table])


@pytest.mark.parametrize("block_size", [4.0, 0, True, None])
def test_a_block_size_is_a_whole_number(block_size):
    with pytest.raises(
        ValueError, match=f"block_size must be .* >= 1, got {block_size}"
    ):
        PrefixCache(BlockAllocator(4), block_size)


@pytest.mark.parametrize(
    "make",
    [
        lambda cache: BlockTable(cache, 2),
        lambda cache: BlockTable(cache.allocator, 4),
        lambda cache: BlockTable(cache_of(8), 4),
    ],
    ids=["another block_size", "the allocator below", "another cache"],
)
def test_a_table_of_another_cache_cannot_be_published(make):
    cache = cache_of(8)
    table = make(cache)
    table.append_tokens(8)
    with pytest.raises(ValueError, match="must be one of this cache, with blocks of 4"):
        cache.publish(table, list(range(8)))
    assert cache.block_ids == []


@pytest.mark.parametrize("n", [2.5, None])
def test_a_number_of_blocks_that_is_none_evicts_nothing(n):
    cache = cache_of(2)
    run(cache, list(range(8))).free()
    with pytest.raises(ValueError, match=f"n must be an int, got {n}"):
        cache.allocate_many(n)
    assert hits(cache, list(range(9))) == 8


def test_a_number_of_blocks_may_be_numpys():
    cache = cache_of(2)
    run(cache, list(range(8))).free()
    assert cache.allocate_many(np.int64(1)) == [1]  # the tail of what is cached
    assert BlockAllocator(2).allocate_many(np.int64(1)) == [0]


def test_a_table_with_holes_cannot_be_published():
    cache = cache_of(4)
    table = BlockTable(cache, 4)
    table.append_tokens(9)
    table.drop_before(4)
    with pytest.raises(ValueError, match="logical block 0 was given back"):
        cache.publish(table, list(range(9)))
    cache.check([table])


def test_publishing_a_long_sequence_again_costs_only_its_new_blocks(monkeypatch):
    calls = []
    block_key = prefix_cache.block_key
    monkeypatch.setattr(
        prefix_cache, "block_key", lambda *a: calls.append(a) or block_key(*a)
    )
    cache = cache_of(300)
    tokens = list(range(1000))
    table = run(cache, tokens)
    calls.clear()
    for new in range(1000, 1008):
        table.append_tokens(1)
        tokens.append(new)
        cache.publish(table, tokens)
    assert len(calls) == 2
