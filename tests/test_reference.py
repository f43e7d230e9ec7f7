import pytest
import torch

from paged_attention.reference import attention, paged_attention


def brute_force(query, key, value, scale):
    """One query and one head at a time, one score at a time, in plain loops."""
    num_queries, num_heads, head_dim = query.shape
    seq_len, num_kv_heads, _ = key.shape
    result = torch.zeros_like(query)
    for i in range(num_queries):
        last = seq_len - num_queries + i  # the position of this query
        for head in range(num_heads):
            kv_head = head * num_kv_heads // num_heads
            scores = [
                scale
                * sum(query[i, head, d] * key[j, kv_head, d] for d in range(head_dim))
                for j in range(last + 1)
            ]
            weights = torch.stack(scores).exp()
            for j in range(last + 1):
                share = weights[j] / weights.sum()
                result[i, head] += share * value[j, kv_head]
    return result


@pytest.mark.parametrize(
    ("num_queries", "seq_len", "num_heads", "num_kv_heads"),
    [(1, 1, 1, 1), (1, 5, 6, 2), (3, 5, 3, 1), (5, 5, 4, 4), (2, 7, 6, 3)],
)
def test_attention_is_what_plain_loops_give(
    num_queries, seq_len, num_heads, num_kv_heads
):
    generator = torch.Generator().manual_seed(seq_len)
    query = torch.randn(num_queries, num_heads, 3, generator=generator).double()
    key = torch.randn(seq_len, num_kv_heads, 3, generator=generator).double()
    value = torch.randn(seq_len, num_kv_heads, 3, generator=generator).double()
    expected = brute_force(query, key, value, scale=3**-0.5)
    assert (attention(query, key, value) - expected).abs().max() < 1e-12


def test_the_dtype_of_the_inputs_is_kept():
    one = torch.ones(1, 1, 4, dtype=torch.float64)
    assert attention(one, one, one).dtype == torch.float64
    assert attention(one.float(), one.float(), one.float()).dtype == torch.float32


def test_scale_can_be_given():
    query = torch.tensor([[[1.0]]])
    key = torch.tensor([[[0.0]], [[1.0]]])
    value = torch.tensor([[[0.0]], [[1.0]]])
    weight = attention(query, key, value, scale=2.0).item()
    assert weight == pytest.approx(1 / (1 + torch.e**-2))


def test_what_comes_after_a_query_does_not_reach_it():
    query, key, value = torch.ones(3, 2, 1, 4).unbind()
    before = attention(query, key, value)
    key[1], value[1] = 7.0, 7.0
    after = attention(query, key, value)
    assert torch.equal(after[0], before[0])
    assert not torch.equal(after[1], before[1])


@pytest.mark.parametrize(
    ("query", "key", "value", "message"),
    [
        ((1, 3, 4), (2, 2, 4), (2, 2, 4), "3 heads cannot share 2 KV heads"),
        ((3, 2, 4), (2, 2, 4), (2, 2, 4), "3 queries, but only 2 keys"),
        ((1, 2, 4), (2, 2, 4), (3, 2, 4), r"got \[2, 2, 4\] and \[3, 2, 4\]"),
        ((1, 2, 4), (2, 2, 5), (2, 2, 5), r"\[seq_len, num_kv_heads, 4\]"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(query, key, value, message):
    with pytest.raises(ValueError, match=message):
        attention(torch.ones(query), torch.ones(key), torch.ones(value))


def scattered(contiguous, block_ids, block_size, num_blocks=9):
    """[num_blocks, block_size, …] with the rows of contiguous in these blocks."""
    cache = torch.full((num_blocks, block_size, *contiguous.shape[1:]), float("nan"))
    cache = cache.to(contiguous.dtype)
    for position, row in enumerate(contiguous):
        cache[block_ids[position // block_size], position % block_size] = row
    return cache


@pytest.mark.parametrize("seq_len", [1, 3, 4, 5, 8, 11])
@pytest.mark.parametrize("query_len", [1, 3, 11])
def test_paged_attention_is_attention_over_the_same_tokens_in_a_row(query_len, seq_len):
    query_len = min(query_len, seq_len)
    generator = torch.Generator().manual_seed(seq_len)
    query = torch.randn(query_len, 6, 5, generator=generator).double()
    key, value = torch.randn(2, seq_len, 2, 5, generator=generator).double()
    block_ids = [7, 2, 5]
    result = paged_attention(
        query,
        scattered(key, block_ids, 4),
        scattered(value, block_ids, 4),
        torch.tensor([[*block_ids, -1]]),
        torch.tensor([seq_len]),
        query_start_loc=torch.tensor([0, query_len]),
    )
    assert (result - attention(query, key, value)).abs().max() < 1e-12


def test_each_sequence_of_a_batch_has_its_own_tokens_and_an_empty_one_gives_zeros():
    query, key, value = torch.randn(3, 7, 2, 4).double().unbind()
    block_ids = [3, 1, 8]
    result = paged_attention(
        query[:4],
        scattered(key, block_ids, 3),
        scattered(value, block_ids, 3),
        torch.tensor([[3, 1, 8], [-1, -1, -1], [3, -1, -1]]),
        torch.tensor([7, 0, 2]),
        query_start_loc=torch.tensor([0, 2, 3, 4]),
    )
    assert torch.allclose(result[:2], attention(query[:2], key, value))
    assert torch.equal(result[2], torch.zeros(2, 4).double())
    assert torch.allclose(result[3:], attention(query[3:4], key[:2], value[:2]))


@pytest.mark.parametrize("window", [1, 2, 5, 6])
def test_a_window_hides_all_but_the_last_keys_and_counts_the_query_itself(window):
    query, key, value = torch.randn(3, 6, 1, 4).double().unbind()
    result = paged_attention(
        query[-1:],
        scattered(key, [4, 0, 2], 2),
        scattered(value, [4, 0, 2], 2),
        torch.tensor([[4, 0, 2]]),
        torch.tensor([6]),
        window=window,
    )
    expected = attention(query[-1:], key[-window:], value[-window:])
    assert torch.allclose(result, expected)


def test_the_scale_reaches_paged_attention():
    query, key, value = torch.randn(3, 2, 1, 4).double().unbind()
    result = paged_attention(
        query[-1:],
        key[None],
        value[None],
        torch.tensor([[0]]),
        torch.tensor([2]),
        scale=3.0,
    )
    assert torch.allclose(result, attention(query[-1:], key, value, scale=3.0))
