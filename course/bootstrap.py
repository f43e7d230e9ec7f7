"""Makes .venv and installs the project into it: `make setup` runs this.

Runs under the system's Python, so it uses the standard library alone. What to install
stands in pyproject.toml; decided here is only where torch comes from. PyPI's torch for
Linux brings CUDA, gigabytes of it; PyTorch's own CPU index is the better source for a
machine without an NVIDIA GPU, when it can be reached. TORCH_INDEX overrides the index;
empty means that pip's own index alone is asked.

uv installs the rest in a tenth of pip's time. Not torch: uv does not read pip.conf,
where a machine may name a CPU build, and its --torch-backend tries an index that it
cannot reach for long. Without uv, or where uv fails, pip does it all.
"""

import ast
import os
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# Isolated: what PYTHONPATH or the working directory has is not installed.
RUN = (str(PYTHON), "-I")
# As in pyproject.toml, which an older Python cannot read.
OLDEST, NEWEST = (3, 11), (3, 13)
PROBE_SECONDS = 3
ELSEWHERE = ("prefix", "root", "target", "user")  # where pip would install instead
UV_NAMES = {  # pip's setting -> uv's variable
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "cert": "SSL_CERT_FILE",
}


def main() -> None:
    if not OLDEST <= sys.version_info[:2] <= NEWEST:
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"Python 3.{OLDEST[1]} to 3.{NEWEST[1]} is needed, this is {version} "
            f"({sys.executable}).\nIf you have another: make PYTHON=python3.12 lab"
        )
    made_for = VENV / "ready"
    if VENV.exists() and made_for.exists() and made_for.read_text() != str(ROOT):
        say(f".venv was made for {made_for.read_text()}: making it anew")
        shutil.rmtree(VENV)
    made_for.unlink(missing_ok=True)  # until the end, this set-up is not a finished one
    if not works():
        make_venv()
    refuse_another_place()
    install_torch()
    install_the_rest()
    check_imports()
    made_for.write_text(str(ROOT))
    say("ready")


def works() -> bool:
    """Whether .venv has a Python that runs and has pip."""
    probe = [*RUN, "-c", "import pip"]
    return PYTHON.exists() and subprocess.run(probe, check=False).returncode == 0


def make_venv() -> None:
    say(f"making .venv with Python {sys.version.split()[0]}")
    command = [sys.executable, "-m", "venv", "--clear", str(VENV)]
    if subprocess.run(command, check=False).returncode != 0:
        sys.exit(
            "Python's venv module does not work here. On Debian and Ubuntu it is a "
            "package of its own: sudo apt install python3-venv\n"
            "Without root: use conda with environment.yml, see README.md."
        )


def refuse_another_place() -> None:
    """End here if pip is set to install anywhere but into .venv."""
    for name, value in pip_settings().items():
        if name in ELSEWHERE and value.lower() not in ("", "0", "false", "no", "off"):
            sys.exit(
                f"pip would not install into .venv: {where_set(name)} says "
                f"{name} = {value}\nTake that out and try again: make setup"
            )


def pip_settings() -> "dict[str, str]":
    """What pip install is set to by its files and by the environment."""
    found = {}
    lines = ask("-m", "pip", "config", "list").splitlines()
    for section in ("global", "install", ":env:"):  # each overrides those before
        for line in lines:
            key, _, value = line.partition("=")
            if key.startswith(f"{section}."):
                found[key.rpartition(".")[2]] = ast.literal_eval(value)
    return found


def where_set(name: str) -> str:
    """The file that has this setting of pip's, or the variable."""
    if os.environ.get(variable := f"PIP_{name.upper()}"):
        return f"the variable {variable}"
    files = []
    for line in ask("-m", "pip", "config", "debug").splitlines():
        path, found, _ = line.strip().partition(", exists: True")
        if found:
            files.append(path)
        elif line.strip().startswith((f"global.{name}: ", f"install.{name}: ")):
            return files[-1]
    return "pip.conf"


def install_torch() -> None:
    index = os.environ.get("TORCH_INDEX", "")
    if index and sys.platform == "linux" and not shutil.which("nvidia-smi"):
        if answers(f"{index.rstrip('/')}/torch/"):
            say(f"installing torch for the CPU from {index}")
            if pip("install", torch_requirement(), "--index-url", index, check=False):
                return
        else:
            say(f"{index} does not answer within {PROBE_SECONDS} s")
    say("installing torch from pip's own index")
    pip("install", torch_requirement())


def install_the_rest() -> None:
    """The course and what it needs, around the torch that is there."""
    version = ask("-c", "import importlib.metadata as m; print(m.version('torch'))")
    wanted = ("--editable", f"{ROOT}[all]", f"torch=={version.strip()}")
    say("installing the course and what it needs")
    if not pip("install", "uv", check=False):
        say("uv cannot be installed; pip takes some minutes")
    elif uv("install", *wanted):
        return
    else:
        say("uv failed; pip tries it, and takes some minutes")
    pip("install", *wanted)


def check_imports() -> None:
    """End here unless .venv has what was installed."""
    names = "torch, jupyterlab, pytest, paged_attention"
    names += ", triton" if sys.platform == "linux" else ""
    if subprocess.run([*RUN, "-c", f"import {names}"], check=False).returncode != 0:
        sys.exit(
            "What was installed cannot be imported; the error is above.\n"
            f"To start anew: rm -r {VENV} && make setup"
        )


def torch_requirement() -> str:
    """The line for torch in pyproject.toml, where all versions stand."""
    import tomllib  # new in 3.11: imported only after the version was checked

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return next(d for d in project["dependencies"] if d.startswith("torch"))


def answers(url: str) -> bool:
    """Whether a web page can be fetched within PROBE_SECONDS."""
    answered, done = threading.Event(), threading.Event()

    def fetch() -> None:
        try:
            with urllib.request.urlopen(url, timeout=PROBE_SECONDS):
                answered.set()
        except (OSError, ValueError):
            pass  # no answer is the answer
        finally:
            done.set()

    # A thread, because looking up a name knows no time limit.
    threading.Thread(target=fetch, daemon=True).start()
    done.wait(PROBE_SECONDS)
    return answered.is_set()


def pip(*arguments: str, check: bool = True) -> bool:
    """Run pip inside .venv; whether it succeeded. With check, a failure ends it all."""
    command = [*RUN, "-m", "pip", *arguments, "--disable-pip-version-check"]
    code = subprocess.run(command, check=False).returncode
    if check and code != 0:
        sys.exit("pip failed, its message is above. To try again: make setup")
    return code == 0


def uv(*arguments: str) -> bool:
    """Run `uv pip` on .venv, asking the indexes that pip asks; whether it succeeded."""
    # pip takes the best of all indexes, and so shall uv
    environment = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    for name, value in pip_settings().items():
        if name in UV_NAMES:
            environment[UV_NAMES[name]] = " ".join(value.split())
    command = [*RUN, "-m", "uv", "pip", *arguments, "--python", str(PYTHON)]
    done = subprocess.run(command, env={**environment, **os.environ}, check=False)
    return done.returncode == 0


def ask(*arguments: str) -> str:
    """What .venv's Python prints for these arguments."""
    command = [*RUN, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    return done.stdout


def say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)


if __name__ == "__main__":
    main()
