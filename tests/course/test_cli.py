"""The command line: exit codes, what is said, and what is kept."""

import ast
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from pathlib import Path

import pytest

from course import grader, terminal
from course.answer import readable
from course.cli import main
from course.grader import ExerciseResult, Failure, GraderError, Report, TaskResult
from course.manifest import ROOT, load

COMMANDS = ["grade", "status", "hint", "reset", "solution"]
COMMANDS += ["doctor", "lab", "run", "get-model", "build"]
FAILURE = Failure(
    test="test_sum",
    claim="1 and 2 are added",
    history=("add(1, 2) -> 4",),
    expected="3",
    got="4",
    printed="thinking\n",
    location="exercises/ex00_hello.py:5",
)
NOTEBOOK = '{"cells": [], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}'
UNSOLVED = Failure("test_sum", "", message="not solved yet: exercise 0.1: add the two")


def result(status="passed", failure=None, isolation=("a process of its own",)):
    points = 2 if status == "passed" else 0
    task = TaskResult("0.1", "Add two numbers", points, 2, status, 3, 0, failure)
    exercise = ExerciseResult("ex00_hello", "exercises/ex00_hello.py", (task,))
    return Report((exercise,), list(isolation))


@pytest.fixture
def course(tiny_course, monkeypatch, capsys):
    """Run one command on the tiny course; its exit code and what it printed."""
    monkeypatch.setattr(
        grader,
        "grade",
        lambda ids, target, root, begin: on_file(result(), root),
        raising=False,
    )

    def run(*words):
        code = main(words, tiny_course)
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    run("build", "--stubs")
    for name in ("00_hello", "01_goodbye"):
        (tiny_course / "chapters" / f"{name}.ipynb").write_text(NOTEBOOK)
    return run


def on_file(report, root):
    """The report, as one on the file that is there now."""
    path = root / "exercises" / "ex00_hello.py"
    digest = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
    exercises = [replace(each, sha256=digest) for each in report.exercises]
    return replace(report, exercises=tuple(exercises))


def graded(monkeypatch, report):
    def grade(ids, target, root, begin):
        if isinstance(report, Exception):
            raise report
        begin("ex00_hello")
        asked.append((list(ids), target))
        return on_file(report, root)

    asked: list = []
    monkeypatch.setattr(grader, "grade", grade, raising=False)
    return asked


def solve(root):
    path = root / "exercises" / "ex00_hello.py"
    path.write_text("def add(a, b):\n    return a + b\n")
    return path


# --- exit codes


@pytest.mark.parametrize(
    ("report", "code"),
    [
        (result(), 0),
        (result("failed", FAILURE), 1),
        (result("not verified"), 1),
        (GraderError("the tests cannot be collected"), 3),
        (RuntimeError("a bug"), 3),
    ],
)
def test_the_exit_code_says_how_grading_went(course, monkeypatch, report, code):
    graded(monkeypatch, report)
    assert course("grade")[0] == code
    assert course("grade", "0.1")[0] == code


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["grade", "99"], "no chapter 99; there are 00 to 01"),
        (["grade", "0.9"], "no task 0.9; there are: 0.1"),
        (["grade", "1"], "chapter 01 has no exercise; these have one: 00"),
        (["grade", "--target", "nowhere"], "there is no nowhere"),
        (["hint", "0"], "course hint 0.1   Add two numbers"),
        (["hint", "0.7"], "no task 0.7; there are: 0.1"),
        (["reset", "7"], "no chapter 7; there are 00 to 01"),
        (["solution", "1"], "chapter 01 has no exercise"),
        (["lab", "99"], "no chapter 99; there are 00 to 01"),
        (["build", "99"], "no chapter 99; there are 00 to 01"),
    ],
)
def test_what_does_not_exist_is_answered_with_what_does(course, words, answer):
    code, said = course(*words)
    assert code == 2
    assert answer in said


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_ends_a_command_in_order(course, monkeypatch, name, hang_up):
    number = getattr(signal, name)
    before = signal.getsignal(number)
    ended = []

    def grade(ids, target, root, begin):
        try:
            os.kill(os.getpid(), number)
        except KeyboardInterrupt:  # as pytest does, which knows nothing of signals
            raise KeyboardInterrupt from None
        finally:
            ended.append(name)

    monkeypatch.setattr(grader, "grade", grade, raising=False)
    code, said = course("grade")
    assert code == 128 + number and said == "\ninterrupted\n" and ended == [name]
    assert signal.getsignal(number) is before


