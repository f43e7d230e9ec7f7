"""Pools and tables of the package, as tests give them to learner code.

They live in the grader and tell what happens to them: each change of a pool is a line
of the test's history, set in below the learner's call that made it.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from course.grader import rewrite_history
from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable


class Pool(BlockAllocator):
    """Hands out certain blocks first, then the rest in order; writes down who asks."""

    def __init__(self, num_blocks: int, first: Sequence[int] = ()) -> None:
        super().__init__(num_blocks)
        order = [*first, *(i for i in range(num_blocks) if i not in first)]
        self._free = [self._blocks[block_id] for block_id in reversed(order)]
        self._told: Callable[[str], None] = lambda line: None
        self._is_told = True
        self._given_back: list[int] = []  # in order, each time a holder went

    @property
    def _counts(self) -> list[int]:
        return [self.ref_count(block_id) for block_id in range(self.num_blocks)]

    def __repr__(self) -> str:
        return "pool"

    def allocate(self) -> int:
        return self._logged("allocate", super().allocate)

    def allocate_many(self, n: int) -> list[int]:
        return self._logged("allocate_many", super().allocate_many, n)

    def share(self, block_id: int) -> None:
        self._logged("share", super().share, block_id)

    def free(self, block_id: int) -> None:
        self._logged("free", super().free, block_id)
        self._given_back.append(block_id)

    def free_many(self, block_ids: Iterable[int]) -> None:
        block_ids, before = list(block_ids), len(self._given_back)
        self._logged("free_many", super().free_many, block_ids)
        self._given_back[before:] = block_ids  # once, though it may have called free

    def _logged(self, name: str, method: Callable[..., Any], *args: object) -> Any:
        return self._call(f"pool.{name}", method, *args)

    def _call(self, label: str, method: Callable[..., Any], *args: object) -> Any:
        """Do it and tell it, but not what is done inside of it."""
        if not self._is_told:
            return method(*args)
        text = f"{label}({', '.join(map(repr, args))})"
        self._is_told = False
        try:
            result = method(*args)
        except Exception as error:
            self._told(f"{text} raised {type(error).__name__}: {error}")
            raise
        finally:
            self._is_told = True
        self._told(text if result is None else f"{text} -> {result}")
        return result


class Table(BlockTable):
    """The package's table; what changes it is written down as well."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.block_ids}, {self.num_tokens} tokens>"

    def append_tokens(self, n: int) -> list[int]:
        return self._logged("append_tokens", super().append_tokens, n)

    def replace(self, logical_block: int, block_id: int) -> None:
        self._logged("replace", super().replace, logical_block, block_id)

    def truncate(self, num_tokens: int) -> None:
        self._logged("truncate", super().truncate, num_tokens)

    def drop_before(self, position: int) -> None:
        self._logged("drop_before", super().drop_before, position)

    def free(self) -> None:
        self._logged("free", super().free)

    def _logged(self, name: str, method: Callable[..., Any], *args: object) -> Any:
        pool: Any = self.allocator
        return pool._call(f"{self!r}.{name}", method, *args)


class OtherTable(Table):
    """A table of another class."""


def given_pool(exercise: Any, num_blocks: int, first: Sequence[int] = ()) -> Pool:
    """A pool for a new case; what happens to it stands in the test's history."""
    rewrite_history(exercise)
    pool = Pool(num_blocks, first)
    conversation = exercise._link

    def told(line: str) -> None:
        history = conversation.history
        (history.add_inner if conversation.serving else history.add)(line)

    order = f", which hands out {list(first)} first" if first else ""
    told(f"pool = BlockAllocator({num_blocks}){order}")
    pool._told = told
    return pool
