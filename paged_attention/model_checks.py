"""What a model may need that is not implemented here, told before it goes wrong.

transformers builds no mask for attention that is not its own, so whatever a model says
through the mask alone would be lost: the configuration must tell. The rest is seen in
the calls: one token is run through all layers when a model is taken over.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Protocol


class UnsupportedModelError(ValueError):
    """The model needs something that is not implemented here; the message says what."""


class Call(Protocol):
    """What a layer asked for when one token was tried."""

    layer_idx: int
    window: int | None
    key_shape: tuple[int, ...]


# Keywords of an attention call that change nothing for us: dropout rests while
# evaluating, positions are in the rotated keys already.
_HARMLESS = {"dropout", "position_ids", "use_cache", "output_attentions"}
_HARMLESS |= {"output_hidden_states", "return_dict", "cache_position"}

_REASONS = {
    "softcap": "soft-capped scores (as Gemma 2 has them)",
    "s_aux": "attention sinks (as gpt-oss has them)",
    "sinks": "attention sinks",
    "position_bias": "a bias added to the scores",
}


def check_keywords(keywords: Mapping[str, Any]) -> None:
    """What a layer says beyond what we act on."""
    for name, value in keywords.items():
        if name not in _HARMLESS and value is not None and value is not False:
            what = _REASONS.get(name, f"{name}={value!r}")
            raise UnsupportedModelError(f"its attention uses {what}: not implemented")


def check_config(model: Any, config: Any) -> None:
    """What the configuration tells, before anything runs."""
    name = _name(model)
    if config.is_encoder_decoder or model.config.is_encoder_decoder:
        raise UnsupportedModelError(f"{name} has an encoder: only decoders are served")
    for kind in _rope_kinds(config):
        if kind in ("dynamic", "longrope"):
            raise UnsupportedModelError(
                f"{name} has RoPE of kind {kind!r}, which depends on the longest "
                "position in the batch: a sequence's keys would change with the others"
            )
    known = {"full_attention", "sliding_attention"}
    others = set(getattr(config, "layer_types", None) or ()) - known
    if others or getattr(model, "_is_stateful", False):
        kinds = ", ".join(sorted(others)) or "a state of its own"
        raise UnsupportedModelError(
            f"{name} has layers of kind {kinds}: only full and sliding attention are "
            "implemented"
        )
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UnsupportedModelError(
            f"{name} takes no position_ids: it cannot tell flattened sequences apart"
        )


def _rope_kinds(config: Any) -> set[str]:
    """One kind for the model, or one for each kind of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    # transformers has {"rope_type": …}, and {"full_attention": {"rope_type": …}, …}.
    nested = [value for value in rope.values() if isinstance(value, dict)]
    return {str(r.get("rope_type", "default")) for r in nested or [rope]}


def check_calls(calls: Sequence[Call], model: Any, config: Any) -> None:
    """Whether every layer came through us, and asked for what the config says."""
    name = _name(model)
    layers = [call.layer_idx for call in calls]
    if layers != list(range(config.num_hidden_layers)):
        raise UnsupportedModelError(
            f"{name} has {config.num_hidden_layers} layers, but attention was called "
            f"by layers {layers}"
        )
    shapes = {call.key_shape for call in calls}
    if len(shapes) > 1:
        raise UnsupportedModelError(f"{name} has keys of several shapes: {shapes}")
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    for call in calls:
        # A window that a layer has but does not tell us would be ignored.
        slides = kinds is None or kinds[call.layer_idx] == "sliding_attention"
        expected = window if slides else None
        if call.window != expected:
            raise UnsupportedModelError(
                f"{name}: layer {call.layer_idx} asks for a window of {call.window}, "
                f"its configuration for {expected}"
            )


def _name(model: Any) -> str:
    return type(model).__name__
