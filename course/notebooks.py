"""A chapter's Markdown source, expanded, executed and written as a notebook.

The same source gives the same bytes on one machine: cell ids come from place and
source, nothing is timed, a cell's output stream is one piece. What cannot be stable (an
address, a path of this machine, a warning on stderr) fails the build instead of being
hidden.
"""

import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jupytext
import nbformat
from nbformat import NotebookNode

from course.include import expand
from course.manifest import Chapter

KERNEL = {
    "display_name": "Python 3 (ipykernel)",
    "language": "python",
    "name": "python3",
}
CELL_SECONDS = 120
MEASURE = "measure"  # shown, run by the reader on demand, never by the build
RAISES = "raises-exception"
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{9,}\b")
ESCAPES = re.compile(r"\x1b\[[0-9;]*m")

Progress = Callable[[int, int], None]  # cells done, cells in all


class ChapterError(Exception):
    """A chapter that cannot be built; the message names the cell and says why."""


@dataclass(frozen=True)
class Expanded:
    """A chapter's notebook before execution, and what its includes were."""

    notebook: NotebookNode
    includes: dict[int, str]  # cell number -> the name it defines
    sources: tuple[str, ...]  # the cells as the author wrote them


def expand_chapter(chapter: Chapter) -> Expanded:
    """Read the Markdown, put definitions where the includes are, name the cells."""
    try:
        notebook = jupytext.reads(chapter.source.read_text(encoding="utf-8"), fmt="md")
    except nbformat.ValidationError as error:
        raise ChapterError(f"jupytext cannot read it: {error.message}") from None
    kernel = notebook.metadata.get("kernelspec", KERNEL).get("name")
    if kernel != "python3":
        raise ChapterError(f"kernelspec must be python3, got {kernel!r}")
    notebook.metadata = _metadata()
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    includes: dict[int, str] = {}
    sources = tuple(cell.source for cell in notebook.cells)
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code":
            included = expand(cell.source, chapter.root, includes.values())
            if included is not None:
                cell.source = included.source
                includes[number] = included.name
        tags = tags_of(cell)
        cell.metadata = nbformat.from_dict({"tags": tags} if tags else {})
        cell.id = _cell_id(number, cell)
    return Expanded(notebook, includes, sources)


def build_notebook(chapter: Chapter, progress: Progress = lambda *_: None) -> str:
    """The chapter's notebook with outputs, as the text to write."""
    notebook = expand_chapter(chapter).notebook
    _execute(notebook, chapter, progress)
    notebook.metadata = _metadata()  # without the versions that the kernel reported
    complaints: list[str] = []
    for number, cell in enumerate(notebook.cells, start=1):
        if cell.cell_type == "code":
            _settle_outputs(cell, chapter.root)
            for complaint in dict.fromkeys(_complaints(cell, chapter.root)):
                complaints.append(f"{_where(number, cell)}: {complaint}")
    if complaints:
        raise ChapterError("\n".join(complaints))
    nbformat.validate(notebook)
    return nbformat.writes(notebook) + "\n"


def first_picture(text: str) -> str | None:
    """The first SVG among the outputs of a built notebook, if it draws any."""
    for cell in nbformat.reads(text, as_version=4).cells:
        for output in cell.get("outputs", []):
            if "image/svg+xml" in output.get("data", {}):
                return output.data["image/svg+xml"]
    return None


def _metadata() -> NotebookNode:
    language = {"name": "python"}
    return NotebookNode(kernelspec=dict(KERNEL), language_info=language)


