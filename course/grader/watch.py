"""What a worker, its children and its files use together, seen from outside.

The kernel's limits (isolation.py) are for one process each, and do not count memory
that is shared or files that lie in memory. So the grader looks for itself while it
waits for a reply, every LOOK_EVERY seconds. What comes and goes in between is not seen;
nor are files without a name that are kept open, and memory of System V that nobody is
attached to. A page that several processes share counts for each of them.

Linux only: /proc has to tell of memory and of children.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from course.grader.isolation import MAX_TASKS
from course.grader.leftovers import children_of

LOOK_EVERY = 0.05  # seconds; a look takes about 0.2 milliseconds
MAX_ENTRIES = 2_000  # files and folders, each of which takes a kilobyte at least

_NUMBERS = re.compile(r"^(RssAnon|RssShmem|VmSwap|Threads):\s+(\d+)", re.MULTILINE)


@dataclass(frozen=True)
class Watch:
    """Looks at all processes below the one that forks workers, and at their folder."""

    parent: int
    folder: Path
    memory: int  # bytes beyond those that a worker starts with

    def words(self) -> str:
        """What this watches over, for the report; or that it cannot."""
        limits = f"{self.memory >> 20} MiB of memory, files included, and {MAX_TASKS} "
        limits += "processes and threads"
        if self._can_see:
            return f"watched: all its processes together get {limits}"
        return "not watched: no /proc here tells what its processes use together"

    @property
    def _can_see(self) -> bool:
        try:
            children_of(self.parent)
        except OSError:
            return False
        return "RssAnon" in _numbers(self.parent)

    def look(self) -> str | None:
        """What is over a limit, as a call may be told of: "used 2,000 MiB …"."""
        used = tasks = 0
        for pid in _descendants(self.parent):
            numbers = _numbers(pid)
            tasks += numbers.pop("Threads", 0)
            if tasks > MAX_TASKS:
                return f"ran more than {MAX_TASKS} processes and threads at once"
            used += sum(numbers.values()) << 10
        if not tasks:  # none is left, or none can be seen
            return None
        numbers = _numbers(self.parent)
        numbers.pop("Threads", 0)
        used -= sum(numbers.values()) << 10  # a worker starts with what that one has
        files = _size(self.folder)
        if files is None:
            return f"made more than {MAX_ENTRIES:,} files, or hid its folder"
        if used + files > self.memory:
            return (
                f"used {used + files >> 20:,} MiB of memory, all its processes and "
                f"files together (an exercise may use {self.memory >> 20:,} MiB)"
            )
        return None


def _numbers(pid: int) -> dict[str, int]:
    """Threads, and kilobytes of memory of each kind; nothing if it has ended."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(errors="replace")
    except OSError:
        return {}
    return {name: int(number) for name, number in _NUMBERS.findall(status)}


def _descendants(parent: int) -> Iterator[int]:
    waiting = [parent]
    while waiting:
        try:
            children = children_of(waiting.pop())
        except OSError:  # it has ended, or the system does not tell
            continue
        waiting += children
        yield from children


def _size(folder: Path) -> int | None:
    """Bytes that the files below folder take; None if they can't be counted."""
    size = entries = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    if entries > MAX_ENTRIES:
                        return None
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    size += entry.stat(follow_symlinks=False).st_size
        except (FileNotFoundError, NotADirectoryError):  # it has just been removed
            continue
        except OSError:  # closed, or nested so deep that it has no usable path
            return None
    return size
