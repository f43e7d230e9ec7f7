"""Draws a view: tables in a row, the pool below, an arrow from entry to block."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from paged_attention.viz.canvas import ALARM, DOUBLE, GREY, INK, Canvas
from paged_attention.viz.view import MAX_IN_ROW, Block, Entry, Strip, View

MAX_WIDTH = 840  # of the tables in a row; more of them are drawn without arrows
_BOX = 46  # the least width of an entry or a block
_BETWEEN = 32  # two tables
_BETWEEN_BLOCKS = 9
_LABELS = 62  # the column of labels on the left

# Which table an arrow comes from shows in its dashes too.
_PENS = (
    ("#0072B2", "style=solid"),
    ("#7B3294", "style=dashed"),
    (INK, "style=solid"),
    ("#00734F", "style=dotted, penwidth=1.8"),
)


@dataclass(frozen=True)
class _Start:
    """Where an arrow starts, and the block it goes to."""

    x: float
    y: float
    target: int
    pen: str
    marked: bool


def draw(view: View, summary: str, notes: Sequence[str], errors: Sequence[str]) -> str:
    """The picture as DOT source. Below it the notes, and the errors in colour."""
    canvas = Canvas()
    canvas.line_of_text(-_LABELS, 0, summary)
    step = _block_width(view) + _BETWEEN_BLOCKS
    per_row = min(MAX_IN_ROW, int(MAX_WIDTH // step))
    pool_width = min(len(view.blocks), per_row) * step - _BETWEEN_BLOCKS
    rows = list(_rows(view.strips))
    # Arrows across a second row of tables or blocks would run through boxes.
    with_arrows = len(rows) == 1 and len(view.blocks) <= per_row
    tables_width = _width_of(rows[0]) if with_arrows else 0
    y, starts = 26.0, []
    for row in rows:
        left = max(0, (pool_width - tables_width) / 2) if with_arrows else 0
        y, starts = _draw_strips(canvas, row, left, y, with_arrows)
        y += 26
    left = max(0, (tables_width - pool_width) / 2)
    if with_arrows:
        xs = {
            block.block_id: left + _block_width(view) / 2 + i * step
            for i, block in enumerate(view.blocks)
            if isinstance(block, Block)
        }
        # The flatter the arrows, the more room they need to be told apart.
        flattest = max((abs(s.x - xs[s.target]) for s in starts), default=0)
        y += min(18 + 0.15 * flattest, 80)
        _draw_arrows(canvas, starts, xs, y)
    for start in range(0, len(view.blocks), per_row):
        y = _draw_blocks(canvas, view, start, start + per_row, (left, y))
    for line, color in [(n, GREY) for n in notes] + [(e, ALARM) for e in errors]:
        y += 17
        canvas.line_of_text(-_LABELS, y - 13, line, color)
    return canvas.source


def _rows(strips: Sequence[Strip]) -> Iterator[list[Strip]]:
    row: list[Strip] = []
    for strip in strips:
        if row and _width_of([*row, strip]) > MAX_WIDTH:
            yield row
            row = []
        row.append(strip)
    if row:
        yield row


def _width_of(row: Sequence[Strip]) -> float:
    return sum(map(_strip_width, row)) + _BETWEEN * (len(row) - 1)


def _strip_width(strip: Strip) -> float:
    # Points for each character, at 12 and at 10 points.
    title = 6.2 * len(strip.name) + 5.5 * len(strip.caption) + 14
    return max(title, sum(map(_entry_width, strip.entries)))


def _entry_width(entry: Entry | int) -> float:
    if isinstance(entry, int):
        return _BOX
    longest = max(map(len, entry.lines), default=0)
    frame = 18 if DOUBLE in entry.look else 10
    return max(_BOX, frame + 5.2 * longest, 14 + 7 * len(entry.label))


def _block_width(view: View) -> float:
    """The same for all, so that the pool is a grid."""
    blocks = [b for b in view.blocks if isinstance(b, Block)]
    label = max((len(b.label) for b in blocks), default=0)
    lines = [ln for b in blocks for ln in b.lines]
    longest = max(map(len, lines), default=0)
    frame = 14 if any(DOUBLE in b.look for b in blocks) else 8
    return max(_BOX, 14 + 5 * label, frame + 4.9 * longest)


def _draw_strips(
    canvas: Canvas, row: Sequence[Strip], left: float, y: float, in_color: bool
) -> tuple[float, list[_Start]]:
    """Returns where the row ends, and where its arrows start."""
    entries = [e for strip in row for e in strip.entries if isinstance(e, Entry)]
    height = 28 + 12 * max((len(e.lines) for e in entries), default=0)
    top = y + 26
    bottom = top + height
    if entries:
        canvas.text((left - 34, y + 17), "logical", 10, GREY)
        canvas.text((left - 34, bottom - 14), "block", 10, GREY)
    else:
        bottom = y
    starts: list[_Start] = []
    for i, strip in enumerate(row):
        color, style = _PENS[i % len(_PENS)] if in_color else (INK, "")
        canvas.line_of_text(left, y, strip.name, color)
        canvas.text(
            (left + 6.4 * len(strip.name) + 2.6 * len(strip.caption) + 8, y),
            strip.caption,
            10,
            GREY,
        )
        for entry, center in _in_drawing_order(strip, left):
            if isinstance(entry, int):
                _draw_gap(canvas, (center, (top + bottom) / 2), entry)
                continue
            width = _entry_width(entry)
            _draw_entry(canvas, entry, center, top, (width, height))
            if entry.target is not None:
                pen = f'color="{color}", {style}'
                starts.append(_Start(center, bottom, entry.target, pen, entry.marked))
        left += _strip_width(strip) + _BETWEEN
    return bottom, starts


def _in_drawing_order(strip: Strip, left: float) -> list[tuple[Entry | int, float]]:
    """Entries and their centres; the marked come last, so that no border is covered."""
    centers: list[tuple[Entry | int, float]] = []
    for entry in strip.entries:
        width = _entry_width(entry)
        centers.append((entry, left + width / 2))
        left += width
    return sorted(centers, key=lambda e: isinstance(e[0], Entry) and e[0].marked)


def _draw_entry(
    canvas: Canvas, entry: Entry, x: float, top: float, size: tuple[float, float]
) -> None:
    height = size[1]
    index = (
        f"{entry.logical_block} · {entry.fill}"
        if entry.fill
        else str(entry.logical_block)
    )
    canvas.text((x, top - 9), index, 10, GREY)
    canvas.box((x, top + height / 2), size, entry.look, entry.marked)
    for i, line in enumerate(entry.lines):
        canvas.text((x, top + 12 + 12 * i), line, 10)
    is_number = entry.label != "hole"
    canvas.text((x, top + height - 14), entry.label, 14 if is_number else 10)
    if entry.wrong:
        _draw_badge(canvas, (x + size[0] / 2 - 3, top + 2))


def _draw_gap(canvas: Canvas, center: tuple[float, float], num: int) -> None:
    x, y = center
    canvas.text((x, y - 7), "…", 10, GREY)
    canvas.text((x, y + 6), f"{num} more", 9, GREY)


def _draw_badge(canvas: Canvas, center: tuple[float, float]) -> None:
    canvas.box(center, (13, 13), f'fillcolor="{ALARM}", style="filled"')
    canvas.text(center, "!", 10, "#FFFFFF")


def _draw_arrows(
    canvas: Canvas, starts: Sequence[_Start], xs: Mapping[int, float], y: float
) -> None:
    # Those that end at one block end side by side, in the order in which they start:
    # so they do not cross there.
    by_target: defaultdict[int, list[_Start]] = defaultdict(list)
    for start in starts:
        by_target[start.target].append(start)
    for target, sources in by_target.items():
        sources.sort(key=lambda start: start.x)
        step = min(15, 34 / len(sources))
        for i, s in enumerate(sources):
            end = xs[target] + step * (i - (len(sources) - 1) / 2)
            canvas.arrow([(s.x, s.y), (end, y - 2)], s.marked, s.pen)


def _draw_blocks(
    canvas: Canvas, view: View, start: int, stop: int, corner: tuple[float, float]
) -> float:
    """One row of the pool; returns where the next one may begin."""
    left, y = corner
    lines = [len(b.lines) for b in view.blocks if isinstance(b, Block)]
    size = (_block_width(view), 43 + 11 * max(lines, default=0))
    canvas.text((left - 34, y + 14), "block", 10, GREY)
    label = "ref_count" if view.counted else "held"
    canvas.text((left - 34, y + 30), label, 10, GREY)
    for i, block in enumerate(view.blocks[start:stop]):
        x = left + size[0] / 2 + i * (size[0] + _BETWEEN_BLOCKS)
        if isinstance(block, int):
            _draw_gap(canvas, (x, y + 20), block)
            continue
        canvas.box((x, y + size[1] / 2), size, block.look, block.marked)
        canvas.text((x, y + 14), str(block.block_id), 14)
        canvas.text((x, y + 30), block.label, 10)
        for j, line in enumerate(block.lines):
            canvas.text((x, y + 42 + 11 * j), line, 9)
        if block.wrong:
            _draw_badge(canvas, (x + size[0] / 2 - 3, y + 2))
    return y + size[1] + 14
