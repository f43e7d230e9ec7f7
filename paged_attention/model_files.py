"""The files of a model: where they lie, and how they become a model and a tokenizer.

transformers is imported when a model is loaded, for it takes seconds.
"""

import os
from pathlib import Path
from typing import Any

import torch


class ModelMissingError(FileNotFoundError):
    """The model's files are not on this machine; the message says how to get them."""


class ModelLoadError(ValueError):
    """The model's files are here, but cannot be loaded; the cause is chained."""


def model_path(name: str) -> str:
    """Where to load a model from: "smollm2", a folder, or a name on the hub."""
    if name != "smollm2":
        return name
    # `course get-model` converts it into the user's cache, once.
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(cache) / "paged_attention" / name
    if not (folder / "config.json").exists():
        raise ModelMissingError(f"{name} is not here yet; run: course get-model")
    return str(folder)


def load(
    name: str, device: str | torch.device | None = None, dtype: Any = None
) -> tuple[Any, Any]:
    """A model and its tokenizer (None if it has none).

    device None: CUDA if there is one, else the CPU. dtype None: float32 on a CPU, the
    checkpoint's own on CUDA. Raises ModelMissingError, or ModelLoadError for whatever
    else is wrong with the files.
    """
    path = model_path(name)
    if os.path.isfile(path):
        raise ModelLoadError(f"a model is a folder with its files, got the file {path}")
    try:
        from transformers import AutoModelForCausalLM, AutoTokenizer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"a real model needs {error.name}; run: pip install -e '.[model]'",
            name=error.name,
        ) from error
    device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if dtype is None:
        dtype = "auto" if device.type == "cuda" else torch.float32
    is_local = os.path.isdir(path)
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            dtype=dtype,
            local_files_only=is_local,
            # Else it raises without saying which: that is told below.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # each format of a file has errors of its own
        if isinstance(error, OSError) and not is_local:
            raise ModelMissingError(
                f"{name!r} is no folder here, and the hub did not give it: {error}"
            ) from error
        raise ModelLoadError(
            f"the model in {path} cannot be loaded: {_in_a_line(error)}"
        ) from error
    model, info = loaded
    if info["mismatched_keys"]:
        weight, found, expected = min(info["mismatched_keys"])
        raise ModelLoadError(
            f"the model in {path} cannot be loaded: {weight} must be {list(expected)} "
            f"by its config.json, got {list(found)}"
        )
    if info["missing_keys"]:  # transformers would draw them at random
        raise ModelLoadError(
            f"the model in {path} cannot be loaded: its files lack "
            f"{len(info['missing_keys'])} weights, such as {min(info['missing_keys'])}"
        )
    return model.to(device), _load_tokenizer(AutoTokenizer, path, is_local)


def _in_a_line(error: Exception) -> str:
    """The first paragraph of what a library has to say."""
    text = " ".join(str(error).split("\n\n")[0].split())
    return f"{type(error).__name__}: {text}"


def _load_tokenizer(auto_class: Any, path: str, is_local: bool) -> Any:
    """None where there is none: prompts must be token ids then."""
    try:
        tokenizer = auto_class.from_pretrained(path, local_files_only=is_local)
    except Exception as error:  # as above
        # Where there is none, transformers raises one of these two; but not only there.
        names = ("tokenizer*", "vocab*", "spiece*")
        files = sorted(file.name for name in names for file in Path(path).glob(name))
        if isinstance(error, (OSError, ValueError)) and not files:
            return None
        raise ModelLoadError(
            f"the tokenizer in {path} ({', '.join(files)}) cannot be loaded: "
            f"{_in_a_line(error)}"
        ) from error
    # Without files transformers makes one up that knows nothing but special tokens.
    is_made_up = len(tokenizer) <= len(tokenizer.all_special_tokens)
    return None if is_made_up else tokenizer


def encode(tokenizer: Any, prompt: str, raw: bool = False) -> list[int]:
    """The token ids of a prompt, inside the chat template if there is one."""
    if raw or not tokenizer.chat_template:
        return tokenizer(prompt).input_ids
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": prompt}],
        add_generation_prompt=True,
        tokenize=False,
    )
    # The template has written the special tokens already.
    return tokenizer(text, add_special_tokens=False).input_ids


def eos_token_ids(model: Any, tokenizer: Any) -> frozenset[int]:
    """The tokens that end a text, from wherever the model's files say it."""
    places = (model.generation_config, model.config.get_text_config(), tokenizer)
    for place in places:
        found = getattr(place, "eos_token_id", None)
        if found is not None:
            return frozenset([found] if isinstance(found, int) else found)
    return frozenset()
