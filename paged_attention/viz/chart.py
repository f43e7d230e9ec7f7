"""Matplotlib figures in one style, shown with alt text and the same bytes each time.

Matplotlib is imported when a function here runs, not with this file.
"""

import io
from typing import TYPE_CHECKING, Any

from paged_attention.viz.picture import accessible_svg, mime_bundle

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette less its yellow, which is too pale for lines on white.
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 1)))


def chart_style() -> None:
    """Switch Matplotlib to the course's style, for the figures made from now on.

    Lines differ in colour and in dashes; give bars a label or a hatch.
    """
    import matplotlib as mpl
    from matplotlib.rcsetup import cycler

    # A sum runs both side by side: the first line is blue and solid, the next dashed, …
    cycle = cycler(color=COLORS) + cycler(linestyle=LINE_STYLES)
    mpl.rcParams.update(
        {
            "axes.axisbelow": True,
            "axes.edgecolor": "#595959",
            "axes.grid": True,
            "axes.prop_cycle": cycle,
            "axes.spines.right": False,
            "axes.spines.top": False,
            "axes.titlelocation": "left",
            "figure.constrained_layout.h_pad": 0.12,
            "figure.constrained_layout.use": True,
            "figure.constrained_layout.w_pad": 0.12,
            "figure.dpi": 100,
            "figure.facecolor": "white",
            "figure.figsize": (7, 3.5),
            "font.size": 10.5,
            "grid.color": "#E0E0E0",
            "hatch.linewidth": 0.6,
            "legend.frameon": False,
            "lines.linewidth": 2,
        }
    )


def show(figure: "Figure", alt: str) -> None:
    """Show a figure at this place of the cell, as SVG and PNG, and close it.

    alt  what the figure says, for a reader who cannot see it; must not be empty.
    Outside IPython the alt text is printed instead.
    """
    if not alt.strip():
        raise ValueError("alt must say what the figure shows, got nothing")
    import matplotlib.pyplot as plt
    from IPython.core.getipython import get_ipython
    from IPython.display import display

    data, metadata = mime_bundle(_svg(figure, alt), _png(figure), alt, alt)
    # Else Jupyter would show the figure once more at the end of the cell.
    plt.close(figure)
    if get_ipython() is None:
        print(alt)
    else:
        display(data, metadata=metadata, raw=True)


def _svg(figure: "Figure", alt: str) -> str:
    import matplotlib as mpl

    # Ids come from a hash; a fixed salt makes them the same in every process.
    with mpl.rc_context({"svg.hashsalt": "paged_attention", "svg.fonttype": "path"}):
        # No date and no version: what has not changed must not show up as changed.
        drawn = _saved(
            figure, "svg", {"Date": None, "Creator": None, "Format": None, "Type": None}
        )
    return accessible_svg(drawn.decode(), alt)


def _png(figure: "Figure") -> bytes:
    return _saved(figure, "png", {"Software": None})


def _saved(figure: "Figure", format: str, metadata: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    # An opaque card: dark ink on a dark page would be lost.
    figure.savefig(file, format=format, facecolor="white", metadata=metadata)
    return file.getvalue()
