"""The learner's side: loads the exercise, answers one request after the other.

Everything here can be reached and patched by learner code, so nothing here decides
anything. The grader reads what arrives as data, checks its type and compares it.

A helper that measures (steps, times, races, addresses) runs here as well, and no value
that the grader knows can be compared with its result. An empty result fails. Code that
forges a measurement deliberately gets the points of those tests.

An order names the work:
    folder   the clean directory: working directory, first on sys.path
    module   name of the exercise's module, like ex04_free_list
    files    module name -> [copy in folder, the learner's own path], `needs` included
    refuses  package modules that would be the answer
    refused_to  the same for each file, if there are several; else empty
    classes  names of the exercise's classes: their objects cross as handles
    cpu      the processor to stay on, the grader's; or None
    memory   bytes that it may use, for the words of an error
"""

import faulthandler
import importlib
import linecache
import mmap
import os
import signal
import socket
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from course.grader import codec, isolation
from course.grader.codec import UnfitError
from course.grader.crossing import (
    describe_learners,
    place_of,
    rebuild,
    words_for_leaving,
    words_for_machine,
)
from course.grader.given import Given, GivenObject, to_grader, words_for_type
from course.grader.guard import ImportGuard
from course.grader.instruments import Instruments
from course.grader.unchanged import Change, first_change, is_open

Message = dict[str, Any]
Ask = Callable[[Message, list[bytes]], tuple[Message, memoryview]]


GRADER_ERROR = "course.grader.errors:GraderError"  # as helpers import it
EXIT_BROKEN = 70  # the code below itself could not go on
EXIT_NO_MEMORY = 71  # the same, for want of memory
RESERVE = 8 << 20  # bytes, enough to say that no more can be had


class MissingError(Exception):
    """The exercise lacks a name that its contract promises."""


