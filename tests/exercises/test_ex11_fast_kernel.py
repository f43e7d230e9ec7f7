"""Exercise 11: parts are merged in float64; a formula is tried out; PTX is read."""

from collections import Counter
from math import log

import torch

from course.grader import (
    Huge,
    ahead_of_time,
    compiled,
    expect,
    expect_close,
    expect_that,
    kernel_run,
    on_gpu,
    rewrite_history,
    task,
)
from course.grader.kernel_layout import is_unwritten
from course.grader.paged_batch import (
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
from course.grader.ptx import loads_by_parameter

# The first block that begins at element 2**31, if a block has 2**14 elements.
FAR = 131_072
NO_KEYS = float("-inf")


def cases(exercise, name, *values):
    """One value after the other; a report tells of the one that failed alone."""
    for value in values:
        rewrite_history(exercise, [f"{name} = {value}"])
        yield value


# 11.1


def scratch(query, num_splits):
    num_seqs, num_heads, head_dim = query.shape
    part = unwritten(num_seqs, num_heads, num_splits, head_dim)
    return part, unwritten(num_seqs, num_heads, num_splits)


def splits_of(exercise, batch, num_splits, backwards=False, scale=None):
    """part and lse of a batch, of which the shapes are known to be right."""
    run = kernel_run(
        exercise.attend_splits,
        *scratch(batch.query, num_splits),
        *batch.arguments,
        batch.query.shape[2] ** -0.5 if scale is None else scale,
        backwards=backwards,
    )
    left = {"part": run.after(0), "lse": run.after(1)}
    counts = {name: int(is_unwritten(tensor).sum()) for name, tensor in left.items()}
    expect_that(
        not any(counts.values()),
        "every number of part and lse is stored, also of a split without keys (0 in "
        "part, -inf in lse); numbers that no program has stored",
        got=counts,
        expected={"part": 0, "lse": 0},
    )
    return left["part"], left["lse"]


def merged(part, lse):
    """The attention over all keys, from parts, in float64."""
    weights = lse.double().softmax(dim=2).nan_to_num(0.0)  # NaN: no key at all
    return (weights[..., None] * part.double()).sum(dim=2)


def check_splits(exercise, batch, num_splits, claim, backwards=False):
    part, lse = splits_of(exercise, batch, num_splits, backwards)
    expect_whole(batch, part, lse, f"{claim}, in {num_splits} splits")


def expect_whole(batch, part, lse, told):
    expected, total = batch.oracle().double(), batch.log_sum_exp()
    atol = batch.tolerance(expected)
    got = lse.double().logsumexp(dim=2)
    claim = f"{told}: lse of all splits together, as log of the sum of their exp"
    expect_result(got, total, claim, atol=5 * atol)
    claim = f"{told}: the parts, merged with the weights exp(lse)"
    expect_result(merged(part, lse), expected, claim, atol=atol)


@task("11.1")
def test_one_split_is_the_whole(exercise):
    batch = make_batch([3], num_heads=2, num_kv_heads=1, head_dim=16)
    part, lse = splits_of(exercise, batch.showing_weights(), 1)
    claim = "part of one split: 3 keys, a query of zeros, divided by the sum of weights"
    expect_weights(part[:, 0, 0], [equal_weights(range(3))], claim)
    claim = "lse of one split: 3 keys whose score is 0, so the natural logarithm of 3"
    expect_result(lse, torch.full((1, 2, 1), log(3)), claim, atol=1e-5)
    part, lse = splits_of(exercise, batch, 1)
    expected = batch.log_sum_exp().float()
    claim = "lse of one split: the logarithm of the sum of exp(score) over all keys"
    expect_result(lse[..., 0], expected, claim, atol=1e-5)
    claim = "part of one split: the attention over all keys, divided by its total"
    expect_result(part[:, :, 0], batch.oracle(), claim, atol=1e-5)


def counts_of(exercise, seq_len, num_splits):
    """How many keys each split has: with a query of zeros every score is 0."""
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 16, "block_size": 32}
    batch = make_batch([seq_len], **sizes)
    _, lse = splits_of(exercise, batch.filled(query=0.0), num_splits)
    return [round(number) for number in lse[0, 0].exp().nan_to_num(0.0).tolist()]


