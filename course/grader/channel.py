"""One socket to one worker: a request, its callbacks, its reply, a limit of time.

The limit is the whole call's: neither a drip of bytes nor a stream of callbacks moves
it; what counts as time is said in limits.py.
Bytes that are no reply to the request come from code that wrote to the descriptor, or
from a thread that a call left at work; the conversation ends there.
"""

import itertools
import socket
import struct
import time
from collections.abc import Callable
from typing import Any

from course.grader import codec
from course.grader.codec import UnfitError
from course.grader.limits import Look, Stopwatch

Answer = Callable[[dict[str, Any], memoryview], tuple[dict[str, Any], list[bytes]]]


LOOK_EVERY = 0.05  # seconds; a look takes about 0.3 milliseconds

# A blocked read or write returns this often (seconds, microseconds) to look at the
# clock; cheaper than asking with poll() before every one.
_LOOK_UP = struct.pack("ll", 0, 20_000)


class HungUpError(Exception):
    """The worker closed its end, or ended."""


class TooMuchError(Exception):
    """The worker uses more than it may; the message says what."""


class JunkError(Exception):
    """Bytes arrived that are not the reply to the request."""


class Channel:
    """Strictly one request at a time; its number must come back."""

    def __init__(
        self,
        wire: socket.socket,
        look: Callable[[], Look] = Look,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """look says what the worker uses; asked now and then, while a call runs."""
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            wire.setsockopt(socket.SOL_SOCKET, option, _LOOK_UP)
        self._wire = wire
        self._numbers = itertools.count(1)
        self._look = look
        self._clock = clock
        self._next_look = clock() + LOOK_EVERY
        self.stopwatch = Stopwatch()

    def exchange(
        self,
        message: dict[str, Any],
        blobs: list[bytes],
        seconds: float,
        answer: Answer,
    ) -> tuple[dict[str, Any], memoryview]:
        """The reply to message; answer() serves the callbacks that come before it."""
        asked = next(self._numbers)
        self.stopwatch.begin(seconds, self._clock())
        self._send(codec.pack(asked, message, blobs))
        while True:
            try:
                number, reply, rest = self._receive()
            except UnfitError as error:
                raise JunkError(str(error)) from error
            if number != asked:
                raise JunkError("a reply to another request")
            self._check(has_ended="callback" not in reply)
            if "callback" not in reply:
                return reply, rest
            try:
                back, out = answer(reply, rest)
            except (UnfitError, LookupError, TypeError, ValueError) as error:
                raise JunkError("a callback that makes no sense") from error
            self._send(codec.pack(asked, back, out))

    def _send(self, frame: bytes) -> None:
        rest = memoryview(frame)
        while rest:
            try:
                rest = rest[self._wire.send(rest) :]
            except BlockingIOError:
                self._check()
            except OSError as error:
                raise HungUpError from error

    def _receive(self) -> tuple[int, dict[str, Any], memoryview]:
        frame = bytearray()
        size = codec.HEAD.size
        while len(frame) < size:
            try:
                more = self._wire.recv(1 << 13)
            except BlockingIOError:
                self._check()
                continue
            except OSError as error:
                raise HungUpError from error
            if not more:
                raise HungUpError
            frame += more
            if len(frame) >= codec.HEAD.size:
                size = codec.frame_size(frame)
            if len(frame) < size:
                self._check()
        if len(frame) > size:
            raise UnfitError("more than one reply")
        return codec.unpack(frame)

    def _check(self, has_ended: bool = False) -> None:
        now = self._clock()
        if now < self._next_look:
            return
        look = self._look()
        if look.too_much:
            raise TooMuchError(look.too_much)
        self.stopwatch.see(look, now)
        if not has_ended:
            self.stopwatch.check(now)
        self._next_look = self._clock() + LOOK_EVERY
