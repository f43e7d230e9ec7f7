"""Lets what a cell ends with draw itself: an allocator, a prefix cache, a table.

Imported only inside IPython.
"""

from inspect import getattr_static
from typing import Any

from IPython.core.formatters import MimeBundleFormatter
from IPython.core.interactiveshell import InteractiveShell

from paged_attention.viz.memory import Snapshot
from paged_attention.viz.pool import pool_picture
from paged_attention.viz.tables import state_picture, tables_picture


class DrawingFormatter(MimeBundleFormatter):
    """IPython's formatter, and where that has nothing to say, ours.

    A registration by type would miss the learner's own allocator, which is another
    class; one for `object` would hide what other classes say of themselves.
    """

    def __call__(self, obj: Any, include: Any = None, exclude: Any = None) -> Any:
        bundle = super().__call__(obj, include=include, exclude=exclude)
        if not self.enabled or (bundle and any(bundle)):
            return bundle
        picture = picture_of(obj)
        return bundle if picture is None else picture._repr_mimebundle_()


def picture_of(obj: Any) -> Any:
    """A picture of anything that offers what a picture needs, else None."""
    try:
        if isinstance(obj, Snapshot):
            return state_picture(obj)
        if _offers(obj, "ref_count", "allocate"):
            # A prefix cache is an allocator that holds blocks itself.
            cached = _offers(obj, "block_ids", "publish")
            return (
                tables_picture({}, obj, complete=False) if cached else pool_picture(obj)
            )
        if _offers(obj, "block_ids", "num_tokens", "block_size"):
            return tables_picture({"table": obj}, complete=False)
    except Exception:  # half-written, it still shows its repr
        return None
    return None


def _offers(obj: Any, *names: str) -> bool:
    """Whether it has all these names, found out without running any of its code."""
    # Not hasattr: a property of a half-written class may hang, or print.
    missing = object()
    return all(getattr_static(obj, name, missing) is not missing for name in names)


def register(shell: InteractiveShell) -> None:
    """Put a DrawingFormatter in the place of the shell's formatter, once."""
    display: Any = shell.display_formatter
    usual = display.mimebundle_formatter
    # No isinstance: a class derived from it, such as ours, must not be replaced.
    if type(usual) is not MimeBundleFormatter:
        return  # ours already, or someone else's, which is left alone
    drawing = DrawingFormatter(parent=display)
    # What others have registered, now or later, stays in force.
    drawing.type_printers = usual.type_printers
    drawing.deferred_printers = usual.deferred_printers
    drawing.singleton_printers = usual.singleton_printers
    display.mimebundle_formatter = drawing
