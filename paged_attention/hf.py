"""Any Hugging Face decoder, with its attention on our blocks.

The model code is transformers' own. It asks a registry for the function that attends;
ours writes the new keys and values into their slots and attends over block tables. A
step is one flat row of tokens, of many sequences, with no padding between them; their
positions say where each stands, and the state of the step travels as a keyword.

What is not implemented is refused by name, never ignored: soft-capped scores, attention
sinks, RoPE that depends on the batch, layers that are neither full nor sliding
attention, encoders. transformers is imported when a model is loaded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from paged_attention.attention import paged_attention
from paged_attention.config import CacheConfig
from paged_attention.kv_cache import KVCache
from paged_attention.model_checks import (
    UnsupportedModelError,
    check_calls,
    check_config,
    check_keywords,
)
from paged_attention.packed_linear import pack_linear_layers

# A name that transformers has no mask for: it builds none, and cuts nothing apart where
# positions jump from one sequence to the next.
NAME = "paged_attention_from_scratch"

Attention = Callable[..., Tensor]


class TakenOverError(RuntimeError):
    """A model that an Engine has taken over was called by somebody else."""


@dataclass(frozen=True)
class AttentionCall:
    """What one attention layer asks for, apart from its tensors."""

    layer_idx: int
    scale: float | None
    window: int | None


class OnAttention(Protocol):
    """What forward is given to hand to our attention function: a step, or a probe."""

    def attend(
        self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        """All [num_tokens, heads, head_dim]; the result is shaped as query."""
        ...


class Step:
    """The flat lists of one StepPlan as tensors: made once, read by every layer.

        token_ids, positions, slot_mapping   [num_tokens]              int64
        block_tables                         [num_seqs, max_num_blocks] int32
        seq_lens                             [num_seqs]                int32
        query_start_loc   [num_seqs + 1] int32; None where each sequence has one token

    plan is any object with these lists; block_tables may be ragged, with None in holes.
    """

    def __init__(self, plan: Any, cache: KVCache, attention: Attention) -> None:
        device = cache.key_cache(0).device

        def tensor(values: Sequence[Any], dtype: torch.dtype) -> Tensor:
            return torch.tensor(values, dtype=dtype).to(device)

        self.token_ids = tensor(plan.token_ids, torch.int64)
        self.positions = tensor(plan.positions, torch.int64)
        slots = torch.tensor(plan.slot_mapping, dtype=torch.int64)
        # Checked here, once: the layers then write without looking.
        num_slots = cache.config.num_blocks * cache.config.block_size
        if len(slots) and not 0 <= int(slots.min()) <= int(slots.max()) < num_slots:
            raise ValueError(
                f"slot_mapping must lie in 0 … {num_slots - 1}, got "
                f"{int(slots.min())} … {int(slots.max())}"
            )
        self._slots = slots.to(device)
        self._block_tables = tensor(_padded(plan.block_tables), torch.int32)
        self._seq_lens = tensor(plan.seq_lens, torch.int32)
        # A decode has a kernel of its own; the absence of the starts tells it apart.
        is_decode = len(plan.token_ids) == len(plan.seq_lens)
        self._starts = None if is_decode else tensor(plan.query_start_loc, torch.int32)
        self._cache = cache
        self._attention = attention
        self.num_calls = 0  # of attend, once for each layer

    def attend(
        self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        self.num_calls += 1
        key_cache = self._cache.key_cache(call.layer_idx)
        value_cache = self._cache.value_cache(call.layer_idx)
        # Written before they are read: a token attends to itself, too.
        key_cache.flatten(0, 1).index_copy_(0, self._slots, key)
        value_cache.flatten(0, 1).index_copy_(0, self._slots, value)
        return self._attention(
            query,
            key_cache,
            value_cache,
            self._block_tables,
            self._seq_lens,
            query_start_loc=self._starts,
            scale=call.scale,
            window=call.window,
        )


def _padded(tables: Sequence[Sequence[int | None]]) -> list[list[int]]:
    """As many entries in each row; -1 where there is no block."""
    width = max(map(len, tables), default=0)
    return [
        [-1 if b is None else b for b in table] + [-1] * (width - len(table))
        for table in tables
    ]


class Decoder:
    """A causal language model that computes one step of many sequences.

    It takes the model over: from now on its attention is ours, until `give_back`.
    `shape` has the KV cache's sizes, not yet its number of blocks; `windows` each
    layer's sliding window.
    Raises UnsupportedModelError for what would come out wrong. Whatever is raised, the
    model is then as it was.
    """

    def __init__(self, model: Any, attention: Attention = paged_attention) -> None:
        if isinstance(model, str):
            raise TypeError(
                f"model must be a model of transformers, got {model!r}: "
                "Engine.from_pretrained loads one by its name"
            )
        text_config = model.config.get_text_config()
        check_config(model, text_config)
        _register()
        self.model = model
        self._attention = attention
        self._before = model.config._attn_implementation, model.training
        try:
            model.eval().set_attn_implementation(NAME)
            probe = self._probe()
            check_calls(probe.calls, model, text_config)
        except BaseException:
            self.give_back()
            raise
        self.windows = [call.window for call in probe.calls]
        num_kv_heads, head_dim = probe.calls[0].key_shape
        self.shape = CacheConfig(
            num_layers=len(probe.calls),
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            dtype=str(probe.dtype).removeprefix("torch."),
        )
        self.max_len: int | None = getattr(text_config, "max_position_embeddings", None)

    def give_back(self) -> None:
        """Leave the model to transformers, as it was; what is packed stays packed."""
        attention, was_training = self._before
        self.model.set_attn_implementation(attention)
        self.model.train(was_training)

    def pack(self) -> None:
        """On a CPU, lay out the linear layers' weights anew, for good."""
        pack_linear_layers(self.model, self._probe)

    @property
    def device(self) -> torch.device:
        return self.model.device

    def forward(self, plan: Any, cache: KVCache, rows: Sequence[int]) -> Tensor:
        """Compute the step, its keys and values written into the cache.

        rows    the tokens, by index in the plan, of which the logits are wanted
        result  [len(rows), vocab_size]
        """
        step = Step(plan, cache, self._attention)
        logits = self._run(step, step.token_ids, step.positions, rows)
        if step.num_calls != len(self.windows):
            raise RuntimeError(
                f"{step.num_calls} of {len(self.windows)} layers attended over the "
                "blocks: the model's attention was changed after its Engine was made"
            )
        return logits

    @torch.inference_mode()
    def _run(
        self, on: OnAttention, token_ids: Tensor, positions: Tensor, rows: Sequence[int]
    ) -> Tensor:
        if self.model.training:  # somebody else's doing; dropout would be at work
            self.model.eval()
        result = self.model(
            input_ids=token_ids[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=torch.tensor(
                rows, dtype=torch.int64, device=token_ids.device
            ),
            paged_step=on,
        )
        return result.logits[0]

    def _probe(self) -> "_Probe":
        """What each layer asks for, seen by running one token through all of them."""
        probe = _Probe()
        token = torch.zeros(1, dtype=torch.int64, device=self.device)
        try:
            self._run(probe, token, token, [0])
        except TakenOverError:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} hands no keywords on to its attention"
            ) from None
        except TypeError as error:
            raise UnsupportedModelError(
                f"{type(self.model).__name__} does not hand a keyword on to its "
                f"attention: {error}"
            ) from error
        return probe


