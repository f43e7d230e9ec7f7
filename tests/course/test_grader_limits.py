"""A call's own time is limited, the machine's is not: on clocks that are made up."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_exercise import answer, write_course

from course.grader import GraderError, bench, grade
from course.grader.channel import Channel
from course.grader.exchange import Ending, Exchange
from course.grader.history import History
from course.grader.limits import (
    STARVED,
    UNSEEN,
    Look,
    Stopwatch,
    TooLateError,
)
from course.grader.watch import Watch

SECONDS = 5.0
STEP = 0.05


def looks_like(
    cpu: float, delay: float, on_disk: bool = False
) -> Callable[[float], Look]:
    """A process that ran and waited for these shares of the time."""
    return lambda now: Look(None, cpu * now, delay * now, on_disk)


def end_of(look: Callable[[float], Look], until: float = 1_000) -> tuple[float, str]:
    """When and how a call is ended that looks like this; until and "" if it is not."""
    clock, now = Stopwatch(), 0.0
    clock.begin(SECONDS, now)
    while now < until:
        now += STEP
        clock.see(look(now), now)
        try:
            clock.check(now)
        except (TooLateError, GraderError) as error:
            return round(now, 1), f"{type(error).__name__}: {error}"
    return until, ""


def test_a_loop_is_ended_after_its_processor_time_however_slow_the_machine_is() -> None:
    for share in (1.0, 0.2):
        when, how = end_of(looks_like(share, 1 - share))
        assert when == pytest.approx(SECONDS / share, abs=0.2)
        assert how.startswith("TooLateError: did not come back within 5 seconds of pro")


def test_sleep_is_ended_after_the_same_time() -> None:
    when, how = end_of(looks_like(0.0, 0.0))
    assert when == pytest.approx(SECONDS, abs=0.2)
    assert "it has slept for 5 seconds. Does it wait for a lock" in how
    assert end_of(looks_like(0.1, 0.1))[1] == how, "and so is sleep in small pieces"


def test_who_gets_no_processor_is_not_accused() -> None:
    when, how = end_of(looks_like(0.01, 0.99))
    assert when == pytest.approx(STARVED * SECONDS, abs=0.2)
    assert how == (
        "GraderError: this machine is busy: it gave the call 3.0 of the 5 seconds that "
        "it may run, in 300 seconds. Nothing was decided; run it again"
    )


def test_who_waits_for_a_disk_is_not_accused() -> None:
    assert end_of(looks_like(0.01, 0.0, on_disk=True))[1].startswith("GraderError")


def test_a_machine_that_stood_still_costs_nothing() -> None:
    """Of a pause of an hour, no kernel says that anybody waited."""
    clock = Stopwatch()
    clock.begin(SECONDS, 0.0)
    for now in (0.0, 1.0, 3601.0, 3602.0):
        clock.see(Look(None, 0.1, 0.0), now)
    assert clock.slept == pytest.approx(3.0)


def test_a_thread_that_ended_took_its_delay_along_and_that_is_not_sleep() -> None:
    def look(now: float) -> Look:
        return Look(None, 0.1 * now, 0.9 * now if now < 8 else 0.9 * (now - 8))

    assert end_of(look, until=20) == (20, "")


def test_the_calls_of_one_test_have_a_limit_together() -> None:
    clock, now, calls = Stopwatch(), 0.0, 0
    with pytest.raises(TooLateError, match="the calls of this test took more than 30"):
        while calls < 100:
            calls += 1
            clock.begin(SECONDS, now)
            for _ in range(3):  # two seconds: half of it runs, half of it sleeps
                clock.see(Look(None, now / 2, 0.0), now)
                clock.check(now)
                now += 1
    assert 10 < calls < 20


def test_the_tests_of_an_exercise_have_a_limit_and_who_is_not_reached_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_course(tmp_path)
    file = tmp_path / "4.py"
    file.write_text(answer(allocate="import time; time.sleep(0.2)"))
    monkeypatch.setattr(bench, "ALL", 0)
    _, *others = grade(["4"], file, root=tmp_path).exercises[0].tasks
    for task in others:
        assert task.status == "failed" and task.failure is not None
        assert task.failure.message.startswith("was not reached: the tests before it")


def test_where_nothing_can_be_seen_the_wall_clock_is_left() -> None:
    for look in (lambda now: Look(), lambda now: Look(None, 0.0)):
        when, how = end_of(look)
        assert when == pytest.approx(UNSEEN * SECONDS, abs=0.2)
        assert how.startswith("TooLateError: did not come back within 30 seconds: ")


def test_a_busy_machine_ends_the_conversation_without_a_verdict() -> None:
    ours, theirs = socket.socketpair()
    hours = iter(range(10**6))
    channel = Channel(
        ours, lambda: Look(None, 0.0, float(next(hours))), lambda: float(next(hours))
    )
    exchange = Exchange(channel, History(), Ending)
    for _ in range(2):  # what ended stays ended
        with pytest.raises(GraderError, match=r"^twice: this machine is busy"):
            exchange.request({"do": "call"}, [], "twice(3)", 1.0)
    theirs.close()


def test_what_is_seen_of_a_worker_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for a child that runs: the time of the child counts, too."""
    write_course(tmp_path)
    file = tmp_path / "4.py"
    file.write_text(
        answer(
            allocate="""
            import os, time
            if os.fork() == 0:
                while time.process_time() < 0.3: pass
                os._exit(0)
            os.wait()
            """
        )
    )
    seen: list[Look] = []
    look = Watch.look
    monkeypatch.setattr(Watch, "look", lambda self: seen.append(look(self)) or seen[-1])
    assert grade(["4"], file, root=tmp_path).ok
    if not (told := [each.cpu for each in seen if each.cpu is not None]):
        pytest.skip("not verified: this system does not tell what a process uses")
    assert max(told) >= 0.3
