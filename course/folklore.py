"""The claims that the chapters put to the test, and what came of them.

Nothing is typed twice: a claim and its verdicts are read from the chapters' sources.
A claim stands in a box, "> **Claim F5.** …"; each chapter that tests it has a box
"> **Verdict F5…: holds…**" and a row "| F5 … | holds … |" in its last table. Chapter
14 shows all rows. Standard library only.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from course.manifest import ROOT, Chapter, load

BOX = re.compile(r"^> \*\*Claim (F\d+)\.?\*\*(.*)$", re.MULTILINE)
VERDICT = re.compile(r"^> \*\*Verdict (F\d+)(.*)$", re.MULTILINE)
ROW = re.compile(r"^\| (F\d+) (.*?) \| (.*) \|$", re.MULTILINE)
LEADING = re.compile(r"\b(holds|wrong|open|hardly)\b")
KINDS = ("wrong", "holds if", "holds")


@dataclass
class Claim:
    """One statement, and what each chapter says of it."""

    id: str  # F1, F2, …
    text: str = ""
    verdicts: list[tuple[Chapter, str]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)  # of KINDS, from the verdicts' boxes

    @property
    def number(self) -> int:
        return int(self.id[1:])

    @property
    def kind(self) -> str:
        """The worst that is said of it."""
        return next((kind for kind in KINDS if kind in self.kinds), "open")


def claims(root: Path = ROOT) -> list[Claim]:
    """All claims of the chapters that are here, by number."""
    found: dict[str, Claim] = {}
    for chapter, source in _sources(root):
        for claim_id, text in BOX.findall(source):
            claim = found.setdefault(claim_id, Claim(claim_id))
            # A later chapter may quote half of it: the first one says it whole.
            claim.text = claim.text or text.strip()
        for claim_id, _, verdict in ROW.findall(source):
            claim = found.setdefault(claim_id, Claim(claim_id))
            claim.verdicts.append((chapter, verdict))
        for claim_id, box in VERDICT.findall(source):
            found.setdefault(claim_id, Claim(claim_id)).kinds.add(_kind(box))
    return sorted(found.values(), key=lambda claim: claim.number)


def table(root: Path = ROOT) -> str:
    """The claims in Markdown, each verdict behind a link to its chapter's notebook."""
    lines = ["| | claim | verdict |", "|---|---|---|"]
    for claim in claims(root):
        verdicts = "<br>".join(
            f"[{chapter.id}]({chapter.notebook.name}): {verdict}"
            for chapter, verdict in claim.verdicts
            if not verdict.startswith("open")  # a later chapter answers
        )
        lines.append(f"| {claim.id} | {claim.text} | {verdicts or 'open'} |")
    return "\n".join(lines)


def unpaired(root: Path = ROOT) -> list[str]:
    """Where a chapter's last table and its verdict boxes don't say the same.

    Compared is what can be: which claims there are, and holds, wrong or open.
    """
    complaints: list[str] = []
    for chapter, source in _sources(root):
        boxes = _by_claim(VERDICT.findall(source))
        rows = _by_claim((row[0], row[2]) for row in ROW.findall(source))
        for claim_id in sorted(boxes.keys() | rows.keys()):
            in_boxes = boxes.get(claim_id, set())
            in_rows = rows.get(claim_id, {"no row"})
            # A question that is left open has no box of its own.
            if in_rows - {"open"} and not in_rows <= in_boxes:
                complaints.append(f"{chapter.stem}: {claim_id}: {in_rows}, {in_boxes}")
    return complaints


def _kind(box: str) -> str:
    """Of a box's first line after the claim's number: ", host: holds if** …"."""
    words = box.partition("**")[0].rpartition(": ")[2].rstrip(".")
    if not words.startswith(("holds", "wrong")):
        raise ValueError(f"a verdict must begin with holds or wrong, got {box!r}")
    if words.startswith("wrong"):
        return "wrong"
    return "holds" if words == "holds" else "holds if"  # "holds for", "holds, but"


def _by_claim(found: Iterable[tuple[str, str]]) -> dict[str, set[str]]:
    words: dict[str, set[str]] = {}
    for claim_id, text in found:
        match = LEADING.search(text)
        words.setdefault(claim_id, set()).add(match[1] if match else "?")
    return words


def _sources(root: Path) -> Iterator[tuple[Chapter, str]]:
    for chapter in load(root).chapters:
        if chapter.source.exists():
            yield chapter, chapter.source.read_text(encoding="utf-8")
