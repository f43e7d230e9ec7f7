"""Runs in the worker: strides and storages, which do not cross the seam."""

from collections.abc import Callable
from typing import Any

from torch import Tensor


def convert_and_look(
    convert: Callable[[Tensor, str, str], Tensor],
    tensor: Tensor,
    source: str,
    target: str,
    half: int | None = None,
) -> dict[str, Any]:
    """Call convert and tell what only live tensors show.

    With half, what is converted is the view tensor[:, half], as a pool that keeps the K
    and the V of a block together gives it.
    """
    given = tensor if half is None else tensor[:, half]
    result = convert(given, source, target)
    before = given.clone()
    seen: dict[str, Any] = {
        "values": result.clone(),
        "strides": list(result.stride()),
    }
    result.zero_()
    seen["changed"] = int((given != before).sum())
    return seen


def places(buffer: Any, num_layers: int) -> list[dict[str, Any]]:
    """Where the K and V of each layer lie; addresses relative to the first one's."""
    views = [
        (layer, name, getattr(buffer, name)(layer))
        for layer in range(num_layers)
        for name in ("key_cache", "value_cache")
    ]
    first = views[0][2].data_ptr()
    storage = views[0][2].untyped_storage().data_ptr()
    return [
        {
            "layer": layer,
            "name": name,
            "start": (view.data_ptr() - first) // view.element_size(),
            "strides": list(view.stride()),
            "same_storage": view.untyped_storage().data_ptr() == storage,
            "storage_bytes": view.untyped_storage().nbytes(),
        }
        for layer, name, view in views
    ]


def put_number(
    buffer: Any, name: str, layer: int, index: tuple[int, ...], number: float
) -> None:
    """Write one number through the tensor that key_cache or value_cache returns."""
    getattr(buffer, name)(layer)[index] = number
