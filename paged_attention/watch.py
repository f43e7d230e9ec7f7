"""The pool and the tables of a running engine, drawn in a terminal with rich.

One colour for each sequence. A frame is a picture of this moment; drawing it anew after
each step is up to whoever shows it.
"""

import io
from collections.abc import Sequence
from dataclasses import dataclass

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paged_attention.engine import Engine

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")
SHARED, CACHED, FREE = "black on white", "dim", "bright_black"
MAX_BLOCKS = 256  # of a larger pool: the first ones
MAX_TABLES = 12
MAX_LINES = 5  # of an answer: its end


@dataclass
class Talk:
    """A prompt and its answer so far."""

    prompt: str
    answer: str = ""
    is_over: bool = False


def frame(engine: Engine, talks: Sequence[Talk], width: int) -> RenderableType:
    """Answers on top; below, the pool and the tables."""
    answers = [_answer(talk, _colour(i), width) for i, talk in enumerate(talks)]
    pool = Panel(
        _pool(engine), title=_pool_title(engine), title_align="left", style="none"
    )
    return Group(*answers, pool, _tables(engine), _legend())


def as_svg(rendered: RenderableType, width: int, title: str) -> str:
    """A frame as a picture for a page."""
    console = Console(record=True, width=width, file=io.StringIO(), color_system="256")
    console.print(rendered)
    return console.export_svg(title=title)


def _colour(request: object) -> str:
    # Ids count up, so neighbours differ; and a request keeps its colour.
    return COLOURS[hash(request) % len(COLOURS)]


def _answer(talk: Talk, colour: str, width: int) -> RenderableType:
    lines = Text(talk.answer.strip()).wrap(Console(width=width), max(1, width - 4))
    shown = Text("\n").join(lines[-MAX_LINES:])
    cursor = "" if talk.is_over else "▍"
    return Panel(
        Text.assemble(shown, (cursor, colour)),
        title=Text(talk.prompt, style=colour, overflow="ellipsis", no_wrap=True),
        title_align="left",
        border_style=colour,
    )


def _pool(engine: Engine) -> RenderableType:
    """A number for each block: who holds it, by colour."""
    holders: dict[int, list[object]] = {}
    for sequence in engine.sequences:
        for block_id in sequence.table.block_ids if sequence.table else ():
            if block_id is not None:
                holders.setdefault(block_id, []).append(sequence.request_id)
    cached = set(engine.prefix_cache.block_ids if engine.prefix_cache else ())
    num_blocks = engine.allocator.num_blocks
    digits = len(str(num_blocks - 1))
    cells: list[RenderableType] = []
    for block_id in range(min(num_blocks, MAX_BLOCKS)):
        held = holders.get(block_id, [])
        look = CACHED if block_id in cached else FREE
        if held:
            look = SHARED if len(held) > 1 else f"black on {_colour(held[0])}"
        name = str(block_id) if held or block_id in cached else "·"
        cells.append(Text(name.rjust(digits), style=look))
    return Columns(cells, padding=(0, 1))


def _pool_title(engine: Engine) -> str:
    stats = engine.stats
    words = [f"{stats.num_blocks} blocks, {stats.num_free} free"]
    if stats.num_shared:
        words.append(f"{stats.num_shared} shared")
    words.append(f"{stats.used_share:.0%} of the used slots hold tokens")
    if stats.num_preemptions:
        words.append(f"{stats.num_preemptions} preempted")
    return f"pool at step {stats.num_steps}: {', '.join(words)}"


def _tables(engine: Engine) -> RenderableType:
    grid = Table(box=None, pad_edge=False, header_style="dim")
    grid.add_column("sequence")
    grid.add_column("tokens", justify="right")
    grid.add_column("block table", overflow="ellipsis", no_wrap=True)
    for sequence in engine.sequences[:MAX_TABLES]:
        table = sequence.table
        blocks = [] if table is None else table.block_ids
        ids = " ".join("–" if b is None else str(b) for b in blocks)
        grid.add_row(
            Text(str(sequence.request_id), style=_colour(sequence.request_id)),
            str(0 if table is None else table.num_tokens),
            ids or str(sequence.status),
        )
    return Panel(grid, title="tables", title_align="left")


def _legend() -> RenderableType:
    return Text.assemble(
        ("0", f"black on {COLOURS[0]}"),
        " a sequence's own   ",
        ("0", SHARED),
        " shared   ",
        ("0", CACHED),
        " only cached   ",
        ("·", FREE),
        " free",
        style="dim",
    )
