"""A model that is wrong at once if one slot is: for tests of the scheduler.

Where a real model keeps a key and a value, this one keeps the position, the token and a
number that depends on every token up to there, as keys and values do. The next token is
drawn from that number, after the whole history was read back through the block table.
So outputs equal those of a request that runs alone only if no slot, copy, swap or
shared block was ever wrong.

`alone` is the oracle: it knows no blocks. `serving.Server` is the engine's loop.
"""

from paged_attention import SamplingParams, StepPlan

START = 0x9E3779B97F4A7C15
VOCABULARY = 40
STOP = 7


def after(state: int, token_id: int) -> int:
    """What "the keys and values" of a history are, with one more token."""
    return (state * 6364136223846793005 + token_id * 1442695040888963407 + 1) % 2**64


def choice(state: int, k: int) -> int:
    """The k-th best token to follow."""
    return ((state >> 29) + 3 * k) % VOCABULARY


class FakeMemory:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.slots: list[object] = ["never written"] * (num_blocks * block_size)

    def copy_blocks(self, pairs, into: "FakeMemory | None" = None) -> None:
        size, target = self.block_size, self if into is None else into
        for a, b in pairs:
            target.slots[b * size : (b + 1) * size] = self.slots[
                a * size : (a + 1) * size
            ]

    def at(self, block_ids, position: int) -> object:
        block_id, offset = divmod(position, self.block_size)
        return self.slots[block_ids[block_id] * self.block_size + offset]

    def read(self, block_ids, seq_len: int) -> tuple[list[int], int]:
        """The tokens of a sequence and its state; AssertionError for a foreign slot."""
        tokens, state = [], START
        for position in range(seq_len):
            entry = self.at(block_ids, position)
            assert isinstance(entry, tuple), f"position {position} holds {entry!r}"
            state = after(state, entry[1])
            assert entry == (position, entry[1], state), (
                f"position {position} holds {entry}, which belongs to another history"
            )
            tokens.append(entry[1])
        return tokens, state


def forward(memory: FakeMemory, plan: StepPlan) -> list[int]:
    """Write what the plan says, as a model does; the state at the end of each row."""
    starts = plan.query_start_loc
    for row, block_ids in enumerate(plan.block_tables):
        for i in range(starts[row], starts[row + 1]):
            position, token_id = plan.positions[i], plan.token_ids[i]
            before = (START,)
            if position:
                before = memory.at(block_ids, position - 1)
            entry = (position, token_id, after(before[-1], token_id))
            memory.slots[plan.slot_mapping[i]] = entry
    # Read only when all is written: attention sees what the whole step wrote.
    states = []
    for (sequence, _), seq_len, block_ids in zip(
        plan.scheduled, plan.seq_lens, plan.block_tables, strict=True
    ):
        tokens, state = memory.read(block_ids, seq_len)
        assert tokens == sequence.token_ids[:seq_len]
        states.append(state)
    return states


def choose(params: SamplingParams, num_made: int, states: list[int]) -> list[list[int]]:
    """The tokens that follow each sequence of a group, the state of each given."""
    if params.beam_width is None:
        width = params.n if num_made == 0 else 1
        return [[choice(state, k) for k in range(width)] for state in states]
    chosen: list[list[int]] = [[] for _ in states]
    candidates = [
        (after(state, choice(state, k)), row, choice(state, k))
        for row, state in enumerate(states)
        for k in range(params.beam_width + 1)
    ]
    alive = 0
    for _, row, token_id in sorted(candidates):
        chosen[row].append(token_id)
        # A beam that ends here is a result, and makes room for another one.
        alive += num_made + 1 == params.max_tokens or not ends(params, token_id)
        if alive == params.beam_width:
            break
    return chosen


def ends(params: SamplingParams, token_id: int) -> bool:
    return token_id == STOP and not params.ignore_eos


def alone(prompt: list[int], params: SamplingParams) -> list[list[int]]:
    """What a request gives that has a machine to itself: its outputs, sorted."""
    running, outputs = [list(prompt)], []
    for num_made in range(params.max_tokens):
        chosen = choose(params, num_made, [state_of(tokens) for tokens in running])
        running = [
            [*tokens, token_id]
            for tokens, token_ids in zip(running, chosen, strict=True)
            for token_id in token_ids
        ]
        last = num_made + 1 == params.max_tokens
        outputs += [t for t in running if last or ends(params, t[-1])]
        running = [t for t in running if not ends(params, t[-1])]
    return sorted(tokens[len(prompt) :] for tokens in outputs)


def state_of(tokens: list[int]) -> int:
    state = START
    for token_id in tokens:
        state = after(state, token_id)
    return state
