"""What one step of the engine does, as plain lists, and what may come out of it."""

from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass, field

from paged_attention.block_table import BlockTable
from paged_attention.sequence import Sequence

NewTokens = Row[list[int] | None]  # one entry per row of the plan

Pairs = list[tuple[int, int]]  # of block ids: (source, destination)


@dataclass(eq=False)
class StepPlan:
    """One forward pass over a mixed batch: chunks of prompts, and single new tokens.

    The engine executes it in this order: swap_out, swap_in, copies, and then the
    forward pass, which writes a key and value for each token into its slot. The order
    is not free: a block that was swapped out may be the destination of what follows.

    Row i belongs to scheduled[i]. The tokens of all rows stand one after the other,
    without padding; those of row i from query_start_loc[i] to query_start_loc[i + 1].
    A sequence with 6 tokens computed that makes its next, beside a new prompt of 4, in
    blocks of 4 with the tables [7, 2] and [9]:

        token_ids        [t6, p0, p1, p2, p3]
        positions        [6, 0, 1, 2, 3]
        slot_mapping     [10, 36, 37, 38, 39]     block 2, offset 2; block 9
        query_start_loc  [0, 1, 5]
        seq_lens         [7, 4]
    """

    swap_out: Pairs = field(default_factory=list)  # (block, host block)
    swap_in: Pairs = field(default_factory=list)  # (host block, block)
    copies: Pairs = field(default_factory=list)  # as if one after the other
    scheduled: list[tuple[Sequence, int]] = field(default_factory=list)  # query_len
    token_ids: list[int] = field(default_factory=list)  # [num_tokens]
    positions: list[int] = field(default_factory=list)  # [num_tokens]
    slot_mapping: list[int] = field(default_factory=list)  # [num_tokens]
    query_start_loc: list[int] = field(default_factory=lambda: [0])  # [num_rows + 1]
    seq_lens: list[int] = field(default_factory=list)  # [num_rows], new tokens included
    block_tables: list[list[int | None]] = field(default_factory=list)  # not padded

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    def add_row(self, sequence: Sequence, slots: list[int]) -> None:
        """The next tokens of a sequence, as many as there are slots for them.

        Its table must have room for them already.
        """
        assert sequence.table is not None, "a sequence in a step has a table"
        start = sequence.num_computed
        stop = start + len(slots)
        self.scheduled.append((sequence, len(slots)))
        self.token_ids += sequence.token_ids[start:stop]
        self.positions += range(start, stop)
        self.slot_mapping += slots
        self.query_start_loc.append(len(self.token_ids))
        self.seq_lens.append(stop)
        self.block_tables.append(sequence.table.block_ids)

    def makes_token(self, row: int) -> bool:
        """Whether the row ends with its sequence's newest token, so that one follows.

        If not, it is a chunk of a prompt, and there is nothing to choose yet. To be
        asked before `finish_step`, which appends that token.
        """
        return self.seq_lens[row] == len(self.scheduled[row][0].token_ids)


def check_tokens(plan: StepPlan, new_tokens: NewTokens) -> None:
    """Raise ValueError unless new_tokens can be what came out of the plan."""
    if len(new_tokens) != len(plan.scheduled):
        raise ValueError(
            f"{len(plan.scheduled)} rows were scheduled, got tokens for "
            f"{len(new_tokens)}"
        )
    forked: set[object] = set()
    rows = zip(plan.scheduled, new_tokens, strict=True)
    for i, ((sequence, _), tokens) in enumerate(rows):
        if sequence.table is None:
            continue  # aborted meanwhile, so whatever came out of it is dropped
        makes_token = plan.makes_token(i)
        if not (isinstance(tokens, list) if makes_token else tokens is None):
            expected = "a list" if makes_token else "None: it is a chunk of a prompt"
            raise ValueError(f"row {i} expects {expected}, got {tokens!r}")
        if tokens is not None and len(tokens) > 1:
            # Only these can have become too many, and there are few of them.
            forked.add(sequence.request_id)
    if forked:
        _check_forks(plan, new_tokens, forked)


def _check_forks(
    plan: StepPlan, new_tokens: NewTokens, request_ids: set[object]
) -> None:
    # Only those that live on count: a beam that ends with its token takes no block.
    # More than num_seqs were not reckoned with when the request was let in.
    alive: Counter[object] = Counter()
    for (sequence, _), tokens in zip(plan.scheduled, new_tokens, strict=True):
        if sequence.request_id in request_ids:
            going_on = [t for t in tokens or () if sequence.reason_to_end(t) is None]
            alive[sequence.request_id] += len(going_on)
            if alive[sequence.request_id] > sequence.params.num_seqs:
                raise ValueError(
                    f"request {sequence.request_id!r} may have "
                    f"{sequence.params.num_seqs} sequences at once, got tokens for "
                    f"{alive[sequence.request_id]}"
                )


def fork_tables(
    plan: StepPlan,
    new_tokens: NewTokens,
    fork: Callable[[BlockTable], BlockTable],
) -> dict[int, list[BlockTable | None]]:
    """Row -> a fork of its table for each token after the first, or none of all.

    No table, but None, for a token with which the fork would be complete at once.
    """
    made: dict[int, list[BlockTable | None]] = {}
    try:
        for i, tokens in enumerate(new_tokens):
            sequence, _ = plan.scheduled[i]
            if tokens is None or len(tokens) < 2 or sequence.table is None:
                continue
            made[i] = []
            for token_id in tokens[1:]:
                ends = sequence.reason_to_end(token_id) is not None
                # Before any token is appended: all forks are of the state that was
                # computed.
                made[i].append(None if ends else fork(sequence.table))
    except BaseException:
        # What was forked holds references, and nobody would ever give them back.
        for table in (table for tables in made.values() for table in tables):
            if table is not None:
                table.free()
        raise
    return made
