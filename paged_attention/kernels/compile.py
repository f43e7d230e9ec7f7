"""Compile a kernel for a GPU that is not here, and say what became of it.

Triton brings the whole way down to machine code, so no GPU and no CUDA toolkit is
needed. That shows what the interpreter lets pass, and what decides about speed before
anything is measured: registers, spills, shared memory, how wide the loads are, and
whether tensor cores are used. The kernel must not be interpreted: TRITON_INTERPRET must
not be set when it is imported.
"""

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from paged_attention.kernels.launch import Launch, is_interpreted


@dataclass(frozen=True)
class Target:
    """A kind of GPU, and the most shared memory that one program gets on it."""

    gpu: GPUTarget  # backend, architecture, threads in a warp
    max_shared_bytes: int


# From NVIDIA's table of compute capabilities; of AMD's GPU it is the LDS.
TARGETS = {
    "sm_75": Target(GPUTarget("cuda", 75, 32), 64 * 1024),
    "sm_80": Target(GPUTarget("cuda", 80, 32), 163 * 1024),
    "sm_90": Target(GPUTarget("cuda", 90, 32), 227 * 1024),
    "sm_100": Target(GPUTarget("cuda", 100, 32), 227 * 1024),
    "gfx942": Target(GPUTarget("hip", "gfx942", 64), 64 * 1024),
}

POINTER = {
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.int32: "*i32",
    torch.int64: "*i64",
}


@dataclass(frozen=True)
class Compiled:
    """What a kernel became on one target."""

    target: str
    num_registers: int  # per thread
    spill_bytes: int  # per thread; 0 is what one wants
    shared_bytes: int  # per program
    load_bytes: dict[int, int]  # width of a load -> how many such instructions
    num_mma: int  # instructions for tensor cores (NVIDIA) or matrix cores (AMD)
    assembly: str = field(repr=False)  # PTX, or AMD's own

    @property
    def fits(self) -> bool:
        """Whether the target has the shared memory for it."""
        return self.shared_bytes <= TARGETS[self.target].max_shared_bytes


def compile_launch(launch: Launch, target: str, *, aligned: bool = True) -> Compiled:
    """Compile what this launch would run. Its tensors may lie on the meta device."""
    return compile_kernel(
        launch.kernel, launch.arguments, target, aligned=aligned, **launch.options
    )


def compile_kernel(
    kernel: Any,
    arguments: Mapping[str, Any],
    target: str,
    *,
    aligned: bool = True,
    **options: Any,
) -> Compiled:
    """Compile any kernel for these arguments, as Triton would on their first use.

    arguments  by name, all of them: tensors, numbers, and the constexprs
    aligned    whether every tensor begins at a multiple of 16 bytes, as torch's do
    options    num_warps, num_stages
    """
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}")
    if is_interpreted(kernel):
        raise RuntimeError(
            f"{kernel.__name__} was imported under TRITON_INTERPRET=1 and cannot be "
            "compiled: do it in a fresh process without that variable"
        )
    source = _source(kernel, arguments, aligned)
    # As a Launch does; a kernel of someone else's may say otherwise.
    options = {"enable_fp_fusion": True, **options}
    compiled = triton.compile(source, TARGETS[target].gpu, options)
    shared_bytes = int(compiled.metadata.shared)
    if "amdgcn" in compiled.asm:
        return _read_amd(target, str(compiled.asm["amdgcn"]), shared_bytes)
    return _read_nvidia(
        target, str(compiled.asm["ptx"]), compiled.asm["cubin"], shared_bytes
    )


