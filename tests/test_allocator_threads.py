"""BlockAllocator is safe from several threads, and this test would notice if not.

Every race runs in all interleavings of one call's opcodes (course/interleave.py). A
stress test would not do: it lets an unlocked list pass.
"""

from contextlib import nullcontext

import pytest

from course.grader.helpers.ex04 import races
from course.grader.helpers.race import Race
from paged_attention.allocator import BlockAllocator

RACES = [
    # num_blocks, holders of the blocks in use, first call, second call
    (3, [], ["allocate"], ["allocate"]),
    (1, [], ["allocate"], ["allocate"]),
    (2, [1], ["allocate"], ["free", 0]),
    (2, [1], ["free", 0], ["allocate"]),
    (2, [1], ["free", 0], ["free", 0]),
    (2, [2], ["free", 0], ["free", 0]),
    (2, [1], ["share", 0], ["share", 0]),
    (2, [1], ["share", 0], ["free", 0]),
    (2, [1], ["free", 0], ["share", 0]),
    (3, [], ["allocate_many", 2], ["allocate_many", 2]),
    (2, [], ["allocate_many", 2], ["allocate"]),
    (2, [1], ["free_many", [0]], ["allocate_many", 1]),
    (2, [1, 1], ["free_many", [0, 1]], ["free", 1]),
    (2, [1, 1], ["free_many", [0, 1, 1]], ["share", 1]),
]


class UnlockedAllocator(BlockAllocator):
    """The same methods, and a lock that lets everybody in."""

    def __init__(self, num_blocks: int) -> None:
        super().__init__(num_blocks)
        self._lock = nullcontext()


def problems(kind, num_blocks, holders, *calls):
    runs = races(kind, num_blocks, holders, *calls)
    each = (Race(num_blocks, holders, calls, run) for run in runs)
    return [(race.story(), race.problem()) for race in each if race.problem()]


@pytest.mark.parametrize(("num_blocks", "holders", "first", "second"), RACES, ids=str)
def test_two_calls_at_once_act_like_one_after_the_other(
    num_blocks, holders, first, second
):
    assert problems(BlockAllocator, num_blocks, holders, first, second) == []


def test_an_allocator_without_its_lock_is_caught():
    caught = [race for race in RACES if problems(UnlockedAllocator, *race)]
    methods = {call[0] for _, _, *calls in caught for call in calls}
    assert methods == {"allocate", "free", "share", "allocate_many", "free_many"}
