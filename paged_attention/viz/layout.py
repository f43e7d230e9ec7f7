"""Memory as a strip of cells: where a tensor's elements lie, address by address."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

from paged_attention.viz.canvas import GREY, IN_USE, PADDING, Canvas
from paged_attention.viz.picture import Picture, counted

MAX_CELLS = 512
_CELL = 26
_MARKED = 'fillcolor="#F5D08A", style="filled"'


def layout_picture(
    shape_names: Sequence[str],
    sizes: Sequence[int],
    strides: Sequence[int],
    highlight: Mapping[str, int] | None = None,
) -> Picture:
    """The elements of a tensor in address order; strides count elements, not bytes.

    highlight  dimension -> index: {"block": 0, "token": 1} marks what one token owns
    Addresses between elements are padding. Raises ValueError for a name or an index
    that the tensor does not have, and for more than MAX_CELLS addresses.
    """
    fixed = dict(highlight or {})
    unknown = fixed.keys() - set(shape_names)
    if unknown:
        raise ValueError(f"highlight names {sorted(unknown)}, not in {shape_names}")
    ends = [(size - 1) * stride for size, stride in zip(sizes, strides, strict=True)]
    if min(sizes) < 1 or min(strides) < 0 or sum(ends) >= MAX_CELLS:
        raise ValueError(
            f"addresses must be in 0 … {MAX_CELLS - 1} to be drawn, "
            f"got sizes {list(sizes)}, strides {list(strides)}"
        )
    used = set(_addresses(shape_names, sizes, strides, {}))
    marked = set(_addresses(shape_names, sizes, strides, fixed)) if fixed else set()
    if fixed and not marked:
        raise ValueError(f"highlight {fixed} lies outside sizes {list(sizes)}")
    captions = _captions(shape_names, sizes, strides, fixed, marked)
    num_cells = max(used) + 1
    # A row as long as one of the strides: what lies a stride apart stands in a column.
    per_row = max((s for s in strides if 8 <= s <= 32), default=32)
    return Picture(
        _source(captions, num_cells, per_row, used, marked),
        " ".join(["Memory in address order.", *captions]),
        _drawing(captions, num_cells, per_row, used, marked),
    )


def _addresses(
    shape_names: Sequence[str],
    sizes: Sequence[int],
    strides: Sequence[int],
    fixed: Mapping[str, int],
) -> Iterator[int]:
    """Where the elements lie whose indices agree with fixed."""
    for index in itertools.product(*map(range, sizes)):
        at = dict(zip(shape_names, index, strict=True))
        if all(at[name] == i for name, i in fixed.items()):
            yield sum(i * stride for i, stride in zip(index, strides, strict=True))


def _captions(
    shape_names: Sequence[str],
    sizes: Sequence[int],
    strides: Sequence[int],
    fixed: Mapping[str, int],
    marked: set[int],
) -> list[str]:
    shape = ", ".join(f"{n} {size}" for n, size in zip(shape_names, sizes, strict=True))
    captions = [f"Shape [{shape}], strides [{', '.join(map(str, strides))}]."]
    if fixed:
        where = ", ".join(f"{name} {i}" for name, i in fixed.items())
        # Where a marked address follows one that is not, a piece begins.
        pieces = sum(address - 1 not in marked for address in marked)
        captions.append(
            f"Marked: {where}: {counted(len(marked), 'element')} in "
            f"{counted(pieces, 'piece')}, addresses {_runs(marked)}."
        )
    return captions


def _runs(addresses: set[int]) -> str:
    """{0, 1, 2, 8} as "0…2, 8"."""
    runs = []
    for start in sorted(a for a in addresses if a - 1 not in addresses):
        end = next(a for a in itertools.count(start) if a + 1 not in addresses)
        runs.append(str(start) if start == end else f"{start}…{end}")
    return ", ".join(runs)


def _source(
    captions: Sequence[str],
    num_cells: int,
    per_row: int,
    used: set[int],
    marked: set[int],
) -> str:
    canvas = Canvas()
    for line, caption in enumerate(reversed(captions)):
        canvas.line_of_text(-_CELL / 2, -_CELL / 2 - 20 - 16 * line, caption)
    # Marked cells last, so that no neighbour covers their border.
    for address in sorted(range(num_cells), key=lambda a: (a in marked, a)):
        row, column = divmod(address, per_row)
        center = (column * _CELL, row * (_CELL + 10))
        look = _MARKED if address in marked else IN_USE
        look = look if address in used else PADDING
        canvas.box(center, (_CELL, _CELL), look, address in marked)
        canvas.text(
            center, str(address), 10, GREY if address not in used else "#1A1A1A"
        )
    return canvas.source


def _drawing(
    captions: Sequence[str],
    num_cells: int,
    per_row: int,
    used: set[int],
    marked: set[int],
) -> str:
    def cell(address: int) -> str:
        if address not in used:
            return "."
        return f"*{address}*" if address in marked else f" {address} "

    lines = list(captions)
    for start in range(0, num_cells, per_row):
        row = range(start, min(start + per_row, num_cells))
        lines.append("".join(cell(address).rjust(5) for address in row))
    return "\n".join([*lines, "*n*: marked; dots: padding"])
