"""The eight guarantees, on small courses and on the real exercises.

How wrong and hostile answers fare is held by test_grader_attacks and test_answers.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from asked import asked
from tiny_exercise import answer, write_course

from course.grader import GraderError, grade, grade_variants, warm
from course.grader.grading import grade_papers
from course.grader.paper import paper_in
from course.grader.plugin import _names_exercises
from course.grader.report import ExerciseResult
from course.manifest import ROOT, load
from course.progress import Progress
from course.stubs import make_stub

PLANTED = {
    "conftest.py": "def pytest_runtest_logreport(report): report.outcome = 'passed'\n",
    "pytest.ini": "[pytest]\naddopts = --collect-only\n",
    "sitecustomize.py": "",
    "numpy.py": "def floor(x): return 7\n",
    "json.py": "def loads(x): return {'value': 7}\n",
    "pytest.py": "def main(*args, **kwargs): return 0\n",
    "ex04_pool.pyc": "",
}


@pytest.fixture
def course(tmp_path: Path) -> Path:
    return write_course(tmp_path / "Maria Muster's course")


def add_test(course: Path, source: str) -> None:
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    path.write_text(path.read_text() + source, encoding="utf-8")


# 1. The right file is graded.


EXERCISES = [chapter for chapter in load().chapters if chapter.exercise]
IN_SHORT = {"00", "04", "05"}  # `make proof` grades the other stubs


@pytest.fixture(scope="module")
def of_stubs(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, ExerciseResult]:
    """What the exercises score as they are handed out; tests/exercises solves them."""
    manifest = load()
    folder = tmp_path_factory.mktemp("stubs")
    for chapter in EXERCISES:
        solution = chapter.solution_path.read_text(encoding="utf-8")
        stub = make_stub(solution, chapter.solution_path.name)
        (folder / chapter.exercise_path.name).write_text(stub, encoding="utf-8")
    ids = asked(request, "chapter")
    chapters = map(manifest.chapter, ids)
    papers = [paper_in(folder, each, manifest, variant="stub") for each in chapters]
    results, _ = grade_papers(papers)
    return dict(zip(ids, results, strict=True))


@pytest.mark.parametrize(
    "chapter",
    [
        pytest.param(each.id, marks=() if each.id in IN_SHORT else pytest.mark.proof)
        for each in EXERCISES
    ],
)
def test_a_pristine_stub_scores_0_and_is_called_unsolved(
    of_stubs: dict[str, ExerciseResult], chapter: str
) -> None:
    result = of_stubs[chapter]
    assert result.points == 0 and not result.ok
    for task in result.tasks:
        assert task.failure is not None
        assert task.failure.message.startswith("not solved yet: exercise "), task


def test_a_marker_planted_in_the_learners_file_shows_up(course: Path) -> None:
    file = course / "exercises" / "ex04_pool.py"
    file.parent.mkdir()
    file.write_text(answer(allocate="raise KeyError('marker 417')"))
    report = grade(["4"], course / "exercises", root=course)
    failure = report.exercises[0].tasks[0].failure
    assert failure is not None
    assert failure.got == "KeyError: marker 417"
    line = file.read_text().splitlines().index("        raise KeyError('marker 417')")
    assert failure.location == f"{file}:{line + 1}"
    assert failure.message == "pool.allocate() raised it here: " + (
        "raise KeyError('marker 417')"
    )


def test_an_error_below_a_helper_is_told_with_the_learners_own_function(
    course: Path,
) -> None:
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    path.write_text("""
from course.grader import in_worker, task

@task("5.1")
def test_x(exercise):
    helper = "course.grader.helpers.ex05:pad_and_change"
    in_worker(exercise, helper, exercise.twice, [1])
