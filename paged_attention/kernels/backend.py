"""Picks the kernel: one pass of decode, several splits, or prefill."""

import contextlib
import os

import torch
import triton
from torch import Tensor

from paged_attention.kernels.decode import decode, decode_kernel, head_tiles
from paged_attention.kernels.launch import TRITON_DTYPE, is_interpreted
from paged_attention.kernels.prefill import prefill
from paged_attention.kernels.split_decode import choose_num_splits, split_decode


def attend(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    query_start_loc: Tensor | None,
    scale: float,
    window: int | None,
) -> Tensor:
    """As `attention.paged_attention`, which has checked the arguments.

    Raises RuntimeError where no kernel can run, ValueError for float64.
    """
    check_can_run(query)
    # Triton launches on the current device, wherever its arguments lie.
    on_device = contextlib.nullcontext()
    if query.device.type == "cuda":
        on_device = torch.cuda.device(query.device)
    batch = (query, key_cache, value_cache, block_tables, seq_lens)
    with on_device:
        if query_start_loc is not None:
            return prefill(*batch, query_start_loc, scale, window)
        num_splits = num_splits_for(query, key_cache, block_tables, window)
        if num_splits == 1:
            return decode(*batch, scale, window)
        return split_decode(*batch, scale, window, num_splits)


def check_can_run(query: Tensor) -> None:
    """Say what is missing, before Triton says it in its own words."""
    if query.dtype not in TRITON_DTYPE:
        raise ValueError(
            "the Triton kernels take float16, bfloat16 or float32, got "
            f'{query.dtype}: use backend="torch"'
        )
    # Whether a kernel is interpreted is settled at its import; any of them can tell.
    if query.device.type == "cuda" or is_interpreted(decode_kernel):
        return
    if os.environ.get("TRITON_INTERPRET") == "1":
        raise RuntimeError(
            "TRITON_INTERPRET=1 was set after our kernels were imported, which is too "
            "late: start a fresh process (in a notebook: Kernel > Restart) and set it "
            "before the first import"
        )
    raise RuntimeError(
        f"a Triton kernel runs on a GPU, and the tensors are on {query.device}: set "
        "TRITON_INTERPRET=1 in the environment before Python starts, to interpret it "
        'on the CPU, or use backend="torch"'
    )


def num_splits_for(
    query: Tensor, key_cache: Tensor, block_tables: Tensor, window: int | None
) -> int:
    """From sizes alone: lengths on a GPU are not read back to choose."""
    # The interpreter runs one program after the other: splitting would gain nothing.
    if query.device.type != "cuda":
        return 1
    num_seqs, num_heads, head_dim = query.shape
    num_kv_heads = key_cache.shape[2]
    tiles = head_tiles(num_heads // num_kv_heads, head_dim, query.dtype)
    per_seq = num_kv_heads * triton.cdiv(tiles["GROUP"], tiles["TILE_GROUP"])
    # What the widest table has room for: never less than the longest sequence.
    max_len = block_tables.shape[1] * key_cache.shape[1]
    return choose_num_splits(
        num_seqs * per_seq,
        max_len if window is None else min(max_len, window),
        torch.cuda.get_device_properties(query.device).multi_processor_count,
    )
