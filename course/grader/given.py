"""In the worker: stand-ins for classes, functions and objects of the grader.

Each call and each attribute asks the grader, where the real one lives (see hidden.py).
"""

from collections.abc import Callable, Iterable, Iterator, KeysView, ValuesView
from typing import Any

from course.grader import codec
from course.grader.codec import UnfitError

Ask = Callable[[str, int, str, Iterable[object], dict[str, object]], Any]


class GivenObject:
    """Base of all stand-ins for objects."""

    _number: int
    _ask: Ask

    def __getattr__(self, name: str) -> Any:  # attributes that its class does not list
        if name.startswith("_"):
            raise AttributeError(name)
        return self._ask("get", self._number, name, (), {})

    def __setattr__(self, name: str, value: object) -> None:
        kind = type(self).__name__
        raise AttributeError(f"{kind}.{name} cannot be set from outside; call a method")

    def __repr__(self) -> str:
        told = self._ask("repr", self._number, "repr", (), {})
        return told or f"<{type(self).__name__}, kept by the grader>"


class Given:
    """The stand-ins of one worker. ask sends a callback and returns what came back."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._kinds: dict[int, Any] = {}
        self._objects: dict[int, GivenObject] = {}

    def kind(
        self,
        number: int,
        name: str,
        is_class: bool,
        methods: list[str],
        values: list[str],
    ) -> Any:
        """A class whose constructor asks the grader, or a function that does."""
        if number not in self._kinds:
            make = self._class if is_class else self._function
            self._kinds[number] = make(number, name, methods, values)
        return self._kinds[number]

    def instance(self, number: int, kind: dict[str, Any]) -> GivenObject:
        """The stand-in for one object, the same one each time."""
        if number not in self._objects:
            cls = self.kind(**kind)
            self._name(cls.__new__(cls), number)
        return self._objects[number]

    def _name(self, new: GivenObject, number: int) -> None:
        object.__setattr__(new, "_number", number)
        self._objects[number] = new

    def _function(self, number: int, name: str, *_: object) -> Callable[..., object]:
        def hidden(*args: object, **kwargs: object) -> object:
            return self._ask("apply", number, name, args, kwargs)

        return hidden

    def _class(
        self, number: int, name: str, methods: list[str], values: list[str]
    ) -> type:
        ask = self._ask

        def construct(new: GivenObject, *args: object, **kwargs: object) -> None:
            self._name(new, ask("new", number, name, args, kwargs))

        def method(name: str) -> Callable[..., object]:
            def call(self: GivenObject, *args: object, **kwargs: object) -> object:
                return ask("call", self._number, name, args, kwargs)

            call.__name__ = name
            return call

        def value(name: str) -> property:
            return property(lambda self: ask("get", self._number, name, (), {}))

        members: dict[str, Any] = {name: method(name) for name in methods}
        members |= {name: value(name) for name in values}
        members |= {"__init__": construct, "_ask": staticmethod(ask)}
        return type(name, (GivenObject,), members)


def to_grader(value: object) -> Any:
    """How an argument of a callback crosses that is no plain data."""
    if isinstance(value, GivenObject):
        return {"given": value._number}
    if isinstance(value, Iterator | range | KeysView | ValuesView):
        # The real methods take any iterable; here it is used up before it crosses.
        return codec.encode(list(value), [], to_grader)
    raise UnfitError(words_for_type(type(value)))


def words_for_type(kind: type) -> str:
    """What is wrong with an object of this type, where plain data is wanted."""
    if kind.__module__ == "numpy":
        plain = {"float": "float(x)", "bool": "bool(x)", "ndarr": "x.tolist()"}
        advice = plain.get(kind.__name__[:5], "int(x)")
        return f"a numpy.{kind.__name__}: write {advice} for x, to make it plain"
    plain = (bool, int, float, str, bytes, list, tuple, dict, set)
    for base in plain:
        if base in kind.__mro__:
            return f"an object of {kind.__name__}, a subclass of {base.__name__}"
    if kind.__module__.startswith("paged_attention."):
        name = kind.__name__
        return f"a {name} of your own; type(x)(…) makes another one like x, a given one"
    hints = {"generator": "a generator; wrap it in list()", "range": "a range"}
    return hints.get(kind.__name__, f"an object of type {kind.__name__}")
