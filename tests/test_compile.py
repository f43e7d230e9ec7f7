"""Our kernels compiled for GPUs that are not here; never run.

The shapes of two models here; of more, on every target: `python tests/test_compile.py`.
"""

import ast
import itertools
import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl

from paged_attention.kernels.cache_ops import copy_blocks_launch, write_kv_launch
from paged_attention.kernels.compile import (
    TARGETS,
    Compiled,
    compile_kernel,
    compile_launch,
)
from paged_attention.kernels.decode import decode_launch
from paged_attention.kernels.launch import Launch
from paged_attention.kernels.prefill import prefill_launch
from paged_attention.kernels.split_decode import merge_launch, split_launch

# num_heads, num_kv_heads, head_dim
MODELS = {
    "Llama-3-8B": (32, 8, 128),
    "SmolLM2-135M": (9, 3, 64),
    "Qwen3-0.6B": (16, 8, 128),
    "head_dim 256": (16, 4, 256),
    "head_dim 120": (32, 8, 120),
}
KERNELS = ("decode", "split", "prefill", "merge", "write_kv", "copy_blocks")
TABLE = Path(__file__).parent.parent / "chapters" / "data" / "compile.json"
WITH_PRODUCTS = ("decode", "split", "prefill")


def launch_of(
    kernel: str, model: str, dtype: torch.dtype, block_size: int = 16
) -> Launch:
    """As the package would launch it, with tensors that have no memory."""
    num_heads, num_kv_heads, head_dim = MODELS[model]

    def tensor(*shape: int, dtype: torch.dtype = dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, device="meta")

    query = tensor(32, num_heads, head_dim)
    caches = [tensor(4096, block_size, num_kv_heads, head_dim) for _ in range(2)]
    lens = tensor(32, dtype=torch.int32)
    batch = (query, *caches, tensor(32, 512, dtype=torch.int32), lens)
    part = tensor(32, num_heads, 8, head_dim, dtype=torch.float32)
    largest = total = tensor(32, num_heads, 8, dtype=torch.float32)
    new = tensor(32, num_kv_heads, head_dim)
    slots = tensor(32, dtype=torch.int64)
    match kernel:
        case "decode":
            return decode_launch(query, *batch, 0.1)
        case "split":
            return split_launch(part, largest, total, *batch, 0.1)
        case "prefill":
            starts = tensor(33, dtype=torch.int32)
            return prefill_launch(query, *batch, starts, 0.1)
        case "merge":
            return merge_launch(query, part, largest, total)
        case "write_kv":
            return write_kv_launch(new, new, *caches, slots)
        case _:
            return copy_blocks_launch(*caches, tensor(4, 2, dtype=torch.int64))


def defects(kernel: str, dtype: torch.dtype, got: Compiled) -> list[str]:
    """What is wrong with a kernel on its target; [] if nothing is."""
    is_old = got.target == "sm_75"  # Triton does without its tensor cores
    found: list[str] = []
    if not got.fits:
        found.append(f"{got.shared_bytes} bytes of shared memory")
    if got.spill_bytes and not is_old:
        found.append(f"{got.spill_bytes} bytes of registers spilled per thread")
    if max(got.load_bytes) < 16:
        found.append(f"nothing is loaded 16 bytes at once, {got.load_bytes}")
    if dtype != torch.float32 and 2 in got.load_bytes:
        found.append(f"{got.load_bytes[2]} loads of single numbers")
    has_products = kernel in WITH_PRODUCTS and dtype != torch.float32
    if has_products and not is_old and not got.num_mma:
        found.append("no tensor cores")
    return found


@pytest.mark.proof
@pytest.mark.parametrize("target", ["sm_75", "sm_80", "sm_90", "sm_100", "gfx942"])
@pytest.mark.parametrize("kernel", ["decode", "prefill"])
def test_attention_compiles_well_for_llama(kernel, target):
    got = compile_launch(launch_of(kernel, "Llama-3-8B", torch.float16), target)
    assert not defects(kernel, torch.float16, got)


@pytest.mark.parametrize("kernel", KERNELS)
def test_every_kernel_compiles_well_for_smollm2(kernel):
    got = compile_launch(launch_of(kernel, "SmolLM2-135M", torch.bfloat16), "sm_90")
    assert not defects(kernel, torch.bfloat16, got)


@pytest.mark.proof
def test_float32_is_multiplied_exactly_and_without_tensor_cores():
    got = compile_launch(launch_of("decode", "SmolLM2-135M", torch.float32), "sm_80")
    assert not defects("decode", torch.float32, got)
    assert got.num_mma == 0 and "tf32" not in got.assembly


@pytest.mark.proof
def test_small_blocks_and_small_heads_compile_too(monkeypatch):
    """What the interpreter lets pass: tl.dot takes no side below 16."""
    monkeypatch.setitem(MODELS, "small", (2, 2, 8))
    for kernel in WITH_PRODUCTS:
        compile_launch(launch_of(kernel, "small", torch.float16, block_size=8), "sm_80")


@pytest.mark.proof
def test_a_base_that_is_not_aligned_costs_the_wide_loads():
    launch = launch_of("decode", "Llama-3-8B", torch.float16)
    got = compile_launch(launch, "sm_90", aligned=False)
    assert got.load_bytes.get(2, 0) > 0
    assert got.load_bytes.get(16, 0) == 0


@triton.jit
def double_kernel(out_ptr, x_ptr, size, TILE: tl.constexpr):
    place = tl.program_id(0) * TILE + tl.arange(0, TILE)
    x = tl.load(x_ptr + place, mask=place < size, other=0.0)
    tl.store(out_ptr + place, 2 * x, mask=place < size)


