"""Exercise 01: bytes are counted by hand, attention is recomputed over the whole."""

import pytest
import torch

from course.grader import (
    expect,
    expect_close,
    expect_raises,
    expect_that,
    in_worker,
    rewrite_history,
    task,
)
from paged_attention.reference import attention

# 1.1


@task("1.1")
def test_a_token_leaves_a_key_and_a_value(exercise):
    got = exercise.bytes_per_token(1, 1, 1, 1, bits=8)
    expect(got, 2, "one key and one value of one number each, 8 bits a number")


@task("1.1")
def test_16_bits_are_2_bytes(exercise):
    got = exercise.bytes_per_token(1, 1, 1, 1, bits=16)
    expect(got, 4, "a key and a value of one number each, 2 bytes a number")


@task("1.1")
def test_each_layer_has_a_cache_of_its_own(exercise):
    got = exercise.bytes_per_token(3, 1, 1, 1, bits=8)
    expect(got, 6, "three layers hold three keys and three values")


@task("1.1")
def test_only_kv_heads_leave_something_behind(exercise):
    claim = "6 query heads read 2 KV heads; 2 keys and 2 values of 5 numbers are kept"
    expect(exercise.bytes_per_token(1, 6, 2, 5, bits=8), 20, claim)


@task("1.1")
def test_numbers_of_4_bits_take_half_a_byte(exercise):
    claim = "a key and a value of 6 numbers are 12 numbers, two in a byte"
    expect(exercise.bytes_per_token(1, 1, 1, 6, bits=4), 6, claim)


@task("1.1")
def test_real_models(exercise):
    for model, shape, expected in [
        ("SmolLM2-135M in float16", (30, 9, 3, 64, 16), 23_040),
        ("Llama-3-8B in bfloat16", (32, 32, 8, 128, 16), 131_072),
        ("Llama-2-7B in float16", (32, 32, 32, 128, 16), 524_288),
        ("Llama-3-70B with a cache of 8 bits", (80, 64, 8, 128, 8), 163_840),
    ]:
        expect(exercise.bytes_per_token(*shape), expected, f"a token of {model}")


# 1.2: token_bytes 10 and block_size 4, so a block takes 40 bytes


def sequences(exercise, memory_bytes, weight_bytes, lengths):
    return exercise.sequences_that_fit(memory_bytes, weight_bytes, 10, 4, lengths)


@task("1.2")
def test_one_block_holds_one_short_sequence(exercise):
    expect(sequences(exercise, 40, 0, [1]), 1, "40 bytes are one block of 4 tokens")


@task("1.2")
def test_part_of_a_block_is_of_no_use(exercise):
    expect(sequences(exercise, 39, 0, [1]), 0, "39 bytes are not a block of 40 bytes")


@task("1.2")
def test_a_full_block_needs_no_second_block(exercise):
    claim = "4 tokens fill one block of 4 exactly"
    expect(sequences(exercise, 80, 0, [4, 4]), 2, claim)


@task("1.2")
def test_the_weights_come_first(exercise):
    claim = "of 140 bytes the weights take 100; one block is left"
    expect(sequences(exercise, 140, 100, [4, 4]), 1, claim)
    claim = "of 80 bytes the weights take 39; in the other 41 is one block of 40"
    expect(sequences(exercise, 80, 39, [4, 4]), 1, claim)


@task("1.2")
def test_a_token_more_than_a_block_needs_a_second_block(exercise):
    claim = "5 tokens need two blocks of 4, that is 80 bytes"
    expect(sequences(exercise, 79, 0, [5]), 0, claim)
    expect(sequences(exercise, 80, 0, [5]), 1, claim)
    claim = "1001 tokens need two blocks of 1000, that is 2000 bytes at one per token"
    expect(exercise.sequences_that_fit(1999, 0, 1, 1000, [1001]), 0, claim)


@task("1.2")
def test_two_sequences_never_share_a_block(exercise):
    claim = "5 and 7 tokens need two blocks each; three blocks hold the first alone"
    expect(sequences(exercise, 120, 0, [5, 7]), 1, claim)


