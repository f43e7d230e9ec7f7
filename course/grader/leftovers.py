"""What a worker leaves: processes, which are ended, and files, which are removed."""

import fcntl
import os
import signal
import tempfile
import time
from contextlib import suppress
from pathlib import Path

ASK_SECONDS = 0.2  # to write a few lines, once in a test whose worker must be ended


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


def ask_where(worker: int) -> None:
    """Let the worker write where it is (see worker.py), if it still runs."""
    with suppress(OSError):
        if os.waitid(os.P_PID, worker, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            os.kill(worker, signal.SIGUSR1)
            time.sleep(ASK_SECONDS)


def children_of(pid: int | str) -> list[int]:
    """The children of all threads of a process; OSError where /proc does not tell."""
    return [
        int(child)
        for task in os.listdir(f"/proc/{pid}/task")
        for child in Path(f"/proc/{pid}/task/{task}/children").read_text().split()
    ]


def claim_folder(prefix: str, base: str | None) -> tuple[Path, int]:
    """A new folder, and the descriptor that claims it for as long as it is open.

    The kernel closes it when the process ends, however it ends.
    """
    while True:
        folder = Path(tempfile.mkdtemp(prefix=prefix, dir=base))
        claim = os.open(folder, os.O_RDONLY)
        fcntl.flock(claim, fcntl.LOCK_EX)
        if folder.exists():  # else it was removed before it was claimed
            return folder, claim
        os.close(claim)


def remove_unclaimed(prefix: str, base: str | None) -> None:
    """Remove what graders left that were killed."""
    for folder in Path(base or tempfile.gettempdir()).glob(f"{prefix}*"):
        with suppress(OSError):  # somebody else's, or one that is claimed
            claim = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
                clear(folder, folder)
                folder.rmdir()
            finally:
                os.close(claim)


def clear(folder: Path, elsewhere: Path) -> None:
    """Empty a worker's folder after its end, whatever it made of it.

    What cannot be removed stays elsewhere, which lies on the same disk: the next worker
    must not answer for it.
    """
    # Folders that are nested a thousand deep have no path that the system would take.
    # So each is moved elsewhere before it is looked into: no path gets long, nothing
    # recurses, and none has to be kept open.
    folders = [str(folder)]
    for inside in folders:  # which grows as they are found
        with suppress(OSError):
            os.chmod(inside, 0o700)
            for entry in list(os.scandir(inside)):
                with suppress(OSError):
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(_move(entry.path, elsewhere))
                    else:
                        os.unlink(entry.path)
    for emptied in folders[1:]:
        with suppress(OSError):
            os.rmdir(emptied)


def _move(folder: str, elsewhere: Path) -> str:
    """Give a folder a short path; it takes the place of an empty one."""
    os.chmod(folder, 0o700)  # its ".." changes, so it must be writable itself
    target = tempfile.mkdtemp(dir=elsewhere)
    os.rename(folder, target)
    return target
