"""Batches over scattered blocks, made to be hard: shared by the tests of attention.

Pools are filled with NaN, ids are shuffled, whatever no key needs is -1 in the tables,
and a pool is larger than what is used of it: whoever reads a place that holds no token
of the sequence gets NaN, or fails.
"""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from paged_attention import reference

# Of the float64 oracle, relative to max(1, its largest value).
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 1e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1e-2,
}


@dataclass
class Batch:
    """The arguments of paged_attention."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor | None = None
    window: int | None = None

    def run(self, attention, **options) -> Tensor:
        return attention(
            self.query,
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.seq_lens,
            query_start_loc=self.query_start_loc,
            window=self.window,
            **options,
        )

    def oracle(self) -> Tensor:
        """What is right, in float64."""
        exact = Batch(**vars(self))
        exact.query = self.query.double()
        exact.key_cache = self.key_cache.double()
        exact.value_cache = self.value_cache.double()
        return exact.run(reference.paged_attention)

    def check(self, result: Tensor, expected: Tensor | None = None) -> None:
        """Raise AssertionError unless result is right, for its dtype.

        expected  the oracle's answer, if it is known already
        """
        assert result.shape == self.query.shape
        assert result.dtype == self.query.dtype
        if not result.numel():
            return
        if expected is None:
            expected = self.to("cpu").oracle().to(result.device)
        error = (result.double() - expected).abs().max().item()
        largest = max(1.0, expected.abs().max().item())
        assert error <= TOLERANCE[result.dtype] * largest, f"error {error}: {self}"

    def to(self, device: str) -> "Batch":
        parts = {name: getattr(self, name) for name in vars(self)}
        return Batch(
            **{
                name: part.to(device) if isinstance(part, Tensor) else part
                for name, part in parts.items()
            }
        )

    def __str__(self) -> str:
        starts = self.query_start_loc
        return (
            f"query {list(self.query.shape)} {self.query.dtype}, "
            f"cache {list(self.key_cache.shape)}, seq_lens {self.seq_lens.tolist()}, "
            f"query_start_loc {None if starts is None else starts.tolist()}, "
            f"window {self.window}"
        )


def make_batch(
    seq_lens: list[int],
    *,
    query_lens: list[int] | None = None,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 20,
    block_size: int = 4,
    window: int | None = None,
    dtype: torch.dtype = torch.float32,
    table_dtype: torch.dtype = torch.int32,
    seed: int = 0,
) -> Batch:
    """A batch in scattered blocks. Without query_lens it is a step of decode."""
    generator = torch.Generator().manual_seed(seed)
    num_blocks = [-(-n // block_size) for n in seq_lens]
    pool_size = sum(num_blocks) + 3
    block_ids = torch.randperm(pool_size, generator=generator).tolist()
    tables = torch.full(
        (len(seq_lens), max(num_blocks, default=0) + 1), -1, dtype=table_dtype
    )
    shape = (pool_size, block_size, num_kv_heads, head_dim)
    key_cache, value_cache = torch.full((2, *shape), float("nan")).unbind()
    for i, seq_len in enumerate(seq_lens):
        first = 0
        if window is not None:
            query_len = 1 if query_lens is None else query_lens[i]
            first = max(0, seq_len - query_len + 1 - window)
        for j in range(first // block_size, num_blocks[i]):
            tables[i, j] = block = block_ids.pop()
            start, stop = max(0, first - j * block_size), seq_len - j * block_size
            for cache in (key_cache, value_cache):
                part = cache[block, start : min(stop, block_size)]
                part.copy_(torch.randn(part.shape, generator=generator))
    num_tokens = len(seq_lens) if query_lens is None else sum(query_lens)
    query = torch.randn(num_tokens, num_heads, head_dim, generator=generator)
    starts = None
    if query_lens is not None:
        starts = torch.tensor([0, *query_lens], dtype=torch.int32).cumsum(0).int()
    return Batch(
        query.to(dtype),
        key_cache.to(dtype),
        value_cache.to(dtype),
        tables,
        torch.tensor(seq_lens, dtype=torch.int32),
        starts,
        window,
    )


def random_batch(rng: random.Random, max_len: int = 70, **fixed) -> Batch:
    """Any batch, small: sizes at the borders of blocks on purpose."""
    block_size = fixed.pop("block_size", None) or rng.choice([*range(1, 33), 64, 128])
    borders = [
        0,
        1,
        block_size - 1,
        block_size,
        block_size + 1,
        rng.randint(0, max_len),
    ]
    seq_lens = [min(rng.choice(borders), max_len) for _ in range(rng.randint(1, 5))]
    query_lens = None
    if rng.random() < 0.5:
        query_lens = [
            rng.choice([0, 1, n, rng.randint(0, n)]) if n else rng.choice([0, 2])
            for n in seq_lens
        ]
    num_kv_heads = rng.randint(1, 3)
    options = {
        "num_heads": num_kv_heads * rng.randint(1, 9),
        "num_kv_heads": num_kv_heads,
        "head_dim": rng.choice([16, 20, 32, 64, 80, 96, 120, 128, 256]),
        "window": rng.choice([None, None, 1, rng.randint(1, max_len)]),
        "dtype": rng.choice([torch.float32, torch.float16, torch.bfloat16]),
        "table_dtype": rng.choice([torch.int32, torch.int64]),
        "seed": rng.randrange(2**32),
    }
    return make_batch(
        seq_lens,
        query_lens=query_lens,
        block_size=block_size,
        **{**options, **fixed},
    )
