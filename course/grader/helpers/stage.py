"""The engine's loop, for a learner's scheduler that lives in the worker (ex12.py).

Scheduler, sequences and tables are told here as plain data, after everything that is
done to them. Here are the fake model and the books: each plan is compared with what it
must say, executed on fake memory, and read back through the block tables.
"""

import json
from collections.abc import Callable
from typing import Any

from course.grader import expect, expect_that, rewrite_history
from course.grader.failures import CheckFailed, fail
from course.grader.helpers import step_books as books
from course.grader.helpers.fake_model import (
    FakeMemory,
    Params,
    alone,
    choose,
    num_seqs,
)

ACT = "course.grader.helpers.ex12:act"


class Stage:
    """A scheduler and the requests that it serves; every step is looked at."""

    def __init__(
        self,
        exercise: Any,
        num_blocks: int,
        block_size: int = 4,
        *,
        token_budget: int = 64,
        max_seqs: int = 8,
        caching: bool = False,
    ) -> None:
        rewrite_history(exercise)
        self.exercise = exercise
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.token_budget = token_budget
        self.max_seqs = max_seqs
        self.caching = caching
        self.memory = FakeMemory(num_blocks, block_size)
        self.requests: dict[str, tuple[list[int], Params]] = {}  # not aborted
        self.order: list[str] = []  # as they came
        self.num_steps = 0
        self.state: dict[str, Any] = {}  # as it was when somebody looked last
        self.plan: dict[str, Any] = {}
        told = f"scheduler = StepScheduler(pool of {num_blocks} blocks, {block_size}, "
        told += f"token_budget={token_budget}, max_seqs={max_seqs}"
        told += ", prefix_cache=…)" if caching else ")"
        kind, options = exercise.StepScheduler, (token_budget, max_seqs, caching)
        self._act(told, "set_up", kind, num_blocks, block_size, *options)

    def _act(self, told: str, name: str, *args: object) -> Any:
        """Do it in the worker; told is its line in the history."""
        seen = json.loads(self.exercise._link.helper(ACT, (name, list(args)), told))
        self.state, self.plan = seen["state"], seen["plan"]
        return seen["result"]

    def _say(self, line: str) -> None:
        self.exercise._link.history.add(f"    {line}")

    # --- what happens around the scheduler ---

    def hold(self, num_blocks: int) -> None:
        blocks = f"{num_blocks} block{'' if num_blocks == 1 else 's'}"
        if num_blocks:  # of nothing the history need not speak
            self._act(f"somebody else takes {blocks}", "hold", num_blocks)

    def let_go(self) -> None:
        self._act("the blocks that somebody else took are free again", "let_go")

    def share(self, name: str) -> None:
        self._act(f"somebody else holds the blocks of {name}, too", "share", name)

    def remember(self, token_ids: list[int]) -> None:
        told = f"{len(token_ids)} tokens have run and gone; the prefix cache knows them"
        self._act(told, "remember", token_ids)

    def place(
        self,
        name: str,
        *token_ids: list[int],
        written: list[int],
        forked: bool = False,
        runs: bool = True,
    ) -> None:
        """A group in the middle of its life."""
        lengths = f"{name}: {books.listed(map(len, token_ids))} tokens"
        told = f"{lengths}, {books.listed(written)} of them computed"
        told += ", in the same blocks" if forked else ""
        if not runs:
            told = f"{lengths}, was preempted and waits"
        groups = list(token_ids), written, forked, runs
        self._act(f"group {told}", "place_group", name, *groups)

    # --- calls of the scheduler's methods ---

    def line_up(self, name: str, prompt: list[int], **params: Any) -> None:
        self._come("line_up", name, prompt, params)

    def add(self, name: str, prompt: list[int], **params: Any) -> None:
        self._come("add", name, prompt, params)

    def _come(self, how: str, name: str, prompt: list[int], params: Params) -> None:
        params = {"max_tokens": 1} | params
        asked = ", ".join(f"{key}={value}" for key, value in params.items())
        told = f"scheduler.{how}({name}: {len(prompt)} tokens, {asked})"
        self._act(told, how, name, prompt, params)
        self.requests[name] = prompt, params
        self.order.append(name)

    def owed_blocks(self, name: str) -> int:
        return self._call("owed_blocks", name)

    def admit_next(self) -> str | None:
        return self._call("admit_next")

    def new_plan(self) -> None:
        self._act("plan = Plan()", "new_plan", self.exercise.Plan)

    def add_row(self, name: str, num_tokens: int) -> None:
        told = f"plan.add_row({name}, the slots of its next {num_tokens} tokens)"
        self._act(told, "add_row", name, num_tokens)

    def blocks_needed(self, name: str, query_lens: list[int]) -> int:
        return self._call("blocks_needed", name, query_lens)

    def plan_group(self, name: str) -> bool:
        return self._call("plan_group", name, told=f"{name}, plan")

    def preempt(self, name: str) -> None:
        self._call("preempt", name)

    def continue_running(self) -> list[str]:
        return self._call("continue_running", told="plan")

    def abort(self, name: str) -> None:
        self._act(f"scheduler.abort({name!r})", "abort", name)
        self.requests.pop(name, None)

    def _call(self, name: str, *args: object, told: str | None = None) -> Any:
        words = ", ".join(map(str, args)) if told is None else told
        result = self._act(f"scheduler.{name}({words})", name, *args)
        self._say(f"-> {result}")
        return result

    # --- the engine's loop ---

    def step(self, abort: str = "") -> dict[str, Any]:
        """One step, checked all over; abort: who ends before it is finished."""
        self.num_steps += 1
        before = self.state
        self._act(f"step {self.num_steps}: scheduler.schedule()", "schedule")
        plan, state = self.plan, self.state
        told = books.rows_in_words(plan) + books.others_in_words(before, state)
        try:
            books.check_made(before, state)
            self.check_plan()
            if not plan["scheduled"]:
                return plan
            if abort:
                self.abort(abort)
            self.memory.execute(plan)
            tokens = self._tokens_after(plan, state)
        except CheckFailed:
            self._say(told)
            raise
        self._act(f"    {told}; finish_step", "finish_step", tokens)
        self.check_state()
        return plan

    def step_until(self, come: Callable[[], bool], what: str, most: int = 12) -> None:
        """So many steps at most until what is waited for has come."""
        for _ in range(most):
            if come():
                return
            self.step()
        if not come():
            fail(what, expected=f"in one of {most} steps", got="in none of them")

    def run(self, max_steps: int = 300) -> None:
        """Until all are finished; then compare what they made, and the pool."""
        for _ in range(max_steps):
            if not self.unfinished():
                break
            self.step()
        expect(self.unfinished(), [], f"requests that go on after {max_steps} steps")
        for name, (prompt, params) in self.requests.items():
            made = [
                one["token_ids"][len(prompt) :]
                for one in self.state["sequences"][name]
                if one["finish_reason"] is not None  # else a beam that was dropped
            ]
            claim = f"{name} makes the tokens that it makes with a machine to itself"
            expect(sorted(made), alone(prompt, params), claim)
        self.expect_full()

    def step_in_vain(self) -> None:
        """A step in which nobody can run, since somebody else has the blocks."""
        self._act("scheduler.schedule()", "schedule")
        self._say(books.rows_in_words(self.plan))
        expect(self.plan["scheduled"], [], "rows of the plan: nobody fits")

    def look(self) -> dict[str, Any]:
        """The state anew, after a call that raised."""
        self._act("(a look at the scheduler)", "look")
        return self.state

    def expect_full(self) -> None:
        claim = "nothing is left to do, so all blocks of the pool are free"
        expect(self.state["num_free"], self.num_blocks, claim)

    def unfinished(self) -> list[str]:
        return [name for name in self.requests if books.alive(self.state, name)]

    def _tokens_after(
        self, plan: dict[str, Any], state: dict[str, Any]
    ) -> list[list[int] | None]:
        """What the model makes of each row; None for a chunk of a prompt."""
        tokens: list[list[int] | None] = [None] * len(plan["scheduled"])
        rows_of: dict[str, list[int]] = {}
        states: list[int] = []
        for row, (name, place, _) in enumerate(plan["scheduled"]):
            own = state["sequences"][name][place]["token_ids"]
            seq_len, block_ids = plan["seq_lens"][row], plan["block_tables"][row]
            states.append(self.memory.read(name, block_ids, own[:seq_len]))
            # Whoever was aborted meanwhile makes nothing any more.
            if seq_len == len(own) and name in self.requests:
                rows_of.setdefault(name, []).append(row)
        for name, rows in rows_of.items():
            prompt, params = self.requests[name]
            _, place, _ = plan["scheduled"][rows[0]]
            own = state["sequences"][name][place]["token_ids"]
            num_made = len(own) - len(prompt)
            chosen = choose(params, num_made, [states[row] for row in rows])
            for row, each in zip(rows, chosen, strict=True):
                tokens[row] = each
        return tokens

    # --- the books ---

    def check_plan(self) -> None:
        """The plan that schedule has just made keeps every promise."""
        plan, state = self.plan, self.state
        if self.unfinished() and not plan["scheduled"]:
            fail(
                "each step computes something while requests are open",
                expected=f"one row or more, of {books.listed(self.unfinished())}",
                got="a plan with no rows",
            )
        books.check_rows(plan, state, self.block_size)
        books.check_writes(plan, state, self.block_size)
        claim = "no step computes more tokens than token_budget"
        got, most = len(plan["token_ids"]), self.token_budget
        expect_that(got <= most, claim, got=got, expected=f"{most} at most")
        claim = "no step has room for more sequences than max_seqs"
        names = {name for name, _, _ in plan["scheduled"]}
        got = sum(num_seqs(self.requests[name][1]) for name in names)
        most = self.max_seqs
        expect_that(got <= most, claim, got=got, expected=f"{most} at most")
        books.check_groups(plan, state)
        books.check_order(state, self.order)

    def check_state(self) -> None:
        """Counts match the tables, and everybody can read back what was computed."""
        books.check_counts(self.state, self.caching)
        for name, sequences in self.state["sequences"].items():
            for one in sequences:
                if one["status"] == "running":
                    claim = f"the table of {name} has room for what is computed"
                    expect(one["num_tokens"], one["num_computed"], claim)
                    computed = one["token_ids"][: one["num_computed"]]
                    self.memory.read(name, one["block_ids"], computed)