""")
    (course / "ex04_pool.py").write_text(answer())
    file = course / "ex05_twice.py"
    file.write_text("def twice(x):\n    return half(x)\n\ndef half(x): return x / 2\n")
    failure = grade(["5"], file, root=course).exercises[0].tasks[0].failure
    assert failure is not None
    assert failure.message == "half raised it here: def half(x): return x / 2"
    assert failure.location == f"{file}:4"


def test_an_edit_is_seen_by_the_next_grading(course: Path) -> None:
    file = course / "ex05_twice.py"
    file.write_text("def twice(x: int) -> int:\n    return 3 * x\n")
    (course / "ex04_pool.py").write_text(answer())
    assert grade(["5"], course, root=course).points == 0
    file.write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    assert grade(["5"], course, root=course).points == 2


def test_a_file_that_is_not_there_is_said_and_the_others_are_graded(
    course: Path,
) -> None:
    (course / "solutions" / "ex05_twice.py").unlink()
    report = grade(["4", "5"], course / "solutions", root=course)
    there, missing = report.exercises
    assert there.ok
    assert missing.points == 0 and missing.max_points == 2
    assert missing.problem is not None
    assert missing.problem.endswith("ex05_twice.py is not there")


def make_unusable(path: Path, kind: str) -> None:
    """Put something at path that cannot be read as a file."""
    path.unlink(missing_ok=True)
    if kind == "a folder":
        path.mkdir()
    elif kind == "a pipe":
        os.mkfifo(path)
    elif kind == "larger than 1 MiB":
        path.write_bytes(bytes((1 << 20) + 1))
    else:
        path.symlink_to(path.name)


@pytest.mark.parametrize(
    "kind", ["a folder", "a pipe", "larger than 1 MiB", "cannot be read"]
)
def test_what_is_no_file_fails_its_tasks_and_the_others_are_graded(
    course: Path, kind: str
) -> None:
    make_unusable(course / "solutions" / "ex05_twice.py", kind)
    there, unusable = grade(["4", "5"], course / "solutions", root=course).exercises
    assert there.ok and not unusable.ok
    assert unusable.problem is not None
    assert kind in unusable.problem and "ex05_twice.py" in unusable.problem
    assert [task.status for task in unusable.tasks] == ["failed"]


# 4. A test counts only if it was seen to run and hold.


def test_a_file_saved_while_it_is_graded_is_graded_as_it_was(course: Path) -> None:
    exercises = course / "exercises"
    exercises.mkdir()
    (exercises / "ex04_pool.py").write_text(answer())
    file = exercises / "ex05_twice.py"
    file.write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    saves = f"""
from pathlib import Path

@task("5.1")
def test_saves(exercise):
    expect(exercise.twice(1), 2, "2 * 1 = 2")
    Path({str(file)!r}).write_text("def twice(x: int) -> int: return 0")
    Path({str(exercises / "ex04_pool.py")!r}).unlink()

"""
    path.write_text(path.read_text().replace("@task", f"{saves}@task", 1))
    report = grade(["4", "5"], exercises, root=course)
    assert report.ok, report
    progress = Progress(course)
    progress.record(list(load(course).chapters), report)
    chapter = load(course).chapter("5")
    assert progress.standing(chapter).state == "edited since"
    file.write_text("def twice(x: int) -> int:\n    return 2 * x\n")
    assert progress.standing(chapter).state == "graded"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("\n@task('5.1')\ndef test_x(exercise): import pytest; pytest.skip()", "skips"),
        ("\ndef test_x(exercise): exercise.twice(1)", "exactly one @task"),
        ("\n@task('5.1')\ndef test_x(): pass", "uses the fixture `exercise`"),
        ("\n@task('5.1')\ndef test_x(exercise): pass", "never touches the exercise"),
        ("\n@task('9.1')\ndef test_x(exercise): exercise.twice(1)", "no task 9.1"),
        ("\n@task('5.1')\ndef test_x(exercise): exercise.thrice(1)", "touches ex05"),
        ("\n@task('5.1')\ndef test_x(exercise): exercise.twice(object())", "passes an"),
        ("\nimport nowhere_to_be_found", "cannot be collected"),
    ],
)
def test_a_broken_test_is_the_graders_failure_not_the_learners(
    course: Path, source: str, words: str
) -> None:
    add_test(course, source)
    with pytest.raises(GraderError, match=words):
        grade(["5"], course / "solutions", root=course)


def test_a_task_without_a_test_never_passes(course: Path) -> None:
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    path.write_text("from course.grader import task\n")
    with pytest.raises(GraderError, match=r"task 5\.1 has no test"):
        grade(["5"], course / "solutions", root=course)


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells of the processes")
@pytest.mark.parametrize(("times", "passes"), [(1, True), (2, False)])
def test_a_test_is_run_once_more_if_the_warm_process_was_killed_from_outside(
    course: Path, times: int, passes: bool
) -> None:
    add_test(
        course,
        f"""
import os, time
from pathlib import Path
from course.grader.leftovers import children_of

@task("5.1")
def test_killed(exercise):
    runs = Path({str(course / "runs")!r})
    runs.write_text(runs.read_text() + "." if runs.exists() else ".")
    if len(runs.read_text()) <= {times}:
        for pid in children_of("self"):
            if "course.grader.zygote" in Path(f"/proc/{{pid}}/cmdline").read_text():
                os.kill(pid, 9)
        time.sleep(0.3)
    expect(exercise.twice(1), 2, "2 * 1 = 2")
""",
    )
    (task,) = grade(["5"], course / "solutions", root=course).exercises[0].tasks
    assert (task.status == "passed") == passes, task
    assert (course / "runs").read_text() == ".."
    if task.failure is not None:
        assert "twice(1) was killed (SIGKILL)" in task.failure.message


def test_ctrl_c_in_a_call_ends_grading_and_leaves_nothing(
    course: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    add_test(
        course,
        """
