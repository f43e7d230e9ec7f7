"""Without namespaces and Landlock the verdict is the same, and the report says so.

Both exist on Linux only, and containers often forbid them.
"""

import os
import signal
from pathlib import Path

import pytest
from tiny_exercise import Session, answer, grade_answers, write_course

from course.grader import grade, isolation, warm
from course.grader.channel import Channel

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


def test_a_warm_process_that_ends_between_two_tests_is_replaced(
    tmp_path: Path,
) -> None:
    source = tmp_path / "ex.py"
    source.write_text("answer: int = 42\n")
    process = warm.WarmProcess(())
    try:
        assert process.walls
        os.killpg(process._process.pid, signal.SIGKILL)
        order = {"module": "ex", "refuses": [], "classes": [], "cpu": None}
        worker = process.fork({"ex": source}, order)
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
    assert without.isolation[0] == "a process of its own, ended at its deadline"
    walls = " ".join(without.isolation)
    assert "namespaces" not in walls and "Landlock" not in walls
    assert set(without.isolation) <= set(with_all.isolation)