@pytest.mark.parametrize("goes_on", [True, False])
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_within_a_callback_of_c_code_is_not_lost(
    course, monkeypatch, name, goes_on
):
    number = getattr(signal, name)
    passed = []

    class Callback:
        def __del__(self):  # what it raises is reported to a hook, and forgotten
            signal.raise_signal(number)
            passed.append([None for _ in range(9)])

    def grade(ids, target, root, begin):
        Callback()
        passed.append("the callback")
        if goes_on:
            time.sleep(60)
        return on_file(result(), root)

    monkeypatch.setattr(grader, "grade", grade, raising=False)
    hook = sys.unraisablehook
    code, said = course("grade")
    assert passed == ["the callback"]
    assert code == 128 + number and said.endswith("\ninterrupted\n")
    assert sys.unraisablehook is hook
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def test_what_else_is_raised_in_a_callback_is_reported_as_ever(course, monkeypatch):
    class Callback:
        def __del__(self):
            raise ValueError("of the callback")

    def grade(ids, target, root, begin):
        Callback()
        return on_file(result(), root)

    reported = []
    monkeypatch.setattr(grader, "grade", grade, raising=False)
    monkeypatch.setattr(
        sys, "unraisablehook", lambda what: reported.append(str(what.exc_value))
    )
    assert course("grade")[0] == 0 and reported == ["of the callback"]


