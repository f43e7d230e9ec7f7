"""Attention three ways on thousands of random batches: `make soak`.

torch and Triton (interpreted, on the CPU) against the float64 reference: any block
size, head_dim, group, dtype, length, window and cut into chunks. The seed is printed;
to repeat a failure: .venv/bin/python tests/soak_attention.py SEED
"""

import os
import random
import sys

os.environ["TRITON_INTERPRET"] = "1"  # counts when kernels are imported, so before that

from attention_cases import Batch, random_batch

from paged_attention.attention import paged_attention
from paged_attention.kernels.split_decode import split_decode

NUM_BATCHES = 2_000


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(2**32)
    print(f"attention: {NUM_BATCHES:,} batches, seed {seed}", flush=True)
    rng = random.Random(seed)
    for done in range(NUM_BATCHES):
        batch = random_batch(rng)
        num_splits = rng.randint(1, 9)
        try:
            check(batch, num_splits)
        except BaseException:
            print(f"batch {done}, {num_splits} splits: {batch}", flush=True)
            raise
    print("no difference above tolerance")


def check(batch: Batch, num_splits: int) -> None:
    expected = batch.oracle()
    batch.check(batch.run(paged_attention, backend="torch"), expected)
    batch.check(batch.run(paged_attention, backend="triton"), expected)
    if batch.query_start_loc is None:
        scale = batch.query.shape[2] ** -0.5
        result = split_decode(
            batch.query,
            batch.key_cache,
            batch.value_cache,
            batch.block_tables,
            batch.seq_lens,
            scale,
            batch.window,
            num_splits,
        )
        batch.check(result, expected)


if __name__ == "__main__":
    main()
