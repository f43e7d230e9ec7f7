"""What an engine gives back: the tokens of one sequence, and their text."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol


class Detokenizer(Protocol):
    """What is asked of a tokenizer here: the way back, from token ids to text."""

    def decode(
        self, token_ids: Sequence[int], /, *, skip_special_tokens: bool
    ) -> str: ...


@dataclass(frozen=True)
class Output:
    """One continuation of a prompt, as it is now.

    index counts the n continuations of a request; of a beam search, the best is 0.
    finish_reason is None while it grows, then "stop", "length" or "aborted". token_ids
    are those that were made, a stop token included.
    """

    request_id: Hashable
    index: int
    token_ids: list[int] = field(hash=False)  # a list has no hash
    finish_reason: str | None
    # For `text` alone; shown, it would hide the tokens behind a page of its own.
    tokenizer: Detokenizer | None = field(default=None, repr=False, compare=False)

    @cached_property
    def text(self) -> str:
        """The tokens as text, special ones left out; empty without a tokenizer.

        Decoded when it is asked for: in a step nobody may want it.
        """
        if self.tokenizer is None:
            return ""
        text = self.tokenizer.decode(self.token_ids, skip_special_tokens=True)
        # A character of several tokens is shown once it is whole.
        return text if self.finish_reason else text.rstrip("\N{REPLACEMENT CHARACTER}")