@task("1.2")
def test_a_short_sequence_does_not_jump_the_queue(exercise):
    claim = "the second one needs 3 blocks and 1 is left; the third waits behind it"
    expect(sequences(exercise, 80, 0, [4, 9, 1]), 1, claim)


@task("1.2")
def test_all_get_in_where_there_is_room(exercise):
    expect(sequences(exercise, 10_000, 100, [1, 4, 5]), 3, "nobody has to wait")


@task("1.2")
def test_nobody_waits(exercise):
    expect(sequences(exercise, 1_000, 0, []), 0, "an empty queue")


@task("1.2")
def test_weights_that_do_not_fit_leave_no_room(exercise):
    expect(sequences(exercise, 100, 1_000, [1]), 0, "the weights alone are too large")


@task("1.2")
def test_a_real_model_on_a_real_device(exercise):
    got = exercise.sequences_that_fit(
        memory_bytes=24_000_000_000,
        weight_bytes=16_060_522_496,
        token_bytes=131_072,
        block_size=16,
        lengths=[8_192] * 20,
    )
    claim = "Llama-3-8B on 24 GB: 3785 blocks are left, 8192 tokens need 512"
    expect(got, 7, claim)


# 1.3

HEADS = [(1, 1), (4, 4), (6, 2), (3, 1), (8, 1)]


class Tokens:
    """Random queries, keys and values of a sequence, and attention over all of it."""

    def __init__(self, num_tokens, num_heads, num_kv_heads, head_dim, size=1.0):
        chance = torch.Generator().manual_seed(num_tokens * 1000 + num_heads)

        def rows(heads):
            shape = (num_tokens, heads, head_dim)
            return torch.randn(shape, generator=chance, dtype=torch.float64)

        self.queries, self.keys = size * rows(num_heads), size * rows(num_kv_heads)
        self.values = rows(num_kv_heads)
        # Causal: row t is attention over the tokens 0 … t.
        self.whole = attention(self.queries, self.keys, self.values)

    def expect_step(self, layer, token, claim, atol=1e-12, dtype=torch.float64):
        """Step with one token and compare with its row of the whole."""
        rows = (self.queries[token], self.keys[token], self.values[token])
        got = layer.step(*(row.to(dtype) for row in rows))
        expect_close(got, self.whole[token].to(dtype), claim, atol=atol)


    def expect_steps(self, exercise, sizes, claim):
        """All steps at once, through three tensors that are used again and again."""
        layer = exercise.CachedAttention(*sizes)
        helper = "course.grader.helpers.ex01:steps_with_reused_tensors"
        rows = (self.queries, self.keys, self.values)
        story = [
            f"layer = CachedAttention{sizes}",
            f"layer.step(query, key, value), {len(self.keys)} times; after each step "
            "the caller fills its three tensors with NaN, then with the next token",
        ]
        try:
            got = in_worker(exercise, helper, layer, *rows)
        finally:
            rewrite_history(exercise, story)
        expect_close(got, self.whole, claim, atol=1e-12)


@task("1.3")
def test_the_first_token_sees_only_itself(exercise):
    tokens = Tokens(1, 1, 1, 2)
    layer = exercise.CachedAttention(1, 1, 2)
    tokens.expect_step(layer, 0, "over one token alone: the value of that token")


@task("1.3")
def test_the_second_token_sees_both(exercise):
    layer = exercise.CachedAttention(1, 1, 2)
    rows = [
        torch.tensor([row]).double() for row in ([0.0, 0.0], [2.0, 4.0], [6.0, 8.0])
    ]
    query, first, second = rows
    layer.step(query, first, first)
    got = layer.step(query, second, second)
    claim = "a query of zeros gives equal weights: the mean of both values"
    expect_close(got, torch.tensor([[4.0, 6.0]]).double(), claim, atol=1e-12)


