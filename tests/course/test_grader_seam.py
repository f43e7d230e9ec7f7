"""The parts of the grader's seam, one at a time: codec, contract, claims, proxies."""

import json
import math
import socket
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

from course.grader import (
    GraderError,
    Hidden,
    claims,
    codec,
    contract,
    expect,
    expect_close,
    expect_raises,
    expect_that,
)
from course.grader.channel import Channel
from course.grader.codec import UnfitError
from course.grader.crossing import ERRORS, describe, plain_text, rebuild
from course.grader.exchange import Ending, Exchange, Reply
from course.grader.failures import CheckFailed, LearnerError
from course.grader.guard import ImportGuard
from course.grader.hidden import (
    MAX_CALLBACKS,
    MAX_SIZE,
    HiddenObjects,
    TooManyCallbacksError,
)
from course.grader.history import FIRST, LAST, History, shown
from course.grader.proxy import Handle
from paged_attention.errors import DoubleFreeError, SharedBlockError


def refuse(*_: object) -> Any:
    raise UnfitError("not plain")


def there_and_back(value: object) -> Any:
    blobs: list[bytes] = []
    frame = codec.pack(7, {"value": codec.encode(value, blobs, refuse)}, blobs)
    assert len(frame) == codec.frame_size(frame)
    number, message, rest = codec.unpack(frame)
    assert number == 7
    return codec.Reader(rest, refuse).decode(message["value"])


# Codec.


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -(2**8000),
        1.0,
        -0.0,
        math.inf,
        "ü\ud800\0",
        b"\0\xff",
        [],
        [1, [2.0, (True, None)]],
        (1,),
        {1: "a", (2, "x"): [b"", b"y"]},
        {"tuple": []},
        {1, "a", (2, 3)},
    ],
)
def test_plain_values_cross_unchanged_and_with_their_types(value: object) -> None:
    got = there_and_back(value)
    assert claims.same(got, value)
    assert repr(got) == repr(value)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5, dtype=torch.float64),
        torch.empty(0, 3, dtype=torch.float16),
        torch.arange(24, dtype=torch.int32).reshape(2, 3, 4).transpose(0, 2),
        torch.tensor([[True], [False]]),
        torch.tensor([1.0, math.nan, math.inf], dtype=torch.bfloat16),
        torch.ones(2, requires_grad=True),
        torch.tensor(3.5).expand(1, 1),  # strides of 0
    ],
)
def test_tensors_cross_with_dtype_shape_and_values(tensor: torch.Tensor) -> None:
    got = there_and_back([b"before", tensor, b"after"])
    assert (got[0], got[2]) == (b"before", b"after")
    assert got[1].dtype == tensor.dtype and got[1].shape == tensor.shape
    assert torch.equal(got[1].nan_to_num(7), tensor.detach().nan_to_num(7))


class Str(str):
    pass


@pytest.mark.parametrize(
    "value",
    [
        object(),
        Str("x"),
        1j,
        range(3),
        frozenset(),
        bytearray(),
        ERRORS,
        torch.nn.Parameter(torch.ones(1)),
        torch.ones(1, dtype=torch.complex64),
        10**3000,
        set(range(2001)),
    ],
)
def test_other_values_are_refused_where_they_start(value: object) -> None:
    with pytest.raises(UnfitError):
        there_and_back([value])


@pytest.mark.parametrize(
    "data",
    [
        {"object": "os.system"},
        {"tuple": [1], "list": []},
        {"bytes": 1},
        {"bytes": -1},
        {"tensor": ["int64", [-1]]},
        {"tensor": ["int64", [2**30]]},
        {"tensor": ["int64", [1.0]]},
        {"tensor": ["object", [0]]},
        {"set": [[1]]},
        {"set": list(range(2001))},
        {"dict": [[n, {"dict": [[1, 1]]}] for n in range(1500)]},
        json.loads("[" * 40 + "]" * 40),
    ],
)
def test_what_is_no_encoded_value_is_refused(data: object) -> None:
    with pytest.raises((UnfitError, TypeError)):
        codec.Reader(memoryview(b""), refuse).decode(data)


def test_a_bool_tensor_holds_only_true_and_false() -> None:
    data = {"tensor": ["bool", [3]]}
    got = codec.Reader(memoryview(b"\0\1\2"), refuse).decode(data)
    assert got.tolist() == [False, True, True]
    assert got.view(torch.uint8).tolist() == [0, 1, 1]