@contextmanager
def nobody_reads():
    """Standard output is a pipe whose other end is closed."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as stream, redirect_stdout(stream):
        yield


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["status"], 0),
        (["hint", "0.1"], 0),
        (["grade"], 1),
        (["build", "--stubs"], 1),
    ],
)
def test_a_reader_who_has_left_is_no_failure_of_what_only_tells(
    course, monkeypatch, words, code
):
    graded(monkeypatch, result("failed", FAILURE))
    with nobody_reads():
        ended, said = course(*words)
    assert (ended, said.replace("grading ex00_hello …\n", "")) == (code, "")


def test_what_was_graded_is_written_though_nobody_reads(course, tmp_path):
    file = tmp_path / "out.json"
    with nobody_reads():
        assert course("grade", "--json", str(file)) == (0, "")
    assert json.loads(file.read_text())["exercises"]


def test_a_command_whose_reader_has_left_ends_in_silence():
    command = [sys.executable, "-m", "course", "status"]
    with nobody_reads():
        done = subprocess.run(
            command, stdout=sys.stdout, stderr=subprocess.PIPE, cwd=ROOT
        )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_ctrl_c_that_an_import_wrapped_is_no_fault_of_the_grader(course, monkeypatch):
    wrapped = RuntimeError("Error calling __set_name__")
    wrapped.__cause__ = KeyboardInterrupt()
    graded(monkeypatch, wrapped)
    code, said = course("grade")
    assert code == 130 and said == "\ninterrupted\n"


def test_no_command_shows_the_commands_and_is_wrong_usage(course):
    code, said = course()
    assert code == 2
    assert all(f"    {command}" in said for command in COMMANDS)


def test_help_lists_what_authors_need_apart(course):
    learners, authors = course()[1].split("for authors:")
    assert "    grade " in learners and "    build " not in learners
    assert "    build " in authors
    assert "get-model" in learners.split()  # Python 3.13 puts its help on the same line


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples(command, capsys):
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert f"examples:\n  course {command}" in capsys.readouterr().out


def test_the_real_command_answers_for_a_chapter_that_is_not_there():
    command = [sys.executable, "-m", "course", "grade", "99"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 2
    assert "no chapter 99; there are 00 to 14" in done.stderr


def test_starting_imports_nothing_that_takes_time():
    heavy = "('rich', 'torch', 'pytest', 'nbformat', 'jupytext', 'numpy', 'asyncio')"
    code = f"import sys, course.cli; print([n for n in {heavy} if n in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT
    )
    assert done.stdout.strip() == "[]", done.stderr


# --- grading


def test_grading_asks_for_the_named_exercises_once_each(course, monkeypatch):
    asked = graded(monkeypatch, result())
    course("grade", "00", "0", "ex00_hello")
    course("grade")
    assert [ids for ids, _ in asked] == [["00"], ["00"]]


def test_off_a_terminal_too_grading_says_where_it_is(tiny_course, monkeypatch, capsys):
    graded(monkeypatch, result())
    main(["grade", "0"], tiny_course)
    printed = capsys.readouterr()
    assert printed.err == "grading ex00_hello …\n"
    assert "grading" not in printed.out  # what is kept in a file is the report alone


def test_the_learners_files_are_graded_unless_a_target_is_given(
    course, monkeypatch, tiny_course
):
    asked = graded(monkeypatch, result())
    course("grade", "0")
    course("grade", "0", "--target", "solutions")
    course("grade", "0", "--target", str(tiny_course / "course"))
    assert [target.relative_to(tiny_course).name for _, target in asked] == [
        "exercises",
        "solutions",
        "course",
    ]


def test_a_failure_shows_claim_history_expected_got_and_what_to_type(
    course, monkeypatch
):
    graded(monkeypatch, result("failed", FAILURE))
    said = course("grade", "0")[1]
    for line in [
        "0.1   Add two numbers  0 of 2  failed",
        "claim     1 and 2 are added",
        "done      add(1, 2) -> 4",
        "expected  3",
        "got       4",
        "printed   thinking",
        "where     exercises/ex00_hello.py:5",
        "next      course hint 0.1   or, after a change, course grade 0.1",
        "0 of 1 tasks, 0 of 2 points",
    ]:
        assert line in said


def test_an_unsolved_task_takes_one_line(course, monkeypatch):
    graded(monkeypatch, result("failed", UNSOLVED))
    said = course("grade", "0")[1]
    assert "not solved yet" in said and "claim" not in said
    assert "next: course hint 0.1" in said


def test_an_error_that_only_speaks_of_it_is_shown_whole(course, monkeypatch):
    failure = replace(FAILURE, message="add() raised it: not solved yet: exercise 0.1")
    graded(monkeypatch, result("failed", failure))
    said = course("grade", "0")[1]
    assert "0 of 2  failed" in said and "claim     1 and 2 are added" in said


def test_the_solutions_get_no_hints(course, monkeypatch):
    graded(monkeypatch, result("failed", FAILURE))
    said = course("grade", "0", "--target", "solutions")[1]
    assert "hint" not in said
    assert "course grade 0.1 --target solutions" in said


def test_a_file_that_cannot_be_used_is_said_once(course, monkeypatch, tiny_course):
    report = result("failed", Failure("t", "c", message="no module"))
    exercise = replace(
        report.exercises[0],
        path=str(solve(tiny_course)),
        problem="line 3 is not Python",
        printed="before that\n",
    )
    graded(monkeypatch, Report((exercise,)))
    said = course("grade", "0")[1]
    assert "what     line 3 is not Python\n  printed  before that" in said
    assert "next: change the file, then course grade 0" in said
    assert "claim" not in said and "no module" not in said


def test_paths_are_shown_from_the_root(course, monkeypatch, tiny_course):
    where = str(tiny_course / "exercises" / "ex00_hello.py")
    failure = replace(FAILURE, location=f"{where}:5", message=f"it ended at {where}:7")
    graded(monkeypatch, result("failed", failure))
    said = course("grade", "0")[1]
    assert "where     exercises/ex00_hello.py:5" in said
    assert "what      it ended at exercises/ex00_hello.py:7" in said


def test_what_was_not_verified_is_said_and_never_passed(course, monkeypatch):
    graded(monkeypatch, result("not verified"))
    said = course("grade", "0")[1]
    assert "not verified on this machine: 0.1" in said
    assert "0 of 1 tasks, 0 of 2 points" in said and "passed" not in said


def test_output_off_a_terminal_is_plain_and_80_wide(course, monkeypatch):
    trick = Failure("t", "red \x1b[31malert\x07 " * 20, ("x" * 300,), message="m")
    graded(monkeypatch, result("failed", trick))
    monkeypatch.delenv("COLUMNS", raising=False)
    said = course("grade", "0")[1] + course("status")[1] + course("hint", "0.1")[1]
    assert "\x1b" not in said and "\x07" not in said
    assert max(len(line) for line in said.splitlines()) <= 80
    assert not set(said) & set("─│╭╮╰╯━┃")


@pytest.mark.parametrize("columns", [32, 50, 90])
def test_output_off_a_terminal_keeps_to_columns(course, monkeypatch, columns):
    trick = Failure("t", "a claim of some words " * 9, ("x " * 300,), message="m")
    graded(monkeypatch, result("failed", trick))
    monkeypatch.setenv("COLUMNS", str(columns))
    said = course("grade", "0")[1] + course("status")[1] + course("hint", "0.1")[1]
    whole = "course hint 0.1", "exercises/ex00_hello.py"  # never broken
    assert all(
        len(line) <= columns or any(line.strip().startswith(each) for each in whole)
        for line in said.splitlines()
    )
    assert max(len(line) for line in said.splitlines()) > columns - 9


def test_json_holds_the_whole_report(course, monkeypatch, tiny_course, tmp_path):
    report = result("failed", FAILURE)
    graded(monkeypatch, report)
    course("grade", "0", "--json", str(tmp_path / "out.json"))
    data = json.loads((tmp_path / "out.json").read_text())
    assert data == json.loads(json.dumps(on_file(report, tiny_course).to_json()))


def test_a_passed_task_is_followed_by_the_next_open_one(
    course, monkeypatch, tiny_course
):
    first = result().exercises[0].tasks[0]
    second = replace(
        first, id="0.2", title="Subtract", points=0, status="failed", failure=UNSOLVED
    )
    graded(monkeypatch, Report((ExerciseResult("ex00_hello", "", (first, second)),)))
    said = course("grade", "0.1")[1]
    assert "1 of 1 tasks" in said and "Subtract  " not in said
    assert "next: task 0.2, Subtract: course grade 0.2" in said
    assert "next: course hint 0.2" in course("grade", "0")[1]


def test_a_line_that_is_not_python_is_shown_with_a_caret(
    course, monkeypatch, tiny_course
):
    path = tiny_course / "exercises" / "ex00_hello.py"
    path.write_text("x = 1\ndef add(a, b:\n    return a + b\n")
    exercise = replace(
        result("failed", FAILURE).exercises[0], path=str(path), problem="no Python"
    )
    graded(monkeypatch, Report((exercise,)))
    said = course("grade", "0")[1]
    assert "where  exercises/ex00_hello.py:2" in said
    assert "  line   def add(a, b:\n                ^\n" in said


def test_a_missing_file_is_brought_back_by_reset(course, monkeypatch, tiny_course):
    path = tiny_course / "exercises" / "ex00_hello.py"
    path.unlink()
    exercise = replace(
        result("failed", FAILURE).exercises[0], path=str(path), problem="not there"
    )
    graded(monkeypatch, Report((exercise,)))
    assert "next: course reset 0" in course("grade", "0")[1]


@pytest.mark.parametrize(("got", "asked"), [("None (NoneType)", True), ("4", False)])
def test_none_where_a_value_is_declared_asks_for_a_return(
    course, monkeypatch, got, asked
):
    graded(monkeypatch, result("failed", replace(FAILURE, got=got)))
    assert ("is a `return` missing?" in course("grade", "0")[1]) == asked


@pytest.mark.parametrize("width", range(20, 60))
def test_a_command_is_never_broken_over_two_lines(width):
    for command in ("course solution 4 --anyway", "course grade 4.1 --target a-b/c-d"):
        lines = terminal._wrap(f"When all of it passes, {command} shows more", width)
        assert any(command in line for line in lines)


def test_the_path_of_an_exercise_names_it(course, monkeypatch, tiny_course):
    asked = graded(monkeypatch, result())
    assert course("grade", "exercises/ex00_hello.py")[0] == 0
    assert course("grade", str(tiny_course / "exercises" / "ex00_hello.py"))[0] == 0
    assert [ids for ids, _ in asked] == [["00"], ["00"]]
    code, said = course("grade", "/elsewhere/ex00_hello.py")
    assert code == 2 and "course grade 0 --target /elsewhere/ex00_hello.py" in said


# --- status, hint, reset, solution


def test_each_call_reveals_one_more_hint(course):
    first, second, third, again = (course("hint", "0.1")[1] for _ in range(4))
    assert "first hint" in first and "second hint" not in first
    assert "second hint" in second and "third hint" not in second
    assert "first hint" in third and "third hint" in third
    assert again == third


def test_status_follows_the_learner(course, monkeypatch, tiny_course):
    assert "not started" in course("status")[1]
    path = solve(tiny_course)
    assert "not graded yet: course grade 0" in course("status")[1]
    course("grade", "0")
    assert "done" in course("status")[1] and "2 of 2 points" in course("status")[1]
    path.write_text(path.read_text() + "# better\n")
    assert "edited since it was graded: course grade 0" in course("status")[1]
    graded(monkeypatch, result("failed", FAILURE))
    course("grade", "0")
    said = course("status")[1]
    assert "next: task 0.1, Add two numbers: course hint 0.1 helps" in said


def test_grading_something_else_is_no_progress(course, tiny_course):
    solve(tiny_course)
    course("grade", "0", "--target", "solutions")
    assert "not graded yet" in course("status")[1]


def test_a_folder_that_cannot_be_written_still_grades(course, tiny_course):
    (tiny_course / ".course").write_text("in the way")
    solve(tiny_course)
    assert course("grade", "0")[0] == 0
    assert course("hint", "0.1")[0] == 0
    assert course("status")[0] == 0


@pytest.mark.parametrize(
    "content",
    [
        b"[1, 2",
        b"3",
        b"null",
        b'{"hints": 3, "grades": []}',
        b'{"hints": {"0.1": "two"}, "grades": {"00": "x"}}',
        b'{"hints": {"0.1": -1}, "grades": {"00": {"sha256": "a", "passed": 1}}}',
        b'{"grades": {"00": {"sha256": "a", "passed": [1], "points": 2}}}',
        b'{"grades": {"00": {"sha256": "a", "passed": [], "points": "2"}}}',
        b"[" * 100_000,
        b"\xff\x00\x9f",
    ],
    ids=range(10),
)
def test_progress_that_cannot_be_read_starts_again(course, tiny_course, content):
    solve(tiny_course)
    course("hint", "0.1")
    (tiny_course / ".course" / "progress.json").write_bytes(content)
    assert "not graded yet" in course("status")[1]
    assert course("solution", "0")[0] == 1
    code, said = course("hint", "0.1")
    assert code == 0 and "first hint" in said and "second hint" not in said


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_no_file_where_progress_belongs_is_no_progress(course, tiny_course, make):
    (tiny_course / ".course").mkdir()
    make(tiny_course / ".course" / "progress.json")
    assert course("status")[0] == 0 and course("hint", "0.1")[0] == 0


def test_a_file_that_may_not_be_read_is_answered_with_chmod(
    course, monkeypatch, tiny_course
):
    path = solve(tiny_course)
    readable = os.access
    monkeypatch.setattr(  # root may read whatever its mode is
        os, "access", lambda file, mode: file != path and readable(file, mode)
    )
    monkeypatch.setattr(
        Path,
        "read_bytes",
        lambda path: (_ for _ in ()).throw(PermissionError(13, "no")),
    )
    wanted = "chmod u+r exercises/ex00_hello.py"
    said = course("status")[1]
    assert "cannot be read" in said and f"next: {wanted}" in said
    exercise = replace(
        result("failed", FAILURE).exercises[0], path=str(path), problem="no"
    )
    monkeypatch.setattr(
        grader,
        "grade",
        lambda ids, target, root, begin: Report((exercise,)),
        raising=False,
    )
    said = course("grade", "0")[1]
    assert f"next  {wanted}" in said and "change the file" not in said


def test_a_library_that_is_not_installed_is_said_in_a_line(course, monkeypatch):
    monkeypatch.setitem(sys.modules, "jupyter_server.serverapp", None)
    code, said = course("lab")
    assert code == 1 and said.startswith("course: import of jupyter_server.serverapp")
    assert said.endswith("; to repair .venv: make setup\n") and said.count("\n") == 1


def test_a_damaged_manifest_is_said_in_a_line(course, tiny_course):
    (tiny_course / "course" / "manifest.toml").write_text("chapter = [")
    load.cache_clear()
    code, said = course("status")
    assert code == 2 and said.startswith("course: a .toml file: ")
    assert said.count("\n") == 1


def test_progress_is_ignored_by_git(course, tiny_course):
    course("hint", "0.1")
    assert (tiny_course / ".course" / ".gitignore").read_text() == "*\n"


def test_reset_keeps_what_the_learner_wrote(course, tiny_course):
    path = tiny_course / "exercises" / "ex00_hello.py"
    stub = path.read_text()
    written = solve(tiny_course).read_text()
    code, said = course("reset", "0")
    assert code == 0 and path.read_text() == stub
    (backup,) = (tiny_course / "exercises" / "backups").iterdir()
    assert backup.read_text() == written
    assert f"your version is kept in exercises/backups/{backup.name}" in said


def test_reset_prints_the_line_that_brings_the_backup_back(course, tiny_course):
    written = solve(tiny_course).read_text()
    said = course("reset", "0")[1]
    (line,) = [line for line in said.splitlines() if line.startswith("  cp ")]
    subprocess.run(line, shell=True, check=True, cwd=tiny_course)
    assert (tiny_course / "exercises" / "ex00_hello.py").read_text() == written


def test_two_resets_in_a_second_keep_both_versions(course, tiny_course):
    for text in ("one = 1\n", "two = 2\n"):
        (tiny_course / "exercises" / "ex00_hello.py").write_text(text)
        course("reset", "0")
    kept = sorted(
        p.read_text() for p in (tiny_course / "exercises" / "backups").iterdir()
    )
    assert kept == ["one = 1\n", "two = 2\n"]


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo], ids=["folder", "pipe"])
def test_what_is_no_file_is_named_by_every_command_and_moved_by_reset(
    course, tiny_course, make
):
    path = tiny_course / "exercises" / "ex00_hello.py"
    stub = path.read_text()
    path.unlink()
    make(path)
    told = "exercises/ex00_hello.py is a "
    said = course("status")[1]
    assert told in said and "next: course reset 0" in said
    assert course("solution", "0")[0] == 1
    for command in (["build", "--stubs", "0"], ["build", "--check", "0"]):
        code, said = course(*command)
        assert code == 1 and told in said
    code, said = course("reset", "0")
    assert code == 0 and told in said
    assert path.read_text() == stub
    (backup,) = (tiny_course / "exercises" / "backups").iterdir()
    assert not backup.is_file() and f"exercises/backups/{backup.name}" in said


def test_reset_leaves_alone_what_a_link_points_to(course, tiny_course):
    path = tiny_course / "exercises" / "ex00_hello.py"
    stub = path.read_text()
    theirs = tiny_course / "theirs.py"
    theirs.write_text("theirs = 1\n")
    path.unlink()
    path.symlink_to(theirs)
    assert course("reset", "0")[0] == 0
    assert theirs.read_text() == "theirs = 1\n"
    assert path.read_text() == stub and not path.is_symlink()


def test_a_folder_in_the_way_is_an_error_in_words(course, tiny_course):
    solve(tiny_course)
    (tiny_course / "exercises" / "backups").write_text("in the way")
    code, said = course("reset", "0")
    assert code == 2 and "exercises/backups" in said and "Traceback" not in said


def test_an_untouched_stub_is_not_backed_up(course, tiny_course):
    assert "nothing to reset" in course("reset", "0")[1]
    assert not (tiny_course / "exercises" / "backups").exists()


def test_the_solution_shows_only_after_passing(course, monkeypatch, tiny_course):
    path = solve(tiny_course)
    assert course("solution", "0")[0] == 1
    course("grade", "0")
    code, said = course("solution", "0")
    assert code == 0 and "It could as well be sum((a, b))." in said
    path.write_text(path.read_text() + "# changed\n")
    assert course("solution", "0")[0] == 1
    graded(monkeypatch, result("failed", FAILURE))
    course("grade", "0")
    assert course("solution", "0")[0] == 1


def test_a_closed_solution_names_the_hint_of_the_open_task(course, monkeypatch):
    assert "course hint 0.1 helps" in course("solution", "0")[1]


def test_the_solution_is_read_without_contract_and_markers(course):
    said = course("solution", "0", "--anyway")[1]
    notes, code = said.split("def add")
    assert "# It could as well be sum((a, b))." in notes and "return a + b" in code
    assert '"""' not in said and "BEGIN" not in said and "END" not in said


