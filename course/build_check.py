"""`course build --check`: is what was built what its sources give?

Sources are compared, not outputs; nothing is executed or written. A learner's own
edits of an exercise are none of its business.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from course.build import shown
from course.files import UnusableFileError, read_text
from course.include import LONGEST, IncludeError, defined_names, owned_names
from course.manifest import Chapter
from course.stubs import BEGIN, StubError, is_pristine, make_stub


@dataclass
class Findings:
    """What `course build --check` found: problems fail it, notes do not."""

    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def check(chapters: Sequence[Chapter]) -> Findings:
    """Compare what is built with its sources; nothing is executed or written."""
    findings = Findings()
    owned = owned_names(chapters[0].root) if chapters else {}
    for chapter in chapters:
        _check_chapter(chapter, owned, findings)
        if chapter.exercise:
            findings.problems.extend(_stub_problems(chapter, owned))
    return findings


def _check_chapter(chapter: Chapter, owned: dict[str, str], found: Findings) -> None:
    from course.notebooks import ChapterError, expand_chapter

    source = shown(chapter.source, chapter)
    if not chapter.source.exists():
        found.problems.append(f"{source} is missing")
        return
    try:
        expanded = expand_chapter(chapter)
    except (ChapterError, IncludeError) as error:
        found.problems.append(f"{source}: {error}")
        return
    for number, name in expanded.includes.items():
        length = len(expanded.notebook.cells[number - 1].source.splitlines())
        if length > LONGEST:
            found.notes.append(
                f"{source}: cell {number}: {name} takes {length} lines, more than "
                f"{LONGEST}; an excerpt or two definitions would read better"
            )
    for number, cell in enumerate(expanded.notebook.cells, start=1):
        if cell.cell_type == "code" and number not in expanded.includes:
            where = f"{source}: cell {number}"
            found.problems.extend(_ownership_problems(cell.source, owned, where))
    found.problems.extend(_notebook_problems(chapter, expanded.notebook.cells))


def _notebook_problems(chapter: Chapter, wanted: list) -> Iterator[str]:
    import nbformat

    from course.notebooks import MEASURE, tags_of

    name = shown(chapter.notebook, chapter)
    remedy = f"run: course build {chapter.number}"
    if not chapter.notebook.exists():
        yield f"{name} is missing; {remedy}"
        return
    try:
        built = nbformat.read(chapter.notebook, as_version=4).cells
    except Exception as error:  # nbformat's reader raises whatever it stumbles on
        yield f"{name} cannot be read as a notebook ({type(error).__name__}); {remedy}"
        return
    pairs = zip(wanted, built, strict=False)
    for number, (want, have) in enumerate(pairs, start=1):
        if (want.cell_type, want.source, tags_of(want)) != (
            have.cell_type,
            have.source,
            tags_of(have),
        ):
            yield f"{name}: cell {number} differs from its source; {remedy}"
            return
    if len(wanted) != len(built):
        yield f"{name}: {len(built)} cells, its source has {len(wanted)}; {remedy}"
        return
    code = [c for c in built if c.cell_type == "code" and MEASURE not in tags_of(c)]
    if code and not any(cell.outputs for cell in code):
        yield f"{name} has no outputs; {remedy}"


def _stub_problems(chapter: Chapter, owned: dict[str, str]) -> Iterator[str]:
    solution = shown(chapter.solution_path, chapter)
    exercise = shown(chapter.exercise_path, chapter)
    remedy = f"run: course build --stubs {chapter.number}"
    if not chapter.solution_path.exists():
        yield f"{solution} is missing"
        return
    text = chapter.solution_path.read_text(encoding="utf-8")
    yield from _ownership_problems(text, owned, solution)
    known = {task.id for task in chapter.tasks}
    for line in text.splitlines():
        if (match := BEGIN.match(line)) and match[2] not in known:
            yield f"{solution}: the manifest has no task {match[2]} in this chapter"
    try:
        stub = make_stub(text, chapter.solution_path.name)
    except StubError as error:
        yield f"{solution}: {error}"
        return
    if not chapter.exercise_path.exists():
        yield f"{exercise} is missing; {remedy}"
        return
    try:
        present = read_text(chapter.exercise_path)
    except UnusableFileError as error:
        yield str(error)
        return
    if present != stub and is_pristine(present):
        yield f"{exercise} is an old stub; {remedy}"


def _ownership_problems(code: str, owned: dict[str, str], where: str) -> Iterator[str]:
    """The package is the only place where its names are defined."""
    try:
        defined = defined_names(_without_magics(code))
    except SyntaxError:
        # a chapter may show one on purpose; if not, the build's execution tells
        return
    for name, line in defined.items():
        if name in owned:
            yield f"{where}, line {line}: defines {name}, which {owned[name]} owns"


def _without_magics(code: str) -> str:
    """IPython's % and ! lines are not Python; put something harmless in their place."""
    lines = code.splitlines()
    if lines and lines[0].startswith("%%"):
        return ""
    return "\n".join(
        line[: len(line) - len(line.lstrip())] + "pass"
        if line.lstrip().startswith(("%", "!"))
        else line
        for line in lines
    )
