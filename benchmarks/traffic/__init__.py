"""Requests to serve: drawn from a distribution, or read from a trace.

A trace is a CSV file with the columns TIMESTAMP, ContextTokens, GeneratedTokens. The
times are read only by `read_arrivals`.
"""

import math
import random
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class TraceError(ValueError):
    """A file that is no trace; the message begins with file:line:column."""


@dataclass(slots=True)
class Request:
    prompt_len: int
    output_len: int
    num_made: int = 0  # output tokens so far; they stay when it is preempted

    @property
    def seq_len(self) -> int:
        return self.prompt_len + self.num_made

    @property
    def final_len(self) -> int:
        return self.prompt_len + self.output_len


def draw_requests(
    mean_in: float, mean_out: float, n: int, max_len: int, seed: int = 0
) -> list[Request]:
    """n requests with independent log-normal lengths, cv 1, cut at max_len."""
    rng = random.Random(seed)
    variance = math.log(2)  # of the logarithm: that is what cv 1 means

    def draw(mean: float, longest: int) -> int:
        length = rng.lognormvariate(math.log(mean) - variance / 2, math.sqrt(variance))
        return min(max(1, round(length)), longest)

    requests: list[Request] = []
    for _ in range(n):
        prompt_len = draw(mean_in, max_len - 1)
        requests.append(Request(prompt_len, draw(mean_out, max_len - prompt_len)))
    return requests


def read_trace(path: Path) -> list[Request]:
    """The requests of a trace in the file's order; TraceError says where it is broken.

    The three columns may stand in any order, and among others.
    """
    header, lines = _read(path)
    requests: list[Request] = []
    for number, line in enumerate(lines, start=2):
        where = f"{path}:{number}"
        lengths = [_whole(name, line, header, where) for name in COLUMNS[1:]]
        requests.append(Request(*lengths))
    return requests


def read_arrivals(path: Path) -> list[float]:
    """For each request of a trace, the seconds since the first one came.

    TraceError for what is no time, such as 2023-11-16 18:15:46.6805900, and for one
    that lies before the time above it.
    """
    header, lines = _read(path)
    times: list[datetime] = []
    for number, line in enumerate(lines, start=2):
        text, column = _field(COLUMNS[0], line, header, f"{path}:{number}")
        try:
            times.append(datetime.fromisoformat(text))
            in_order = times[0] <= times[-1] and times[-2:] == sorted(times[-2:])
        except (ValueError, TypeError):  # no time; or one with a zone and one without
            raise TraceError(
                f"{path}:{number}:{column}: {COLUMNS[0]} must be a time, got {text!r}"
            ) from None
        if not in_order:
            raise TraceError(
                f"{path}:{number}:{column}: {text} lies before the time above it"
            )
    return [(time - times[0]).total_seconds() for time in times]


def _read(path: Path) -> tuple[list[str], list[str]]:
    """The names of the columns, and the lines below them."""
    try:
        lines = path.read_bytes().decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        before, byte = error.object[: error.start], error.object[error.start]
        line, column = before.count(b"\n") + 1, len(before) - before.rfind(b"\n")
        raise TraceError(f"{path}:{line}:{column}: byte {byte:#x} is no text") from None
    header = [name.strip() for name in lines[0].split(",")] if lines else []
    for name in COLUMNS:
        if name not in header:
            raise TraceError(f"{path}:1:1: there is no column {name}, got {header}")
    if len(lines) == 1:
        raise TraceError(f"{path}:2:1: no request stands below the header")
    return header, lines[1:]


def _field(name: str, line: str, header: list[str], where: str) -> tuple[str, int]:
    """What stands in a line's field of this name, and in which column it begins."""
    texts = line.split(",")
    index = header.index(name)
    if len(texts) != len(header):
        column = len(",".join(texts[: len(header)])) + 1  # behind the last that is due
        raise TraceError(
            f"{where}:{column}: expected {len(header)} fields, got {len(texts)}"
        )
    column = sum(len(before) + 1 for before in texts[:index]) + 1
    return texts[index].strip(), column


def _whole(name: str, line: str, header: list[str], where: str) -> int:
    """The number in a line's field of this name."""
    text, column = _field(name, line, header, where)
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise TraceError(
            f"{where}:{column}: {name} must be a whole number >= 1, got {text!r}"
        )
    return int(text)