def tags_of(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def kernel_environment() -> dict[str, str]:
    """What a chapter's kernel sees; TRITON_INTERPRET is for the chapter to set."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    bin_dir = str(Path(sys.executable).parent)
    return environment | {
        "PATH": bin_dir + os.pathsep + environment.get("PATH", ""),
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "PYTHONHASHSEED": "0",  # the order of a printed set
        "SOURCE_DATE_EPOCH": "0",  # the date inside an SVG file
        "JUPYTER_PREFER_ENV_PATH": "1",  # this environment's kernel, not the user's
    }


def _execute(notebook: NotebookNode, chapter: Chapter, progress: Progress) -> None:
    from nbclient import NotebookClient
    from nbclient.exceptions import (
        CellExecutionError,
        CellTimeoutError,
        DeadKernelError,
    )
    from traitlets.config import Config

    code = [i for i, c in enumerate(notebook.cells) if c.cell_type == "code"]
    current = 0

    def on_cell_start(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index
        progress(sum(i < cell_index for i in code), len(code))

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        record_timing=False,
        skip_cells_with_tag=MEASURE,
        shutdown_kernel="immediate",  # it has nothing to save, also after Ctrl-C
        extra_arguments=["--IPKernelApp.log_level=ERROR"],  # stderr is for the build
        resources={"metadata": {"path": str(chapter.notebook.parent)}},
        on_cell_start=on_cell_start,
    )
    # The kernel is reached by sockets in a folder of its own, not by free ports:
    # another program may have taken such a port by the time that the kernel opens it.
    with tempfile.TemporaryDirectory() as folder:
        sockets = {"transport": "ipc", "ip": f"{folder}/kernel"}
        client.config = Config(KernelManager=sockets)
        try:
            client.execute(env=kernel_environment())
        except BaseException as error:
            # nbclient takes SIGINT and SIGTERM for itself, ends the kernel in the
            # middle of things and stumbles over that; then it has this attribute.
            if hasattr(client, "_async_cleanup_kernel_future"):
                raise KeyboardInterrupt from None
            if not isinstance(
                error, CellExecutionError | CellTimeoutError | DeadKernelError
            ):
                raise
            where = _where(current + 1, notebook.cells[current])
            raise ChapterError(f"{where}: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    name, value = getattr(error, "ename", None), getattr(error, "evalue", "")
    if name is not None:
        return f"{name}: {value}"
    if "Timeout" in type(error).__name__:
        return f"it ran longer than {CELL_SECONDS} s"
    return "the kernel died"


def _where(number: int, cell: NotebookNode) -> str:
    lines = [line for line in cell.source.splitlines() if line.strip()] or [""]
    return f"cell {number} ({lines[0].strip()[:60]})"


def _cell_id(number: int, cell: NotebookNode) -> str:
    text = f"{number}\0{cell.cell_type}\0{cell.source}"
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _settle_outputs(cell: NotebookNode, root: Path) -> None:
    """One piece per stream, tracebacks with paths as seen from the repository."""
    settled: list[NotebookNode] = []
    for output in cell.outputs:
        last = settled[-1] if settled else None
        if output.output_type == "error":
            output.traceback = [_relative(line, root) for line in output.traceback]
        if (
            last is not None
            and output.output_type == last.output_type == "stream"
            and output.name == last.name
        ):
            last.text += output.text
        else:
            settled.append(output)
    cell.outputs = settled


def _relative(text: str, root: Path) -> str:
    for shown in _spellings(root):
        text = text.replace(f"{shown}{os.sep}", "")
    return text


def _spellings(root: Path) -> list[str]:
    """The root as it may be printed: whole, and with ~ as IPython shortens it."""
    home = Path.home()
    spellings = [str(root)]
    if root.is_relative_to(home) and root != home:
        spellings.append(f"~{os.sep}{root.relative_to(home)}")
    return spellings


def _complaints(cell: NotebookNode, root: Path) -> Iterator[str]:
    tags = tags_of(cell)
    failed = any(output.output_type == "error" for output in cell.outputs)
    if RAISES in tags and MEASURE not in tags and not failed:
        yield f"tagged {RAISES}, but nothing was raised"
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stderr":
            yield f"writes to stderr: {output.text.strip()[:200]!r}"
        for text in _texts(output):
            plain = ESCAPES.sub("", text)
            for shown in _spellings(root):
                if shown in plain:
                    yield f"its output shows a path of this machine: {shown}"
            if address := ADDRESS.search(plain):
                yield f"its output shows a memory address: {address[0]}"


def _texts(output: Any) -> Iterator[str]:
    if output.output_type == "stream":
        yield output.text
    elif output.output_type == "error":
        yield "\n".join([output.evalue, *output.traceback])
    else:
        for kind, data in output.data.items():
            if isinstance(data, str) and kind not in ("image/png", "image/jpeg"):
                yield data
