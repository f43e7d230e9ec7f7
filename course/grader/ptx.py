"""Reads in PTX how wide each tensor is loaded: which parameter an address comes from.

A loaded number is no part of an address here, although it may have led to it: the key
that a block table led to is a load from the keys, not from the table.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator

_INSTRUCTION = re.compile(r"^(?:@!?%\w+\s+)?([a-z][\w.:]*)\s+(.*);")
_REGISTER = re.compile(r"%[a-z]+\d+")
_PARAMETER = re.compile(r"_param_(\d+)")
_WIDTH = re.compile(r"(?:\.v(\d))?\.[bfsu](\d+)$")
_ASYNC = re.compile(r"\]\s*,\s*\[([^\]]*)\]\s*,\s*(0x[\da-f]+|\d+)")

# What doesn't hand an address on to its first operand.
_NO_ARITHMETIC = ("ld.", "st.", "cp.", "bar.", "mma.", "ldmatrix.", "red.", "atom.")


def loads_by_parameter(ptx: str) -> Counter[tuple[frozenset[int], int]]:
    """(parameters in the address, bytes of one load) -> number of such instructions."""
    instructions = list(_instructions(ptx))
    origin: dict[str, set[int]] = defaultdict(set)  # register -> parameters in it
    known = -1
    # Until nothing new is learned, because in a loop the end comes before the start.
    while known != (known := sum(map(len, origin.values()))):
        for name, operands in instructions:
            _follow(origin, name, operands)
    return Counter(
        (frozenset().union(*(origin[r] for r in _REGISTER.findall(address))), width)
        for address, width in _loads(instructions)
    )


def _instructions(ptx: str) -> Iterator[tuple[str, str]]:
    for line in ptx.splitlines():
        match = _INSTRUCTION.match(line.strip().lstrip("{ "))
        if match:
            yield match[1], match[2]


def _follow(origin: dict[str, set[int]], name: str, operands: str) -> None:
    """What the sources of one instruction hold, its destination holds too."""
    # A vector of registers stands in braces.
    end = operands.find("}") if operands.startswith("{") else operands.find(",")
    destination, source = operands[: max(end, 0)], operands[max(end, 0) :]
    found: set[int] = set()
    if name.startswith("ld.param"):
        found = {int(number) for number in _PARAMETER.findall(source)}
    elif not name.startswith(_NO_ARITHMETIC):
        found = set().union(*(origin[r] for r in _REGISTER.findall(source)))
    if found:
        for register in _REGISTER.findall(destination):
            origin[register] |= found


def _loads(instructions: list[tuple[str, str]]) -> Iterator[tuple[str, int]]:
    """(what stands in the brackets, bytes) of each load from global memory."""
    for name, operands in instructions:
        if name.startswith("ld.global"):
            match = _WIDTH.search(name)
            if match:
                yield (
                    operands.rpartition("[")[2],
                    int(match[1] or 1) * int(match[2]) // 8,
                )
        elif name.startswith("cp.async.c") and (match := _ASYNC.search(operands)):
            yield match[1], int(match[2], 0)
