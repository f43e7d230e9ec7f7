"""`course run`: a language model answers; with --mine, through the learner's parts."""

import os
from collections.abc import Callable, Sequence
from typing import Any

from course.get_model import model_dir
from course.parts import ALL_YOURS, Part, load_part, place_of
from course.terminal import Out

PROMPTS = ("What is the capital of France?", "Name three primes.")
SMOLLM2 = "smollm2"

Say = Callable[[str], object]  # writes text as it comes, without ending the line


class NotServedError(Exception):
    """No answer; the message says why, and what to do."""


def check_model(name: str) -> None:
    """Raise NotServedError, at once, if the model is known not to be here."""
    if name == SMOLLM2 and not (model_dir() / "config.json").exists():
        raise NotServedError(f"{name} is not here yet; run: course get-model")


def show_parts(parts: Sequence[Part], out: Out) -> None:
    """A table: each part, from whom it is, and why."""
    mine = sum(part.is_mine for part in parts)
    widths = [max(len(part.title) for part in parts), 5, 11]
    out.row(["part", "whose", "exercise", "why"], widths, "bold")
    for part in parts:
        whose = "yours" if part.is_mine else "ours"
        cells = [part.title, whose, part.chapter.exercise_stem[:4], part.why]
        out.row(cells, widths, "green" if part.is_mine else "dim")
    if mine:
        words = "Your code runs in this very process, not behind the grader's walls."
        out.line(words, "dim")
    if mine == len(parts):
        out.line(ALL_YOURS, "green")
    out.line()


def serve(
    model_name: str,
    prompts: Sequence[str],
    max_tokens: int,
    parts: Sequence[Part],
    out: Out,
) -> None:
    """Print the answers as they are made; NotServedError if something goes wrong."""
    mine = [part for part in parts if part.is_mine]
    at_work: list[Part] = []
    try:
        options: dict[str, Any] = {}
        for part in mine:
            options |= load_part(part)
        model, tokenizer = _load_model(model_name, out)
        at_work = mine
        _answer(model, tokenizer, prompts, max_tokens, options, out)
    except BrokenPipeError:
        raise  # whoever read us has seen enough
    except (Exception, SystemExit) as error:  # a learner's exit() ends no command
        raise NotServedError(_words_for(error, mine, at_work)) from error


def _words_for(error: BaseException, mine: list[Part], at_work: list[Part]) -> str:
    """What went wrong, and in whose part; at_work may have had a hand in it."""
    what = f"{type(error).__name__}: {error}"
    if place := place_of(error, mine):
        part, where, line = place
        return (
            f"your {part.title} ended it: {what}\n  {where}\n  {line}\n"
            f"course grade {part.chapter.number} may show a smaller case"
        )
    if isinstance(error, ModuleNotFoundError):
        return f"{error}; to repair .venv: make setup"
    if isinstance(error, (ValueError, FileNotFoundError)):
        return str(error)
    if at_work:
        yours = ", ".join(part.title for part in at_work)
        return f"the engine stopped: {what} (yours are: {yours})"
    return f"the engine stopped: {what}"


def _load_model(name: str, out: Out) -> tuple[Any, Any]:
    os.environ.setdefault("TQDM_DISABLE", "1")  # loaded in a second: no bar for that
    out.transient(f"loading {name} …")
    from paged_attention import model_files

    model, tokenizer = model_files.load(name)
    if tokenizer is None:
        raise ValueError(f"{name} has no tokenizer, so it can read no text")
    return model, tokenizer


def _answer(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[str],
    max_tokens: int,
    options: dict[str, Any],
    out: Out,
) -> None:
    from paged_attention import model_files
    from paged_attention.block import num_blocks_for
    from paged_attention.engine import Engine
    from paged_attention.params import SamplingParams

    params = SamplingParams(max_tokens)
    encoded = [model_files.encode(tokenizer, prompt) for prompt in prompts]
    # Just room for all of them.
    needed = [num_blocks_for(len(ids) + max_tokens, 16) for ids in encoded]
    engine = Engine(model, tokenizer, num_blocks=sum(needed), **options)
    out.transient("")
    texts = _Texts(prompts, lambda text: (out.stream.write(text), out.stream.flush()))
    for ids in encoded:
        engine.add_request(ids, params)
    while engine.has_work:
        for output in engine.step():
            number = int(str(output.request_id))
            texts.grow(number, output.text, is_over=output.finish_reason is not None)
    stats = engine.stats
    out.line(f"{stats.num_tokens} tokens computed in {stats.num_steps} steps", "dim")


class _Texts:
    """Answers that grow side by side, written one after the other."""

    def __init__(self, prompts: Sequence[str], say: Say) -> None:
        self._prompts = prompts
        self._say = say
        self._texts = [""] * len(prompts)
        self._is_over = [False] * len(prompts)
        self._current = 0  # the one that is being written
        self._num_written = 0  # characters of it
        say(f"> {prompts[0]}\n")

    def grow(self, number: int, text: str, *, is_over: bool) -> None:
        """Take in what an answer is now, and write what can be written."""
        self._texts[number], self._is_over[number] = text, is_over
        while self._current < len(self._texts):
            self._say(self._texts[self._current][self._num_written :])
            self._num_written = len(self._texts[self._current])
            if not self._is_over[self._current]:
                return
            self._current, self._num_written = self._current + 1, 0
            is_last = self._current == len(self._texts)
            self._say("\n\n" if is_last else f"\n\n> {self._prompts[self._current]}\n")