def _source(kernel: Any, arguments: Mapping[str, Any], aligned: bool) -> ASTSource:
    """Types and facts about each argument: which are 1, which are multiples of 16."""
    names = {parameter.name for parameter in kernel.params}
    if names != set(arguments):
        raise ValueError(
            f"{kernel.__name__} takes {sorted(names - set(arguments))} too, and "
            f"not {sorted(set(arguments) - names)}"
        )
    signature: dict[str, str] = {}
    constants: dict[str, Any] = {}
    attributes: dict[tuple[int], list[list[Any]]] = {}
    for i, parameter in enumerate(kernel.params):
        value = arguments[parameter.name]
        # What Triton's launcher does with each argument on a GPU. An int of 1 becomes
        # part of the code: a last stride of 1 is what makes wide loads possible.
        is_free = not parameter.do_not_specialize
        if parameter.is_constexpr or (is_free and type(value) is int and value == 1):
            signature[parameter.name] = "constexpr"
            constants[parameter.name] = value
            continue
        signature[parameter.name] = _type_of(value)
        is_multiple = aligned if isinstance(value, Tensor) else value % 16 == 0
        if is_free and is_multiple and not isinstance(value, float):
            attributes[(i,)] = [["tt.divisibility", 16]]
    return ASTSource(kernel, signature, constants, attributes)


def _type_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return POINTER[value.dtype]
    if isinstance(value, float):
        return "fp32"
    return "i32" if -(2**31) <= value < 2**31 else "i64"


def _read_nvidia(target: str, ptx: str, cubin: bytes, shared_bytes: int) -> Compiled:
    # PTX has a load as ld.global.v4.b32 (4 times 32 bits in one instruction), and one
    # that goes to shared memory behind the program's back as cp.async.cg … 0x10.
    usage = _resource_usage(cubin)
    loads: Counter[int] = Counter()
    for vector, bits in re.findall(
        r"\bld\.global[.\w:]*?(?:\.v(\d))?\.[bfsu](\d+)", ptx
    ):
        loads[int(vector or 1) * int(bits) // 8] += 1
    for size in re.findall(r"\bcp\.async\.c[ag]\.shared\.global[^;]*?\], (\w+)", ptx):
        loads[int(size, 0)] += 1
    mma = r"\b(?:mma\.sync|wgmma\.mma_async|tcgen05\.mma)\."
    return Compiled(
        target,
        num_registers=usage["REG"],
        spill_bytes=usage["STACK"] + usage["LOCAL"],
        shared_bytes=shared_bytes,
        load_bytes=dict(sorted(loads.items())),
        num_mma=len(re.findall(mma, ptx)),
        assembly=ptx,
    )


def _resource_usage(cubin: bytes) -> dict[str, int]:
    """What the machine code asks for, as cuobjdump tells: Triton brings it along."""
    folder = Path(triton.__file__).parent / "backends/nvidia/bin"
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "kernel.cubin"
        file.write_bytes(cubin)
        command = [folder / "cuobjdump", "-res-usage", file]
        report = subprocess.run(command, check=True, capture_output=True, text=True)
    return {
        name: int(number)
        for name, number in re.findall(r"\b([A-Z]+):(\d+)", report.stdout)
    }


def _read_amd(target: str, assembly: str, shared_bytes: int) -> Compiled:
    def number(name: str) -> int:
        return sum(int(n) for n in re.findall(rf"\.{name}:\s*(\d+)", assembly))

    # global_load_dwordx4 loads 16 bytes, buffer_load_short_d16_hi 2.
    widths = {"ubyte": 1, "ushort": 2, "short_d16": 2, "dword": 4}
    widths |= {f"dwordx{n}": 4 * n for n in (2, 3, 4)}
    loads: Counter[int] = Counter()
    for kind in re.findall(r"\b(?:global|buffer)_load_(\w+)", assembly):
        loads[widths[kind.removesuffix("_hi")]] += 1
    return Compiled(
        target,
        num_registers=number("vgpr_count"),
        # Scalar registers spill into vector ones, not into memory.
        spill_bytes=4 * number("vgpr_spill_count"),
        shared_bytes=shared_bytes,
        load_bytes=dict(sorted(loads.items())),
        num_mma=len(re.findall(r"\bv_mfma_", assembly)),
        assembly=assembly,
    )
