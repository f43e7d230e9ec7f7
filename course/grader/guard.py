"""Imports inside the worker: answers are refused, the learner's own file is found.

Stops accidents and habit. Copying cannot be prevented where the sources are public.
"""

import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder, SourceLoader
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from pathlib import Path
from types import FrameType

from course.grader.instruments import COURSE

ANSWERS = ("solutions", "tests", "exercises")
NEVER_REFUSED = ("paged_attention", "paged_attention.errors")


class LearnerLoader(SourceLoader):
    """Loads a copy, under the name of the file that the learner edits.

    Tracebacks then point to the learner's own file, while __file__ is the copy: what
    lies beside the original is out of reach.
    """

    def __init__(self, copy: str, original: str) -> None:
        self._copy = copy
        self._original = original

    def get_filename(self, fullname: str) -> str:
        return self._copy

    def get_data(self, path: str | bytes) -> bytes:
        if path != self._copy:
            raise OSError("no compiled code is kept")
        return Path(self._copy).read_bytes()

    def source_to_code(self, data, path, *, _optimize: int = -1):  # pyright: ignore
        return compile(data, self._original, "exec", dont_inherit=True)


class ImportGuard(MetaPathFinder):
    """First in sys.meta_path; the error it raises says what to do instead."""

    def __init__(
        self,
        files: Mapping[str, tuple[str, str]],
        refuses: Sequence[str],
        own_process: bool = True,
        refused_to: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """own_process: no code but the learner's imports anything here.

        refused_to: where several exercises meet, what each of them may not import;
        then helpers may import what is refused to learner code.
        """
        self._files = files  # module name -> (copy, original)
        self._refuses = refuses
        self._own_process = own_process
        self._refused_to = {
            files[name][1]: refused for name, refused in (refused_to or {}).items()
        }

    def find_spec(self, fullname, path=None, target=None) -> ModuleSpec | None:
        refuses = self._refuses
        if self._refused_to:
            refuses = self._refused_to.get(self._importer(), ())
        if reason := self.refusal(fullname, refuses):
            raise ImportError(reason, name=fullname)
        if fullname in self._files:
            loader = LearnerLoader(*self._files[fullname])
            return spec_from_loader(fullname, loader)
        return None

    def _importer(self) -> str:
        """The learner's file whose code asks, be it through other modules; "" if none.

        The innermost one: a file may be imported by another one, to which other
        modules are refused.
        """
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename not in self._refused_to:
            frame = frame.f_back
        return frame.f_code.co_filename if frame else ""

    def refusal(
        self, fullname: str, refuses: Sequence[str] | None = None
    ) -> str | None:
        """Why this module may not be imported here; None if it may.

        refuses: package modules, if not those of the exercise that is graded.
        """
        if fullname.split(".")[0] in ANSWERS:
            return (
                f"{fullname} is refused: an exercise is graded without the course's "
                f"{fullname.split('.')[0]}; write the answer in your own file"
            )
        if self._own_process and fullname.split(".")[0] == COURSE:
            return (
                f"{fullname} is refused: it is the grader's own; "
                "write the answer in your own file"
            )
        for refused in self._refuses if refuses is None else refuses:
            inside = fullname == refused or fullname.startswith(refused + ".")
            if inside and fullname not in NEVER_REFUSED:
                return (
                    f"{fullname} is refused: it is the package's own answer to this "
                    "exercise; write yours (paged_attention.errors may be imported)"
                )
        return None

    def forget_refused(self) -> None:
        """Unload refused modules that a preloaded one brought along."""
        # Looking at all of sys.modules would make a forked worker copy their pages.
        if not any(refused in sys.modules for refused in self._refuses):
            return
        for name in [name for name in sys.modules if self.refusal(name)]:
            del sys.modules[name]
            parent, _, child = name.rpartition(".")
            if parent in sys.modules:
                vars(sys.modules[parent]).pop(child, None)
