"""Exercise 10: against attention in float64. Pools are NaN wherever no token lies."""

from math import log

import torch

from course.grader import (
    Huge,
    ahead_of_time,
    compiled,
    expect_raises,
    expect_that,
    kernel_run,
    on_gpu,
    rewrite_history,
    task,
)
from course.grader.paged_batch import (
    NAN,
    Batch,
    equal_weights,
    expect_result,
    expect_weights,
    in_one_buffer,
    make_batch,
    turned,
    unwritten,
    with_gaps,
)

# The first block that begins at element 2**31, if a block has 2**14 elements.
FAR = 131_072


def one_head(seq_lens, head_dim=8, block_size=4, seed=0):
    return make_batch(
        seq_lens,
        num_heads=1,
        num_kv_heads=1,
        head_dim=head_dim,
        block_size=block_size,
        seed=seed,
    )


def cases(exercise, name, *values):
    """One value after the other; a report tells of the one that failed alone."""
    for value in values:
        rewrite_history(exercise, [f"{name} = {value}"])
        yield value


# 10.1


def walked(exercise, batch, backwards=False):
    """out, for one of make_batch with full blocks."""
    flat = batch.one_head()
    num_blocks = flat.seq_lens // flat.key_cache.shape[1]
    run = kernel_run(
        exercise.walk_full_blocks,
        unwritten(*flat.query.shape),
        *flat.arguments[:-1],
        num_blocks,
        backwards=backwards,
    )
    return run.after(0)


def check_walk(exercise, batch, claim, expected=None, backwards=False):
    got = walked(exercise, batch, backwards)
    if expected is None:
        expected = batch.oracle()[:, 0]
    expect_result(got, expected, claim, atol=batch.tolerance(expected))


@task("10.1")
def test_every_token_of_a_table_has_its_weight(exercise):
    for sizes in cases(exercise, "tokens of each sequence", (2,), (6, 2)):
        batch = one_head(sizes, block_size=2).showing_weights()
        weights = [equal_weights(range(size)) for size in sizes]
        claim = "out: blocks of 2 tokens, a query of zeros"
        expect_weights(walked(exercise, batch), weights, claim)


@task("10.1")
def test_a_product_is_scaled_and_weighs_as_its_exponential(exercise):
    batch = one_head([3], block_size=1).showing_weights()
    batch = with_scores(batch, 0.0, log(2), log(5))
    claim = "out: three blocks; query · key * scale is 0, ln 2 and ln 5: exp 1, 2, 5"
    expect_weights(walked(exercise, batch), [[0.125, 0.25, 0.625]], claim)


@task("10.1")
def test_one_block_is_attended_to(exercise):
    check_walk(exercise, one_head([4]), "out: attention over one full block")


@task("10.1")
def test_a_table_is_walked_to_its_end(exercise):
    check_walk(exercise, one_head([8]), "out: attention over two blocks")
    check_walk(exercise, one_head([20]), "out: attention over five blocks")


@task("10.1")
def test_each_sequence_has_a_table_of_its_own(exercise):
    claim = "out: attention over 2, 1 and 4 blocks"
    check_walk(exercise, one_head([8, 4, 16]), claim)
    check_walk(exercise, one_head([8, 4, 16]), claim, backwards=True)


@task("10.1")
def test_blocks_and_heads_have_any_power_of_two(exercise):
    sizes = cases(exercise, "block_size, head_dim", (1, 16), (2, 4), (16, 32))
    for block_size, head_dim in sizes:
        batch = one_head([3 * block_size, block_size], head_dim, block_size)
        claim = f"out: blocks of {block_size} tokens, heads of {head_dim} numbers"
        check_walk(exercise, batch, claim)


