"""Learner code in this very process, for pdb: the same codec, no walls, no points."""

import sys
from typing import Any

from course.grader import codec
from course.grader.channel import Answer
from course.grader.guard import ImportGuard
from course.grader.worker import Worker


class LocalLine:
    """A worker that is called instead of sent to."""

    def __init__(self, order: dict[str, Any]) -> None:
        self._modules = list(order["files"])
        self._guard = ImportGuard(
            order["files"],
            order["refuses"],
            own_process=False,
            refused_to=order["refused_to"],
        )
        self._worker = Worker(order, self._ask)
        self._answer: Answer | None = None
        self.forget_modules()
        sys.meta_path.insert(0, self._guard)

    def exchange(
        self,
        message: dict[str, Any],
        blobs: list[bytes],
        seconds: float,
        answer: Answer,
    ) -> tuple[dict[str, Any], memoryview]:
        self._answer = answer
        _, request, rest = codec.unpack(codec.pack(0, message, blobs))
        reply, out = self._worker.answer(request, rest)
        return codec.unpack(codec.pack(0, reply, out))[1:]

    @property
    def last_error(self) -> BaseException | None:
        return self._worker.last_error

    def _ask(
        self, message: dict[str, Any], blobs: list[bytes]
    ) -> tuple[dict[str, Any], memoryview]:
        assert self._answer is not None, "a callback outside of a call"
        _, request, rest = codec.unpack(codec.pack(0, message, blobs))
        reply, out = self._answer(request, rest)
        return codec.unpack(codec.pack(0, reply, out))[1:]

    def forget_modules(self) -> None:
        for name in self._modules:
            sys.modules.pop(name, None)

    def close(self) -> None:
        sys.meta_path.remove(self._guard)
        self.forget_modules()
