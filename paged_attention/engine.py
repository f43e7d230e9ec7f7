"""Serves requests: one step after the other, each a forward pass of many sequences.

The engine decides nothing about memory: the scheduler says what a step does, the
decoder computes it, and tokens are chosen from its logits. Every part can be replaced
by another of the same contract: allocator, table, fork, copy-on-write, scheduler,
attention.
"""

import contextlib
import random
import sys
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from numbers import Integral
from typing import Any, cast

from paged_attention import hf, model_files
from paged_attention.allocator import BlockAllocator
from paged_attention.attention import paged_attention
from paged_attention.beams import BeamSearch
from paged_attention.block_table import BlockTable
from paged_attention.config import require_at_least
from paged_attention.kv_cache import KVCache
from paged_attention.outputs import Output
from paged_attention.params import SamplingParams
from paged_attention.pool_size import sized
from paged_attention.prefix_cache import PrefixCache
from paged_attention.requests import (
    NO_PROMPTS,
    Request,
    as_token_ids,
    check_prompt,
    choose_tokens,
    settle,
)
from paged_attention.scheduler import Scheduler
from paged_attention.sequence import Sequence as TokenSequence
from paged_attention.sharing import copy_on_write, fork
from paged_attention.stats import Counts, Stats, stats_of

Prompt = str | Sequence[int]


