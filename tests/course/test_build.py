"""`course build`: the same bytes each time, nothing hidden, nothing overwritten."""

import json
import subprocess
import sys

import pytest

from course import notebooks
from course.build import build
from course.build_check import check
from course.manifest import ROOT, load


@pytest.fixture
def chapters(tiny_course):
    return load(tiny_course).chapters


BUILT: dict[str, bytes] = {}  # by the first test that needs it; a build takes seconds
SAID: list[str] = []


@pytest.fixture
def built(chapters, tiny_course):
    """The tiny course, built; what was said on the way."""
    if not BUILT:
        assert build(chapters, SAID.append) == 0, SAID
        for chapter in chapters:
            BUILT[f"chapters/{chapter.notebook.name}"] = chapter.notebook.read_bytes()
        BUILT["exercises/ex00_hello.py"] = chapters[0].exercise_path.read_bytes()
    for name, content in BUILT.items():
        (tiny_course / name).write_bytes(content)
    return SAID


def cells(chapter):
    return json.loads(chapter.notebook.read_text(encoding="utf-8"))["cells"]


def source(cell):
    return "".join(cell["source"])


def test_two_builds_give_the_same_bytes(chapters, built):
    first = chapters[0].notebook.read_bytes()
    chapters[0].notebook.unlink()
    build(chapters[:1], print)  # in another folder, too
    assert chapters[0].notebook.read_bytes() == first


def test_a_built_notebook_holds_definitions_outputs_and_no_timing(chapters, built):
    text, hello, code, raises, measure = cells(chapters[0])
    assert source(text) == "# Hello"
    assert source(hello).startswith("# paged_attention/pool.py\nfrom dataclasses")
    stream, result = code["outputs"]
    assert "".join(stream["text"]) == "[0, 1]\n"
    assert result["data"]["text/plain"] == ["Pool(size=3, free={0, 1, 2})"]
    assert raises["outputs"][0]["ename"] == "OutOfBlocksError"
    assert measure["outputs"] == [] and measure["execution_count"] is None
    notebook = json.loads(chapters[0].notebook.read_text(encoding="utf-8"))
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    assert notebook["metadata"]["language_info"] == {"name": "python"}
    assert all(set(cell["metadata"]) <= {"tags"} for cell in notebook["cells"])
    assert len({cell["id"] for cell in notebook["cells"]}) == 5


def test_building_says_what_was_written(built):
    assert built[0] == "exercises/ex00_hello.py: written"
    assert built[1].startswith("chapters/00_hello.ipynb: written, ")
    assert built[2].startswith("chapters/01_goodbye.ipynb: written, ")


def test_a_half_solved_exercise_is_left_alone_and_named(chapters, tiny_course):
    build(chapters, print, stubs_only=True)
    path = chapters[0].exercise_path
    half = path.read_text().replace("raise NotImplementedError", "return 0  #")
    path.write_text(half)
    said: list[str] = []
    assert build(chapters, said.append, stubs_only=True) == 0
    assert path.read_text() == half
    assert said == [
        "exercises/ex00_hello.py: left alone: it has been edited"
        " (course reset 0 starts it afresh)"
    ]
    assert check(chapters).problems == [  # a learner's edits are no problem
        "chapters/00_hello.ipynb is missing; run: course build 0",
        "chapters/01_goodbye.ipynb is missing; run: course build 1",
    ]


def write_source(chapter, *code):
    chapter.source.write_text("\n".join(f"```python{cell}\n```\n" for cell in code))


def failure_of(chapter):
    said: list[str] = []
    assert build([chapter], said.append) == 1
    return said[-1]


def test_a_cell_that_raises_fails_the_build_by_name(chapters):
    chapters[1].notebook.write_text("as it was")
    write_source(chapters[1], "\nx = 1", "\n\n1 / 0  # why\n")
    words = "cell 2 (1 / 0  # why): ZeroDivisionError: division by zero"
    assert failure_of(chapters[1]) == f"chapters/01_goodbye.ipynb: FAILED: {words}"
    assert chapters[1].notebook.read_text() == "as it was"


