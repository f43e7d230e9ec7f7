"""What a prompt may be, and which logits make tokens."""

import math

import pytest
import torch

from paged_attention.params import SamplingParams
from paged_attention.requests import Request, as_token_ids, choose_tokens
from paged_attention.sequence import Sequence

WAYS = [
    SamplingParams(2),
    SamplingParams(2, temperature=1.0, seed=1),
    SamplingParams(2, temperature=1.0, top_p=0.9, seed=1),
]


def next_tokens(row: list[float], params: SamplingParams) -> list[int]:
    """Of a prompt of one token, after another whose logits are in order."""
    sequences = [Sequence(i, [3], params, ()) for i in range(2)]
    requests = [Request(i, params, 1, [s]) for i, s in enumerate(sequences)]
    logits = torch.tensor([[0.0] * len(row), row])
    return choose_tokens(requests, sequences, logits)[1]


@pytest.mark.parametrize("params", WAYS, ids=str)
@pytest.mark.parametrize(
    "row",
    [
        [0.0, math.nan, 1.0],
        [0.0, math.inf, 1.0],
        [math.inf, math.inf, -math.inf],
        [-math.inf, -math.inf, -math.inf],
    ],
    ids=str,
)
def test_logits_without_a_largest_number_make_no_token(row, params):
    with pytest.raises(RuntimeError, match="logits are NaN or infinite"):
        next_tokens(row, params)


@pytest.mark.parametrize("params", WAYS, ids=str)
def test_a_token_may_be_masked_out(params):
    assert next_tokens([-math.inf, 0.0, -math.inf], params) == [1]


@pytest.mark.parametrize(
    "prompt",
    [
        *(5, None, 4.7, b"ab", bytearray(b"ab"), {3: "a", 4: "b"}, {3, 4}),
        *(memoryview(b"ab"), torch.tensor(5)),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_what_is_no_list_of_token_ids_is_refused_by_its_value(prompt):
    with pytest.raises(
        ValueError, match="must be text or a list of token ids, got "
    ) as e:
        as_token_ids(prompt)
    assert str(e.value).endswith(f"got {prompt!r}")


@pytest.mark.parametrize(
    ("prompt", "shown"),
    [
        ([True, True], "True"),
        (torch.tensor([True, True]), "True"),
        ([3, 4.0], "4.0"),
        ([3, None], "None"),
        ([[3, 4], 3], r"\[3, 4\]"),
        (torch.tensor([[3, 4]]), r"\[3, 4\]"),
        (torch.tensor([3.0]), "3.0"),
    ],
    ids=repr,
)
def test_a_token_id_that_is_no_int_is_refused_by_its_value(prompt, shown):
    with pytest.raises(ValueError, match=f"a token id must be an int, got {shown}"):
        as_token_ids(prompt)


@pytest.mark.parametrize(
    "prompt",
    [
        *([3, 4], (3, 4), range(3, 5), iter([3, 4]), torch.tensor([3, 4])),
        *(torch.tensor([3, 4]).numpy(), list(torch.tensor([3, 4]))),
        torch.tensor([3, 4], dtype=torch.int16),
    ],
    ids=lambda prompt: type(prompt).__name__,
)
def test_token_ids_may_come_in_anything_that_has_an_order(prompt):
    token_ids = as_token_ids(prompt)
    assert token_ids == [3, 4]
    assert {type(token_id) for token_id in token_ids} == {int}
