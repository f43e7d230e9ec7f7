"""What can be typed after `course`, and the help for it."""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHAPTER_HELP = "a chapter: 4, 04, ex04, 04_free_list or the path of its exercise"
EXAMPLES = """examples:
  course lab               open the first chapter in JupyterLab
  course grade 4           grade exercises/ex04_free_list.py
  course hint 4.1          one more hint for task 4.1
  course status            how far you are, and what comes next
  course run --mine        a language model answers through what you have solved
  course doctor            what works on this machine"""
AUTHORS = {  # beside what learners need; argparse has one list of commands only
    "build": "build notebooks and stubs",
}

Add = Callable[..., argparse.ArgumentParser]  # name, what it does, examples


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter  # keeps the lines of the examples
    others = [f"    {name:9}  {about}" for name, about in AUTHORS.items()]
    parser = argparse.ArgumentParser(
        "course",
        description="PagedAttention from scratch: read, solve, grade, repeat.",
        epilog="\n".join(["for authors:", *others, "", EXAMPLES]),
        formatter_class=raw,
    )
    commands = parser.add_subparsers(
        title="commands", metavar="COMMAND", dest="command"
    )

    def add(name: str, about: str, *examples: str) -> argparse.ArgumentParser:
        lines = [f"  course {name} {example}".rstrip() for example in examples]
        listed: dict[str, Any] = {} if name in AUTHORS else {"help": about}
        return commands.add_parser(
            name,
            **listed,
            description=f"{about[0].upper()}{about[1:]}.",
            epilog="\n".join(["examples:", *lines]),
            formatter_class=raw,
        )

    _add_lab(add)
    _add_exercise_commands(add)
    _add_run(add)
    model = add("get-model", "bring the language model of chapter 13", "")
    model.add_argument("--force", action="store_true", help="convert it once more")
    add("doctor", "check what works on this machine", "")
    _add_author_commands(add)
    return parser


def _add_exercise_commands(add: Add) -> None:
    grade = add("grade", "grade exercises", "4", "1 3", "4.2", "--json out.json")
    grade.add_argument(
        "chapters",
        nargs="*",
        metavar="N",
        help=f"{CHAPTER_HELP}; 4.2 shows that task alone; none: all exercises",
    )
    instructors = grade.add_argument_group("for instructors")
    instructors.add_argument(
        "--target",
        default="",
        metavar="WHAT",
        help="grade solutions, or the folder or file at a path, not exercises/",
    )
    instructors.add_argument(
        "--json", type=Path, metavar="FILE", help="also write the report as JSON"
    )
    hint = add("hint", "reveal the next of a task's three hints", "4.1")
    hint.add_argument("task", metavar="N.K", help="a task, as the exercise names it")
    add("status", "show how far you are, and what comes next", "")
    reset = add("reset", "put a stub back; your file is backed up first", "4")
    reset.add_argument("chapter", metavar="N", help=CHAPTER_HELP)
    solution = add("solution", "show the solution of what you solved", "4")
    solution.add_argument("chapter", metavar="N", help=CHAPTER_HELP)
    solution.add_argument(
        "--anyway", action="store_true", help="also before your own version passes"
    )


def _add_lab(add: Add) -> None:
    lab = add("lab", "open a chapter in JupyterLab", "", "4", "--port 8899")
    lab.add_argument("chapter", metavar="N", nargs="?", default="0", help=CHAPTER_HELP)
    lab.add_argument(
        "--port",
        type=_port,
        default=os.environ.get("PORT") or "8888",
        help="the first port to try (default: the variable PORT, else 8888)",
    )
    lab.add_argument(
        "--host",
        default="127.0.0.1",
        help="where to listen; 0.0.0.0 inside a container that publishes the port",
    )
    lab.add_argument(
        "--no-browser",
        dest="browser",
        action="store_false",
        help="only print the address (also with the variable NO_BROWSER=1)",
    )


def _add_run(add: Add) -> None:
    run = add(
        "run",
        "let a language model answer, through your own parts with --mine",
        "",
        '"Name three primes." --mine',
    )
    run.add_argument("prompts", nargs="*", metavar="PROMPT", help="none: two of ours")
    run.add_argument(
        "--mine",
        action="store_true",
        help="through your exercises, as far as they are solved; ours for the rest",
    )
    run.add_argument(
        "--max-tokens", type=_positive, default=64, metavar="N", help="per answer (64)"
    )
    run.add_argument(
        "--model", default="smollm2", help="smollm2, a folder, or a name on the hub"
    )


def _port(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 65535:
        raise argparse.ArgumentTypeError(f"1 to 65535 is wanted, got {text}")
    return number


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"1 or more is wanted, got {text}")
    return number


def _add_author_commands(add: Add) -> None:
    build = add("build", AUTHORS["build"], "", "4", "--stubs", "--check")
    build.add_argument("chapters", nargs="*", metavar="N", help=CHAPTER_HELP)
    build.add_argument(
        "--stubs", action="store_true", help="only the stubs; nothing is executed"
    )
    build.add_argument(
        "--check", action="store_true", help="compare with the sources, write nothing"
    )
