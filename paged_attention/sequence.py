"""One line of text in the making: its tokens, and how far it has been computed.

The state is here, every decision is in `scheduler`. What is left out: text (the engine
has the tokenizer) and probabilities (whoever chooses the tokens keeps them).
"""

import copy
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from paged_attention.block_table import BlockTable
from paged_attention.params import SamplingParams


class SequenceStatus(StrEnum):
    """Where a sequence is. Compare with ==: a copy of this class is another class."""

    WAITING = "waiting"  # never ran; holds nothing
    RUNNING = "running"  # has a table
    PREEMPTED = "preempted"  # had to leave, will be computed again; holds nothing
    SWAPPED = "swapped"  # had to leave, its blocks lie in host memory
    FINISHED = "finished"  # holds nothing, and never comes back


# eq=False: two requests for the same text are two, and each is its own key in a dict.
@dataclass(eq=False)
class Sequence:
    """A prompt and the tokens made so far.

    Invariant: keys and values are written for the first num_computed of the token_ids,
    and between two steps the table has room for exactly these. The token that was made
    last is not among them: it becomes the input of the next step. So a sequence that
    makes a token per step has num_computed == len(token_ids) - 1, and one with more to
    compute is in the middle of its prompt, or comes back after a preemption.
    """

    # After its first step, a prompt of 5 tokens has 6 token_ids, num_computed 5, and a
    # table of 5 tokens. The next step computes the sixth, at position 5.
    request_id: Hashable
    token_ids: list[int]  # the prompt and what was made; any iterable may be given
    params: SamplingParams
    stop_token_ids: Iterable[int] = ()  # those of the params are added
    num_prompt_tokens: int = field(init=False)
    num_computed: int = field(default=0, init=False)
    table: BlockTable | None = field(default=None, init=False)  # while RUNNING
    host_table: BlockTable | None = field(default=None, init=False)  # while SWAPPED
    status: SequenceStatus = field(default=SequenceStatus.WAITING, init=False)
    finish_reason: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.token_ids = list(self.token_ids)  # it grows, so it must be our own
        for token_id in self.token_ids:
            self._check_int(token_id)
        # A set, since every token that is made is looked up in it.
        self.stop_token_ids = {*self.stop_token_ids, *self.params.stop_token_ids}
        self.num_prompt_tokens = len(self.token_ids)

    def _check_int(self, token_id: object) -> None:
        # list() takes a tensor apart, and a string: no cache would find the pieces.
        if not isinstance(token_id, int):
            raise ValueError(
                f"token_ids of request {self.request_id!r} must be ints, "
                f"got {token_id!r}"
            )

    @property
    def num_to_compute(self) -> int:
        """How many tokens have no key and value yet, the newest one included."""
        return len(self.token_ids) - self.num_computed

    def append(self, token_id: int) -> None:
        """Take the next token; with the last one the sequence is finished."""
        reason = self.reason_to_end(token_id)
        self.token_ids.append(token_id)
        if reason is not None:
            self.finish(reason)

    def reason_to_end(self, token_id: int) -> str | None:
        """Why the sequence would be complete with this token, or None."""
        if token_id in self.stop_token_ids:
            return "stop"
        # The prompt's end is fixed; what was made before a preemption counts on.
        num_made = len(self.token_ids) - self.num_prompt_tokens
        return "length" if num_made + 1 >= self.params.max_tokens else None

    def twin(self, table: BlockTable | None) -> "Sequence":
        """The same sequence once more, over another table; from here on they differ."""
        twin = copy.copy(self)
        # The only thing in it that grows; params and stop tokens are never changed.
        twin.token_ids = list(self.token_ids)
        twin.table = table
        return twin

    def finish(self, reason: str | None) -> None:
        """Give back everything. The reason is "stop", "length" or "aborted"; a beam
        that was dropped has None."""
        # At most one of them is there. Aborting a sequence that waits frees nothing.
        for table in (self.table, self.host_table):
            if table is not None:
                table.free()
        self.table = self.host_table = None
        self.status, self.finish_reason = SequenceStatus.FINISHED, reason


@dataclass(eq=False)
class SequenceGroup:
    """The sequences of one request: admitted, preempted, resumed and ended together.

    It begins with one, the prompt. Forks join it (n > 1, beams), those that end leave.
    Source: `SequenceGroup` in the paper, section 4.5: gang-scheduled.
    """

    request_id: Hashable
    sequences: list[Sequence]  # those that are not finished
    max_num_seqs: int  # as many may it become: n or beam_width, at first

    @property
    def tables(self) -> list[BlockTable]:
        """Of its sequences, in order; [] while it waits."""
        return [s.table for s in self.sequences if s.table is not None]

    @property
    def host_tables(self) -> list[BlockTable]:
        """Of its sequences, in order; [] unless it is swapped out."""
        return [s.host_table for s in self.sequences if s.host_table is not None]