def test_a_tensor_where_torch_is_not_needed_is_told_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    blobs: list[bytes] = []
    value = codec.encode([torch.ones(2)], blobs, refuse)

    class Worker:
        def exchange(
            self, message: Any, blobs: Any, seconds: float, answer: Any
        ) -> Reply:
            return {"value": value}, memoryview(b"".join(blobs))

    monkeypatch.delitem(sys.modules, "torch")
    exchange = Exchange(Worker(), History(), Ending)
    with pytest.raises(CheckFailed) as failed:
        exchange.request({"do": "call"}, [], "twice(3)", 1)
    assert failed.value.claim == "twice(3) returns what can be compared"
    assert failed.value.got == "a tensor, in an exercise that does without torch"


@pytest.mark.parametrize(
    ("arrived", "reason"),
    [
        # a thread that an earlier call left at work asks for something
        (codec.pack(0, {"callback": "new"}, []), "a reply to another request"),
        (codec.pack(1, {"value": 1}, []) * 2, "more than one reply"),
        (b"\0" * codec.HEAD.size, "a frame that is not JSON"),
        (b"printed here", "a frame that is too large"),
    ],
)
def test_what_is_no_reply_to_the_request_ends_the_conversation(
    arrived: bytes, reason: str
) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(arrived)
        exchange = Exchange(Channel(ours), History(), Ending)
        words = rf"twice\(3\) wrote to the grader's own connection \({reason}\)"
        for _ in range(2):  # it stays ended
            with pytest.raises(CheckFailed, match=words):
                exchange.request({"do": "call"}, [], "twice(3)", 1)


# Errors.


class PoolError(DoubleFreeError):
    pass


def test_an_error_arrives_as_the_nearest_class_that_both_sides_know() -> None:
    for error, name in (
        (PoolError("x"), "DoubleFreeError"),
        (SharedBlockError("x"), "SharedBlockError"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "x"), "ValueError"),
        (ExceptionGroup("x", [ValueError()]), "Exception"),
    ):
        data = describe(error, {})
        assert type(rebuild(data)).__name__ == name
        assert data["name"] == type(error).__name__


def test_every_listed_error_can_be_rebuilt() -> None:
    for name, kind in ERRORS.items():
        assert type(rebuild({"type": name, "text": "why"})) is kind


def test_shown_text_has_no_control_characters_and_an_end() -> None:
    assert plain_text("a\x1b[2J\rb\n\tü🐢") == "a\\x1b[2J\\rb\n\tü🐢"
    assert len(plain_text("x" * 10_000, 100)) < 110


# Contract.


SOURCE = """
from dataclasses import dataclass
from torch import Tensor
import torch

LIMIT: int = 3
_hidden: int = 4

@dataclass
class Block:
    block_id: int
    _next: "Block | None" = None

class Pool:
    def __init__(self) -> None:
        self.size: int = 3
        self._head: Block | None = None
    @property
    def num_free(self) -> int: ...
    @staticmethod
    def make(n: int) -> "Pool": ...
    def blocks(self) -> list[Block]: ...
    def unsaid(self): ...
    def _private(self) -> int: ...

class BigPool(Pool):
    def more(self) -> dict[str, tuple[int, ...]]: ...

def key() -> Tensor: ...
def pair() -> tuple[torch.Tensor, float | None]: ...
"""


@pytest.fixture
def parsed(tmp_path: Path) -> contract.Contract:
    path = tmp_path / "ex.py"
    path.write_text(textwrap.dedent(SOURCE))
    return contract.read(path)


def test_the_contract_is_what_the_solution_declares_in_public(
    parsed: contract.Contract,
) -> None:
    assert set(parsed.members) == {"LIMIT", "key", "pair"}
    pool = parsed.classes["Pool"]
    assert set(pool) == {"size", "num_free", "make", "blocks", "unsaid"}
    assert {name: m.kind for name, m in pool.items() if m.kind == "value"} == {
        "size": "value",
        "num_free": "value",
    }
    assert pool["make"].static and pool["unsaid"].returns is None
    assert set(parsed.classes["Block"]) == {"block_id"}
    assert set(parsed.classes["BigPool"]) == {*pool, "more"}


class NoLink:
    history = History()

    def touch(self, owner: object, name: str) -> Any: ...
    def call(
        self, function: object, args: tuple, kwargs: dict, checked: bool = True
    ) -> Any: ...
    def helper(self, where: str, args: tuple) -> Any: ...


BLOCK = Handle(NoLink(), "block", {}, "Block")


