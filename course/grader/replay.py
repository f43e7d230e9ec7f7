"""Hypothesis and a dead worker: remember the example that died, reject all others."""

from typing import Any

Reply = tuple[dict[str, Any], memoryview]


class Replay:
    """The requests of the current Hypothesis example, and their replies.

    After a death no worker is started for each of Hypothesis's attempts to shrink: the
    example that died is answered from here and fails again in the same way, and every
    other one is rejected.
    """

    def __init__(self) -> None:
        self._script: list[tuple[object, Reply | None]] = []
        self._position = 0
        self.active = False

    def begin(self, dead: bool) -> None:
        self.active = dead
        self._position = 0
        if not dead:
            self._script.clear()

    def start(self, key: object) -> None:
        self._script.append((key, None))

    def record(self, reply: Reply) -> None:
        self._script[-1] = (self._script[-1][0], reply)

    def reply(self, key: object) -> Reply | None:
        """The reply to the next request; None where there was none, the death."""
        if self._position < len(self._script):
            known, reply = self._script[self._position]
            self._position += 1
            if known == key:
                return reply
        from hypothesis.errors import UnsatisfiedAssumption

        raise UnsatisfiedAssumption  # what reject() raises, seen by type checkers