class _Probe:
    """Notes the calls, and attends to the only token there is: itself."""

    def __init__(self) -> None:
        self.calls: list[_Noted] = []
        self.dtype: torch.dtype | None = None

    def attend(
        self, call: AttentionCall, query: Tensor, key: Tensor, value: Tensor
    ) -> Tensor:
        _, num_kv_heads, head_dim = key.shape
        shape = (num_kv_heads, head_dim)
        self.calls.append(_Noted(call.layer_idx, call.window, shape))
        self.dtype = key.dtype
        return value.repeat_interleave(query.shape[1] // num_kv_heads, dim=1)


@dataclass
class _Noted:
    layer_idx: int
    window: int | None
    key_shape: tuple[int, ...]  # num_kv_heads, head_dim


def attend_in_blocks(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    paged_step: OnAttention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The function in transformers' registry: called by each layer of each step.

    query         [1, num_heads, num_tokens, head_dim]
    key, value    [1, num_kv_heads, num_tokens, head_dim], rotated, of new tokens only
    result        [1, num_tokens, num_heads, head_dim]
    """
    if paged_step is None:
        raise TakenOverError(
            "this model belongs to an Engine; load another copy to call it yourself"
        )
    check_keywords(others)
    if attention_mask is not None:
        raise UnsupportedModelError("its attention brings a mask of its own")
    if is_causal is False or getattr(module, "is_causal", True) is False:
        raise UnsupportedModelError("its attention looks ahead: it is not causal")
    if key.shape != value.shape:
        raise UnsupportedModelError(
            f"keys and values differ in shape: {list(key.shape)}, {list(value.shape)}"
        )
    call = AttentionCall(_layer_idx(module), scaling, sliding_window)
    rows = (t[0].transpose(0, 1) for t in (query, key, value))
    return paged_step.attend(call, *rows)[None], None


def _layer_idx(module: torch.nn.Module) -> int:
    layer_idx = getattr(module, "layer_idx", None)
    if not isinstance(layer_idx, int):
        raise UnsupportedModelError(
            f"{type(module).__name__} does not say which layer it is (layer_idx)"
        )
    return layer_idx


def _register() -> None:
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_in_blocks)
