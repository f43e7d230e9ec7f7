"""The warm process: imports what an exercise needs, then forks a worker per test.

Started as `python -I`, so that nothing beside the learner's file, in the environment or
in the working directory is imported by accident. It never runs learner code and knows
nothing of the tests. It takes one order at a time, a line of JSON each:

    {"do": "fork", …} with two descriptors (socket, output file)  ->  {"pid": n}, or
                                                        {"error": why none can be had}
    {"do": "reap", "wait": …}  ->  {"status": wait status}
"""

import gc
import importlib
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from course.grader import isolation, leftovers, worker
from course.grader.instruments import COURSE, Instruments

# What learner files commonly import; loaded once here instead of once per worker.
COMMON = ("collections", "dataclasses", "functools", "math", "random", "threading")


def main() -> None:
    """Entry point; the grader passes one JSON argument (see warm.py)."""
    config = json.loads(sys.argv[2])
    control = socket.socket(fileno=config["control"])
    # Ctrl-C reaches the grader, which then closes the control line.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # First of all: it must happen before any import starts a thread.
    alone = isolation.NAMESPACES in config["layers"] and isolation.enter_namespaces()
    for name in (*COMMON, "paged_attention.errors", *config["preload"]):
        importlib.import_module(name)
    sys.path.remove(config["root"])  # neither tests nor solutions are importable
    if "torch" in sys.modules:
        # A fork after a parallel operation would hang the child.
        sys.modules["torch"].set_num_threads(1)
    instruments = Instruments()
    instruments.read_ahead()
    for name in config["preload"]:
        # Whole parts of the package, for helpers: what they are made of is refused to
        # learner code, and forgotten.
        if name.startswith("paged_attention."):
            instruments.keep(sys.modules[name])
    kernels = _watch_kernels(config["mode"], instruments, Path(config["folder"]))
    walls = _build_walls(config, alone) + kernels
    _hide_course()
    gc.collect()
    gc.freeze()  # forked workers then share these pages for good
    _reply(control, {"walls": walls, "alone": alone})
    _serve(control, alone, instruments)
    os._exit(0)  # at once; there is nothing to finalize


def _watch_kernels(mode: str, instruments: Instruments, folder: Path) -> list[str]:
    """Install the watch over Triton kernels; what it sees, in words."""
    if not mode:
        return []
    inside = importlib.import_module(f"{COURSE}.grader.triton_inside")
    instruments.keep(inside)
    instruments.keep(importlib.import_module(f"{COURSE}.grader.unchanged"))
    watch = inside.install(mode)
    if mode == "compile":
        instruments.keep(importlib.import_module(f"{COURSE}.grader.ahead"))
    importlib.import_module(f"{COURSE}.grader.triton_ready").make_ready(mode, folder)
    if watch.lost:
        reason = f"stores beside a tensor are seen, other accesses not ({watch.lost})"
        return [f"Triton kernels, {mode}: {reason}"]
    if mode == "interpret":
        return ["Triton kernels: each access is checked against the launch's tensors"]
    return []


def _hide_course() -> None:
    """Learner code must not find, by name, the modules that it runs in."""
    for name in [name for name in sys.modules if name.split(".")[0] == COURSE]:
        del sys.modules[name]


def _build_walls(config: dict[str, Any], alone: bool) -> list[str]:
    # What is built here cannot be taken down again, and passes on to every worker.
    walls = ["a process of its own, ended when its time is up"]
    if alone:
        isolation.limit_processes()
        walls.append("namespaces: it can name no process but its own, nor a network")
    else:
        isolation.die_with_parent()
        isolation.adopt_orphans()
    isolation.close_own_memory()
    isolation.limit_files()
    allowance = config["memory"]
    if isolation.limit_memory(allowance):
        walls.append(f"private memory limited to {allowance >> 20} MiB per process")
    folder = Path(config["folder"])
    asked = alone and isolation.READ_ONLY in config["layers"]
    if asked and isolation.write_only_under(folder):
        words = "it changes none outside a folder of its own; it reads what you may"
        walls.append(f"{isolation.READ_ONLY}: {words}")
    return walls


def _serve(control: socket.socket, alone: bool, instruments: Instruments) -> None:
    pid = 0  # the last worker; there is at most one, for each is reaped before the next
    while True:
        line, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not line:  # the grader is gone, or done
            if pid:
                leftovers.end_all(pid, alone=alone, wait=True)
            return
        order = json.loads(line)
        if order["do"] == "fork":
            if pid:  # what it left has been killed, and must not count for the next
                leftovers.end_all(pid, alone=alone, wait=True)
            try:
                pid = os.fork()
            except OSError as error:
                _reply(control, {"error": str(error)})
                continue
            if pid == 0:
                # Learner code must not be able to give orders.
                control.close()
                worker.run(order, instruments, *descriptors)
            # Kept open here, they would hide from the grader that the worker hung up.
            for descriptor in descriptors:
                os.close(descriptor)
            _reply(control, {"pid": pid})
        elif pid:
            if order["ask"]:
                leftovers.ask_where(pid)
            status = leftovers.end_all(pid, alone=alone, wait=order["wait"])
            _reply(control, {"status": status})


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
