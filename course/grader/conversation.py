"""One test's dealings with the learner's code.

The conversation decides what a test may touch, sends it to the worker, checks the type
of what comes back and writes it down.
"""

from collections.abc import Callable
from typing import Any

from course.grader import codec
from course.grader.codec import UnfitError
from course.grader.contract import Contract, Declared, Member, advice_for, read, unknown
from course.grader.errors import GraderError
from course.grader.exchange import Ending, Exchange, Line
from course.grader.failures import fail
from course.grader.history import History, call_text, shown
from course.grader.proxy import Callable as CallableProxy
from course.grader.proxy import Exercise, Handle, Proxy
from course.manifest import ROOT


class Conversation:
    """Between one test and one worker."""

    def __init__(
        self,
        line: Line,
        contract: Contract,
        call_seconds: float,
        end: Callable[[], Ending],  # kills and reaps the worker
        printed: Callable[[], str],
        file: str = "",
        source: str = "",
    ) -> None:
        self.history = History()
        self._exchange = Exchange(line, self.history, end)
        self._contract = contract
        self._seconds = call_seconds
        self.num_calls = 0
        self.called: set[str] = set()  # names of the learner's, "module:function"
        self.printed = printed  # the end of the worker's output so far
        self.file = file  # the learner's, and its text as it is graded
        self.source = source
        self.mode = ""  # what becomes of kernels, if not the usual (kernels.py)
        self.exercise = Exercise(self, contract.path.stem, {"module": None}, None)

    # What proxies ask for.

    def touch(self, owner: Proxy, name: str) -> Any:
        """owner.name: a callable proxy, or the value of a property or attribute."""
        if isinstance(owner, Exercise):
            if name in self._contract.classes:
                self.called.add(name)
                wire = {"name": name}
                return CallableProxy(self, name, wire, Member(name, "class", None))
            members, of = self._contract.members, None
        elif isinstance(owner, Handle):
            members, of = self._contract.classes[owner._member], owner._wire["handle"]
        else:
            members, of = self._contract.classes.get(owner._label, {}), owner._label
        member = members.get(name)
        if member is None or (type(of) is str and not member.static):
            raise unknown(self._contract, f"{owner!r}.{name}")
        label = name if of is None else f"{owner._label}.{name}"
        self.called.add(name)
        if member.kind == "value":
            message = {"do": "get", "of": of, "name": name}
            return self._ask(message, [], label, self._declared(member, label))
        wire = {"name": name} if of is None else {"method": [of, name]}
        return CallableProxy(self, label, wire, member)

    def call(
        self, function: Proxy, args: tuple, kwargs: dict, checked: bool = True
    ) -> Any:
        """function(*args, **kwargs) in the worker; a class makes a new object.

        checked=False: the type of the result does not matter.
        """
        of, name = function._wire.get("method", (None, function._wire.get("name")))
        text = call_text(function._label, args, kwargs)
        is_class = function._member.kind == "class"
        message = {"do": "new" if is_class else "call", "of": of, "name": name}
        if is_class:
            declared, label = Declared(name), self.history.label(name)
            return self._ask_with(message, args, kwargs, text, declared, label)
        message["writes"] = sorted(function._member.writes, key=str)
        declared = Declared("Any")
        if checked:
            declared = self._declared(function._member, function._label)
        return self._ask_with(message, args, kwargs, text, declared)

    def helper(
        self, where: str, args: tuple[object, ...], told: str | None = None
    ) -> Any:
        """Run one of the course's own functions in the worker: "module:function".

        told: what the history says instead of that call and its result.
        """
        module, _, name = where.partition(":")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        if not module.startswith("course.") or not path.is_file():
            raise GraderError(f"{where}: helpers live in course/, as module:function")
        member = read(path).members.get(name)
        if member is None:
            raise unknown(read(path), name)
        message = {"do": "helper", "name": where}
        self.called.add(where)
        # Some helpers are told by name which function to call.
        self.called |= {f"{module}:{arg}" for arg in args if isinstance(arg, str)}
        text = told or call_text(name, args, {})
        declared = self._declared(member, name)
        brief = told is not None
        return self._ask_with(message, args, {}, text, declared, brief=brief)

    def _declared(self, member: Member, label: str) -> Declared:
        if member.returns is None:
            name = self._contract.path.name
            raise GraderError(
                f"{name}: {label} needs a return type that can be checked"
            )
        return member.returns

    @property
    def serving(self) -> bool:
        """Whether the learner's code asks an object of the grader just now."""
        return self._exchange.hidden.serving

    # Requests and what comes back.

    def load(self) -> None:
        """Run the learner's file."""
        seconds = 2 * self._seconds
        self._exchange.request({"do": "load"}, [], "loading the file", seconds)

    def finish(self) -> None:
        """See that nothing but replies came over the line."""
        self._exchange.finish(self._seconds)

    def _ask_with(
        self,
        message: dict[str, Any],
        args: tuple,
        kwargs: dict,
        text: str,
        declared: Declared,
        label: str | None = None,
        brief: bool = False,
    ) -> Any:
        blobs: list[bytes] = []
        try:
            message["args"] = [codec.encode(arg, blobs, self._to_wire) for arg in args]
            message["kwargs"] = {
                name: codec.encode(arg, blobs, self._to_wire)
                for name, arg in kwargs.items()
            }
        except UnfitError as error:
            raise GraderError(f"{text}: a test passes {error}") from error
        return self._ask(message, blobs, text, declared, label, brief)

    def _ask(
        self,
        message: dict[str, Any],
        blobs: list[bytes],
        text: str,
        declared: Declared,
        label: str | None = None,
        brief: bool = False,
    ) -> Any:
        self.num_calls += 1

        def handle(tag: str, body: Any) -> object:
            return self._from_wire(tag, body, label or text)

        value = self._exchange.request(message, blobs, text, self._seconds, handle)
        if not declared.admits(value):
            self.history.add(f"{text} -> {shown(value)}")
            misfit = declared.misfit(value)
            fail(
                f"{text} returns the type that the exercise declares",
                expected=f"a value of type {declared.text or declared.name}",
                got=f"{shown(value)}: {misfit}" if misfit else _with_type(value),
            )
        if label is not None:
            self.history.add(f"{label} = {text}")
        else:
            is_told = value is None or brief
            self.history.add(text if is_told else f"{text} -> {shown(value)}")
        return value

    def _to_wire(self, value: object) -> dict[str, Any]:
        if isinstance(value, Proxy):
            return value._wire
        return self._exchange.hidden.wire(value)

    def _from_wire(self, tag: str, body: Any, label: str) -> object:
        if tag != "handle":
            return self._exchange.hidden.unwire(tag, body)
        number, name = body
        if type(number) is not int or name not in self._contract.classes:
            raise UnfitError("an object of an unknown class")
        return Handle(self, label, {"handle": number}, name)


def _with_type(value: object) -> str:
    kind = value._member if isinstance(value, Handle) else type(value).__name__
    return f"{shown(value)} ({kind}){advice_for(value)}"
