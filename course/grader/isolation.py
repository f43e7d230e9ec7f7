"""Walls around the learner's code: each is tried, and what holds is said in words.

The warm process builds them around itself, once; the workers it forks inherit them.
None of them decides a verdict, which is formed in the grader from plain data. They keep
a learner's process from reaching past the socket: from signals to other processes,
from the grader's memory, from the course's files, from eating the machine.

Linux only, and containers forbid some of it; elsewhere they are left out.
"""

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

NAMESPACES = "namespaces"
READ_ONLY = "read-only files"
LAYERS = (NAMESPACES, READ_ONLY)  # what a warm process tries

MAX_FILE_BYTES = 8 << 20  # of any file that learner code writes, printed output too
MAX_OPEN_FILES = 128  # in each process
MAX_TASKS = 64  # processes and threads of one worker, itself included

# New for the warm process and its workers: users and processes; mounts; what System V
# leaves behind; a network with no other machine on it.
_CLONE_USER_AND_PID, _CLONE_REST = 0x30000000, 0x48020000
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_CHILD_SUBREAPER = 36
_MS_BIND, _MS_OF_ITS_OWN = 0x1000, 0x44000  # the latter for all mounts: private
_MOUNT_SETATTR, _READ_ONLY, _AND_ALL_BELOW = 442, 1, 0x8000

_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int = 0) -> int:
    return _libc.prctl(option, value, 0, 0, 0) if _LINUX else -1


def enter_namespaces() -> bool:
    """Become process 1 of namespaces of its own; False where that is forbidden.

    The caller returns in a child; the process that called waits for it and then ends.
    From in there no process outside can be named, let alone signalled or written to,
    and when process 1 ends the kernel ends all others.
    """
    if not _LINUX or _libc.unshare(_CLONE_USER_AND_PID | _CLONE_REST) != 0:
        return False
    # unshare() changes the pid namespace of children only, hence the fork. The parent
    # stays behind as the process that the grader knows by number.
    if child := os.fork():
        # It must not keep the sockets open, whose closing has a meaning.
        os.closerange(3, 256)
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    die_with_parent()
    return True


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Get this signal when the parent ends, however it ends."""
    _prctl(_PR_SET_PDEATHSIG, number)


def adopt_orphans() -> None:
    """Make grandchildren whose parent ends children of this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


@contextmanager
def unreadable_memory() -> Iterator[None]:
    """Nobody of the same user may open this process's memory while this lasts."""
    before = _prctl(_PR_GET_DUMPABLE)
    _prctl(_PR_SET_DUMPABLE, 0)
    try:
        yield
    finally:
        if before == 1:
            _prctl(_PR_SET_DUMPABLE, 1)


@contextmanager
def one_cpu(wanted: bool) -> Iterator[int | None]:
    """Stay on the processor that runs this, and say which, for a worker to join it.

    Two processes that take turns wake each other in half the time on one processor.
    """
    if not wanted or not _LINUX:
        yield None
        return
    allowed = os.sched_getaffinity(0)
    cpu = _libc.sched_getcpu()
    with suppress(OSError):
        os.sched_setaffinity(0, {cpu})
    try:
        yield cpu
    finally:
        os.sched_setaffinity(0, allowed)


def close_own_memory() -> None:
    _prctl(_PR_SET_DUMPABLE, 0)


def limit_memory(allowance: int) -> bool:
    """Allow this process and its children `allowance` more bytes than it has now.

    For each process, and private writable memory only (RLIMIT_DATA); watch.py sees the
    rest. Address space (RLIMIT_AS) is of no use: torch reserves far more than it needs.
    """
    try:
        fields = Path("/proc/self/statm").read_text().split()
        used = int(fields[5]) * resource.getpagesize()  # data and stack, in pages
        _lower(resource.RLIMIT_DATA, used + allowance)
    except (OSError, ValueError):
        return False
    return True


def limit_files() -> None:
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
    ):
        with suppress(OSError, ValueError):
            _lower(limit, value)


def limit_processes() -> None:
    """Let the kernel stop a fork bomb, once inside of a namespace of its own.

    It counts the user's processes in there, from Linux 5.14 on; before, all processes
    of the user. For root it counts nothing: then watch.py alone stops the bomb.
    """
    version = tuple(map(int, os.uname().release.split(".")[:2]))
    if version >= (5, 14):
        with suppress(OSError, ValueError):
            # Two more: process 1 of the namespace and the one that waits for it.
            _lower(resource.RLIMIT_NPROC, MAX_TASKS + 2)


def _lower(limit: int, value: int) -> None:
    _, hard = resource.getrlimit(limit)
    if hard != resource.RLIM_INFINITY:
        value = min(value, hard)
    resource.setrlimit(limit, (value, value))


def write_only_under(folder: Path) -> bool:
    """Make all files read-only but those in folder, for all who share our namespaces.

    Not even times or permissions can be changed elsewhere. Reading stays free: it is
    the reader's own machine, and the sources are public.
    """
    here = os.fsencode(folder)
    return (
        _libc.mount(None, b"/", None, _MS_OF_ITS_OWN, None) == 0
        and _libc.mount(here, here, None, _MS_BIND, None) == 0
        and _set_mount(b"/", _AND_ALL_BELOW, on=_READ_ONLY)
        and _set_mount(here, 0, off=_READ_ONLY)
    )


def _set_mount(path: bytes, flags: int, on: int = 0, off: int = 0) -> bool:
    # struct mount_attr: set, clear, propagation, user namespace (Linux 5.12 and later)
    change = (ctypes.c_uint64 * 4)(on, off, 0, 0)
    size = ctypes.sizeof(change)
    return _libc.syscall(_MOUNT_SETATTR, -100, path, flags, change, size) == 0
