"""What the machine lacks is the grader's failure: no verdict, nothing recorded."""

import errno
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_exercise import answer, write_course

from course import files
from course.grader import GraderError, grade, leftovers, warm, zygote
from course.grader.channel import Channel
from course.grader.instruments import Instruments


def lacking(number: int) -> Any:
    """In place of a function of the system: it refuses."""

    def refuse(*_: object, **__: object) -> Any:
        raise OSError(number, os.strerror(number))

    return refuse


@pytest.mark.parametrize(
    ("owner", "name", "number"),
    [
        (warm.tempfile, "mkdtemp", errno.ENOSPC),
        (warm.Path, "write_bytes", errno.EFBIG),
        (warm.socket, "socketpair", errno.EMFILE),
        (warm.subprocess, "Popen", errno.EAGAIN),
        (files.Path, "read_bytes", errno.EMFILE),
    ],
)
def test_what_the_grader_cannot_have_is_its_own_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, number: int
) -> None:
    write_course(tmp_path)
    monkeypatch.setattr(owner, name, lacking(number))
    with pytest.raises(GraderError, match=os.strerror(number)):
        grade(["4"], tmp_path / "solutions", root=tmp_path)


def test_a_worker_that_cannot_be_forked_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ours, theirs = socket.socketpair()
    ours.sendall(json.dumps({"do": "fork"}).encode())
    ours.shutdown(socket.SHUT_WR)
    monkeypatch.setattr(zygote.os, "fork", lacking(errno.EAGAIN))
    zygote._serve(theirs, False, Instruments())
    assert os.strerror(errno.EAGAIN) in json.loads(ours.recv(1000))["error"]


def test_a_worker_that_cannot_be_set_up_says_so(tmp_path: Path) -> None:
    process = warm.WarmProcess(())
    try:
        order = {"module": "ex", "refuses": [], "refused_to": {}, "classes": []}
        order |= {"cpu": None, "folder": "/nowhere"}
        worker = process.fork({"ex": (tmp_path / "ex.py", b"")}, order)
        ask = Channel(worker.wire).exchange
        reply, _ = ask({"do": "load"}, [], 5, lambda *_: ({}, []))
        assert "No such file or directory: '/nowhere'" in reply["machine"]
        process.reap(worker)
    finally:
        process.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOENT])
def test_a_full_disk_is_not_the_learners_and_a_missing_file_is(
    tmp_path: Path, number: int
) -> None:
    write_course(tmp_path)
    file = tmp_path / "4.py"
    file.write_text(answer(allocate=f"raise OSError({number}, 'what is lacking')"))
    if number == errno.ENOSPC:
        with pytest.raises(GraderError, match=r"OSError: .*what is lacking"):
            grade(["4"], file, root=tmp_path)
    else:
        assert not grade(["4"], file, root=tmp_path).ok


def test_with_tiny_files_nothing_is_recorded(checkout: Path) -> None:
    """As with `ulimit -f 1`, of kilobytes: the copy of the answer does not fit.

    Nor would bytecode, which Python cuts short, and fails to read when it comes again.
    """
    command = f'exec "{sys.executable}" -m course grade 0 --target solutions'
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    run = subprocess.run(
        ["bash", "-c", f"ulimit -f 1; {command}"],
        cwd=checkout,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 3, run.stdout
    assert "File too large" in run.stderr and "Traceback" not in run.stderr


def test_a_disk_in_memory_is_used_only_if_it_has_room(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert warm._base(str(tmp_path)) == str(tmp_path)
    assert warm._base("/nowhere") is None
    monkeypatch.setattr(warm, "ROOM", 1 << 80)
    assert warm._base(str(tmp_path)) is None


def test_folders_of_graders_that_were_killed_are_removed(tmp_path: Path) -> None:
    living, claim = leftovers.claim_folder("grading-", str(tmp_path))
    killed, ended = leftovers.claim_folder("grading-", str(tmp_path))
    (killed / "deep").mkdir()
    (killed / "deep" / "file").write_text("left")
    os.close(ended)  # which the kernel does when a process ends
    leftovers.remove_unclaimed("grading-", str(tmp_path))
    assert list(tmp_path.iterdir()) == [living]
    os.close(claim)
