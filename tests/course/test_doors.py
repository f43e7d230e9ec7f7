"""`course` as it is started: by which Python, from where, with which streams."""

import os
import signal
import site
import subprocess
import sys
from shlex import quote

import pytest

from course import __main__ as door
from course.grader import GraderError, grading
from course.manifest import ROOT

STRANGER = "raise SystemExit('a module of strangers')\n"


def course(words, cwd, start=("-m", "course"), **environment):
    """What a call prints, and its exit code."""
    done = subprocess.run(
        [sys.executable, *start, *words],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        # what we inherited may be ignored, as under nohup
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("where", ["PYTHONPATH", "beside the course"])
def test_a_random_py_or_an_old_library_of_strangers_changes_no_verdict(
    checkout, tmp_path, where
):
    folder = tmp_path / "strangers" if where == "PYTHONPATH" else checkout
    folder.mkdir(exist_ok=True)
    for name in ("random", "json", "pytest"):
        (folder / f"{name}.py").write_text(STRANGER)
    strangers = {"PYTHONPATH": str(folder)} if where == "PYTHONPATH" else {}
    words = ["grade", "0", "--target", "solutions"]
    code, said = course(words, checkout, **strangers)
    assert code == 0 and "1 of 1 tasks" in said, said


def test_what_we_start_sees_neither_pythonpath_nor_the_users_packages(monkeypatch):
    started = []
    monkeypatch.setattr(site, "ENABLE_USER_SITE", True)
    monkeypatch.setattr(os, "environ", {"PATH": "/bin", "PYTHONPATH": "/old"})
    monkeypatch.setattr(os, "execv", lambda *command: started.append(command))
    monkeypatch.setattr(sys, "argv", ["course", "grade", "4"])
    door._start_again_without_strangers()
    command = [sys.executable, "-P", door.__file__, "grade", "4"]
    assert started == [(sys.executable, command)]
    assert os.environ == {"PATH": "/bin", "PYTHONNOUSERSITE": "1"}


def test_one_checkouts_command_refuses_to_work_in_another(checkout):
    for cwd in (checkout, checkout / "solutions"):
        code, said = course(["grade", "4"], cwd, [str(ROOT / "course/__main__.py")])
        assert code == 2
        assert f"works on {ROOT}, but you are using {checkout}\n" in said
        assert f"cd {quote(str(ROOT))} && .venv/bin/course grade 4\n" in said
        assert f"cd '{checkout}' && make setup && .venv/bin/course grade 4\n" in said
    assert course(["status"], checkout / "course", [str(checkout / "course")])[0] == 0


def test_the_script_in_a_copied_venv_refuses_too(checkout, tmp_path):
    script = checkout / ".venv" / "bin" / "course"
    script.parent.mkdir(parents=True)
    script.write_text(
        f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n"
        "from course.__main__ import main\nsys.exit(main())\n"
    )
    code, said = course(["status"], tmp_path, [str(script)])
    assert code == 2 and f"works on {ROOT}, but you are using {checkout}\n" in said


def test_a_deleted_working_directory_is_said_in_a_line(tmp_path):
    command = 'mkdir gone; cd gone; rmdir ../gone; exec "$0" "$1" status'
    start = [sys.executable, str(ROOT / "course" / "__main__.py")]
    done = subprocess.run(
        ["sh", "-c", command, *start], cwd=tmp_path, capture_output=True, text=True
    )
    told = f"course: the working directory was deleted; type: cd {quote(str(ROOT))}\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", told)


@pytest.mark.parametrize(
    "closed",
    [
        *(
            pytest.param(each, marks=pytest.mark.proof)
            for each in (">&-", "2>&-", "<&-")
        ),
        "<&- >&- 2>&-",
    ],
)
def test_closed_streams_change_neither_verdict_nor_exit_code(checkout, closed):
    json = checkout / "out.json"
    command = f'"{sys.executable}" -m course grade 0 --target solutions --json out.json'
    done = subprocess.run(
        ["sh", "-c", f"{command} {closed}"],
        cwd=checkout,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert done.stderr in ("", "grading ex00_start_here …\n")
    assert '"ok": true' in json.read_text()


def test_a_full_disk_that_cannot_take_the_output_is_said_in_a_line(checkout):
    command = f'"{sys.executable}" -m course status > /dev/full'
    done = subprocess.run(
        ["sh", "-c", command], cwd=checkout, capture_output=True, text=True
    )
    told = "course: No space left on device\n"
    assert (done.returncode, done.stderr) == (2, told)


def test_ctrl_c_while_modules_load_ends_in_silence(checkout):
    file = checkout / "course" / "terminal.py"
    ctrl_c = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"
    file.write_text(ctrl_c + file.read_text())
    assert course(["status"], checkout) == (-signal.SIGINT, "")


def test_grading_without_torch_says_what_is_missing_and_what_brings_it(monkeypatch):
    monkeypatch.setattr(
        grading, "missing_module", lambda names: next(iter(names), None)
    )
    with pytest.raises(GraderError, match=r"torch is not installed; .* make setup"):
        grading.grade(["03"], ROOT / "solutions")
