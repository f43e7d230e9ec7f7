"""Where the commands' output goes: coloured on a terminal, plain text elsewhere.

Off a terminal there are no escape codes and no drawing, and the width is fixed unless
COLUMNS is set, so that a log, a pipe or a test always sees the same text. rich is
imported only when a terminal is there to profit from it.
"""

import os
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console
    from rich.panel import Panel

PLAIN_WIDTH = 80
LEAST_WIDTH = 20
FANCY_WIDTH = 100  # at most; longer lines are hard to read

# A command and its arguments as messages name it: to be copied, so never broken.
_COMMAND = re.compile(
    r"\bcourse (?:grade|status|hint|reset|solution|doctor|lab|run|get-model|build)\b"
    r"(?: (?:--(?:target|json) \S+|--[a-z-]+|\d[\w.]*\b))*"
)
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")

Field = tuple[str, str]  # label, text of one or more lines


class Out:
    """Writes lines and boxes of labelled text to one stream."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stdout if stream is None else stream
        self._console = _console(self.stream)
        self._is_transient = False  # whether the current line is to be written over

    def line(self, text: str = "", style: str = "", indent: int = 0) -> None:
        """One paragraph; a line that is too long goes on under its own beginning."""
        width = self._width()
        for part in clean(text).split("\n"):
            for wrapped in _wrap(part, width - indent):
                self._write(" " * indent + wrapped, style)

    def log(self, text: str, style: str = "") -> None:
        """A line that is never cut: file names and commands can be copied from it."""
        self.transient("")
        if self._console is None:
            self.stream.write(clean(text) + "\n")
        else:
            self._console.print(
                clean(text), style=style, markup=False, highlight=False, soft_wrap=True
            )

    def transient(self, text: str) -> None:
        """A line that the next one takes the place of; on a terminal only."""
        if "JPY_PARENT_PID" in os.environ:  # a notebook's `!course …` keeps every line
            return
        if self._console is not None and (text or self._is_transient):
            self.stream.write(f"{text}\x1b[K\r")
            self.stream.flush()
            self._is_transient = bool(text)

    def progress(self, text: str) -> None:
        """What is being done: a transient line, or off a terminal one on stderr."""
        if self._console is not None:
            self.transient(text)
        elif sys.stderr is not None:
            with suppress(OSError):  # nobody reads it
                print(text, file=sys.stderr, flush=True)

    def row(self, cells: Sequence[str], widths: Sequence[int], style: str = "") -> None:
        """One row of a table without borders; its last cell may take several lines."""
        pairs = zip(cells[:-1], widths, strict=True)
        lead = "".join(f"{clean(cell):{width}}  " for cell, width in pairs)
        room = self._width() - len(lead)
        if room < min(len(cells[-1]), LEAST_WIDTH):  # too narrow for a table
            self.line("  ".join(filter(None, cells)), style)
            return
        for wrapped in _wrap(clean(cells[-1]), room):
            self._write(f"{lead}{wrapped}".rstrip(), style)
            lead = " " * len(lead)

    def box(self, title: str, fields: Iterable[Field], style: str = "") -> None:
        """Labelled text under a title, in a frame where frames can be drawn."""
        fields = [(label, clean(text)) for label, text in fields]
        if self._console is None:
            self._plain_box(title, fields)
        else:
            panel = _panel(title, fields, style, self._width())
            self._console.print(panel, width=self._width())

    def code(self, text: str) -> None:
        """Python source, highlighted where that is possible."""
        if self._console is None:
            self.stream.write(text)
            return
        from rich.syntax import Syntax

        self._console.print(Syntax(text, "python", background_color="default"))

    def _plain_box(self, title: str, fields: list[Field]) -> None:
        self.stream.write(f"\n{title}\n")
        column = max((len(label) for label, _ in fields), default=0) + 2
        for label, text in fields:
            lead = label.ljust(column)
            for part in text.split("\n"):
                for wrapped in _wrap(part, self._width() - 2 - column):
                    self.stream.write(f"  {lead}{wrapped}".rstrip() + "\n")
                    lead = " " * column

    def _width(self) -> int:
        if self._console is not None:
            return min(self._console.width, FANCY_WIDTH)
        columns = os.environ.get("COLUMNS", "")
        given = int(columns) if columns.isdecimal() else 0
        return min(given, FANCY_WIDTH) or PLAIN_WIDTH

    def _write(self, text: str, style: str) -> None:
        self.transient("")
        if self._console is None:
            self.stream.write(text.rstrip() + "\n")
        else:
            self._console.print(
                text, style=style, markup=False, highlight=False, soft_wrap=True
            )


def clean(text: str) -> str:
    """The text without anything that a terminal would obey, line ends kept."""
    text = _ESCAPES.sub("", text).expandtabs(4)
    return "".join(c if c == "\n" or c.isprintable() else repr(c)[1:-1] for c in text)


def _wrap(text: str, width: int) -> list[str]:
    width = max(width, LEAST_WIDTH)
    commands = _COMMAND.findall(text)
    # textwrap breaks at plain blanks only
    text = _COMMAND.sub(lambda match: match[0].replace(" ", "\xa0"), text)
    fits = all(len(command) <= width for command in commands)
    lines = textwrap.wrap(
        text,
        width,
        replace_whitespace=False,
        break_long_words=fits,
        break_on_hyphens=False,  # nor an option or a path in a command
    )
    return [line.replace("\xa0", " ") for line in lines] or [""]


def _console(stream: TextIO) -> "Console | None":
    if not stream.isatty() or os.environ.get("TERM") == "dumb":
        return None
    from rich.console import Console

    return Console(file=stream, soft_wrap=False)


def _panel(title: str, fields: list[Field], style: str, width: int) -> "Panel":
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold", ratio=1)
    # the frame takes 4 columns, and two blanks follow each of the two cells
    room = width - 8 - max((len(label) for label, _ in fields), default=0)
    for label, text in fields:
        lines = [line for part in text.split("\n") for line in _wrap(part, room)]
        grid.add_row(label, Text("\n".join(lines), style=_field_style(label)))
    heading = Text(f" {title} ", style="bold")
    return Panel(grid, title=heading, title_align="left", border_style=style)


def _field_style(label: str) -> str:
    return {"expected": "green", "got": "red", "next": "cyan"}.get(label, "")
