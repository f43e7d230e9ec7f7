"""`make test` runs on all cores: tests that share what is costly stay together."""

import pytest


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # A file's fixtures are made once for all its tests, so a file is not torn apart,
    # unless its tests say themselves what belongs together.
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.path.name))
