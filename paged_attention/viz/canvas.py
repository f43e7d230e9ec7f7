"""A sheet to draw on, which ends as a DOT source.

Graphviz is the pen here, not the layout program: neato with every position pinned.
So an arrow goes where it is sent, and every version of Graphviz draws the same.
Coordinates are points, x to the right and y down; a box is placed by its centre.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

INK = "#1A1A1A"
GREY = "#595959"
MARK = "#D55E00"  # Okabe and Ito's colours, told apart by colour-blind readers too

ALARM = "#A63F00"  # the same, darker: for words

DOUBLE = ", peripheries=2"  # a second border; `box` draws it itself

# How a box looks. Never by colour alone: the border differs as well.
FREE = 'fillcolor="#FFFFFF", style="filled,dashed"'
IN_USE = 'fillcolor="#A9D8F5", style="filled"'
SHARED = f'fillcolor="#F5D08A", style="filled"{DOUBLE}'
CACHED = 'fillcolor="#CDEBDD", style="filled,rounded"'
PADDING = 'fillcolor="#E4E4E4", style="filled,dotted"'

# Graphviz measures text by these; a browser may show another, a little wider or not. So
# all widths here are reckoned from the number of characters, on the safe side.
_FONT = "Helvetica,Arial,sans-serif"


@dataclass
class Canvas:
    """Collects boxes, words and arrows; `source` is the DOT text of all of them."""

    _statements: list[str] = field(default_factory=list)
    _num_nodes: int = 0

    def box(
        self,
        center: tuple[float, float],
        size: tuple[float, float],
        look: str,
        marked: bool = False,
    ) -> None:
        """An empty box; a marked one has a thick border in the marking colour.

        A double border stays inside, so that it does not reach into the neighbour.
        """
        double, look = DOUBLE in look, look.replace(DOUBLE, "")
        # Positions are in points (inputscale=72), but sizes are in inches, always.
        width, height = (inches / 72 for inches in size)
        attributes = f'width={width:.4g}, height={height:.4g}, {look}, color="{INK}"'
        if marked:
            style = "filled,rounded" if "rounded" in look else "filled"
            attributes += f', style="{style}", color="{MARK}", penwidth=3.5'
        self._node(center, f'label="", fixedsize=true, {attributes}')
        if double:
            # Graphviz' own second border would lie outside of the first.
            inset = 9 if marked else 7
            self.box(center, (size[0] - inset, size[1] - inset), look)

    def text(
        self, center: tuple[float, float], text: str, size: int = 10, color: str = INK
    ) -> None:
        """One line of text, centred."""
        label = f"label={_quote(text)}, shape=plaintext, width=0, height=0, margin=0"
        self._node(center, f'{label}, fontsize={size}, fontcolor="{color}"')

    def line_of_text(self, left: float, y: float, text: str, color: str = INK) -> None:
        """One line of text that starts at left."""
        width = 6.5 * len(text)  # too wide rather than cut off
        label = f'label="{_escape(text)}\\l", shape=plaintext, fixedsize=true, height=0'
        self._node(
            (left + width / 2, y),
            f"{label}, width={width / 72:.4g}, margin=0, fontsize=12, "
            f'fontcolor="{color}"',
        )

    def arrow(
        self,
        points: Iterable[tuple[float, float]],
        marked: bool = False,
        pen: str = f'color="{INK}"',
    ) -> None:
        """A line through the points, with its head at the last one.

        A marked one has the marking colour and is thick, with the dashes of its pen.
        """
        # An edge joins nodes, so each corner of the line is a node that nobody sees.
        names = [self._node(at, "shape=point, width=0, style=invis") for at in points]
        if marked:  # of two colours Graphviz takes the later one
            pen += f', color="{MARK}", penwidth=2.5'
        last = len(names) - 2
        for i, (start, end) in enumerate(pairwise(names)):
            head = "" if i == last else ", arrowhead=none"
            self._statements.append(f"{start} -> {end} [{pen}{head}]")

    @property
    def source(self) -> str:
        return (
            "\n    ".join(
                [
                    "digraph {",
                    'layout=neato; inputscale=72; bgcolor="white"; pad=0.2;',
                    f'node [shape=box, fontname="{_FONT}"];',
                    "edge [arrowsize=0.7];",
                    *self._statements,
                ]
            )
            + "\n}\n"
        )

    def _node(self, center: tuple[float, float], attributes: str) -> str:
        name = f"n{self._num_nodes}"
        self._num_nodes += 1
        x, y = center
        # In DOT y points up. The ! pins the node: neato must not improve on our places.
        self._statements.append(f'{name} [pos="{x:g},{-y:g}!", {attributes}]')
        return name


def _escape(text: str) -> str:
    """Text for the inside of a quoted DOT string; Graphviz reads entities there."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")


def _quote(text: str) -> str:
    return f'"{_escape(text)}"'