@task("1.3")
def test_products_become_scores_and_scores_become_weights(exercise):
    # The query is all ones: the products are 2 ln 3 and 0, halved by 4 ** -0.5.
    layer = exercise.CachedAttention(2, 2, 4)
    ones, zeros = torch.ones(2, 4).double(), torch.zeros(2, 4).double()
    log3 = torch.tensor(3.0).double().log()
    layer.step(ones, ones * log3 / 2, ones)
    got = layer.step(ones, zeros, zeros)
    claim = (
        "head_dim 4: query · key is 2 ln 3 for the first token and 0 for the second; "
        "the weights are 3/4 and 1/4, so the result is 3/4 of the first value"
    )
    expect_close(got, ones * 0.75, claim, atol=1e-6)


@task("1.3")
def test_float64_is_not_rounded_on_the_way(exercise):
    tokens = Tokens(2, 1, 1, 2)
    layer = exercise.CachedAttention(1, 1, 2)
    for token in range(2):
        claim = f"token {token}: float64 in and out, not rounded to float32 in between"
        tokens.expect_step(layer, token, claim)


@task("1.3")
def test_query_heads_read_their_own_kv_head(exercise):
    num_heads, num_kv_heads = 6, 2
    layer = exercise.CachedAttention(num_heads, num_kv_heads, 1)
    value = torch.tensor([[10.0], [20.0]])
    got = layer.step(torch.zeros(6, 1), torch.zeros(2, 1), value)
    claim = "heads 0, 1, 2 read KV head 0 (value 10), heads 3, 4, 5 KV head 1 (20)"
    expect(got.flatten().tolist(), [10.0, 10.0, 10.0, 20.0, 20.0, 20.0], claim)


@task("1.3")
def test_query_heads_read_the_keys_of_their_own_kv_head(exercise):
    layer = exercise.CachedAttention(6, 2, 1)
    query, keys = torch.ones(6, 1), torch.tensor([[20.0], [-20.0]])
    layer.step(query, keys, torch.tensor([[10.0], [10.0]]))
    got = layer.step(query, -keys, torch.tensor([[20.0], [20.0]]))
    claim = (
        "KV head 0, of heads 0, 1, 2, has a large score for the first token (value "
        "10), KV head 1, of heads 3, 4, 5, for the second (20)"
    )
    expect(got.flatten().tolist(), [10.0, 10.0, 10.0, 20.0, 20.0, 20.0], claim)


@task("1.3")
@pytest.mark.parametrize(("num_heads", "num_kv_heads"), HEADS)
def test_every_step_equals_recomputing(exercise, num_heads, num_kv_heads):
    tokens = Tokens(9, num_heads, num_kv_heads, 5)
    layer = exercise.CachedAttention(num_heads, num_kv_heads, 5)
    for token in range(9):
        claim = f"token {token}, {num_heads} query heads over {num_kv_heads} KV heads"
        tokens.expect_step(layer, token, claim)


@task("1.3")
def test_seq_len_counts_the_tokens(exercise):
    tokens = Tokens(3, 2, 1, 4)
    layer = exercise.CachedAttention(2, 1, 4)
    expect(layer.seq_len, 0, "nothing is kept at first")
    for token in range(3):
        layer.step(tokens.queries[token], tokens.keys[token], tokens.values[token])
        expect(layer.seq_len, token + 1, "one token more after each step")


@task("1.3")
def test_two_sequences_know_nothing_of_each_other(exercise):
    one, two = Tokens(3, 2, 2, 4), Tokens(4, 2, 2, 4)
    first, second = (exercise.CachedAttention(2, 2, 4) for _ in range(2))
    for token in range(3):
        one.expect_step(first, token, "the first sequence sees its own tokens only")
        two.expect_step(second, token, "the second sequence sees its own tokens only")


@task("1.3")
def test_float32_stays_float32(exercise):
    tokens = Tokens(4, 3, 1, 6)
    layer = exercise.CachedAttention(3, 1, 6)
    for token in range(4):
        claim = "float32 in, float32 out"
        tokens.expect_step(layer, token, claim, 1e-5, torch.float32)


