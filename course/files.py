"""Files that learners also handle: read with care, written whole or not at all."""

import errno
import os
import stat
from pathlib import Path

MAX_BYTES = 1 << 20  # of an exercise


class UnusableFileError(Exception):
    """A path that should be an exercise and is not; the message says what it is."""


def read_file(path: Path) -> bytes:
    """The bytes of a learner's file; UnusableFileError for whatever is none."""
    try:
        status = path.stat()
        # To open a pipe would wait, maybe forever, for somebody to write to it.
        if not stat.S_ISREG(status.st_mode):
            kind = "a folder" if stat.S_ISDIR(status.st_mode) else "a pipe or a device"
            raise UnusableFileError(f"{path} is {kind}, not a file")
        if status.st_size > MAX_BYTES:
            raise UnusableFileError(f"{path} is larger than 1 MiB")
        return path.read_bytes()
    except FileNotFoundError:
        raise UnusableFileError(f"{path} is not there") from None
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO):
            raise  # the machine's fault, not the file's
        reason = error.strerror or type(error).__name__
        raise UnusableFileError(f"{path} cannot be read: {reason}") from None


def chmod_for(path: Path) -> str:
    """The command that lets us read a file; "" if that is not what it lacks."""
    unreadable = path.is_file() and not os.access(path, os.R_OK)
    return f"chmod u+r {path}" if unreadable else ""


def read_text(path: Path) -> str:
    """The same as text, lines ending in \\n; what is not UTF-8 is replaced."""
    return read_file(path).decode("utf-8", "replace").replace("\r\n", "\n")


def write_file(path: Path, text: str) -> None:
    """Put text in the place of what is at path; a reader sees the old or the new.

    A link at path is replaced as well: what it points to belongs to somebody else.
    """
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    except BaseException:  # a full disk, Ctrl-C
        draft.unlink(missing_ok=True)
        raise