class Worker:
    """Holds the learner's module and its live objects; answers requests about them."""

    def __init__(
        self,
        order: Message,
        ask: Ask,
        instruments: Instruments | None = None,
    ) -> None:
        self._instruments = instruments or Instruments()
        self._order = order
        self._ask = ask  # sends a callback to the grader, returns its reply
        self._sources = {
            original: Path(copy).read_text(encoding="utf-8", errors="replace")
            for copy, original in order["files"].values()
        }
        for name, text in self._sources.items():
            # Triton reads kernels from their file, which may have changed since.
            lines = text.splitlines(keepends=True)
            linecache.cache[name] = len(text), None, lines, name
        self._objects: list[object] = []
        self._given = Given(self._ask_grader)
        self._reserve: mmap.mmap | None = None  # nothing; it can be given up
        self._refill()
        self.last_error: BaseException | None = None  # until replied(); for a debugger
        self.module: ModuleType | None = None
        self._call: tuple[Callable[..., Any], list, dict] | None = None

    def answer(
        self, message: Message, blobs: memoryview
    ) -> tuple[Message, list[bytes]]:
        """Do what message asks; whatever happens becomes a message."""
        out: list[bytes] = []
        self._call = None
        try:
            reader = codec.Reader(blobs, self._from_wire, load_torch=True)
            value = self._do(message, reader, out)
            changed = self._changed(message, blobs)
            return ({"changed": changed}, []) if changed else ({"value": value}, out)
        except MissingError as error:
            return {"missing": str(error)}, []
        except UnfitError as error:
            return {"unfit": str(error)}, []
        except BaseException as error:
            if words := words_for_machine(error, self._sources):
                return {"machine": words}, []
            # Learner code may hold all the memory that it may have. To let go of what
            # its frames hold can take a second: not before the reply (replied).
            self._reserve = None
            self.last_error = error
            if words := words_for_leaving(error):
                return {"left": words}, []
            assert isinstance(error, Exception)  # words_for_leaving has the others
            grader_error: Any = self._instruments.function(GRADER_ERROR)
            if isinstance(error, grader_error):
                return {"machine": str(error)}, []
            memory = self._order.get("memory")
            described = describe_learners(error, self._sources, memory)
            described["where"] = described["where"] or self._definition()
            if not isinstance(error, MemoryError):
                described["changed"] = self._changed(message, blobs)
            return {"raised": described}, []

    def replied(self) -> None:
        """The reply is on its way: let go of an error, have a reserve again."""
        if self._reserve is None:
            self.last_error = None
            self._refill()

    def _refill(self) -> None:
        # Mapped, so that it goes back to the system, where any allocator can get it.
        with suppress(OSError):
            self._reserve = mmap.mmap(-1, RESERVE, flags=mmap.MAP_PRIVATE)

    def _do(self, message: Message, reader: codec.Reader, out: list[bytes]) -> Any:
        kind = message["do"]
        if kind == "load":
            self.module = importlib.import_module(self._order["module"])
            return None
        if kind == "end":
            return None
        # A property, an attribute or a variable of the module.
        if kind == "get":
            found = self._find(message["of"], message["name"])
            return codec.encode(found, out, self._to_wire)
        args = [reader.decode(arg) for arg in message["args"]]
        kwargs = {name: reader.decode(arg) for name, arg in message["kwargs"].items()}
        if kind == "helper":
            result = self._instruments.function(message["name"])(*args, **kwargs)
        else:
            function = self._find(message["of"], message["name"])
            self._call = function, args, kwargs
            result = function(*args, **kwargs)
        if kind == "new":
            return self._handle(result, message["name"])
        return codec.encode(result, out, self._to_wire)

    def _changed(self, message: Message, blobs: memoryview) -> Change | None:
        """The first argument of the learner's function that the call has changed."""
        if self._call is None or not any(
            map(is_open, (*message["args"], *message["kwargs"].values()))
        ):
            return None
        function, args, kwargs = self._call
        # What was sent, read once more: nothing has to be kept while the call runs.
        reader = codec.Reader(blobs, self._from_wire, load_torch=True)
        before = [reader.decode(arg) for arg in message["args"]]
        named = {name: reader.decode(arg) for name, arg in message["kwargs"].items()}
        pairs = [(i, *both) for i, both in enumerate(zip(before, args, strict=True))]
        pairs += [(name, was, kwargs[name]) for name, was in named.items()]
        may_write = message.get("writes", ())
        return first_change(function, [p for p in pairs if p[0] not in may_write])

    def _definition(self) -> list[Any] | None:
        """Where the function stands that could not take the arguments of a call."""
        function = self._call[0] if self._call else None
        function = function.__init__ if isinstance(function, type) else function
        code = getattr(function, "__code__", None)
        return code and place_of(code, code.co_firstlineno, self._sources)

    def _find(self, of: Any, name: str) -> Any:
        # of: the number of an object, the name of a class, or None for the module.
        if type(of) is int:
            # Its AttributeError is the learner's own error, and is told as such.
            return getattr(self._objects[of], name)
        owner = self.module if of is None else self._find(None, of)
        try:
            return getattr(owner, name)
        except AttributeError:
            where = f"{self._order['module']}.py" if of is None else of
            raise MissingError(f"{where} does not define {name}") from None

    def _handle(self, value: object, name: str) -> Message:
        # Kept alive and known by number, so that a test can call its methods later. The
        # same object may get several numbers; identity is never compared over there.
        self._objects.append(value)
        return {"handle": [len(self._objects) - 1, name]}

    def _to_wire(self, value: object) -> Message:
        if isinstance(value, GivenObject):  # comes home
            return {"given": value._number}
        for name in self._order["classes"]:
            kind = getattr(self.module, name, None)
            if isinstance(kind, type) and isinstance(value, kind):
                return self._handle(value, name)
        raise UnfitError(words_for_type(type(value)))

    def _from_wire(self, tag: str, body: Any) -> object:
        if tag == "handle":
            return self._objects[body]
        if tag == "name":
            return self._find(None, body)
        if tag == "method":
            return self._find(*body)
        if tag == "module":
            return self.module
        if tag == "hidden":
            return self._given.kind(**body)
        if tag == "given":
            return self._given.instance(**body)
        raise UnfitError(f"an unknown kind of value: {tag}")

    def _ask_grader(
        self, callback: str, of: int, name: str, args: Iterable[object], kwargs: dict
    ) -> Any:
        out: list[bytes] = []
        try:
            message = {
                "callback": callback,
                "of": of,
                "name": name,
                "args": [codec.encode(arg, out, to_grader) for arg in args],
                "kwargs": {
                    str(key): codec.encode(arg, out, to_grader)
                    for key, arg in kwargs.items()
                },
            }
        except UnfitError as error:
            raise TypeError(f"{name or 'it'} was given {error}") from None
        # The grader serves this inside of the request that it waits for (channel.py).
        reply, blobs = self._ask(message, out)
        if "raised" in reply:
            raise rebuild(reply["raised"])
        reader = codec.Reader(blobs, self._from_wire, load_torch=True)
        return reader.decode(reply["value"])


