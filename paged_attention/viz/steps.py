"""Steps of an engine as a timeline: a lane for each sequence, a column for each step.

Who computed a prompt, who made a token, who waited, who had to leave. Any scheduler
serves whose plan says what was `scheduled`; it knows nothing of being watched.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from paged_attention.viz.picture import Picture, counted
from paged_attention.viz.plain import in_rows
from paged_attention.viz.timeline import Cell, draw_timeline

MAX_STEPS = 64  # a longer history is drawn up to here, and told as far
MAX_LANES = 24


class Running(Protocol):
    """What a sequence must tell of itself, whatever class it is."""

    @property
    def status(self) -> str: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def num_computed(self) -> int: ...
    @property
    def num_prompt_tokens(self) -> int: ...


@dataclass(frozen=True)
class _Lane:
    """One sequence in one step: as it was when the step was planned."""

    status: str
    finish_reason: str | None
    start: int  # tokens that were computed before
    query_len: int  # that the step computes; 0: it is not in the plan
    prompt_len: int


@dataclass(frozen=True)
class StepState:
    """A planned step that was kept, for a picture later on."""

    lanes: Mapping[str, _Lane]
    num_tokens: int
    num_free: int | None


def step_snapshot(
    plan: Any, sequences: Mapping[str, Running], pool: Any = None
) -> StepState:
    """What a step is going to do: to be called between schedule and finish_step.

    sequences  name -> sequence, of all that came so far; finished ones too
    pool       its num_free is kept as well: what the plan has left over
    """
    # By identity: a learner's sequence may not be hashable, and names may repeat.
    query_lens = {id(sequence): n for sequence, n in plan.scheduled}
    lanes = {
        name: _Lane(
            str(sequence.status),
            sequence.finish_reason,
            sequence.num_computed,
            query_lens.get(id(sequence), 0),
            sequence.num_prompt_tokens,
        )
        for name, sequence in sequences.items()
    }
    num_free = None if pool is None else pool.num_free
    return StepState(lanes, sum(n for _, n in plan.scheduled), num_free)


def steps_picture(history: Sequence[StepState]) -> Picture:
    """A timeline of the steps that `step_snapshot` kept, in their order."""
    names = list(dict.fromkeys(name for step in history for name in step.lanes))
    lanes = {name: list(_cells(name, history[:MAX_STEPS])) for name in names}
    drawn = dict(list(lanes.items())[:MAX_LANES])
    num = len([step for step in history if _goes_on(step)])
    summary = f"{counted(num, 'step')}, {counted(len(names), 'sequence')}."
    notes = list(_left_out(history, names))
    columns = list(_columns(drawn, history[:MAX_STEPS]))
    alt = [summary, *notes]
    alt += [f"{name}: {_told(cells)}." for name, cells in drawn.items()]
    free = [str(step.num_free) for step in history[:MAX_STEPS]]
    if "None" not in free:
        alt.append(f"Free blocks after each plan: {', '.join(free)}.")
    text = [summary, *in_rows(columns[0], columns[1:]), *notes]
    text.append("[n]: tokens of a prompt; n: made a token; *n*: computed again")
    return Picture(
        draw_timeline(drawn, columns, summary, notes), " ".join(alt), "\n".join(text)
    )


def _goes_on(step: StepState) -> bool:
    """Not so the last one, which only tells that all are done."""
    return any(lane.status != "finished" for lane in step.lanes.values())


# --- what each cell of the timeline says ---


_BLANK = Cell("", "", "")


def _cells(name: str, history: Sequence[StepState]) -> Iterator[Cell]:
    """A lane of the timeline. Only all of it tells what is computed a second time."""
    reached, before = 0, None  # the furthest computed so far; the lane a step ago
    for step in history:
        lane = step.lanes.get(name)
        yield _cell(lane, before, reached)
        if lane is not None:
            reached = max(reached, lane.start + lane.query_len)
        before = lane


def _cell(lane: _Lane | None, before: _Lane | None, reached: int) -> Cell:
    if lane is None:
        return _BLANK
    # A status says "running" for a chunk as for a token: what the plan has tells them
    # apart, so it is asked first.
    if lane.query_len:
        return _computing(lane, min(lane.start + lane.query_len, reached) - lane.start)
    if lane.status == "finished":
        if before is not None and before.status == "finished":
            return _BLANK
        word = "aborted" if lane.finish_reason == "aborted" else "done"
        return Cell("", word, word)
    # A status stays as long as it lasts; it is the step of the change that is marked.
    ran = before is not None and before.status == "running"
    match lane.status:
        case "running":
            return Cell("idle", "idle", "runs without a share of the budget")
        case "swapped" if ran:
            return Cell("out", "to host", "has to leave, to host memory")
        case "swapped":
            return Cell("host", "host", "lies in host memory")
        case "preempted" if ran:
            return Cell("out", "out", "has to leave")
        case _:
            return Cell("waits", "waits", "waits")


def _computing(lane: _Lane, num_again: int) -> Cell:
    n = lane.query_len
    if num_again > 0:  # a resumed sequence makes its next token in the same row
        told = f"{counted(n, 'token')}, {num_again} of them again"
        return Cell("again", str(n), told)
    if lane.start < lane.prompt_len:
        found = f" from {lane.start} on" if lane.start else ""
        return Cell("prompt", str(n), f"{counted(n, 'token')} of the prompt{found}")
    return Cell("decode", str(n), "one token" if n == 1 else f"{n} tokens")


def _told(cells: Sequence[Cell]) -> str:
    """Runs of equal cells in words: "step 1: 5 tokens of the prompt; …"."""
    runs, start = [], 1
    for told, group in groupby(cells, key=lambda cell: cell.told):
        stop = start + len(list(group))
        if told:
            steps = (
                f"step {start}" if stop == start + 1 else f"steps {start}…{stop - 1}"
            )
            runs.append(f"{steps}: {told}")
        start = stop
    return "; ".join(runs) or "nothing"


def _left_out(history: Sequence[StepState], names: Sequence[str]) -> Iterator[str]:
    if len(history) > MAX_STEPS:
        yield f"Not drawn: steps {MAX_STEPS + 1} … {len(history)}."
    if len(names) > MAX_LANES:
        yield f"Not drawn: {counted(len(names) - MAX_LANES, 'more sequence')}."


def _columns(
    lanes: Mapping[str, Sequence[Cell]], history: Sequence[StepState]
) -> Iterator[Sequence[str]]:
    """The table as plain text, column by column: the names, then each step."""
    with_free = any(step.num_free is not None for step in history)
    yield ["step", *lanes, "tokens", *(["free blocks"] if with_free else [])]
    forms = {"prompt": "[{}]", "again": "*{}*"}
    for i, step in enumerate(history):
        cells = [lane[i] for lane in lanes.values()]
        labels = [forms.get(cell.kind, "{}").format(cell.label) for cell in cells]
        free = [str(step.num_free)] if with_free else []
        yield [str(i + 1), *labels, str(step.num_tokens), *free]
