"""`course lab`: JupyterLab at the repository's root, a chapter opened in it."""

import errno
import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from collections.abc import Mapping
from pathlib import Path

from course.manifest import Chapter
from course.terminal import Out

START_SECONDS = 60
STOP_SECONDS = 10
PORTS_TRIED = 50
NUM_PORTS = 1 << 16
TRUE = ("1", "true", "yes", "on")


def serve(chapter: Chapter, out: Out, host: str, first_port: int, browser: bool) -> int:
    """Run JupyterLab until it is told to end; 0 unless it failed.

    Where one of this folder runs already, only say the chapter's address in it.
    """
    if not chapter.notebook.exists():
        out.line(f"chapter {chapter.id}, {chapter.title}, is not here yet")
        return 1
    page = f"/lab/tree/chapters/{chapter.notebook.name}"
    no_browser = "" if browser else "--no-browser was given"
    no_browser = no_browser or why_no_browser(os.environ)
    if address := address_in_running_server(chapter.root, page):
        out.line("JupyterLab is running already. The chapter's address there:", "bold")
        out.stream.write(f"\n    {address}\n\n")
        if not no_browser:
            webbrowser.open(address)
        return 0
    try:
        port = free_port(host, first_port)
    except OSError as error:
        out.line(str(error), "red")
        return 1
    if port != first_port:
        out.line(f"port {first_port} is taken; using {port}", "yellow")
    return _run(chapter, out, (host, port), page, no_browser)


def _run(
    chapter: Chapter, out: Out, at: tuple[str, int], page: str, no_browser: str
) -> int:
    """Start the server at a host and port; wait for its end, or end it on Ctrl-C."""
    host, port = at
    token = os.environ.get("JUPYTER_TOKEN") or secrets.token_hex(24)
    out.line("starting JupyterLab …", "dim")
    out.stream.flush()
    server = subprocess.Popen(
        server_command(chapter.root, host, port, page, browser=not no_browser),
        env=server_environment(token),
        cwd=chapter.root,
        stdin=subprocess.DEVNULL,
        process_group=0,  # Ctrl-C reaches us alone, and we end it in order
        preexec_fn=_end_with_parent,
    )
    try:
        address = f"http://{_reached_at(host)}:{port}{page}?token={token}"
        if _answers(server, host, port):
            _announce(out, "JupyterLab is running. Its address:", address, no_browser)
        elif server.poll() is None:
            words = (
                f"JupyterLab has not answered for {START_SECONDS} s; wait, then try:"
            )
            _announce(out, words, address, no_browser)
        return _result(server.wait(), out)
    except KeyboardInterrupt:
        _stop(server)
        out.line("\nJupyterLab has ended.")
        return 0
    finally:
        _stop(server)


def _end_with_parent() -> None:
    """In the server's process: end in order even if `course lab` is killed (Linux)."""
    from course.grader.isolation import die_with_parent

    die_with_parent(signal.SIGTERM)


def address_in_running_server(root: Path, page: str) -> str | None:
    """Where a server of this folder that runs already shows the page."""
    from jupyter_server.serverapp import list_running_servers

    for server in list_running_servers():
        host, port = server.get("hostname", ""), server.get("port")
        # A process may live on that does not serve any more, or have another's number.
        if Path(server.get("root_dir", "")) == root and _is_up(host, port):
            query = f"?token={server['token']}" if server.get("token") else ""
            return f"http://{_reached_at(host)}:{port}{page}{query}"
    return None


def server_command(
    root: Path, host: str, port: int, page: str, *, browser: bool
) -> list[str]:
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        f"--ServerApp.root_dir={root}",
        f"--ServerApp.ip={host}",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        f"--ServerApp.open_browser={browser}",
        f"--LabApp.default_url={page}",
        f"--ExtensionApp.open_browser={browser}",
        # No question about news on the first start, and no look-ups elsewhere.
        f"--LabApp.app_settings_dir={root / 'course' / 'lab_settings'}",
        # Not a login shell, which would put its own PATH in the place of ours.
        f"--ServerApp.terminado_settings=shell_command={[_shell()]}",
        # The kernel would warn, on this terminal, of talking to us in the clear.
        "--KernelManager.transport_encryption=auto",
        "--Application.log_level=ERROR",
    ]
    return [*command, "--allow-root"] if _is_root() else command


def server_environment(token: str) -> dict[str, str]:
    """`course` and this Python come first on PATH, in terminals and in `!` cells."""
    bin_dir = Path(sys.executable).parent
    return dict(os.environ) | {
        "PATH": f"{bin_dir}{os.pathsep}{os.environ.get('PATH', '')}",
        "VIRTUAL_ENV": sys.prefix,
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not the user's
        # Not on the command line, where every user of the machine could read it.
        "JUPYTER_TOKEN": token,
    }


def _shell() -> str:
    return os.environ.get("SHELL") or shutil.which("bash") or "/bin/sh"


def free_port(host: str, first: int) -> int:
    """The first port from here on that can be listened on."""
    last = min(first + PORTS_TRIED, NUM_PORTS) - 1
    for port in range(first, last + 1):
        try:
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind((host, port))
                return port
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise OSError(f"cannot listen on {host}: {error.strerror}") from None
    raise OSError(f"{host} has no free port from {first} to {last}")


def why_no_browser(environ: Mapping[str, str]) -> str:
    """Why a browser should not be opened here; empty if it should."""
    if environ.get("NO_BROWSER", "").lower() in TRUE:
        return "NO_BROWSER is set"
    if environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"):
        return (
            "this is an SSH session; from your own machine: ssh -L PORT:127.0.0.1:PORT"
        )
    if any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv")):
        return "this is a container; a published port needs --host 0.0.0.0"
    if _is_root() and sys.platform == "linux":
        return "browsers refuse to run as root"
    if sys.platform == "linux" and not (
        environ.get("DISPLAY") or environ.get("WAYLAND_DISPLAY")
    ):
        return "there is no display"
    return ""


def _reached_at(host: str) -> str:
    """The address of a server that listens on host, seen from this machine."""
    return "127.0.0.1" if host in ("", "0.0.0.0") else host


def _is_root() -> bool:
    return os.geteuid() == 0


def _answers(server: subprocess.Popen[bytes], host: str, port: int) -> bool:
    """Wait until the server answers; False if it ended or took too long."""
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        if _is_up(host, port):
            return True
        time.sleep(0.1)
    return False


def _is_up(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(_reached_at(host), port, timeout=2)
    try:
        connection.request("GET", "/api")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _announce(out: Out, words: str, address: str, no_browser: str) -> None:
    out.line()
    out.line(words, "bold")
    # never wrapped: half an address is none
    out.stream.write(f"\n    {address}\n\n")
    if no_browser:
        out.line(f"No browser is opened: {no_browser}.", "dim")
    out.line("Ctrl-C ends it.", "dim")
    out.stream.flush()


def _result(code: int, out: Out) -> int:
    if code != 0:
        out.line(f"JupyterLab ended with code {code}; course doctor may know why.")
    return 1 if code else 0


def _stop(server: subprocess.Popen[bytes]) -> None:
    if server.poll() is None:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
