"""Beam search: which continuations of which beams go on, and which are the best.

A beam is a sequence; going on with two tokens is a fork. Here is only the arithmetic.
It is what transformers does by default: the score of an ended beam is the mean
log-probability of its tokens, so that long answers are not worse for being long.
"""

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class _Candidate:
    row: int
    token_id: int
    log_prob: float  # of all tokens made so far, this one included
    ends: bool


@dataclass
class BeamSearch:
    """The state of one request's search.

    live: the log-probability of each beam that goes on, by sequence. ended: the best
    that are complete, as (score, sequence), best first, at most width. A step is
    `choose`, then, once the scheduler has made the forks, `settle`.
    """

    width: int
    max_tokens: int
    stop_token_ids: frozenset[int]
    num_made: int = 0
    live: dict[Any, float] = field(default_factory=dict)
    ended: list[tuple[float, Any]] = field(default_factory=list)
    _chosen: list[list[_Candidate]] = field(default_factory=list)

    def choose(self, beams: list[Any], log_probs: Tensor) -> list[list[int]]:
        """The tokens with which each beam goes on; [] drops it.

        beams      the live sequences; at the start the prompt alone
        log_probs  [len(beams), vocab_size], of the next token
        """
        # The prompt is in no search yet: it begins with log 1.
        sums = log_probs.new_tensor([self.live.get(beam, 0.0) for beam in beams])
        # All continuations of all beams in one row: with a vocabulary of 50,000,
        # place 50,003 is token 3 after beam 1.
        totals = (log_probs + sums[:, None]).flatten()
        # As many again for each token that ends a beam: `width` are left to go on.
        num = min((1 + max(1, len(self.stop_token_ids))) * self.width, len(totals))
        best, places = totals.topk(num)
        vocab_size = log_probs.shape[1]
        is_last = self.num_made + 1 == self.max_tokens
        candidates = [
            _Candidate(
                place // vocab_size,
                place % vocab_size,
                log_prob,
                is_last or place % vocab_size in self.stop_token_ids,
            )
            for log_prob, place in zip(best.tolist(), places.tolist(), strict=True)
        ]
        self.num_made += 1
        # An end counts only among the best: those behind are there to fill the gaps
        # that ends leave.
        ending = [c for c in candidates[: self.width] if c.ends]
        going_on = [c for c in candidates if not c.ends][: self.width]
        if self._is_over(ending, going_on):
            going_on = []
        chosen = ending + going_on
        self._chosen = [[c for c in chosen if c.row == i] for i in range(len(beams))]
        return [[c.token_id for c in row] for row in self._chosen]

    def settle(self, rows: list[list[Any]]) -> None:
        """Name the sequences that came of the tokens, in the same order."""
        self.live = {}
        for candidates, sequences in zip(self._chosen, rows, strict=True):
            for candidate, sequence in zip(candidates, sequences, strict=True):
                if candidate.ends:
                    self.ended.append((candidate.log_prob / self.num_made, sequence))
                else:
                    self.live[sequence] = candidate.log_prob
        # Sorting is stable: of two equals the older stays ahead.
        self.ended.sort(key=lambda scored: -scored[0])
        del self.ended[self.width :]

    def best(self, n: int) -> list[Any]:
        """The n best sequences, best first; before the end, live ones fill up."""
        live = sorted(self.live, key=lambda beam: -self.live[beam])
        return [*(sequence for _, sequence in self.ended), *live][:n]

    def _is_over(self, ending: list[_Candidate], going_on: list[_Candidate]) -> bool:
        """Whether no live beam, as it stands, beats the worst that would be kept."""
        scores = [score for score, _ in self.ended]
        scores += [candidate.log_prob / self.num_made for candidate in ending]
        if len(scores) < self.width or not going_on:
            return not going_on
        # A sum only falls, but a mean may still rise: this is a guess, and transformers
        # makes the same one (early_stopping=False).
        worst = sorted(scores, reverse=True)[self.width - 1]
        return going_on[0].log_prob / self.num_made <= worst