@pytest.mark.proof
def test_a_cell_that_kills_the_kernel_fails_the_build_by_name(chapters):
    write_source(chapters[1], "\nimport os; os._exit(1)")
    assert "cell 1 (import os; os._exit(1)): the kernel died" in failure_of(chapters[1])


@pytest.mark.proof
def test_ctrl_c_while_a_cell_runs_ends_the_build_in_order(chapters, tiny_course):
    code = "import os, signal, time\nos.kill(os.getppid(), signal.SIGINT)"
    chapters[1].source.write_text(f"```python\n{code}\ntime.sleep(60)\n```\n")
    command = "import sys; from pathlib import Path; from course.cli import main; "
    command += "sys.exit(main(['build', '1'], Path(sys.argv[1])))"
    done = subprocess.run(
        [sys.executable, "-c", command, str(tiny_course)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
    )
    assert (done.returncode, done.stdout + done.stderr) == (130, "\ninterrupted\n")
    assert not chapters[1].notebook.exists()


@pytest.mark.proof
def test_what_cannot_be_stable_fails_the_build(chapters):
    write_source(
        chapters[1],
        "\nclass A: pass\nA()",
        "\nimport os; print(os.path.dirname(os.getcwd()))",
        "\nimport warnings; warnings.warn('old')",
        ' tags=["raises-exception"]\npass',
    )
    words = failure_of(chapters[1])
    assert "cell 1 (class A: pass): its output shows a memory address: 0x" in words
    assert "its output shows a path of this machine: /" in words
    assert "cell 3 (import warnings; warnings.warn('old')): writes to stderr" in words
    assert "cell 4 (pass): tagged raises-exception, but nothing was raised" in words
    assert not chapters[1].notebook.exists()


@pytest.mark.proof
def test_a_traceback_shows_paths_from_the_root(chapters, tiny_course):
    code = "import paged_attention.pool as pool; pool.Pool(1).take(7)"
    write_source(chapters[1], f' tags=["raises-exception"]\n{code}')
    assert build(chapters[1:], print) == 0
    traceback = "\n".join(cells(chapters[1])[0]["outputs"][0]["traceback"])
    assert "paged_attention/pool.py" in traceback
    assert str(tiny_course) not in traceback


def test_a_chapter_without_source_fails_the_build(chapters):
    chapters[1].source.unlink()
    assert "chapters/src/01_goodbye.md is missing" in failure_of(chapters[1])


@pytest.mark.proof
def test_triton_is_not_interpreted_unless_the_chapter_says_so(chapters, monkeypatch):
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    write_source(chapters[1], "\nimport os\nprint(os.environ.get('TRITON_INTERPRET'))")
    build(chapters[1:], print)
    assert "".join(cells(chapters[1])[0]["outputs"][0]["text"]) == "None\n"


def problems(chapters):
    return check(chapters).problems


def test_check_finds_nothing_in_what_was_just_built(chapters, built):
    assert problems(chapters) == []


def test_check_finds_a_notebook_older_than_its_source(chapters, built):
    text = chapters[1].source.read_text()
    chapters[1].source.write_text(text.replace('("bye', '("good night'))
    word = "chapters/01_goodbye.ipynb: cell 2 differs from its source; "
    assert problems(chapters) == [word + "run: course build 1"]
    chapters[1].source.write_text(text + "\n```python\n1\n```\n")
    word = "chapters/01_goodbye.ipynb: 2 cells, its source has 3; "
    assert problems(chapters) == [word + "run: course build 1"]


def test_check_finds_a_notebook_older_than_the_package(chapters, built, tiny_course):
    module = tiny_course / "paged_attention" / "pool.py"
    module.write_text(module.read_text().replace("Holds numbers", "Holds ids"))
    word = "chapters/00_hello.ipynb: cell 2 differs from its source; "
    assert problems(chapters) == [word + "run: course build 0"]


def test_check_finds_a_notebook_without_outputs(chapters, built):
    notebook = json.loads(chapters[1].notebook.read_text())
    for cell in notebook["cells"]:
        cell.update(outputs=[]) if "outputs" in cell else None
    chapters[1].notebook.write_text(json.dumps(notebook))
    word = "chapters/01_goodbye.ipynb has no outputs; run: course build 1"
    assert problems(chapters) == [word]


@pytest.mark.parametrize("text", ["{", "[]", '{"cells": 3}', ""])
def test_check_finds_a_notebook_that_is_none(chapters, built, text):
    chapters[1].notebook.write_text(text)
    (problem,) = check(chapters).problems
    assert problem.startswith("chapters/01_goodbye.ipynb cannot be read as a notebook")
    assert problem.endswith("run: course build 1")


def test_a_build_that_stops_while_writing_leaves_the_old_notebook(
    chapters, built, monkeypatch
):
    before = chapters[1].notebook.read_bytes()
    unwritable = "a first line\n\ud800"
    monkeypatch.setattr(notebooks, "build_notebook", lambda *_: unwritable)
    with pytest.raises(UnicodeEncodeError):
        build(chapters[1:])
    assert chapters[1].notebook.read_bytes() == before
    folder = chapters[1].notebook.parent
    assert not [file for file in folder.iterdir() if file.name.startswith(".")]


def test_check_finds_an_old_stub_and_a_missing_one(chapters, built):
    solution = chapters[0].solution_path
    solution.write_text(solution.read_text().replace("int.", "int, quickly."))
    word = "exercises/ex00_hello.py is an old stub; run: course build --stubs 0"
    assert problems(chapters) == [word]
    chapters[0].exercise_path.unlink()
    word = "exercises/ex00_hello.py is missing; run: course build --stubs 0"
    assert problems(chapters) == [word]


def test_check_finds_a_name_that_the_package_owns(chapters, built):
    solution = chapters[0].solution_path
    solution.write_text(solution.read_text() + "\n\nclass Pool:\n    pass\n")
    write_source(chapters[1], "\n%time 1\ndef count(x):\n    !ls\n    return 1")
    found = problems(chapters)
    assert (
        "chapters/src/01_goodbye.md: cell 1, line 2: defines count,"
        " which paged_attention.pool owns"
    ) in found
    assert any(
        problem.startswith("solutions/ex00_hello.py, line ")
        and problem.endswith(": defines Pool, which paged_attention.pool owns")
        for problem in found
    )


def test_check_finds_an_include_that_does_not_resolve(chapters, built):
    write_source(chapters[1], "\n# @include paged_attention.pool.Gone")
    word = "chapters/src/01_goodbye.md: paged_attention.pool defines no Gone"
    assert problems(chapters) == [word]


def test_check_finds_a_task_that_the_manifest_does_not_have(chapters, built):
    solution = chapters[0].solution_path
    solution.write_text(solution.read_text().replace("SOLUTION 0.1", "SOLUTION 0.7"))
    word = "solutions/ex00_hello.py: the manifest has no task 0.7 in this chapter"
    assert word in problems(chapters)


def test_check_notes_an_include_too_long_for_a_cell(chapters, built, tiny_course):
    module = tiny_course / "paged_attention" / "pool.py"
    long = "\n\ndef long() -> None:\n" + "    pass\n" * 70
    module.write_text(module.read_text() + long)
    write_source(chapters[1], "\n# @include paged_attention.pool.long")
    (note,) = check(chapters).notes
    assert "cell 1: long takes 72 lines, more than 60" in note


def test_another_kernel_than_python3_is_refused(chapters):
    text = chapters[1].source.read_text()
    kernel = "    display_name: X\n    language: python\n    name: conda-env-x\n"
    header = f"---\njupyter:\n  kernelspec:\n{kernel}---\n\n"
    chapters[1].source.write_text(header + text)
    assert "kernelspec must be python3, got 'conda-env-x'" in failure_of(chapters[1])