@task("1.3")
def test_large_scores_stay_finite(exercise):
    tokens = Tokens(3, 2, 1, 4, size=150.0)
    layer = exercise.CachedAttention(2, 1, 4)
    for token in range(3):
        claim = "scores of many thousands (exp() of them is infinite)"
        # float64 keeps 16 digits; a score of 10**5 leaves 11 of them behind the point.
        tokens.expect_step(layer, token, claim, 1e-9)


@task("1.3")
def test_the_caller_may_overwrite_its_tensors(exercise):
    tokens = Tokens(5, 4, 2, 3)
    claim = "the same three tensors, filled with NaN after each step and used again"
    tokens.expect_steps(exercise, (4, 2, 3), claim)


@task("1.3")
def test_a_long_sequence_is_kept_whole(exercise):
    tokens = Tokens(600, 1, 1, 1)
    claim = "600 tokens: however many come, all are kept"
    tokens.expect_steps(exercise, (1, 1, 1), claim)


@task("1.3")
def test_query_heads_must_divide_evenly(exercise):
    make = exercise.CachedAttention
    for num_heads, num_kv_heads in [(3, 2), (33, 2), (2, 3)]:
        claim = f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly"
        expect_raises(ValueError, make, num_heads, num_kv_heads, 4, claim=claim)


# 1.4


def expect_seconds(got, expected, claim):
    expect_close(got, expected, claim, atol=expected * 1e-9)


@task("1.4")
def test_without_a_cache_only_the_weights_are_read(exercise):
    got = exercise.decode_seconds(3_000_000_000, 100, [0], 1)
    expect_seconds(got, 3.0, "3 GB of weights at 1 GB (10**9 bytes) per second")


@task("1.4")
def test_every_cached_token_is_read(exercise):
    got = exercise.decode_seconds(1_000_000_000, 1_000_000, [500], 2)
    expect_seconds(got, 0.75, "1 GB of weights and 500 tokens of 1 MB at 2 GB/s")


@task("1.4")
def test_the_batch_shares_one_reading_of_the_weights(exercise):
    got = exercise.decode_seconds(1_000_000_000, 1_000_000, [100, 0, 400], 1)
    expect_seconds(got, 1.5, "1 GB of weights once, 100 + 0 + 400 tokens of 1 MB")


@task("1.4")
def test_the_floor_of_a_real_model(exercise):
    got = exercise.decode_seconds(16_060_522_496, 131_072, [4096] * 8, 3350)
    claim = "Llama-3-8B, 8 sequences of 4096 tokens, 3350 GB/s: about 6.1 ms"
    expect_seconds(got, 20_355_489_792 / 3_350_000_000_000, claim)


@task("1.4")
def test_one_sequence_can_outweigh_small_weights(exercise):
    got = exercise.cache_heavy_batch(100, 10, 11)
    expect(got, 1, "one sequence reads 110 bytes of cache, the weights are 100")


@task("1.4")
def test_as_many_bytes_are_not_more(exercise):
    got = exercise.cache_heavy_batch(100, 10, 5)
    claim = "2 sequences read 100 bytes of cache, as many as weights; it takes 3"
    expect(got, 3, claim)


@task("1.4")
def test_the_batch_is_the_smallest_that_will_do(exercise):
    for weight_bytes, token_bytes, context_len in [
        (101, 10, 5),
        (99, 10, 5),
        (7, 3, 1),
        (9_999_999, 10, 1_000_000),
    ]:
        batch = exercise.cache_heavy_batch(weight_bytes, token_bytes, context_len)
        cache_bytes = context_len * token_bytes
        expect_that(
            batch * cache_bytes > weight_bytes >= (batch - 1) * cache_bytes,
            f"weights of {weight_bytes} bytes, {cache_bytes} bytes per sequence",
            got=batch,
            expected=f"{weight_bytes // cache_bytes + 1}, the smallest batch whose "
            "cache is larger than the weights",
        )


@task("1.4")
def test_a_real_model_needs_many_sequences(exercise):
    got = exercise.cache_heavy_batch(16_060_522_496, 131_072, 4096)
    claim = "Llama-3-8B with 4096 tokens each: 29.9 sequences weigh as much as it does"
    expect(got, 30, claim)
