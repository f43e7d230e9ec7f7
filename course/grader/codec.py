"""Plain data in, plain data out: what may cross between the grader and the learner.

A frame is JSON plus raw bytes. Reading one builds exact builtins and torch tensors,
never an object of a class that the other side chose: no pickle, no marshal. Therefore a
value that compares equal to everything, or a list that lies about its length, cannot
arrive; it is refused where it starts.

Every reader is bounded: size of the frame, depth, entries of sets and dicts (60,000
colliding ints kept a grader busy for half a minute), digits of an int.
"""

import importlib
import json
import math
import struct
import sys
from collections.abc import Callable, Sequence
from typing import Any

MAX_JSON = 1 << 20  # bytes
MAX_BLOBS = 64 << 20  # bytes, for tensors
MAX_DEPTH = 32
MAX_ENTRIES = 2_000  # of all sets and dicts of one frame together
MAX_INT_BITS = 8_192  # below the 4,300 digits that Python itself reads

HEAD = struct.Struct("<III")  # request number, bytes of JSON, bytes of blobs

# name -> (bytes per element, dtype as NumPy and torch.frombuffer read it)
DTYPES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "int16": 2,
    "int32": 4,
    "int64": 8,
    "float16": 2,
    "bfloat16": 2,
    "float32": 4,
    "float64": 8,
}

_to_json = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_from_json = json.JSONDecoder().decode

# What a side does with the objects that only it knows (handles, hidden classes).
ToWire = Callable[[object], dict[str, Any]]
FromWire = Callable[[str, Any], object]


class UnfitError(Exception):
    """A value that may not cross, or a frame that is not one of ours; says why."""


class UnwantedError(UnfitError):
    """An honest value that this side cannot take; says what it is."""


def encode(value: Any, blobs: list[bytes], special: ToWire, depth: int = 0) -> Any:
    """The JSON form of value; bytes and tensors are appended to blobs, in order."""
    kind = type(value)
    if value is None or kind is bool or kind is str or kind is float:
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise UnfitError(f"an int of more than {MAX_INT_BITS} bits")
        return value
    if depth > MAX_DEPTH:
        raise UnfitError(f"nested more than {MAX_DEPTH} deep")
    if (kind is dict or kind is set) and len(value) > MAX_ENTRIES:
        raise UnfitError(f"a {kind.__name__} of more than {MAX_ENTRIES:,} entries")
    if kind is list or kind is tuple or kind is set:
        items = [encode(item, blobs, special, depth + 1) for item in value]
        return items if kind is list else {kind.__name__: items}
    if kind is dict:
        pairs = [[key, item] for key, item in value.items()]
        return {"dict": encode(pairs, blobs, special, depth)}
    if kind is bytes:
        blobs.append(value)
        return {"bytes": len(value)}
    torch = sys.modules.get("torch")  # whoever made a tensor has imported it
    if torch is not None and kind is torch.Tensor:
        return _encode_tensor(value, blobs)
    return special(value)


def _encode_tensor(tensor: Any, blobs: list[bytes]) -> dict[str, Any]:
    torch = sys.modules["torch"]
    name = str(tensor.dtype).removeprefix("torch.")
    if name not in DTYPES or tensor.layout is not torch.strided:
        raise UnfitError(f"a tensor of {tensor.dtype}, {tensor.layout}")
    if tensor.numel() * DTYPES[name] > MAX_BLOBS:
        raise UnfitError(f"a tensor of shape {list(tensor.shape)}: over 64 MiB")
    # Of one number the stride may be anything, also in what is called contiguous.
    flat = tensor.detach().cpu().contiguous().as_strided((tensor.numel(),), (1,))
    data = flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    blobs.append(data)
    return {"tensor": [name, list(tensor.shape)]}