def test_any_kernel_can_be_compiled():
    x = torch.empty(1024)
    arguments = {"out_ptr": x, "x_ptr": x, "size": 1024, "TILE": 512}
    got = compile_kernel(double_kernel, arguments, "sm_80", num_warps=4)
    assert got.load_bytes == {16: 1}
    assert got.spill_bytes == got.num_mma == got.shared_bytes == 0
    assert "ld.global" in got.assembly and got.num_registers > 0


@pytest.mark.proof
def test_a_stride_that_is_a_multiple_of_8_only_does_not_cost_the_wide_loads():
    for kernel in ("decode", "write_kv"):
        launch = launch_of(kernel, "head_dim 120", torch.float16)
        assert launch.arguments["key_stride_head"] % 16 == 8
        assert not defects(kernel, torch.float16, compile_launch(launch, "sm_80"))


def table_rows() -> dict[tuple[str, ...], dict[str, Any]]:
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    names = ("model", "kernel", "dtype", "target")
    return {tuple(row[name] for name in names): row for row in table["rows"]}


def test_the_committed_table_is_complete_and_has_no_defect():
    """Chapter 11 shows it. Written by `python tests/test_compile.py --write`."""
    rows = table_rows()
    assert len(rows) == len(MODELS) * len(KERNELS) * (3 * len(TARGETS) - 1)
    assert {key: row["defects"] for key, row in rows.items() if row["defects"]} == {}


@pytest.mark.proof
def test_the_committed_table_says_what_is_compiled_today():
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    if table["triton"] != triton.__version__:
        pytest.skip(f"not verified: the table is of Triton {table['triton']}")
    row = row_of("Llama-3-8B", "decode", torch.float16, "sm_90")
    assert row == table_rows()["Llama-3-8B", "decode", "float16", "sm_90"]


def test_arguments_that_are_missing_or_too_many_are_named():
    with pytest.raises(ValueError, match=r"takes \['TILE', 'size'\] too, and not \['n"):
        x = torch.empty(1)
        compile_kernel(double_kernel, {"out_ptr": x, "x_ptr": x, "n": 1}, "sm_80")


def test_an_unknown_target_is_refused():
    with pytest.raises(ValueError, match=r"one of sm_75, .* got 'sm_1'"):
        compile_kernel(double_kernel, {}, "sm_1")


def kernel_loads() -> list[tuple[str, ast.Call]]:
    folder = Path(__file__).parent.parent / "paged_attention" / "kernels"
    return [
        (f"{path.name}:{node.lineno}", node)
        for path in sorted(folder.glob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("tl.load", "tl.dot")
    ]


def test_every_masked_load_says_what_stands_behind_the_mask():
    calls = [call for call in kernel_loads() if ast.unparse(call[1].func) == "tl.load"]
    assert len(calls) > 10
    for place, call in calls:
        names = {keyword.arg for keyword in call.keywords}
        assert "mask" not in names or "other" in names, place


def test_every_product_says_its_precision():
    calls = [call for call in kernel_loads() if ast.unparse(call[1].func) == "tl.dot"]
    assert len(calls) == 3
    for place, call in calls:
        names = {keyword.arg for keyword in call.keywords}
        assert "input_precision" in names, place


def row_of(model: str, kernel: str, dtype: torch.dtype, target: str) -> dict[str, Any]:
    launch = launch_of(kernel, model, dtype)
    got = compile_launch(launch, target)
    num_heads, num_kv_heads, head_dim = MODELS[model]
    return {
        "kernel": kernel,
        "model": model,
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_dim": head_dim,
        "dtype": str(dtype)[6:],
        "target": target,
        "num_warps": launch.num_warps,
        "registers": got.num_registers,
        "spill_bytes": got.spill_bytes,
        "shared_bytes": got.shared_bytes,
        "widest_load": max(got.load_bytes),
        "loads": {str(width): number for width, number in got.load_bytes.items()},
        "num_mma": got.num_mma,
        "defects": defects(kernel, dtype, got),
    }


def main(arguments: list[str]) -> int:
    """All models, kernels, dtypes and targets: a table, and 1 if any has a defect.

    With --write it goes to chapters/data/compile.json too, where chapter 11 reads it.
    """
    dtypes = (torch.float16, torch.bfloat16, torch.float32)
    rows: list[dict[str, Any]] = []
    for model, kernel, dtype, target in itertools.product(
        MODELS, KERNELS, dtypes, TARGETS
    ):
        if target == "sm_75" and dtype == torch.bfloat16:
            continue  # no such numbers there
        row = row_of(model, kernel, dtype, target)
        rows.append(row)
        print(
            f"{model:13} {kernel:12} {row['dtype']:9} {target:7}"
            f"{row['registers']:4} registers {row['spill_bytes']:6} spilled "
            f"{row['shared_bytes']:7} shared {row['num_mma']:4} mma  {row['loads']}"
            f"  {'; '.join(row['defects'])}",
            flush=True,
        )
    bad = sum(bool(row["defects"]) for row in rows)
    print(f"{len(rows)} compiled, {bad} with defects")
    if "--write" in arguments:
        write_table(rows)
    return min(bad, 1)


def write_table(rows: list[dict[str, Any]]) -> None:
    """One row a line, so that a change can be read in a diff."""
    head = {
        "triton": triton.__version__,
        "torch": torch.__version__,
        "date": str(date.today()),
        "command": "python tests/test_compile.py --write",
        "limits": {name: target.max_shared_bytes for name, target in TARGETS.items()},
    }
    lines = ",\n  ".join(json.dumps(row) for row in rows)
    text = json.dumps(head, indent=1).removesuffix("\n}")
    TABLE.write_text(f'{text},\n "rows": [\n  {lines}\n ]\n}}\n', encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
