"""Runs in the worker: races and measurements of the learner's allocator."""

import gc
import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any

from course.interleave import (
    Interleaving,
    Outcome,
    StuckError,
    count_opcodes,
    every_interleaving,
    in_another_thread,
    one_after_the_other,
)

Operation = list[Any]  # a method's name and its argument, if it has one
MOST_RUNS = 600  # of one race; a method of a pool of 4 has about 60 opcodes
ROUNDS, SWEEPS = 10, 2  # of which the fastest counts
_reserve = [bytearray(4 << 20)]  # memory for the threads to say that there is none


@dataclass
class _Prepared:
    pool: Any
    held: list[int]  # blocks that are in use before the race

    def do(self, operation: Operation) -> Any:
        """Call the method; numbers stand for held blocks, except in allocate_many."""
        name, *args = operation
        if name in ("free", "share"):
            args = [self.held[args[0]]]
        elif name == "free_many":
            args = [[self.held[i] for i in args[0]]]
        if not _reserve:  # the other call filled the memory: so would this one
            raise MemoryError
        try:
            return getattr(self.pool, name)(*args)
        except MemoryError:
            _reserve.clear()
            raise


def races(
    allocator_class: Callable[[int], Any],
    num_blocks: int,
    ref_counts: list[int],
    first: Operation,
    second: Operation,
) -> list[dict[str, Any]]:
    """Run two operations in every interleaving; each way to end once, the first run.

    Before the race one block is in use for each entry of ref_counts, with so many
    holders. An operation names it by its place in that list: ["free", 0].
    """

    def make() -> _Prepared:
        return _prepared(allocator_class, num_blocks, ref_counts)

    def call_first(prepared: _Prepared) -> Any:
        return prepared.do(first)

    def call_second(prepared: _Prepared) -> Any:
        return prepared.do(second)

    runs = chain(
        [one_after_the_other(make, call_first, call_second)],
        every_interleaving(make, call_first, call_second),
    )
    seen: dict[str, dict[str, Any]] = {}  # what came out -> the first run like that
    for number, run in enumerate(runs):
        if number > MOST_RUNS:
            raise RuntimeError(
                f"{first[0]} takes more than {MOST_RUNS} steps of Python in a pool of "
                f"{num_blocks} blocks: too many to stop before each of them"
            )
        after, is_stuck = _after(run, num_blocks)
        came_out = {
            "held": run.subject.held,
            "first": _told(run.first),
            "second": _told(run.second),
            "after": after,
        }
        at_once = run.line > 0
        where = {"line": run.line, "source": run.source}
        seen.setdefault(f"{at_once} {came_out}", where | came_out)
        if is_stuck:
            break
    return list(seen.values())


def _prepared(
    allocator_class: Callable[[int], Any], num_blocks: int, ref_counts: list[int]
) -> _Prepared:
    pool = allocator_class(num_blocks)
    held = [pool.allocate() for _ in ref_counts]
    for block_id, ref_count in zip(held, ref_counts, strict=True):
        for _ in range(ref_count - 1):
            pool.share(block_id)
    return _Prepared(pool, held)


def _after(
    run: Interleaving[_Prepared], num_blocks: int
) -> tuple[list[Any] | None, bool]:
    """What is seen of the pool after a run; whether a call waits for ever."""
    _raise_if_hopeless(run.first, run.second)
    pool = run.subject.pool
    if run.first.error is None and run.second.error is None:
        return _look_at(pool, num_blocks), run.is_stuck
    if run.is_stuck:
        return None, True
    # who raised an error may have kept a lock
    look = in_another_thread(partial(_look_at, pool, num_blocks))
    _raise_if_hopeless(look)
    if isinstance(look.error, StuckError):
        return [f"another thread {look.error}"], True
    return look.value, False


def _raise_if_hopeless(*outcomes: Outcome) -> None:
    for outcome in outcomes:
        if isinstance(outcome.error, NotImplementedError | MemoryError):
            raise outcome.error


