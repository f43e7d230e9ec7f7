"""`make setup`: nothing twice, and torch from where the design says."""

import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from course import bootstrap
from course.manifest import ROOT

INDEX = "https://index.example/cpu"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of what `make` reads, set up a minute ago."""
    folder = tmp_path / "a course"
    (folder / ".venv").mkdir(parents=True)
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    ready = folder / ".venv" / "ready"
    ready.write_text(str(folder.resolve()))
    a_minute_ago = time.time() - 60
    os.utime(folder / "pyproject.toml", (a_minute_ago - 60, a_minute_ago - 60))
    os.utime(ready, (a_minute_ago, a_minute_ago))
    return folder


def sets_up(folder: Path) -> bool:
    """Whether `make test` would run the set-up; nothing is run."""
    planned = subprocess.run(
        ["make", "--dry-run", "test"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "pytest" in planned.stdout
    return "bootstrap.py" in planned.stdout


def test_setup_does_nothing_where_nothing_changed(folder):
    assert not sets_up(folder)


def test_setup_runs_on_first_use_and_after_a_change_of_pyproject(folder):
    os.utime(folder / "pyproject.toml")
    assert sets_up(folder)
    (folder / ".venv" / "ready").unlink()
    assert sets_up(folder)


def test_setup_runs_in_a_folder_that_was_moved(folder):
    assert sets_up(folder.rename(folder.with_name("moved")))


@pytest.fixture
def installed(monkeypatch) -> list[tuple[str, ...]]:
    """What would be installed for torch, on a machine that is Linux without a GPU."""
    calls: list[tuple[str, ...]] = []

    def pip(*arguments: str, check: bool = True) -> bool:
        calls.append(arguments)
        return True

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap.sys, "platform", "linux")
    monkeypatch.setattr(bootstrap.shutil, "which", lambda name: None)
    monkeypatch.setattr(bootstrap, "answers", lambda url: True)
    monkeypatch.setenv("TORCH_INDEX", INDEX)
    return calls


def test_torch_comes_from_the_cpu_index_that_answers(installed):
    bootstrap.install_torch()
    requirement = bootstrap.torch_requirement()
    assert installed == [("install", requirement, "--index-url", INDEX)]
    assert requirement in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("reason", ["empty", "silent", "has a GPU", "not Linux"])
def test_torch_comes_from_pips_own_index_otherwise(installed, monkeypatch, reason):
    if reason == "empty":
        monkeypatch.setenv("TORCH_INDEX", "")
    elif reason == "silent":
        monkeypatch.setattr(bootstrap, "answers", lambda url: False)
    elif reason == "has a GPU":
        monkeypatch.setattr(bootstrap.shutil, "which", lambda name: "/bin/nvidia-smi")
    else:
        monkeypatch.setattr(bootstrap.sys, "platform", "darwin")
    bootstrap.install_torch()
    assert installed == [("install", bootstrap.torch_requirement())]


def test_torch_that_the_index_does_not_have_comes_from_pips_own(installed, monkeypatch):
    def pip(*arguments: str, check: bool = True) -> bool:
        installed.append(arguments)
        return "--index-url" not in arguments

    monkeypatch.setattr(bootstrap, "pip", pip)
    bootstrap.install_torch()
    assert ["--index-url" in call for call in installed] == [True, False]


@pytest.mark.parametrize(
    ("uv_installs", "uv_works", "by_pip"),
    [(True, True, False), (True, False, True), (False, True, True)],
)
def test_uv_installs_the_rest_around_torch_and_pip_where_it_cannot(
    monkeypatch, capsys, uv_installs, uv_works, by_pip
):
    calls = []

    def pip(*arguments, check=True):
        calls.append(arguments)
        return uv_installs

    def uv(*arguments):
        calls.append(arguments)
        return uv_works

    monkeypatch.setattr(bootstrap, "pip", pip)
    monkeypatch.setattr(bootstrap, "uv", uv)
    monkeypatch.setattr(bootstrap, "ask", lambda *arguments: "2.13.0+cpu\n")
    bootstrap.install_the_rest()
    rest = ("install", "--editable", f"{ROOT}[all]", "torch==2.13.0+cpu")
    asked_uv, asked_pip = [rest] * uv_installs, [rest] * by_pip
    assert calls == [("install", "uv"), *asked_uv, *asked_pip]
    assert ("pip" in capsys.readouterr().out) == by_pip


def test_uv_asks_the_indexes_that_pip_asks_and_leaves_other_pythons_alone(monkeypatch):
    started = []

    def run(command, env, check):
        started.append((command, env))
        return subprocess.CompletedProcess(command, 0)

    settings = """global.index-url='https://mirror.example/simple'
