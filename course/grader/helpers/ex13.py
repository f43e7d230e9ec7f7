"""A small engine that serves requests of every kind, for exercise 13.

The grader runs it with the package's parts, the worker with one of the learner's in
their place: the same weights, requests and steps on both sides.
"""

import random
import sys
from collections import Counter
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

import torch
from transformers import MistralConfig
from transformers.models.mistral.modeling_mistral import MistralForCausalLM
from transformers.utils import logging

from paged_attention import model_files
from paged_attention.engine import Engine
from paged_attention.params import SamplingParams

Part = Callable[[], dict[str, Any]]  # my_allocator and its like

VOCAB = 96
COMMON = {"block_size": 4, "token_budget": 16, "max_seqs": 8}
SETTINGS: dict[str, dict[str, Any]] = {
    "roomy": {"num_blocks": 64, "prefix_caching": True},  # with a sliding window
    # 14 is what the largest request needs at its worst; two of them need more.
    "tight": {"num_blocks": 14, "prefix_caching": False},
}
QUESTIONS = ["What is the capital of France?", "Name three primes."]
WINDOW = 7
SMOLLM2_TOKENS = 4
MOST_STEPS = 500  # it takes about a tenth of that


def make_model(window: int | None) -> Any:
    """A Mistral of three layers, six heads over two; random, but with opinions.

    Each token sees itself and window - 1 before it; None: all. With the usual, smaller
    weights it would repeat one token, whatever it attends to.
    """
    torch.manual_seed(0)
    config = MistralConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.3,
        tie_word_embeddings=False,
        sliding_window=window,
    )
    return MistralForCausalLM(config)


def requests() -> list[tuple[list[int], dict[str, Any]]]:
    """Prompts, some of which begin alike, and how each is to be answered."""
    rng = random.Random(13)

    def tokens(n: int) -> list[int]:
        return [rng.randrange(VOCAB) for _ in range(n)]

    system = tokens(9)
    return [
        (system + tokens(3), {"max_tokens": 14}),
        (tokens(2), {"max_tokens": 18}),
        (tokens(21), {"max_tokens": 6}),
        (system + tokens(5), {"max_tokens": 9, "n": 2, "temperature": 1.5, "seed": 3}),
        (system + tokens(2), {"max_tokens": 8, "n": 2, "beam_width": 2}),
        (tokens(8), {"max_tokens": 9}),
    ]


def serve(setting: str, options: dict[str, Any]) -> dict[str, Any]:
    """Answers to all requests, by their place and index, and how it went."""
    # Without a prefix cache the engine would give back what the window has passed.
    model = make_model(WINDOW if setting == "roomy" else None)
    engine = Engine(model, **COMMON, **SETTINGS[setting], **options)
    answers: list[list[int]] = []
    for number, (prompt, params) in enumerate(requests()):
        engine.add_request(prompt, SamplingParams(ignore_eos=True, **params))
        # Two at once, the others while these run.
        if number > 0:
            answers += _step(engine)
    for _ in range(MOST_STEPS):
        if engine.has_work:
            answers += _step(engine)
    if engine.has_work:
        raise RuntimeError(f"requests go on after {MOST_STEPS} steps of the engine")
    stats = engine.stats
    return {
        "answers": sorted(answers),
        "num_free": stats.num_free,
        "num_blocks": stats.num_blocks,
        "num_preemptions": stats.num_preemptions,
        "num_hit_tokens": stats.num_hit_tokens,
    }


def _step(engine: Engine) -> list[list[int]]:
    """[request_id, index, *tokens] of what ended in this step."""
    return [
        [int(str(output.request_id)), output.index, *output.token_ids]
        for output in engine.step()
        if output.finish_reason
    ]


# --- in the worker ---


def keywords_of(part: Part) -> list[str] | str:
    """The names under which a part is handed to the engine; else what came back."""
    result: Any = part()
    return sorted(result) if isinstance(result, dict) else repr(result)[:80]


def serve_with(part: Part, setting: str, stem: str) -> dict[str, Any]:
    """serve through a part; `calls` are those of functions in the learner's file.

    If the learner's file is not finished: just {"unsolved": what is missing}.
    """
    try:
        options = part()
        calls = _Calls(stem)
        sys.setprofile(calls.see)
        try:
            result = serve(setting, options)
        finally:
            sys.setprofile(None)
    except Exception as error:
        return {"unsolved": _unsolved(error)}
    return result | {"calls": dict(calls.count)}


def serve_smollm2(parts: list[Part]) -> list[list[int]]:
    """The first tokens of SmolLM2's answers, through all of these parts."""
    options: dict[str, Any] = {}
    for part in parts:
        options |= part()
    logging.disable_progress_bar()
    model, tokenizer = model_files.load("smollm2", device="cpu")
    # Linear layers stay as they are: packing them needs all weights twice for a moment,
    # which is more memory than a worker has, and pays in longer answers only.
    is_enabled = torch.backends.mkldnn.enabled
    torch.backends.mkldnn.enabled = False
    try:
        engine = Engine(model, tokenizer, num_blocks=16, **options)
    finally:
        torch.backends.mkldnn.enabled = is_enabled
    outputs = engine.generate(QUESTIONS, SamplingParams(SMOLLM2_TOKENS))
    return [output.token_ids for output in outputs]


class _Calls:
    """Counts calls of the functions that one file of the learner's defines."""

    def __init__(self, stem: str) -> None:
        self.count: Counter[str] = Counter()
        # A function knows the file by the name that the learner knows.
        spec = getattr(sys.modules.get(stem), "__spec__", None)
        self._file = getattr(getattr(spec, "loader", None), "_original", None)

    def see(self, frame: FrameType, event: str, _: object) -> None:
        code: CodeType = frame.f_code
        if event == "call" and code.co_filename == self._file:
            self.count[code.co_name] += 1


def _unsolved(error: BaseException) -> str:
    """What a stub of an earlier exercise says; other errors go on."""
    cause: BaseException | None = error
    while cause is not None:
        text = str(cause)
        if isinstance(cause, NotImplementedError) and text.startswith("exercise "):
            if text.startswith("exercise 13."):
                raise cause
            return text
        # What fails while the engine cleans up behind a stub is of no interest.
        cause = cause.__context__
    raise error
