"""The course's helpers as the worker runs them: out of the way of learner code.

Helpers measure the learner's live objects, in the learner's process. They are no
modules that an import or sys.modules would find: the import guard can refuse `course`
to learner code, and helpers can import parts of the package that are refused to it.
The warm process reads their code once, for all workers.
"""

import builtins
from collections.abc import Callable, Sequence
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

COURSE = "course"
ROOT = Path(__file__).resolve().parents[2]
READ_AHEAD = (
    "interleave.py",
    "grader/errors.py",
    "grader/helpers/ex*.py",
    "grader/helpers/kernels.py",
)


class Instruments:
    """Made by the warm process; each worker runs the modules that its test needs."""

    def __init__(self) -> None:
        self._kept: dict[str, ModuleType] = {}
        self._builtins = vars(builtins) | {"__import__": self._import}
        self._code: dict[str, CodeType] = {}
        self._modules: dict[str, ModuleType] = {}

    def keep(self, module: ModuleType) -> None:
        """Let helpers import this very module, which the warm process has set up."""
        self._kept[module.__name__] = module

    def read_ahead(self) -> None:
        """Read all code that helpers may run, before any learner code runs."""
        for pattern in READ_AHEAD:
            for path in (ROOT / COURSE).glob(pattern):
                parts = path.relative_to(ROOT).with_suffix("").parts
                self._code_of(".".join(parts))

    def function(self, where: str) -> Callable[..., Any]:
        """The function that "module:function" names."""
        module, _, name = where.partition(":")
        return getattr(self._module(module), name)

    def _module(self, name: str) -> ModuleType:
        if name not in self._modules:
            module = ModuleType(name)
            code = self._code_of(name)
            vars(module).update(
                __builtins__=self._builtins, __file__=code.co_filename, __package__=""
            )
            exec(code, vars(module))
            self._modules[name] = module
        return self._modules[name]

    def _code_of(self, name: str) -> CodeType:
        if name not in self._code:
            path = ROOT.joinpath(*name.split(".")).with_suffix(".py")
            code = SourceFileLoader(name, str(path)).get_code(name)
            assert code is not None, "a source file has code"
            self._code[name] = code
        return self._code[name]

    def _import(
        self,
        name: str,
        globals: dict[str, Any] | None = None,
        locals: dict[str, Any] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        """What `import` does in a helper."""
        if name in self._kept:
            return self._kept[name]
        if name.startswith(f"{COURSE}."):
            return self._module(name)
        return __import__(name, globals, locals, fromlist or (), level)
