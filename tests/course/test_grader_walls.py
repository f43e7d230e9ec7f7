"""Without namespaces the verdict is the same, and the report says so.

They exist on Linux only, and containers often forbid them.
"""

import os
import signal
from pathlib import Path

import pytest
from tiny_exercise import Session, answer, grade_answers, write_course

from course.grader import grade, grading, isolation, warm
from course.grader.channel import Channel

pytestmark = pytest.mark.proof

# What is left to try without walls, and harmless to others on this machine.
ANSWERS = {
    "kills its parent": answer(
        allocate="import os, time; os.kill(os.getppid(), 9); time.sleep(9)"
    ),
    "right, after it": answer(),
    "leaves children": answer(
        allocate="""
        import os, time
        for _ in range(3):
            if os.fork() == 0:
                os.setsid()
                os.fork()
                time.sleep(60)
        os._exit(0)
        """
    ),
    "removes all folders": answer(
        allocate="import shutil; shutil.rmtree('../..', ignore_errors=True)"
    ),
    "right, after that": answer(),
    "loop": answer(allocate="while True: pass"),
}


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    return grade_answers(tmp_path_factory.mktemp("no walls"), ANSWERS, layers=())


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("kills its parent", "pool.allocate() was killed (SIGKILL)"),
        ("leaves children", "ended its process with exit code 0"),
        ("loop", "did not come back within 1 seconds"),
    ],
)
def test_without_walls_an_attack_costs_its_task_only(
    session: Session, name: str, says: str
) -> None:
    tasks = session.results[name].tasks
    assert [task.status == "passed" for task in tasks] == [False, True, True, True]
    assert tasks[0].failure is not None
    assert says in tasks[0].failure.message


def test_a_new_warm_process_follows_one_that_was_killed(session: Session) -> None:
    assert session.results["right, after it"].ok


def test_folders_that_were_removed_are_made_again(session: Session) -> None:
    assert session.results["right, after that"].ok


def test_a_warm_process_that_ends_between_two_tests_is_replaced(
    tmp_path: Path,
) -> None:
    files = {"ex": (tmp_path / "ex.py", b"answer: int = 42\n")}
    process = warm.WarmProcess(())
    try:
        assert process.walls
        os.killpg(process._process.pid, signal.SIGKILL)
        order = {"module": "ex", "refuses": [], "refused_to": {}, "classes": []}
        order["cpu"] = None
        worker = process.fork(files, order)
        channel = Channel(worker.wire)
        reply, _ = channel.exchange({"do": "load"}, [], 5, lambda *_: ({}, []))
        assert reply == {"value": None}
        process.reap(worker)
    finally:
        process.close()


def test_without_namespaces_no_process_is_left_either(session: Session) -> None:
    assert session.left_over == []


def test_the_report_names_the_walls_that_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_course(tmp_path)
    with_all = grade(["5"], tmp_path / "solutions", root=tmp_path)
    monkeypatch.setattr(isolation, "LAYERS", ())
    without = grade(["5"], tmp_path / "solutions", root=tmp_path)
    assert with_all.ok and without.ok
    assert without.isolation[0] == "a process of its own, ended when its time is up"
    walls = " ".join(without.isolation)
    assert "namespaces" not in walls and "read-only" not in walls
    assert set(without.isolation) <= set(with_all.isolation)


def test_after_ctrl_c_nobody_waits_for_what_is_still_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A warm process looks at its orders only when it has imported everything."""
    write_course(tmp_path)
    ended: list[int | None] = []
    close = warm.WarmProcess.close

    def close_and_tell(self: warm.WarmProcess) -> None:
        ended.append(self._process.poll())
        close(self)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(warm.WarmProcess, "close", close_and_tell)
    monkeypatch.setattr(grading, "_run", interrupt)
    with pytest.raises(KeyboardInterrupt):
        grade(["5"], tmp_path / "solutions", root=tmp_path)
    assert ended == [-signal.SIGKILL]
