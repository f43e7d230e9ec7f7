"""`course doctor`: what works on this machine, what doesn't, and how to mend it.

A line is "ok", "not here" (something is missing that not everybody has; it says what
doesn't work then), or "broken" (with the command that mends it).
"""

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from course import probes
from course.patient import BROKEN, NOT_HERE, OK, Finding, Patient
from course.terminal import Out

STYLES = {OK: "green", NOT_HERE: "yellow", BROKEN: "bold red"}

PROBES: tuple[Callable[[Patient], list[Finding]], ...] = (
    probes.probe_python,
    probes.probe_path,
    probes.probe_packages,
    probes.probe_torch,
    probes.probe_triton,
    probes.probe_interpreter,
    probes.probe_dot,
    probes.probe_lab,
    probes.probe_model,
    probes.probe_writing,
    probes.probe_walls,
)


def examine(root: Path, out: Out, environ: Mapping[str, str] | None = None) -> bool:
    """Print all findings; True unless something is broken."""
    patient = Patient(root, os.environ if environ is None else environ)
    healthy = True
    with ThreadPoolExecutor(max_workers=2) as pool:
        for findings in pool.map(lambda probe: probe(patient), PROBES):
            for finding in findings:
                healthy &= finding.status != BROKEN
                _show(finding, out)
    out.line()
    if healthy:
        out.line("Nothing is broken.", "green")
    else:
        out.line(f"Type the commands above in {root}.", "bold")
    return healthy


def _show(finding: Finding, out: Out) -> None:
    style = STYLES[finding.status]
    out.row([finding.status, finding.what, finding.text], [8, 10], style)
    if finding.remedy:
        out.row(["", "", f"-> {finding.remedy}"], [8, 10], "cyan")
