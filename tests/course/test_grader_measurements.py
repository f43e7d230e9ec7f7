"""Measuring helpers run in the learner's process; patching them adds no point.

Each trick is put in front of a wrong answer that only a measurement can tell from a
right one: exercise 04 without a lock, and with a search through the whole pool. The
task must be lost all the same. A deliberate forgery is not among them: see the
docstring of course/grader/worker.py.
"""

import tomllib
from pathlib import Path

import pytest
from tiny_exercise import answer, write_course

from course.grader import ExerciseResult, GraderError, grade, grade_variants
from course.grader.instruments import READ_AHEAD, ROOT, Instruments
from course.manifest import load

pytestmark = pytest.mark.proof

# Takes away what stands between the learner's code and the course's modules.
WITHOUT_GUARD = """
import sys
sys.meta_path = [x for x in sys.meta_path if type(x).__name__ != "ImportGuard"]
"""

PATCHED_HELPERS = """
import course.grader.helpers.ex04 as h
h.races = lambda *a: []
h.most_opcodes = h.least_microseconds = h.sweep_microseconds = lambda *a: {}
"""

TRICKS = {
    "none": "",
    "patches the helpers": WITHOUT_GUARD + PATCHED_HELPERS,
    "plants helpers": """
import sys, types
for name in ("course", "course.grader", "course.grader.helpers", "course.interleave",
             "course.grader.helpers.ex04"):
    sys.modules[name] = fake = types.ModuleType(name)
    fake.__path__ = []
    fake.every_interleaving = fake.races = lambda *a: iter(())
    fake.count_opcodes = lambda action: action() and 0
    fake.most_opcodes = fake.least_microseconds = lambda *a: {}
    fake.sweep_microseconds = fake.most_opcodes
""",
    "patches the interleaver": WITHOUT_GUARD
    + """
import course.interleave as i
i.every_interleaving = lambda *a: iter(())
i.count_opcodes = lambda action: action() and 0
i._OpcodeCounter._on_opcode = None
""",
    "patches sys.settrace": "import sys\nsys.settrace = lambda function: None\n",
    "patches the clock": """
import time
time.perf_counter = time.monotonic = lambda: 0.0
""",
    "patches locks and threads": """
import contextlib, threading
threading.Lock = threading.RLock = contextlib.nullcontext
threading.Thread = type("Thread", (), {"__init__": lambda *a, **k: None})
""",
    "patches tools": """
import itertools
itertools.chain = lambda first, rest: iter(first)
""",
    "patches built-ins": """
import builtins
builtins.enumerate = lambda things: iter(())
builtins.max = builtins.round = lambda *a: 1
""",
}

# What a method may do while it is measured, in front of its first line.
IN_ALLOCATE = {
    "switches the tracing off": "import sys; sys.settrace(None)",
    "hides behind many steps": "for _ in range(300): pass",
}
ALLOCATE = "def allocate(self) -> int:\n"

WRONG = {  # a wrong answer -> words of the claim that it fails
    "no_lock": "act like one after the other",
    "searches_in_a_loop": "as many steps in a large pool",
    "looks_for_a_free_one_with_in": "as much work in a large pool",
}

CASES = [
    *(("no_lock", name) for name in TRICKS if name != "patches the clock"),
    ("searches_in_a_loop", "none"),
    ("searches_in_a_loop", "patches the interleaver"),
    ("searches_in_a_loop", "patches sys.settrace"),
    ("searches_in_a_loop", "patches built-ins"),
    ("looks_for_a_free_one_with_in", "none"),
    ("looks_for_a_free_one_with_in", "patches the helpers"),
    ("looks_for_a_free_one_with_in", "patches the clock"),
]
CUT_SHORT = [
    ("no_lock", "switches the tracing off"),
    ("no_lock", "hides behind many steps"),
    ("searches_in_a_loop", "switches the tracing off"),
]


