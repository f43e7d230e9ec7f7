"""What a report tells of a failure, and in what order."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from tiny_exercise import Session, answer, grade_answers, write_course

from course.grader import Report, grade
from course.grader.contract import read
from course.grader.exchange import _words_for_status
from course.grader.helpers.hunt import Hunted, expect_all_caught
from course.grader.helpers.pools import Pool
from course.grader.helpers.race import Call, Race
from course.grader.history import INNER_FIRST, INNER_LAST, LAST, History
from course.grader.report import ExerciseResult, TaskResult, end_of
from course.grader.worker import EXIT_NO_MEMORY
from course.report import Reading
from course.terminal import Out

# A loop that never ends, and fills the memory: 128 MiB in these tests.

ANSWERS = {
    "tuples, kept by the object": answer(
        allocate="""
        self.kept = []
        while True:
            self.kept.append((len(self.kept), 0))
        """
    ),
    "tuples of the call": answer(
        allocate="""
        kept = []
        while True:
            kept.append((len(kept), 0))
        """
    ),
    "dicts, kept by the module": answer(
        top="KEPT = []",
        allocate="""
        while True:
            KEPT.append({"free": len(KEPT)})
        """,
    ),
    "nothing is left, and the error is swallowed": answer(
        top="KEPT = []",
        allocate="""
        try:
            while True:
                KEPT.append((len(KEPT), 0))
        except MemoryError:
            return (len(KEPT),) * 100_000
        """,
    ),
    "one after the other": answer(
        top="KEPT = []",
        allocate="""
        for _ in range(3):
            try:
                while True:
                    KEPT.append((len(KEPT), 0))
            except MemoryError:
                pass
        raise RuntimeError("x" * 1_000)
        """,
    ),
    "patched": answer(top="import builtins; builtins.bytearray = None"),
}
RUNAWAYS, SWALLOWERS = list(ANSWERS)[:3], list(ANSWERS)[3:5]


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    folder = tmp_path_factory.mktemp("runaways")
    return grade_answers(folder, ANSWERS, call_seconds=10)


@pytest.mark.parametrize("name", RUNAWAYS)
def test_a_loop_that_fills_the_memory_is_told_as_that(
    session: Session, name: str
) -> None:
    failed, *others = session.results[name].tasks
    assert failed.failure is not None
    assert failed.failure.got == (
        "MemoryError: out of memory, an exercise may use 128 MiB: "
        "does a loop never end?"
    )
    assert failed.failure.printed == ""
    assert [task.status for task in others] == ["passed"] * 3


@pytest.mark.parametrize("name", SWALLOWERS)
def test_who_swallows_a_memory_error_still_gets_an_answer(
    session: Session, name: str
) -> None:
    failed, *others = session.results[name].tasks
    assert failed.failure is not None
    told = failed.failure.got + failed.failure.message
    assert "broke the process" not in told and "did not come back" not in told
    assert failed.failure.printed == ""
    assert [task.status for task in others] == ["passed"] * 3


def test_a_process_that_ends_for_want_of_memory_is_told_as_that() -> None:
    words = _words_for_status(EXIT_NO_MEMORY << 8)
    assert "used up the memory" in words and words.endswith("does a loop never end?")


def test_what_was_printed_shows_nothing_of_the_grader(session: Session) -> None:
    failure = session.results["patched"].tasks[0].failure
    assert failure is not None and "broke the process" in failure.message
    assert failure.printed == "TypeError: 'NoneType' object is not callable\n"


# Stubs of other tasks, and errors that repeat.


def without_constructor(instead: str) -> str:
    return answer().replace("self._free = list(range(num_blocks))", instead)


def graded(course: Path, text: str, *exercises: str) -> Report:
    (course / "ex04_pool.py").write_text(text)
    solution = course / "solutions" / "ex05_twice.py"
    (course / "ex05_twice.py").write_bytes(solution.read_bytes())
    return grade(list(exercises), course, root=course)


def rendered(course: Path, report: Report, *only: str) -> str:
    stream = io.StringIO()
    Reading(Out(stream), course, only).render(report)
    return stream.getvalue()


@pytest.fixture
def course(tmp_path: Path) -> Path:
    return write_course(tmp_path / "course")


def test_the_stub_of_another_task_is_told_with_its_function(course: Path) -> None:
    stub = 'raise NotImplementedError("exercise 4.1: make it (4.2: count)")'
    report = graded(course, without_constructor(stub), "4", "5")
    own, *waiting, hunt = report.exercises[0].tasks
    assert own.failure is not None and not own.failure.waits_for
    for task in (*waiting, *report.exercises[1].tasks):
        assert task.failure is not None and task.failure.is_unsolved
        assert (task.failure.waits_for, task.failure.stub) == ("4.1", "Pool")
    assert hunt.status == "passed"
    said = rendered(course, report)
    assert "  4.2, 4.3 call Pool of 4.1, which is not solved yet\n" in said
    assert "  5.1 calls Pool of 4.1, which is not solved yet\n" in said
    assert "next: course hint 4.1" in said
    for asked in ("4.3", "5.1"):
        assert "next: course grade 4.1\n" in rendered(course, report, asked)


def test_a_stub_of_no_task_sends_nobody_anywhere(course: Path) -> None:
    stub = 'raise NotImplementedError("exercise 99.99: make it")'
    report = graded(course, without_constructor(stub), "4")
    failures = [task.failure for task in report.exercises[0].tasks if task.failure]
    assert failures and not any(failure.waits_for for failure in failures)
    assert "99.99, which" not in rendered(course, report)


def test_one_error_at_one_line_is_shown_in_full_once(course: Path) -> None:
    report = graded(course, without_constructor("self._free = rang(3)"), "4")
    said = rendered(course, report)
    line = report.exercises[0].tasks[0].failure.location.rpartition(":")[2]  # pyright: ignore
    assert said.count("name 'rang' is not defined") == 2  # as done and as got
    assert f"\n\n4.2 b: the same error as 4.1 (line {line})\n" in said
    assert f"\n4.3 c: the same error as 4.1 (line {line})\n" in said
    assert "1 of 4 tasks, 1 of 4 points" in said
    assert "the same error" not in rendered(course, report, "4.2")


def test_two_errors_at_one_line_are_both_shown(course: Path) -> None:
    init = "raise [KeyError, ValueError][num_blocks % 2](num_blocks)"
    said = rendered(course, graded(course, without_constructor(init), "4"))
    assert "ValueError: 3" in said and "KeyError: 2" in said
    assert said.count("the same error as") == 1  # 4.3, like 4.1, with 3 blocks


# What was done.


def test_what_the_learners_code_called_stands_below_its_call() -> None:
    history = History()
    history.add("pool = Pool(3)")
    history.add_inner("pool.allocate() -> 0")
    history.add_inner("pool.allocate() -> 1")
    history.add("table.append_tokens(5)")
    history.add("table.num_tokens -> 5")
    assert history.lines() == [
        "pool = Pool(3)",
        "table.append_tokens(5)",
        "    ↳ pool.allocate() -> 0",
        "    ↳ pool.allocate() -> 1",
        "table.num_tokens -> 5",
    ]


def test_a_call_that_called_much_stays_in_sight() -> None:
    assert INNER_FIRST + 1 + INNER_LAST < LAST
    history = History()
    for number in range(30):
        history.add(f"call {number}")
    for number in range(50_000):
        history.add_inner(f"inner {number}")
    history.add("the last call")
    lines = history.lines()
    below = lines[lines.index("the last call") + 1 :]
    left_out = 50_000 - INNER_FIRST - INNER_LAST
    assert below[0] == "    ↳ inner 0" and below[-1] == "    ↳ inner 49999"
    assert f"    ↳ … {left_out} more …" in below


def test_two_objects_of_one_name_are_told_apart() -> None:
    history = History()
    labels = []
    for _ in range(2):
        table = history.label("LogicalTable")
        labels.append(table)
    assert labels == ["table", "table2"]


def test_blocks_are_given_back_once_however_the_pool_does_it() -> None:
    pool = Pool(4)
    pool.allocate_many(4)
    pool.free_many([2])
    pool.free_many([3, 0])
    pool.free(1)
    assert pool._given_back == [2, 3, 0, 1]


# Types.


@pytest.mark.parametrize(
    ("declared", "value", "told"),
    [
        ("list[list[int]]", [[0], [1, None]], "the None at [1][1] is no int"),
        ("list[list[int]]", [[0], None], "the None at [1] is no list[int]"),
        ("list[set[int]]", [{None}], "the None in [0] is no int"),
        ("set[int]", {"a"}, "the 'a' in it is no int"),
        ("dict[str, int]", {"a": True}, "the True at ['a'] is no int"),
        ("tuple[int, str]", (1, 2), "the 2 at [1] is no str"),
        ("list[int] | None", [1, 2.0], "the 2.0 at [1] is no int"),
        ("list[int]", (1, None), ""),
        ("tuple[int, int]", (1,), ""),
        ("int", None, ""),
        ("list[int]", [1], ""),
    ],
)
def test_the_item_of_a_wrong_type_is_named(
    tmp_path: Path, declared: str, value: object, told: str
) -> None:
    path = tmp_path / "module.py"
    path.write_text(f"def f() -> {declared}: ...\n")
    returns = read(path).members["f"].returns
    assert returns is not None and returns.misfit(value) == told


# Two calls at once.


def race(calls: tuple[Call, Call], **run: object) -> Race:
    return Race(3, [], calls, {"line": 7, "source": "", "held": []} | run)


def test_a_race_is_compared_with_the_order_that_its_results_agree_with() -> None:
    refused = ["raised", ["OutOfBlocksError", "RuntimeError"], "1 is free"]
    both = ["allocate_many", 2], ["allocate_many", 2]
    after = [0, [1, 1, 1], []]
    run = race(both, first=refused, second=["returned", [2, 1]], after=after)
    problem = run.problem()
    assert problem is not None
    expected, got = "ref_count of each block: [0, 1, 1]", str(after[1])
    assert problem.expected == f"{expected}, as when B comes before A"
    assert problem.got == f"ref_count of each block: {got}"
    fine = {"after": [1, [0, 1, 1], [0]]}
    right = race(both, first=refused, second=["returned", [2, 1]], **fine)
    assert right.problem() is None


def test_a_race_that_no_order_explains_is_told_with_both() -> None:
    same = ["returned", 0]
    after = [2, [1, 0, 0], [1, 2]]
    run = race((["allocate"], ["allocate"]), first=same, second=same, after=after)
    problem = run.problem()
    assert problem is not None
    free = "gives a block out of [1, 2], which are free then"
    assert problem.expected == (
        f"if A comes before B, B's allocate() {free}\n"
        f"if B comes before A, A's allocate() {free}"
    )
    assert problem.got == "A: allocate() -> 0\nB: allocate() -> 0"


# Bug hunts.


def test_a_hunt_in_which_all_is_found_passes() -> None:
    right, wrong = [Hunted("is right", None)], [Hunted("is wrong", "AssertionError")]
    expect_all_caught(None, "check", "pool", right, wrong)


def failed_task(tmp_path: Path, allocate: str, **course: float) -> TaskResult:
    root = write_course(tmp_path, **course)
    file = root / "ex04_pool.py"
    file.write_text(answer(allocate=allocate))
    return grade(["4"], file, root=root).exercises[0].tasks[0]


@pytest.mark.parametrize(
    "code",
    [
        "while True: len([])",
        pytest.param("sum(i for i in iter(int, 1))", marks=pytest.mark.proof),
        "__import__('threading').Event().wait()",
    ],
    ids=["python", "c", "lock"],
)
def test_an_endless_call_is_reported_with_the_line_where_it_was(
    tmp_path: Path, code: str
) -> None:
    failure = failed_task(tmp_path, code, call_seconds=0.3).failure
    assert failure is not None and failure.location is not None
    assert "did not come back" in failure.message
    assert failure.message.endswith(f"\nIt was at this line: {code}")
    file, _, number = failure.location.rpartition(":")
    assert Path(file).read_text().splitlines()[int(number) - 1].strip() == code


def test_of_much_that_was_printed_three_lines_are_shown() -> None:
    assert end_of("a\nb\nc\n") == ["a", "b", "c"]
    assert end_of("") == []
    many = "".join(f"{i}\n" for i in range(98))
    assert end_of(many) == ["… 95 lines more; remove the print", "95", "96", "97"]


def test_numbers_of_numpy_are_called_so_once(tmp_path: Path) -> None:
    task = failed_task(tmp_path, "import numpy; return numpy.int64(1)")
    assert task.failure is not None
    assert task.failure.got == "a numpy.int64: write int(x) for x, to make it plain"
    twice = tuple(replace(task, id=each) for each in ("4.1", "4.2"))
    stream = io.StringIO()
    result = ExerciseResult("ex04_pool", "ex04_pool.py", twice)
    Reading(Out(stream), tmp_path).render(Report((result,)))
    assert f"4.2 {task.title}: the same error as 4.1" in stream.getvalue()
