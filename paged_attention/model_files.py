"""The files of a model: where they lie, and how they become a model and a tokenizer.

transformers is imported when a model is loaded, for it takes seconds.
"""

import os
from pathlib import Path
from typing import Any

import torch


class ModelMissingError(FileNotFoundError):
    """The model's files are not on this machine; the message says how to get them."""


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
    checkpoint's own on CUDA.
    """
    path = model_path(name)
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
        model: Any = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=is_local
        )
    except OSError as error:
        if is_local:
            raise
        raise ModelMissingError(
            f"{name!r} is no folder here, and the hub did not give it: {error}"
        ) from error
    return model.to(device), _load_tokenizer(AutoTokenizer, path, is_local)


def _load_tokenizer(auto_class: Any, path: str, is_local: bool) -> Any:
    """None where there is none: prompts must be token ids then."""
    try:
        tokenizer = auto_class.from_pretrained(path, local_files_only=is_local)
    except (OSError, ValueError):
        return None
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
