"""The door to attention over scattered blocks: checks once, then picks who computes.

Decode and prefill are one thing here: each sequence brings some query tokens, the last
ones it has, and attends over all that its block table names. Who computes: torch
(`attention_torch`) or Triton (`kernels`). `reference.paged_attention` says the same
slowly. What is left out: gradients, dropout, and any mask but causal and window.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from paged_attention import attention_plan, attention_torch
from paged_attention.config import require_at_least
from paged_attention.kv_cache import require_tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    *,
    query_start_loc: Tensor | None = None,
    scale: float | None = None,
    window: int | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention of new tokens over all tokens of their sequences.

        query            [num_tokens, num_heads, head_dim]
        key_cache        [num_blocks, block_size, num_kv_heads, head_dim]
                         value_cache the same; query's dtype; any strides
        block_tables     [num_seqs, max_num_blocks]   int32 or int64
        seq_lens         [num_seqs]       tokens in the cache, the new ones too
        query_start_loc  [num_seqs + 1]   where each sequence's query tokens begin
        result           as query, contiguous

    The last query token of a sequence stands at position seq_len - 1, the others before
    it; each sees itself and what is before it, at most window keys in all. Without
    query_start_loc each sequence has one query token (decode). Sequences of length 0
    give zeros. Query head h reads KV head h // (num_heads // num_kv_heads). scale
    defaults to head_dim ** -0.5.

    Nothing behind seq_len is read, nor an entry of block_tables that no key needs:
    there padding and holes (-1) may stand. backend is "torch", "triton" or "auto":
    Triton on CUDA, torch elsewhere.

    Raises ValueError with what was found and what was expected. Values (lengths, block
    ids) are checked on the CPU only: a CUDA tensor is not read back for it. There a
    step is checked once: the same values in the next layer are known to be good.
    """
    _check_tensors(query, key_cache, value_cache, block_tables, seq_lens)
    _check_starts(query, seq_lens, query_start_loc)
    if window is not None:
        require_at_least(1, "window", window)
    if scale is None:
        scale = 1 / math.sqrt(query.shape[2])
    # Decode has a kernel of its own, so it must not look like a prefill: where there
    # was no query_start_loc, none is made before somebody reads it.
    tensors = (query, key_cache, value_cache, block_tables, seq_lens, query_start_loc)
    if _uses_triton(backend, query):
        _check_values(*tensors, window)
        return _triton_attend()(*tensors, scale, window)
    plan = _plan(*tensors, window)
    return attention_torch.attend(query, key_cache, value_cache, plan, scale)


def _plan(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor | None,
    window: int | None,
) -> attention_plan.AttentionPlan:
    """A new one, once the values were checked; or that of a batch with the same."""
    starts = _starts_of(query_start_loc, seq_lens)
    tensors = (query, key_cache, value_cache, block_tables, seq_lens, starts)
    if query.device.type != "cpu":  # to compare values would wait for the device
        return attention_plan.make_plan(*tensors, window)
    batch = attention_plan.batch_of(*tensors, window)
    plan = attention_plan.remembered_plan(batch)
    if plan is None:
        # Before the plan is kept: one that is found again is not checked again.
        _check_values(*tensors, window)
        plan = attention_plan.make_plan(*tensors, window)
        attention_plan.remember(batch, plan)
    return plan


def _starts_of(query_start_loc: Tensor | None, seq_lens: Tensor) -> Tensor:
    """Where each sequence's query tokens begin; in a decode each brings one."""
    if query_start_loc is not None:
        return query_start_loc
    return torch.arange(len(seq_lens) + 1, device=seq_lens.device)


def _uses_triton(backend: str, query: Tensor) -> bool:
    if backend not in ("auto", "torch", "triton"):
        raise ValueError(
            f'backend must be "auto", "torch" or "triton", got {backend!r}'
        )
    if backend == "auto":
        # The kernels add up in float32, so they leave float64 to torch.
        return query.device.type == "cuda" and query.dtype != torch.float64
    return backend == "triton"


def _triton_attend() -> Callable[..., Tensor]:
    """Imported when first used: the rest of the package does without Triton."""
    try:
        from paged_attention.kernels.backend import attend
    except ModuleNotFoundError as error:
        # Something else is missing: that is a defect, and must not be explained away.
        if error.name != "triton":
            raise
        raise RuntimeError(
            "the Triton kernels need Triton, which is not installed (there is none "
            'outside Linux): use backend="torch"'
        ) from error
    return attend