@task("11.1")
def test_splits_share_the_keys(exercise):
    # 191 keys fit into 3 splits of at most 64, with one place to spare.
    sizes = [(130, 2), (260, 4), (5, 3), (191, 3)]
    for seq_len, num_splits in cases(exercise, "keys, splits", *sizes):
        check_share(exercise, seq_len, num_splits)


def check_share(exercise, seq_len, num_splits):
    counts = counts_of(exercise, seq_len, num_splits)
    claim = f"{seq_len} keys in {num_splits} splits; the query is zeros: exp(lse)"
    expect(sum(counts), seq_len, f"{claim}, summed up: each key is in one split")
    share = -(-seq_len // num_splits // 64) * 64
    expect_that(
        max(counts) <= share,
        f"{claim} is how many keys each split has",
        got=counts,
        expected=f"at most {share} in each",
    )


@task("11.1")
def test_a_part_is_an_attention_of_its_own(exercise):
    batch = make_batch([130, 70], num_heads=2, num_kv_heads=1, block_size=24)
    part, lse = splits_of(exercise, batch.filled(value_cache=1.0), 3)
    expected = (lse > NO_KEYS).float()[..., None].expand(part.shape)
    claim = "every value is 1: part is 1 where a split has keys, else 0"
    expect_close(part, expected, claim, atol=1e-5)


@task("11.1")
def test_a_split_may_have_no_keys(exercise):
    sizes = [(3, 8), (33, 4), (0, 2)]
    for seq_len, num_splits in cases(exercise, "keys, splits", *sizes):
        check_empty_splits(exercise, seq_len, num_splits)


def check_empty_splits(exercise, seq_len, num_splits):
    batch = make_batch([seq_len], num_heads=2, num_kv_heads=1, head_dim=12)
    part, lse = splits_of(exercise, batch, num_splits)
    claim = f"{seq_len} keys in {num_splits} splits"
    nans = {"part": int(part.isnan().sum()), "lse": int(lse.isnan().sum())}
    expect_that(
        not any(nans.values()),
        f"{claim}: a split without keys has 0 in part and -inf in lse (0 / 0 is NaN, "
        "and so is -inf - (-inf)); numbers that are NaN",
        got=nans,
        expected={"part": 0, "lse": 0},
    )
    empty = part[lse == NO_KEYS]
    expect_close(empty, torch.zeros_like(empty), f"{claim}: part without keys", atol=0)
    expect_whole(batch, part, lse, claim)


@task("11.1")
def test_lengths_may_be_ragged(exercise):
    sizes = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 12, "block_size": 16}
    batch = make_batch([70, 0, 16, 1, 17], **sizes)
    check_splits(exercise, batch, 2, "70, 0, 16, 1 and 17 keys")
    check_splits(exercise, batch, 3, "in any order of programs", backwards=True)


@task("11.1")
def test_lse_is_a_natural_logarithm_in_float32(exercise):
    batch = make_batch([4], num_heads=2, num_kv_heads=1, head_dim=16)
    batch = batch.but(query=batch.query.half()).filled(query=40.0, key_cache=12.5)
    batch = batch.but(
        key_cache=batch.key_cache.half(), value_cache=batch.value_cache.half()
    )
    _, lse = splits_of(exercise, batch, 1, scale=0.25)
    expected = torch.full((1, 2, 1), 2000.0 + torch.tensor(4.0).log().item())
    claim = "4 keys, each with a score of 2,000: lse is 2,000 + log(4)"
    expect_close(lse, expected, claim, atol=1e-3)


@task("11.1")
def test_caches_may_have_two_bytes(exercise):
    sizes = {"num_heads": 3, "num_kv_heads": 1, "head_dim": 80, "block_size": 12}
    for dtype in cases(exercise, "dtype", torch.float16, torch.bfloat16):
        batch = make_batch([70, 9], dtype=dtype, **sizes)
        check_splits(exercise, batch, 2, f"{dtype}, 70 and 9 keys")


@task("11.1")
def test_groups_and_heads_may_be_large(exercise):
    sizes = {"num_heads": 20, "num_kv_heads": 1, "head_dim": 136, "block_size": 16}
    check_splits(exercise, make_batch([35], **sizes), 2, "20 heads of 136 numbers")


