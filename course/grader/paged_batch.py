"""Decode steps over scattered blocks, made to be hard, for the tests of exercises.

Pools are NaN wherever no token lies, ids are shuffled, tables end in -1, a pool has
blocks that nobody uses, and all sizes differ. Whoever reads a place that holds no token
of the sequence gets NaN, or is caught.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from course.grader.claims import expect_close
from course.grader.failures import CheckFailed, fail
from course.grader.history import rounded
from course.grader.kernel_layout import is_unwritten, mark_unwritten
from paged_attention import reference

NAN = float("nan")

# Beside the float64 oracle, for results of about 1.
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


@dataclass(frozen=True)
class Batch:
    """The arguments of a decode step, in their order.

    query         [num_seqs, num_heads, head_dim]
    key_cache     [pool_size, block_size, num_kv_heads, head_dim]   value_cache the same
    block_tables  [num_seqs, max_num_blocks]
    seq_lens      [num_seqs]
    """

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor

    @property
    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        caches = (self.key_cache, self.value_cache)
        return self.query, *caches, self.block_tables, self.seq_lens

    def oracle(self, scale: float | None = None) -> Tensor:
        """The right result, calculated in float64, in the dtype of query."""
        query, key, value, tables, lens = self.arguments
        exact = reference.paged_attention(
            query.double(), key.double(), value.double(), tables, lens, scale=scale
        )
        return exact.to(query.dtype)

    def log_sum_exp(self) -> Tensor:
        """log of the sum of exp(score) over each sequence's keys: float64."""
        num_seqs, num_heads, head_dim = self.query.shape
        result = torch.full((num_seqs, num_heads), float("-inf"), dtype=torch.float64)
        for i, seq_len in enumerate(self.seq_lens.tolist()):
            blocks = self.key_cache[self.block_tables[i].clamp(min=0).long()]
            key = blocks.double().flatten(0, 1)[:seq_len]
            group = num_heads // key.shape[1]
            key = key.repeat_interleave(group, dim=1)
            scores = torch.einsum("hd,khd->hk", self.query[i].double(), key)
            result[i] = (scores * head_dim**-0.5).logsumexp(dim=1)
        return result

    def tolerance(self, expected: Tensor) -> float:
        largest = expected.double().abs().max().item() if expected.numel() else 0.0
        return TOLERANCE[self.query.dtype] * max(1.0, largest)

    def one_head(self) -> "Batch":
        """The same for one query head and one KV head, without an axis for heads."""
        return Batch(
            self.query[:, 0].contiguous(),
            self.key_cache[:, :, 0].contiguous(),
            self.value_cache[:, :, 0].contiguous(),
            self.block_tables,
            self.seq_lens,
        )

    def but(self, **parts: Tensor) -> "Batch":
        """The same, with some tensors replaced."""
        return replace(self, **parts)

    def tokens(self, cache: Tensor) -> Tensor:
        """Which rows of a cache hold tokens of the batch: [pool_size, block_size]."""
        block_size = cache.shape[1]
        used = torch.zeros(cache.shape[:2], dtype=torch.bool)
        for table, seq_len in zip(
            self.block_tables, self.seq_lens.tolist(), strict=True
        ):
            for j in range(0, seq_len, block_size):
                used[table[j // block_size], : min(block_size, seq_len - j)] = True
        return used

    def filled(self, **numbers: float) -> "Batch":
        """filled(key_cache=2.0): every number of the batch's tokens is this one."""
        parts: dict[str, Any] = {}
        for name, number in numbers.items():
            cache = getattr(self, name).clone()
            if name != "query":
                cache[self.tokens(cache)] = number
            else:
                cache.fill_(number)
            parts[name] = cache
        return replace(self, **parts)

    def showing_weights(self) -> "Batch":
        """Queries of zeros, and the values of name_tokens; nothing is NaN."""
        value = name_tokens(self.value_cache, self.block_tables, self.seq_lens)
        key = self.key_cache.nan_to_num(0.0)
        return self.filled(query=0.0).but(key_cache=key, value_cache=value)


def name_tokens(value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor) -> Tensor:
    """Values by which a result tells the weight that each token has in it.

    The value of token i of a sequence is 1 at number i and 0 elsewhere. What is no
    token has its 1 at the last number.
    """
    block_size = value_cache.shape[1]
    value = torch.zeros_like(value_cache)
    value[..., -1] = 1.0
    for table, seq_len in zip(block_tables.tolist(), seq_lens.tolist(), strict=True):
        for i in range(seq_len):
            if (block_id := table[i // block_size]) >= 0:
                value[block_id, i % block_size] = 0.0
                value[block_id, i % block_size, :, i] = 1.0
    return value


def equal_weights(tokens: Sequence[int]) -> list[float]:
    """The weights of tokens 0, 1, …, if these have all of it in equal parts."""
    return [(i in tokens) / len(tokens) for i in range(max(tokens, default=-1) + 1)]


def expect_weights(got: Tensor, rows: Sequence[Sequence[float]], claim: str) -> None:
    """got [num_rows, head_dim] of values from name_tokens: row i has these weights."""
    last = max(map(len, rows))
    for i, weights in enumerate(rows):
        expected = torch.zeros(got.shape[1:])
        expected[: len(weights)] = torch.tensor(weights)
        if not torch.allclose(got[i].float(), expected, rtol=0, atol=1e-3):
            fail(
                f"{claim}; the value of token i is 1 at number i, so the result is the "
                "weight of each token",
                expected=_weights(expected, last, i),
                got=_weights(got[i], last, i),
                message=likely_cause(got[i], expected),
            )


def _weights(row: Tensor, last: int, number: int) -> str:
    weights = [round(weight, 3) for weight in row.tolist()]
    told = f"{rounded(weights[:last])} in row {number}"
    return f"{told}, and {rounded(weights[-1])} for slots that hold no token"


def likely_cause(got: Tensor, expected: Tensor) -> str:
    """Why a result is NaN, or 0, where it should not be; "" for other numbers."""
    nan = got.isnan() & ~expected.isnan()
    if (is_unwritten(got) & nan).any():
        return "no program stored anything to these elements"
    if nan.any() and (expected[nan.any(dim=-1)] == 0).all():
        return "without any token a division of 0 by 0, or -inf - (-inf), gives NaN"
    if nan.any():
        return (
            "NaN comes from a slot that holds no token (was entry -1 used, or a slot "
            "after the last token? a weight of 0 times NaN is NaN), or from inf - inf "
            "(exp of 89 is infinite in float32, 65,520 in float16)"
        )
    wrong = got.double() != expected.double()
    if wrong.any() and (got[wrong] == 0).all():
        return "0.0: no token arrived here (are all masked, or was a copy written?)"
    return ""


def expect_result(got: Tensor, expected: Tensor, claim: str, *, atol: float) -> None:
    """expect_close, with the likely cause of a NaN."""
    try:
        expect_close(got, expected, claim, atol=atol)
    except CheckFailed as error:
        if isinstance(got, Tensor) and got.shape == expected.shape:
            error.message = likely_cause(got, expected)
        raise


def unwritten(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """NaN that can be told from any that was stored."""
    return mark_unwritten(torch.empty(shape, dtype=dtype))


def make_batch(
    seq_lens: Sequence[int],
    *,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 20,
    block_size: int = 4,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-n // block_size) for n in seq_lens]
    pool_size = sum(num_blocks) + 3
    block_ids = torch.randperm(pool_size - 1, generator=generator).tolist()
    block_ids.append(pool_size - 1)  # in use: behind it the pool ends
    width = max(num_blocks, default=0) + 1
    tables = torch.full((len(seq_lens), width), -1, dtype=torch.int32)
    caches = torch.full((2, pool_size, block_size, num_kv_heads, head_dim), NAN)
    for i, seq_len in enumerate(seq_lens):
        for j in range(num_blocks[i]):
            tables[i, j] = block = block_ids.pop()
            part = caches[:, block, : min(block_size, seq_len - j * block_size)]
            part.copy_(torch.randn(part.shape, generator=generator))
    query = torch.randn(len(seq_lens), num_heads, head_dim, generator=generator)
    key_cache, value_cache = caches.to(dtype)
    return Batch(
        query.to(dtype),
        key_cache.clone(),
        value_cache.clone(),
        tables,
        torch.tensor(seq_lens, dtype=torch.int32),
    )


def in_one_buffer(batch: Batch) -> Batch:
    """K and V of a block side by side: neither of the two is contiguous."""
    both = torch.stack([batch.key_cache, batch.value_cache], dim=1)
    return batch.but(key_cache=both[:, 0], value_cache=both[:, 1])


def turned(tensor: Tensor, *axes: int) -> Tensor:
    """The same numbers, with the two axes the other way round in memory."""
    return tensor.transpose(*axes).contiguous().transpose(*axes)


def with_gaps(tensor: Tensor, axis: int, fill: float = NAN) -> Tensor:
    """The same numbers as a part of a wider tensor."""
    shape = list(tensor.shape)
    shape[axis] += 3
    wide = torch.full(shape, fill, dtype=tensor.dtype)
    part = wide.narrow(axis, 1, tensor.shape[axis])
    part.copy_(tensor)
    return part
