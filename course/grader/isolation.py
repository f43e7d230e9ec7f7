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
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

NAMESPACES = "namespaces"
LANDLOCK = "landlock"
LAYERS = (NAMESPACES, LANDLOCK)  # what a warm process tries

MAX_FILE_BYTES = 8 << 20  # of any file that learner code writes, printed output too
MAX_OPEN_FILES = 128  # in each process
MAX_TASKS = 64  # processes and threads of one worker, itself included

_CLONE_NEWUSER, _CLONE_NEWPID = 0x10000000, 0x20000000
_PR_SET_PDEATHSIG, _PR_GET_DUMPABLE, _PR_SET_DUMPABLE = 1, 3, 4
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_LANDLOCK_VERSION, _LANDLOCK_PATH_BENEATH = 1, 1
_WRITE_FILE, _MOVE, _TRUNCATE = 1 << 1, 1 << 13, 1 << 14
_CHANGE_FOLDER = sum(1 << bit for bit in range(4, 13))  # make or remove an entry
_SCOPE_SOCKETS_AND_SIGNALS = 0b11

_libc = ctypes.CDLL(None, use_errno=True)
_LINUX = sys.platform == "linux"


def _prctl(option: int, value: int = 0) -> int:
    return _libc.prctl(option, value, 0, 0, 0) if _LINUX else -1


def enter_namespaces() -> bool:
    """Become process 1 of a new user and pid namespace; False where that is forbidden.

    The caller returns in a child; the process that called waits for it and then ends.
    From in there no process outside can be named, let alone signalled or written to,
    and when process 1 ends the kernel ends all others.
    """
    if not _LINUX or _libc.unshare(_CLONE_NEWUSER | _CLONE_NEWPID) != 0:
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


def write_only_under(folders: Sequence[Path]) -> bool:
    """With Landlock: files can be changed below folders and nowhere else; one way.

    It also stops this process and its children from tracing and from signalling
    processes outside (the latter from Linux 6.12 on). Reading stays free: the sources
    are public.
    """
    # The kernel tells its version of Landlock; a newer one knows more kinds of access.
    version = _landlock_version()
    if version < 1:
        return False
    writes = _WRITE_FILE | _CHANGE_FOLDER | (_TRUNCATE if version >= 3 else 0)
    writes |= _MOVE if version >= 2 else 0  # from one folder to another, inside
    scoped = _SCOPE_SOCKETS_AND_SIGNALS if version >= 6 else 0
    # struct landlock_ruleset_attr: file access, network access (none is ruled), scopes.
    # A kernel refuses a longer struct than it knows.
    rules = struct.pack("=QQQ", writes, 0, scoped)[: 24 if version >= 6 else 8]
    ruleset = _libc.syscall(_LANDLOCK_CREATE, rules, len(rules), 0)
    if ruleset < 0:
        return False
    try:
        for folder in folders:
            _landlock_allow(ruleset, folder, writes)
        for device in (Path("/dev/null"), *Path("/dev").glob("nvidia*")):
            if not device.is_dir():
                _landlock_allow(ruleset, device, _WRITE_FILE)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)  # the kernel demands it of who is not root
        return _libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0) == 0
    finally:
        os.close(ruleset)


def _landlock_version() -> int:
    if not _LINUX:
        return -1
    return _libc.syscall(_LANDLOCK_CREATE, None, 0, _LANDLOCK_VERSION)


def _landlock_allow(ruleset: int, path: Path, access: int) -> None:
    where = os.open(path, getattr(os, "O_PATH", 0) | os.O_CLOEXEC)
    try:
        # struct landlock_path_beneath_attr: access, the descriptor of a folder or file.
        rule = struct.pack("=Qi", access, where)
        _libc.syscall(_LANDLOCK_ADD, ruleset, _LANDLOCK_PATH_BENEATH, rule, 0)
    finally:
        os.close(where)