@pytest.mark.parametrize("chapter", [c for c in load().chapters if c.exercise])
def test_each_solution_is_shown_as_python_that_has_its_notes_first(chapter):
    solution = chapter.solution_path.read_text(encoding="utf-8")
    shown = readable(solution)
    assert not re.search(r"(BEGIN|END) (SOLUTION|NOTES)|# isort", shown)
    lines = [ast.unparse(part) for part in ast.parse(shown).body]
    assert lines == [ast.unparse(part) for part in ast.parse(solution).body[1:]]


def test_a_chapter_without_its_notebook_is_not_here_yet(course, tiny_course):
    for notebook in (tiny_course / "chapters").glob("*.ipynb"):
        notebook.unlink()
    said = course("status")[1]
    assert "not here yet" in said and "build" not in said
    assert "next: everything that is here is solved" in said


def test_the_solution_shows_to_those_who_insist(course):
    code, said = course("solution", "0", "--anyway")
    assert code == 0 and "return a + b" in said


# --- build


def test_a_failed_build_and_check_say_so_in_the_exit_code(course, tiny_course):
    assert course("build", "--check")[0] == 1
    (tiny_course / "chapters" / "src" / "01_goodbye.md").unlink()
    assert course("build", "1")[0] == 1


def test_building_over_a_half_solved_exercise_says_that_it_is_left_alone(
    course, tiny_course
):
    text = solve(tiny_course).read_text()
    code, said = course("build", "--stubs", "0")
    assert code == 0 and "left alone: it has been edited" in said
    assert (tiny_course / "exercises" / "ex00_hello.py").read_text() == text


# --- on a terminal


def test_a_terminal_gets_colours_and_frames(tiny_course):
    import pty

    code = (
        "import sys; from pathlib import Path; from course.terminal import Out;"
        "Out().box('0.1 Add', [('got', '4 [bold]not markup[/bold]')], style='red')"
    )
    shown, typed = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-c", code],
        stdout=typed,
        env=os.environ | {"TERM": "xterm-256color", "COLUMNS": "90"},
        cwd=ROOT,
    )
    os.close(typed)
    said = os.read(shown, 65536).decode()
    os.close(shown)
    assert done.returncode == 0
    assert "╭─" in said and "\x1b[" in said
    assert "[bold]not markup[/bold]" in said
