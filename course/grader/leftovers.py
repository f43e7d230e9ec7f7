"""What a worker leaves: processes, which are ended, and files, which are removed."""

import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path


def end_all(worker: int, *, alone: bool, wait: bool) -> int:
    """Kill the worker and whatever it left behind; the worker's wait status.

    alone: this process is number 1 of its own pid namespace, so that -1 means exactly
    those, and wait=False need not await what is sure to die (the status is then 0).
    Otherwise orphans come back to this process, which adopts them, round by round: a
    process found late is a child of the next round.
    """
    targets = [-1] if alone else [worker, -worker]
    status = 0
    while True:
        for pid in targets:
            with suppress(OSError):  # it is gone already
                os.kill(pid, signal.SIGKILL)
        try:
            hang = 0 if wait or not alone else os.WNOHANG
            pid, ended = os.waitpid(-1, hang)
        except ChildProcessError:
            return status
        if pid == 0:
            return status
        if pid == worker:
            status = ended
        if not alone:
            targets = []
            with suppress(OSError):
                targets = children_of("self")


def children_of(pid: int | str) -> list[int]:
    """The children of all threads of a process; OSError where /proc does not tell."""
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


def clear(folder: Path, elsewhere: Path) -> None:
    """Empty a worker's folder after its end, whatever it made of it.

    What cannot be removed, such as folders nested a thousand deep, goes elsewhere: the
    next worker must not answer for it.
    """
    with suppress(OSError):
        folder.chmod(0o700)
        for left in folder.iterdir():
            try:
                _remove(left)
            except (OSError, RecursionError):
                with suppress(OSError):
                    left.rename(elsewhere / f"left by {left.name}")


def _remove(path: Path) -> None:
    if path.is_symlink() or not path.is_dir():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except PermissionError:
        path.chmod(0o700)
        for parent, names, _ in os.walk(path):
            for name in names:
                if not os.path.islink(inner := os.path.join(parent, name)):
                    os.chmod(inner, 0o700)
        shutil.rmtree(path)
