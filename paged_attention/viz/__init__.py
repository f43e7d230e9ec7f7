"""Pictures of pool, free list, tables, memory and steps, and the style of the charts.

Importing this inside IPython lets an allocator or a table at the end of a cell draw
itself; they know nothing of it. Neither torch nor Matplotlib is imported here.
"""

import sys

from paged_attention.viz.chart import chart_style, show
from paged_attention.viz.layout import layout_picture
from paged_attention.viz.lists import free_list_picture, linked_list_picture
from paged_attention.viz.memory import snapshot
from paged_attention.viz.picture import Picture
from paged_attention.viz.pool import pool_picture
from paged_attention.viz.steps import step_snapshot, steps_picture
from paged_attention.viz.tables import difference_picture, tables_picture

__all__ = [
    "Picture",
    "chart_style",
    "difference_picture",
    "free_list_picture",
    "layout_picture",
    "linked_list_picture",
    "pool_picture",
    "show",
    "snapshot",
    "step_snapshot",
    "steps_picture",
    "tables_picture",
]


def _register() -> None:
    if "IPython" not in sys.modules:
        return
    from IPython.core.getipython import get_ipython

    shell = get_ipython()
    if shell is not None:
        from paged_attention.viz.formatter import register

        register(shell)


_register()
