"""The grader's end of warm processes: start early, fork a worker per test, reap."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from course.grader import isolation, leftovers
from course.grader.crossing import plain_text
from course.grader.errors import GraderError
from course.grader.watch import MAX_ENTRIES, Watch
from course.manifest import ROOT

MEMORY = 1 << 30  # bytes that a worker may use beyond what the warm process has
GPU_MEMORY = 16 << 30  # CUDA maps a lot of it on the host
# Only a process that hangs lets these pass: that it ended is seen at once. On a busy
# machine the first takes ten times the usual 2 seconds, on a cold one as well.
READY_SECONDS = 300.0
ORDER_SECONDS = 120.0
CLOSE_SECONDS = 10.0  # then it is killed
ROOM = 32 << 20  # bytes that workers should have for their files
MAX_STACK = 100_000  # bytes of a stack that are read
MAX_PRINTED = 4_000  # bytes of a worker's output that are kept

PREFIX = "course-grading-"  # of folders

# Without the environment, which says to us whether bytecode is to be written.
_FLAGS = "-IB" if sys.dont_write_bytecode else "-I"
_PYTHON = (sys.executable, _FLAGS, "-W", "ignore", "-c")
# At the end of the path: a random.py beside the course is not the standard library's.
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from course.grader.zygote import main; main()"
)


def _base(place: str = "/dev/shm") -> str | None:
    """A folder in memory, where there is one with room; None: the usual for drafts.

    Folders come and go with every test.
    """
    with suppress(OSError):
        disk = os.statvfs(place)
        is_free = disk.f_bavail * disk.f_frsize >= ROOM and disk.f_favail >= MAX_ENTRIES
        if is_free and os.access(place, os.W_OK | os.X_OK):
            return place
    return None


BASE = _base()


class WarmProcessLostError(Exception):
    """The warm process ended or does not answer; the next worker gets a new one."""


@dataclass
class WorkerProcess:
    """One forked worker: its socket, and the file that it prints to."""

    wire: socket.socket
    output: Path
    status: int | None = None  # how it ended, as a wait status
    stack: str = ""  # where it was when it was ended, as faulthandler writes it
    _printed: str = ""

    def cut_stack(self, start: int) -> None:
        """Take what it wrote last, when it was asked where it is, out of its output."""
        with self.output.open("rb+") as stream:
            stream.seek(start)
            self.stack = stream.read(MAX_STACK).decode("utf-8", "replace")
            stream.truncate(start)

    def printed(self) -> str:
        """The end of what it printed, made safe to show."""
        if self.output.exists():
            with self.output.open("rb") as stream:
                size = stream.seek(0, os.SEEK_END)
                stream.seek(max(0, size - MAX_PRINTED))
                text = stream.read().decode("utf-8", "replace")
            self._printed = plain_text(text, MAX_PRINTED)
        return self._printed


class WarmProcess:
    """A `python -I` that has imported `preload`; at most one worker at a time."""

    def __init__(self, preload: Sequence[str], mode: str = "") -> None:
        """mode: what becomes of kernels, if it preloads Triton (see triton_inside)."""
        self._preload = list(preload)
        self._mode = (mode or "interpret") if "triton" in preload else ""
        self.folder, self._claim = leftovers.claim_folder(PREFIX, BASE)
        self._work = self.folder / "work"  # all that workers may write to
        self._work.mkdir()
        self._walls: list[str] = []
        self.num_lost = 0  # workers that ended because this process did
        try:
            self._start()
        except BaseException:  # Ctrl-C: nobody has this object yet, to close it
            self._remove_folder()
            raise

    def _start(self) -> None:
        """Start without waiting: its imports run beside the grader's."""
        # Orders and replies go over this pair. That the grader's end is closed, also by
        # its death, is the order to end: so no warm process outlives a grader.
        self._control, theirs = socket.socketpair()
        config = {
            "control": theirs.fileno(),
            "root": str(ROOT),
            "preload": self._preload,
            "folder": str(self._work),
            "memory": GPU_MEMORY if self._mode == "gpu" else MEMORY,
            "mode": self._mode,
            "layers": isolation.LAYERS,
        }
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        environment.pop("TRITON_INTERPRET", None)
        if self._mode == "interpret":
            environment["TRITON_INTERPRET"] = "1"
        with (self.folder / "warm.txt").open("wb") as log:
            self._process = subprocess.Popen(
                [*_PYTHON, _BOOT, str(ROOT), json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                env=environment,
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is the grader's alone to handle
            )
        theirs.close()
        self._ready = False

    @property
    def walls(self) -> list[str]:
        """The walls that hold, in words; waits until the process is ready."""
        self._wait_until_ready()
        return [*self._walls, self.watch.words()]

    def _wait_until_ready(self) -> None:
        if self._ready:
            return
        try:
            reply = self._read_reply(READY_SECONDS)
        except WarmProcessLostError as error:
            log = (self.folder / "warm.txt").read_text(errors="replace").strip()
            why = log.rpartition("\n")[2] or f"no reply in {READY_SECONDS:g} seconds"
            raise GraderError(f"the warm process did not start: {why}") from error
        self._walls = reply["walls"]
        parent = self._process.pid
        if reply["alone"]:  # process 1 of the namespace, which it waits for
            with suppress(OSError, ValueError):
                (parent,) = leftovers.children_of(parent)
        memory = GPU_MEMORY if self._mode == "gpu" else MEMORY
        self.watch = Watch(parent, self._work, memory)
        self._ready = True

    def fork(
        self, files: Mapping[str, tuple[Path, bytes]], order: dict[str, Any]
    ) -> WorkerProcess:
        """A worker in a clean folder that holds copies of files and nothing else.

        files: module name -> the learner's path, and the bytes that are graded.
        """
        if self._process.poll() is not None:
            self._restart()
        self._wait_until_ready()
        # A worker may have changed what it was allowed to, so nothing is taken for
        # granted: the folder's name is drawn, and its output lies out of its reach.
        self._work.mkdir(parents=True, exist_ok=True)
        self._work.chmod(0o700)
        folder = Path(tempfile.mkdtemp(dir=self._work))
        copies = {}
        for name, (original, data) in files.items():
            copy = folder / f"{name}.py"
            copy.write_bytes(data)
            copies[name] = [str(copy), str(original)]
        order = {"do": "fork", "folder": str(folder), "files": copies, **order}
        order["memory"] = self.watch.memory
        # What the worker prints goes to a file and not to a pipe: nobody has to read it
        # while a call runs, and a worker that prints without end fills no memory.
        descriptor, output = tempfile.mkstemp(dir=self.folder)
        # To append, so that a worker and its children do not write over each other.
        sink = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.close(descriptor)
        # The pair over which calls go (channel.py). The warm process hands one end on
        # to the worker and keeps none, so the line closes when the worker ends.
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), sink]
        try:
            try:
                reply = self._order(order, descriptors)
            except WarmProcessLostError:  # an earlier worker had ended it
                self._restart()
                self._wait_until_ready()
                reply = self._order(order, descriptors)
        except WarmProcessLostError as error:
            raise GraderError("the warm process ended before any test") from error
        finally:
            os.close(sink)
            theirs.close()
        if "error" in reply:
            raise GraderError(f"no worker can be started: {reply['error']}")
        return WorkerProcess(ours, Path(output))

    def reap(
        self, worker: WorkerProcess, *, wait: bool = True, ask: bool = False
    ) -> int:
        """End the worker and all that it started; how it ended, as a wait status.

        ask: let it say before where it is, for worker.stack.
        wait=False: it is enough that they are bound to end; the status does not matter.
        """
        if worker.status is not None:
            return worker.status
        size = 0
        with suppress(OSError):  # where no wall holds, it may have removed its output
            size = worker.output.stat().st_size
        try:
            order = {"do": "reap", "wait": wait, "ask": ask}
            worker.status = int(self._order(order)["status"])
        except WarmProcessLostError:
            self._kill()
            self.num_lost += 1
            worker.status = signal.SIGKILL
        worker.wire.close()  # only now: on a closed line it would end by itself
        with suppress(OSError):
            if ask:
                worker.cut_stack(size)
            worker.printed()
            worker.output.unlink()
        leftovers.clear(self._work, self.folder)
        return worker.status

    def _order(
        self, message: dict[str, Any], descriptors: Sequence[int] = ()
    ) -> dict[str, Any]:
        line = json.dumps(message).encode() + b"\n"
        try:
            self._control.settimeout(ORDER_SECONDS)
            socket.send_fds(self._control, [line], descriptors)
        except OSError as error:
            raise WarmProcessLostError from error
        return self._read_reply(ORDER_SECONDS)

    def _read_reply(self, seconds: float) -> dict[str, Any]:
        try:
            self._control.settimeout(seconds)
            line = self._control.recv(1 << 16)
            reply = json.loads(line)
        except (OSError, ValueError) as error:
            raise WarmProcessLostError from error
        if type(reply) is not dict:
            raise WarmProcessLostError
        return reply

    def _restart(self) -> None:
        self._kill()
        self._start()

    def _kill(self) -> None:
        # The group first: it holds what the warm process has started, itself included.
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        # With a limit: a Ctrl-C at the wrong moment can leave Popen's own lock taken.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._control.close()

    def kill(self) -> None:
        """End it at once; close() has still to follow."""
        self._kill()

    def close(self) -> None:
        """End it, see it gone, and remove its folder."""
        self._control.close()  # it takes this as the order to end
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(CLOSE_SECONDS)
        self._kill()
        self._remove_folder()

    def _remove_folder(self) -> None:
        leftovers.clear(self.folder, self.folder)
        with suppress(OSError):
            self.folder.rmdir()
        os.close(self._claim)


def missing_module(preload: Sequence[str]) -> str | None:
    """The first of these modules that is not installed."""
    return next((name for name in preload if find_spec(name) is None), None)


class WarmPool:
    """One warm process per set of preloaded modules, and mode of kernels."""

    def __init__(self) -> None:
        leftovers.remove_unclaimed(PREFIX, BASE)
        self._processes: dict[tuple[tuple[str, ...], str], WarmProcess] = {}

    def process(self, preload: tuple[str, ...], mode: str = "") -> WarmProcess:
        """The process that has these modules; started now if it is not there."""
        if (preload, mode) not in self._processes:
            self._processes[preload, mode] = WarmProcess(preload, mode)
        return self._processes[preload, mode]

    @property
    def num_lost(self) -> int:
        """How many workers ended because their warm process did."""
        return sum(process.num_lost for process in self._processes.values())

    @property
    def walls(self) -> list[str]:
        """What holds around every worker, in words."""
        lists = [process.walls for process in self._processes.values()]
        first = lists[0] if lists else []
        return [wall for wall in first if all(wall in each for each in lists)]

    def kill(self) -> None:
        for process in self._processes.values():
            process.kill()

    def close(self) -> None:
        while self._processes:
            self._processes.popitem()[1].close()
