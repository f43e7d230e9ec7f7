"""What an engine remembers of its requests, and how their next tokens are chosen."""

import contextlib
import operator
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from paged_attention.beams import BeamSearch
from paged_attention.outputs import Detokenizer, Output
from paged_attention.params import SamplingParams
from paged_attention.sampling import Draw, random_number, sample
from paged_attention.sequence import Sequence

# Python makes numbers of their elements, or has no order for them: a mistake.
NO_PROMPTS = (bytes, bytearray, memoryview, Mapping, set, frozenset)


@dataclass(eq=False)
class Request:
    """A prompt on its way: its sequences, by index, or the state of its beam search."""

    request_id: Hashable
    params: SamplingParams
    seed: int
    sequences: list[Sequence]  # ended ones included; of a beam search, those alive
    beams: BeamSearch | None = None
    num_prompt_tokens: int = field(init=False)

    def __post_init__(self) -> None:
        self.num_prompt_tokens = self.sequences[0].num_prompt_tokens

    @property
    def alive(self) -> list[Sequence]:
        """Those that go on; a beam that was dropped is not in `sequences` any more."""
        return [s for s in self.sequences if s.finish_reason is None]

    @property
    def is_over(self) -> bool:
        return not self.alive

    def draws(self, sequence: Sequence) -> list[Draw]:
        """How its next tokens are drawn: n of them for a prompt that forks now."""
        # The position of the token that is to be drawn, whichever step comes to it.
        params, position = self.params, len(sequence.token_ids)
        indices: Iterable[int] = (self.sequences.index(sequence),)
        # Right behind the prompt, and nowhere else. A sequence that was preempted and
        # is computed again stands further on, so it does not fork once more.
        if position == self.num_prompt_tokens:
            indices = range(params.n)
        return [
            Draw(
                params.temperature,
                params.top_p,
                # Greedy rows do without: each number costs a generator of its own.
                random_number(self.seed, i, position) if params.temperature else 0.0,
            )
            for i in indices
        ]

    def take_in(self, sequences: list[Sequence], rows: list[list[Sequence]]) -> None:
        """What became of these sequences in a step, forks included."""
        if self.beams is not None:
            self.beams.settle(rows)
            self.sequences = list(self.beams.live)
            return
        for sequence, row in zip(sequences, rows, strict=True):
            # At the end: an index, once given out, belongs to the same sequence for
            # good.
            self.sequences += [other for other in row if other is not sequence]

    def outputs(
        self, sequences: Iterable[Sequence], tokenizer: Detokenizer | None
    ) -> list[Output]:
        """These sequences as they are; of a beam search, the n best instead."""
        chosen = [(self.sequences.index(s), s) for s in sequences if self.beams is None]
        if self.beams is not None:
            best = self.beams.best(self.params.n) or self.sequences  # aborted too soon
            chosen = list(enumerate(best))
        return [
            Output(
                self.request_id,
                index,
                # A copy, of all that was made so far: an output stays as it was when
                # its sequence goes on.
                sequence.token_ids[self.num_prompt_tokens :],
                sequence.finish_reason,
                tokenizer,
            )
            for index, sequence in chosen
        ]


def choose_tokens(
    requests: list[Request], sequences: list[Sequence], logits: Tensor
) -> list[list[int]]:
    """The next tokens of each sequence: more than one makes it fork, none drops it.

    requests, sequences   one for each row of logits
    logits                [num_rows, vocab_size]
    """
    # A token may be masked out by -inf; a row needs a largest that is a number.
    if not bool(logits.amax(dim=-1).isfinite().all()):
        # argmax would make a token of it, and the answer would read like any other.
        raise RuntimeError(
            "the model's logits are NaN or infinite: its weights are, or attention has "
            "read what nobody wrote"
        )
    tokens: list[list[int]] = [[] for _ in sequences]
    beam_rows: dict[Request, list[int]] = {}
    draws: list[tuple[int, Draw]] = []  # (row, how)
    for i, (request, sequence) in enumerate(zip(requests, sequences, strict=True)):
        if request.beams is not None:
            beam_rows.setdefault(request, []).append(i)
        else:
            draws += [(i, draw) for draw in request.draws(sequence)]
    # All requests at once: one pass over the logits, not one for each. A prompt that
    # forks now has its row n times.
    chosen = sample(_rows(logits, [i for i, _ in draws]), [draw for _, draw in draws])
    for (i, _), token in zip(draws, chosen, strict=True):
        tokens[i].append(token)
    # Beams of one request compete with each other, so they are looked at together.
    for request, rows in beam_rows.items():
        assert request.beams is not None
        log_probs = torch.log_softmax(_rows(logits, rows).float(), dim=-1)
        chosen_by_beam = request.beams.choose([sequences[i] for i in rows], log_probs)
        for i, of_beam in zip(rows, chosen_by_beam, strict=True):
            tokens[i] = of_beam
    return tokens


def settle(
    requests: dict[Hashable, Request],
    sequences: list[Sequence],
    rows: list[list[Sequence]],
    tokenizer: Detokenizer | None,
) -> Iterator[Output]:
    """What there is to see of the step; requests that are over leave the dict.

    sequences  those that made tokens; rows: what became of each, forks included
    """
    places: dict[Hashable, list[int]] = {}
    for i, sequence in enumerate(sequences):
        places.setdefault(sequence.request_id, []).append(i)
    for request_id, of_request in places.items():
        request = requests[request_id]
        grown = [rows[i] for i in of_request]
        request.take_in([sequences[i] for i in of_request], grown)
        # Of a beam search nothing is certain before it is over.
        if request.beams is None or request.is_over:
            yield from request.outputs([s for row in grown for s in row], tokenizer)
        if request.is_over:
            del requests[request_id]  # its last outputs are told by now


def as_token_ids(prompt: Any) -> list[int]:
    """A list of our own; what is no whole number is refused, not rounded."""
    # To iterate over a tensor gives tensors, and takes twenty times as long.
    given = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if isinstance(prompt, NO_PROMPTS) or not isinstance(given, Iterable):
        raise ValueError(
            f"a prompt must be text or a list of token ids, got {prompt!r}"
        )
    token_ids = cast("Iterable[Any]", given)
    return [t if type(t) is int else _as_token_id(t) for t in token_ids]


def _as_token_id(token_id: Any) -> int:
    # To Python, True is the number 1.
    if not isinstance(token_id, bool):
        with contextlib.suppress(TypeError):
            return operator.index(token_id)
    raise ValueError(f"a token id must be an int, got {token_id!r}")


def check_prompt(
    token_ids: list[int], params: SamplingParams, vocab_size: int, max_len: int | None
) -> None:
    """Raise ValueError for a prompt that the model cannot take."""
    if not token_ids:
        raise ValueError("a prompt must have at least one token")
    for token_id in token_ids:
        # CUDA would only say that some assertion failed.
        if not 0 <= token_id < vocab_size:
            raise ValueError(
                f"token ids must be in 0 … {vocab_size - 1}, got {token_id}"
            )
    # The last token that is made is never read, so it needs no position.
    if max_len is not None and len(token_ids) + params.max_tokens - 1 > max_len:
        raise ValueError(
            f"a prompt of {len(token_ids)} tokens and {params.max_tokens} to make are "
            f"more than the model's {max_len} positions"
        )


def _rows(logits: Tensor, rows: list[int]) -> Tensor:
    # Picking rows copies them, 200 kB for each at a vocabulary of 50,000. Mostly all
    # are wanted.
    is_all = rows == list(range(len(logits)))
    return logits if is_all else logits[rows]