def _told(outcome: Outcome) -> list[Any]:
    if outcome.error is None:
        return ["returned", outcome.value]
    family = [kind.__name__ for kind in type(outcome.error).__mro__]
    return ["raised", family, str(outcome.error)]


def _look_at(pool: Any, num_blocks: int) -> list[Any]:
    """[num_free, all ref_counts, ids that can still be had] after a race."""
    try:
        num_free = pool.num_free
        ref_counts = [pool.ref_count(block_id) for block_id in range(num_blocks)]
        rest = []
        while len(rest) <= num_blocks:  # a list that runs in a circle never ends
            try:
                rest.append(pool.allocate())
            except Exception:
                break
        return [num_free, ref_counts, rest]
    except NotImplementedError:
        raise
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def most_opcodes(
    allocator_class: Callable[[int], Any], num_blocks: int, many: bool
) -> dict[str, int]:
    """The most opcodes that one call of each method took in a pool of this size.

    Of allocate_many and free_many with many, else of the methods of task 4.1.
    """
    most: dict[str, int] = {}

    def counted(name: str, action: Callable[[], Any]) -> Any:
        results: list[Any] = []
        count = count_opcodes(lambda: results.append(action()))
        most[name] = max(count, most.get(name, 0))
        return results[0]

    pool = allocator_class(num_blocks)
    held = [pool.allocate() for _ in range(3)]
    _give_back_and_take(pool, held, many, counted)  # nearly all are free
    held += [pool.allocate() for _ in range(num_blocks - len(held))]
    _give_back_and_take(pool, held, many, counted)  # all are in use
    return most


def least_microseconds(
    allocator_class: Callable[[int], Any], num_blocks: int, many: bool
) -> dict[str, float]:
    """The time of one call of each method while nearly all blocks are free.

    Opcodes don't show what `list.pop(0)` or `in` do inside; time does, the processor's,
    since a pause of the machine does not matter. The slowest call of a round counts,
    and of many rounds the fastest.
    """
    rounds: list[dict[str, float]] = []

    def timed(name: str, action: Callable[[], Any]) -> Any:
        start = time.thread_time()
        result = action()
        spent = (time.thread_time() - start) * 1e6
        rounds[-1][name] = max(spent, rounds[-1].get(name, 0.0))
        return result

    pool = allocator_class(num_blocks)
    held = [pool.allocate() for _ in range(3)]
    with _no_garbage_collection():
        for _ in range(ROUNDS):
            rounds.append({})
            _give_back_and_take(pool, held, many, timed)
    return {name: round(min(one[name] for one in rounds), 2) for name in rounds[0]}


def sweep_microseconds(
    allocator_class: Callable[[int], Any], num_blocks: int
) -> dict[str, float]:
    """The mean time of a call when all blocks are taken, then all given back."""
    least = {"allocate": math.inf, "free": math.inf}
    with _no_garbage_collection():
        for _ in range(SWEEPS):
            pool = allocator_class(num_blocks)
            start = time.thread_time()
            held = [pool.allocate() for _ in range(num_blocks)]
            between = time.thread_time()
            for block_id in held:
                pool.free(block_id)
            spent = {"allocate": between - start, "free": time.thread_time() - between}
            for name, seconds in spent.items():
                least[name] = min(least[name], seconds * 1e6 / num_blocks)
    return {name: round(microseconds, 2) for name, microseconds in least.items()}


def _give_back_and_take(
    pool: Any,
    held: list[int],
    many: bool,
    measured: Callable[[str, Callable[[], Any]], Any],
) -> None:
    for place in (0, len(held) // 2, -1):
        if many:
            measured("free_many", partial(pool.free_many, [held[place]]))
            held[place] = measured("allocate_many", partial(pool.allocate_many, 1))[0]
        else:
            measured("free", partial(pool.free, held[place]))
            measured("num_free", partial(getattr, pool, "num_free"))
            measured("can_allocate", partial(pool.can_allocate, 1))
            held[place] = measured("allocate", pool.allocate)


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
