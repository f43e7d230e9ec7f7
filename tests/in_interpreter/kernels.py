"""Every kernel against its oracle: run by tests/test_kernels.py, in its own process.

On the CPU under TRITON_INTERPRET=1, else on a GPU. By hand:

    TRITON_INTERPRET=1 .venv/bin/python -m pytest tests/in_interpreter/kernels.py
"""

import dataclasses
import os
import random
import sys
from pathlib import Path

import pytest
import torch
from attention_cases import Batch, make_batch, random_batch

from course.grader import triton_ready
from paged_attention.attention import paged_attention
from paged_attention.config import CacheConfig
from paged_attention.kernels.cache_ops import copy_blocks, waves, write_kv
from paged_attention.kernels.decode import decode, decode_kernel
from paged_attention.kernels.launch import is_interpreted
from paged_attention.kernels.prefill import prefill, prefill_launch
from paged_attention.kernels.split_decode import (
    choose_num_splits,
    merge_launch,
    split_decode,
    split_launch,
)
from paged_attention.kv_cache import KVCache

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
DEVICE = "cpu" if INTERPRETED else "cuda"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
NAN = float("nan")
if INTERPRETED:
    triton_ready.make_ready("interpret", Path())  # or it looks things up in each call
# When the interpreter divides by zero or makes a NaN, numpy warns: then we fail.
pytestmark = pytest.mark.filterwarnings("error")


def one_pass(batch: Batch) -> torch.Tensor:
    return decode(*arguments(batch))


def splits(num_splits: int):
    return lambda batch: split_decode(*arguments(batch), num_splits=num_splits)


def as_prefill(batch: Batch) -> torch.Tensor:
    *caches, scale, window = arguments(batch)
    starts = batch.query_start_loc
    if starts is None:
        starts = torch.arange(len(batch.seq_lens) + 1, device=DEVICE)
    return prefill(*caches, starts, scale, window)


def arguments(batch: Batch, scale: float | None = None):
    scale = scale or batch.query.shape[2] ** -0.5
    tables_and_lens = (batch.block_tables, batch.seq_lens)
    caches = (batch.key_cache, batch.value_cache)
    return (batch.query, *caches, *tables_and_lens, scale, batch.window)


def batch_of(seq_lens, **options) -> Batch:
    return make_batch(seq_lens, **options).to(DEVICE)


def at_length(*values):
    """These are tried by `make proof` only."""
    return [pytest.param(value, marks=pytest.mark.proof) for value in values]


WAYS = {"decode": one_pass, "3 splits": splits(3), "prefill": as_prefill}
every_way = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


def test_the_kernels_run_where_they_should():
    assert is_interpreted(decode_kernel) == INTERPRETED


@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_batches_are_what_the_reference_says(dtype):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    rng = random.Random(seed)
    for _ in range(4):  # `make soak` takes 2,000
        batch = random_batch(rng, max_len=40, dtype=dtype).to(DEVICE)
        batch.check(batch.run(paged_attention, backend="triton"))
        if batch.query_start_loc is None:
            batch.check(splits(rng.choice([1, 2, 7]))(batch))


@every_way
@pytest.mark.parametrize("block_size", [1, 12, *at_length(3, 8, 24, 128)])
def test_any_block_size_serves(block_size, way):
    batch = batch_of([3, 29, 140], block_size=block_size, head_dim=16)
    batch.check(way(batch))


@pytest.mark.proof
@pytest.mark.parametrize("head_dim", [16, 20, 80, 96, 120, 256])
def test_any_head_dim_serves_and_the_scale_is_that_of_the_true_one(head_dim):
    batch = batch_of([5, 9], head_dim=head_dim)
    batch.check(batch.run(paged_attention, backend="triton"))


@every_way
def test_padding_of_the_head_dim_never_reads_a_neighbour(way):
    batch = batch_of([5, 9], head_dim=20)
    wide = torch.full((*batch.key_cache.shape[:3], 32), NAN, device=DEVICE)
    wide[..., :20] = batch.key_cache
    batch.key_cache = wide[..., :20]
    batch.check(way(batch))


@pytest.mark.proof
@every_way
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(6, 2), (3, 1), (4, 4), (32, 1), (10, 2), (71, 1)]
)
def test_each_query_head_reads_the_kv_head_of_its_group(num_heads, num_kv_heads, way):
    batch = batch_of([5], num_heads=num_heads, num_kv_heads=num_kv_heads)
    batch.check(way(batch))


