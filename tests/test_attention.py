import random
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import Mock

import pytest
import torch
from attention_cases import TOLERANCE, Batch, make_batch, random_batch
from torch.utils._python_dispatch import TorchDispatchMode

from paged_attention import attention, reference
from paged_attention.attention import paged_attention

NAN = float("nan")


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_random_batches_are_what_the_reference_says(dtype):
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # shown when it fails
    rng = random.Random(seed)
    for _ in range(30):
        batch = random_batch(rng, dtype=dtype)
        batch.check(batch.run(paged_attention))


@pytest.mark.parametrize("block_size", [1, 3, 8, 12, 24])
@pytest.mark.parametrize("query_lens", [None, [3, 1, 7, 17]], ids=["decode", "prefill"])
def test_any_block_size_serves(query_lens, block_size):
    batch = make_batch([3, 12, 25, 17], query_lens=query_lens, block_size=block_size)
    batch.check(batch.run(paged_attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"), [(6, 2), (3, 1), (4, 4), (32, 1), (10, 2)]
)
def test_each_query_head_reads_the_kv_head_of_its_group(num_heads, num_kv_heads, dtype):
    batch = make_batch(
        [5, 9], num_heads=num_heads, num_kv_heads=num_kv_heads, dtype=dtype
    )
    for kv_head in range(num_kv_heads):
        batch.value_cache[:, :, kv_head] = kv_head
    result = batch.run(paged_attention)[:, :, 0]
    expected = torch.arange(num_heads) // (num_heads // num_kv_heads)
    assert torch.equal(result.round().long(), expected.expand(2, -1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_what_lies_behind_the_last_token_is_never_read(dtype):
    batch = make_batch([5], block_size=16, dtype=dtype)
    assert batch.key_cache.isnan().any()
    batch.check(batch.run(paged_attention))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_an_empty_sequence_gives_zeros(dtype, recwarn):
    batch = make_batch([0, 1, 16, 17], block_size=16, dtype=dtype)
    result = batch.run(paged_attention)
    batch.check(result)
    assert torch.equal(result[0], torch.zeros_like(result[0]))
    assert not recwarn


def test_a_batch_without_sequences_gives_nothing():
    assert make_batch([]).run(paged_attention).shape == (0, 6, 20)


@pytest.mark.parametrize("query_lens", [None, [1], [4]])
@pytest.mark.parametrize("logit", [-6e4, -200.0, 200.0])
def test_logits_far_from_zero_give_the_mean_of_equals(logit, query_lens):
    batch = make_batch([4], query_lens=query_lens, num_heads=2, head_dim=16)
    batch.query.fill_(1.0)
    batch.key_cache.fill_(logit / 16)
    last = batch.run(paged_attention, scale=1.0)[-1]
    tokens = batch.value_cache[batch.block_tables[0, 0], :4]  # [4, 2, 16]
    assert torch.allclose(last, tokens.mean(dim=0), atol=1e-6)


@pytest.mark.parametrize("query_lens", [None, [5]])
def test_scores_beyond_float16_stay_finite(query_lens):
    batch = make_batch(
        [5], query_lens=query_lens, num_heads=2, head_dim=64, dtype=torch.float16
    )
    batch.query.fill_(40.0)
    batch.key_cache.fill_(40.0)
    batch.check(batch.run(paged_attention))


def test_the_default_scale_is_that_of_the_true_head_dim():
    batch = make_batch([9, 4], head_dim=80)
    given = batch.run(paged_attention, scale=80**-0.5)
    assert torch.equal(batch.run(paged_attention), given)


@pytest.mark.parametrize("query_lens", [None, [2, 5]], ids=["decode", "prefill"])
def test_keys_and_values_may_be_views_of_one_buffer(query_lens):
    batch = make_batch([6, 9], query_lens=query_lens)
    both = torch.stack([batch.key_cache, batch.value_cache], dim=1)
    batch.key_cache, batch.value_cache = both[:, 0], both[:, 1]
    batch.check(batch.run(paged_attention))


@pytest.mark.parametrize("query_lens", [None, [2, 5]], ids=["decode", "prefill"])
@pytest.mark.parametrize("axes", [(1, 2), (1, 3), (0, 1), (2, 3)])
def test_caches_may_have_any_strides(axes, query_lens):
    batch = make_batch([6, 9], query_lens=query_lens)
    batch.key_cache = batch.key_cache.transpose(*axes).contiguous().transpose(*axes)
    batch.check(batch.run(paged_attention))
    batch.value_cache = batch.value_cache.transpose(*axes).contiguous().transpose(*axes)
    batch.check(batch.run(paged_attention))


@pytest.mark.parametrize("query_lens", [None, [2, 5]], ids=["decode", "prefill"])
def test_query_and_tables_may_be_slices_of_wider_ones(query_lens):
    batch = make_batch([6, 9], query_lens=query_lens, table_dtype=torch.int64)
    batch.query = batch.query.transpose(0, 1).contiguous().transpose(0, 1)
    wide = torch.full((2, 11), -1)
    wide[:, 2:6] = batch.block_tables
    batch.block_tables = wide[:, 2:6]
    wide_lens = torch.tensor([6, 77, 9, 77])
    batch.seq_lens = wide_lens[::2]
    batch.check(batch.run(paged_attention))


def test_a_block_may_stand_in_two_tables():
    batch = make_batch([8, 8])
    batch.block_tables[1, 0] = batch.block_tables[0, 0]
    batch.check(batch.run(paged_attention))


def test_stale_entries_behind_the_last_block_are_ignored():
    batch = make_batch([5, 9])
    batch.block_tables[0, 2:] = 99
    batch.check(batch.run(paged_attention))


def test_a_chunk_does_not_see_the_tokens_after_it():
    batch = make_batch([8], query_lens=[8])
    whole = batch.run(paged_attention)
    batch.key_cache[batch.block_tables[0, 1].item(), 2:] = NAN
    batch.value_cache[batch.block_tables[0, 1].item(), 2:] = NAN
    batch.query = batch.query[3:6]
    batch.seq_lens = torch.tensor([6])
    batch.query_start_loc = torch.tensor([0, 3])
    assert torch.allclose(batch.run(paged_attention), whole[3:6], atol=1e-6)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize(
    ("query_len", "window"), [(13, None), (6, None), (13, 4), (6, 3)]
)
def test_a_query_never_sees_what_is_not_finite_after_it(
    query_len, window, name, bad, dtype
):
    batch = make_batch([13, 5], query_lens=[query_len, 2], window=window, dtype=dtype)
    expected = batch.run(paged_attention)
    getattr(batch, name)[int(batch.block_tables[0, 2]), 3] = bad  # token 11 of 13
    result = batch.run(paged_attention)
    before = query_len - 2
    assert torch.allclose(
        result[:before].double(), expected[:before].double(), atol=TOLERANCE[dtype]
    )
    assert not result[before:query_len].isfinite().all()
    assert torch.equal(result[query_len:], expected[query_len:])


def test_a_query_never_sees_what_is_not_finite_before_its_window():
    batch = make_batch([12], query_lens=[6], window=3)
    expected = batch.run(paged_attention)
    batch.value_cache[int(batch.block_tables[0, 1]), 3] = NAN  # token 7
    result = batch.run(paged_attention)
    assert torch.allclose(result[[0, 4, 5]], expected[[0, 4, 5]], atol=1e-6)
    assert result[1:4].isnan().all()


def layers(batch: Batch, count: int) -> list[Batch]:
    """The same tables and lengths over caches of their own, with other numbers."""
    made = []
    for _ in range(count):
        layer = Batch(**vars(batch))
        layer.key_cache = batch.key_cache + torch.randn(batch.key_cache.shape)
        layer.value_cache = batch.value_cache + torch.randn(batch.key_cache.shape)
        layer.query = torch.randn(batch.query.shape)
        made.append(layer)
    return made


@pytest.mark.parametrize("query_lens", [None, [3, 1, 7]], ids=["decode", "mixed"])
def test_every_layer_of_a_step_reads_its_own_cache(query_lens):
    torch.manual_seed(1)
    for layer in layers(make_batch([3, 12, 25], query_lens=query_lens), 3):
        layer.check(layer.run(paged_attention))


@pytest.mark.parametrize("query_lens", [None, [3, 1, 7]], ids=["decode", "mixed"])
def test_tensors_that_are_filled_anew_are_noticed(query_lens):
    # Values that no other test has: else the first plan were of other tensors.
    batch = make_batch([3, 12, 25], query_lens=query_lens, seed=9)
    before = Batch(**vars(batch))
    before.block_tables = batch.block_tables.clone()
    batch.check(batch.run(paged_attention))
    batch.block_tables[2, :3] = batch.block_tables[1, :3]
    batch.check(batch.run(paged_attention))
    # Other tensors, with the values that were known first.
    before.check(before.run(paged_attention))
    batch.seq_lens -= torch.tensor([0, 2, 5], dtype=torch.int32)
    batch.check(batch.run(paged_attention))
    if query_lens is not None:
        batch.query_start_loc.copy_(torch.tensor([0, 2, 4, 11]))
        batch.check(batch.run(paged_attention))
    batch.block_tables[0, 0] = 99
    refused(r"block_tables\[0, 0\] must be in", batch)
    refused(r"block_tables\[0, 0\] must be in", batch)


@pytest.mark.parametrize("name", ["key_cache", "value_cache"])
@pytest.mark.parametrize("query_lens", [None, [1, 1, 4]], ids=["decode", "mixed"])
def test_a_cache_with_other_strides_is_told_apart(query_lens, name):
    batch = make_batch([3, 12, 25], query_lens=query_lens)
    batch.check(batch.run(paged_attention))
    cache = getattr(batch, name)
    setattr(batch, name, cache.transpose(1, 2).contiguous().transpose(1, 2))
    batch.check(batch.run(paged_attention))


def test_a_window_and_a_pool_are_told_apart():
    batch = make_batch([3, 12, 25], query_lens=[1, 1, 4])
    for window in (None, 5, None, 2):
        batch.window = window
        batch.check(batch.run(paged_attention))
    smaller = Batch(**vars(batch))
    smaller.key_cache = batch.key_cache[:5]
    smaller.value_cache = batch.value_cache[:5]
    refused("must be in 0 … 4", smaller)


def test_steps_in_several_threads_do_not_disturb_each_other():
    batches = [make_batch([n, 2 * n, 3], query_lens=[1, n, 1]) for n in range(2, 10)]
    answers = [batch.oracle() for batch in batches]

    def work(start: int) -> None:
        for i in range(40):
            which = (start + i) % len(batches)
            batches[which].check(batches[which].run(paged_attention), answers[which])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_longer_batch_before_leaves_nothing_behind(dtype):
    batch = make_batch([3, 1], dtype=dtype)
    before = batch.run(paged_attention)
    make_batch([40, 30, 20], dtype=dtype).run(paged_attention)
    assert torch.equal(batch.run(paged_attention), before)


def test_chunks_of_any_size_give_what_one_gives():
    whole = make_batch([13], query_lens=[13])
    expected = whole.run(paged_attention)
    for chunk_len in (1, 4, 5):
        for start in range(0, 13, chunk_len):
            stop = min(start + chunk_len, 13)
            whole_chunk = paged_attention(
                whole.query[start:stop],
                whole.key_cache,
                whole.value_cache,
                whole.block_tables,
                torch.tensor([stop]),
                query_start_loc=torch.tensor([0, stop - start]),
            )
            assert torch.allclose(whole_chunk, expected[start:stop], atol=1e-5)


def test_a_query_that_wants_gradients_gives_a_result_without():
    batch = make_batch([5, 3])
    batch.query.requires_grad_()
    assert not batch.run(paged_attention).requires_grad


def refused(message, batch, **options):
    with pytest.raises(ValueError, match=message):
        batch.run(paged_attention, **options)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": torch.ones(2, 6)}, r"query must be \[num_tokens, .* got \[2, 6\]"),
        ({"query": torch.ones(2, 6, 20).int()}, "got .* torch.int32"),
        ({"query": torch.ones(3, 6, 20)}, "3 tokens for 2 sequences"),
        ({"query": torch.ones(2, 5, 20)}, "5 heads cannot share 2 KV heads"),
        ({"query": torch.ones(2, 6, 16)}, r"key_cache must be \[.*, 16\], got"),
        ({"query": torch.ones(2, 6, 20).half()}, "key_cache must be torch.float16 on"),
        ({"query": torch.ones(2, 6, 20, device="meta")}, "on meta as query is"),
        (
            {"value_cache": torch.ones(7, 4, 2)},
            r"value_cache must be .*got \[7, 4, 2\]",
        ),
        ({"value_cache": torch.ones(7, 4, 1, 20)}, "one shape, got"),
        ({"block_tables": torch.tensor([1, 2])}, r"block_tables must be \[2, any\]"),
        ({"block_tables": torch.ones(3, 4).int()}, r"got \[3, 4\]"),
        ({"block_tables": torch.ones(2, 4)}, "int32 or int64 .* got .*float32"),
        ({"seq_lens": torch.tensor([[5, 9]])}, r"seq_lens must be \[any\]"),
        ({"seq_lens": torch.tensor([5, -1])}, r"seq_lens\[1\] must be 0 or .* got -1"),
        ({"seq_lens": torch.tensor([5, 17])}, r"seq_lens\[1\] is 17.* at most 16 tok"),
        ({"query_start_loc": torch.tensor([0, 2])}, r"query_start_loc must be \[3\]"),
        ({"query_start_loc": torch.tensor([0, 1, 3])}, "got 0 … 3"),
        ({"query_start_loc": torch.tensor([1, 1, 2])}, "got 1 … 2"),
        ({"query_start_loc": torch.tensor([0, 3, 2])}, "must not decrease, got 3, 2"),
        ({"window": 0}, "window must be an integer >= 1, got 0"),
        ({"window": 2.5}, "window must be an integer >= 1, got 2.5"),
        ({"window": True}, "window must be an integer >= 1, got True"),
        ({"query": [[1.0]]}, "query must be a tensor, got a list"),
        ({"key_cache": [[1.0]]}, "key_cache must be a tensor, got a list"),
        ({"value_cache": None}, "value_cache must be a tensor, got a NoneType"),
        ({"block_tables": [[0, 1]]}, "block_tables must be a tensor, got a list"),
        ({"seq_lens": [5, 9]}, "seq_lens must be a tensor, got a list"),
        ({"query_start_loc": [0, 1, 2]}, "query_start_loc must be a tensor, got a lis"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(changes, message):
    batch = make_batch([5, 9])
    for name, value in changes.items():
        setattr(batch, name, value)
    refused(message, batch)


def test_a_sequence_shorter_than_its_query_is_refused():
    batch = make_batch([5, 9], query_lens=[1, 9])
    batch.seq_lens[1] = 8
    refused(r"seq_lens\[1\] must be 0 or at least its 9 query tokens, got 8", batch)


@pytest.mark.parametrize("block_id", [-1, 99])
def test_a_block_that_does_not_exist_is_refused(block_id):
    batch = make_batch([5, 9])
    batch.block_tables[1, 2] = block_id
    pool = len(batch.key_cache) - 1
    refused(rf"block_tables\[1, 2\] must be in 0 … {pool}, got {block_id}", batch)


def test_a_hole_is_allowed_outside_the_window_only():
    batch = make_batch([16], window=5)
    assert batch.block_tables[0].tolist().count(-1) == 3  # two holes, one padding
    batch.check(batch.run(paged_attention))
    batch.window = 9  # keys 7 … 15
    refused(r"block_tables\[0, 1\] must be in", batch)


def test_an_unknown_backend_is_refused():
    refused("\"triton\", got 'cuda'", make_batch([5]), backend="cuda")


def test_an_empty_sequence_may_bring_query_tokens():
    batch = make_batch([0, 5], query_lens=[2, 5])
    assert torch.equal(batch.run(reference.paged_attention)[:2], torch.zeros(2, 6, 20))
    batch.check(batch.run(paged_attention))


class MadeTensors(TorchDispatchMode):
    """Names of the operations that torch was asked for."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def test_a_decode_on_a_gpu_makes_no_tensor_of_its_own(monkeypatch):
    """Of every layer, the kernels aside. There is no GPU: meta stands for it."""
    batch = make_batch([5, 9]).to("meta")
    kernels = Mock()
    monkeypatch.setattr(attention, "_triton_attend", lambda: kernels)
    made = MadeTensors()
    with made:
        batch.run(paged_attention, backend="triton")
    (*tensors, starts, _, _) = kernels.call_args.args
    assert tensors == [*vars(batch).values()][:5]
    assert starts is None
    assert made.names == []
