"""Draws a timeline: a lane for each name, a cell for each step, what it all means."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from paged_attention.viz.canvas import (
    CACHED,
    FREE,
    GREY,
    IN_USE,
    PADDING,
    SHARED,
    Canvas,
)

_STEPS_IN_ROW = 16
_CELL = 40
_HEIGHT = 28

# What a cell shows: how it looks, and what the legend says of it.
_DECODE = 'fillcolor="#FFFFFF", style="filled"'
_LEGEND = {
    "prompt": (IN_USE, "tokens of a prompt"),
    "decode": (_DECODE, "makes one token"),
    "again": (SHARED, "computed again, all or some of it"),
    "out": (FREE, "has to leave"),
    "host": (CACHED, "lies in host memory"),
    "waits": (PADDING, "waits"),
    "idle": (PADDING, "runs, but the budget is used up"),
}


@dataclass(frozen=True)
class Cell:
    """One sequence in one step."""

    kind: str  # of the legend; "": nothing is drawn, but perhaps said
    label: str
    told: str  # for who cannot see it


def draw_timeline(
    lanes: Mapping[str, Sequence[Cell]],
    columns: Sequence[Sequence[str]],
    summary: str,
    notes: Iterable[str],
) -> str:
    """The picture as DOT source.

    lanes    name -> a cell for each step
    columns  the same as a table in text: the first has the names, and below them those
             of the rows of figures, such as "tokens"; then one for each step
    """
    canvas = Canvas()
    # Names stand left of step 1, whose cell begins at 0.
    left = -(24 + 6.6 * max(map(len, columns[0])))
    canvas.line_of_text(left, 0, summary)
    y = 26.0
    for first in range(0, len(columns) - 1, _STEPS_IN_ROW):
        steps = range(first, min(first + _STEPS_IN_ROW, len(columns) - 1))
        y = _draw_row(canvas, lanes, columns, steps, (left, y)) + 20
    kinds = {cell.kind for cells in lanes.values() for cell in cells}
    y = _draw_legend(canvas, kinds, (left, y))
    for note in notes:
        canvas.line_of_text(left, y, note, GREY)
        y += 17
    return canvas.source


def _draw_row(
    canvas: Canvas,
    lanes: Mapping[str, Sequence[Cell]],
    columns: Sequence[Sequence[str]],
    steps: range,
    corner: tuple[float, float],
) -> float:
    """As many steps as fit side by side; returns where the next row may begin."""
    left, y = corner
    xs = {i: _CELL / 2 + (i - steps.start) * _CELL for i in steps}
    canvas.line_of_text(left, y, "step", GREY)
    for i, x in xs.items():
        canvas.text((x, y), columns[i + 1][0], 10, GREY)
    for name, cells in lanes.items():
        if not any(cells[i].label for i in steps):
            continue  # not here yet, or gone already
        y += _HEIGHT + 4
        canvas.line_of_text(left, y, name)
        # The marked come last, so that no neighbour covers their border.
        for i in sorted(steps, key=lambda i: cells[i].kind == "out"):
            _draw_cell(canvas, cells[i], (xs[i], y))
    y += _HEIGHT
    for row in range(len(lanes) + 1, len(columns[0])):
        canvas.line_of_text(left, y, columns[0][row], GREY)
        for i, x in xs.items():
            canvas.text((x, y), columns[i + 1][row], 10, GREY)
        y += 16
    return y


def _draw_cell(canvas: Canvas, cell: Cell, center: tuple[float, float]) -> None:
    if cell.kind:
        look = _LEGEND[cell.kind][0]
        canvas.box(center, (_CELL - 4, _HEIGHT), look, cell.kind == "out")
    # Numbers are what is compared, words only name the look.
    is_number = cell.label.isdigit()
    canvas.text(center, cell.label, 13 if is_number else 9)


def _draw_legend(canvas: Canvas, kinds: set[str], corner: tuple[float, float]) -> float:
    left, y = corner
    x, right = left, left + 840
    for kind, (look, meaning) in _LEGEND.items():
        if kind not in kinds:
            continue
        width = 46 + 6.2 * len(meaning)
        if x > left and x + width > right:
            x, y = left, y + 22
        canvas.box((x + 11, y), (22, 16), look, kind == "out")
        canvas.line_of_text(x + 28, y, meaning, GREY)
        x += width
    return y + 22