class Engine:
    """A decoder, a pool of blocks, a scheduler, and the requests that share them.

    For one thread; whoever serves many puts a queue before it.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any = None,
        *,
        num_blocks: int | None = None,
        memory_bytes: int | None = None,
        num_host_blocks: int = 0,
        block_size: int = 16,
        prefix_caching: bool = True,
        token_budget: int = 512,
        max_seqs: int = 64,
        allocator_class: type[Any] = BlockAllocator,
        block_table_class: type[Any] = BlockTable,
        fork: Callable[..., Any] = fork,
        copy_on_write: Callable[..., Any] = copy_on_write,
        scheduler_class: type[Any] = Scheduler,
        attention: hf.Attention = paged_attention,
    ) -> None:
        """model: a causal language model of transformers; the engine takes it over.

        The KV cache has num_blocks, or as many as fit into memory_bytes; given neither,
        a gibibyte on a CPU and most of what is free on CUDA, but no more than max_seqs
        of the longest texts need. With num_host_blocks the scheduler preempts by
        swapping. Raises UnsupportedModelError, with the reason, for a model that needs
        what is not implemented.
        """
        self.tokenizer = tokenizer
        self.decoder = hf.Decoder(model, attention)
        try:
            self._make_caches(
                num_blocks, memory_bytes, num_host_blocks, block_size, max_seqs
            )
            self.allocator = allocator_class(self.cache.config.num_blocks)
            self.prefix_cache = None
            if prefix_caching:
                self.prefix_cache = PrefixCache(
                    self.allocator, block_size, block_table_class
                )
            self.scheduler = scheduler_class(
                self.allocator,
                block_size,
                token_budget=token_budget,
                max_seqs=max_seqs,
                prefix_cache=self.prefix_cache,
                host_allocator=(
                    allocator_class(num_host_blocks) if num_host_blocks else None
                ),
                block_table_class=block_table_class,
                fork=fork,
                copy_on_write=copy_on_write,
            )
            self.eos_token_ids = model_files.eos_token_ids(model, tokenizer)
            self._vocab_size = model.get_input_embeddings().num_embeddings
            self.decoder.pack()  # last: it cannot be undone
        except BaseException:
            self.decoder.give_back()
            raise
        self._requests: dict[Hashable, Request] = {}  # not yet over, in order
        self._num_requests = 0
        self._unread: list[Output] = []  # for the next step to return as well
        self._counts = Counts()

    def _make_caches(
        self,
        num_blocks: int | None,
        memory_bytes: int | None,
        num_host_blocks: int,
        block_size: int,
        max_seqs: int,
    ) -> None:
        require_at_least(1, "max_seqs", max_seqs)  # the pool's size hangs on it
        shape = replace(self.decoder.shape, block_size=block_size)
        most_tokens = max_seqs * (self.decoder.max_len or sys.maxsize)
        device = self.decoder.device
        config = sized(shape, num_blocks, memory_bytes, most_tokens, device)
        self.cache = KVCache(config, device)
        self.host_cache = None
        if num_host_blocks:
            self.host_cache = KVCache(replace(config, num_blocks=num_host_blocks))

    @classmethod
    def from_pretrained(
        cls, name_or_path: str, *, device: Any = None, dtype: Any = None, **options: Any
    ) -> "Engine":
        """An engine for "smollm2", a folder, or a name on the Hugging Face hub.

        device None: CUDA if there is one, else the CPU. dtype None: float32 on a CPU,
        the checkpoint's own on CUDA. options: those of Engine itself.
        """
        model, tokenizer = model_files.load(name_or_path, device, dtype)
        return cls(model, tokenizer, **options)

    # --- requests come and go ---

    def generate(
        self,
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | None = None,
        raw: bool = False,
    ) -> list[Output]:
        """Complete all prompts, as many at once as fit; n outputs in a row for each.

        Prompts as in `add_request`, one or several. What other requests make meanwhile
        is returned by the next `step`.
        """
        place: dict[Hashable, int] = {}  # request_id -> where its prompt stands
        # A single call: Python 3.13.0 can lose the handler of a `try` with a loop in
        # it, for a Ctrl-C between two rounds.
        try:
            return self._complete(place, prompts, params, raw)
        except BaseException:
            # Whoever is interrupted leaves nothing behind.
            for request_id in place:
                self.abort(request_id)
            self._unread = [o for o in self._unread if o.request_id not in place]
            raise

    def _complete(
        self,
        place: dict[Hashable, int],
        prompts: Prompt | Iterable[Prompt],
        params: SamplingParams | None,
        raw: bool,
    ) -> list[Output]:
        """What `generate` returns; notes in place which requests it made for that."""
        for i, prompt in enumerate(_several(prompts)):
            place[self._num_requests] = i  # its id: noted before it is queued
            self.add_request(prompt, params, raw)
        while any(request_id in self._requests for request_id in place):
            told = len(self._unread)
            self._advance()
            # Of ours, only the last. They stay in the list until all have ended:
            # whatever comes between, no output is lost.
            self._unread[told:] = [
                output
                for output in self._unread[told:]
                if output.request_id not in place or output.finish_reason
            ]
        ended = [o for o in self._unread if o.request_id in place]
        self._unread = [o for o in self._unread if o.request_id not in place]
        return sorted(ended, key=lambda o: (place[o.request_id], o.index))

    def add_request(
        self, prompt: Prompt, params: SamplingParams | None = None, raw: bool = False
    ) -> Hashable:
        """Queue a prompt and return the id under which its outputs come.

        A prompt is a list of token ids, taken as it is, or a string, put through the
        model's chat template if it has one (raw: not). Raises ValueError, and queues
        nothing, for a request that can never be served.
        """
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, got {params!r}")
        token_ids = self.tokenize(prompt, raw) if isinstance(prompt, str) else prompt
        token_ids = as_token_ids(token_ids)
        check_prompt(token_ids, params, self._vocab_size, self.decoder.max_len)
        stops = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stops |= self.eos_token_ids
        request_id = self._num_requests
        sequence = TokenSequence(request_id, token_ids, params, tuple(stops))
        seed = random.getrandbits(63) if params.seed is None else params.seed
        request = Request(request_id, params, seed, [sequence])
        if params.beam_width is not None:
            request.beams = BeamSearch(params.beam_width, params.max_tokens, stops)
        try:
            self._requests[request_id] = request
            self.scheduler.add(sequence)  # refuses what can never fit
            self._num_requests += 1
        except BaseException:  # in both places, or in none
            self.scheduler.abort(request_id)
            self._requests.pop(request_id, None)
            raise
        return request_id

    def tokenize(self, prompt: str, raw: bool = False) -> list[int]:
        """The token ids of a prompt, inside the chat template if there is one."""
        if self.tokenizer is None:
            raise ValueError("there is no tokenizer: give token ids, not text")
        return model_files.encode(self.tokenizer, prompt, raw)

    def abort(self, request_id: Hashable) -> None:
        """End a request in whatever state it is; the next step returns what it has.

        A request that is over already, or never was, is no error.
        """
        self._end(request_id, [])

    # --- one step ---

    def step(self) -> list[Output]:
        """One forward pass; returns the outputs that grew or ended in it.

        Those of a beam search come once, when it is over: before, none is certain. If
        the model or another part raises, the requests whose step it was are aborted,
        and the others go on. So it is with a Ctrl-C, except in the thousandth of a step
        that is the scheduler's own: whoever goes on after that makes a new engine.
        """
        if self._requests:
            self._advance()
        outputs, self._unread = self._unread, []
        return outputs

    def _advance(self) -> None:
        plan = None
        try:  # without a loop, as in `generate`
            plan = self.scheduler.schedule()
            self._carry_out(plan)
        except BaseException:
            self._abort_step(plan)
            raise

    def _carry_out(self, plan: Any) -> None:
        """The forward pass; what it made is in the unread outputs then."""
        self._counts.see(plan)
        if not plan.scheduled:
            raise RuntimeError(
                f"the scheduler planned nothing, but {len(self._requests)} "
                "requests are not finished"
            )
        # Rows that end with their sequence's newest token; the others are chunks. By
        # the lists alone, which every scheduler's plan has.
        rows = [
            i
            for i, (sequence, _) in enumerate(plan.scheduled)
            if plan.seq_lens[i] == len(sequence.token_ids)
        ]
        sequences = [plan.scheduled[i][0] for i in rows]
        new_tokens: list[list[int] | None] = [None] * len(plan.scheduled)
        for i, tokens in zip(rows, self._run(plan, rows, sequences), strict=True):
            new_tokens[i] = tokens
        made = self.scheduler.finish_step(new_tokens)
        made_rows = [made[i] for i in rows]
        self._counts.see_forks(made_rows)
        # One by one: what was told before an interrupt is told.
        self._unread.extend(
            settle(self._requests, sequences, made_rows, self.tokenizer)
        )
        self._drop_what_no_layer_sees(plan)

    def _abort_step(self, plan: Any) -> None:
        """What it was to write or to swap is lost, and with it whose it was."""
        holders = [s for s in self.sequences if (s.table, s.host_table) != (None, None)]
        # Half a plan: a table may be longer by tokens that nobody will compute.
        lost = holders if plan is None else [s for s, _ in plan.scheduled]
        if plan is not None and plan.swap_out:
            lost += [s for s in holders if s.host_table is not None]
        for sequence in lost:
            self._end(sequence.request_id, lost)
        if plan is not None:
            # The scheduler waits for the end of the step, unless that was what failed.
            with contextlib.suppress(ValueError):
                self.scheduler.finish_step([None] * len(plan.scheduled))

    def _end(self, request_id: Hashable, lost: list[TokenSequence]) -> None:
        """Abort a request; told are those that go on, and the lost ones."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            # Before the scheduler ends them. Some of the lost have ended in this step.
            going_on = request.alive
            told = [s for s in request.sequences if s in going_on or s in lost]
            self.scheduler.abort(request_id)
            # Of those, some ends are told by now; and a beam, dropped, has no reason.
            ended = {(o.request_id, o.index) for o in self._unread if o.finish_reason}
            self._unread += [
                replace(output, finish_reason=output.finish_reason or "aborted")
                for output in request.outputs(told, self.tokenizer)
                if (output.request_id, output.index) not in ended
            ]

    def _run(
        self, plan: Any, rows: list[int], sequences: list[TokenSequence]
    ) -> list[list[int]]:
        """Execute the plan; the tokens of these rows."""
        # In this order: what was swapped out may be overwritten by what follows.
        if self.host_cache is not None:
            self.cache.copy_blocks(plan.swap_out, into=self.host_cache)
            self.host_cache.copy_blocks(plan.swap_in, into=self.cache)
        self.cache.copy_blocks(plan.copies)
        last_tokens = [plan.query_start_loc[i + 1] - 1 for i in rows]
        logits = self.decoder.forward(plan, self.cache, last_tokens)
        requests = [self._requests[sequence.request_id] for sequence in sequences]
        return choose_tokens(requests, sequences, logits)

    def _drop_what_no_layer_sees(self, plan: Any) -> None:
        """Where every layer slides, give back the blocks behind the widest window."""
        windows = [w for w in self.decoder.windows if w is not None]
        # A table with holes cannot be published, so it is the one or the other.
        if self.prefix_cache is not None or len(windows) < len(self.decoder.windows):
            return
        for sequence, _ in plan.scheduled:
            # The next token sees itself and window - 1 before it.
            first_seen = sequence.num_computed + 1 - max(windows)
            if sequence.table is not None and first_seen > 0:
                sequence.table.drop_before(first_seen)

    # --- what can be seen ---

    @property
    def has_work(self) -> bool:
        """Whether another step would return anything."""
        return bool(self._requests or self._unread)

    @property
    def sequences(self) -> list[TokenSequence]:
        """Those that are not finished, in the order in which their requests came."""
        return [s for request in self._requests.values() for s in request.alive]

    @property
    def stats(self) -> Stats:
        """How full the pool is now, and what happened so far."""
        pool = self.allocator if self.prefix_cache is None else self.prefix_cache
        block_size = self.cache.config.block_size
        return stats_of(
            pool, self.prefix_cache, block_size, self.sequences, self._counts
        )


def _several(prompts: Prompt | Iterable[Prompt]) -> list[Prompt]:
    """One prompt is a list of one."""
    # What is no prompt at all, too: `add_request` says so, and shows it.
    if isinstance(prompts, (str, *NO_PROMPTS)) or not isinstance(prompts, Iterable):
        return [cast("Prompt", prompts)]
    if hasattr(prompts, "tolist"):  # what iterating over a tensor gives is no int
        prompts = cast("Any", prompts).tolist()
    prompts = cast("list[Prompt]", list(prompts))
    # Integral, for the numbers of an array are no ints.
    is_one = bool(prompts) and isinstance(prompts[0], Integral)
    return [cast("list[int]", prompts)] if is_one else prompts