@pytest.mark.parametrize(
    ("annotation", "fits", "does_not"),
    [
        ("int", [3], [True, 3.0, None, "3", BLOCK]),
        ("bool", [True], [1]),
        ("float", [1.5, 2], [True, "1.5"]),
        ("None", [None], [0]),
        ("list[int]", [[], [1, 2]], [(1,), [1.0], [True], {1}]),
        ("list[Block | None]", [[BLOCK, None]], [[1], BLOCK]),
        ("tuple[int, str]", [(1, "a")], [(1,), (1, "a", 2), [1, "a"]]),
        ("tuple[int, ...]", [(), (1, 2, 3)], [(1, "a")]),
        ("dict[str, list[int]]", [{"a": [1]}], [{"a": 1}, {1: [1]}]),
        ("set[int]", [{1}], [{"a"}]),
        ("Optional[int]", [None, 1], ["a"]),
        ("'Block'", [BLOCK], [None, 3]),
        ("torch.Tensor", [torch.ones(1)], [[1.0], 1.0]),
        ("object", [3, None, BLOCK], []),
    ],
)
def test_a_declared_type_admits_exactly_that(
    annotation: str, fits: list, does_not: list
) -> None:
    import ast

    node = ast.parse(annotation, mode="eval").body
    declared = contract.parse_type(node, {"Block"}, "")
    assert declared is not None
    assert [value for value in fits if not declared.admits(value)] == []
    assert [value for value in does_not if declared.admits(value)] == []


# Claims.


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (True, 1),
        (1, 1.0),
        ((1,), [1]),
        ([True], [1]),
        ({1: 2}, {True: 2}),
        ({1.0}, {1}),
        ({"a": 1}, {"a": 1.0}),
        ([[0], 1], [[False], 1]),
        (torch.ones(1), torch.ones(1, dtype=torch.float64)),
        (torch.ones(1, 1), torch.ones(1)),
    ],
)
def test_expect_distinguishes_types_all_the_way_down(got: Any, expected: Any) -> None:
    with pytest.raises(CheckFailed):
        expect(got, expected, "they are the same")
    expect(got, got, "a value is the same as itself")


def test_a_failed_claim_says_which_type_came_where_the_values_look_alike() -> None:
    with pytest.raises(CheckFailed) as caught:
        expect(Str("x") + "", Str("x"), "a claim")
    assert caught.value.got == "'x' (str, not Str)"


def test_a_proxy_is_equal_to_nothing_and_cannot_be_counted() -> None:
    for use in (
        lambda: BLOCK == BLOCK,
        lambda: BLOCK != 3,
        lambda: bool(BLOCK),
        lambda: len(BLOCK),  # pyright: ignore[reportArgumentType]
        lambda: list(BLOCK),  # pyright: ignore[reportArgumentType]
        lambda: 3 in BLOCK,  # pyright: ignore[reportOperatorIssue]
        lambda: BLOCK < 3,
        lambda: expect(BLOCK, 3, "three"),
        lambda: sorted([BLOCK, BLOCK]),
    ):
        with pytest.raises(CheckFailed, match="plain"):
            use()


def test_a_failed_claim_is_no_exception_that_a_test_could_swallow() -> None:
    assert not issubclass(CheckFailed, Exception)


def learner_error(error: Exception) -> Exception:
    vars(error)["learner"] = LearnerError(
        "f()", type(error).__name__, str(error), "", ""
    )
    return error


def raiser(error: Exception) -> Any:
    def call() -> None:
        raise learner_error(error)

    return call


def test_expect_raises_wants_that_type_or_a_subclass() -> None:
    text = expect_raises(ValueError, raiser(DoubleFreeError("twice")), claim="c")
    assert text == "twice"
    for call, got in (
        (raiser(KeyError("k")), "KeyError: 'k'"),
        (raiser(ValueError("v")), "ValueError: v"),
        (lambda: [1], "it returned [1], without an error"),
    ):
        with pytest.raises(CheckFailed) as caught:
            expect_raises(DoubleFreeError, call, claim="c")
        assert caught.value.expected == "the call raises DoubleFreeError"
        assert caught.value.got == got


def test_expect_raises_is_not_satisfied_by_a_stub_nor_by_a_bug_of_the_test() -> None:
    with pytest.raises(NotImplementedError):
        expect_raises(
            RuntimeError, raiser(NotImplementedError("exercise 4.1: x")), claim="c"
        )
    with pytest.raises(TypeError):
        expect_raises(TypeError, int, [], claim="no error of the learner's code")


def test_expect_that_wants_a_plain_bool() -> None:
    expect_that(True, "c", got=1, expected="x")
    with pytest.raises(CheckFailed) as caught:
        expect_that(False, "ids are distinct", got=[1, 1], expected="distinct ids")
    assert (caught.value.expected, caught.value.got) == ("distinct ids", "[1, 1]")
    with pytest.raises(GraderError):
        expect_that([1], "c", got=1, expected="x")  # pyright: ignore[reportArgumentType]


