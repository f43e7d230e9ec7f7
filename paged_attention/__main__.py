"""python -m paged_attention "prompt" …: answers stream, --watch draws the pool.

What is heavy is imported once the arguments are understood, so --help is at once and
Ctrl-C ends the rest at any moment.
"""

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paged_attention.signals import (
    forget_reader,
    interrupt_in,
    say_interrupted,
    signals_interrupt,
)

if TYPE_CHECKING:
    from paged_attention.engine import Engine
    from paged_attention.params import SamplingParams
    from paged_attention.watch import Talk

FRAME_WIDTH = 88  # characters, of a saved picture


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        with signals_interrupt():
            return _run(options)
    except (KeyboardInterrupt, Exception) as error:
        return _exit_code(error)


def _exit_code(error: BaseException) -> int:
    """What the shell is told about an error, after a line for whoever reads."""
    if (interrupt := interrupt_in(error)) is not None:
        return say_interrupted(interrupt)
    if isinstance(error, BrokenPipeError):
        forget_reader()
        return 0
    if isinstance(error, (ValueError, OSError, MemoryError, ModuleNotFoundError)):
        print(f"paged_attention: {error}", file=sys.stderr)
        return 1
    raise error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m paged_attention",
        description="Answers prompts, several at once, from one pool of KV blocks.",
    )
    add = parser.add_argument
    add("prompts", nargs="+", metavar="PROMPT")
    add("--watch", action="store_true", help="draw the pool and the block tables")
    add("--model", default="smollm2", help="smollm2, a folder, or a name on the hub")
    add("--max-tokens", type=int, default=128, help="for each answer (128)")
    add("--temperature", type=float, default=0.0, help="0: the likeliest token (0)")
    add("--top-p", type=float, default=1.0)
    add("--seed", type=int, help="the same draws again, with a temperature")
    add("--num-blocks", type=int, help="size of the pool; few of them: preemption")
    add("--block-size", type=int, default=16, help="tokens in a block (16)")
    add("--raw", action="store_true", help="no chat template: continue the text")
    add(
        "--save-frame",
        metavar="FILE.svg",
        help="the moment with the most sequences as a picture",
    )
    return parser


def _run(options: argparse.Namespace) -> int:
    from rich.console import Console

    from paged_attention.params import SamplingParams

    params = SamplingParams(
        max_tokens=options.max_tokens,
        temperature=options.temperature,
        top_p=options.top_p,
        seed=options.seed,
    )
    if options.save_frame:
        _check_writable(Path(options.save_frame))
    if options.model == "smollm2":  # loaded in a second: no bar for that
        os.environ.setdefault("TQDM_DISABLE", "1")
    with _working(f"loading {options.model}", Console(stderr=True)):
        engine, prompts = _prepare(options)
    from paged_attention.watch import Talk

    talks = [Talk(prompt) for prompt in options.prompts]
    steps = _steps(engine, talks, prompts, params)
    console = Console()
    watches = options.watch and console.is_terminal
    picture = None
    if watches or options.save_frame:
        on = console if watches else None
        picture = _draw(engine, talks, steps, on, bool(options.save_frame))
        for talk in talks:
            print(f"> {talk.prompt}\n{talk.answer.strip()}\n")
    else:
        _stream(talks, steps)
    stats = engine.stats
    print(
        f"{stats.num_tokens} tokens in {stats.num_steps} steps, "
        f"{stats.num_preemptions} preemptions",
        file=sys.stderr,
    )
    if picture is not None:
        Path(options.save_frame).write_text(picture, encoding="utf-8")
    return 0


def _check_writable(file: Path) -> None:
    """Raise now what would be raised when all is computed."""
    is_new = not file.exists()
    try:
        with file.open("a"):
            pass
    except OSError as error:
        raise OSError(
            f"--save-frame must be a file that can be written, got {file}: "
            f"{error.strerror}"
        ) from error
    if is_new:
        file.unlink()


@contextlib.contextmanager
def _working(what: str, console: Any) -> Iterator[None]:
    """A sign of life: a moving one in a terminal, else a line."""
    if console.is_terminal:
        with console.status(what):
            yield
    else:
        console.print(f"{what} …")
        yield


def _prepare(options: argparse.Namespace) -> tuple["Engine", list[list[int]]]:
    """The engine, its pool just large enough unless its size is given."""
    from paged_attention import model_files
    from paged_attention.block import num_blocks_for
    from paged_attention.engine import Engine

    model, tokenizer = model_files.load(options.model)
    if tokenizer is None:
        raise ValueError(f"{options.model} has no tokenizer, so it can read no text")
    prompts = [
        model_files.encode(tokenizer, prompt, options.raw) for prompt in options.prompts
    ]
    num_blocks = options.num_blocks
    if num_blocks is None:
        # All of them at once, to their longest: then nobody waits and nobody leaves.
        lengths = [len(prompt) + options.max_tokens for prompt in prompts]
        num_blocks = sum(num_blocks_for(n, options.block_size) for n in lengths)
    return (
        Engine(model, tokenizer, num_blocks=num_blocks, block_size=options.block_size),
        prompts,
    )


def _steps(
    engine: "Engine",
    talks: list["Talk"],
    prompts: list[list[int]],
    params: "SamplingParams",
) -> Iterator[None]:
    """Step by step, the answers kept up to date.

    The first prompt is a step ahead of the others: then its blocks are in the prefix
    cache, and the words of the chat template that all begin with are computed once.
    """
    of_request: dict[object, Talk] = {}

    # Outputs name their request; whose answer that is, only we know.
    def add(these: slice) -> None:
        for talk, prompt in zip(talks[these], prompts[these], strict=True):
            of_request[engine.add_request(prompt, params)] = talk

    add(slice(0, 1))
    is_first = True
    while engine.has_work:
        for output in engine.step():
            talk = of_request[output.request_id]
            talk.answer = output.text
            talk.is_over = output.finish_reason is not None
        if is_first:
            is_first = False
            add(slice(1, None))
        yield


def _stream(talks: list["Talk"], steps: Iterator[None]) -> None:
    """One answer after the other as it grows; the next ones are made meanwhile."""
    for talk in talks:
        print(f"> {talk.prompt}", flush=True)
        shown = 0
        while True:
            print(talk.answer[shown:], end="", flush=True)
            shown = len(talk.answer)
            if talk.is_over:
                break
            # A step of the whole engine: the answers below grow as well.
            next(steps)
        print("\n", flush=True)


def _draw(
    engine: "Engine",
    talks: list["Talk"],
    steps: Iterator[None],
    console: Any,
    saves: bool,
) -> str | None:
    """Frame after frame in a terminal, if there is one; a picture of the fullest."""
    from rich.live import Live

    from paged_attention import watch

    fullest, picture = (0, 0), None  # sequences, blocks in use
    live = Live(console=console, auto_refresh=False, transient=True)
    with live if console is not None else contextlib.nullcontext():
        for _ in steps:
            if console is not None:
                live.update(watch.frame(engine, talks, console.width), refresh=True)
            stats = engine.stats
            crowd = (stats.num_seqs, stats.num_blocks - stats.num_free)
            # Of equals the later one, where more has been written.
            if saves and crowd >= fullest:
                fullest, picture = crowd, watch.frame(engine, talks, FRAME_WIDTH)
    if picture is None:
        return None
    return watch.as_svg(picture, FRAME_WIDTH, "python -m paged_attention --watch")


if __name__ == "__main__":
    sys.exit(main())