def with_scores(batch, *scores):
    """Every number of the query is 1; token i of each sequence has score i, in turn."""
    key, head_dim = batch.key_cache.clone(), batch.key_cache.shape[3]
    block_size = key.shape[1]
    for table, seq_len in zip(batch.block_tables, batch.seq_lens.tolist(), strict=True):
        for i in range(seq_len):
            row = key[table[i // block_size], i % block_size]
            row.fill_(scores[i % len(scores)] / head_dim**0.5)
    return batch.but(key_cache=key).filled(query=1.0)


@task("10.1")
def test_scores_may_have_any_size(exercise):
    for score in cases(exercise, "score", -60_000, -200, 200, 60_000):
        batch = with_scores(one_head([8, 4]), score)
        claim = f"out: every score is {score:,.0f}, so it is the mean of the values"
        mean = torch.stack([batch.value_cache[rows].mean(0) for rows in rows_of(batch)])
        check_walk(exercise, batch, claim, mean[:, 0])


def rows_of(batch):
    """For each sequence, which rows of a cache are its tokens."""
    for i in range(len(batch.seq_lens)):
        alone = batch.but(
            block_tables=batch.block_tables[i : i + 1],
            seq_lens=batch.seq_lens[i : i + 1],
        )
        yield alone.tokens(batch.key_cache)


@task("10.1")
def test_a_larger_score_may_come_later(exercise):
    batch = with_scores(one_head([12]), 0.0, -3.0, 1.0, 0.5, 30.0, 2.0, 29.0, 1.0)
    claim = "out: the largest score is in the second block of three"
    check_walk(exercise, batch, claim)


@task("10.1")
@ahead_of_time
def test_the_walk_compiles_for_a_gpu(exercise):
    batch = one_head([32, 16], head_dim=64, block_size=16).one_head()
    out = torch.empty(batch.query.shape)
    num_blocks = torch.tensor([2, 1], dtype=torch.int32)
    compiled(exercise.walk_full_blocks, out, *batch.arguments[:-1], num_blocks)


@task("10.1")
@on_gpu
def test_the_walk_is_right_on_a_gpu(exercise):
    test_each_sequence_has_a_table_of_its_own(exercise)
    test_a_larger_score_may_come_later(exercise)


# 10.2


def one_head_run(exercise, batch, backwards=False):
    flat = batch.one_head()
    out = unwritten(*flat.query.shape)
    run = kernel_run(
        exercise.attend_one_head, out, *flat.arguments, backwards=backwards
    )
    return run.after(0)


def check_one_head(exercise, batch, claim, expected=None, backwards=False):
    got = one_head_run(exercise, batch, backwards)
    if expected is None:
        expected = batch.oracle()[:, 0]
    expect_result(got, expected, claim, atol=batch.tolerance(expected))


def check_holes(exercise, seq_lens, holes, claim, block_size=4, backwards=False):
    """holes: logical blocks of sequence 0 that were given back, and have new owners."""
    batch = one_head(seq_lens, 20, block_size)
    tables, key_cache, value_cache = (
        tensor.clone()
        for tensor in (batch.block_tables, batch.key_cache, batch.value_cache)
    )
    expected = batch.oracle()[:, 0]
    kept = [at for at in range(seq_lens[0]) if at // block_size not in holes]
    places = [(tables[0, at // block_size], at % block_size, 0) for at in kept]
    keys = [key_cache[place].double() for place in places]
    values = [value_cache[place].double() for place in places]
    expected[0] = 0.0
    if kept:
        scores = torch.stack(keys) @ batch.query[0, 0].double() * 20**-0.5
        expected[0] = scores.softmax(dim=0) @ torch.stack(values)
    for j in holes:
        for cache in (key_cache, value_cache):
            cache[tables[0, j]] = NAN
        tables[0, j] = -1
    batch = batch.but(block_tables=tables, key_cache=key_cache, value_cache=value_cache)
    check_one_head(exercise, batch, claim, expected, backwards)


@task("10.2")
def test_every_token_has_its_weight_and_nothing_else(exercise):
    for sizes in cases(exercise, "tokens of each sequence", (3,), (7, 0, 1)):
        batch = one_head(sizes).showing_weights()
        weights = [equal_weights(range(size)) for size in sizes]
        claim = "out: blocks of 4 tokens, a query of zeros"
        expect_weights(one_head_run(exercise, batch), weights, claim)


@task("10.2")
def test_products_of_one_head_are_scaled(exercise):
    batch = one_head([3], 5, 2).showing_weights()
    batch = with_scores(batch, 0.0, log(2), log(5))
    claim = "out: two blocks; query · key * scale is 0, ln 2 and ln 5: exp 1, 2, 5"
    expect_weights(one_head_run(exercise, batch), [[0.125, 0.25, 0.625]], claim)


@task("10.2")
def test_tokens_of_a_hole_have_no_weight(exercise):
    for hole in cases(exercise, "the hole is block", 1, 0, 2):
        batch = one_head([7], block_size=3)
        tables = batch.block_tables.clone()
        tables[0, hole] = -1
        batch = batch.showing_weights().but(block_tables=tables)
        weights = [equal_weights([i for i in range(7) if i // 3 != hole])]
        claim = f"out: 7 tokens in blocks of 3, a query of zeros, entry {hole} is -1"
        expect_weights(one_head_run(exercise, batch), weights, claim)


@task("10.2")
def test_one_token_gives_its_value(exercise):
    batch = one_head([1])
    claim = "out: of one token, its value"
    check_one_head(
        exercise, batch, claim, batch.value_cache[rows_of_first(batch)][:, 0]
    )


def rows_of_first(batch):
    return next(rows_of(batch))


@task("10.2")
def test_garbage_behind_the_last_token_is_not_seen(exercise):
    """One cache at a time, so that the report says which."""
    both = ("value_cache", "key_cache")
    for name, other in cases(exercise, "NaN, not NaN", both, both[::-1]):
        batch = one_head([5], block_size=16)
        batch = batch.but(**{other: getattr(batch, other).nan_to_num(0.0)})
        claim = f"out: 5 tokens in a block of 16; {name} is NaN behind them"
        check_one_head(exercise, batch, claim)


@task("10.2")
def test_lengths_may_end_anywhere_in_a_block(exercise):
    batch = one_head([3, 4, 5, 8, 13])
    check_one_head(exercise, batch, "out: 3, 4, 5, 8 and 13 tokens in blocks of 4")
    claim = "out: in any order of programs"
    check_one_head(exercise, batch, claim, backwards=True)


@task("10.2")
def test_an_empty_row_gives_zeros(exercise):
    check_one_head(exercise, one_head([0]), "out: of no token, zeros")
    claim = "out: 16, 0, 1 and 17 tokens in blocks of 16"
    check_one_head(exercise, one_head([16, 0, 1, 17], 16, 16), claim)


def check_block_size(exercise, block_size):
    batch = one_head([block_size + 1, 2 * block_size, 5], 20, block_size)
    check_one_head(exercise, batch, f"out: blocks of {block_size} tokens")


@task("10.2")
def test_blocks_have_any_size(exercise):
    for block_size in cases(exercise, "block_size", 1, 3, 12, 40):
        check_block_size(exercise, block_size)


def check_head_dim(exercise, head_dim):
    batch = one_head([6, 3, 4], head_dim, 3)
    check_one_head(exercise, batch, f"out: heads of {head_dim} numbers")


@task("10.2")
def test_heads_have_any_size(exercise):
    for head_dim in cases(exercise, "head_dim", 1, 5, 96, 136):
        check_head_dim(exercise, head_dim)


def check_some_holes(exercise, holes):
    claim = f"out: 18 and 6 tokens in blocks of 4; blocks {holes} of the first are gone"
    check_holes(exercise, [18, 6], holes, claim)
    check_holes(exercise, [18, 6], holes, f"{claim}, in any order", backwards=True)


@task("10.2")
def test_the_tokens_of_a_hole_count_for_nothing(exercise):
    for holes in cases(exercise, "holes", [1], [1, 2], [0], [4], [0, 2, 4]):
        check_some_holes(exercise, holes)


@task("10.2")
def test_a_hole_may_be_longer_than_any_tile(exercise):
    claim = "out: 602 tokens in blocks of 12, of which only the last two are left"
    check_holes(exercise, [602], list(range(50)), claim, block_size=12)
    claim = "out: 602 tokens in blocks of 12, of which the first 12 and the last two"
    check_holes(exercise, [602], list(range(1, 50)), claim, block_size=12)


@task("10.2")
def test_of_holes_alone_come_zeros(exercise):
    claim = "out: zeros for 7 tokens that are all gone, beside 5 tokens that are not"
    check_holes(exercise, [7, 5], [0, 1], claim)


@task("10.2")
def test_no_score_is_less_than_that_of_a_place_without_token(exercise):
    for score in cases(exercise, "score", -60_000, 60_000):
        batch = with_scores(one_head([6, 1], 16, 4), score)
        claim = f"out: every score is {score:,.0f}, so it is the mean of the values"
        mean = torch.stack([batch.value_cache[rows].mean(0) for rows in rows_of(batch)])
        check_one_head(exercise, batch, claim, mean[:, 0])


@task("10.2")
def test_a_block_id_times_a_stride_passes_2_to_the_31(exercise):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 128, 128, generator=generator)
    query = torch.randn(1, 128, generator=generator)
    tables = torch.tensor([[FAR, -1]], dtype=torch.int32)
    lens = torch.tensor([5], dtype=torch.int32)
    caches = [Huge((FAR + 1, 128, 128), {FAR: row}) for row in rows]
    out = unwritten(1, 128)
    run = kernel_run(exercise.attend_one_head, out, query, *caches, tables, lens)
    near = Batch(query[:, None], *rows[:, None, :, None], tables - tables[:, :1], lens)
    expected = near.oracle()[:, 0]
    claim = f"out: 5 tokens in block {FAR:,} of 128 x 128 numbers"
    expect_result(run.after(0), expected, claim, atol=near.tolerance(expected))


@task("10.2")
@ahead_of_time
def test_one_head_compiles_for_a_gpu(exercise):
    batch = one_head([5, 0], head_dim=80, block_size=12).one_head()
    compiled(exercise.attend_one_head, torch.empty(batch.query.shape), *batch.arguments)


@task("10.2")
@on_gpu
def test_one_head_is_right_on_a_gpu(exercise):
    test_lengths_may_end_anywhere_in_a_block(exercise)
    test_an_empty_row_gives_zeros(exercise)
    check_block_size(exercise, 3)
    check_head_dim(exercise, 80)
    check_some_holes(exercise, [0, 2, 4])
    test_a_hole_may_be_longer_than_any_tile(exercise)


# 10.3


def check_grouped(exercise, batch, claim, expected=None, scale=None, backwards=False):
    named = {} if scale is None else {"scale": scale}
    run = kernel_run(
        exercise.attend_grouped, *batch.arguments, backwards=backwards, **named
    )
    if expected is None:
        expected = batch.oracle(scale)
    expect_result(run.value, expected, claim, atol=batch.tolerance(expected))


@task("10.3")
def test_both_heads_weigh_each_token(exercise):
    batch = make_batch([7, 0, 1], num_heads=2, num_kv_heads=1, head_dim=16)
    run = kernel_run(exercise.attend_grouped, *batch.showing_weights().arguments)
    weights = [equal_weights(range(size)) for size in (7, 0, 1)]
    for head in range(2):
        claim = f"query head {head}, zeros, reads KV head 0; blocks of 4 tokens"
        expect_weights(run.value[:, head], weights, claim)


@task("10.3")
def test_two_heads_share_a_kv_head(exercise):
    batch = make_batch([3], num_heads=2, num_kv_heads=1, head_dim=16)
    check_grouped(exercise, batch, "3 tokens, 2 query heads over 1 KV head")


def per_head(batch):
    """1 for the query heads that read KV head 0, 2 for those of KV head 1, …"""
    num_seqs, num_heads, head_dim = batch.query.shape
    num_kv_heads = batch.key_cache.shape[2]
    number = torch.arange(1.0, num_kv_heads + 1)
    number = number.repeat_interleave(num_heads // num_kv_heads)
    return number[None, :, None].expand(num_seqs, num_heads, head_dim)


@task("10.3")
def test_each_query_head_reads_the_values_of_its_kv_head(exercise):
    groups = [(4, 4), (6, 2), (3, 1), (32, 1), (16, 8)]
    for heads, kv_heads in cases(exercise, "num_heads, num_kv_heads", *groups):
        batch = make_batch([1], num_heads=heads, num_kv_heads=kv_heads, head_dim=16)
        value = torch.arange(1.0, kv_heads + 1)[:, None]
        value = torch.where(batch.value_cache.isnan(), NAN, value)
        claim = (
            f"{heads} query heads over {kv_heads}: one token, whose value is 1 in "
            "KV head 0, 2 in KV head 1 and so on"
        )
        batch = batch.but(value_cache=value)
        check_grouped(exercise, batch, claim, per_head(batch))


@task("10.3")
def test_each_query_head_reads_the_keys_of_its_kv_head(exercise):
    for sizes in cases(exercise, "num_heads, num_kv_heads", (6, 2), (9, 3)):
        check_keys_per_head(exercise, *sizes)


def check_keys_per_head(exercise, num_heads, num_kv_heads):
    """Token i has the value i + 1 and, in KV head i alone, a key above all others."""
    sizes = {"num_heads": num_heads, "num_kv_heads": num_kv_heads, "head_dim": 16}
    batch = make_batch([num_kv_heads], block_size=num_kv_heads, **sizes)
    batch = batch.filled(query=1.0, key_cache=0.0)
    key, value = batch.key_cache.clone(), batch.value_cache.clone()
    block = int(batch.block_tables[0, 0])
    for i in range(num_kv_heads):
        key[block, i, i] = 100.0
        value[block, i] = i + 1.0
    claim = (
        f"{num_heads} query heads over {num_kv_heads}: KV head 0 finds token 0, whose "
        "value is 1, KV head 1 finds token 1, whose value is 2, and so on"
    )
    batch = batch.but(key_cache=key, value_cache=value)
    check_grouped(exercise, batch, claim, per_head(batch))


@task("10.3")
def test_heads_that_cannot_be_shared_are_refused(exercise):
    batch = make_batch([2], num_heads=33, num_kv_heads=2, head_dim=16)
    claim = "2 KV heads do not divide 33 query heads"
    expect_raises(ValueError, exercise.attend_grouped, *batch.arguments, claim=claim)


@task("10.3")
def test_lengths_may_be_ragged_and_empty(exercise):
    batch = make_batch([5, 0, 16, 1, 17], block_size=16)
    claim = "5, 0, 16, 1 and 17 tokens in blocks of 16, 6 query heads over 2"
    check_grouped(exercise, batch, claim)
    check_grouped(exercise, batch, f"{claim}, in any order of programs", backwards=True)


@task("10.3")
def test_grouped_blocks_have_any_size(exercise):
    for block_size in cases(exercise, "block_size", 1, 3, 8, 12, 24, 40):
        seq_lens = [2 * block_size, block_size + 1]
        batch = make_batch(seq_lens, num_heads=3, num_kv_heads=1, block_size=block_size)
        check_grouped(exercise, batch, f"blocks of {block_size} tokens")


def check_scale(exercise, head_dim):
    batch = make_batch([6, 3], num_heads=3, num_kv_heads=1, head_dim=head_dim)
    check_grouped(exercise, batch, f"scale: {head_dim} ** -0.5")


@task("10.3")
def test_the_scale_is_that_of_the_true_head_dim(exercise):
    for head_dim in cases(exercise, "head_dim", 80, 96, 120, 8, 256):
        check_scale(exercise, head_dim)


@task("10.3")
def test_another_scale_may_be_given(exercise):
    batch = make_batch([6], num_heads=3, num_kv_heads=1)
    check_grouped(exercise, batch, "scale=0.5", scale=0.5)
    check_grouped(exercise, batch, "scale=0.0: the mean of the values", scale=0.0)


@task("10.3")
def test_numbers_may_have_two_bytes(exercise):
    for dtype in cases(exercise, "dtype", torch.float16, torch.bfloat16):
        batch = make_batch([37, 9], head_dim=64, dtype=dtype)
        check_grouped(exercise, batch, f"{dtype}, 37 and 9 tokens")


@task("10.3")
def test_sums_pass_what_float16_can_hold(exercise):
    batch = make_batch(
        [5], num_heads=3, num_kv_heads=1, head_dim=64, dtype=torch.float16
    )
    batch = batch.filled(query=40.0, key_cache=40.0)
    claim = "query and key are 40 in float16: products of 102,400, which pass 65,504"
    mean = batch.value_cache[batch.tokens(batch.key_cache)].float().mean(0)
    expected = mean.expand(1, 3, 64).half()
    check_grouped(exercise, batch, claim, expected)
    claim = "values of 40,000 in float16, five of them with a weight of 1 each"
    expected = torch.full((1, 3, 64), 40_000.0, dtype=torch.float16)
    check_grouped(exercise, batch.filled(value_cache=40_000.0), claim, expected)


@task("10.3")
def test_grouped_scores_may_have_any_size(exercise):
    for score in cases(exercise, "score", -60_000, 60_000):
        batch = make_batch([5, 1], num_heads=3, num_kv_heads=1, head_dim=16)
        batch = with_scores(batch, score)
        mean = torch.stack([batch.value_cache[rows].mean(0) for rows in rows_of(batch)])
        claim = f"every score is {score:,.0f}, so it is the mean of the values"
        check_grouped(exercise, batch, claim, mean.expand(2, 3, 16))


def other_layouts(batch):
    """What a test says of it -> the same batch in other memory."""
    return {
        "K and V are kv[:, 0] and kv[:, 1] of one buffer": in_one_buffer(batch),
        "K in another order than V: heads before slots": batch.but(
            key_cache=turned(batch.key_cache, 1, 2)
        ),
        "query is transposed": batch.but(query=turned(batch.query, 0, 1)),
        "the numbers of a head are not neighbours": batch.but(
            query=turned(batch.query, 1, 2),
            key_cache=turned(batch.key_cache, 2, 3),
            value_cache=turned(batch.value_cache, 1, 3),
        ),
        "block_tables is a part of a wider table, seq_lens of a longer row": batch.but(
            block_tables=with_gaps(batch.block_tables, 1, -1),
            seq_lens=batch.seq_lens.repeat_interleave(2)[::2],
        ),
        "block_tables is transposed": batch.but(
            block_tables=turned(batch.block_tables, 0, 1)
        ),
        "block_tables and seq_lens are int64": batch.but(
            block_tables=batch.block_tables.long(), seq_lens=batch.seq_lens.long()
        ),
    }


@task("10.3")
def test_strides_are_not_taken_for_granted(exercise):
    batches = other_layouts(make_batch([5, 0, 9], head_dim=12))
    for layout in cases(exercise, "layout", *batches):
        check_grouped(exercise, batches[layout], layout)


@task("10.3")
def test_a_far_block_is_found(exercise):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 16, 8, 128, generator=generator).half()
    query = torch.randn(1, 8, 128, generator=generator).half()
    tables = torch.tensor([[FAR, -1]], dtype=torch.int32)
    lens = torch.tensor([5], dtype=torch.int32)
    caches = [Huge((FAR + 1, 16, 8, 128), {FAR: row}) for row in rows]
    run = kernel_run(exercise.attend_grouped, query, *caches, tables, lens)
    near = Batch(query, *rows[:, None], tables - tables[:, :1], lens)
    expected = near.oracle()
    claim = f"5 tokens in block {FAR:,} of 16 x 8 x 128 numbers"
    expect_result(run.value, expected, claim, atol=near.tolerance(expected))


def compiled_grouped(exercise, dtype, **sizes):
    batch = make_batch([33, 0], dtype=dtype, **sizes)
    return compiled(exercise.attend_grouped, *batch.arguments)


@task("10.3")
@ahead_of_time
def test_float16_is_multiplied_on_tensor_cores(exercise):
    made = compiled_grouped(exercise, torch.float16, head_dim=64, block_size=16)
    expect_that(
        sum(each.num_mma for each in made) >= 2,
        "both products are done on tensor cores; their instructions, mma, are counted "
        "in what is compiled for sm_80",
        got={each.kernel: each.num_mma for each in made},
        expected="2 or more: tl.dot of float16 tiles has some, of float32 tiles none",
    )


@task("10.3")
@ahead_of_time
def test_small_tiles_compile_too(exercise):
    sizes = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 8, "block_size": 1}
    compiled_grouped(exercise, torch.float16, **sizes)


@task("10.3")
@ahead_of_time
def test_float32_is_multiplied_in_full(exercise):
    made = compiled_grouped(exercise, torch.float32, head_dim=32, block_size=3)
    found = {each.kernel: each.assembly.count(".tf32") for each in made}
    expect_that(
        not any(found.values()),
        "float32 numbers are multiplied as they are: mma instructions for TF32",
        got=found,
        expected='none, thanks to tl.dot(…, input_precision="ieee")',
    )


@task("10.3")
@on_gpu
def test_groups_are_right_on_a_gpu(exercise):
    test_lengths_may_be_ragged_and_empty(exercise)
    check_scale(exercise, 120)
    test_numbers_may_have_two_bytes(exercise)
    test_sums_pass_what_float16_can_hold(exercise)
    test_strides_are_not_taken_for_granted(exercise)
