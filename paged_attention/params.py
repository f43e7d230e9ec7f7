"""What a request may ask for: how its tokens are chosen, and when it ends."""

import math
from dataclasses import dataclass
from numbers import Real


@dataclass(frozen=True)
class SamplingParams:
    """How to continue a prompt; every value is checked when it is made.

    temperature 0 is greedy. n > 1 asks for n continuations, which share the prompt's
    blocks. With beam_width they are the n best that a beam search of this width finds;
    it draws nothing, so temperature and top_p stay at their defaults. With a seed the
    same request gives the same tokens again.
    """

    max_tokens: int = 16  # to make, at most; a stop token counts
    temperature: float = 0.0
    top_p: float = 1.0
    n: int = 1
    # vLLM has no such field: its beam search is a loop around the engine,
    # `LLM.beam_search`, with a request for each beam and step. Here beams fork and
    # share.
    beam_width: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    seed: int | None = None
    ignore_eos: bool = False  # of the model's; stop_token_ids still end it

    def __post_init__(self) -> None:
        self._check_whole("max_tokens", self.max_tokens, 1)
        self._check_whole("n", self.n, 1)
        if self.seed is not None:
            self._check_whole("seed", self.seed, 0)
        if not (self._is_number(self.temperature) and self.temperature >= 0):
            raise ValueError(
                f"temperature must be finite and >= 0, got {self.temperature!r}"
            )
        if not (self._is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ValueError(f"top_p must be above 0 and at most 1, got {self.top_p!r}")
        try:
            # A list is welcome; what is kept can be shared by the forks of a sequence.
            # Frozen means frozen for us as well, hence this back door.
            object.__setattr__(self, "stop_token_ids", tuple(self.stop_token_ids))
        except TypeError:
            raise ValueError(
                f"stop_token_ids must be a list of them, got {self.stop_token_ids!r}"
            ) from None
        for token_id in self.stop_token_ids:
            self._check_whole("a stop token id", token_id, 0)
        if self.beam_width is not None:
            self._check_beams(self.beam_width)

    @property
    def num_seqs(self) -> int:
        """How many sequences of this request may be alive at once."""
        return self.n if self.beam_width is None else self.beam_width

    def _check_beams(self, beam_width: int) -> None:
        self._check_whole("beam_width", beam_width, 1)
        if self.n > beam_width:
            raise ValueError(
                f"n must be at most beam_width, got n={self.n} of {beam_width} beams"
            )
        if self.temperature != 0 or self.top_p != 1:
            raise ValueError(
                "beam search draws nothing: temperature must be 0 and top_p 1, got "
                f"{self.temperature} and {self.top_p}"
            )

    @staticmethod
    def _is_number(value: object) -> bool:
        return isinstance(value, Real) and math.isfinite(value)

    @staticmethod
    def _check_whole(name: str, value: object, least: int) -> None:
        # type() and not isinstance, which takes True for 1.
        if type(value) is not int or value < least:
            raise ValueError(f"{name} must be a whole number >= {least}, got {value!r}")
