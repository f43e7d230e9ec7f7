"""`course`, and `python -m course`: what must be right before anything is imported.

Neither PYTHONPATH nor the user's own site-packages nor the working directory may lend
us a module: an old torch there, or a random.py, would decide a verdict. So this file
imports nothing at first that such a folder could have.
"""

import os
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
USAGE = 2


def main() -> int:
    if __name__ == "__main__" and not sys.flags.safe_path:
        del sys.path[0]  # the working directory
    _open_streams()
    if problem := _wrong_place():
        print(f"course: {problem}", file=sys.stderr)
        return USAGE
    _start_again_without_strangers()
    _cut_no_bytecode()
    import signal

    # While modules load there is nothing to clean up: Ctrl-C may end us as it is.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    # Comes after all that is installed, but before what an editable install points to.
    sys.path.append(ROOT)
    from course.cli import main as run

    return run()


def _open_streams() -> None:
    """Put the null device in the place of standard streams that are closed (`>&-`).

    Else the next file that is opened would get the number of one, and our output.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
            os.set_inheritable(number, True)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, closefd=False))  # noqa: SIM115


def _wrong_place() -> str:
    """Why it is unclear what to work on; "" if it is clear."""
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:
        return f"the working directory was deleted; type: cd {_quoted(ROOT)}"
    # The script itself: a copied .venv has one that starts the Python of the original.
    for place in (here, os.path.dirname(os.path.realpath(sys.argv[0]))):
        checkout = _checkout_of(place)
        if checkout not in ("", ROOT):
            typed = " ".join(map(_quoted, sys.argv[1:]))
            return (
                f"this command works on {ROOT}, but you are using {checkout}\n"
                f"for the one: cd {_quoted(ROOT)} && .venv/bin/course {typed}\n"
                f"for the other: cd {_quoted(checkout)} && make setup && "
                f".venv/bin/course {typed}"
            )
    return ""


def _checkout_of(folder: str) -> str:
    """The nearest folder from this one upwards that holds the course; "" if none."""
    while not os.path.exists(os.path.join(folder, "course", "manifest.toml")):
        if folder == (folder := os.path.dirname(folder)):
            return ""
    return folder


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)


def _start_again_without_strangers() -> None:
    """Leave PYTHONPATH and the user's site-packages out, for what we start as well."""
    import site

    if "PYTHONPATH" in os.environ or site.ENABLE_USER_SITE:
        os.environ.pop("PYTHONPATH", None)
        os.environ["PYTHONNOUSERSITE"] = "1"
        command = [sys.executable, "-P", os.path.realpath(__file__), *sys.argv[1:]]
        os.execv(sys.executable, command)


def _cut_no_bytecode() -> None:
    """Write none under `ulimit -f`: it could be cut short, and never be read again."""
    import resource

    if resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY:
        sys.dont_write_bytecode = True


if __name__ == "__main__":
    sys.exit(main())
