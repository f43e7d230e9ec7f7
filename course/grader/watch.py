"""What a worker, its children and its files use together, seen from outside.

The kernel's limits (isolation.py) are for one process each, and do not count memory
that is shared or files that lie in memory. So the grader looks for itself while it
waits for a reply, now and then. What comes and goes in between is not seen;
nor are files without a name that are kept open, and memory of System V that nobody is
attached to. A page that they share counts for each, if the warm process lacks it.

It also sees how long they ran, and how long they were kept from running (limits.py).

Linux only: /proc has to tell of memory and of children.
"""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from course.grader.isolation import MAX_TASKS
from course.grader.leftovers import children_of
from course.grader.limits import Look

MAX_ENTRIES = 2_000  # files and folders, each of which takes a kilobyte at least

_TICKS = os.sysconf("SC_CLK_TCK")  # in a second
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

    def look(self) -> Look:
        """What they use now."""
        used = tasks = 0
        numbers = _numbers(self.parent)
        numbers.pop("Threads", 0)
        start = sum(numbers.values())
        cpu, on_disk = 0.0, False
        own = sum(_schedule("/proc/thread-self"))
        delay = own
        for pid in _descendants(self.parent):
            numbers = _numbers(pid)
            tasks += numbers.pop("Threads", 0)
            if tasks > MAX_TASKS:
                return Look(f"ran more than {MAX_TASKS} processes and threads at once")
            # Each starts with what the parent has, in pages that it shares with it.
            used += max(0, sum(numbers.values()) - start) << 10
            state, ran = _times(pid)
            cpu, on_disk = cpu + ran, on_disk or state == "D"
            with suppress(OSError):
                for task in os.scandir(f"/proc/{pid}/task"):
                    delay += _schedule(task.path)[1]
        if not tasks:  # none is left, or none can be seen
            return Look()
        return Look(self._too_much(used), cpu, delay / 1e9 if own else None, on_disk)

    def _too_much(self, used: int) -> str | None:
        """Words like "used 2,000 MiB …", for which there is a limit."""
        files = _size(self.folder)
        if files is None:
            return f"made more than {MAX_ENTRIES:,} files, or hid its folder"
        if used + files > self.memory:
            return (
                f"used {used + files >> 20:,} MiB of memory, all its processes and "
                f"files together (an exercise may use {self.memory >> 20:,} MiB)"
            )
        return None


def _times(pid: int) -> tuple[str, float]:
    """The state of a process, and the seconds that it and its ended children ran."""
    try:
        # "1234 (name) S …": the name may contain blanks and brackets.
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        fields = stat.rpartition(")")[2].split()
        return fields[0], sum(map(int, fields[11:15])) / _TICKS
    except (OSError, LookupError, ValueError):  # it has just ended
        return "", 0.0


def _schedule(thread: str) -> tuple[int, int]:
    """Nanoseconds that a thread ran, and that it was ready to run and did not."""
    try:
        ran, waited, _ = map(int, Path(thread, "schedstat").read_text().split())
    except (OSError, ValueError):  # it has just ended, or the system does not tell
        return 0, 0
    return ran, waited


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
