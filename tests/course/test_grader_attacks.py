"""Nothing that an answer does in its process adds a point, and each is told by name.

One session grades all attacks, as variants of one exercise. Each is an otherwise right
answer with hostile or broken code in one place; it must lose the tasks concerned, with
a message that says what happened, and keep the others.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from asked import asked
from tiny_exercise import Session, answer, grade_answers

from course.grader import ExerciseResult
from course.grader.isolation import NAMESPACES, READ_ONLY
from course.grader.warm import WarmProcess
from course.manifest import ROOT

PLANTED = ROOT / "tests" / "planted_by_an_attack.txt"
ALL = ("4.1", "4.2", "4.3", "4.4")

# Returned values that would satisfy any test that trusts ==, len or iteration.
EQUALS_ALL = """
class Anything({base}):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __lt__(self, other): return True
    def __hash__(self): return 0
    def __len__(self): return 3
    def __iter__(self): return iter([0, 1, 2])
"""


@dataclass(frozen=True)
class Attack:
    """An answer, what it loses, and words that the messages of those tasks contain."""

    source: str
    says: str
    loses: tuple[str, ...] = ALL


def in_allocate(code: str, says: str, top: str = "") -> Attack:
    return Attack(answer(top=top, allocate=code), says, ("4.1",))


def in_list(code: str, says: str, top: str = "") -> Attack:
    return Attack(answer(top=top, ids=code), says, ("4.3",))


def at_import(code: str, says: str) -> Attack:
    return Attack(answer(top=code), says)


HANGS = {
    "loop in Python": in_allocate("while True: pass", "did not come back within 1 sec"),
    "loop in C": in_allocate(
        "import collections, itertools\n"
        "collections.deque(itertools.repeat(0), maxlen=0)",
        "pool.allocate() did not come back within 1 seconds",
    ),
    "sleep": in_allocate("import time; time.sleep(60)", "slept for 1 sec"),
    "stops itself": in_allocate(
        "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)", "did not come back"
    ),
    "loop at import": at_import("while True: pass", "loading the file did not come ba"),
    "callback bomb": Attack(
        answer(check="import time\nwhile True: pool_class(1); time.sleep(0.001)"),
        "did not come back",
        ("4.4",),
    ),
}

DEATHS = {
    "segfault": in_allocate(
        "import ctypes; ctypes.string_at(0)",
        "pool.allocate() crashed: Segmentation fault (SIGSEGV)",
    ),
    "abort": in_allocate("import os; os.abort()", "crashed: Aborted (SIGABRT)"),
    "os._exit in a call": in_allocate("import os; os._exit(0)", "with exit code 0"),
    "os._exit at import": at_import("import os; os._exit(0)", "exit code 0, as os._ex"),
    "os._exit, child left": in_allocate(
        "import os, time\n"
        "if os.fork() == 0:\n    os.setsid(); time.sleep(60)\n"
        "os._exit(0)",
        "exit code 0",
    ),
    "segfault at import": at_import("import ctypes; ctypes.string_at(0)", "SIGSEGV"),
    "memory": in_allocate(
        "hoard = []\nwhile True: hoard.append(bytearray(1 << 20))",
        "MemoryError: out of memory, an exercise may use 128 MiB: does a loop never",
    ),
    "atexit": in_allocate(
        "import atexit, os\n"
        "atexit.register(print, 'all tests passed')\n"
        "atexit.register(os._exit, 0)\n"
        "raise SystemExit(0)",
        "called sys.exit(0) instead of returning",
    ),
    "closes everything": in_allocate("import os; os.closerange(3, 99)", " closed "),
}

LEAVING = {
    "sys.exit": in_allocate("import sys; sys.exit()", "called sys.exit() "),
    "sys.exit at import": at_import("raise SystemExit(0)", "called sys.exit(0)"),
    "pytest.skip": in_allocate(
        "pytest.skip('no')", "called pytest.skip('no') instead", "import pytest"
    ),
    "pytest.exit": in_allocate(
        "pytest.exit('ok', returncode=0)", "called pytest.exit('ok')", "import pytest"
    ),
    "module skip": at_import(
        "import pytest; pytest.skip('no', allow_module_level=True)", "pytest.skip('no')"
    ),
    "KeyboardInterrupt": in_allocate("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "GeneratorExit": in_allocate(
        "raise GeneratorExit('x')", "raised GeneratorExit('x')"
    ),
    "interrupt at import": at_import("raise KeyboardInterrupt", "KeyboardInterrupt"),
}

FILES = {
    "empty": Attack("", "ex04_pool.py does not define "),
    "syntax error": Attack("def f(:\n", "SyntaxError: invalid syntax"),
    "not text": Attack("\0", "null bytes"),
    "missing name": Attack(
        answer().replace("def free_ids", "def ids_free"),
        "does not define free_ids",
        ("4.3",),
    ),
    "missing method": Attack(
        answer().replace("def free(", "def release("), "no attribute 'free'", ("4.2",)
    ),
    "raises at import": at_import("raise RuntimeError('marker 93')", "marker 93"),
    "recursion": in_allocate("return self.allocate()", "RecursionError"),
}

IMPORTS = {
    "from solutions": at_import(
        "from solutions.ex04_pool import *", "solutions is refused: an exercise is gra"
    ),
    "import tests": at_import("import tests.exercises", "tests is refused"),
    "the package's own": at_import(
        "from paged_attention.allocator import BlockAllocator",
        "paged_attention.allocator is refused: it is the package's own answer",
    ),
    "lazy attribute": in_allocate(
        "import paged_attention; return paged_attention.BlockAllocator(3).allocate()",
        "paged_attention.allocator is refused",
    ),
    "importlib": in_allocate(
        "import importlib; importlib.import_module('paged_attention.allocator')",
        "paged_attention.allocator is refused",
    ),
    "a hunt's right answer": at_import(
        "from course.grader.helpers.hidden_allocators import Right",
        "course is refused: it is the grader's own",
    ),
    "the grader's judge": at_import(
        "import course.grader.claims as claims\nclaims.same = lambda *a: True",
        "course is refused: it is the grader's own",
    ),
}

DISGUISES = {
    "equals everything": in_allocate(
        "return Anything()", "object of type Anything", EQUALS_ALL.format(base="object")
    ),
    "int subclass": in_allocate(
        "return Anything()", "a subclass of int", EQUALS_ALL.format(base="int")
    ),
    "list subclass": in_list(
        "return Anything([7])", "a subclass of list", EQUALS_ALL.format(base="list")
    ),
    "list of disguises": in_list(
        "return [Anything()] * 3", "a subclass of int", EQUALS_ALL.format(base="int")
    ),
    "set of objects": in_list(
        "return {pool}", "a set with objects in it; a list could"
    ),
    "dict of objects": in_list("return {(0, pool): 1}", "a dict with objects as keys"),
    "set of objects, passed on": Attack(
        answer(check="pool_class({pool_class(2)})"),
        "Hidden cannot be used here: a set with objects in it",
        ("4.4",),
    ),
    "True for 1": in_allocate("return True", "True (bool)"),
    "float for int": in_list("return [0.0, 1.0, 2.0]", "a value of type list[int]"),
    "tuple for list": in_list("return (0, 1, 2)", "(0, 1, 2) (tuple)"),
    "generator": in_list("return (i for i in range(3))", "a generator; wrap it in"),
    "a pool for an int": in_allocate("return self", "(Pool)"),
    "patched builtins": Attack(
        answer(
            top="""
            import builtins
            builtins.len = lambda x: 3
            builtins.sorted = lambda *a, **k: [0, 1, 2]
            builtins.all = builtins.any = builtins.isinstance = lambda *a: True
            """
        ),
        "loading the file broke the process that runs it",
    ),
    "patched sorted": in_allocate(
        "return 0",
        "[0, 1, 2]",
        "import builtins\nbuiltins.sorted = lambda x: [0, 1]",
    ),
    "patched type": Attack(
        answer(
            top=EQUALS_ALL.format(base="int")
            + "import builtins\nbuiltins.type = lambda x: int",
            allocate="return Anything()",
        ),
        "broke the process that runs it",
    ),
    "patched json": in_allocate(
        "return 0",
        "[0, 1, 2]",
        "import json\n"
        "json.dumps = json.JSONEncoder.encode = lambda *a: '{\"value\":1}'",
    ),
}

FLOODS = {
    "deep nesting": in_list(
        "x = []\nfor _ in range(10_000): x = [x]\nreturn x", "nested more than 32 deep"
    ),
    "a ring": in_list("x = []\nx.append(x)\nreturn x", "nested more than 32 deep"),
    "huge int": in_allocate("return 10 ** 100_000", "an int of more than 8192 bits"),
    "huge list": in_list("return [7] * 600_000", "more than 1 MiB"),
    "huge set": in_list(
        "return set(range(60_000))", "a set of more than 2,000 entries"
    ),
    "huge error": in_allocate("raise ValueError('x' * 10**7)", "ValueError: xxxx"),
    "stdout": in_allocate(
        "while True: print('x' * 10_000)", "printed or wrote more tha"
    ),
    "escape codes": in_allocate(r"raise ValueError('\x1b[2J')", r"ValueError: \x1b[2J"),
}

JUNK = {
    "writes to every descriptor": in_allocate(
        "import os\n"
        "for fd in range(3, 64):\n"
        "    try: os.write(fd, b'here')\n"
        "    except OSError: pass\n"
        "return self._free.pop()",
        "wrote to the grader's own connection",
    ),
    "drips": in_allocate(
        "import os, time\nwhile True:\n"
        "    for fd in range(3, 64):\n"
        "        try: os.write(fd, b'\\0')\n"
        "        except OSError: pass\n"
        "    time.sleep(0.2)",
        "did not come back: it has slept for 1 seconds",
    ),
}

# Reaching past the socket. TESTS and GRADER stand for a path and a process id.
OUTSIDE = {
    "kills its parent": in_allocate(
        "import os, time; os.kill(os.getppid(), 9); time.sleep(0.1); return 7",
        "[0, 1, 2]",
    ),
    "signals the grader": in_allocate("import os; os.kill(GRADER, 0)", "No such proce"),
    "opens other memory": in_allocate(
        """
        import os
        opened = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                if pid != os.readlink("/proc/self"):
                    open(f"/proc/{pid}/mem", "r+b").close()
                    opened.append(pid)
            except OSError:
                pass
        raise RuntimeError(f"opened {len(opened)}")
        """,
        "RuntimeError: opened 0",
    ),
    "writes files": in_allocate(
        """
        import os
        def truncate(): os.truncate(TESTS, 0)
        def append(): open(TESTS, "a").close()
        def remove(): os.unlink(TESTS)
        def rename(): os.rename(TESTS, TESTS + ".old")
        def create(): open(TESTS + ".new", "x").close()
        def plant(): open(PLANTED, "x").close()
        def permit(): os.chmod(TESTS, 0o777)
        def touch(): os.utime(TESTS)
        done = []
        for deed in (append, create, plant, permit, touch, rename, truncate, remove):
            try:
                deed()
                done.append(deed.__name__)
            except OSError:
                pass
        raise RuntimeError(f"done {done}")
        """,
        "RuntimeError: done []",
    ),
    "calls the network": in_allocate(
        "import socket; socket.create_connection(('127.0.0.1', PORT), 1)",
        "Network is unreachable",
    ),
    "leaves a segment": in_allocate(  # of System V: it outlives its processes
        "import ctypes; ctypes.CDLL(None).shmget(0x417, 4096, 0o1600); return 7",
        "[0, 1, 2]",
    ),
}

# What keeps them in. Containers often forbid it; then there is nothing to verify here,
# and test_grader_walls holds that the verdict stands without.
HELD_BACK_BY = {
    "kills its parent": {NAMESPACES},
    "signals the grader": {NAMESPACES},
    "opens other memory": {NAMESPACES},
    "writes files": {READ_ONLY},
    "calls the network": {NAMESPACES},
    "leaves a segment": {NAMESPACES},
}

HARMLESS = {
    "thread without end": Attack(
        answer(
            top="""
            import threading
            def spin():
                while True: pass
            threading.Thread(target=spin).start()
            """
        ),
        "",
        (),
    ),
    "ruins its folders": Attack(
        answer(
            allocate="""
            import os, shutil
            here = os.path.dirname(__file__)
            shutil.rmtree(here, ignore_errors=True)
            os.chmod(os.path.dirname(here), 0)
            """
        ),
        "",
        (),
    ),
}

GROUPS = (
    HANGS,
    DEATHS,
    LEAVING,
    FILES,
    IMPORTS,
    DISGUISES,
    FLOODS,
    JUNK,
    HARMLESS,
)
ATTACKS = {name: attack for group in GROUPS for name, attack in group.items()}
IN_SHORT = {
    *("loop in Python", "segfault", "os._exit in a call", "memory", "sys.exit"),
    *("pytest.skip", "syntax error", "raises at import", "from solutions"),
    *("equals everything", "True for 1", "patched builtins", "stdout"),
    "writes to every descriptor",
}  # `make proof` tries the others


def run(root: Path, attacks: Mapping[str, Attack], port: int = 0) -> Session:
    """Grade attacks as variants of one exercise."""
    words = {"TESTS": repr(str(root / "tests" / "exercises" / "test_ex04_pool.py"))}
    words |= {"PLANTED": repr(str(PLANTED)), "GRADER": str(os.getpid())}
    words["PORT"] = str(port)
    answers = {}
    for name, attack in attacks.items():
        answers[name] = attack.source
        for word, value in words.items():
            answers[name] = answers[name].replace(word, value)
    return grade_answers(root, answers)


@pytest.fixture(scope="module")
def session(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Session:
    attacks = {name: ATTACKS[name] for name in asked(request, "name")}
    return run(tmp_path_factory.mktemp("an attack"), attacks)


@pytest.fixture(scope="module")
def walls() -> set[str]:
    """Those of the layers that this machine allows."""
    process = WarmProcess(())
    try:
        words = " ".join(process.walls).lower()
    finally:
        process.close()
    return {layer for layer in (NAMESPACES, READ_ONLY) if layer in words}


@pytest.fixture(scope="module")
def outside(tmp_path_factory: pytest.TempPathFactory, walls: set[str]) -> Session:
    held = {name: OUTSIDE[name] for name in OUTSIDE if HELD_BACK_BY[name] <= walls}
    listener = socket.create_server(("127.0.0.1", 0))
    try:
        return run(tmp_path_factory.mktemp("outside"), held, listener.getsockname()[1])
    finally:
        listener.close()
        PLANTED.unlink(missing_ok=True)


def check_losses(result: ExerciseResult, attack: Attack) -> None:
    """The tasks concerned are lost with the right words; the others are kept."""
    for task in result.tasks:
        if task.id not in attack.loses:
            assert task.status == "passed", task
            continue
        assert task.status == "failed" and task.points == 0, task
        assert task.failure is not None
        said = f"{task.failure.message} {task.failure.got} {task.failure.expected}"
        assert attack.says in said, said


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in IN_SHORT else pytest.mark.proof)
        for name in ATTACKS
    ],
)
def test_an_attack_costs_its_tasks_and_is_told_by_name(
    session: Session, name: str
) -> None:
    check_losses(session.results[name], ATTACKS[name])


@pytest.mark.proof
def test_no_process_and_no_file_is_left(session: Session, outside: Session) -> None:
    assert session.left_over == outside.left_over == []


@pytest.mark.proof
def test_the_memory_of_the_grader_stays_bounded(session: Session) -> None:
    assert session.grown < 150 << 20


@pytest.mark.proof
@pytest.mark.parametrize("name", OUTSIDE)
def test_a_worker_cannot_reach_past_its_walls(
    outside: Session, walls: set[str], name: str
) -> None:
    if missing := HELD_BACK_BY[name] - walls:
        pytest.skip(f"not verified: no {' or '.join(sorted(missing))} on this machine")
    check_losses(outside.results[name], OUTSIDE[name])
