"""The grader's end of warm processes: start early, fork a worker per test, reap."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.grader import isolation, leftovers
from course.grader.crossing import plain_text
from course.grader.errors import GraderError
from course.grader.watch import Watch
from course.manifest import ROOT

MEMORY = 1 << 30  # bytes that a worker may use beyond what the warm process has
READY_SECONDS = 60.0  # import torch on a busy or cold machine
ORDER_SECONDS = 10.0
MAX_PRINTED = 4_000  # bytes of a worker's output that are kept

# In memory where there is such a place: folders come and go with every test.
BASE = "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None

_PYTHON = (sys.executable, "-I", "-W", "ignore", "-c")
_BOOT = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from course.grader.zygote import main; main()"
)


class WarmProcessLostError(Exception):
    """The warm process ended or does not answer; the next worker gets a new one."""


@dataclass
class WorkerProcess:
    """One forked worker: its socket, and the file that it prints to."""

    wire: socket.socket
    output: Path
    status: int | None = None  # how it ended, as a wait status
    _printed: str = ""

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

    def __init__(self, preload: Sequence[str]) -> None:
        self._preload = list(preload)
        self.folder = Path(tempfile.mkdtemp(prefix="course-grader-", dir=BASE))
        self._work = self.folder / "work"  # all that workers may write to
        self._work.mkdir()
        self._walls: list[str] = []
        self._start()

    def _start(self) -> None:
        """Start without waiting: its imports run beside the grader's."""
        self._control, theirs = socket.socketpair()
        config = {
            "control": theirs.fileno(),
            "root": str(ROOT),
            "preload": self._preload,
            "folder": str(self._work),
            "memory": MEMORY,
            "layers": isolation.LAYERS,
        }
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        if "triton" in self._preload:
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
                start_new_session=True,
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
            log = (self.folder / "warm.txt").read_text(errors="replace")[-2000:]
            raise GraderError(f"the warm process did not start:\n{log}") from error
        self._walls = reply["walls"]
        parent = self._process.pid
        if reply["alone"]:  # process 1 of the namespace, which it waits for
            with suppress(OSError, ValueError):
                (parent,) = leftovers.children_of(parent)
        self.watch = Watch(parent, self._work, MEMORY)
        self._ready = True

    def fork(self, files: Mapping[str, Path], order: dict[str, Any]) -> WorkerProcess:
        """A worker in a clean folder that holds copies of files and nothing else."""
        if self._process.poll() is not None:
            self._restart()
        self._wait_until_ready()
        # A worker may have changed what it was allowed to, so nothing is taken for
        # granted: the folder's name is drawn, and its output lies out of its reach.
        self._work.chmod(0o700)
        folder = Path(tempfile.mkdtemp(dir=self._work))
        copies = {}
        for name, original in files.items():
            copy = folder / f"{name}.py"
            copy.write_bytes(original.read_bytes())
            copies[name] = [str(copy), str(original)]
        order = {"do": "fork", "folder": str(folder), "files": copies, **order}
        descriptor, output = tempfile.mkstemp(dir=self.folder)
        sink = os.open(output, os.O_WRONLY | os.O_APPEND)
        os.close(descriptor)
        ours, theirs = socket.socketpair()
        descriptors = [theirs.fileno(), sink]
        try:
            try:
                self._order(order, descriptors)
            except WarmProcessLostError:  # an earlier worker had ended it
                self._restart()
                self._wait_until_ready()
                self._order(order, descriptors)
        except WarmProcessLostError as error:
            raise GraderError("the warm process ended before any test") from error
        finally:
            os.close(sink)
            theirs.close()
        return WorkerProcess(ours, Path(output))

    def reap(self, worker: WorkerProcess, *, wait: bool = True) -> int:
        """End the worker and all that it started; how it ended, as a wait status.

        wait=False: it is enough that they are bound to end; the status does not matter.
        """
        if worker.status is not None:
            return worker.status
        try:
            worker.status = int(self._order({"do": "reap", "wait": wait})["status"])
        except WarmProcessLostError:
            self._kill()
            worker.status = signal.SIGKILL
        worker.wire.close()  # only now: on a closed line it would end by itself
        with suppress(OSError):
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
        with suppress(OSError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        # With a limit: a Ctrl-C at the wrong moment can leave Popen's own lock taken.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ORDER_SECONDS)
        self._control.close()

    def close(self) -> None:
        """End it, see it gone, and remove its folder."""
        self._control.close()  # it takes this as the order to end
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(ORDER_SECONDS)
        self._kill()
        with suppress(RecursionError):  # learner code may nest folders without end
            shutil.rmtree(self.folder, ignore_errors=True)


class WarmPool:
    """One warm process per set of preloaded modules."""

    def __init__(self) -> None:
        self._processes: dict[tuple[str, ...], WarmProcess] = {}

    def process(self, preload: tuple[str, ...]) -> WarmProcess:
        """The process that has these modules; started now if it is not there."""
        if preload not in self._processes:
            self._processes[preload] = WarmProcess(preload)
        return self._processes[preload]

    @property
    def walls(self) -> list[str]:
        """What holds around every worker, in words."""
        lists = [process.walls for process in self._processes.values()]
        first = lists[0] if lists else []
        return [wall for wall in first if all(wall in each for each in lists)]

    def close(self) -> None:
        while self._processes:
            self._processes.popitem()[1].close()
