"""Pictures of what changed and of the prefix cache; what draws itself in IPython."""

import re
from dataclasses import dataclass

import pytest
from drawn import THICK, arrows_of, problems, words_in
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from paged_attention.allocator import BlockAllocator
from paged_attention.block_table import BlockTable
from paged_attention.prefix_cache import PrefixCache
from paged_attention.sharing import copy_on_write, fork
from paged_attention.viz import (
    difference_picture,
    pool_picture,
    snapshot,
    tables_picture,
)
from paged_attention.viz.canvas import MARK
from paged_attention.viz.formatter import register

WORDS = ["Four", "score", "and", "seven", "years", "ago", "our", "fathers", "brought"]


@pytest.fixture
def table():
    """7 tokens in blocks 0 and 1 of a pool of 8."""
    table = BlockTable(BlockAllocator(8), 4)
    table.append_tokens(7)
    return table


# Before and after


def marked_entries(picture):
    """Entries and blocks with *…* in the plain drawing."""
    return re.findall(r"\*([^*]+)\*", picture.text)


def test_a_fork_changes_counts_and_adds_a_table(table):
    before = snapshot({"A": table})
    picture = difference_picture(before, snapshot({"A": table, "B": fork(table)}))
    words = words_in(picture.svg())
    assert words.count("1 → 2") == 2
    assert "new, 7 tokens" in words
    assert marked_entries(picture) == ["0", "1", "0", "1"]  # B's, then the pool's
    assert "Changed: B is new. Block 0: ref_count 1 → 2." in picture.alt


def test_a_copy_on_write_changes_one_entry_and_no_other(table):
    other = fork(table)
    before = snapshot({"A": table, "B": other})
    copy_on_write(other)
    other.append_tokens(2)
    picture = difference_picture(before, snapshot({"A": table, "B": other}))
    words = words_in(picture.svg())
    assert marked_entries(picture) == ["1 → 2", "3", "1", "2", "3"]
    assert words.count("new") == 1
    assert "7 → 9 tokens" in words
    assert "Free list: 4, 5, 6, 7 (before: 2, 3, 4, 5, 6, 7)." in words
    assert "B[1]: block 1 → block 2." in picture.alt
    assert "B[2]: nothing → block 3." in picture.alt
    assert "A[" not in picture.alt.split("Changed:")[1]
    arrow = next(arrow for arrow in arrows_of(picture) if arrow.shows == "1 → 2")
    assert arrow.ends_at == "2"


def test_what_is_gone_is_still_drawn_in_its_place_without_an_arrow(table):
    other = fork(table)
    before = snapshot({"A": table, "B": other})
    table.free()
    other.truncate(4)
    picture = difference_picture(before, snapshot({"B": other}))
    words = words_in(picture.svg())
    assert words.count("gone") == 2  # the table, and the entry of the other
    assert words.index("A") < words.index("B")
    assert words.count("1 → free") == 0
    assert words.count("2 → free") == 1
    assert [arrow.ends_at for arrow in arrows_of(picture)] == ["0"]


def test_a_new_hole_is_a_change(table):
    before = snapshot({"A": table})
    table.drop_before(4)
    picture = difference_picture(before, snapshot({"A": table}))
    assert "0 → hole" in words_in(picture.svg())
    assert "A[0]: block 0 → a hole." in picture.alt


def test_a_snapshot_does_not_follow_the_table(table):
    kept = snapshot({"A": table}, words={"A": WORDS})
    table.free()
    assert kept.tables[0].block_ids == (0, 1)
    assert kept.counts[:2] == (1, 1)


def test_no_change_is_said_and_nothing_is_marked(table):
    picture = difference_picture(snapshot({"A": table}), snapshot({"A": table}))
    assert "Nothing changed." in words_in(picture.svg())
    assert MARK not in picture.source
    assert "Changed" not in picture.alt


# The prefix cache


@pytest.fixture
def cache():
    """Three blocks published, of which two are held by the cache alone."""
    cache = PrefixCache(BlockAllocator(6), 4)
    tables = []
    for token_ids in (range(8), range(100, 104)):
        table = cache.acquire(token_ids)
        table.append_tokens(len(token_ids) - table.num_tokens)
        cache.publish(table, token_ids)
        tables.append(table)
    tables[0].free()
    return cache, tables[1]