import os, signal, threading

@task("5.1")
def test_is_interrupted(exercise):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    exercise.twice(-1)
""",
    )
    file = course / "ex05_twice.py"
    file.write_text(
        "import time\n\ndef twice(x: int) -> int:\n"
        "    return 2 * x if x > 0 else time.sleep(60)\n"
    )
    (course / "ex04_pool.py").write_text(answer())
    base = course / "base"
    base.mkdir()
    monkeypatch.setattr(warm, "BASE", str(base))
    with pytest.raises(KeyboardInterrupt):
        grade(["5"], course, root=course)
    assert list(base.iterdir()) == []
    assert capfd.readouterr() == ("", "")


def test_a_test_that_expects_any_error_does_not_swallow_a_death(course: Path) -> None:
    add_test(
        course,
        """
import pytest

@task("5.1")
def test_errors_are_welcome(exercise):
    with pytest.raises(Exception):
        exercise.twice(-1)
""",
    )
    file = course / "dies.py"
    file.write_text(
        "import os\n\n"
        "def twice(x: int) -> int:\n    return 6 if x > 0 else os._exit(0)\n"
    )
    (course / "ex04_pool.py").write_text(answer())
    report = grade(["5"], file, root=course)
    failure = report.exercises[0].tasks[0].failure
    assert failure is not None
    assert failure.message.startswith("twice(-1) ended its process with exit code 0")


def test_files_beside_the_exercise_change_nothing(
    course: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = course / "planted"
    folder.mkdir()
    trace = course / "trace"
    for name, text in PLANTED.items():
        spy = f"open({str(trace)!r}, 'a').write({name!r})\n"
        (folder / name).write_text(spy + text if name.endswith(".py") else text)
    (folder / "ex04_pool.py").write_text(answer(allocate="return 7"))
    (folder / "ex05_twice.py").write_text(
        "import json, math, numpy\n\n"
        "def twice(x: int) -> int:\n    return int(numpy.floor(2.5 * x) - 1)\n"
    )
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend("")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    report = grade(["4", "5"], Path(), root=course)
    wrong, right = report.exercises
    assert wrong.tasks[0].status == "failed" and right.ok
    assert not trace.exists()


def test_a_module_beside_the_exercise_is_not_taken_and_the_message_says_so(
    course: Path,
) -> None:
    (course / "helpers_of_mine.py").write_text("two = 2\n")
    (course / "ex04_pool.py").write_text(answer(top="from helpers_of_mine import two"))
    report = grade(["4"], course, root=course)
    problem = report.exercises[0].problem
    assert problem is not None
    assert "only ex04_pool.py itself is graded, not the files beside it" in problem


def test_what_learner_code_prints_never_reaches_the_graders_own_output(
    course: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    loud = """
        import os, sys
        for file in (sys.stdout, sys.stderr, sys.__stdout__):
            print("4.1 passed", file=file, flush=True)
        os.write(1, b"all tests passed")
        os.system("echo 4 of 4 points")
        return 7
    """
    (course / "ex04_pool.py").write_text(answer(allocate=loud))
    failure = grade(["4"], course, root=course).exercises[0].tasks[0].failure
    assert capfd.readouterr() == ("", "")
    assert failure is not None
    assert "4.1 passed" in failure.printed and "4 of 4 points" in failure.printed


# 6. Earlier exercises that one needs are the learner's own.


def test_what_an_exercise_needs_is_the_learners_own_file(course: Path) -> None:
    folder = course / "exercises"
    folder.mkdir()
    for name in ("ex04_pool.py", "ex05_twice.py"):
        (folder / name).write_bytes((course / "solutions" / name).read_bytes())
    own = answer().replace("return len(self._free)", "return 5")
    (folder / "ex04_pool.py").write_text(own)
    report = grade(["5"], folder, root=course)
    failure = report.exercises[0].tasks[0].failure
    assert failure is not None and failure.got == "5"
    (folder / "ex04_pool.py").unlink()
    problem = grade(["5"], folder, root=course).exercises[0].problem
    assert problem is not None and "ex04_pool.py is not there" in problem


# 7. What cannot be checked here is not verified.

UNVERIFIED = """
from course.grader import not_verified

@task("5.1")
def test_on_a_gpu(exercise):
    not_verified("needs a GPU")