@every_way
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_dtype_serves(dtype, way):
    batch = batch_of([5, 21], dtype=dtype)
    batch.check(way(batch))


@every_way
def test_an_empty_sequence_gives_zeros(way):
    batch = batch_of([0, 1, 16, 17], block_size=16)
    result = way(batch)
    batch.check(result)
    assert result[0].count_nonzero() == 0


def test_an_empty_sequence_may_bring_query_tokens():
    batch = batch_of([0, 5], query_lens=[2, 5])
    batch.check(as_prefill(batch))


@pytest.mark.parametrize(("seq_len", "num_splits"), [(3, 8), (33, 4), (300, 5)])
def test_empty_splits_change_nothing(seq_len, num_splits):
    batch = batch_of([seq_len, 0])
    shape = (2, 6, num_splits)
    part = torch.full((*shape, 20), NAN, device=DEVICE)
    largest, total = torch.full((2, *shape), NAN, device=DEVICE).unbind()
    split_launch(part, largest, total, *arguments(batch)).run()
    out = torch.full_like(batch.query, NAN)
    merge_launch(out, part, largest, total).run()
    batch.check(out)


@pytest.mark.proof
@every_way
@pytest.mark.parametrize("logit", [-6e4, -200.0, 200.0])
def test_logits_far_from_zero_give_the_mean_of_equals(logit, way):
    batch = batch_of([4, 2], num_heads=2, head_dim=16)
    batch.query.fill_(1.0)
    batch.key_cache.fill_(4 * logit / 16)  # the scale is 1 / 4
    batch.check(way(batch))


@every_way
def test_scores_beyond_float16_stay_finite(way):
    batch = batch_of([5], num_heads=2, head_dim=64, dtype=torch.float16)
    batch.query.fill_(40.0)
    batch.key_cache.fill_(40.0)
    batch.check(way(batch))


@every_way
def test_any_strides_serve(way):
    batch = batch_of([6, 9], table_dtype=torch.int64)
    both = torch.stack([batch.key_cache, batch.value_cache], dim=1)
    batch.key_cache = both[:, 0]
    batch.value_cache = batch.value_cache.transpose(1, 3).contiguous().transpose(1, 3)
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((2, 11), 2**31 - 1, device=DEVICE)
    wide[:, 2:10:2] = batch.block_tables
    batch.block_tables = wide[:, 2:10:2]
    batch.seq_lens = torch.tensor([6, 77, 9, 77], device=DEVICE)[::2]
    batch.check(way(batch))


@every_way
@pytest.mark.parametrize("window", [4, 70, *at_length(1, 20, 2**40)])
def test_a_window_hides_what_is_before_it_and_holes_are_never_loaded(window, way):
    batch = batch_of([70, 3, 71], window=window, head_dim=16)
    batch.check(way(batch))


@pytest.mark.parametrize("window", [1, *at_length(None, 7, 33)])
def test_a_chunk_sees_its_history_and_nothing_after_itself(window):
    batch = batch_of([70, 9, 1, 40], query_lens=[25, 9, 1, 0], window=window)
    batch.check(as_prefill(batch))


@pytest.mark.proof
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize("window", [None, 4])
def test_a_chunk_never_sees_nan_after_a_query(window, name, dtype):
    batch = batch_of([13, 5], query_lens=[9, 2], window=window, dtype=dtype)
    expected = as_prefill(batch)
    getattr(batch, name)[int(batch.block_tables[0, 2]), 3] = NAN  # token 11 of 13
    result = as_prefill(batch)
    assert torch.equal(result[:7], expected[:7])
    assert result[7:9].isnan().any()
    assert torch.equal(result[9:], expected[9:])


def test_a_tile_of_queries_writes_its_own_rows_only():
    """On a GPU tiles run at once: nobody may rely on the next one to mend a row."""
    batch = batch_of([50], query_lens=[50], num_heads=3, num_kv_heads=1)
    out = torch.full_like(batch.query, NAN)
    *caches, scale, window = arguments(batch)
    launch = prefill_launch(out, *caches, batch.query_start_loc, scale, window)
    tokens = launch.arguments["TILE_ROWS"] // launch.arguments["HEADS"]
    dataclasses.replace(launch, grid=(1, launch.grid[1])).run()
    assert out[:tokens].isfinite().all()
    assert out[tokens:].isnan().all()


