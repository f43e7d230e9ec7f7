"""Random operations under the invariant checker, a million of them: `make soak`.

The seed is printed; to repeat a failure: .venv/bin/python tests/soak.py SEED
"""

import random
import sys

from pool_model import PoolModel

from paged_attention.allocator import BlockAllocator

NUM_OPERATIONS = 1_000_000


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(2**32)
    print(f"allocator: {NUM_OPERATIONS:,} operations, seed {seed}", flush=True)
    rng = random.Random(seed)
    for done in range(NUM_OPERATIONS):
        if done % 1_000 == 0:  # small pools, often anew: the borders are where bugs are
            model = PoolModel(BlockAllocator(rng.randint(1, 8)))
        one_operation(model, rng)
        model.check()
    print("no violation")


def one_operation(model: PoolModel, rng: random.Random) -> None:
    num_blocks = len(model.counts)
    match rng.randrange(5):
        case 0:
            model.allocate()
        case 1:
            model.allocate_many(rng.randint(0, num_blocks + 1))
        case 2:
            model.share(rng.randrange(num_blocks))
        case 3:
            model.free(rng.randrange(num_blocks))
        case _:
            model.free_many(rng.choices(range(num_blocks), k=rng.randint(0, 4)))


if __name__ == "__main__":
    main()