def test_what_is_cached_is_drawn_in_the_order_in_which_it_is_evicted(cache):
    cache, table = cache
    picture = tables_picture({"A": table})
    words = words_in(picture.svg())
    assert words.count("cached") == 3
    cache.allocate_many(cache.allocator.num_free)
    evicted = [cache.allocate(), cache.allocate()]
    assert f"in the order of eviction: {evicted[0]}, {evicted[1]}." in picture.alt
    ranks = [word for word in words if word.startswith("evict ")]
    assert ranks == ["evict 2nd", "evict 1st"]  # of blocks 0 and 1
    assert evicted == [1, 0]


def test_the_cache_is_a_holder_like_the_tables(cache):
    cache, table = cache
    assert problems({"A": table}) == []
    assert (
        "Block 2: ref_count 2, held by A[0], cache." in tables_picture({"A": table}).alt
    )
    cache.allocator.free(2)
    assert problems({"A": table}) == [
        "Block 2: ref_count 1, but held 2 times: A[0], cache."
    ]


def test_cached_blocks_have_round_corners_marked_or_not(cache):
    cache, table = cache
    for highlight in ((), (0, 2)):
        svg = tables_picture({"A": table}, highlight=highlight).svg()
        # Graphviz draws round corners as a path; block 2 is shared: a second border.
        boxes = [line for line in svg.split("\n") if line.startswith('<path fill="#')]
        assert len(boxes) == 3 + 1
        assert sum(THICK in box for box in boxes) == len(highlight)


def test_eviction_is_a_change(cache):
    cache, table = cache
    before = snapshot({"A": table})
    other = BlockTable(cache, 4)
    other.append_tokens(16)
    picture = difference_picture(before, snapshot({"A": table, "B": other}))
    assert "Block 1 is no longer cached." in picture.alt
    assert "not cached" in words_in(picture.svg())


def test_a_cache_that_counts_evictable_blocks_as_free_does_not_contradict_itself(cache):
    cache, _ = cache
    assert "1 in use (1 shared), 2 only cached, 3 free." in pool_picture(cache).alt
    assert "But" not in pool_picture(cache).alt
    cache.allocator.free(1)  # behind the cache's back
    assert "But num_free is" in pool_picture(cache).alt


# In IPython


def test_the_same_tables_give_the_same_bytes(cache):
    cache, table = cache
    first, second = (
        tables_picture({"A": table}, highlight=[2, 1, ("A", 0)]) for _ in range(2)
    )
    assert first._repr_mimebundle_() == second._repr_mimebundle_()


@pytest.fixture
def shown():
    """What IPython shows for an object at the end of a cell."""
    shell = InteractiveShell()
    register(shell)
    return lambda obj: shell.display_formatter.format(obj)


@dataclass
class OtherTable:
    """Someone else's, with attributes where ours has properties."""

    block_ids: list
    num_tokens: int
    block_size: int


def test_a_table_at_the_end_of_a_cell_draws_itself(shown, table):
    data, metadata = shown(table)
    assert "table: 7 tokens, blocks 0, 1." in metadata["image/svg+xml"]["alt"]
    assert "ref_count" in words_in(data["image/svg+xml"])
    data, metadata = shown(OtherTable([2, None], 8, 4))
    assert "table: 8 tokens, blocks 2, a hole." in metadata["image/svg+xml"]["alt"]


def test_a_table_that_draws_itself_does_not_call_the_other_holders_a_leak(shown, table):
    fork(table)
    assert "!" not in shown(table)[0]["text/plain"]


def test_a_cache_and_a_snapshot_at_the_end_of_a_cell_draw_themselves(shown, cache):
    cache, table = cache
    assert "evict 1st" in words_in(shown(cache)[0]["image/svg+xml"])
    assert "!" not in shown(cache)[0]["text/plain"]
    kept = snapshot({"A": table})
    assert shown(kept)[0]["text/plain"] == tables_picture({"A": table}).text


def test_a_half_written_table_shows_its_repr(shown):
    class Stub(OtherTable):
        @property
        def block_ids(self):
            raise NotImplementedError("exercise 5.2")

        @block_ids.setter
        def block_ids(self, value): ...

        __repr__ = object.__repr__

    with capture_output() as captured:
        data, _ = shown(Stub([0], 4, 4))
    assert set(data) == {"text/plain"}
    assert "Stub object at" in data["text/plain"]
    assert captured.stderr == captured.stdout == ""