def run(order: Message, instruments: Instruments, wire: int, output: int) -> NoReturn:
    """Be the worker for one order, until the grader hangs up."""
    line = socket.socket(fileno=wire)
    try:
        _serve(order, instruments, line, output)
        os._exit(0)
    except MemoryError:  # in our own code, between the learner's calls
        os._exit(EXIT_NO_MEMORY)
    except BaseException as error:  # a patched built-in, for instance, breaks our code
        # where we were in it is of no use to a learner
        sys.stderr.write("".join(traceback.format_exception_only(error)))
        os._exit(EXIT_BROKEN)
    finally:
        os._exit(EXIT_BROKEN)  # even if it cannot be printed


def _set_up(order: Message, output: int) -> None:
    if order["cpu"] is not None:
        with suppress(OSError):
            os.sched_setaffinity(0, {order["cpu"]})
    # A group of its own, by which it and its children can be killed together.
    os.setsid()
    isolation.die_with_parent()
    # Both streams, and what C code or child processes print, go to the output file.
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdout = open(1, "w", 1, "utf-8", "backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stdout
    # Before it is ended it is asked where it is; C code answers, whatever runs.
    faulthandler.register(signal.SIGUSR1, os.dup(1), all_threads=True)
    os.chdir(order["folder"])
    os.environ["TMPDIR"] = tempfile.tempdir = order["folder"]
    os.environ["TRITON_CACHE_DIR"] = os.path.join(order["folder"], ".triton")
    # The learner's copies are found by the guard; the folder is for what they write.
    sys.path.insert(0, order["folder"])
    sys.argv = [order["files"][order["module"]][1]]
    guard = ImportGuard(
        order["files"], order["refuses"], refused_to=order["refused_to"]
    )
    guard.forget_refused()
    sys.meta_path.insert(0, guard)


def _serve(
    order: Message, instruments: Instruments, wire: socket.socket, output: int
) -> None:
    number = 0

    def ask(message: Message, blobs: list[bytes]) -> tuple[Message, memoryview]:
        wire.sendall(codec.pack(number, message, blobs))
        frame = _receive(wire)
        if frame is None:  # the grader hung up in the middle of a call
            os._exit(0)
        return codec.unpack(frame)[1:]

    worker, failed = None, ""
    try:
        _set_up(order, output)
        worker = Worker(order, ask, instruments)
    except (OSError, MemoryError) as error:  # no code of the learner's has run
        failed = f"{type(error).__name__}: {error}"
    while (frame := _receive(wire)) is not None:
        number, message, blobs = codec.unpack(frame)
        if worker is None:
            wire.sendall(codec.pack(number, {"machine": failed}, []))
            continue
        reply, out = worker.answer(message, blobs)
        # A value may fit by itself and be too large for a frame.
        try:
            packed = codec.pack(number, reply, out)
        except (UnfitError, ValueError) as error:
            packed = codec.pack(number, {"unfit": str(error)[:200]}, [])
        wire.sendall(packed)
        worker.replied()


def _receive(wire: socket.socket) -> bytearray | None:
    """The next whole frame; None when the grader has hung up."""
    frame = bytearray(wire.recv(1 << 13))
    while frame and (len(frame) < 12 or len(frame) < codec.frame_size(frame)):
        more = wire.recv(1 << 20)
        if not more:
            return None
        frame += more
    return frame or None