def test_expect_close_shows_the_worst_element() -> None:
    expected = torch.zeros(2, 3)
    expected[1, 0] = 2
    got = expected + torch.tensor([[1e-7, 0, 0.1], [0.3, 0, 0]])
    with pytest.raises(CheckFailed) as caught:
        expect_close(got, expected, "c", atol=1e-6)
    assert caught.value.expected == "2.0 at [1, 0]"
    assert caught.value.got == (
        "2.3 at [1, 0], off by 0.3; the worst of 2 wrong elements of 6"
    )


def test_expect_close_shows_as_many_digits_as_it_takes() -> None:
    with pytest.raises(CheckFailed) as caught:
        expect_close(1.00000002, 1.00000001, "c", atol=0)
    assert (caught.value.expected, caught.value.got) == ("1.00000001", "1.00000002")


@pytest.mark.parametrize(
    ("got", "expected"),
    [
        (torch.tensor([math.nan]), torch.tensor([1.0])),
        (torch.tensor([math.inf]), torch.tensor([1.0])),
        (torch.tensor([1.0]), torch.tensor([math.inf])),
        (torch.ones(2), torch.ones(1)),
        (torch.ones(1), torch.ones(1, dtype=torch.float64)),
        ([1.0], torch.ones(1)),
        (math.nan, 1.0),
        (math.inf, 1.0),
        (1.1, 1.0),
        (True, 1.0),
        (None, 1.0),
    ],
)
def test_expect_close_refuses(got: object, expected: object) -> None:
    with pytest.raises(CheckFailed):
        expect_close(got, expected, "c", atol=0.01)


def test_expect_close_accepts_what_is_near() -> None:
    expect_close(
        torch.tensor([1.001, -math.inf]), torch.tensor([1, -math.inf]), "c", atol=0.01
    )
    expect_close(torch.empty(0), torch.empty(0), "c", atol=0)
    expect_close(103, 100.0, "c", atol=0, rtol=0.05)


# What learner code is given.


class Counter:
    def __init__(self, start: int) -> None:
        self.count = start

    def add(self, n: int) -> int:
        if n < 0:
            raise DoubleFreeError("n is negative")
        self.count += n
        return self.count

    def itself(self) -> object:
        return object()


def ask(objects: HiddenObjects, callback: str, name: str, *args: object) -> Any:
    message = {"callback": callback, "of": 0, "name": name, "args": args, "kwargs": {}}
    reply, _ = objects.answer(message, memoryview(b""))
    return reply.get("value", reply)


@pytest.fixture
def objects() -> HiddenObjects:
    objects = HiddenObjects()
    objects.wire(Hidden(Counter))
    assert ask(objects, "new", "", 5) == 0
    return objects


def test_a_hidden_object_answers_with_values_and_typed_errors(
    objects: HiddenObjects,
) -> None:
    assert ask(objects, "call", "add", 2) == 7
    assert ask(objects, "get", "count") == 7
    assert ask(objects, "call", "add", -1)["raised"]["type"] == "DoubleFreeError"
    for name in ("__class__", "_hidden", "itself", "missing"):
        assert "raised" in ask(objects, "call", name)


def test_hidden_objects_cannot_wear_out_the_grader(objects: HiddenObjects) -> None:
    assert ask(objects, "new", "", MAX_SIZE)["raised"]["type"] == "ValueError"
    with pytest.raises(TooManyCallbacksError):
        for _ in range(MAX_CALLBACKS):
            ask(objects, "get", "count")


# History and guard.


def test_a_long_history_is_shortened_in_the_middle() -> None:
    history = History()
    for number in range(100):
        history.add(str(number))
    lines = history.lines()
    assert len(lines) == FIRST + 1 + LAST
    assert (lines[0], lines[FIRST], lines[-1]) == ("0", "… 76 more …", "99")


def test_values_are_shown_short() -> None:
    assert shown(torch.ones(2, dtype=torch.int32)) == "tensor int32 [2] [1, 1]"
    assert shown(torch.ones(20, 3)) == "tensor float32 [20, 3]"
    thirds = torch.tensor([[1 / 3, 2.0], [-2e9 / 3, math.inf]])
    assert shown(thirds) == "tensor float32 [2, 2] [[0.3333, 2.0], [-666666688.0, inf]]"
    assert shown(list(range(100))).startswith("list of 100: 0, 1, 2")
    assert len(shown("x" * 10_000)) < 130
    assert shown(10**5000) == "a huge int"


def test_the_guard_never_refuses_the_errors() -> None:
    guard = ImportGuard({}, ["paged_attention"])
    assert guard.refusal("paged_attention.errors") is None
    assert guard.refusal("paged_attention.allocator") is not None
    guard = ImportGuard({}, ["paged_attention.kernels"])
    assert guard.refusal("paged_attention.kernels.decode") is not None
    assert guard.refusal("paged_attention.kernels_of_mine") is None
    assert guard.refusal("solutions") is not None
    assert guard.refusal("testsuite") is None
