import re

import numpy as np
import pytest
import torch

from paged_attention.config import CacheConfig
from paged_attention.kv_cache import BASE_ALIGNMENT, KVCache

# All sizes differ, so that no two axes can be mixed up unnoticed.
CONFIG = CacheConfig(
    num_layers=2,
    num_kv_heads=3,
    head_dim=5,
    num_blocks=7,
    block_size=4,
    dtype="float32",
)


def numbered(num_tokens: int, start: int = 1) -> torch.Tensor:
    """[num_tokens, 3, 5] of numbers that are all different."""
    size = num_tokens * 3 * 5
    return torch.arange(start, start + size, dtype=torch.float32).view(-1, 3, 5)


def filled_cache() -> KVCache:
    """Every number in it says where it lies."""
    cache = KVCache(CONFIG)
    for layer in range(2):
        for block in range(7):
            cache.key_cache(layer)[block] = 100 * layer + block
            cache.value_cache(layer)[block] = 1000 + 100 * layer + block
    return cache


def test_the_cache_is_one_allocation_of_cache_bytes():
    cache = KVCache(CONFIG)
    storages = {
        view.untyped_storage().data_ptr()
        for layer in range(2)
        for view in (cache.key_cache(layer), cache.value_cache(layer))
    }
    assert len(storages) == 1
    assert cache.key_cache(0).untyped_storage().nbytes() == CONFIG.cache_bytes


def test_keys_and_values_are_views_that_write_through():
    cache = KVCache(CONFIG)
    cache.key_cache(1)[6, 3, 2, 4] = 8.0
    assert cache.key_cache(1)[6, 3, 2, 4] == 8.0
    total = sum(
        (cache.key_cache(layer).sum() + cache.value_cache(layer).sum()).item()
        for layer in range(2)
    )
    assert total == 8.0  # and no other view sees it


def test_a_view_has_the_shape_that_a_kernel_expects():
    view = KVCache(CONFIG).value_cache(1)
    assert view.shape == (7, 4, 3, 5)
    assert view.is_contiguous()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    ("num_kv_heads", "head_dim", "block_size"), [(8, 128, 16), (3, 5, 1), (1, 2, 3)]
)
def test_every_block_starts_where_block_alignment_says(
    num_kv_heads, head_dim, block_size, dtype
):
    config = CacheConfig(2, num_kv_heads, head_dim, 5, block_size, dtype)
    cache = KVCache(config)
    addresses = [
        view[block].data_ptr()
        for layer in range(2)
        for view in (cache.key_cache(layer), cache.value_cache(layer))
        for block in range(5)
    ]
    assert all(address % cache.block_alignment == 0 for address in addresses)
    larger = 2 * cache.block_alignment
    if larger <= BASE_ALIGNMENT:  # then it is also the largest such power of two
        assert any(address % larger for address in addresses)


def test_blocks_of_usual_models_can_be_loaded_16_bytes_at_once():
    cache = KVCache(CacheConfig(1, 3, 64, num_blocks=2, block_size=1))  # SmolLM2-135M
    assert cache.block_alignment >= 16


def test_each_token_lands_in_its_slot_and_nowhere_else():
    cache = KVCache(CONFIG)
    key, value = numbered(4), numbered(4, start=500)
    cache.write(1, key, value, torch.tensor([27, 0, -1, 9]))
    flat_key = cache.key_cache(1).view(28, 3, 5)
    flat_value = cache.value_cache(1).view(28, 3, 5)
    for token, slot in [(0, 27), (1, 0), (3, 9)]:
        assert torch.equal(flat_key[slot], key[token])
        assert torch.equal(flat_value[slot], value[token])
    assert (flat_key != 0).sum() == (flat_value != 0).sum() == 3 * 15
    assert cache.key_cache(0).count_nonzero() == 0


def test_write_takes_keys_that_are_not_contiguous():
    cache = KVCache(CONFIG)
    both = torch.stack([numbered(2), numbered(2, start=500)], dim=1)
    cache.write(0, both[:, 0], both[:, 1], torch.tensor([0, 1]))
    assert torch.equal(cache.key_cache(0)[0, :2], numbered(2))


