"""What a test holds in place of the learner's objects.

Proxies are inert. A name that is touched goes to the conversation, which asks the
worker; comparing, counting or iterating over a proxy fails the test here, and never
reaches code that the learner wrote. So `pool == 3` cannot be answered by an object that
equals everything.
"""

from typing import Any, NoReturn, Protocol

from course.grader.failures import fail
from course.grader.history import History


class Link(Protocol):
    """The conversation, as proxies see it."""

    @property
    def history(self) -> History: ...
    def touch(self, owner: "Proxy", name: str) -> Any: ...
    def call(
        self, function: "Proxy", args: tuple, kwargs: dict, checked: bool = True
    ) -> Any: ...
    def helper(self, where: str, args: tuple, told: str | None = None) -> Any: ...


class Proxy:
    """Stands for one thing in the worker; _wire is how it crosses as an argument."""

    __slots__ = ("_label", "_link", "_member", "_wire")

    def __init__(self, link: Link, label: str, wire: dict, member: Any) -> None:
        self._link = link
        self._label = label
        self._wire = wire
        self._member = member

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest and copy look for special names
            raise AttributeError(name)
        return self._link.touch(self, name)

    def __repr__(self) -> str:
        return self._label

    def _refuse(self, *_: object) -> NoReturn:
        fail(
            "tests compare plain values",
            expected="a number, a list or other plain data",
            got=f"the object {self._label}, which only has methods and attributes",
        )

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __bool__ = __len__ = __iter__ = __contains__ = __getitem__ = __hash__ = _refuse
    __int__ = __float__ = __index__ = __add__ = __radd__ = _refuse


class Exercise(Proxy):
    """The learner's module."""

    __slots__ = ()


class Callable(Proxy):
    """A function, a method or a class; member says what a call returns."""

    __slots__ = ()

    def __call__(self, *args: object, **kwargs: object) -> Any:
        return self._link.call(self, args, kwargs)


class Handle(Proxy):
    """An object of one of the learner's classes; member is the class's name."""

    __slots__ = ()
