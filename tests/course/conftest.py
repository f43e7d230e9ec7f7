"""A course small enough to build in a second, for the tests of the machinery.

It has two chapters and one exercise, and a package of its own to include from, so no
test depends on the state of the real one. And a copy of the real one, to be damaged.
"""

import shutil
from pathlib import Path

import pytest

from course.manifest import ROOT

MANIFEST = """
[[chapter]]
id = "00"
name = "hello"
title = "Hello"
question = "Is anybody there?"
goal = "You can say hello."
prerequisites = []
minutes = 5
exercise = true

[[chapter.task]]
id = "0.1"
title = "Add two numbers"
points = 2
kind = "build"
hints = ["first hint", "second hint", "third hint"]

[[chapter]]
id = "01"
name = "goodbye"
title = "Goodbye"
question = "Who goes?"
goal = "You can go."
prerequisites = ["00"]
minutes = 5
exercise = false
"""

HELLO = """# Hello

```python
# @include paged_attention.pool.Pool
```

```python
print(sorted(Pool(2).free))
Pool(3)
```

```python tags=["raises-exception"]
Pool(1).take(7)
```

```python tags=["measure"]
raise SystemError("the build runs what is to be measured")
```
"""

GOODBYE = """# Goodbye

```python
print("bye")
```
"""

SOLUTION = '''"""Exercise 00: add(a, b) -> int."""


def add(a: int, b: int) -> int:
    # BEGIN SOLUTION 0.1: add the two
    return a + b
    # END SOLUTION


# BEGIN NOTES
# It could as well be sum((a, b)).
# END NOTES
'''

POOL = '''"""A module to include from."""

import collections
import os
from dataclasses import dataclass, field

from paged_attention.errors import OutOfBlocksError

LIMIT = 5


# A pool with nothing to it.
@dataclass
class Pool:
    """Holds numbers."""

    size: int
    free: set[int] = field(default_factory=set)  # ids

    def __post_init__(self) -> None:
        # all of them are free
        self.free = set(range(self.size))

    def take(self, block_id: int) -> int:
        if block_id not in self.free:
            raise OutOfBlocksError(f"{block_id} is not free")
        return block_id

    # how many there are
    @property
    def num_free(self) -> int:
        return min(len(self.free), LIMIT)


def count(pool: Pool) -> int:
    return len(collections.Counter(pool.free))
'''


FILES = {
    "course/manifest.toml": MANIFEST,
    "chapters/src/00_hello.md": HELLO,
    "chapters/src/01_goodbye.md": GOODBYE,
    "solutions/ex00_hello.py": SOLUTION,
    "paged_attention/__init__.py": "",
    "paged_attention/pool.py": POOL,
    "paged_attention/errors.py": "class OutOfBlocksError(Exception):\n    pass\n",
    "exercises/.gitkeep": "",
}


@pytest.fixture
def tiny_course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of a course with sources and nothing built."""
    root = tmp_path / "a course"  # with a space in its path
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(root))  # its package comes before the real one
    return root


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of the course, with the one exercise that needs least."""
    root = tmp_path / "another course"
    for name in ("course", "paged_attention"):
        shutil.copytree(
            ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in (
        "pyproject.toml",
        "solutions/ex00_start_here.py",
        "tests/exercises/test_ex00_start_here.py",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    return root
