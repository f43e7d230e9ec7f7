"""Beam search against trying everything, and against a search over plain lists."""

import random

import pytest
import torch

from paged_attention.beams import BeamSearch

VOCAB = 4
STOP = 3


class Beam(tuple):
    """The tokens that a beam has made: what the search knows as a sequence."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


def log_probs_after(tokens, seed):
    """A model: each text is followed by tokens of random probability."""
    logits = [
        random.Random(f"{seed}{(*tokens, t)}").gauss(0, 1.5) for t in range(VOCAB)
    ]
    return torch.log_softmax(torch.tensor(logits, dtype=torch.float64), dim=0)


def score_of(tokens, seed):
    steps = [log_probs_after(tokens[:i], seed)[t] for i, t in enumerate(tokens)]
    return float(sum(steps)) / len(tokens)


def searched(width, max_tokens, seed, stops=(STOP,)):
    """What BeamSearch ends with, driven as the engine drives it."""
    search = BeamSearch(width, max_tokens, frozenset(stops))
    beams = [Beam()]
    while beams:
        rows = torch.stack([log_probs_after(beam, seed) for beam in beams])
        tokens = search.choose(beams, rows)
        grown = [
            [Beam((*beam, t)) for t in of_beam]
            for beam, of_beam in zip(beams, tokens, strict=True)
        ]
        search.settle(grown)
        assert len(search.live) <= width
        beams = list(search.live)
        random.Random(0).shuffle(beams)  # the scheduler may order them as it likes
    return [tuple(beam) for beam in search.best(width)]


def all_texts(max_tokens, prefix=()):
    """Every text that a search could end with."""
    for token in range(VOCAB):
        text = (*prefix, token)
        if token == STOP or len(text) == max_tokens:
            yield text
        else:
            yield from all_texts(max_tokens, text)


@pytest.mark.parametrize("seed", range(20))
def test_a_beam_as_wide_as_the_tree_finds_the_very_best(seed):
    """Wide enough, nothing is dropped, and it cannot stop early: it never is full."""
    texts = sorted(all_texts(4), key=lambda text: -score_of(text, seed))
    assert searched(len(texts), 4, seed) == texts


def plain_search(width, max_tokens, seed, stops):
    """The rules once more, over lists of (sum, text), all candidates sorted."""
    live, ended = [(0.0, ())], []
    for length in range(1, max_tokens + 1):
        candidates = [
            (total + float(log_probs_after(text, seed)[t]), (*text, t))
            for total, text in live
            for t in range(VOCAB)
        ]
        candidates.sort(key=lambda c: -c[0])

        def ends(candidate, length=length):
            return candidate[1][-1] in stops or length == max_tokens

        ended += [(c[0] / length, c[1]) for c in candidates[:width] if ends(c)]
        ended = sorted(ended, key=lambda c: -c[0])[:width]
        live = [c for c in candidates if not ends(c)][:width]
        if not live:
            break
        if len(ended) == width and live[0][0] / length <= ended[-1][0]:
            break
    return [text for _, text in ended]


@pytest.mark.parametrize("stops", [(), (STOP,), (STOP, 0)])
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_narrow_beams_follow_the_rules(width, stops):
    for seed in range(30):
        expected = plain_search(width, 6, seed, stops)
        assert searched(width, 6, seed, stops) == expected, f"seed {seed}"


def test_the_rules_are_no_formality():
    """Some seed stops early, some ends with texts of unequal length."""
    found = [searched(2, 6, seed) for seed in range(30)]
    assert any(max(map(len, texts)) < 6 for texts in found)
    assert any(len({*map(len, texts)}) > 1 for texts in found)


def test_before_the_end_the_live_beams_fill_up():
    search = BeamSearch(2, 5, frozenset())
    search.choose([start := Beam()], torch.tensor([[-3.0, -1.0, -2.0, -9.0]]))
    search.settle([[Beam((1,)), Beam((2,))]])
    assert start not in search.live
    assert [tuple(beam) for beam in search.best(2)] == [(1,), (2,)]
