"""Which cases are to be run, so that a fixture prepares only what they need."""

from typing import Any

import pytest


def asked(request: pytest.FixtureRequest, argument: str) -> list[Any]:
    """The values of an argument in the tests of this file that use the fixture."""
    return [
        item.callspec.params[argument]
        for item in request.session.items
        if isinstance(item, pytest.Function)
        and item.path == request.path
        and request.fixturename in item.fixturenames
        and hasattr(item, "callspec")
        and argument in item.callspec.params
    ]
