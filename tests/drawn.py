"""What a picture shows, read from what was drawn: shared by the tests of pictures."""

import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass

from paged_attention.viz import tables_picture

SVG = "{http://www.w3.org/2000/svg}"
THICK = 'stroke-width="3.5"'
NODE = re.compile(r'(n\d+) \[pos="([-\d.]+),([-\d.]+)!", (.*)\]')


def words_in(svg: str) -> list[str]:
    """Every text that the picture shows, in drawing order."""
    texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
    return ["".join(text.itertext()).strip() for text in texts]


@dataclass
class Arrow:
    """From an entry that shows a block id, to the block that it ends at."""

    shows: str
    ends_at: str
    pen: str


def arrows_of(picture) -> list[Arrow]:
    """The arrows as drawn, found by where they start and end."""
    points, texts = {}, []
    for name, x, y, attributes in NODE.findall(picture.source):
        points[name] = (float(x), -float(y))
        label = re.match(r'label="(\d+|\d+ → \d+)", shape=plaintext', attributes)
        if label and "fontsize=14" in attributes:
            texts.append((points[name], label[1]))

    def nearest(point):
        return min(
            texts, key=lambda t: abs(t[0][0] - point[0]) + abs(t[0][1] - point[1])
        )

    lines = re.findall(r"(n\d+) -> (n\d+) \[(.*)\]", picture.source)
    return [
        Arrow(nearest(points[a])[1], nearest(points[b])[1], pen) for a, b, pen in lines
    ]


def problems(tables, allocator=None, complete=True):
    picture = tables_picture(tables, allocator, complete=complete)
    told = [line[2:] for line in picture.text.split("\n") if line.startswith("! ")]
    shown = [word[2:] for word in words_in(picture.svg()) if word.startswith("! ")]
    assert told == shown
    return told
