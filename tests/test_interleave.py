"""The forced race: it finds what is there, accuses no lock, and always ends."""

import os
import sys
import threading
import time
from contextlib import nullcontext

import pytest

from course import interleave
from course.grader import GraderError
from course.interleave import (
    StuckError,
    count_opcodes,
    every_interleaving,
    in_another_thread,
    one_after_the_other,
    run_paused,
)


class Counter:
    """Reads, adds, writes: the shortest race there is."""

    def __init__(self, lock=None):
        self.lock = lock or nullcontext()
        self.value = 0

    def add(self):
        with self.lock:
            value = self.value
            self.value = value + 1
            return value


def add(counter):
    return counter.add()


def final_values(make):
    return [
        run.subject.value
        for run in every_interleaving(make, lambda c: c.add(), lambda c: c.add())
    ]


LOCKS = [
    threading.Lock,
    threading.RLock,
    threading.Condition,
    threading.Semaphore,
    threading.BoundedSemaphore,
]


def test_a_lost_update_is_found_without_a_lock():
    values = final_values(Counter)
    assert set(values) == {1, 2}


def test_two_searches_find_the_same():
    assert final_values(Counter) == final_values(Counter)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.__name__)
def test_no_lock_is_accused_and_none_hangs(lock):
    start = time.monotonic()
    runs = list(
        every_interleaving(
            lambda: Counter(lock()), lambda c: c.add(), lambda c: c.add()
        )
    )
    assert {run.subject.value for run in runs} == {2}
    assert {run.first.value + run.second.value for run in runs} == {1}
    assert any(run.waited for run in runs)
    assert time.monotonic() - start < 5


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux only")
def test_one_processor_is_enough():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        assert set(final_values(Counter)) == {1, 2}
        assert set(final_values(lambda: Counter(threading.Lock()))) == {2}
    finally:
        os.sched_setaffinity(0, before)


def test_it_works_where_the_system_does_not_tell_who_sleeps(monkeypatch):
    monkeypatch.setattr(interleave, "_idle_threads", [])
    monkeypatch.setattr(interleave.os, "open", _refuse)
    assert set(final_values(Counter)) == {1, 2}
    assert set(final_values(lambda: Counter(threading.Lock()))) == {2}


def _refuse(*_):
    raise OSError("no such file")


def test_there_is_a_run_for_each_opcode():
    counter = Counter()
    opcodes = count_opcodes(lambda: counter.add())
    runs = list(every_interleaving(Counter, lambda c: c.add(), lambda c: c.add()))
    assert [run.opcode for run in runs] == list(range(1, opcodes + 1))
    assert all(run.source for run in runs), "only lines of a file count"
    assert run_paused(Counter, add, add, 10_000) is None


def test_a_run_tells_where_the_first_call_was_stopped():
    runs = every_interleaving(Counter, lambda c: c.add(), lambda c: c.add())
    *_, last = (run for run in runs if run.subject.value == 1)
    assert last.source == "self.value = value + 1"
    assert (last.first.value, last.second.value) == (0, 0)


def test_a_lock_that_is_kept_is_reported_and_ends_the_search():
    class Keeps:
        def __init__(self):
            self.lock = threading.Lock()

        def call(self):
            self.lock.acquire()

    runs = list(every_interleaving(Keeps, lambda k: k.call(), lambda k: k.call()))
    assert [run.is_stuck for run in runs] == [True]


def test_two_locks_in_opposite_order_are_stuck_in_some_run():
    class Pair:
        def __init__(self):
            self.left, self.right = threading.Lock(), threading.Lock()

        def call(self, one, two):
            with one, two:
                pass

    runs = every_interleaving(
        Pair, lambda p: p.call(p.left, p.right), lambda p: p.call(p.right, p.left)
    )
    *before, last = runs
    assert isinstance(last.first.error, StuckError)
    assert isinstance(last.second.error, StuckError)
    assert before and not any(run.is_stuck for run in before)


def test_a_call_that_gets_no_processor_is_not_stuck(monkeypatch):
    monkeypatch.setattr(interleave, "_STUCK", interleave._Patience(0.001, 3))
    assert isinstance(in_another_thread(lambda: time.sleep(0.5)).error, StuckError)
    # The system says of a thread that waits for its turn that it runs.
    monkeypatch.setattr(interleave._OtherThread, "_is_asleep", lambda self: False)
    assert in_another_thread(lambda: time.sleep(0.1)).error is None


def test_a_first_call_that_waits_for_a_long_second_one_is_not_stuck(monkeypatch):
    monkeypatch.setattr(interleave, "_STUCK", interleave._Patience(0.001, 3))

    def takes_long(counter):
        return sum(sum(range(1_000)) for _ in range(10_000))

    run = run_paused(Counter, add, takes_long, 1)
    assert not run.is_stuck and run.second.value == 10_000 * sum(range(1_000))


def test_errors_of_both_calls_are_kept():
    def divide(_):
        return 1 // 0

    def leave(_):
        sys.exit(3)

    run = run_paused(object, divide, leave, 1)
    assert run is not None
    assert isinstance(run.first.error, ZeroDivisionError)
    assert isinstance(run.second.error, SystemExit)


def test_one_after_the_other_is_no_race():
    run = one_after_the_other(Counter, add, add)
    assert (run.first.value, run.second.value, run.subject.value) == (0, 1, 2)
    assert (run.opcode, run.line, run.waited) == (0, 0, False)


def test_another_thread_returns_raises_or_is_stuck():
    lock = threading.Lock()
    assert in_another_thread(lambda: 7).value == 7
    assert isinstance(in_another_thread(lambda: 1 // 0).error, ZeroDivisionError)
    with lock:
        assert isinstance(in_another_thread(lock.acquire).error, StuckError)


def test_opcodes_measure_work_and_are_the_same_each_time():
    def loop(n):
        for _ in range(n):
            pass

    short, again, long = (count_opcodes(lambda n=n: loop(n)) for n in (10, 10, 1_000))
    assert short == again
    assert 50 * short < long < 120 * short


def test_the_first_run_of_a_function_counts_as_each_other():
    # Compiled anew, since a version of Python may treat a function that ran otherwise.
    source = "def double(x):\n    return [2 * y for y in (x,)][0]\n"
    names = {}
    exec(compile(source, "new.py", "exec"), names)
    counts = [count_opcodes(lambda: names["double"](3)) for _ in range(3)]
    assert counts[0] == counts[1] == counts[2] > 5


def test_opcodes_of_other_threads_do_not_count():
    def loop(n):
        for _ in range(n):
            pass

    alone = count_opcodes(lambda: loop(5_000))
    stop = threading.Event()
    other = threading.Thread(target=lambda: [loop(9) for _ in iter(stop.is_set, True)])
    other.start()
    beside = count_opcodes(lambda: loop(5_000))
    stop.set()
    other.join()
    assert beside == alone


def test_a_python_that_shows_no_opcodes_is_not_taken_for_no_work(monkeypatch):
    def blind(counter, action, skip):
        action()

    monkeypatch.setattr(interleave._OpcodeCounter, "run", blind)
    with pytest.raises(GraderError, match="shows no opcodes"):
        count_opcodes(lambda: add(Counter()))
    with pytest.raises(GraderError, match="shows no opcodes"):
        next(every_interleaving(Counter, add, add))


def test_a_tracer_that_was_there_is_put_back():
    def tracer(frame, event, arg):
        return None

    before = sys.gettrace()
    sys.settrace(tracer)
    try:
        run_paused(Counter, add, add, 3)
        seen = sys.gettrace()
    finally:
        sys.settrace(before)
    assert seen is tracer
