"""From an exception to what a learner reads."""

from dataclasses import replace

import pytest

from course.grader.conversation import Conversation
from course.grader.failures import (
    CheckFailed,
    LearnerError,
    is_unsolved,
    task_of_stub,
)
from course.grader.report import NO_ERROR, UNSOLVED, Failure
from course.manifest import load


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


def as_text(failure: Failure) -> str:
    """For plain pytest; `course grade` lays it out itself."""
    lines = [failure.claim]
    if failure.message:
        lines.append(failure.message)
    lines += [f"    {line}" for line in failure.history]
    if failure.expected or failure.got:
        lines += [f"expected  {failure.expected}", f"got       {failure.got}"]
    if failure.printed:
        lines += ["printed:", *failure.printed_end]
    return "\n".join(lines)