@pytest.mark.parametrize("slot", [-2, 28])
def test_a_slot_outside_the_cache_is_refused_before_anything_is_written(slot):
    cache = KVCache(CONFIG)
    with pytest.raises(ValueError, match=f"slot must be in -1 … 27, got {slot}"):
        cache.write(0, numbered(2), numbered(2), torch.tensor([0, slot]))
    assert cache.key_cache(0).count_nonzero() == 0


@pytest.mark.parametrize(
    "wrong", [torch.ones(2, 3, 5), torch.ones(3, 3, 5).half(), torch.ones(3, 5, 3)]
)
def test_rows_of_another_shape_or_dtype_are_refused(wrong):
    cache = KVCache(CONFIG)
    right, slots = numbered(3), torch.tensor([0, 1, 2])
    with pytest.raises(ValueError, match=r"key must be \[3, 3, 5\] torch.float32"):
        cache.write(0, wrong, right, slots)
    with pytest.raises(ValueError, match=r"value must be \[3, 3, 5\] torch.float32"):
        cache.write(0, right, wrong, slots)
    assert cache.key_cache(0).count_nonzero() == 0


def test_slots_must_be_int64():
    with pytest.raises(
        ValueError, match=r"must be \[num_tokens\] int64, got \[2\] torch.int32"
    ):
        slots = torch.tensor([0, 1], dtype=torch.int32)
        KVCache(CONFIG).write(0, numbered(2), numbered(2), slots)


@pytest.mark.parametrize("slots", [torch.tensor([[0, 1]]), torch.tensor(0)])
def test_slots_must_stand_in_a_row(slots):
    cache = KVCache(CONFIG)
    for num_tokens in (1, 2):
        rows = numbered(num_tokens)
        with pytest.raises(ValueError, match=r"slot_mapping must be \[num_tokens\]"):
            cache.write(0, rows, rows, slots)
    assert cache.key_cache(0).count_nonzero() == 0


def test_what_is_written_must_be_tensors():
    cache, rows, slots = KVCache(CONFIG), numbered(2), torch.tensor([0, 1])
    with pytest.raises(ValueError, match="slot_mapping must be a tensor, got a list"):
        cache.write(0, rows, rows, [0, 1])
    with pytest.raises(ValueError, match="key must be a tensor, got a list"):
        cache.write(0, rows.tolist(), rows, slots)
    with pytest.raises(ValueError, match="value must be a tensor, got a ndarray"):
        cache.write(0, rows, rows.numpy(), slots)
    assert cache.key_cache(0).count_nonzero() == 0


@pytest.mark.parametrize("layer", [-1, 2])
def test_a_layer_that_does_not_exist_is_refused(layer):
    cache = KVCache(CONFIG)
    for call in (cache.key_cache, cache.value_cache):
        with pytest.raises(IndexError, match=f"layer must be in 0 … 1, got {layer}"):
            call(layer)


def block_contents(cache: KVCache) -> list[list[float]]:
    """For each view, what stands in each block (which is all one number)."""
    views = [cache.key_cache(0), cache.key_cache(1)]
    views += [cache.value_cache(0), cache.value_cache(1)]
    assert all((view == view[:, :1, :1, :1]).all() for view in views)
    return [view[:, 0, 0, 0].tolist() for view in views]


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(2, 5)],
        [(0, 1), (1, 2)],
        [(1, 2), (0, 1)],
        [(0, 1), (1, 0)],
        [(0, 1), (2, 1)],
    ],
)
def test_pairs_are_copied_as_if_one_after_the_other(pairs):
    cache = filled_cache()
    expected = block_contents(cache)
    for source, destination in pairs:
        for view in expected:
            view[destination] = view[source]
    cache.copy_blocks(pairs)
    assert block_contents(cache) == expected


