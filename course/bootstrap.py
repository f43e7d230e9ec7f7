"""Makes .venv and installs the project into it: `make setup` runs this.

Runs under the system's Python, so it uses the standard library alone. What to install
stands in pyproject.toml; decided here is only where torch comes from. PyPI's torch for
Linux brings CUDA, gigabytes of it; PyTorch's own CPU index is the better source for a
machine without an NVIDIA GPU, when it can be reached. TORCH_INDEX overrides the index;
empty means that pip's own index alone is asked.
"""

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
PROBE_SECONDS = 3


def main() -> None:
    if sys.version_info < (3, 11):  # noqa: UP036 (an older Python runs this file too)
        version = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"Python 3.11 or newer is needed, this is {version} ({sys.executable}).\n"
            "If you have another: make PYTHON=python3.12 lab"
        )
    made_for = VENV / "ready"
    if VENV.exists() and made_for.exists() and made_for.read_text() != str(ROOT):
        say(f".venv was made for {made_for.read_text()}: making it anew")
        shutil.rmtree(VENV)
    made_for.unlink(missing_ok=True)  # until the end, this set-up is not a finished one
    if not works():
        make_venv()
    install_torch()
    say("installing the course and what it needs")
    pip("install", "--editable", f"{ROOT}[all]")
    made_for.write_text(str(ROOT))
    say("ready")


def works() -> bool:
    """Whether .venv has a Python that runs and has pip."""
    probe = [str(PYTHON), "-c", "import pip"]
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
    command = [str(PYTHON), "-m", "pip", *arguments, "--disable-pip-version-check"]
    code = subprocess.run(command, check=False).returncode
    if check and code != 0:
        sys.exit("pip failed, its message stands above. To try again: make setup")
    return code == 0


def say(text: str) -> None:
    print(f"[set-up] {text}", flush=True)


if __name__ == "__main__":
    main()
