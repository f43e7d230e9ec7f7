"""SmolLM2 through our engine beside transformers' generate: the same greedy tokens.

Pitfalls of such a comparison: without an explicit mask, generate hides every token of
the prompt that equals the pad token, and SmolLM2's chat template contains it. Two ways
of summing may differ where two tokens are as good as equal: a difference is excused
only if the two best logits lie closer than CLOSE, and every excuse is counted.
"""

import random
from dataclasses import dataclass, field
from typing import Any

import torch

from paged_attention import model_files
from paged_attention.engine import Engine
from paged_attention.params import SamplingParams

CLOSE = 1e-3

SENTENCES = [
    "The harbour was quiet when the last boat came in.",
    "List three reasons why leaves change colour in autumn.",
    "A recipe for bread needs flour, water, salt and time.",
    "Write a function that returns the sum of a list.",
    "How does a bicycle stay upright while it moves?",
    "In 1969 two people walked on the moon for the first time.",
    "Translate the word 'water' into five languages.",
    "She opened the letter, read it twice, and smiled.",
    "What is the difference between weather and climate?",
    "The library closes at eight, so we have to hurry.",
    "Explain to a child why the sky looks blue at noon.",
    "If 3 apples cost 2 euros, how much do 12 apples cost?",
    "Mountains grow slowly, and rivers carry them away again.",
    "Give me a short poem about an old clock.",
    "Which animals sleep through the winter, and why?",
    "The experiment was repeated ten times with new samples.",
]

# Each has its blocks, budget and pool; the names say what must have happened.
WAYS: dict[str, dict[str, Any]] = {
    "blocks of 1": {"block_size": 1, "token_budget": 256},
    "blocks of 16": {"block_size": 16},
    "blocks of 128": {"block_size": 128, "token_budget": 100},
    "preempted, computed again": {"block_size": 4, "tight": True},
    "preempted, swapped": {"block_size": 4, "tight": True, "num_host_blocks": 2000},
}


def prompts_of(tokenizer: Any, num: int, num_sentences: int) -> list[list[int]]:
    """Questions of mixed length in the chat template, the same every time."""
    rng = random.Random(0)
    lengths = [rng.randint(1, num_sentences) for _ in range(num)]
    texts = [" ".join(rng.choices(SENTENCES, k=length)) for length in lengths]
    return [model_files.encode(tokenizer, text) for text in texts]


@dataclass
class Comparison:
    """What transformers makes of the prompts, and how ours compared so far."""

    num_prompts: int
    num_tokens: int
    num_sentences: int  # in a prompt, at most
    num_compared: int = 0
    excuses: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.theirs, self.tokenizer = model_files.load("smollm2", device="cpu")
        self.theirs.set_attn_implementation("sdpa")
        self.theirs.generation_config.eos_token_id = None
        self.ours, _ = model_files.load("smollm2", device="cpu")
        self.prompts = prompts_of(self.tokenizer, self.num_prompts, self.num_sentences)
        assert any(self.theirs.config.pad_token_id in p for p in self.prompts)
        self.expected = [self._generate(prompt) for prompt in self.prompts]

    def _generate(self, prompt: list[int]) -> list[int]:
        ids = torch.tensor([prompt])
        made = self.theirs.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=self.num_tokens,
            do_sample=False,
        )
        return made[0, len(prompt) :].tolist()

    def check(self, way: str, **changes: Any) -> Engine:
        """Cold, and once more with what the prefix cache remembers."""
        options = {**WAYS[way], **changes}
        size = options["block_size"]
        if options.pop("tight", False):
            # Half of what all of them need at once, and room for the longest alone.
            lengths = [len(p) + self.num_tokens for p in self.prompts]
            needed = [-(-length // size) for length in lengths]
            options["num_blocks"] = max(max(needed), sum(needed) // 2)
        engine = Engine(self.ours, **options)
        for _ in range(2):
            self._compare(way, engine)
        stats = engine.stats
        assert (stats.num_preemptions > 0) == way.startswith("preempted"), stats
        if engine.host_cache is not None:
            assert engine.host_cache.key_cache(0).any(), "nothing was swapped out"
        if not way.startswith("preempted"):  # there, nothing outlives the crowd
            has_full_blocks = max(map(len, self.prompts)) > size
            assert (stats.num_hit_tokens > 0) == has_full_blocks, stats
        assert stats.num_free == stats.num_blocks, stats
        return engine

    def _compare(self, way: str, engine: Engine) -> None:
        params = SamplingParams(self.num_tokens, ignore_eos=True)
        for i, output in enumerate(engine.generate(self.prompts, params)):
            self.num_compared += 1
            expected, found = self.expected[i], output.token_ids
            assert len(found) == len(expected), f"{way}, prompt {i}"
            if found != expected:
                self._excuse(f"{way}, prompt {i}", i, found)

    def _excuse(self, where: str, i: int, found: list[int]) -> None:
        """The two best of both at the first difference; an error unless a near tie."""
        expected = self.expected[i]
        at = next(j for j in range(len(found)) if found[j] != expected[j])
        context = self.prompts[i] + expected[:at]
        ids = torch.tensor([context])
        with torch.inference_mode():
            logits = self.theirs(ids, attention_mask=torch.ones_like(ids)).logits
        theirs = logits[0, -1].topk(2)
        ours = _last_logits(self.ours, context).topk(2)
        gap = float(theirs.values[0] - theirs.values[1])
        words = (
            f"{where}, token {at}: theirs {theirs.indices.tolist()} "
            f"{theirs.values.tolist()}, ours {ours.indices.tolist()} "
            f"{ours.values.tolist()}, the engine made {found[at]}"
        )
        assert gap < CLOSE, words
        self.excuses.append(words)


def _last_logits(model: Any, context: list[int]) -> torch.Tensor:
    """What our engine sees after this text, alone."""
    engine = Engine(model, prefix_caching=False, token_budget=len(context))
    seen: list[torch.Tensor] = []
    forward = engine.decoder.forward

    def noting(*args: Any) -> torch.Tensor:
        seen.append(forward(*args))
        return seen[-1]

    engine.decoder.forward = noting
    engine.generate([context], SamplingParams(1))
    return seen[-1][0]
