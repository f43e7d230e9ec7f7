"""What `course doctor` looks at, and what a look may find.

What might crash, or depends on the environment of a fresh process, is tried in one.
"""

import json
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

OK, NOT_HERE, BROKEN = "ok", "not here", "broken"
PROBE_SECONDS = 60


@dataclass(frozen=True)
class Finding:
    """One line of the examination."""

    status: str  # OK, NOT_HERE or BROKEN
    what: str
    text: str
    remedy: str = ""  # a command


@dataclass(frozen=True)
class Patient:
    """The machine, as the probes look at it; tests give them another one."""

    root: Path
    environ: Mapping[str, str]

    def python(self, *arguments: str, **environ: str) -> tuple[Any, str]:
        """Run Python; the JSON of its last line, or None and its last words."""
        try:
            done = subprocess.run(
                [sys.executable, *arguments],
                env={**self.environ, **environ},
                cwd=self.root,
                capture_output=True,
                text=True,
                timeout=PROBE_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer within {PROBE_SECONDS} s"
        if done.returncode < 0:
            return None, f"killed by signal {-done.returncode}"
        if done.returncode > 0:
            return None, (done.stderr.strip().splitlines() or ["no message"])[-1]
        return json.loads(done.stdout.splitlines()[-1]), ""

    @property
    def again(self) -> str:
        """The command that installs everything once more."""
        if Path(sys.prefix) == self.root / ".venv":
            return "rm -f .venv/ready; make setup"
        return "pip install -e '.[all]'"

    @property
    def project(self) -> dict[str, Any]:
        text = (self.root / "pyproject.toml").read_text(encoding="utf-8")
        return tomllib.loads(text)["project"]
