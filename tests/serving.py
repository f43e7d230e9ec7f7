"""The engine's loop on a fake model, and a random stream of requests for it.

`Server` checks after every operation
O1 each block is counted once per table entry, and once more if it is published;
O2 the free list and the blocks in use are the pool, each block once;
O3 every sequence reads back its tokens through its own table;
and of every plan that it keeps its promises. What has finished is compared with what
the request gives alone.
"""

import random
from dataclasses import dataclass

from fake_model import STOP, FakeMemory, alone, choose, forward

from paged_attention import (
    BlockAllocator,
    PrefixCache,
    SamplingParams,
    Scheduler,
    Sequence,
    StepPlan,
)


@dataclass
class Served:
    """A request, and what came of it."""

    prompt: list[int]
    params: SamplingParams
    first: Sequence
    sequences: list[Sequence]  # all that are not dropped, finished ones included

    def outputs(self) -> list[list[int]]:
        return sorted(s.token_ids[s.num_prompt_tokens :] for s in self.sequences)


class Server:
    """The engine's loop on fake memory; every invariant is checked after each step."""

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        token_budget: int = 64,
        max_seqs: int = 16,
        prefix_caching: bool = False,
        num_host_blocks: int = 0,
        scheduler_class: type[Scheduler] = Scheduler,
        allocator_class: type[BlockAllocator] = BlockAllocator,
        **parts,
    ) -> None:
        self.allocator = allocator_class(num_blocks)
        self.cache = PrefixCache(self.allocator, block_size) if prefix_caching else None
        self.pool = self.cache or self.allocator
        self.host_pool = BlockAllocator(num_host_blocks) if num_host_blocks else None
        self.memory = FakeMemory(num_blocks, block_size)
        self.host_memory = FakeMemory(num_host_blocks, block_size)
        self.scheduler = scheduler_class(
            self.allocator,
            block_size,
            token_budget=token_budget,
            max_seqs=max_seqs,
            prefix_cache=self.cache,
            host_allocator=self.host_pool,
            **parts,
        )
        self.token_budget, self.max_seqs = token_budget, max_seqs
        self.unfinished: dict[object, Served] = {}
        self.finished: dict[object, Served] = {}
        self.plans: list[StepPlan] = []
        self.makes: list[list[bool]] = []  # for each plan: which rows make a token
        self.order: dict[object, int] = {}  # request_id -> 1, 2, … as they came

    def add(self, request_id: object, prompt: list[int], **params) -> None:
        wanted = SamplingParams(**params)
        stop = () if wanted.ignore_eos else (STOP,)
        sequence = Sequence(request_id, prompt, wanted, stop)
        self.scheduler.add(sequence)
        self.unfinished[request_id] = Served(prompt, wanted, sequence, [sequence])
        self.order[request_id] = len(self.order) + 1

    def first(self, request_id: object) -> Sequence:
        """The sequence that was added, whether it is finished or not."""
        return {**self.finished, **self.unfinished}[request_id].first

    def abort(self, request_id: object, *, executed: bool = True) -> None:
        self.scheduler.abort(request_id)
        served = self.unfinished.pop(request_id, None)
        for sequence in served.sequences if served else ():
            assert sequence.status == "finished"
            assert sequence.table is None and sequence.host_table is None
        self.check(executed)

    def run(self, max_steps: int = 5000) -> None:
        for _ in range(max_steps):
            if not self.unfinished:
                self.check()
                return
            self.step()
        raise AssertionError(f"not finished after {max_steps} steps")

    def step(self, abort: dict[str, object] | None = None) -> StepPlan:
        """One step; abort names requests that end "before" or "after" the forward."""
        before = {
            id(s): s.status for r in self.unfinished.values() for s in r.sequences
        }
        plan = self.scheduler.schedule()
        self.check_plan(plan, before)
        self.plans.append(plan)
        self.makes.append([plan.makes_token(row) for row in range(len(plan.scheduled))])
        if not plan.scheduled:
            return plan
        abort = abort or {}
        if "before" in abort:
            self.abort(abort["before"], executed=False)
        self.memory.copy_blocks(plan.swap_out, into=self.host_memory)
        self.host_memory.copy_blocks(plan.swap_in, into=self.memory)
        self.memory.copy_blocks(plan.copies)
        states = forward(self.memory, plan)
        if "after" in abort:
            self.abort(abort["after"])
        new_tokens = self.tokens_after(plan, states)
        rows = self.scheduler.finish_step(new_tokens)
        self.take_in(plan, new_tokens, rows)
        self.check()
        return plan

    def tokens_after(self, plan: StepPlan, states: list[int]) -> list[list[int] | None]:
        new_tokens: list[list[int] | None] = [None] * len(states)
        rows_of: dict[object, list[int]] = {}
        for row, (sequence, _) in enumerate(plan.scheduled):
            if plan.makes_token(row):
                rows_of.setdefault(sequence.request_id, []).append(row)
        for rows in rows_of.values():
            first = plan.scheduled[rows[0]][0]
            num_made = len(first.token_ids) - first.num_prompt_tokens
            chosen = choose(first.params, num_made, [states[row] for row in rows])
            for row, tokens in zip(rows, chosen, strict=True):
                new_tokens[row] = tokens
        return new_tokens

    def take_in(self, plan, new_tokens, rows) -> None:
        for (sequence, _), tokens, row in zip(
            plan.scheduled, new_tokens, rows, strict=True
        ):
            served = self.unfinished.get(sequence.request_id)
            if served is None:  # aborted meanwhile
                assert row == []
                continue
            assert [s.token_ids[-1] for s in row] == (tokens or [])
            if tokens is not None:
                assert row[:1] == [sequence][: len(row)]
                place = served.sequences.index(sequence)
                served.sequences[place : place + 1] = row
        for request_id, served in list(self.unfinished.items()):
            if all(s.status == "finished" for s in served.sequences):
                self.finished[request_id] = self.unfinished.pop(request_id)
                expected = alone(served.prompt, served.params)
                assert served.outputs() == expected, (request_id, expected)

    def check_plan(self, plan: StepPlan, before: dict[int, str]) -> None:
        assert bool(plan.scheduled) == bool(self.unfinished), "a step without progress"
        assert len(plan.token_ids) <= self.token_budget
        assert len(plan.scheduled) <= self.max_seqs
        assert len(set(plan.slot_mapping)) == len(plan.token_ids), "a slot twice"
        planned = {id(sequence) for sequence, _ in plan.scheduled}
        left = False
        for sequence in self.sequences():
            was, now = before[id(sequence)], sequence.status
            left |= was == "running" and now != was
            assert not (id(sequence) in planned and now != "running")
        assert left or not plan.swap_out
        assert not (left and plan.swap_in), "swapped in while somebody had to leave"
        for (sequence, query_len), table in zip(
            plan.scheduled, plan.block_tables, strict=True
        ):
            assert sequence.table.block_ids == table
            assert sequence.table.num_tokens == sequence.num_computed + query_len
        listed = [block_id for table in plan.block_tables for block_id in table]
        for _, destination in plan.copies:
            assert listed.count(destination) == 1, "a copy that is nobody's, or shared"
        size = self.memory.block_size
        for block_id in {slot // size for slot in plan.slot_mapping}:
            assert self.pool.ref_count(block_id) == 1, "a shared block is written"

    def sequences(self) -> list[Sequence]:
        return [
            sequence
            for served in self.unfinished.values()
            for sequence in served.sequences
            if sequence.status != "finished"
        ]

    def check(self, executed: bool = True) -> None:
        """O1 to O3; O3 only if the copies of the step are done."""
        alive = self.sequences()
        tables = [s.table for s in alive if s.table is not None]
        hosted = [s.host_table for s in alive if s.host_table is not None]
        if hasattr(self.allocator, "check"):
            self.pool.check(tables)  # O1 and O2
        if self.host_pool is not None:
            self.host_pool.check(hosted)
        newest_running = oldest_waiting = None
        for sequence in alive:
            place = self.order[sequence.request_id]
            if sequence.status == "running":
                newest_running = max(place, newest_running or 0)
                where, table = self.memory, sequence.table
            else:
                oldest_waiting = min(place, oldest_waiting or place)
                where, table = self.host_memory, sequence.host_table
            if sequence.status in ("waiting", "preempted"):
                assert sequence.num_computed == 0
            assert (sequence.table is None) == (sequence.status != "running")
            assert (sequence.host_table is None) == (sequence.status != "swapped")
            if table is not None and executed:  # O3
                tokens, _ = where.read(table.block_ids, sequence.num_computed)
                assert tokens == sequence.token_ids[: sequence.num_computed]
        if newest_running is not None and oldest_waiting is not None:
            assert newest_running < oldest_waiting, "somebody was overtaken"

    def assert_full(self) -> None:
        assert self.pool.num_free == self.pool.num_blocks
        if self.host_pool is not None:
            assert self.host_pool.num_free == self.host_pool.num_blocks


def rows(plan: StepPlan) -> list[tuple[object, int]]:
    """Who runs in a step, and how many of its tokens."""
    return [(sequence.request_id, query_len) for sequence, query_len in plan.scheduled]


def status(server: Server) -> dict[object, list[str]]:
    """The status of each sequence of each request that was not aborted."""
    served = {**server.finished, **server.unfinished}
    return {i: [s.status.value for s in r.sequences] for i, r in served.items()}


# --- anything, in any order ---------------------------------------------------------


def random_server(rng: random.Random) -> Server:
    """Small pools, so that most of the time something is short."""
    block_size = rng.choice((1, 2, 3, 3, 16))
    num_blocks = rng.randint(1, 6) if block_size == 16 else rng.randint(8, 40)
    if block_size == 3:
        num_blocks = num_blocks // 2
    return Server(
        num_blocks,
        block_size,
        token_budget=rng.choice((1, 2, 3, 5, 8, 40, 40)),
        max_seqs=rng.choice((1, 3, 8, 16)),
        prefix_caching=rng.random() < 0.5,
        num_host_blocks=rng.choice((0, 0, 1, 3, 20)),
    )


def random_params(rng: random.Random) -> dict[str, object]:
    params: dict[str, object] = {"max_tokens": rng.choice((1, 1, 2, 4, 9, 14))}
    match rng.randrange(6):
        case 0:
            params["n"] = rng.randint(2, 3)
        case 1 | 2:
            params["beam_width"] = rng.randint(1, 3)
        case _:
            pass
    params["ignore_eos"] = rng.random() < 0.5
    return params


def random_step(server: Server, rng: random.Random, name: int) -> None:
    """Add, step or abort; what is refused must change nothing."""
    some = [*server.unfinished, *list(server.finished)[-2:], "nobody"]
    kind = rng.random()
    if kind < 0.4 and len(server.unfinished) < 8:
        prompt = rng.choices(range(2), k=rng.randint(1, 8))
        try:
            server.add(name, prompt, **random_params(rng))
        except ValueError as error:
            assert "can never" in str(error)
            server.check()
    elif kind < 0.45:
        server.abort(rng.choice(some))
    elif kind < 0.48:
        server.step(abort={rng.choice(("before", "after")): rng.choice(some)})
    else:
        server.step()
