"""How `make test` shares the tests out, so that all cores are busy to the end.

A file's tests stay together, for they share what was set up for them. What takes
longest begins first.
"""

import re
from pathlib import Path
from typing import Any

import pytest

SLOWEST_FIRST = (
    "test_chapters.py",
    "test_grader_verdict.py",
    "test_kernels.py",
    "test_smollm2.py",
    "test_answers.py",
    "test_ex13_real_model.py",
    "test_triton_seam.py",
    "test_compile.py",
    "test_engine.py",
    "test_ex10_decode_kernel.py",
    "test_run.py",
    "test_capstone.py",
)


def scope_of(nodeid: str) -> str:
    """What stays in one process: a file, or of the answers those to one exercise."""
    file = nodeid.partition("::")[0]
    chapter = re.search(r"\[(\d\d)\b", nodeid)
    if file.endswith("test_answers.py") and chapter:
        return f"{file}::{chapter[1]}"
    return file


@pytest.hookimpl(optionalhook=True)  # without xdist nobody asks
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class Scheduling(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

    if config.getoption("dist") != "loadscope":
        return None
    config.option.loadscopereorder = False  # the order below, not the number of tests
    return Scheduling(config, log)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    if not hasattr(config, "workerinput"):  # one process: in the order of the files
        return
    place = {name: number for number, name in enumerate(SLOWEST_FIRST)}
    items.sort(key=lambda item: place.get(Path(item.path).name, len(place)))
