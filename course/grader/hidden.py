"""Objects of the grader that learner code is given: pools, tables, and the bug hunts.

They stay here. The learner's side has stand-ins for them, whose methods and properties
call back into the grader, so nothing that is done over there can bend what they know.
What the learner's function does with them, and how often, is its business; the grader
only keeps itself from being worn out.

Tests pass and get them like plain values: a class or function wrapped in `Hidden`, an
object of the package's or the helpers' classes as it is.
"""

from inspect import signature
from typing import Any

from course.grader import codec
from course.grader.codec import UnfitError, UnwantedError
from course.grader.crossing import describe

MAX_CALLBACKS = 50_000  # in one call of the learner's function
MAX_SIZE = 200_000  # sum of the ints and lengths given to constructors in one call
MAX_BLOCK_SIZE = 256  # of a table, whose slots are a list
OURS = ("paged_attention.", "course.grader.helpers.")


Reply = tuple[dict[str, Any], list[bytes]]  # a message and its blobs


class TooManyCallbacksError(Exception):
    """One call of the learner's function asked more than MAX_CALLBACKS times."""


class Hidden:
    """Wraps a class or function of the grader, to be passed to the learner's code."""

    def __init__(self, kind: Any, name: str = "Hidden") -> None:
        self.kind = kind
        self.name = name  # as the learner sees it
        self.is_class = isinstance(kind, type)
        # Without object, and the class itself last: it overrides what it inherits.
        bases = reversed(kind.__mro__[:-1]) if self.is_class else ()
        public = {
            name: value
            for base in bases
            for name, value in vars(base).items()
            if not name.startswith("_")
        }
        self.methods = [name for name, value in public.items() if callable(value)]
        self.values = [name for name, value in public.items() if not callable(value)]

    def __repr__(self) -> str:
        if self.name != "Hidden":
            return self.name
        return f"a hidden {'class' if self.is_class else 'function'}"


class HiddenObjects:
    """What one worker was given, by number; answers its callbacks."""

    def __init__(self) -> None:
        self._kinds: list[Hidden] = []
        self._objects: dict[int, Any] = {}
        self._numbers: dict[int, int] = {}  # id of an object -> its number
        self._kept: set[int] = set()  # those that the test itself knows
        self._next_number = 0
        self.serving = False  # whether the learner's code is what asks now
        self.start_call()

    def start_call(self) -> None:
        """Forget the objects that only an earlier call knew.

        Else a loop that makes pools would fill the grader's memory, call after call.
        """
        self.num_calls = 0  # of the learner's function, in this call of it
        self._size = 0
        for number in self._objects.keys() - self._kept:
            del self._numbers[id(self._objects.pop(number))]

    def wire(self, value: object, *, keep: bool = True) -> dict[str, Any]:
        """How a hidden class, function or object crosses; UnfitError for others."""
        if isinstance(value, Hidden):
            return {"hidden": self._kind_to_wire(value)}
        # Anything else is a mistake of the test: nothing may leave the grader unawares.
        if not type(value).__module__.startswith(OURS):
            raise UnfitError(f"an object of type {type(value).__name__}")
        kind = self._kind_to_wire(Hidden(type(value), type(value).__name__))
        number = self._number_of(value)
        if keep:
            self._kept.add(number)
        return {"given": {"number": number, "kind": kind}}

    def unwire(self, tag: str, body: Any, *, keep: bool = True) -> object:
        """The object that a stand-in stands for."""
        if tag != "given" or type(body) is not int or body not in self._objects:
            raise UnfitError("an unknown kind of value")
        if keep:
            self._kept.add(body)
        return self._objects[body]

    def answer(self, message: dict[str, Any], blobs: memoryview) -> Reply:
        """The reply to one callback; an error that it raises crosses by name."""
        self.num_calls += 1
        if self.num_calls > MAX_CALLBACKS:
            raise TooManyCallbacksError
        reader = codec.Reader(blobs, lambda *wire: self.unwire(*wire, keep=False))
        try:
            args = [reader.decode(arg) for arg in message["args"]]
            kwargs = {key: reader.decode(arg) for key, arg in message["kwargs"].items()}
        except UnwantedError as error:
            return _refusal(message, error)
        out: list[bytes] = []
        self.serving = True
        try:
            value = self._do(message, args, kwargs)
        except Exception as error:
            return {"raised": describe(error, {})}, []
        finally:
            self.serving = False
        try:
            encoded = codec.encode(value, out, lambda each: self.wire(each, keep=False))
        except UnfitError as error:  # it asked for something that it was not promised
            return _refusal(message, error)
        return {"value": encoded}, out

    def _do(self, message: dict[str, Any], args: list, kwargs: dict) -> object:
        callback, name = message["callback"], message["name"]
        if callback == "apply":
            return self._kinds[message["of"]].kind(*args, **kwargs)
        if callback == "new":
            kind = self._kinds[message["of"]].kind
            self._count_size(signature(kind).bind(*args, **kwargs).arguments)
            return self._number_of(kind(*args, **kwargs))
        if message["of"] not in self._objects:
            raise ValueError("this object was given to an earlier call")
        if name.startswith("_"):
            raise AttributeError(name)
        target = self._objects[message["of"]]
        if callback == "repr":
            # A default repr would tell the name of a class that is to stay hidden.
            has_own = type(target).__repr__ is not object.__repr__
            return repr(target) if has_own else None
        member = getattr(target, name)
        return member(*args, **kwargs) if callback == "call" else member

    def _count_size(self, arguments: dict[str, Any]) -> None:
        """Refuse what would make the grader itself run out of memory."""
        for value in arguments.values():
            if type(value) is int:
                self._size += max(value, 0)
            elif type(value) is list:
                self._size += len(value)
        if self._size > MAX_SIZE:
            raise ValueError(f"asked for over {MAX_SIZE:,} blocks in one test")
        if arguments.get("block_size", 0) > MAX_BLOCK_SIZE:
            raise ValueError(f"block_size must be at most {MAX_BLOCK_SIZE} here")

    def _kind_to_wire(self, hidden: Hidden) -> dict[str, Any]:
        # Known by what it wraps: an object that comes back must be of the very class
        # that the learner's code was given.
        known = [each.kind for each in self._kinds]
        if hidden.kind not in known:
            self._kinds.append(hidden)
            known.append(hidden.kind)
        number = known.index(hidden.kind)
        hidden = self._kinds[number]
        return {
            "number": number,
            "name": hidden.name,
            "is_class": hidden.is_class,
            "methods": hidden.methods,
            "values": hidden.values,
        }

    def _number_of(self, value: object) -> int:
        number = self._numbers.get(id(value))
        # The id stays its own as long as _objects keeps the object alive.
        if number is None:
            number = self._numbers[id(value)] = self._next_number
            self._objects[number] = value
            self._next_number += 1
        return number


def _refusal(message: dict[str, Any], error: UnfitError) -> Reply:
    """What the learner's code gets for a callback whose values cannot cross."""
    refusal = TypeError(f"{message['name']} cannot be used here: {error}")
    return {"raised": describe(refusal, {})}, []