def _check_tensors(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
) -> None:
    """What can be said without reading a value: shapes, dtypes, devices."""
    require_tensor("query", query)
    if query.dim() != 3 or query.dtype not in DTYPES:
        raise ValueError(
            "query must be [num_tokens, num_heads, head_dim] of a floating dtype, "
            f"got {list(query.shape)} {query.dtype}"
        )
    _, num_heads, head_dim = query.shape
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        require_tensor(name, cache)
        # A pool without blocks serves a batch without tokens; without slots, heads or
        # numbers in a block, nothing could be served.
        if cache.dim() != 4 or cache.shape[3] != head_dim or 0 in cache.shape[1:]:
            raise ValueError(
                f"{name} must be [num_blocks, block_size, num_kv_heads, {head_dim}], "
                f"got {list(cache.shape)}"
            )
        if (cache.dtype, cache.device) != (query.dtype, query.device):
            raise ValueError(
                f"{name} must be {query.dtype} on {query.device} as query is, "
                f"got {cache.dtype} on {cache.device}"
            )
    if key_cache.shape != value_cache.shape:
        raise ValueError(
            f"key_cache and value_cache must have one shape, got "
            f"{list(key_cache.shape)} and {list(value_cache.shape)}"
        )
    num_kv_heads = key_cache.shape[2]
    if num_heads == 0 or num_heads % num_kv_heads:
        raise ValueError(f"{num_heads} heads cannot share {num_kv_heads} KV heads")
    _check_integers("seq_lens", seq_lens, [None], query)
    _check_integers("block_tables", block_tables, [len(seq_lens), None], query)


def _check_starts(
    query: Tensor, seq_lens: Tensor, query_start_loc: Tensor | None
) -> None:
    if query_start_loc is not None:
        _check_integers("query_start_loc", query_start_loc, [len(seq_lens) + 1], query)
    elif len(query) != len(seq_lens):
        raise ValueError(
            f"without query_start_loc each sequence has one query token: got "
            f"{len(query)} tokens for {len(seq_lens)} sequences"
        )


def _check_integers(
    name: str, tensor: Tensor, shape: list[int | None], query: Tensor
) -> None:
    """None in shape stands for any size."""
    require_tensor(name, tensor)
    sizes = [size if size is not None else "any" for size in shape]
    fits = len(shape) == tensor.dim() and all(
        size in (None, found) for size, found in zip(shape, tensor.shape, strict=True)
    )
    if not fits or tensor.dtype not in INTEGERS or tensor.device != query.device:
        raise ValueError(
            f"{name} must be [{', '.join(map(str, sizes))}] int32 or int64 on "
            f"{query.device}, got {list(tensor.shape)} {tensor.dtype} on "
            f"{tensor.device}"
        )


def _check_values(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor | None,
    window: int | None,
) -> None:
    """What lengths and block ids say; a CUDA tensor is not read back for it."""
    if query.device.type == "cpu":
        starts = _starts_of(query_start_loc, seq_lens)
        _check_lengths(starts, seq_lens, len(query))
        _check_blocks(key_cache, block_tables, seq_lens, starts, window)


def _check_lengths(query_start_loc: Tensor, seq_lens: Tensor, num_tokens: int) -> None:
    starts, lengths = query_start_loc.tolist(), seq_lens.tolist()
    if starts[0] != 0 or starts[-1] != num_tokens:
        raise ValueError(
            f"query_start_loc must begin with 0 and end with the {num_tokens} tokens "
            f"of query, got {starts[0]} … {starts[-1]}"
        )
    for i, seq_len in enumerate(lengths):
        query_len = starts[i + 1] - starts[i]
        if query_len < 0:
            raise ValueError(
                f"query_start_loc must not decrease, got {starts[i]}, {starts[i + 1]} "
                f"for sequence {i}"
            )
        # Of length 0 it may bring any number of query tokens: they become zeros.
        if seq_len < 0 or 0 < seq_len < query_len:
            raise ValueError(
                f"seq_lens[{i}] must be 0 or at least its {query_len} query tokens, "
                f"got {seq_len}"
            )


def _check_blocks(
    key_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor,
    window: int | None,
) -> None:
    """Every entry that some key needs must name a block of the cache."""
    num_blocks, block_size = key_cache.shape[:2]
    width = block_tables.shape[1]
    too_long = (seq_lens > width * block_size).nonzero()
    if len(too_long):
        i = int(too_long[0])
        raise ValueError(
            f"seq_lens[{i}] is {int(seq_lens[i])}, but {width} entries of block_tables "
            f"hold at most {width * block_size} tokens"
        )
    column = torch.arange(width) * block_size  # the position where each entry begins
    needed = column < seq_lens[:, None]  # [num_seqs, width]
    if window is not None:
        # The first query token stands at seq_len - query_len, and its window, in which
        # it is itself, reaches back furthest.
        first_key = seq_lens - query_start_loc.diff() + 1 - window
        needed &= column + block_size > first_key[:, None]
    # A sequence that brings no query token reads nothing, so its table may be stale.
    needed &= (query_start_loc.diff() > 0)[:, None]
    wrong = (needed & ((block_tables < 0) | (block_tables >= num_blocks))).nonzero()
    if len(wrong):
        i, j = wrong[0].tolist()
        raise ValueError(
            f"block_tables[{i}, {j}] must be in 0 … {num_blocks - 1}, "
            f"got {int(block_tables[i, j])}"
        )