@task("11.1")
def test_strides_are_not_taken_for_granted(exercise):
    batch = make_batch([5, 66], head_dim=12, block_size=12)
    both = in_one_buffer(batch).but(query=turned(batch.query, 0, 1))
    check_splits(exercise, both, 2, "K and V in one buffer, query transposed")
    tables = with_gaps(batch.block_tables, 1, -1).long()
    turned_heads = turned(batch.key_cache, 1, 2)
    batch = batch.but(key_cache=turned_heads, block_tables=tables)
    check_splits(exercise, batch, 2, "K with heads before slots, int64 tables")


@task("11.1")
def test_a_far_block_is_found(exercise):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(2, 64, 2, 128, generator=generator).half()
    query = torch.randn(1, 2, 128, generator=generator).half()
    tables = torch.tensor([[FAR, -1]], dtype=torch.int32)
    lens = torch.tensor([5], dtype=torch.int32)
    caches = [Huge((FAR + 1, 64, 2, 128), {FAR: row}) for row in rows]
    run = kernel_run(
        exercise.attend_splits, *scratch(query, 1), query, *caches, tables, lens, 0.1
    )
    expected = Batch(query, *rows[:, None], tables - tables[:, :1], lens).oracle(0.1)
    got = run.after(0)[:, :, 0].half()
    claim = f"part: 5 keys in block {FAR:,} of 64 x 2 x 128 numbers"
    expect_close(got, expected, claim, atol=1e-2)