def test_a_copy_shares_no_memory_with_its_source():
    cache = filled_cache()
    cache.copy_blocks([(0, 1)])
    for layer in range(2):
        for view in (cache.key_cache(layer), cache.value_cache(layer)):
            before = view[0].clone()
            view[1] += 1
            assert torch.equal(view[0], before)


def test_blocks_are_copied_into_another_cache_and_back():
    device, host = filled_cache(), KVCache(CacheConfig(2, 3, 5, 9, 4, "float32"))
    expected = block_contents(device)
    device.copy_blocks([(3, 8), (4, 3)], into=host)
    for view in (device.key_cache(0), device.value_cache(1)):
        view[3:5] = 0
    host.copy_blocks([(8, 3), (3, 4)], into=device)
    assert block_contents(device) == expected


def test_a_cache_of_another_shape_is_refused_as_a_target():
    other = KVCache(CacheConfig(2, 3, 5, 7, 8, "float32"))
    with pytest.raises(
        ValueError, match=r"into must have blocks of shape \(2, 4, 3, 5"
    ):
        KVCache(CONFIG).copy_blocks([(0, 0)], into=other)


@pytest.mark.parametrize("pair", [(0, 7), (7, 0), (-1, 0), (0, -1)])
def test_a_copy_with_a_block_that_does_not_exist_changes_nothing(pair):
    cache = filled_cache()
    before = block_contents(cache)
    with pytest.raises(ValueError, match="block_id must be an int in 0 … 6, got "):
        cache.copy_blocks([(0, 1), pair])
    assert block_contents(cache) == before


@pytest.mark.parametrize("seq_len", [0, 1, 3, 4, 5, 8, 9])
def test_gather_puts_a_scattered_sequence_in_order(seq_len):
    cache = KVCache(CONFIG)
    block_ids = [5, 1, 6]
    key, value = numbered(seq_len), numbered(seq_len, start=500)
    slots = torch.tensor(
        [block_ids[i // 4] * 4 + i % 4 for i in range(seq_len)], dtype=torch.int64
    )
    cache.write(1, key, value, slots)
    got_key, got_value = cache.gather(1, block_ids, seq_len)
    assert torch.equal(got_key, key)
    assert torch.equal(got_value, value)


def test_gather_gives_a_copy():
    cache = filled_cache()
    key, value = cache.gather(0, [2], 4)
    key += 1
    value += 1
    assert (cache.key_cache(0)[2] == 2).all()
    assert (cache.value_cache(0)[2] == 1002).all()


@pytest.mark.parametrize("seq_len", [-1, 9])
def test_gather_refuses_a_length_that_the_blocks_do_not_hold(seq_len):
    with pytest.raises(ValueError, match=f"seq_len must be in 0 … 8, got {seq_len}"):
        KVCache(CONFIG).gather(0, [1, 2], seq_len)


def test_gather_refuses_block_minus_one():
    with pytest.raises(ValueError, match="block_id must be an int in 0 … 6, got -1"):
        KVCache(CONFIG).gather(0, [1, -1], 5)


def test_a_cache_without_blocks_is_refused():
    with pytest.raises(ValueError, match="num_blocks must be >= 1, got 0"):
        KVCache(CacheConfig(1, 1, 1))


def test_a_value_on_another_device_is_refused_before_the_key_is_written():
    cache = KVCache(CONFIG)
    with pytest.raises(ValueError, match="value must be on cpu, got meta"):
        cache.write(0, numbered(2), numbered(2).to("meta"), torch.tensor([0, 1]))
    assert cache.key_cache(0).count_nonzero() == 0


@pytest.mark.parametrize(
    "block_id", [None, 1.5, True, np.int64(1), torch.tensor(1)], ids=repr
)
def test_what_is_no_int_is_no_block_id(block_id):
    cache = KVCache(CONFIG)
    message = re.escape(f"block_id must be an int in 0 … 6, got {block_id!r}")
    with pytest.raises(ValueError, match=message):
        cache.gather(0, [block_id], 1)
    for pair in ((block_id, 2), (2, block_id)):
        with pytest.raises(ValueError, match=message):
            cache.copy_blocks([pair])
