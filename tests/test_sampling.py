"""Which token follows: by the highest logit, or by a number and the probabilities."""

import math
import subprocess
import sys

import pytest
import torch

from paged_attention.sampling import Draw, random_number, sample

PROBS = [0.1, 0.05, 0.4, 0.25, 0.2]
LOGITS = torch.tensor(PROBS).log()


def chosen(number, temperature=1.0, top_p=1.0, logits=LOGITS):
    return sample(logits[None], [Draw(temperature, top_p, number)])[0]


def test_greedy_takes_the_highest_and_of_equals_the_first():
    logits = torch.tensor([[0.0, 3.0, 3.0], [2.0, 1.0, 0.0]])
    assert sample(logits, [Draw(), Draw()]) == [1, 0]


@pytest.mark.parametrize(
    "dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64]
)
def test_greedy_sees_the_smallest_difference_of_each_dtype(dtype):
    logits = torch.ones(2, 300, dtype=dtype)
    logits[0, 200] = logits[1, 299] = 1 + torch.finfo(dtype).eps
    assert sample(logits, [Draw(), Draw()]) == [200, 299]


def test_each_token_is_as_wide_as_its_probability():
    # Their widths in order: to 0.10, to 0.15, to 0.55, to 0.80, to 1.
    borders = [0.1, 0.15, 0.55, 0.8, 1.0]
    for token, (start, end) in enumerate(zip([0.0, *borders], borders, strict=False)):
        assert chosen(start + 1e-6) == chosen(end - 1e-6) == token


def by_hand(probs, temperature, top_p, number):
    """The same in plain Python, over a list that is sorted and cut."""
    powers = [p ** (1 / temperature) for p in probs]
    total = sum(powers)
    ranked = sorted(range(len(probs)), key=lambda i: -powers[i])
    if top_p == 1:
        kept = list(range(len(probs)))
    else:
        kept, mass = [], 0.0
        for i in ranked:
            if mass / total < top_p:
                kept.append(i)
            mass += powers[i]
    left = number * sum(powers[i] for i in kept)
    for i in kept:
        left -= powers[i]
        if left < 0:
            return i
    raise AssertionError("the number is below 1")


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("top_p", [0.2, 0.45, 0.7, 0.97, 1.0])
def test_temperature_and_top_p_agree_with_plain_python(temperature, top_p):
    found = [chosen(n / 97, temperature, top_p) for n in range(97)]
    assert found == [by_hand(PROBS, temperature, top_p, n / 97) for n in range(97)]


@pytest.mark.parametrize("spread", [0.0, 0.5, 2.0])
def test_top_p_of_many_tokens_agrees_with_sorting_all_of_them(spread):
    """A few hundred reach top_p, or thousands; many are equal."""
    generator = torch.Generator().manual_seed(1)
    logits = (torch.randn(5000, generator=generator) * spread * 4).round() / 4
    probs = torch.softmax(logits.double(), dim=0).tolist()
    # No number falls on the border of two tokens: of 5000 equal ones, 0.01 would, and
    # which of them it gets hangs on how the sums are rounded.
    numbers = [n / 7 + 0.01013 for n in range(7)]
    for top_p in (0.01011, 0.51713, 0.90011, 0.99991):  # cuts between two tokens
        found = [chosen(number, top_p=top_p, logits=logits) for number in numbers]
        assert found == [by_hand(probs, 1, top_p, number) for number in numbers]


def test_top_p_keeps_the_token_that_crosses_it_and_no_more():
    # Ranked: 0.4, 0.25, 0.2, 0.1, 0.05.
    def kept(top_p):
        return {chosen(n / 1000, top_p=top_p) for n in range(1000)}

    assert kept(0.39) == {2}
    assert kept(0.41) == {2, 3}
    assert kept(0.66) == {2, 3, 4}
    assert kept(1e-9) == {2}  # never none


def test_a_token_of_probability_zero_is_never_drawn():
    logits = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    below_one = math.nextafter(1.0, 0.0)
    assert chosen(0.0, logits=logits) == 1
    assert chosen(below_one, logits=logits) == 3
    assert chosen(below_one, top_p=0.9, logits=logits) == 3


@pytest.mark.parametrize("masked", [0.0, 0.5, 0.99])
def test_a_draw_is_the_token_on_whose_width_the_number_falls(masked):
    """Of many tokens, most of them of probability 0, counted one by one."""
    generator = torch.Generator().manual_seed(2)
    logits = torch.randn(3000, generator=generator)
    logits[torch.rand(3000, generator=generator) < masked] = -math.inf
    probs = torch.softmax(logits.double(), dim=0).tolist()
    possible = [i for i, p in enumerate(probs) if p > 0]
    below_one = math.nextafter(1.0, 0.0)
    assert chosen(0.0, logits=logits) == possible[0]
    assert chosen(below_one, logits=logits) == possible[-1]
    found = [chosen(n / 97 + 0.001, logits=logits) for n in range(97)]
    assert found == [by_hand(probs, 1, 1, n / 97 + 0.001) for n in range(97)]


def test_to_draw_looks_for_no_weights_but_the_one_that_was_hit(monkeypatch):
    monkeypatch.setattr(torch.Tensor, "nonzero", None)
    assert [chosen(n / 4) for n in range(4)] == [0, 2, 2, 3]


def test_a_temperature_close_to_zero_is_finite_and_greedy():
    logits = torch.tensor([200.0, 201.0, -200.0])
    assert {chosen(n / 10, temperature=1e-6, logits=logits) for n in range(10)} == {1}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_double(dtype):
    logits = torch.zeros(50_000, dtype=dtype)
    assert chosen(0.5, logits=logits) == 25_000
    assert chosen(0.99999, logits=logits) == 49_999


def test_a_row_does_not_depend_on_the_rows_beside_it():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(6, 50, generator=generator)
    draws = [Draw(), Draw(0.7, 1.0, 0.3), Draw(1.3, 0.8, 0.9)] * 2
    together = sample(logits, draws)
    assert together == [
        sample(logits[i : i + 1], draws[i : i + 1])[0] for i in range(6)
    ]
    assert sample(logits.flip(0), draws[::-1]) == together[::-1]


def test_as_many_draws_as_rows():
    with pytest.raises(ValueError, match="1 rows of logits for 2 draws"):
        sample(LOGITS[None], [Draw(), Draw()])


@pytest.mark.proof
def test_random_numbers_are_the_same_in_another_process_and_differ_otherwise():
    code = "from paged_attention.sampling import random_number as r; print(r(7, 0, 12))"
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert float(printed) == random_number(7, 0, 12)
    many = {
        random_number(s, i, p) for s in range(8) for i in range(8) for p in range(8)
    }
    assert len(many) == 512
    assert all(0 <= number < 1 for number in many)
    assert abs(sum(many) / 512 - 0.5) < 0.05
