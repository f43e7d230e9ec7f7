"""What a report says of attention over scattered blocks: weights and likely causes."""

import math

import pytest
import torch

from course.grader.failures import CheckFailed
from course.grader.kernel_layout import is_unwritten
from course.grader.paged_batch import (
    equal_weights,
    expect_result,
    expect_weights,
    likely_cause,
    make_batch,
    unwritten,
)

NAN = float("nan")


def test_a_right_result_of_such_a_batch_is_the_weight_of_each_token() -> None:
    batch = make_batch([7, 0, 3], num_heads=1, num_kv_heads=1, head_dim=9)
    result = batch.showing_weights().oracle()[:, 0]
    expect_weights(result, [equal_weights(range(n)) for n in (7, 0, 3)], "whole")


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ([0.5, 0.5, 0.0, 0.0], "[0.5, 0.5, 0.0] in row 0, and 0.0 for slots"),
        ([0.25, 0.25, 0.25, 0.25], "[0.25, 0.25, 0.25] in row 0, and 0.25 for slots"),
        ([NAN] * 4, "[nan, nan, nan] in row 0, and nan for slots"),
    ],
)
def test_a_wrong_weight_is_shown_beside_all_others(row: list[float], seen: str) -> None:
    with pytest.raises(CheckFailed) as failed:
        expect_weights(torch.tensor([row]), [equal_weights(range(3))], "three tokens")
    assert failed.value.got.startswith(seen)
    assert failed.value.expected.startswith("[0.333, 0.333, 0.333] in row 0, and 0.0")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_was_never_stored_is_told_from_a_nan_that_was(dtype: torch.dtype) -> None:
    left = unwritten(2, 3, dtype=dtype)
    assert left.isnan().all()
    left[0] = torch.tensor(math.inf) - math.inf
    assert is_unwritten(left).tolist() == [[False] * 3, [True] * 3]


@pytest.mark.parametrize(
    ("got", "expected", "cause"),
    [
        (unwritten(2), torch.ones(2), "no program stored"),
        (torch.tensor([NAN, NAN]), torch.ones(2), "a slot that holds no token"),
        (torch.tensor([NAN, NAN]), torch.zeros(2), "a division of 0 by 0"),
        (torch.zeros(2), torch.ones(2), "no token arrived"),
        (torch.tensor([0.0, 2.0]), torch.tensor([1.0, 1.0]), ""),
    ],
)
def test_the_likely_cause_of_a_number(
    got: torch.Tensor, expected: torch.Tensor, cause: str
) -> None:
    found = likely_cause(got, expected)
    assert cause in found and bool(cause) == bool(found)
    with pytest.raises(CheckFailed) as failed:
        expect_result(got, expected, "a claim", atol=1e-5)
    assert failed.value.message == found
