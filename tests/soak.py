"""Random operations under the invariant checker, a million of them: `make soak`.

The seed is printed; to repeat a failure: .venv/bin/python tests/soak.py SEED
"""

import random
import sys

from memory_model import Memory, random_step
from pool_model import PoolModel
from serving import random_server
from serving import random_step as scheduler_step

from paged_attention.allocator import BlockAllocator

NUM_OPERATIONS = 1_000_000
NUM_STEPS = 100_000  # of the scheduler, on a fake model that checks every slot
STEPS_PER_SERVER = 200
OPERATIONS_PER_POOL = 1_000  # small pools, often anew: the borders are where bugs are


def main() -> None:
    seed = int(sys.argv[1]) if len(sys.argv) > 1 else random.randrange(2**32)
    for soak in (allocator, tables_and_prefix_cache):
        print(
            f"{soak.__name__}: {NUM_OPERATIONS:,} operations, seed {seed}", flush=True
        )
        soak(random.Random(seed))
    print(f"scheduler: {NUM_STEPS:,} times add, step or abort, seed {seed}", flush=True)
    scheduler(random.Random(seed))
    print("no violation")


def allocator(rng: random.Random) -> None:
    for _ in range(NUM_OPERATIONS // OPERATIONS_PER_POOL):
        model = PoolModel(BlockAllocator(rng.randint(1, 8)))
        for _ in range(OPERATIONS_PER_POOL):
            pool_operation(model, rng)
            model.check()


def tables_and_prefix_cache(rng: random.Random) -> None:
    for _ in range(NUM_OPERATIONS // OPERATIONS_PER_POOL):
        memory = Memory(num_blocks=rng.randint(1, 10), block_size=rng.randint(1, 5))
        for _ in range(OPERATIONS_PER_POOL):
            random_step(memory, rng)
            memory.check()


def scheduler(rng: random.Random) -> None:
    """Each server ends with all requests served as if alone, and a full pool."""
    for _ in range(NUM_STEPS // STEPS_PER_SERVER):
        server = random_server(rng)
        for name in range(STEPS_PER_SERVER):
            scheduler_step(server, rng, name)
        server.run()
        server.assert_full()


def pool_operation(model: PoolModel, rng: random.Random) -> None:
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
