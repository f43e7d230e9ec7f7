"""From logits to tokens: greedy, temperature, top-p.

A draw depends on the request's seed, the sample's index and the position, and on
nothing else: who is in the batch beside it, in which step it comes, whether it was
preempted in between.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

NUM_CANDIDATES = 1024  # for top-p; more are looked at only if these do not reach it


@dataclass(frozen=True)
class Draw:
    """How one row's token is chosen.

    temperature 0 means the most likely one; then the others do not matter. number is
    where in the distribution the choice falls, from 0 up to, not including, 1.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    number: float = 0.0


def random_number(seed: int, index: int, position: int) -> float:
    """The same number for the same three, on every machine."""
    # A string is hashed by SHA-512 here; hash() would change from process to process.
    return random.Random(f"{seed}/{index}/{position}").random()


def sample(logits: Tensor, draws: Sequence[Draw]) -> list[int]:
    """One token for each row.

    logits  [num_rows, vocab_size]   any floating dtype
    """
    if len(logits) != len(draws):
        raise ValueError(f"{len(logits)} rows of logits for {len(draws)} draws")
    # Greedy rows in one go, the others one by one: each has its own distribution.
    tokens = [0] * len(draws)
    greedy = [i for i, draw in enumerate(draws) if draw.temperature == 0]
    likeliest = _argmax(logits if len(greedy) == len(draws) else logits[greedy])
    for i, token_id in zip(greedy, likeliest, strict=True):
        tokens[i] = token_id
    for i, draw in enumerate(draws):
        if draw.temperature > 0:
            tokens[i] = _draw(logits[i], draw)
    return tokens


def _argmax(logits: Tensor) -> list[int]:
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1).tolist()
    # NumPy finds the same, also among equals, in a tenth of torch's time.
    known_to_numpy = torch.promote_types(logits.dtype, torch.float32)  # no bfloat16
    return logits.detach().to(known_to_numpy).numpy().argmax(axis=1).tolist()


def _draw(logits: Tensor, draw: Draw) -> int:
    # In float64: the sum of fifty thousand small numbers is compared with one number.
    scaled = logits.double()
    # The largest goes off first: divided by a tiny temperature, it would be infinite.
    probs = torch.softmax((scaled - scaled.max()) / draw.temperature, dim=-1)
    if draw.top_p >= 1:
        return _at(probs, draw.number)
    token_ids = _likeliest(probs, draw.top_p)
    probs = probs[token_ids]
    # A token stays while those before it have not reached top_p: one always does.
    kept = int((probs.cumsum(0) - probs < draw.top_p).sum())
    return int(token_ids[_at(probs[:kept], draw.number)])


def _likeliest(probs: Tensor, top_p: float) -> Tensor:
    """Tokens that reach top_p together, or more; the likeliest first, of equals the
    one with the smaller id."""
    # A few do nearly always, and to sort all takes ten times as long.
    least = probs.topk(min(NUM_CANDIDATES, len(probs))).values[-1]
    # All that are as likely as the least of these: topk leaves open which of equals it
    # takes, and a draw must not hang on that.
    token_ids = (probs >= least).nonzero()[:, 0]
    candidates = probs[token_ids]
    if float(candidates.sum()) <= top_p:
        return probs.sort(descending=True, stable=True).indices
    return token_ids[candidates.sort(descending=True, stable=True).indices]


def _at(weights: Tensor, number: float) -> int:
    """The index in which the number falls, each as wide as its weight."""
    # Weights 0.2, 0.5, 0.3 end at 0.2, 0.7, 1.0: the number 0.6 falls in index 1. They
    # need not add up to 1: a top-p was cut off, or rounding has its part.
    ends = weights.cumsum(0)
    found = int(torch.searchsorted(ends, ends[-1] * number, right=True))
    # Sums made one after the other grow only where a weight is above 0: then this is
    # the answer. To look through all the weights as well would take as long again.
    if found < len(weights) and weights[found] > 0:
        return found
    # Rounding has put the number on the very end, or a GPU, which adds up in pieces, on
    # a weight of 0: that is never chosen.
    return int(weights[: found + 1].nonzero()[-1])
