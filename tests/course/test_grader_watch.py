"""What a worker, its children and its files use together has a limit.

Each answer stays below what the kernel limits in one process, and goes above it in
another way. The limit of these tests is 128 MiB.
"""

import os
from pathlib import Path

import pytest
from tiny_exercise import Session, answer, grade_answers

from course.grader.isolation import MAX_TASKS
from course.grader.limits import Look
from course.grader.watch import MAX_ENTRIES, Watch

pytestmark = pytest.mark.proof

TOO_MUCH = (
    "MiB of memory, all its processes and files together (an exercise may use 128"
)
TOO_MANY = f"{MAX_TASKS} processes and threads at once"  # the kernel's words or ours
EITHER = "at once", "MiB of memory, all its processes"  # whatever is seen first

ANSWERS = {
    "shared memory": answer(
        allocate="""
        import mmap, time
        shared = mmap.mmap(-1, 300 << 20)
        for start in range(0, len(shared), 4096):
            shared[start] = 1
        time.sleep(0.3)
        """
    ),
    "shared memory, kept over short calls": answer(
        top="""
        import mmap
        kept = []
        """,
        allocate="""
        import time
        for _ in range(60):
            kept.append(mmap.mmap(-1, 4 << 20))
            for start in range(0, 4 << 20, 4096):
                kept[-1][start] = 1
        """,
        ids="import time; time.sleep(0.1)",
    ),
    "files": answer(
        allocate="""
        import time
        for number in range(40):
            with open(f"../file {number}", "wb") as file:  # left for others
                for _ in range(7):
                    file.write(bytes(1 << 20))
        time.sleep(0.3)
        """
    ),
    "children": answer(
        allocate="""
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                hoard = b"x" * (100 << 20)
                time.sleep(5)
                os._exit(0)
        time.sleep(0.5)
        """
    ),
    "fork bomb": answer(
        allocate="""
        import os, time
        for _ in range(200):
            if os.fork() == 0:
                time.sleep(5)
                os._exit(0)
        time.sleep(0.5)
        """
    ),
    "bomb that grows": answer(
        allocate="""
        import os, time
        for _ in range(8):  # 256 processes
            os.fork()
        time.sleep(5)
        """
    ),
    "threads": answer(
        allocate="""
        import threading, time
        for _ in range(200):
            threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
        time.sleep(0.5)
        """
    ),
    "many files": answer(
        allocate="""
        import os, time
        for number in range(3_000):
            os.mkdir(f"folder {number}")
        time.sleep(0.3)
        """
    ),
    "deep folders": answer(
        allocate="""
        import os, time
        for _ in range(1_000):
            os.mkdir("x" * 50)
            os.chdir("x" * 50)
        time.sleep(0.3)
        """
    ),
    "hidden files": answer(
        allocate="""
        import os, time
        os.mkdir("hidden")
        os.chmod("hidden", 0)
        time.sleep(0.3)
        """
    ),
    # With what the next one does, these would be too many.
    "children that are left": answer(
        top="""
        import os, time
        for _ in range(61):
            if os.fork() == 0:
                time.sleep(60)
        """,
        allocate="import time; time.sleep(0.1)",
    ),
    "what is allowed": answer(
        allocate="""
        import mmap, os, threading, time
        shared = mmap.mmap(-1, 40 << 20)
        shared.write(b"x" * (40 << 20))
        for number in range(3):
            threading.Thread(target=time.sleep, args=(5,), daemon=True).start()
            open(f"file {number}", "wb").write(bytes(7 << 20))
        time.sleep(0.2)
        """
    ),
}

SAYS = {
    "shared memory": (TOO_MUCH,),
    "shared memory, kept over short calls": (TOO_MUCH,),
    "files": (TOO_MUCH,),
    "children": (TOO_MUCH,),
    "fork bomb": EITHER,
    "bomb that grows": EITHER,
    "threads": (TOO_MANY,),
    "deep folders": (f"made more than {MAX_ENTRIES:,} files, or hid its folder",),
    "many files": (f"made more than {MAX_ENTRIES:,} files",),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    if "not watched" in Watch(os.getpid(), Path(), 0).words():
        pytest.skip("not verified: this system does not tell what a process uses")
    return grade_answers(tmp_path_factory.mktemp("watched"), ANSWERS, call_seconds=3)


@pytest.mark.parametrize("name", SAYS)
def test_too_much_ends_the_worker_and_is_told_by_name(
    session: Session, name: str
) -> None:
    tasks = session.results[name].tasks
    assert [task.status == "passed" for task in tasks] == [False, True, True, True]
    assert tasks[0].failure is not None
    said = f"{tasks[0].failure.message} {tasks[0].failure.got}"
    assert any(words in said for words in SAYS[name]), said
    assert "did not come back" not in said


def test_what_is_hidden_from_the_watch_is_too_much(session: Session) -> None:
    if os.geteuid() == 0:
        pytest.skip("not verified: nothing is hidden from root")
    failure = session.results["hidden files"].tasks[0].failure
    assert failure is not None and "or hid its folder" in failure.message


def test_less_than_the_limits_is_allowed(session: Session) -> None:
    assert session.results["what is allowed"].ok


def test_what_the_worker_before_has_left_does_not_count(session: Session) -> None:
    assert session.results["children that are left"].ok
    assert session.results["what is allowed"].ok


def test_nothing_is_left(session: Session) -> None:
    assert session.left_over == []


def test_where_the_system_does_not_tell_the_walls_say_so(tmp_path: Path) -> None:
    blind = Watch(2**30, tmp_path, 1 << 20)  # no process has that number
    assert blind.words().startswith("not watched: ")
    assert blind.look() == Look()
