"""The warm process: imports what an exercise needs, then forks a worker per test.

Started as `python -I`, so that nothing beside the learner's file, in the environment or
in the working directory is imported by accident. It never runs learner code and knows
nothing of the tests. It takes one order at a time, a line of JSON each:

    {"do": "fork", …} with two descriptors (socket, output file)  ->  {"pid": n}
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
    walls = _build_walls(config, alone)
    _hide_course()
    gc.collect()
    gc.freeze()  # forked workers then share these pages for good
    _reply(control, {"walls": walls, "alone": alone})
    _serve(control, alone, instruments)
    os._exit(0)  # at once; there is nothing to finalize


def _hide_course() -> None:
    """Learner code must not find, by name, the modules that it runs in."""
    for name in [name for name in sys.modules if name.split(".")[0] == COURSE]:
        del sys.modules[name]


def _build_walls(config: dict[str, Any], alone: bool) -> list[str]:
    walls = ["a process of its own, ended at its deadline"]
    if alone:
        isolation.limit_processes()
        walls.append("namespaces: it can name no process but its own")
    else:
        isolation.die_with_parent()
        isolation.adopt_orphans()
    isolation.close_own_memory()
    isolation.limit_files()
    allowance = config["memory"]
    if isolation.limit_memory(allowance):
        walls.append(f"private memory limited to {allowance >> 20} MiB per process")
    if isolation.LANDLOCK in config["layers"] and isolation.write_only_under(
        [Path(config["folder"])]
    ):
        walls.append("Landlock: it writes only to a folder of its own")
    return walls


def _serve(control: socket.socket, alone: bool, instruments: Instruments) -> None:
    pid = 0
    while True:
        line, descriptors, _, _ = socket.recv_fds(control, 1 << 16, 2)
        if not line:  # the grader is gone, or done
            if pid:
                leftovers.end_all(pid, alone=alone, wait=True)
            return
        order = json.loads(line)
        if order["do"] == "fork":
            pid = os.fork()
            if pid == 0:
                control.close()
                worker.run(order, instruments, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)
            _reply(control, {"pid": pid})
        elif pid:
            status = leftovers.end_all(pid, alone=alone, wait=order["wait"])
            _reply(control, {"status": status})


def _reply(control: socket.socket, message: dict[str, Any]) -> None:
    control.sendall(json.dumps(message).encode() + b"\n")
