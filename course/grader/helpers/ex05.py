"""Runs in the worker: what only live lists show, and the steps that slots takes."""

from collections.abc import Callable
from typing import Any

from course.interleave import count_opcodes


def block_ids_after_a_change(table: Any) -> list[int | None]:
    """What block_ids says after somebody changed the list that it gave."""
    table.block_ids.append(99)
    return list(table.block_ids)


def block_ids_after_a_change_of_what_was_given(
    table_class: Callable[..., Any], allocator: Any, block_size: int, ids: list[int]
) -> list[int | None]:
    """The same for the list that the constructor was given."""
    table = table_class(allocator, block_size, ids, block_size * len(ids))
    ids[0] = 99
    ids.append(77)
    return list(table.block_ids)


def translate_range(table: Any, start: int, stop: int) -> list[int]:
    """A range does not cross; a step asks with one."""
    return table.translate_many(range(start, stop))


def steps_of_slots(
    table_class: Callable[..., Any], allocator: Any, block_size: int, ids: list[int]
) -> dict[str, int]:
    """Opcodes of Python that all slots of a table with full blocks take."""
    num_tokens = block_size * len(ids)
    table = table_class(allocator, block_size, ids, num_tokens)
    return {"slots": count_opcodes(lambda: table.slots(0, num_tokens))}


def pad_and_change(pad_tables: Callable[..., Any], tables: list[Any]) -> list[Any]:
    """[the matrix, the matrix after a change of its first row, all block_ids then]."""
    rows = pad_tables(tables)
    before = [list(row) for row in rows]
    rows[0][0] = 99
    return [before, [list(row) for row in rows], [list(t.block_ids) for t in tables]]
