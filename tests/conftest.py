"""How the tests are shared out, and the signals that they begin with.

All cores should be busy to the end. A file's tests stay together, for they share what
was set up for them. What takes longest begins first.
"""

import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from course.grader import grading
from course.grader.plugin import EXAM
from course.manifest import load

# What we start prints as in a learner's shell, where this is seldom set.
os.environ.pop("PYTHONUNBUFFERED", None)
# With it, an import of nbformat compiles 38 grammars, for addresses that no notebook
# of ours has: two seconds in every process that collects these tests.
sys.modules["rfc3987_syntax"] = None  # type: ignore[assignment]

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
    """What stays in one process: a file, or the exercises that import the same.

    So their tests, and the answers to them, share warm processes (`kept_warm`).
    """
    file = nodeid.partition("::")[0]
    in_name = re.search(r"/exercises/test_ex(\d\d)_", file)
    in_id = re.search(r"/test_answers\.py::\w+\[(\d\d)\b", nodeid)
    if chapter := in_name or in_id:
        return f"exercises with {load().chapter(chapter[1]).preload}"
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """What a test starts gets the usual signals, whatever the suite inherited.

    nohup ignores SIGHUP, a shell ignores SIGINT for what it runs in the background, and
    so would every process that we start. What has a handler here is reset in them.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        # Does nothing: the suite itself goes on when the terminal is closed.
        signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(scope="module")
def kept_warm(request: pytest.FixtureRequest) -> Iterator[None]:
    """Grading uses the warm processes that the exercises' own tests use.

    An import of torch takes two seconds, and each grading would begin with some.
    """
    pool = request.config.stash[EXAM].bench._warm
    with pytest.MonkeyPatch.context() as patch:
        if pool is not None:  # it is where all runs in one process, as with --pdb
            patch.setattr(pool, "close", lambda: None)
            patch.setattr(grading, "WarmPool", lambda: pool)
        yield


@pytest.fixture
def hang_up() -> Iterator[None]:
    """SIGHUP ends this process, for a test that sends it here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)
