"""Exercise 08: answers are compared with attention over tokens in a row, in float64.

Pools are filled with NaN wherever no token lies, ids are shuffled, and no two sizes of
a batch are the same. Rows of tables are longer than what is needed of them.
"""

import math
import random
from dataclasses import dataclass

import torch
from torch import Tensor

from course.grader import (
    expect,
    expect_close,
    expect_raises,
    expect_that,
    in_worker,
    measured,
    rewrite_history,
    task,
)

from course.grader.failures import CheckFailed
from course.grader.paged_batch import (
    equal_weights,
    expect_result,
    expect_weights,
    name_tokens,
)

HELPERS = "course.grader.helpers.ex08"
INF, NAN = float("inf"), float("nan")
LAYOUTS = ["one buffer", "heads first", "last axis"]
HALVES = [torch.float16, torch.bfloat16]
# Of the largest number in the right answer, or of 1.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def dense(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float | None = None,
    window: int | None = None,
) -> Tensor:
    """The oracle, one query and one head at a time; the queries are the last tokens.

    query [query_len, num_heads, head_dim], key [seq_len, num_kv_heads, head_dim]
    """
    query, key, value = query.double(), key.double(), value.double()
    group = query.shape[1] // key.shape[1]
    scale = query.shape[2] ** -0.5 if scale is None else scale
    result = torch.zeros_like(query)
    for i in range(len(query)):
        stop = len(key) - len(query) + i + 1
        first = 0 if window is None else max(0, stop - window)
        for head in range(query.shape[1]):
            keys = key[first:stop, head // group]
            weights = (keys @ query[i, head] * scale).softmax(dim=0)
            result[i, head] = weights @ value[first:stop, head // group]
    return result


@dataclass
class Batch:
    """Sequences in a row, and the same scattered over pools."""

    queries: list[Tensor]  # of each sequence [query_len, num_heads, head_dim]
    keys: list[Tensor]  # of each sequence [seq_len, num_kv_heads, head_dim]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    window: int | None = None

    @property
    def seq_lens(self) -> Tensor:
        return torch.tensor([len(key) for key in self.keys], dtype=torch.int32)

    @property
    def query_start_loc(self) -> Tensor:
        lens = torch.tensor([0, *map(len, self.queries)])
        return lens.cumsum(0).to(torch.int32)

    def arguments(self) -> list[Tensor]:
        """The first five of attend_over_blocks."""
        pools = [self.key_cache, self.value_cache]
        return [torch.cat(self.queries), *pools, self.block_tables, self.seq_lens]

    def one(self, *, decode: bool = False) -> list:
        """The arguments of tasks 8.1, 8.3 and 8.4 for the first sequence."""
        query = self.queries[0][0] if decode else self.queries[0]
        pools = [self.key_cache, self.value_cache]
        return [query, *pools, self.block_tables[0], len(self.keys[0])]

    def answer(self, scale: float | None = None) -> Tensor:
        """In float64. A sequence without tokens has rows of zeros."""
        return torch.cat(
            [
                dense(query, key, value, scale, self.window)
                if len(key)
                else torch.zeros_like(query, dtype=torch.float64)
                for query, key, value in zip(
                    self.queries, self.keys, self.values, strict=True
                )
            ]
        )

    def showing_weights(self) -> "Batch":
        """Queries of zeros, and values by which a result tells whom it has seen."""
        for query in self.queries:
            query.zero_()
        self.key_cache.nan_to_num_(0.0)
        self.value_cache = name_tokens(
            self.value_cache, self.block_tables, self.seq_lens
        )
        return self

    def weights(self) -> list[list[float]]:
        """Of each row of the result, then."""
        rows = []
        for query, key in zip(self.queries, self.keys, strict=True):
            for stop in range(len(key) - len(query) + 1, len(key) + 1):
                first = max(0, stop - self.window) if self.window else 0
                rows.append(equal_weights(range(first, stop)) if len(key) else [])
        return rows

    def expect_weights(self, exercise, claim: str, **options) -> None:
        """attend_over_blocks gives each row these weights."""
        arguments = self.showing_weights().arguments()
        got = exercise.attend_over_blocks(*arguments, **options)
        expect_weights(got[:, 0], self.weights(), f"{claim}, queries of zeros")

    def expect_all(self, exercise, claim: str, **options) -> None:
        """attend_over_blocks gives the answer for all rows."""
        options.setdefault("query_start_loc", self.query_start_loc)
        got = exercise.attend_over_blocks(*self.arguments(), **options)
        expect_attention(got, self.answer(options.get("scale")), self.queries, claim)


def make_batch(
    seq_lens: list[int],
    query_lens: list[int] | None = None,
    *,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 7,
    block_size: int = 4,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    seed: int = 8,
) -> Batch:
    """Random numbers. Blocks that no query sees are holes, as an engine makes them."""
    chance = torch.Generator().manual_seed(seed)

    def rows(num_rows: int, heads: int) -> Tensor:
        return torch.randn(num_rows, heads, head_dim, generator=chance).to(dtype)

    query_lens = query_lens or [1] * len(seq_lens)
    width = max((-(-n // block_size) for n in seq_lens), default=0)
    num_blocks = [-(-n // block_size) for n in seq_lens]
    batch = Batch(
        [rows(n, num_heads) for n in query_lens],
        [rows(n, num_kv_heads) for n in seq_lens],
        [rows(n, num_kv_heads) for n in seq_lens],
        *torch.full(
            (2, sum(num_blocks) + 5, block_size, num_kv_heads, head_dim),
            NAN,
            dtype=dtype,
        ).unbind(),
        torch.full((len(seq_lens), width + 2), -1, dtype=torch.int32),
        window,
    )
    batch.block_tables[:, -1] = 10**6  # no such block, and no token that needs it
    block_ids = shuffled(len(batch.key_cache), seed)
    for i, (query_len, seq_len) in enumerate(zip(query_lens, seq_lens, strict=True)):
        first = max(0, seq_len - query_len + 1 - window) if window else 0
        for j in range(first // block_size, num_blocks[i]):
            batch.block_tables[i, j] = block_id = block_ids.pop()
            place = slice(j * block_size, min((j + 1) * block_size, seq_len))
            count = place.stop - place.start
            batch.key_cache[block_id, :count] = batch.keys[i][place]
            batch.value_cache[block_id, :count] = batch.values[i][place]
    return batch


def shuffled(num_blocks: int, seed: int) -> list[int]:
    """Block ids in random order, the next one to be taken last; no 0.

    The first two that are taken are never in order. The last block of the pool is not
    among them, so that -1 finds NaN.
    """
    ids = list(range(1, num_blocks - 1))
    chance = random.Random(seed)
    chance.shuffle(ids)
    if ids[-1] < ids[-2]:
        ids[-1], ids[-2] = ids[-2], ids[-1]
    return ids


def one_sequence(seq_len: int, query_len: int = 1, **options) -> Batch:
    """For tasks up to 8.4: each head has keys and values of its own."""
    options = {"num_heads": 2, "num_kv_heads": 2, "head_dim": 5, **options}
    return make_batch([seq_len], [query_len], **{"block_size": 3, **options})


def with_block_0(batch: Batch) -> Batch:
    """The same, but block 0 of the pool is the first one of the first sequence."""
    block_id = int(batch.block_tables[0, 0])
    for pool in (batch.key_cache, batch.value_cache):
        pool[0] = pool[block_id]
        pool[block_id] = NAN
    batch.block_tables[0, 0] = 0
    return batch


def expect_attention(
    got: Tensor, answer: Tensor, like: list[Tensor] | Tensor, claim: str
) -> None:
    """got is the answer, in the dtype of the queries and as exact as that allows."""
    dtype = (like if isinstance(like, Tensor) else like[0]).dtype
    largest = max(1.0, answer.abs().max().item()) if answer.numel() else 1.0
    expect_result(got, answer.to(dtype), claim, atol=TOLERANCE[dtype] * largest)


def expect_decode(exercise, function, batch: Batch, claim: str) -> None:
    got = function(*batch.one(decode=True))
    expect_attention(got, batch.answer()[0], batch.queries, claim)


def expect_chunk(exercise, batch: Batch, claim: str) -> None:
    got = exercise.attend_chunk(*batch.one())
    expect_attention(got, batch.answer(), batch.queries, claim)


def expect_views(exercise, function, layout: str, arguments: list) -> Tensor:
    """What a call gives if the pools have other strides."""
    try:
        return in_worker(exercise, f"{HELPERS}:with_views", function, layout, arguments)
    finally:
        how = {
            "one buffer": "key_cache, value_cache = both[:, 0], both[:, 1]",
            "heads first": "in memory the axis of the heads lies before the slots",
            "last axis": "in memory head_dim is the first axis",
        }
        rewrite_history(exercise, [f"a call whose pools are views: {how[layout]}"])


def each(exercise, cases):
    """The cases of one test; if one fails, the report tells what was done in it."""
    for case in cases:
        rewrite_history(exercise)
        yield case


# 8.1


@task("8.1")
def test_equal_scores_give_the_mean_of_the_tokens_and_of_nothing_else(exercise):
    for seq_len in each(exercise, [2, 3, 4, 6, 7]):
        check_weights(exercise, exercise.gather_and_attend, seq_len)


def check_weights(exercise, function, seq_len: int) -> None:
    batch = one_sequence(seq_len, num_heads=1, num_kv_heads=1, head_dim=8)
    got = function(*batch.showing_weights().one(decode=True))
    claim = f"{seq_len} tokens in blocks of 3, a query of zeros"
    expect_weights(got, batch.weights(), claim)


@task("8.1")
def test_over_one_token_the_result_is_its_value(exercise):
    batch = one_sequence(1)
    claim = "one token: the result is its value (all other slots of the pools hold NaN)"
    got = exercise.gather_and_attend(*batch.one(decode=True))
    expect_attention(got, batch.values[0][0], batch.queries, claim)


@task("8.1")
def test_products_are_scaled(exercise):
    for head_dim in each(exercise, [4, 5]):
        batch = one_sequence(2, num_heads=1, num_kv_heads=1, head_dim=head_dim)
        block_id = int(batch.block_tables[0, 0])
        batch.queries[0].fill_(1.0)
        batch.key_cache[block_id, 0] = math.log(3) * head_dim**-0.5
        batch.key_cache[block_id, 1] = 0.0
        batch.value_cache[block_id, 0], batch.value_cache[block_id, 1] = 8.0, 0.0
        got = exercise.gather_and_attend(*batch.one(decode=True))
        claim = (
            f"head_dim {head_dim}: query · key is {head_dim} ** 0.5 * ln 3 and 0, the "
            "scores are ln 3 and 0, the weights 3/4 and 1/4; of the values 8 and 0 "
            "that makes 6"
        )
        expect_close(got, torch.full((1, head_dim), 6.0), claim, atol=1e-5)


@task("8.1")
def test_any_length(exercise):
    for seq_len in each(exercise, [1, 2, 3, 4, 6, 7, 20]):
        claim = f"{seq_len} tokens in blocks of 3; what is no token is NaN"
        expect_decode(
            exercise, exercise.gather_and_attend, one_sequence(seq_len), claim
        )


@task("8.1")
def test_any_block_size(exercise):
    for block_size in each(exercise, [1, 3, 8, 12, 24]):
        batch = one_sequence(25, block_size=block_size, num_heads=4, num_kv_heads=4)
        claim = f"25 tokens in blocks of {block_size}, 4 heads"
        expect_decode(exercise, exercise.gather_and_attend, batch, claim)


@task("8.1")
def test_entries_that_no_token_needs_may_name_any_block(exercise):
    for seq_len in (7, 9):
        batch = one_sequence(seq_len)
        used = batch.block_tables[0, :3].tolist()
        for tail in each(
            exercise, [[], [-1], [10**6], [used[0], used[1], -1, -1]]
        ):
            row = torch.tensor([*used, *tail], dtype=torch.int32)
            arguments = batch.one(decode=True)
            arguments[3] = row
            got = exercise.gather_and_attend(*arguments)
            claim = f"{seq_len} tokens in blocks of 3 need three entries; behind "
            claim += f"them: {tail}"
            expect_attention(got, batch.answer()[0], batch.queries, claim)


@task("8.1")
def test_block_0_is_a_block_like_any_other(exercise):
    batch = with_block_0(one_sequence(7))
    expect_decode(exercise, exercise.gather_and_attend, batch, "the first tokens are in block 0, a block like any other")


@task("8.1")
def test_ids_may_be_int64(exercise):
    batch = one_sequence(8)
    batch.block_tables = batch.block_tables.long()
    claim = "a row of a block table in int64"
    expect_decode(exercise, exercise.gather_and_attend, batch, claim)


@task("8.1")
def test_the_scale_is_that_of_head_dim_80(exercise):
    batch = one_sequence(5, num_heads=3, num_kv_heads=3, head_dim=80)
    claim = "head_dim 80: the scale is 80 ** -0.5"
    expect_decode(exercise, exercise.gather_and_attend, batch, claim)


@task("8.1")
def test_pools_may_be_views(exercise):
    for layout in each(exercise, LAYOUTS):
        batch = one_sequence(7)
        arguments = batch.one(decode=True)
        got = expect_views(exercise, exercise.gather_and_attend, layout, arguments)
        claim = "the strides of a pool may be any"
        expect_attention(got, batch.answer()[0], batch.queries, claim)


@task("8.1")
def test_scores_far_from_zero_give_the_mean_of_equals(exercise):
    for logit in each(exercise, [-6e4, -200.0, 200.0, 6e4]):
        batch = equal_scores(7, 1, logit)
        claim = f"seven scores of {logit:g} each: the mean of the values"
        expect_decode(exercise, exercise.gather_and_attend, batch, claim)


def equal_scores(seq_len: int, query_len: int, logit: float) -> Batch:
    """Every query scores every key the same: head_dim 16, so the scale is 1 / 4."""
    batch = one_sequence(seq_len, query_len, head_dim=16)
    batch.queries[0].fill_(1.0)
    batch.keys[0].fill_(logit / 4)
    batch.key_cache.masked_fill_(~batch.key_cache.isnan(), logit / 4)
    return batch


@task("8.1")
def test_16_bit_numbers_are_multiplied_in_float32(exercise):
    for dtype in each(exercise, HALVES):
        batch = one_sequence(7, num_heads=3, num_kv_heads=3, dtype=dtype)
        claim = f"query and pools in {name_of(dtype)}: so is the result"
        expect_decode(exercise, exercise.gather_and_attend, batch, claim)
        batch = beyond_float16(5, 1, dtype)
        claim = (
            "40 * 40 * 64 is 102,400, and float16 ends at 65,504: the mean of equals"
        )
        expect_decode(exercise, exercise.gather_and_attend, batch, claim)


def beyond_float16(seq_len: int, query_len: int, dtype: torch.dtype) -> Batch:
    batch = one_sequence(seq_len, query_len, head_dim=64, dtype=dtype)
    batch.queries[0].fill_(40.0)
    batch.keys[0].fill_(40.0)
    batch.key_cache.masked_fill_(~batch.key_cache.isnan(), 40.0)
    return batch


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


# 8.2


def lse_of(query: Tensor, key: Tensor) -> Tensor:
    """[num_heads], in float64."""
    scores = torch.einsum("hd,khd->hk", query.double(), key.double())
    return (scores * query.shape[1] ** -0.5).logsumexp(dim=-1)


def expect_part(got, out: Tensor, lse: Tensor, claim: str, atol: float = 1e-5) -> None:
    for i, (name, expected) in enumerate([("out", out), ("lse", lse)]):
        try:
            expect_close(got[i], expected.float(), f"{claim}: {name}", atol=atol)
        except CheckFailed as error:
            is_nan = got[i].isnan()
            if is_nan.shape == expected.shape and (is_nan & ~expected.isnan()).any():
                error.message = (
                    "NaN comes from inf - inf (exp of 89 is infinite; of two parts "
                    "without keys both lse are -inf), from 0 / 0, or from 0 * NaN"
                )
            raise


@task("8.2")
def test_a_part_of_one_key(exercise):
    query = torch.tensor([[2.0, 0.0, 0.0, 0.0]])
    key = torch.tensor([[[3.0, 1.0, 1.0, 1.0]]])
    value = torch.tensor([[[5.0, 6.0, 7.0, 8.0]]])
    got = exercise.attend_part(query, key, value)
    claim = "head_dim 4, one key, query · key is 6: the score is 3, and so is lse"
    expect_part(got, value[0], torch.tensor([3.0]), claim)


@task("8.2")
def test_a_part_weighs_its_keys_by_the_exponential_of_their_scores(exercise):
    key, value = torch.zeros(3, 1, 4), torch.zeros(3, 1, 4)
    for i, score in enumerate((0.0, math.log(2), math.log(5))):
        key[i, 0, 0], value[i, 0, i] = score, 1.0
    got = exercise.attend_part(torch.tensor([[2.0, 0.0, 0.0, 0.0]]), key, value)
    claim = (
        "scores 0, ln 2 and ln 5: exp is 1, 2 and 5, the sum 8, and value i is 1 at "
        "number i"
    )
    out = torch.tensor([[0.125, 0.25, 0.625, 0.0]])
    expect_part(got, out, torch.tensor([math.log(8)]), claim)


@task("8.2")
def test_a_part_is_attention_over_its_keys(exercise):
    for num_keys, num_heads, head_dim in [(2, 1, 3), (5, 3, 4), (4, 5, 6)]:
        batch = one_sequence(
            num_keys, num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim
        )
        query, key, value = batch.queries[0][0], batch.keys[0], batch.values[0]
        got = exercise.attend_part(query, key, value)
        claim = f"{num_keys} keys, {num_heads} heads, head_dim {head_dim}"
        expect_part(got, batch.answer()[0], lse_of(query, key), claim)


@task("8.2")
def test_a_part_without_keys(exercise):
    query, nothing = torch.ones(3, 4), torch.ones(0, 3, 4)
    got = exercise.attend_part(query, nothing, nothing)
    lse = torch.full((3,), -INF)
    expect_part(got, torch.zeros(3, 4), lse, "no keys: zeros, and a lse of -inf")


@task("8.2")
def test_a_part_is_float32(exercise):
    for dtype in each(exercise, HALVES):
        batch = one_sequence(4, dtype=dtype)
        query, key, value = batch.queries[0][0], batch.keys[0], batch.values[0]
        got = exercise.attend_part(query, key, value)
        claim = f"query, key and value in {name_of(dtype)}, out and lse in float32"
        expect_part(got, batch.answer()[0], lse_of(query, key), claim)


@task("8.2")
def test_a_part_with_scores_far_from_zero(exercise):
    for logit in each(exercise, [-6e4, -200.0, 200.0, 6e4]):
        batch = equal_scores(2, 1, logit)
        query, key, value = batch.queries[0][0], batch.keys[0], batch.values[0]
        got = exercise.attend_part(query, key, value)
        claim = f"two scores of {logit:g}: lse is {logit:g} + ln 2"
        # A float32 near lse has steps of this size; so have the weights made from it.
        atol = 1e-5 + abs(logit) * 2**-23 * 4
        expect_part(got, batch.answer()[0], lse_of(query, key), claim, atol)


@task("8.2")
def test_parts_of_equal_weight_are_averaged(exercise):
    a, b, lse = torch.tensor([[2.0, 4.0]]), torch.tensor([[4.0, 8.0]]), torch.zeros(1)
    got = exercise.merge_parts(a, lse, b, lse)
    claim = "both parts have the lse 0: half of each, and a lse of ln 2"
    expect_part(got, torch.tensor([[3.0, 6.0]]), torch.tensor([math.log(2)]), claim)


@task("8.2")
def test_the_heavier_part_counts_more(exercise):
    ln3 = torch.tensor([math.log(3)])
    a, b, zero = torch.tensor([[8.0, 0.0]]), torch.tensor([[0.0, 4.0]]), torch.zeros(1)
    claim = "lse is ln 3 and 0: the sums are 3 and 1, so the shares are 3/4 and 1/4"
    lse = torch.tensor([math.log(4)])
    got = exercise.merge_parts(a, ln3, b, zero)
    expect_part(got, torch.tensor([[6.0, 1.0]]), lse, claim)
    got = exercise.merge_parts(a, zero, b, ln3)
    claim = "lse is 0 and ln 3: the shares are 1/4 and 3/4"
    expect_part(got, torch.tensor([[2.0, 3.0]]), lse, claim)


@task("8.2")
def test_merged_parts_are_attention_over_all_keys(exercise):
    batch = one_sequence(7, num_heads=3, num_kv_heads=3)
    query, key, value = batch.queries[0][0], batch.keys[0], batch.values[0]
    for cut in range(8):
        a = part_of(query, key[:cut], value[:cut])
        b = part_of(query, key[cut:], value[cut:])
        got = exercise.merge_parts(*a, *b)
        claim = f"7 keys, {cut} in the first part and {7 - cut} in the second"
        expect_part(got, batch.answer()[0], lse_of(query, key), claim)


def part_of(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """A right (out, lse)."""
    if not len(key):
        return torch.zeros_like(query), torch.full((len(query),), -INF)
    out = dense(query[None], key, value)[0].float()
    return out, lse_of(query, key).float()


@task("8.2")
def test_each_head_has_shares_of_its_own(exercise):
    a, b = torch.ones(3, 2), torch.zeros(3, 2)
    lse_a = torch.tensor([math.log(9), 0.0, -5.0])
    lse_b = torch.tensor([0.0, 0.0, -5.0 + math.log(3)])
    got = exercise.merge_parts(a, lse_a, b, lse_b)
    shares = torch.tensor([0.9, 0.5, 0.25])
    claim = "three heads, in which part a has 9/10, 1/2 and 1/4 of the weight"
    lse = torch.tensor([math.log(10), math.log(2), -5 + math.log(4)])
    expect_part(got, shares[:, None].expand(3, 2), lse, claim)


@task("8.2")
def test_a_part_without_keys_changes_nothing(exercise):
    out, lse = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([0.5, -70.0])
    none = torch.full((2,), -INF)
    for garbage in each(exercise, [0.0, 9.0, INF, NAN]):
        nothing = torch.full((2, 2), garbage)
        claim = f"the second part had no keys; its out is {garbage}"
        expect_part(exercise.merge_parts(out, lse, nothing, none), out, lse, claim)
        claim = f"the first part had no keys; its out is {garbage}"
        expect_part(exercise.merge_parts(nothing, none, out, lse), out, lse, claim)


@task("8.2")
def test_some_heads_without_keys(exercise):
    a = torch.tensor([[NAN], [2.0], [NAN], [4.0]])
    b = torch.tensor([[1.0], [NAN], [NAN], [8.0]])
    lse_a = torch.tensor([-INF, 1.0, -INF, 0.0])
    lse_b = torch.tensor([2.0, -INF, -INF, 0.0])
    got = exercise.merge_parts(a, lse_a, b, lse_b)
    claim = "four heads: keys in b only, in a only, in none, in both"
    out = torch.tensor([[1.0], [2.0], [0.0], [6.0]])
    expect_part(got, out, torch.tensor([2.0, 1.0, -INF, math.log(2)]), claim)


@task("8.2")
def test_merging_far_from_zero(exercise):
    for lse in each(exercise, [-1e5, -200.0, 200.0, 1e5]):
        a, b = torch.tensor([[2.0, 4.0]]), torch.tensor([[4.0, 8.0]])
        both = torch.tensor([lse])
        # A float32 near 100,000 has steps of 1/128: a lse is not more exact, nor are
        # the shares made from it.
        atol = 1e-5 + abs(lse) * 2**-23 * 8
        got = exercise.merge_parts(a, both, b, both)
        claim = f"both lse are {lse:g}: half of each"
        merged = torch.tensor([lse + math.log(2)])
        expect_part(got, torch.tensor([[3.0, 6.0]]), merged, claim, atol)
        got = exercise.merge_parts(a, both, b, both - 1000)
        claim = f"lse is {lse:g} and {lse - 1000:g}: the second part has no weight"
        expect_part(got, a, both, claim, atol)


# 8.3


@task("8.3")
def test_in_place_equal_scores_give_the_mean(exercise):
    for seq_len in each(exercise, [3, 4, 6, 7]):
        check_weights(exercise, exercise.attend_in_place, seq_len)


@task("8.3")
def test_in_place_over_one_token(exercise):
    batch = one_sequence(1)
    claim = "one token: the result is its value (all other slots of the pools hold NaN)"
    got = exercise.attend_in_place(*batch.one(decode=True))
    expect_attention(got, batch.values[0][0], batch.queries, claim)


@task("8.3")
def test_in_place_any_length(exercise):
    for seq_len in each(exercise, [2, 3, 4, 7, 20]):
        claim = f"{seq_len} tokens in blocks of 3; what is no token is NaN"
        expect_decode(exercise, exercise.attend_in_place, one_sequence(seq_len), claim)


@task("8.3")
def test_in_place_any_block_size(exercise):
    for block_size in each(exercise, [1, 8, 24]):
        batch = one_sequence(25, block_size=block_size, num_heads=4, num_kv_heads=4)
        batch.block_tables = batch.block_tables.long()
        claim = f"25 tokens in blocks of {block_size}, 4 heads, ids in int64"
        expect_decode(exercise, exercise.attend_in_place, batch, claim)


@task("8.3")
def test_in_place_pools_may_be_views(exercise):
    for layout in each(exercise, LAYOUTS):
        batch = one_sequence(7)
        arguments = batch.one(decode=True)
        got = expect_views(exercise, exercise.attend_in_place, layout, arguments)
        claim = "the strides of a pool may be any"
        expect_attention(got, batch.answer()[0], batch.queries, claim)


@task("8.3")
def test_in_place_scores_far_from_zero(exercise):
    for logit in each(exercise, [-6e4, -200.0, 200.0]):
        batch = equal_scores(7, 1, logit)
        got = exercise.attend_in_place(*batch.one(decode=True))
        claim = (
            f"seven scores of {logit:g} each, in three blocks: the mean of the values"
        )
        # Each of the three merges rounds a lse to the steps of a float32 of that size.
        atol = 1e-5 + 3 * abs(logit) * 2**-23 * 4
        expect_close(got, batch.answer()[0].float(), claim, atol=atol)


@task("8.3")
def test_in_place_a_later_block_may_outweigh_all_before(exercise):
    batch = one_sequence(8)
    query, block_id = batch.queries[0][0], int(batch.block_tables[0, 2])
    batch.keys[0][7] = batch.key_cache[block_id, 1] = 100 * query
    claim = "the last of 8 keys is 100 times the query, so it has all of the weight"
    expect_decode(exercise, exercise.attend_in_place, batch, claim)


@task("8.3")
def test_in_place_16_bit_numbers(exercise):
    for dtype in each(exercise, HALVES):
        batch = one_sequence(7, num_heads=3, num_kv_heads=3, dtype=dtype)
        claim = f"query and pools in {name_of(dtype)}: so is the result"
        expect_decode(exercise, exercise.attend_in_place, batch, claim)
        batch = beyond_float16(5, 1, dtype)
        claim = (
            "40 * 40 * 64 is 102,400, and float16 ends at 65,504: the mean of equals"
        )
        expect_decode(exercise, exercise.attend_in_place, batch, claim)


@task("8.3")
def test_in_place_what_is_kept_between_blocks_is_not_rounded(exercise):
    batch = one_sequence(200, block_size=1, head_dim=2, dtype=torch.bfloat16)
    batch.queries[0].zero_()
    for token, block_id in enumerate(batch.block_tables[0, :200].tolist()):
        batch.values[0][token] = batch.value_cache[block_id] = token / 50
    claim = "bfloat16, 200 blocks of one token, whose values grow from 0 to 4: the mean"
    expect_decode(exercise, exercise.attend_in_place, batch, claim)


@task("8.3")
def test_nothing_larger_than_a_block_is_made(exercise):
    for dtype in each(exercise, [torch.float32, torch.float16]):
        num_heads, head_dim, block_size, seq_len = 3, 4, 2, 60
        batch = one_sequence(
            seq_len,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=head_dim,
            block_size=block_size,
            dtype=dtype,
        )
        helper = f"{HELPERS}:largest_tensor"
        arguments = batch.one(decode=True)
        attend = exercise.attend_in_place
        found = measured(exercise, helper, attend, arguments, names=["numbers"])
        rewrite_history(
            exercise,
            [
                f"attend_in_place over {seq_len} tokens in blocks of {block_size}, "
                f"{num_heads} heads, head_dim {head_dim}, {name_of(dtype)} pools; "
                "every tensor that it makes is looked at"
            ],
        )
        most = 2 * block_size * num_heads * head_dim
        expect_that(
            found["numbers"] <= most,
            "no tensor is larger than one block of keys and values",
            got=f"one of {found['numbers']} numbers",
            expected=f"at most 2 * {block_size} * {num_heads} * {head_dim} = {most}",
        )


@task("8.3")
def test_block_0_is_read_like_any_other(exercise):
    batch = with_block_0(one_sequence(7))
    expect_decode(exercise, exercise.attend_in_place, batch, "the first tokens are in block 0, a block like any other")


# 8.4


@task("8.4")
def test_without_history_each_token_sees_those_up_to_itself(exercise):
    check_mask(exercise, 3, 3)


@task("8.4")
def test_over_history_each_token_sees_it_and_those_up_to_itself(exercise):
    for seq_len, query_len in each(exercise, [(6, 2), (7, 1)]):
        check_mask(exercise, seq_len, query_len)


def check_mask(exercise, seq_len: int, query_len: int) -> None:
    batch = one_sequence(seq_len, query_len, num_heads=1, num_kv_heads=1, head_dim=8)
    got = exercise.attend_chunk(*batch.showing_weights().one())
    context = f"after {seq_len - query_len} others" if seq_len > query_len else "alone"
    claim = f"{query_len} new tokens {context}, queries of zeros"
    expect_weights(got[:, 0], batch.weights(), claim)


@task("8.4")
def test_a_chunk_of_one_token_is_a_step_of_decode(exercise):
    expect_chunk(exercise, one_sequence(1, 1), "one token, which sees itself")
    claim = "one new token over a context of 6: it sees all 7"
    expect_chunk(exercise, one_sequence(7, 1), claim)


@task("8.4")
def test_chunks_over_history(exercise):
    for seq_len, query_len in each(exercise, [(2, 2), (4, 2), (7, 3), (9, 9), (20, 7)]):
        claim = (
            f"{query_len} new tokens of {seq_len}, blocks of 3; what is no token is NaN"
        )
        expect_chunk(exercise, one_sequence(seq_len, query_len), claim)


@task("8.4")
def test_chunks_in_any_block_size(exercise):
    for block_size in each(exercise, [1, 8, 12, 24]):
        batch = one_sequence(
            25, 6, block_size=block_size, num_heads=4, num_kv_heads=4, head_dim=3
        )
        batch.block_tables = batch.block_tables.long()
        claim = f"6 new tokens of 25 in blocks of {block_size}, 4 heads, ids in int64"
        expect_chunk(exercise, batch, claim)


@task("8.4")
def test_a_prompt_in_chunks_is_the_prompt_at_once(exercise):
    whole = one_sequence(10, 10)
    expected = whole.answer()
    for start, stop in [(0, 4), (4, 8), (8, 10)]:
        query = whole.queries[0][start:stop]
        arguments = [query, *whole.one()[1:4], stop]
        got = exercise.attend_chunk(*arguments)
        claim = f"a prompt of 10 tokens, in chunks: the tokens {start} … {stop - 1}"
        expect_attention(got, expected[start:stop], query, claim)


@task("8.4")
def test_a_token_that_comes_later_has_no_weight_at_all(exercise):
    for logit in each(exercise, [-6e4, -200.0, 200.0]):
        batch = equal_scores(5, 3, logit)
        claim = f"every score is {logit:g}; those of later tokens do not count"
        expect_chunk(exercise, batch, claim)


@task("8.4")
def test_chunks_over_pools_that_are_views(exercise):
    for layout in each(exercise, LAYOUTS):
        batch = one_sequence(7, 4)
        got = expect_views(exercise, exercise.attend_chunk, layout, batch.one())
        claim = "the strides of a pool may be any"
        expect_attention(got, batch.answer(), batch.queries, claim)


@task("8.4")
def test_chunks_of_16_bit_numbers(exercise):
    for dtype in each(exercise, HALVES):
        batch = one_sequence(7, 3, num_heads=4, num_kv_heads=4, dtype=dtype)
        expect_chunk(exercise, batch, f"query and pools in {name_of(dtype)}")
        claim = "40 * 40 * 64 is 102,400, and float16 ends at 65,504: means of equals"
        expect_chunk(exercise, beyond_float16(5, 2, dtype), claim)


# 8.5


@task("8.5")
def test_each_row_weighs_the_tokens_that_it_sees(exercise):
    sizes = {"num_heads": 1, "num_kv_heads": 1, "head_dim": 8, "block_size": 2}
    for query_lens, window in each(
        exercise, [([1, 1], None), ([2, 3], None), ([1, 1], 3), ([2, 3], 3)]
    ):
        batch = make_batch([5, 3], query_lens, window=window, **sizes)
        claim = f"new tokens {query_lens} of 5 and 3, in blocks of 2, window={window}"
        options = {"query_start_loc": batch.query_start_loc, "window": window}
        batch.expect_weights(exercise, claim, **options)


@task("8.5")
def test_a_step_of_decode_for_three_sequences(exercise):
    batch = make_batch([5, 1, 8], num_heads=2, num_kv_heads=2)
    claim = "decode: 5, 1 and 8 tokens in blocks of 4, two heads with own keys"
    batch.expect_all(exercise, claim, query_start_loc=None)


@task("8.5")
def test_a_query_head_reads_the_keys_of_its_kv_head(exercise):
    """KV head i has a key for token i alone, so its query heads see no other token."""
    batch = make_batch([2], num_heads=6, num_kv_heads=2).showing_weights()
    batch.queries[0].fill_(1.0)
    for i in range(2):
        batch.key_cache[int(batch.block_tables[0, 0]), i, i] = 100.0
    got = exercise.attend_over_blocks(*batch.arguments())
    for head in range(6):
        seen = head // 3
        claim = f"query head {head} of 6 reads KV head {head} // 3, which finds token "
        weights = [float(token == seen) for token in range(2)]
        expect_weights(got[:, head], [weights], f"{claim}{seen} alone")


@task("8.5")
def test_neighbouring_query_heads_read_one_kv_head(exercise):
    for num_heads, num_kv_heads in each(
        exercise, [(6, 2), (3, 1), (4, 4), (10, 2), (32, 1)]
    ):
        batch = make_batch([3, 5], num_heads=num_heads, num_kv_heads=num_kv_heads)
        for head in range(num_kv_heads):
            for value in batch.values:
                value[:, head] = head
            part = batch.value_cache[:, :, head]
            part.masked_fill_(~part.isnan(), head)
        claim = (
            f"{num_heads} query heads over {num_kv_heads} KV heads, whose values are "
            f"their numbers: head h gives h // {num_heads // num_kv_heads}"
        )
        batch.expect_all(exercise, claim, query_start_loc=None)
        batch = make_batch([3, 5], num_heads=num_heads, num_kv_heads=num_kv_heads)
        claim = f"{num_heads} query heads over {num_kv_heads} KV heads"
        batch.expect_all(exercise, claim, query_start_loc=None)


@task("8.5")
def test_heads_must_divide(exercise):
    for num_heads, num_kv_heads in each(exercise, [(3, 2), (33, 2), (2, 3)]):
        batch = make_batch([3], num_heads=num_heads, num_kv_heads=num_kv_heads)
        claim = f"{num_heads} query heads cannot share {num_kv_heads} KV heads evenly"
        attend = exercise.attend_over_blocks
        expect_raises(ValueError, attend, *batch.arguments(), claim=claim)


@task("8.5")
def test_an_empty_sequence_gives_zeros(exercise):
    batch = make_batch([0, 1, 16, 17], block_size=16)
    claim = "lengths 0, 1, 16, 17 in blocks of 16: the first row is zeros"
    batch.expect_all(exercise, claim, query_start_loc=None)
    batch = make_batch([0, 0])
    claim = "two sequences without tokens: all rows are zeros"
    batch.expect_all(exercise, claim, query_start_loc=None)


@task("8.5")
def test_decodes_and_chunks_in_one_batch(exercise):
    batch = make_batch([9, 6, 4], [1, 3, 4])
    claim = "1 new token of 9, 3 of 6 and 4 of 4, one sequence after the other"
    batch.expect_all(exercise, claim)


@task("8.5")
def test_a_sequence_may_have_no_new_tokens(exercise):
    batch = make_batch([5, 0, 7, 0, 3], [2, 0, 0, 2, 1])
    claim = (
        "new tokens 2, 0, 0, 2, 1 of lengths 5, 0, 7, 0, 3: the two rows of the "
        "sequence of length 0 are zeros"
    )
    batch.expect_all(exercise, claim)


@task("8.5")
def test_a_given_scale_counts(exercise):
    batch = make_batch([5, 9], [1, 3])
    batch.expect_all(exercise, "scale=0.5", scale=0.5)
    batch.expect_all(exercise, "scale=0.0: the means of what is seen", scale=0.0)


@task("8.5")
def test_a_window_hides_what_is_before_it(exercise):
    for window in each(exercise, [1, 2, 4, 5, 9, 40]):
        batch = make_batch([9, 3, 13], window=window)
        claim = (
            f"decode with a window of {window}: the query itself and {window - 1} "
            "before it, of 9, 3 and 13 tokens; the third row of the tables is "
            f"{batch.block_tables[2, :4].tolist()}"
        )
        batch.expect_all(exercise, claim, query_start_loc=None, window=window)


@task("8.5")
def test_each_token_of_a_chunk_has_a_window_of_its_own(exercise):
    for window in each(exercise, [1, 3, 6, 40]):
        batch = make_batch([14, 3, 11], [5, 3, 1], window=window)
        claim = (
            f"new tokens 5, 3, 1 of 14, 3, 11, each with a window of {window}; the "
            f"first row of the tables is {batch.block_tables[0, :4].tolist()}"
        )
        batch.expect_all(exercise, claim, window=window)


@task("8.5")
def test_a_hole_is_not_the_last_block_of_the_pool(exercise):
    batch = make_batch([14, 6], [2, 1], window=4)
    last = len(batch.key_cache) - 1
    moved = int(batch.block_tables[1, 1])
    for cache in (batch.key_cache, batch.value_cache):
        cache[last] = cache[moved]
        cache[moved] = NAN
    batch.block_tables[1, 1] = last
    claim = f"holes are -1; block {last}, the last of the pool, is somebody else's"
    batch.expect_all(exercise, claim, window=4)


@task("8.5")
def test_entries_behind_the_last_block_are_ignored(exercise):
    batch = make_batch([5, 9, 1], [1, 4, 1])
    batch.block_tables[0, 2:] = int(batch.block_tables[1, 0])
    batch.block_tables[2, 1:] = -7
    claim = "rows of the table hold old numbers behind their last block"
    batch.expect_all(exercise, claim)


@task("8.5")
def test_two_sequences_may_share_blocks(exercise):
    batch = make_batch([8, 11], [1, 3])
    batch.block_tables[1, :2] = batch.block_tables[0, :2]
    for rows in (batch.keys, batch.values):
        rows[1][:8] = rows[0]
    claim = "both sequences begin with the same two blocks"
    batch.expect_all(exercise, claim)


@task("8.5")
def test_batches_in_any_block_size(exercise):
    for block_size in each(exercise, [1, 3, 12, 24]):
        batch = make_batch([25, 3, 12], [4, 1, 12], block_size=block_size)
        claim = f"new tokens 4, 1, 12 of 25, 3, 12 in blocks of {block_size}"
        batch.expect_all(exercise, claim)


@task("8.5")
def test_tables_and_lengths_of_either_integer_type(exercise):
    for table_dtype in [torch.int32, torch.int64]:
        for lens_dtype in each(exercise, [torch.int32, torch.int64]):
            batch = make_batch([5, 9], [2, 1])
            *caches, tables, lens = batch.arguments()
            got = exercise.attend_over_blocks(
                *caches,
                tables.to(table_dtype),
                lens.to(lens_dtype),
                query_start_loc=batch.query_start_loc.to(lens_dtype),
            )
            claim = (
                f"tables in {name_of(table_dtype)}, lengths in {name_of(lens_dtype)}"
            )
            expect_attention(got, batch.answer(), batch.queries, claim)


@task("8.5")
def test_batches_over_pools_that_are_views(exercise):
    for layout in each(exercise, LAYOUTS):
        batch = make_batch([6, 9, 2])
        arguments = batch.arguments()
        got = expect_views(exercise, exercise.attend_over_blocks, layout, arguments)
        claim = "the strides of a pool may be any"
        expect_attention(got, batch.answer(), batch.queries, claim)


@task("8.5")
def test_query_and_tables_may_be_parts_of_larger_tensors(exercise):
    batch = make_batch([6, 9, 2], [2, 1, 2])
    attend, arguments = exercise.attend_over_blocks, batch.arguments()
    helper, starts = f"{HELPERS}:with_slices", batch.query_start_loc
    try:
        got = in_worker(exercise, helper, attend, arguments, starts)
    finally:
        story = "a call with wide[:, 3:8] as tables, lens[::2] and a transposed query"
        rewrite_history(exercise, [story])
    claim = "query, tables and lengths may have any strides"
    expect_attention(got, batch.answer(), batch.queries, claim)


@task("8.5")
def test_batches_of_16_bit_numbers(exercise):
    for dtype in each(exercise, HALVES):
        batch = make_batch([9, 6, 0], [1, 3, 1], dtype=dtype)
        batch.expect_all(exercise, f"query and pools in {name_of(dtype)}")
        batch = beyond_float16(5, 2, dtype)
        claim = "40 * 40 * 64 is 102,400, and float16 ends at 65,504: means of equals"
        batch.expect_all(exercise, claim)


@task("8.5")
def test_batches_with_scores_far_from_zero(exercise):
    for logit in each(exercise, [-6e4, -200.0, 200.0]):
        batch = equal_scores(7, 3, logit)
        batch.expect_all(exercise, f"every score is {logit:g}: means of what is seen")


@task("8.5")
def test_a_larger_batch_before_leaves_nothing_behind(exercise):
    larger, smaller = make_batch([30, 20, 10, 5], [7, 1, 3, 5]), make_batch([3, 0, 6])
    larger.expect_all(exercise, "a large batch: 16 new tokens of 4 sequences")
    claim = "a smaller batch after it: lengths 3, 0, 6, one new token each"
    smaller.expect_all(exercise, claim, query_start_loc=None)


@task("8.5")
def test_a_result_is_not_changed_by_the_next_call(exercise):
    first, second = make_batch([3, 6]), make_batch([5, 4], seed=9)
    calls = [first.arguments(), second.arguments()]
    helper, attend = f"{HELPERS}:first_after_second", exercise.attend_over_blocks
    try:
        got = in_worker(exercise, helper, attend, *calls)
    finally:
        story = "two calls with other numbers; then the first result is looked at"
        rewrite_history(exercise, [story])
    claim = "what a call has returned stays as it was"
    expect_attention(got, first.answer(), first.queries, claim)


@task("8.5")
def test_random_batches(exercise):
    chance = random.Random(8)
    for seed in range(40):
        block_size = chance.choice([1, 2, 3, 5, 8, 16])
        seq_lens = [
            chance.choice([0, 1, block_size, block_size + 1, chance.randint(1, 30)])
            for _ in range(chance.randint(1, 5))
        ]
        query_lens = [chance.choice([0, 1, 1, chance.randint(0, n)]) for n in seq_lens]
        query_lens[0] = max(1, query_lens[0])  # somebody has something to compute
        num_kv_heads = chance.randint(1, 3)
        batch = make_batch(
            seq_lens,
            query_lens,
            num_heads=num_kv_heads * chance.randint(1, 4),
            num_kv_heads=num_kv_heads,
            head_dim=chance.choice([3, 4, 7, 16]),
            block_size=block_size,
            window=chance.choice([None, None, 1, chance.randint(1, 20)]),
            seed=seed,
        )
        rewrite_history(exercise)
        claim = (
            f"random batch {seed}: new tokens {query_lens} of {seq_lens}, blocks of "
            f"{block_size}, pools {list(batch.key_cache.shape)}"
        )
        batch.expect_all(exercise, claim, window=batch.window)


@task("8.5")
def test_block_0_is_no_empty_entry(exercise):
    batch = with_block_0(make_batch([7, 0, 5], [1, 1, 2]))
    batch.expect_all(exercise, "the first sequence has tokens in block 0")