def wrong_answer(name: str) -> tuple[str, str]:
    """The task that it loses, and its source."""
    chapter = load().chapter("04")
    answers = tomllib.loads(chapter.wrong_answers_path.read_text())["wrong"]
    (wrong,) = (answer for answer in answers if answer["name"] == name)
    source = chapter.solution_path.read_text()
    return wrong["task"], source.replace(wrong["find"], wrong["replace"])


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ExerciseResult]:
    folder = tmp_path_factory.mktemp("measured")
    sources, only = {}, {}
    for wrong, name in [*CASES, *CUT_SHORT]:
        key = f"{wrong}, {name}"
        only[key], source = wrong_answer(wrong)
        line = f"{ALLOCATE}        {IN_ALLOCATE.get(name, 'pass')}\n"
        sources[key] = TRICKS.get(name, "") + source.replace(ALLOCATE, line, 1)
    only["refused"], source = wrong_answer("no_lock")
    sources["refused"] = PATCHED_HELPERS + source
    variants = {}
    for number, (name, source) in enumerate(sources.items()):
        variants[name] = folder / f"{number}.py"
        variants[name].write_text(source)
    return grade_variants("04", variants, only=only)


@pytest.mark.parametrize(("wrong", "name"), CASES)
def test_what_is_patched_does_not_reach_a_measurement(
    results: dict[str, ExerciseResult], wrong: str, name: str
) -> None:
    result = results[f"{wrong}, {name}"]
    (task,) = (task for task in result.tasks if task.id == wrong_answer(wrong)[0])
    assert result.problem is None
    assert task.status == "failed" and task.points == 0
    assert task.failure is not None
    assert WRONG[wrong] in task.failure.claim, task.failure


@pytest.mark.parametrize(("wrong", "name"), CUT_SHORT)
def test_a_measurement_that_is_cut_short_is_none(
    results: dict[str, ExerciseResult], wrong: str, name: str
) -> None:
    tasks = results[f"{wrong}, {name}"].tasks
    (task,) = (task for task in tasks if task.id == wrong_answer(wrong)[0])
    assert task.status == "failed" and task.points == 0


RACE = """
from course.grader import in_worker

@task("4.1")
def test_two_calls_at_once(exercise):
    race = ["allocate"], ["allocate"]
    in_worker(exercise, "course.grader.helpers.ex04:races", exercise.Pool, 2, [], *race)
"""
BLINDED = """
import gc
for kind in gc.get_objects():
    if type(kind) is type and kind.__name__ == "_OpcodeCounter":
        kind.run = lambda self, action, skip: action()
"""


def test_a_python_that_shows_no_opcodes_is_the_graders_failure(tmp_path: Path) -> None:
    course = write_course(tmp_path)
    with (course / "tests/exercises/test_ex04_pool.py").open("a") as file:
        file.write(RACE)
    (course / "ex04_pool.py").write_text(answer(allocate=BLINDED))
    with pytest.raises(GraderError, match=r"Python 3\.\d+\.\d+ shows no opcodes"):
        grade(["4"], course, root=course)


def test_the_courses_modules_are_refused(results: dict[str, ExerciseResult]) -> None:
    problem = results["refused"].problem
    assert problem is not None
    assert "course is refused: it is the grader's own" in problem


def test_all_helpers_are_read_before_learner_code_runs() -> None:
    instruments = Instruments()
    instruments.read_ahead()
    helpers = {path.stem for path in (ROOT / "course/grader/helpers").glob("ex*.py")}
    read = {name.rpartition(".")[2] for name in instruments._code}
    assert read == helpers | {"errors", "interleave", "kernels"}
    assert all((ROOT / "course").glob(pattern) for pattern in READ_AHEAD)


def test_a_helper_is_no_module_that_can_be_found() -> None:
    race = Instruments().function("course.grader.helpers.ex04:races")
    assert Path(race.__code__.co_filename).name == "ex04.py"
    import course.grader.helpers.ex04 as found

    assert race is not found.races and race.__globals__ is not vars(found)