global.extra-index-url='https://a.example\\nhttps://b.example'
install.index-url='https://nearer.example/simple'
global.timeout='9'
"""
    monkeypatch.setattr(bootstrap, "ask", lambda *arguments: settings)
    monkeypatch.setattr(bootstrap.subprocess, "run", run)
    monkeypatch.setattr(bootstrap.os, "environ", {"PATH": "/bin"})
    assert bootstrap.uv("install", "x")
    ((command, environment),) = started
    assert command[-2:] == ["--python", str(bootstrap.PYTHON)]
    assert environment == {
        "PATH": "/bin",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "UV_DEFAULT_INDEX": "https://nearer.example/simple",
        "UV_INDEX": "https://a.example https://b.example",
    }


@pytest.mark.parametrize(
    ("section", "setting", "value"),
    [
        ("global", "prefix", "/opt"),
        pytest.param("install", "user", "true", marks=pytest.mark.proof),
        pytest.param("global", "target", "x", marks=pytest.mark.proof),
    ],
)
def test_a_pip_conf_that_installs_elsewhere_is_named(
    monkeypatch, tmp_path, section, setting, value
):
    conf = tmp_path / "pip.conf"
    conf.write_text(f"[{section}]\n{setting} = {value}\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    with pytest.raises(SystemExit) as ended:
        bootstrap.refuse_another_place()
    assert f": {conf} says {setting} = {value}\n" in str(ended.value)


def test_a_variable_of_pips_that_installs_elsewhere_is_named(monkeypatch):
    monkeypatch.setenv("PIP_TARGET", "/opt")
    with pytest.raises(SystemExit, match="the variable PIP_TARGET says target = /opt"):
        bootstrap.refuse_another_place()


def test_a_pip_conf_that_changes_no_place_is_fine(monkeypatch, tmp_path):
    conf = tmp_path / "pip.conf"
    conf.write_text("[global]\nuser = false\nindex-url = https://mirror.example\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(conf))
    bootstrap.refuse_another_place()


def test_the_stamp_waits_until_what_was_installed_can_be_imported(
    monkeypatch, tmp_path, capfd
):
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)
    for step in ("refuse_another_place", "install_torch", "install_the_rest"):
        monkeypatch.setattr(bootstrap, step, lambda: None)
    nothing_there = (sys.executable, "-I", "-S")  # no site-packages
    monkeypatch.setattr(bootstrap, "RUN", nothing_there)
    monkeypatch.setattr(bootstrap, "works", lambda: True)
    with pytest.raises(SystemExit, match="cannot be imported"):
        bootstrap.main()
    assert "No module named 'torch'" in capfd.readouterr().err
    assert not (tmp_path / "ready").exists()
    monkeypatch.setattr(bootstrap, "check_imports", lambda: None)
    bootstrap.main()
    assert (tmp_path / "ready").read_text() == str(ROOT)


def test_an_index_that_never_answers_is_given_up_in_time(monkeypatch):
    monkeypatch.setattr(bootstrap, "PROBE_SECONDS", 0.2)
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        start = time.monotonic()
        assert not bootstrap.answers(f"http://127.0.0.1:{silent.getsockname()[1]}/")
        assert time.monotonic() - start < 2


@pytest.mark.parametrize("minor", [10, 14])
def test_another_python_is_named_with_the_way_out(monkeypatch, tmp_path, minor):
    monkeypatch.setattr(bootstrap, "VENV", tmp_path)  # whatever happens, not ours
    monkeypatch.setattr(bootstrap, "works", lambda: pytest.fail("it went on"))
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, minor, 4, "final", 0))
    words = rf"Python 3\.11 to 3\.13 is needed, this is 3\.{minor}\.4"
    with pytest.raises(SystemExit, match=words):
        bootstrap.main()