@pytest.mark.proof
def test_many_short_chunks_find_their_sequences():
    seq_lens = [n % 7 for n in range(30)]
    batch = batch_of(seq_lens, query_lens=[n // 2 for n in seq_lens], head_dim=16)
    batch.check(as_prefill(batch))


@pytest.mark.proof
def test_stale_entries_behind_the_last_block_are_ignored():
    batch = batch_of([5, 9])
    batch.block_tables[0, 2:] = 2**31 - 1
    for way in WAYS.values():
        batch.check(way(batch))


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="memory is given when touched")
@every_way
def test_a_block_id_times_its_stride_may_pass_32_bits(way):
    """The first block whose elements begin beyond 2**31: 4 GiB, hardly any touched."""
    shape = (131073, 16, 8, 128)
    batch = batch_of(
        [5], num_heads=8, num_kv_heads=8, head_dim=128, dtype=torch.float16
    )
    batch.block_tables = torch.tensor([[131072]], dtype=torch.int32, device=DEVICE)
    for name in ("key_cache", "value_cache"):
        cache = torch.empty(shape, dtype=torch.float16, device=DEVICE)
        cache[131072] = torch.randn(shape[1:], device=DEVICE)
        setattr(batch, name, cache)
    small = Batch(**vars(batch))
    small.key_cache, small.value_cache = (
        batch.key_cache[131072:],
        batch.value_cache[131072:],
    )
    small.block_tables = torch.tensor([[0]], dtype=torch.int32, device=DEVICE)
    small.check(way(batch))


CONFIG = CacheConfig(1, 3, 20, num_blocks=7, block_size=5, dtype="float32")


@pytest.mark.parametrize("slots", [[27, 0, -1, 9], [-1, -1], []])
def test_each_token_lands_in_its_slot_and_minus_one_is_skipped(slots):
    ours, expected = KVCache(CONFIG, DEVICE), KVCache(CONFIG, DEVICE)
    both = torch.randn(len(slots), 2, 3, 20, device=DEVICE)
    slot_mapping = torch.tensor(slots, dtype=torch.int64, device=DEVICE)
    expected.write(0, both[:, 0], both[:, 1], slot_mapping)
    key_cache, value_cache = ours.key_cache(0), ours.value_cache(0)
    write_kv(both[:, 0], both[:, 1], key_cache, value_cache, slot_mapping)
    assert torch.equal(key_cache, expected.key_cache(0))
    assert torch.equal(value_cache, expected.value_cache(0))


@pytest.mark.parametrize(
    "pairs",
    [
        [],
        [(2, 5)],
        [(3, 3)],
        [(0, 1), (1, 2)],
        [(1, 2), (0, 1)],
        [(0, 1), (1, 0)],
        [(0, 1), (2, 1)],
        [(1, 2), (0, 1), (2, 0)],
    ],
)
def test_pairs_are_copied_as_if_one_after_the_other(pairs):
    ours = KVCache(CONFIG, DEVICE)
    key_cache, value_cache = ours.key_cache(0), ours.value_cache(0)
    key_cache.copy_(torch.randn(key_cache.shape))
    value_cache.copy_(torch.randn(key_cache.shape))
    expected = [key_cache.clone(), value_cache.clone()]
    for source, destination in pairs:
        for cache in expected:
            cache[destination] = cache[source].clone()
    copy_blocks(key_cache, value_cache, iter(pairs))
    assert torch.equal(key_cache, expected[0])
    assert torch.equal(value_cache, expected[1])


def test_copies_that_do_not_touch_each_other_are_one_launch():
    assert waves([(0, 1), (0, 2), (3, 4)]) == [[(0, 1), (0, 2), (3, 4)]]


@pytest.mark.parametrize("second", [(1, 2), (2, 1), (2, 0)])
def test_copies_that_touch_each_other_are_two_launches(second):
    assert waves([(0, 1), second]) == [[(0, 1)], [second]]


@pytest.mark.parametrize(
    ("programs", "max_len", "processors", "expected"),
    [
        (8, 16_384, 132, 64),  # one long sequence: as many as there may be
        (8 * 128, 16_384, 132, 1),  # a large batch keeps the GPU busy as it is
        (8, 100, 132, 1),  # too short to share
        (64, 4_096, 132, 9),
        (0, 0, 132, 1),
    ],
)
def test_splits_are_as_many_as_a_gpu_needs_and_lengths_allow(
    programs, max_len, processors, expected
):
    assert choose_num_splits(programs, max_len, processors) == expected
