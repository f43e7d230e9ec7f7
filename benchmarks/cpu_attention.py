"""What does it cost a CPU that keys and values lie scattered in blocks?

One step of decode: ours beside torch's attention on the same keys and values in a row,
beside gathering them first (all at once; each sequence in turn into a reused buffer),
and beside torch's own experimental paged attention where it can be compiled. Jobs take
turns; the best of many rounds each, since every disturbance only adds. Block ids are
shuffled. --no-compile leaves out the last, which takes a minute to get ready.

An engine asks once per layer with the same tables, and what ours needs of them is made
once: so it stands here twice, as in the first layer of a step and as in the others. The
last row is such a step as an engine runs it: chunks of prompts among many decodes.
"""

import itertools
import random
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor

from paged_attention import attention_plan, paged_attention

ROUNDS = 60
BLOCK_SIZE = 16


@dataclass
class Step:
    """A step of decode, with the same tokens scattered and in a row."""

    query: Tensor  # [num_seqs, num_heads, head_dim]
    key: Tensor  # [num_seqs, num_kv_heads, seq_len, head_dim]
    value: Tensor
    key_cache: Tensor  # [num_blocks, block_size, num_kv_heads, head_dim]
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor


def make_step(
    num_seqs: int, num_heads: int, num_kv_heads: int, head_dim: int, seq_len: int
) -> Step:
    torch.manual_seed(0)
    blocks_per_seq = -(-seq_len // BLOCK_SIZE)
    num_blocks = 2 * num_seqs * blocks_per_seq
    key_cache, value_cache = torch.randn(
        2, num_blocks, BLOCK_SIZE, num_kv_heads, head_dim
    ).unbind()
    block_ids = torch.randperm(num_blocks)[: num_seqs * blocks_per_seq]
    block_tables = block_ids.view(num_seqs, -1)

    def in_a_row(cache: Tensor) -> Tensor:
        rows = cache[block_tables].flatten(1, 2)[:, :seq_len].contiguous()
        return rows.transpose(1, 2)

    return Step(
        torch.randn(num_seqs, num_heads, head_dim),
        in_a_row(key_cache),
        in_a_row(value_cache),
        key_cache,
        value_cache,
        block_tables.int(),
        torch.full((num_seqs,), seq_len, dtype=torch.int32),
    )


def ours(step: Step) -> Tensor:
    return paged_attention(
        step.query,
        step.key_cache,
        step.value_cache,
        step.block_tables,
        step.seq_lens,
        backend="torch",
    )


def ours_in_a_first_layer(step: "Step | MixedStep") -> Callable[[], Tensor]:
    """The same, but every call has tables that ours does not remember."""
    # They differ in a column that no token needs.
    padding = step.block_tables[:, :1].clone()
    tables = itertools.cycle(
        torch.cat([step.block_tables, padding.fill_(-1 - i)], dim=1)
        for i in range(attention_plan.MAX_REMEMBERED + 1)
    )

    def run() -> Tensor:
        return paged_attention(
            step.query,
            step.key_cache,
            step.value_cache,
            next(tables),
            step.seq_lens,
            query_start_loc=getattr(step, "query_start_loc", None),
            backend="torch",
        )

    return run


def dense(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """torch's attention, the heads of a group packed as rows: its fastest way here."""
    packed = query.view(len(query), key.shape[1], -1, query.shape[2])
    return F.scaled_dot_product_attention(packed, key, value).view(query.shape)


def contiguous(step: Step) -> Tensor:
    return dense(step.query, step.key, step.value)


def gather_all(step: Step) -> Tensor:
    seq_len = int(step.seq_lens.max())
    key, value = (
        cache[step.block_tables].flatten(1, 2)[:, :seq_len].transpose(1, 2)
        for cache in (step.key_cache, step.value_cache)
    )
    return dense(step.query, key, value)


def gather_each(step: Step) -> Callable[[], Tensor]:
    buffers = torch.empty(2, step.block_tables.shape[1], *step.key_cache.shape[1:])

    def run() -> Tensor:
        result = torch.empty_like(step.query)
        for i, seq_len in enumerate(step.seq_lens.tolist()):
            caches = (step.key_cache, step.value_cache)
            for cache, buffer in zip(caches, buffers, strict=True):
                torch.index_select(cache, 0, step.block_tables[i], out=buffer)
            key, value = buffers.flatten(1, 2)[:, None, :seq_len].transpose(2, 3)
            result[i : i + 1] = dense(step.query[i : i + 1], key, value)
        return result

    return run


def torch_paged(step: Step) -> Callable[[], Tensor]:
    """torch.nn.attention.experimental, compiled; its own pool, ids shuffled too."""
    from torch.nn.attention.experimental._paged_attention import PagedAttention
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    num_seqs, num_kv_heads, seq_len, head_dim = step.key.shape
    page_size = 128  # smaller ones are not faster, and its mask is refused for some
    pages_per_seq = -(-seq_len // page_size)
    num_pages = num_seqs * pages_per_seq
    pool = PagedAttention(num_pages, page_size, num_seqs, device="cpu")
    pool.empty_pages = torch.randperm(num_pages).tolist()
    shape = (1, num_kv_heads, num_pages * page_size, head_dim)
    key_cache, value_cache = torch.zeros(2, *shape).unbind()
    for i in range(num_seqs):
        index = torch.tensor([i])
        pool.reserve(index, torch.tensor([seq_len]))
        positions = torch.arange(seq_len)[None]
        key, value = step.key[i : i + 1], step.value[i : i + 1]
        pool.assign(index, positions, key, value, key_cache, value_cache)

    def causal(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return k < seq_len

    logical = create_block_mask(
        causal, num_seqs, None, 1, seq_len, device="cpu", BLOCK_SIZE=(1, page_size)
    )
    mask = pool.convert_logical_block_mask(logical)
    score_mod = pool.get_score_mod(None)
    compiled = torch.compile(flex_attention, dynamic=False)
    query = step.query[:, :, None]
    key_cache, value_cache = (
        cache.expand(num_seqs, -1, -1, -1) for cache in (key_cache, value_cache)
    )

    def run() -> Tensor:
        with torch.no_grad():
            result = compiled(
                query,
                key_cache,
                value_cache,
                score_mod=score_mod,
                block_mask=mask,
                enable_gqa=True,
            )
        assert isinstance(result, Tensor)
        return result[:, :, 0]

    return run


def best_milliseconds(jobs: dict[str, Callable[[], Tensor]]) -> dict[str, float]:
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(ROUNDS):
        for name, job in jobs.items():
            start = time.perf_counter()
            job()
            best[name] = min(best[name], (time.perf_counter() - start) * 1e3)
    return best


@dataclass
class MixedStep:
    """Decodes and chunks of prompts, scattered and each sequence in a row."""

    query: Tensor  # [num_tokens, num_heads, head_dim]
    keys: list[Tensor]  # of each sequence [1, num_kv_heads, seq_len, head_dim]
    values: list[Tensor]
    key_cache: Tensor
    value_cache: Tensor
    block_tables: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor


def make_mixed_step(
    seq_lens: list[int],
    query_lens: list[int],
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
) -> MixedStep:
    torch.manual_seed(0)
    num_blocks = [-(-n // BLOCK_SIZE) for n in seq_lens]
    pool = torch.randn(2, 2 * sum(num_blocks), BLOCK_SIZE, num_kv_heads, head_dim)
    block_ids = list(torch.randperm(pool.shape[1])[: sum(num_blocks)].split(num_blocks))

    def in_a_row(cache: Tensor) -> list[Tensor]:
        return [
            cache[ids].flatten(0, 1)[:seq_len].transpose(0, 1)[None].contiguous()
            for ids, seq_len in zip(block_ids, seq_lens, strict=True)
        ]

    key_cache, value_cache = pool.unbind()
    tables = torch.nn.utils.rnn.pad_sequence(block_ids, True, padding_value=-1)
    return MixedStep(
        torch.randn(sum(query_lens), num_heads, head_dim),
        in_a_row(key_cache),
        in_a_row(value_cache),
        key_cache,
        value_cache,
        tables.int(),
        torch.tensor(seq_lens, dtype=torch.int32),
        torch.tensor([0, *query_lens]).cumsum(0).int(),
    )


def each_in_a_row(step: MixedStep) -> Tensor:
    """torch's attention for each sequence: masked, where it is a chunk with context."""
    result = torch.empty_like(step.query)
    starts = step.query_start_loc.tolist()
    for i, (key, value) in enumerate(zip(step.keys, step.values, strict=True)):
        new = slice(starts[i], starts[i + 1])
        query_len, seq_len = new.stop - new.start, key.shape[2]
        if query_len == 1:
            result[new] = dense(step.query[new], key, value)
            continue
        mask = None
        if query_len < seq_len:
            mask = torch.ones(query_len, seq_len).bool().tril_(seq_len - query_len)
        result[new] = F.scaled_dot_product_attention(
            step.query[new].transpose(0, 1)[None],
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            enable_gqa=True,
        )[0].transpose(0, 1)
    return result


def measure(title: str, step: Step, *, with_torch_paged: bool) -> None:
    jobs = {
        "contiguous": lambda: contiguous(step),
        "ours": lambda: ours(step),
        "ours, first layer": ours_in_a_first_layer(step),
        "gather each, then attend": gather_each(step),
        "gather all, then attend": lambda: gather_all(step),
    }
    if with_torch_paged:
        jobs["torch's experimental"] = torch_paged(step)
    show(title, jobs)


def measure_mixed(title: str, step: MixedStep) -> None:
    def ours() -> Tensor:
        return paged_attention(
            step.query,
            step.key_cache,
            step.value_cache,
            step.block_tables,
            step.seq_lens,
            query_start_loc=step.query_start_loc,
            backend="torch",
        )

    jobs = {
        "contiguous": lambda: each_in_a_row(step),
        "ours": ours,
        "ours, first layer": ours_in_a_first_layer(step),
    }
    show(title, jobs)


def show(title: str, jobs: dict[str, Callable[[], Tensor]]) -> None:
    """Measure the jobs, of which the first is right, and print a table of them."""
    expected = jobs["contiguous"]()
    for name, job in jobs.items():
        error = (job() - expected).abs().max().item()
        assert error < 1e-5, f"{name} is wrong by {error}"
    best = best_milliseconds(jobs)
    table = Table("", "ms", "÷ contiguous", title=title)
    for name, milliseconds in best.items():
        ratio = milliseconds / best["contiguous"]
        table.add_row(name, f"{milliseconds:.2f}", f"{ratio:.2f} ×")
    Console().print(table)


def main() -> None:
    compiler = shutil.which("g++") or shutil.which("clang++")
    with_torch_paged = compiler is not None and "--no-compile" not in sys.argv
    if not with_torch_paged:
        print("torch's experimental paged attention: not measured, not compiled here")
    measure(
        "8 sequences of 1,024 tokens, 16/8 heads, dim 128, fp32",
        make_step(8, 16, 8, 128, 1024),
        with_torch_paged=with_torch_paged,
    )
    for title, sizes in {
        "the same with 32/8 heads": (8, 32, 8, 128, 1024),
        "the same with 32/4 heads": (8, 32, 4, 128, 1024),
        "SmolLM2-135M, 32 sequences of 150 tokens": (32, 9, 3, 64, 150),
        "SmolLM2-135M, 1 sequence of 1,000 tokens": (1, 9, 3, 64, 1000),
    }.items():
        measure(title, make_step(*sizes), with_torch_paged=False)
    chance = random.Random(0)
    decodes = [chance.randint(16, 400) for _ in range(32)]
    measure_mixed(
        "SmolLM2-135M, 32 sequences of 16 to 400 tokens",
        make_mixed_step(decodes, [1] * 32, 9, 3, 64),
    )
    measure_mixed(
        "SmolLM2-135M, 30 of these, and chunks of 256 of 256 and of 100 of 300 tokens",
        make_mixed_step([*decodes[:30], 256, 300], [1] * 30 + [256, 100], 9, 3, 64),
    )


if __name__ == "__main__":
    main()
