"""Objects of the grader in the learner's hands: they stay where they are.

Both sides are here, without a process in between: what the grader hands out goes
through the codec to a worker, and the worker's callbacks go back the same way.
"""

from types import ModuleType
from typing import Any

import pytest

from course.grader import Hidden, codec
from course.grader.codec import UnfitError
from course.grader.hidden import (
    MAX_BLOCK_SIZE,
    MAX_SIZE,
    HiddenObjects,
    TooManyCallbacksError,
)
from course.grader.worker import Worker
from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.errors import OutOfBlocksError
from paged_attention.sharing import fork


class Sides:
    """A grader's store and a worker without a learner's file."""

    def __init__(self) -> None:
        self.store = HiddenObjects()
        order = {"files": {}, "classes": [], "module": "nothing"}
        self.worker = Worker(order, self._ask)
        self.worker.module = ModuleType("nothing")

    def _ask(self, message: dict, blobs: list[bytes]) -> tuple[dict, memoryview]:
        _, request, rest = codec.unpack(codec.pack(0, message, blobs))
        reply, out = self.store.answer(request, rest)
        return codec.unpack(codec.pack(0, reply, out))[1:]

    def give(self, value: object) -> Any:
        """What the learner's code holds of an argument."""
        ((tag, body),) = self.store.wire(value).items()
        return self.worker._from_wire(tag, body)

    def take(self, value: object) -> Any:
        """What the test gets of a result."""
        wire = codec.encode(value, [], self.worker._to_wire)
        return codec.Reader(memoryview(b""), self.store.unwire).decode(wire)


@pytest.fixture
def sides() -> Sides:
    return Sides()


def test_a_given_object_changes_where_it_lives(sides: Sides) -> None:
    pool = BlockAllocator(3)
    given = sides.give(pool)
    assert given.allocate_many(2) == [0, 1]
    assert (pool.num_free, given.num_free, given.num_blocks) == (1, 1, 3)
    assert type(given) is not BlockAllocator and not hasattr(given, "_free")


def test_a_given_object_is_always_the_same_one(sides: Sides) -> None:
    pool = BlockAllocator(3)
    table = sides.give(BlockTable(pool, 4))
    assert table.allocator is sides.give(pool) is sides.give(pool)
    assert sides.take(table.allocator) is pool


def test_an_object_that_the_learner_makes_comes_back_as_what_it_is(
    sides: Sides,
) -> None:
    table = BlockTable(BlockAllocator(3), 4)
    table.append_tokens(6)
    given = sides.give(table)
    made = type(given)(given.allocator, given.block_size, given.block_ids, 6)
    real = sides.take(made)
    assert type(real) is BlockTable and real is not table
    assert (real.block_ids, real.num_tokens) == ([0, 1], 6)
    assert real.allocator is table.allocator


def test_errors_cross_as_they_are(sides: Sides) -> None:
    given = sides.give(BlockAllocator(1))
    with pytest.raises(OutOfBlocksError, match="2 blocks were asked for"):
        given.allocate_many(2)
    with pytest.raises(TypeError, match="argument"):
        given.allocate(1)


def test_any_iterable_may_be_given_to_it(sides: Sides) -> None:
    pool = BlockAllocator(4)
    pool.allocate_many(4)
    given = sides.give(pool)
    given.free_many(block_id for block_id in (3, 1))
    given.free_many(reversed([0]))
    given.free_many({2: None}.keys())
    assert pool.num_free == 4
    table = BlockTable(pool, 2)
    table.append_tokens(4)
    assert sides.give(table).translate_many(range(2)) == table.block_ids


def test_what_the_learner_made_itself_cannot_be_given_to_it(sides: Sides) -> None:
    given = sides.give(BlockAllocator(1))
    with pytest.raises(TypeError, match="free was given an object of type object"):
        given.free(object())
    with pytest.raises(UnfitError, match="a BlockTable of your own"):
        sides.take(BlockTable(given, 4))


def test_nothing_inside_can_be_read_or_set(sides: Sides) -> None:
    pool = BlockAllocator(2)
    given = sides.give(pool)
    with pytest.raises(AttributeError):
        _ = given._free
    with pytest.raises(AttributeError, match="cannot be set"):
        given.num_free = 7
    for name in ("_free", "__class__"):
        with pytest.raises(AttributeError):
            sides.worker._ask_grader("get", given._number, name, (), {})
    with pytest.raises(TypeError, match="cannot be used here"):
        sides.worker._ask_grader("get", given._number, "allocate", (), {})
    assert pool.num_free == 2


def test_an_unknown_number_is_no_object(sides: Sides) -> None:
    sides.give(BlockAllocator(2))
    for body in (7, -1, "0", None, True):
        with pytest.raises(UnfitError):
            sides.store.unwire("given", body)


def test_objects_of_an_earlier_call_are_gone(sides: Sides) -> None:
    made = sides.give(Hidden(BlockAllocator))(2)
    kept = sides.give(BlockAllocator(3))
    sides.store.start_call()
    with pytest.raises(ValueError, match="earlier call"):
        made.allocate()
    assert kept.allocate() == 0


def test_hidden_classes_and_functions_work_together(sides: Sides) -> None:
    table_class, fork_it = sides.give(Hidden(BlockTable)), sides.give(Hidden(fork))
    table = table_class(sides.give(Hidden(BlockAllocator))(4), block_size=2)
    table.append_tokens(3)
    child = fork_it(table)
    assert type(child) is table_class is type(table)
    assert child.block_ids == table.block_ids == [0, 1]
    assert [child.allocator.ref_count(block_id) for block_id in (0, 1)] == [2, 2]


def test_a_hidden_class_keeps_its_name_to_itself(sides: Sides) -> None:
    class Telling(BlockAllocator):
        def __repr__(self) -> str:
            return "mine"

    Telling.__module__ = "course.grader.helpers.test"
    assert repr(sides.give(Telling(2))) == "mine"
    hidden = sides.give(Hidden(BlockAllocator))
    assert "BlockAllocator" not in repr(hidden) + repr(hidden(2))


def test_only_the_courses_own_objects_can_be_given(sides: Sides) -> None:
    for value in (object(), pytest, iter([])):
        with pytest.raises(UnfitError):
            sides.give(value)


def test_the_grader_is_not_worn_out(
    sides: Sides, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator_class = sides.give(Hidden(BlockAllocator))
    table_class = sides.give(Hidden(BlockTable))
    with pytest.raises(ValueError, match="200,000 blocks"):
        allocator_class(MAX_SIZE + 1)
    sides.store.start_call()
    with pytest.raises(ValueError, match="at most 256"):
        table_class(allocator_class(1), MAX_BLOCK_SIZE + 1)
    monkeypatch.setattr("course.grader.hidden.MAX_CALLBACKS", 50)
    given = sides.give(BlockAllocator(1))
    sides.store.start_call()
    with pytest.raises(TooManyCallbacksError):
        while True:
            _ = given.num_free
