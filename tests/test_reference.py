import pytest
import torch

from paged_attention.reference import attention


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