"""


def test_a_test_that_cannot_run_here_is_counted_as_not_verified(course: Path) -> None:
    add_test(course, UNVERIFIED)
    task = grade(["5"], course / "solutions", root=course).exercises[0].tasks[0]
    assert (task.status, task.num_tests, task.num_not_verified) == ("passed", 2, 1)


def test_a_task_of_which_nothing_could_run_is_not_verified_and_has_no_points(
    course: Path,
) -> None:
    path = course / "tests" / "exercises" / "test_ex05_twice.py"
    path.write_text("from course.grader import task\n" + UNVERIFIED)
    report = grade(["5"], course / "solutions", root=course)
    task = report.exercises[0].tasks[0]
    assert (task.status, task.points, report.ok) == ("not verified", 0, False)


# 8. Wherever it is called from, whatever files are called.


def test_any_working_directory_and_other_peoples_names(
    course: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "José García, 2. Versuch"
    elsewhere.mkdir()
    file = elsewhere / "ex04 – Zoë O'Brien (final).py"
    file.write_text("# Zoë O'Brien 🐢\n" + answer(), encoding="utf-8")
    monkeypatch.chdir(elsewhere)
    report = grade(["4"], Path(file.name), root=course)
    assert report.ok
    assert report.exercises[0].path == str(file)


# What a learner reads.


def test_a_failure_names_history_expected_and_got(course: Path) -> None:
    file = course / "4.py"
    file.write_text(answer(allocate="print('asked'); return len(self._free)"))
    failure = grade(["4"], file, root=course).exercises[0].tasks[0].failure
    assert failure is not None
    assert failure.claim == "a pool of 3 hands out each of its blocks once"
    assert failure.history == ("pool = Pool(3)", *["pool.allocate() -> 3"] * 3)
    assert (failure.expected, failure.got) == ("[0, 1, 2]", "[3, 3, 3]")
    assert failure.printed == "asked\n" * 3


def test_a_report_is_plain_data(course: Path) -> None:
    report = grade(["4", "5"], course / "solutions", root=course)
    data = json.loads(json.dumps(report.to_json()))
    assert (data["points"], data["max_points"], data["ok"]) == (6, 6, True)
    assert data["exercises"][0]["tasks"][0]["id"] == "4.1"


def test_variants_do_not_see_each_other(course: Path) -> None:
    files = {}
    for name, text in {"right": answer(), "wrong": answer(ids="return [7]")}.items():
        files[name] = course / f"{name}.py"
        files[name].write_text(text)
    results = grade_variants("4", files, root=course)
    assert results["right"].ok
    assert [task.status for task in results["wrong"].tasks].count("failed") == 1


# Plain pytest, on the real exercises.


def run_pytest(*arguments: str) -> subprocess.CompletedProcess[str]:
    tests = load().chapter("00").tests_path
    return subprocess.run(
        [sys.executable, "-m", "pytest", str(tests), "-q", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    )


@pytest.mark.proof
def test_plain_pytest_tests_solutions_or_a_target_with_or_without_a_worker(
    tmp_path: Path,
) -> None:
    chapter = load().chapter("00")
    wrong = make_stub(chapter.solution_path.read_text(), chapter.solution_path.name)
    wrong = wrong.replace("NotImplementedError(", "RuntimeError('told by pytest' or ")
    file = tmp_path / chapter.exercise_path.name
    file.write_text(wrong)
    for extra in ((), ("--in-process",)):
        assert run_pytest("--target", "solutions", *extra).returncode == 0
        run = run_pytest("--target", str(tmp_path), *extra)
        assert run.returncode == 1
        assert "told by pytest" in run.stdout
        assert re.search(rf"{file.name}:\d+", "".join(run.stdout.split()))
        next_step = f"  course grade 0.1 --target {tmp_path}\n"
        assert (next_step in run.stdout) == (not extra)


@pytest.mark.parametrize(
    ("arguments", "tested"),
    [
        ((), "exercises/ex00_start_here.py, yours (to test the solutions: --target"),
        (("--target", "solutions"), "solutions/ex00_start_here.py, not yours (to test"),
    ],
)
def test_first_and_last_line_say_whose_file_was_tested(arguments, tested) -> None:
    lines = run_pytest("-v", *arguments).stdout.splitlines()
    assert lines[-1].startswith(f"tested: {tested}")
    folder = tested.partition("/")[0]
    assert any(line.startswith(f"exercises: those of {folder}, ") for line in lines)


def test_who_names_test_files_of_exercises_alone_tests_their_own() -> None:
    four, five = (str(load().chapter(n).tests_path) for n in (4, 5))
    place = SimpleNamespace(dir=ROOT / "tests")

    def tests_their_own(*arguments: str) -> bool:
        config = SimpleNamespace(args=arguments, invocation_params=place)
        return _names_exercises(cast(pytest.Config, config), load())

    assert tests_their_own(four) and tests_their_own(four, f"{five}::test_x[1]")
    assert tests_their_own("exercises/test_ex04_free_list.py::test_x")
    assert not tests_their_own("tests") and not tests_their_own("exercises")
    assert not tests_their_own(four, "test_allocator.py")
