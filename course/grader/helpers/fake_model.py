"""A model that is wrong at once if one slot is: for tests of schedulers.

Where a real model keeps a key and a value, this one keeps whose token it is, at which
position, and a number that depends on all tokens up to there. The next token is drawn
from that number, after the whole history was read back through the block table. `alone`
is the oracle: it knows no blocks.
"""

from collections.abc import Iterable
from typing import Any

from course.grader.failures import fail

START = 0x9E3779B97F4A7C15
VOCABULARY = 40

Params = dict[str, Any]  # of SamplingParams
Entry = tuple[str, int, int, int]  # whose, position, token, state


def after(state: int, token_id: int) -> int:
    """What "the keys and values" of a history are, with one more token."""
    return (state * 6364136223846793005 + token_id * 1442695040888963407 + 1) % 2**64


def state_of(token_ids: Iterable[int]) -> int:
    state = START
    for token_id in token_ids:
        state = after(state, token_id)
    return state


def num_seqs(params: Params) -> int:
    """How many sequences of a request may be alive at once."""
    return params.get("beam_width") or params.get("n", 1)


def choose(params: Params, num_made: int, states: list[int]) -> list[list[int]]:
    """The tokens that follow each sequence of a group, the state of each given."""

    def choice(state: int, k: int) -> int:
        return ((state >> 29) + 3 * k) % VOCABULARY

    width = num_seqs(params)
    if params.get("beam_width") is None:
        n = width if num_made == 0 else 1
        return [[choice(state, k) for k in range(n)] for state in states]
    candidates = [
        (after(state, choice(state, k)), row, choice(state, k))
        for row, state in enumerate(states)
        for k in range(width)
    ]
    chosen: list[list[int]] = [[] for _ in states]
    for _, row, token_id in sorted(candidates)[:width]:
        chosen[row].append(token_id)
    return chosen


def alone(prompt: list[int], params: Params) -> list[list[int]]:
    """What a request gives that has a machine to itself: its outputs, sorted."""
    running = [list(prompt)]
    for num_made in range(params["max_tokens"]):
        chosen = choose(params, num_made, [state_of(tokens) for tokens in running])
        running = [
            [*tokens, token_id]
            for tokens, token_ids in zip(running, chosen, strict=True)
            for token_id in token_ids
        ]
    return sorted(tokens[len(prompt) :] for tokens in running)


class FakeMemory:
    """The slots of all blocks, and who wrote what into them."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self._slots: list[Entry | None] = [None] * (num_blocks * block_size)

    def execute(self, plan: dict[str, Any]) -> None:
        """Copy and write as a plan says; nothing of it is believed, all is read."""
        size = self.block_size
        for a, b in plan["copies"]:
            self._slots[b * size : (b + 1) * size] = self._slots[
                a * size : (a + 1) * size
            ]
        starts = plan["query_start_loc"]
        for row, (name, _, _) in enumerate(plan["scheduled"]):
            for i in range(starts[row], starts[row + 1]):
                position, token_id = plan["positions"][i], plan["token_ids"][i]
                before = None
                if position:
                    before = self._at(plan["block_tables"][row], position - 1)
                state = after(before[3] if before else START, token_id)
                self._slots[plan["slot_mapping"][i]] = name, position, token_id, state

    def read(self, name: str, block_ids: list[int], token_ids: list[int]) -> int:
        """The state after these tokens; fails at the first that is not there."""
        state = START
        for position, token_id in enumerate(token_ids):
            state = after(state, token_id)
            entry = self._at(block_ids, position)
            if entry is None or entry[1:] != (position, token_id, state):
                block_id, offset = divmod(position, self.block_size)
                fail(
                    f"{name} reads back its own tokens through its block table",
                    expected=f"its token of position {position}, at offset {offset} of "
                    f"block {block_ids[block_id]}",
                    got=_words_for(entry, position, token_id),
                )
        return state

    def _at(self, block_ids: list[int], position: int) -> Entry | None:
        block_id, offset = divmod(position, self.block_size)
        return self._slots[block_ids[block_id] * self.block_size + offset]


def _words_for(entry: Entry | None, position: int, token_id: int) -> str:
    if entry is None:
        return "nothing was ever written there"
    words = f"what {entry[0]} wrote there: its token of position {entry[1]}"
    if entry[1:3] == (position, token_id):
        words += ", computed after other tokens than these"
    return words
