"""From an exception to what a learner reads."""

import io
from dataclasses import replace

import pytest

from course.grader.conversation import Conversation
from course.grader.failures import (
    CheckFailed,
    LearnerError,
    is_unsolved,
    task_of_stub,
)
from course.grader.report import NO_ERROR, UNSOLVED, Failure, TaskResult
from course.manifest import load
from course.report import Reading
from course.terminal import Out


def failure_of(
    item: pytest.Item, error: BaseException, conversation: Conversation | None
) -> Failure:
    """What happened in this test, in words."""
    history = tuple(conversation.history.lines()) if conversation else ()
    printed = conversation.printed() if conversation else ""
    flaky = type(error).__name__.startswith("Flaky")
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    claim, expected, got, message = claim_of(item), "", "", words_for(error)
    learner = getattr(error, "learner", None)
    where = learner.location if isinstance(learner, LearnerError) else None
    if isinstance(error, CheckFailed):
        claim, expected, got = error.claim or claim, error.expected, error.got
        where = error.location
    elif isinstance(learner, LearnerError) and not is_unsolved(error):
        expected, got = NO_ERROR, f"{learner.name}: {learner.text}"
        message = f"{learner.call} raised it"
        message += f" here: {learner.line}" if learner.line else ""
    if flaky:
        message += " (the same calls gave another result the second time)"
    name = getattr(item, "originalname", item.name)
    failure = Failure(name, claim, history, expected, got, message, printed, where)
    task, mark = task_of_stub(error), item.get_closest_marker("task")
    own = mark.args[0] if mark else ""
    if (
        isinstance(learner, LearnerError)
        and learner.function != "<module>"
        and task != own
        and _is_task(item, task)
    ):
        # of a class its constructor, as a learner calls it
        function = learner.function.removesuffix(".__init__").rpartition(".")[2]
        return replace(failure, waits_for=task, stub=function)
    return failure


def _is_task(item: pytest.Item, task_id: str) -> bool:
    """Whether the manifest has it: a stub's words may be anybody's."""
    callspec = getattr(item, "callspec", None)
    paper = callspec.params.get("exercise") if callspec else None
    manifest = load(paper.chapter.root) if paper else load()
    return task_id in (task.id for each in manifest.chapters for task in each.tasks)


def words_for(error: BaseException) -> str:
    """What happened, if it is more than a wrong value, in one line."""
    learner = getattr(error, "learner", None)
    if isinstance(error, CheckFailed):
        return error.message
    if not isinstance(learner, LearnerError):
        return f"the test stopped with {type(error).__name__}: {error}"
    if is_unsolved(error):
        return f"{UNSOLVED}{learner.text}"
    words = f"{learner.call} raised {learner.name}: {learner.text}"
    if learner.location:
        words += f" at {learner.location}: {learner.line}"
    return words


def claim_of(item: pytest.Item) -> str:
    """The test's name as the claim that it is, with its parameters but the variant."""
    name = getattr(item, "originalname", None) or item.name
    words = name.removeprefix("test_").replace("_", " ")
    callspec = getattr(item, "callspec", None)
    params = dict(callspec.params) if callspec else {}
    params.pop("exercise", None)
    if params:
        words += f" ({', '.join(f'{key}={value!r}' for key, value in params.items())})"
    return words


def as_text(failure: Failure, item: pytest.Item, target: str) -> str:
    """The failure as `course grade` prints it, for plain pytest."""
    mark = item.get_closest_marker("task")
    assert mark, f"{item.nodeid} decides no task"
    manifest = load()
    task = manifest.task(mark.args[0])
    result = TaskResult(task.id, task.title, 0, task.points, "failed", 1, 0, failure)
    text = io.StringIO()
    shown = "" if target == "exercises" else target  # as after course grade --target
    Reading(Out(text), manifest.chapters[0].root, target=shown).failures([result])
    return text.getvalue().strip("\n")