def parts(lse, head_dim, seed=0):
    """Parts for these lse [num_splits]: 2 sequences of 3 heads, all different."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, 3, len(lse), head_dim)
    part = torch.randn(shape, generator=generator)
    # Heads differ too: the next one has its splits in another order.
    rows = torch.tensor([lse[i:] + lse[:i] for i in range(6)]).view(2, 3, len(lse))
    part[rows == NO_KEYS] = 0.0
    return part, rows


def check_merge(exercise, part, lse, claim, dtype=torch.float32, backwards=False):
    out = unwritten(*part.shape[:2], part.shape[3], dtype=dtype)
    run = kernel_run(exercise.merge_splits, out, part, lse, backwards=backwards)
    expected = merged(part, lse).to(dtype)
    atol = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}[dtype]
    expect_result(run.after(0), expected, claim, atol=atol)


@task("11.1")
def test_the_shares_of_parts_are_those_of_exp_lse(exercise):
    """Part i is 1 at number i: so out is how much each part weighs."""
    part = torch.eye(3, 8)[None, None]
    lse = torch.tensor([[[0.0, log(2), log(5)]]])
    run = kernel_run(exercise.merge_splits, unwritten(1, 1, 8), part, lse)
    claim = "out: part i is 1 at number i, so out is the share of each part; lse is 0, "
    claim += "ln 2 and ln 5, so the sums are 1, 2 and 5"
    got = run.after(0)[0, 0, :3]
    expect_that(
        torch.allclose(got, torch.tensor([0.125, 0.25, 0.625]), atol=1e-4),
        claim,
        got=[round(share, 3) for share in got.tolist()],
        expected=[0.125, 0.25, 0.625],
    )


@task("11.1")
def test_one_part_is_the_result(exercise):
    check_merge(exercise, *parts([0.5], 16), "out: of one split, its part")


@task("11.1")
def test_a_part_weighs_as_much_as_its_lse_says(exercise):
    check_merge(exercise, *parts([0.0, 0.0], 16), "out: two parts of equal weight")
    check_merge(exercise, *parts([0.0, 1.0, 2.0], 5), "out: lse 0, 1 and 2")
    claim = "out: five splits, in any order of programs"
    check_merge(exercise, *parts([3.0, 1.0, 0.0, -2.0, 2.5], 20), claim, backwards=True)


@task("11.1")
def test_lse_may_have_any_size(exercise):
    claim = "out: lse of about 60,000"
    check_merge(exercise, *parts([60_000.0, 59_999.0, 60_001.0], 16), claim)
    claim = "out: lse of about -60,000"
    check_merge(exercise, *parts([-60_000.0, -60_001.0], 16), claim)
    check_merge(exercise, *parts([-60_000.0, 200.0], 16), "out: lse -60,000 and 200")


@task("11.1")
def test_parts_without_keys_weigh_nothing(exercise):
    claim = "out: lse 1, -inf and -5"
    check_merge(exercise, *parts([1.0, NO_KEYS, -5.0], 16), claim)
    claim = "out: lse -60,000 and three times -inf"
    check_merge(exercise, *parts([-60_000.0, NO_KEYS, NO_KEYS, NO_KEYS], 16), claim)
    check_merge(exercise, *parts([NO_KEYS, NO_KEYS], 16), "out: no key at all: zeros")


@task("11.1")
def test_splits_may_be_many_and_heads_large(exercise):
    lse = [float(i % 3) for i in range(130)]
    check_merge(exercise, *parts(lse, 136), "out: 130 splits, 136 numbers in a head")


@task("11.1")
def test_a_merge_may_be_stored_in_two_bytes(exercise):
    for dtype in (torch.float16, torch.bfloat16):
        check_merge(exercise, *parts([0.0, 1.0], 80), f"out in {dtype}", dtype)


@task("11.1")
def test_split_and_merged_is_the_same_as_whole(exercise):
    for num_splits in cases(exercise, "num_splits", 1, 3, 5):
        check_whole(exercise, num_splits)


def check_whole(exercise, num_splits):
    sizes = {"num_heads": 2, "num_kv_heads": 1, "block_size": 12}
    batch = make_batch([33, 0, 3], dtype=torch.float16, **sizes)
    run = kernel_run(exercise.attend_in_splits, *batch.arguments, num_splits=num_splits)
    claim = f"33, 0 and 3 keys in {num_splits} splits"
    expected = batch.oracle()
    expect_result(run.value, expected, claim, atol=batch.tolerance(expected))


@task("11.1")
@ahead_of_time
def test_splits_and_merge_compile_for_a_gpu(exercise):
    batch = make_batch([33, 0], head_dim=64, block_size=16, dtype=torch.float16)
    compiled(exercise.attend_in_splits, *batch.arguments, num_splits=3)


@task("11.1")
@on_gpu
def test_splits_are_right_on_a_gpu(exercise):
    test_lengths_may_be_ragged(exercise)
    test_strides_are_not_taken_for_granted(exercise)
    test_parts_without_keys_weigh_nothing(exercise)
    check_whole(exercise, 5)


# 11.2


def time_of(num_splits, num_programs, max_seq_len, num_processors):
    waves = -(-num_programs * num_splits // num_processors)
    return waves * -(-max_seq_len // num_splits)


def best_of(sizes, min_tokens, max_splits):
    allowed = [s for s in range(2, max_splits + 1) if s * min_tokens <= sizes[1]]
    return min([1, *allowed], key=lambda s: (time_of(s, *sizes), s))


def check_pick(exercise, *sizes, min_tokens=1, max_splits=64, claim=None):
    """sizes: num_programs, max_seq_len, num_processors."""
    expected = best_of(sizes, min_tokens, max_splits)
    got = exercise.pick_num_splits(*sizes, min_tokens, max_splits)
    told = claim or "the number of splits with the least time"
    if type(got) is int and got > 0 and got != expected:
        told += "; waves * tokens is "
        told += f"{in_words(expected, *sizes)}, {in_words(got, *sizes)}"
        if got > max_splits:
            told += f", but max_splits is {max_splits}"
        elif got > 1 and got * min_tokens > sizes[1]:
            told += f", but {got} * min_tokens is {got * min_tokens:,}"
        elif time_of(got, *sizes) == time_of(expected, *sizes):
            told += ": of equal times the fewest splits"
    expect(got, expected, told)


def in_words(num_splits, num_programs, max_seq_len, num_processors):
    waves = -(-num_programs * num_splits // num_processors)
    tokens = -(-max_seq_len // num_splits)
    what = "split" if num_splits == 1 else "splits"
    return f"{waves:,} * {tokens:,} = {waves * tokens:,} for {num_splits} {what}"


@task("11.2")
def test_one_sequence_fills_the_processors(exercise):
    check_pick(exercise, 1, 64, 4, claim="1 program, 4 processors: 4 splits of 16")
    check_pick(exercise, 2, 64, 8, claim="2 programs, 8 processors: 4 splits of 16")


@task("11.2")
def test_a_full_gpu_needs_no_splits(exercise):
    check_pick(exercise, 8, 64, 8, claim="8 programs, 8 processors: one full wave")
    claim = "16 programs, 8 processors: two full waves"
    check_pick(exercise, 16, 64, 8, claim=claim)


@task("11.2")
def test_a_second_wave_may_be_worth_it(exercise):
    check_pick(exercise, 5, 60, 8, max_splits=3, claim="5 programs, 8 processors")
    check_pick(exercise, 9, 120, 8, max_splits=7, claim="9 programs, 8 processors")


@task("11.2")
def test_of_equal_times_the_fewest_splits_win(exercise):
    check_pick(
        exercise, 3, 7, 100, max_splits=6, claim="ceil(7 / s) is 2 from s = 4 on"
    )
    check_pick(
        exercise, 8, 64, 8, max_splits=4, claim="1 to 4 splits take equally long"
    )


@task("11.2")
def test_a_split_has_at_least_min_tokens(exercise):
    claim = "1,000 tokens, at least 256 in a split: 3 splits at most"
    check_pick(exercise, 1, 1000, 132, min_tokens=256, claim=claim)
    claim = "1,024 tokens, at least 256 in a split: 4 splits at most"
    check_pick(exercise, 1, 1024, 132, min_tokens=256, claim=claim)
    claim = "100 tokens, at least 256 in a split: 1 is always allowed"
    check_pick(exercise, 1, 100, 132, min_tokens=256, claim=claim)


@task("11.2")
def test_there_are_never_more_than_max_splits(exercise):
    claim = "132 processors, but 64 splits at most"
    check_pick(exercise, 1, 16_384, 132, claim=claim)
    check_pick(exercise, 1, 16_384, 132, max_splits=1, claim="1 split at most")


@task("11.2")
def test_nothing_to_do_is_one_split(exercise):
    check_pick(exercise, 0, 64, 8, claim="no program at all: 1")
    check_pick(exercise, 3, 0, 8, claim="no token at all: 1")


@task("11.2")
def test_the_best_is_found_for_many_sizes(exercise):
    generator = torch.Generator().manual_seed(0)

    def draw(most):
        return int(torch.randint(1, most + 1, (1,), generator=generator))

    for _ in range(200):
        sizes = (draw(300), draw(20_000), draw(150))
        check_pick(exercise, *sizes, min_tokens=draw(512), max_splits=draw(64))


@task("11.2")
def test_a_decode_step_picks_for_itself(exercise):
    batch = make_batch([33, 5], block_size=12)
    run = kernel_run(exercise.attend_in_splits, *batch.arguments)
    claim = "attend_in_splits without num_splits"
    expect_close(run.value, batch.oracle(), claim, atol=1e-5)


# 11.3


def wide_batch(head_dim, seq_lens=(40, 0, 3), **sizes):
    """K of a buffer that holds both, V by itself: their strides differ."""
    sizes = {"num_heads": 6, "num_kv_heads": 3, "block_size": 8, **sizes}
    batch = make_batch(seq_lens, head_dim=head_dim, dtype=torch.float16, **sizes)
    return batch.but(key_cache=in_one_buffer(batch).key_cache)


@task("11.3")
def test_the_wide_kernel_weighs_each_token(exercise):
    batch = wide_batch(16, (9, 0, 3), num_heads=1, num_kv_heads=1).showing_weights()
    out = unwritten(*batch.query.shape, dtype=torch.float16)
    run = kernel_run(exercise.attend_wide, out, *batch.arguments)
    weights = [equal_weights(range(size)) for size in (9, 0, 3)]
    claim = "out: 9, 0 and 3 tokens in blocks of 8, a query of zeros"
    expect_weights(run.after(0)[:, 0], weights, claim)


@task("11.3")
def test_the_results_are_those_of_the_narrow_kernel(exercise):
    for head_dim in cases(exercise, "head_dim", 64, 120, 8):
        check_wide(exercise, head_dim)


def check_wide(exercise, head_dim):
    batch = wide_batch(head_dim, num_heads=4, num_kv_heads=2)
    out = unwritten(*batch.query.shape, dtype=torch.float16)
    run = kernel_run(exercise.attend_wide, out, *batch.arguments)
    expected = batch.oracle()
    claim = f"out: 40, 0 and 3 tokens, heads of {head_dim} numbers"
    expect_result(run.after(0), expected, claim, atol=batch.tolerance(expected))


@task("11.3")
def test_the_wide_kernel_sums_in_float32(exercise):
    batch = wide_batch(64, (5,), num_heads=2, num_kv_heads=1)
    batch = batch.filled(query=40.0, key_cache=40.0)
    mean = batch.value_cache[batch.tokens(batch.key_cache)].float().mean(0)
    run = kernel_run(
        exercise.attend_wide,
        unwritten(*batch.query.shape, dtype=torch.float16),
        *batch.arguments,
    )
    claim = "out: query and key are 40 in float16, their products 102,400, which passes "
    claim += "65,504: as attend_narrow, the mean of the values"
    expected = mean.expand(1, 2, 64).half()
    expect_result(run.after(0), expected, claim, atol=batch.tolerance(expected))


@task("11.3")
def test_keys_and_values_have_strides_of_their_own(exercise):
    batch = wide_batch(16, (5, 9), num_heads=2, num_kv_heads=2, block_size=3)
    batch = batch.but(
        value_cache=with_gaps(with_gaps(batch.value_cache, 0), 1),
        key_cache=turned(batch.key_cache, 1, 2),
    )
    out = unwritten(*batch.query.shape, dtype=torch.float16)
    run = kernel_run(exercise.attend_wide, out, *batch.arguments)
    expected = batch.oracle()
    claim = "out: values with gaps between slots and blocks, keys with heads first"
    expect_result(run.after(0), expected, claim, atol=batch.tolerance(expected))


@task("11.3")
def test_the_wide_kernel_finds_a_far_block(exercise):
    generator = torch.Generator().manual_seed(3)
    rows = torch.randn(2, 64, 2, 128, generator=generator).half()
    query = torch.randn(1, 2, 128, generator=generator).half()
    tables = torch.tensor([[FAR, -1]], dtype=torch.int32)
    lens = torch.tensor([5], dtype=torch.int32)
    caches = [Huge((FAR + 1, 64, 2, 128), {FAR: row}) for row in rows]
    out = unwritten(*query.shape, dtype=torch.float16)
    run = kernel_run(exercise.attend_wide, out, query, *caches, tables, lens)
    expected = Batch(query, *rows[:, None], tables - tables[:, :1], lens).oracle()
    claim = f"out: 5 keys in block {FAR:,} of 64 x 2 x 128 numbers, as attend_narrow"
    expect_close(run.after(0), expected, claim, atol=1e-2)


def widths(made, argument):
    """Bytes of one load from this argument of the launcher -> how many loads."""
    found = Counter()
    for each in made:
        for (parameters, width), count in loads_by_parameter(each.assembly).items():
            names = {each.parameters[p] for p in parameters if p < len(each.parameters)}
            if argument in names:
                found[width] += count
    return dict(sorted(found.items()))


@task("11.3")
@ahead_of_time
def test_keys_and_values_are_loaded_16_bytes_at_a_time(exercise):
    for head_dim in cases(exercise, "head_dim", 64, 120):
        check_loads(exercise, head_dim)


def check_loads(exercise, head_dim):
    batch = wide_batch(head_dim, block_size=16)
    out = torch.empty(batch.query.shape, dtype=torch.float16)
    made = compiled(exercise.attend_wide, out, *batch.arguments)
    heads = {64: "64 numbers", 120: "120 numbers (those of 64 are all right)"}
    for name, argument in (("key_cache", 2), ("value_cache", 3)):
        found = widths(made, argument)
        counts = [f"{width} bytes ({count} times)" for width, count in found.items()]
        expect_that(
            list(found) == [16],
            f"heads of {heads[head_dim]}: every load from {name} is 16 bytes wide in "
            "what is compiled for sm_80",
            got=f"loads of {', '.join(counts) or 'nothing'}",
            expected="loads of 16 bytes and no others (the end of the stub says how "
            "to look at them)",
        )


@task("11.3")
@on_gpu
def test_the_wide_kernel_is_right_on_a_gpu(exercise):
    check_wide(exercise, 64)
    check_wide(exercise, 120)
    test_keys_and_values_have_strides_of_their_own(exercise)