class Reader:
    """Decodes the values of one frame, within that frame's limits."""

    def __init__(
        self, blobs: memoryview, special: FromWire, *, load_torch: bool = False
    ) -> None:
        self._load_torch = load_torch
        self._blobs = blobs
        self._special = special
        self._entries = 0

    def decode(self, data: Any, depth: int = 0) -> Any:
        kind = type(data)
        if data is None or kind is bool or kind is str or kind is float or kind is int:
            return data
        if depth > MAX_DEPTH:
            raise UnfitError(f"nested more than {MAX_DEPTH} deep")
        if kind is list:
            return [self.decode(item, depth + 1) for item in data]
        if len(data) != 1:
            raise UnfitError("an unknown kind of value")
        ((tag, body),) = data.items()
        if tag == "tuple":
            return tuple([self.decode(item, depth + 1) for item in body])
        if tag == "dict":
            self._count(body)
            pairs = [self.decode(pair, depth) for pair in body]
            return {_key(key, "dict"): value for key, value in pairs}
        if tag == "set":
            self._count(body)
            return {_key(self.decode(item, depth + 1), "set") for item in body}
        if tag == "bytes":
            return bytes(self._take(body))
        if tag == "tensor":
            return self._tensor(*body)
        return self._special(tag, body)

    def _count(self, body: Any) -> None:
        self._entries += len(body)
        if self._entries > MAX_ENTRIES:
            raise UnfitError(f"sets and dicts of more than {MAX_ENTRIES} entries")

    def _take(self, num_bytes: Any) -> memoryview:
        if type(num_bytes) is not int or not 0 <= num_bytes <= len(self._blobs):
            raise UnfitError("a blob that is not there")
        taken, self._blobs = self._blobs[:num_bytes], self._blobs[num_bytes:]
        return taken

    def _tensor(self, name: Any, shape: Any) -> Any:
        # No frame makes a grader import torch that did not want it.
        torch = sys.modules.get("torch")
        if torch is None and self._load_torch:
            torch = importlib.import_module("torch")
        if torch is None:
            raise UnwantedError("a tensor, in an exercise that does without torch")
        if name not in DTYPES or len(shape) > 16:
            raise UnfitError("an unknown kind of tensor")
        if not all(type(size) is int and 0 <= size <= MAX_BLOBS for size in shape):
            raise UnfitError("a tensor of impossible shape")
        data = bytearray(self._take(math.prod(shape) * DTYPES[name]))
        if not data:
            return torch.empty(shape, dtype=getattr(torch, name))
        if name == "bool":  # a byte other than 0 and 1 would be neither
            return (torch.frombuffer(data, dtype=torch.uint8) != 0).reshape(shape)
        return torch.frombuffer(data, dtype=getattr(torch, name)).reshape(shape)


def _key(value: Any, kind: str) -> Any:
    """value, if it can be looked up here: objects are compared in the worker alone."""
    if isinstance(value, tuple):
        for item in value:
            _key(item, kind)
    elif value is not None and type(value) not in (bool, int, float, str, bytes):
        what = "objects as keys" if kind == "dict" else "objects in it"
        raise UnwantedError(f"a {kind} with {what}; a list could be compared")
    return value


def pack(number: int, message: dict[str, Any], blobs: Sequence[bytes]) -> bytes:
    """One frame, ready to send; UnfitError if it is too large."""
    text = _to_json(message).encode("ascii")
    tail = b"".join(blobs)
    if len(text) > MAX_JSON:
        raise UnfitError(f"{len(text):,} bytes of data: more than 1 MiB")
    if len(tail) > MAX_BLOBS:
        raise UnfitError(f"{len(tail):,} bytes of tensors: more than 64 MiB")
    return HEAD.pack(number, len(text), len(tail)) + text + tail


def frame_size(head: bytes | bytearray) -> int:
    """Bytes of the frame that starts with head, checked before any is awaited."""
    _, json_bytes, blob_bytes = HEAD.unpack_from(head)
    if json_bytes > MAX_JSON or blob_bytes > MAX_BLOBS:
        raise UnfitError("a frame that is too large")
    return HEAD.size + json_bytes + blob_bytes


def unpack(frame: bytes | bytearray) -> tuple[int, dict[str, Any], memoryview]:
    """Number, message and blobs of one whole frame."""
    number, json_bytes, _ = HEAD.unpack_from(frame)
    start = HEAD.size + json_bytes
    try:
        message = _from_json(frame[HEAD.size : start].decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise UnfitError("a frame that is not JSON") from error
    if type(message) is not dict:
        raise UnfitError("a frame that is not a message")
    return number, message, memoryview(frame)[start:]
