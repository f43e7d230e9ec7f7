"""`course lab`: serves anywhere, opens a browser only where one can open."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

from course import lab
from course.cli import main

START = "import sys; from course.cli import main; from pathlib import Path; "
START += "sys.exit(main(sys.argv[2:], Path(sys.argv[1])))"


@pytest.fixture
def display(monkeypatch):
    """A machine on which a browser may open, whatever this one is."""
    monkeypatch.setattr(lab, "_is_root", lambda: False)
    monkeypatch.setattr(Path, "exists", lambda self: False)  # no mark of a container
    return {"DISPLAY": ":0"}


def test_a_browser_opens_where_there_is_a_display(display):
    assert lab.why_no_browser(display) == ""


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        ({"NO_BROWSER": "1"}, "NO_BROWSER"),
        ({"SSH_CONNECTION": "10.0.0.1 22"}, "SSH"),
    ],
)
def test_a_browser_stays_closed_when_told_so_and_over_ssh(display, variable, words):
    assert words in lab.why_no_browser(display | variable)


def test_a_browser_stays_closed_as_root_and_in_a_container(display, monkeypatch):
    monkeypatch.setattr(Path, "exists", lambda self: str(self) == "/.dockerenv")
    assert "container" in lab.why_no_browser(display)
    monkeypatch.setattr(Path, "exists", lambda self: False)
    monkeypatch.setattr(lab, "_is_root", lambda: True)
    assert "root" in lab.why_no_browser(display)


@pytest.mark.skipif(sys.platform != "linux", reason="displays are named on Linux alone")
def test_a_browser_stays_closed_without_a_display(display):
    assert "display" in lab.why_no_browser({})


def test_root_is_allowed_only_when_it_is_root(monkeypatch):
    for is_root in (True, False):
        monkeypatch.setattr(lab, "_is_root", lambda value=is_root: value)
        command = lab.server_command(Path("/c"), "127.0.0.1", 1, "/lab", browser=False)
        assert ("--allow-root" in command) == is_root


def test_the_token_is_not_on_the_command_line():
    command = lab.server_command(Path("/c"), "127.0.0.1", 1, "/lab", browser=False)
    assert not any("token" in word for word in command)
    assert lab.server_environment("secret")["JUPYTER_TOKEN"] == "secret"


def test_this_environment_comes_first_on_the_path():
    first = lab.server_environment("secret")["PATH"].split(os.pathsep)[0]
    assert Path(first) == Path(sys.executable).parent


def test_a_taken_port_is_passed_over():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert lab.free_port("127.0.0.1", port) > port


@pytest.mark.parametrize("port", ["0", "65536", "-1", "http"])
def test_what_is_no_port_is_wrong_usage(port, capsys):
    with pytest.raises(SystemExit) as ended:
        main(["lab", "--port", port])
    assert ended.value.code == 2 and "argument --port: " in capsys.readouterr().err


def test_the_last_port_is_the_end_of_the_search():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 65535))
        taken.listen()
        with pytest.raises(OSError, match="no free port from 65535 to 65535"):
            lab.free_port("127.0.0.1", 65535)


def test_a_host_that_is_not_here_is_said(tiny_course, capsys):
    (tiny_course / "chapters" / "01_goodbye.ipynb").write_text("{}")
    assert main(["lab", "1", "--host", "192.0.2.1"], tiny_course) == 1
    assert "cannot listen on 192.0.2.1: Cannot assign" in capsys.readouterr().out


def test_a_chapter_that_is_not_built_is_not_here_yet(tiny_course, capsys):
    assert main(["lab", "1"], tiny_course) == 1
    said = capsys.readouterr().out
    assert "chapter 01, Goodbye, is not here yet" in said and "build" not in said


@pytest.mark.proof
def test_the_chapter_is_served_until_ctrl_c(tiny_course):
    """The printed address works as it stands, and nothing is left behind.

    SIGHUP is ignored, as with nohup: a terminal that is closed ends nothing.
    """
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        server, said = _start(tiny_course, port)
        try:
            server.send_signal(signal.SIGHUP)
            _check_address(said, port)
            _check_that_a_second_call_shows_the_address_again(tiny_course, said)
        finally:
            server.send_signal(signal.SIGINT)
            rest, _ = server.communicate(timeout=30)
    assert server.returncode == 0 and "has ended" in rest
    assert not _running(str(tiny_course))


@pytest.mark.proof
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child")
def test_the_server_ends_when_the_command_is_killed(tiny_course):
    server, said = _start(tiny_course, 8888)
    server.kill()
    server.communicate(timeout=30)
    assert "http://127.0.0.1:" in said
    assert not _running(str(tiny_course), seconds=10)


def test_a_slow_start_shows_the_address_nevertheless(tiny_course, monkeypatch, capsys):
    (tiny_course / "chapters" / "01_goodbye.ipynb").write_text("{}")
    slow = [sys.executable, "-c", "import time; time.sleep(1)"]
    monkeypatch.setattr(lab, "server_command", lambda *_, **__: slow)
    monkeypatch.setattr(lab, "START_SECONDS", 0.2)
    assert main(["lab", "1", "--no-browser"], tiny_course) == 0
    said = capsys.readouterr().out
    assert "has not answered for 0.2 s" in said and "01_goodbye.ipynb?token=" in said


def _start(root: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """`course lab 1`, and what it said on its way, which takes 90 seconds at most."""
    notebook = root / "chapters" / "01_goodbye.ipynb"
    notebook.write_text('{"cells": [], "metadata": {}, "nbformat": 4}')
    server = subprocess.Popen(
        [sys.executable, "-c", START, str(root), "lab", "1"],
        env=os.environ | {"NO_BROWSER": "1", "PORT": str(port)},
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )
    assert server.stdout is not None
    limit = threading.Timer(90, server.kill)  # which ends its output
    limit.start()
    said = ""
    while "Ctrl-C" not in said and (line := server.stdout.readline()):
        said += line
    limit.cancel()
    return server, said


def _check_address(said: str, taken: int) -> None:
    address = re.search(r"http://127\.0\.0\.1:(\d+)/(\S+)\?token=(\w+)", said)
    assert address is not None, said
    port, page, token = address.groups()
    assert f"port {taken} is taken; using {port}" in said
    assert page == "lab/tree/chapters/01_goodbye.ipynb"
    with urllib.request.urlopen(address[0]) as answer:
        assert answer.status == 200
    contents = f"http://127.0.0.1:{port}/api/contents/chapters?token={token}"
    with urllib.request.urlopen(contents) as answer:
        names = [entry["name"] for entry in json.load(answer)["content"]]
    assert "01_goodbye.ipynb" in names


def _check_that_a_second_call_shows_the_address_again(root: Path, said: str) -> None:
    (root / "chapters" / "00_hello.ipynb").write_text("{}")
    command = [sys.executable, "-c", START, str(root), "lab", "0"]
    done = subprocess.run(
        command,
        env=os.environ | {"NO_BROWSER": "1"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 and "running already" in done.stdout
    address = re.search(r"http\S+", said)
    assert address is not None
    there = address[0].replace("01_goodbye", "00_hello")
    assert there in done.stdout.split()


def _running(word: str, seconds: float = 1) -> bool:
    """Whether a process with this word on its command line outlives these seconds."""
    deadline = time.monotonic() + seconds
    while True:
        commands = [each.info["cmdline"] for each in psutil.process_iter(["cmdline"])]
        found = any(word in part for command in commands for part in command or ())
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.1)
