"""A course of two exercises, made for attacks on the grader.

ex04_pool has four tasks: 4.1 allocate, 4.2 free, 4.3 a list of ids, 4.4 a hunt that
gets a hidden class. ex05_twice has one. An answer is the solution with code put in.
"""

import os
import textwrap
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from course.grader import ExerciseResult, grade_variants, isolation, warm

MANIFEST = """
[[chapter]]
id = "04"
name = "pool"
title = "A pool"
question = "?"
goal = "."
prerequisites = []
minutes = 1
exercise = true
refuses = ["paged_attention.allocator"]
call_seconds = {call_seconds}
task = [
    {{ id = "4.1", title = "a", points = 1, kind = "build", hints = ["", "", ""] }},
    {{ id = "4.2", title = "b", points = 1, kind = "build", hints = ["", "", ""] }},
    {{ id = "4.3", title = "c", points = 1, kind = "build", hints = ["", "", ""] }},
    {{ id = "4.4", title = "d", points = 1, kind = "hunt", hints = ["", "", ""] }},
]

[[chapter]]
id = "05"
name = "twice"
title = "Twice"
question = "?"
goal = "."
prerequisites = ["04"]
minutes = 1
exercise = true
needs = ["04"]
call_seconds = {call_seconds}
task = [
    {{ id = "5.1", title = "e", points = 2, kind = "build", hints = ["", "", ""] }},
]
"""

POOL = """\
# TOP
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class Pool:
    def __init__(self, num_blocks: int) -> None:
        self._free = list(range(num_blocks))

    def allocate(self) -> int:
        # ALLOCATE
        if not self._free:
            raise OutOfBlocksError("none is free")
        return self._free.pop()

    def free(self, block_id: int) -> None:
        if block_id in self._free:
            raise DoubleFreeError(f"block {block_id} is free")
        self._free.append(block_id)

    @property
    def num_free(self) -> int:
        return len(self._free)


def free_ids(pool: Pool) -> list[int]:
    # LIST
    return list(pool._free)


def check(pool_class: type) -> None:
    # CHECK
    pool = pool_class(2)
    assert pool.allocate() != pool.allocate(), "one block was handed out twice"
"""

TWICE = """\
from ex04_pool import Pool


def twice(x: int) -> int:
    return Pool(2 * x).num_free
"""

TEST_POOL = """\
from course.grader import Hidden, expect, expect_raises, task
from paged_attention.errors import DoubleFreeError, OutOfBlocksError


class Good:
    def __init__(self, num_blocks):
        self.left = num_blocks

    def allocate(self):
        self.left -= 1
        return self.left


class Bad(Good):
    def allocate(self):
        return 0


@task("4.1")
def test_each_block_is_handed_out_once(exercise):
    pool = exercise.Pool(3)
    ids = [pool.allocate() for _ in range(3)]
    expect(sorted(ids), [0, 1, 2], "a pool of 3 hands out each of its blocks once")


@task("4.1")
def test_an_empty_pool_raises(exercise):
    pool = exercise.Pool(1)
    pool.allocate()
    expect_raises(OutOfBlocksError, pool.allocate, claim="no block is free")


@task("4.2")
def test_a_free_block_cannot_be_freed(exercise):
    pool = exercise.Pool(2)
    expect_raises(DoubleFreeError, pool.free, 1, claim="block 1 is free already")
    expect(pool.num_free, 2, "the refused call changed nothing")


@task("4.3")
def test_all_ids_of_a_new_pool_are_free(exercise):
    expect(exercise.free_ids(exercise.Pool(3)), [0, 1, 2], "a new pool is all free")


@task("4.4")
def test_the_hunt_finds_the_bad_one_only(exercise):
    exercise.check(Hidden(Good))
    expect_raises(AssertionError, exercise.check, Hidden(Bad), claim="Bad is found")
"""

TEST_TWICE = """\
from course.grader import expect, task


@task("5.1")
def test_twice_three_is_six(exercise):
    expect(exercise.twice(3), 6, "2 * 3 = 6")
"""


def write_course(root: Path, *, call_seconds: float = 2.0) -> Path:
    """The course below root, with both solutions and no answers."""
    files = {
        "course/manifest.toml": MANIFEST.format(call_seconds=call_seconds),
        "solutions/ex04_pool.py": POOL,
        "solutions/ex05_twice.py": TWICE,
        "tests/exercises/test_ex04_pool.py": TEST_POOL,
        "tests/exercises/test_ex05_twice.py": TEST_TWICE,
    }
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


def answer(*, top: str = "", allocate: str = "", ids: str = "", check: str = "") -> str:
    """The solution with code put in at the marked places, where it runs first."""
    text = POOL
    places = {"# TOP": top, "# ALLOCATE": allocate, "# LIST": ids, "# CHECK": check}
    for mark, code in places.items():
        indent = {"# TOP": 0, "# ALLOCATE": 8}.get(mark, 4)
        lines = textwrap.indent(textwrap.dedent(code).strip(), " " * indent)
        text = text.replace(" " * indent + mark, lines)
    return text


@dataclass(frozen=True)
class Session:
    """What came of grading answers."""

    results: Mapping[str, ExerciseResult]
    left_over: list[str]  # processes, files, segments of memory that should have gone
    grown: int  # bytes by which the grader's memory grew at its peak


def grade_answers(
    root: Path,
    answers: Mapping[str, str],
    *,
    call_seconds: float = 1,
    layers: tuple[str, ...] = isolation.LAYERS,
) -> Session:
    """Grade sources as variants of ex04_pool in one session; look at what is left."""
    write_course(root, call_seconds=call_seconds)
    temporary, folder = root / "tmp", root / "answers"
    temporary.mkdir()
    folder.mkdir()
    variants = {}
    for number, (name, source) in enumerate(answers.items()):
        variants[name] = folder / f"{number}.py"
        variants[name].write_text(source, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(warm, "BASE", str(temporary))
        patch.setattr(warm, "MEMORY", 128 << 20)
        patch.setattr(isolation, "LAYERS", layers)
        segments = _segments()
        before = _peak_memory(reset=True)
        results = grade_variants("04", variants, root=root)
        grown = _peak_memory() - before
    # Every process of a session has the session's folder in its command line.
    processes = [line for line in _command_lines() if str(temporary) in line]
    left_over = [*processes, *os.listdir(temporary), *(_segments() - segments)]
    return Session(results, left_over, grown)


def _command_lines() -> list[str]:
    lines = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            lines.append((folder / "cmdline").read_text(errors="replace"))
    return lines


def _segments() -> set[str]:
    """The keys of System V shared memory, which no process has to hold."""
    table = Path("/proc/sysvipc/shm")
    return {line.split()[0] for line in table.open()} if table.exists() else set()


def _peak_memory(reset: bool = False) -> int:
    """The most resident bytes that this process has had since the last reset."""
    if not Path("/proc/self/status").exists():
        return 0
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024
