"""Exercise 07. The pool is ours and stays in the grader; the index is the learner's.

Tests of a task use what tasks up to it ask for. Blocks hold 4 tokens, unless it is said
otherwise. With a weak hash function an index may find less, but never wrong blocks.
"""

import itertools
import random

import pytest

from course.grader import (
    Hidden,
    expect,
    expect_raises,
    expect_that,
    in_worker,
    measured,
    rewrite_history,
    task,
)
from course.grader.failures import fail
from course.grader.helpers.pools import given_pool
from course.grader.helpers.walk import walk
from paged_attention.errors import DoubleFreeError, OutOfBlocksError

HELPERS = "course.grader.helpers.ex07"


def tokens(num_tokens, first=10):
    return list(range(first, first + num_tokens))


# 7.1


@task("7.1")
def test_only_full_blocks_have_a_hash(exercise):
    for num_tokens, full in [(0, 0), (1, 0), (3, 0), (4, 1), (7, 1), (8, 2), (12, 3)]:
        hashes = exercise.block_hashes(tokens(num_tokens), 4)
        what = "1 token" if num_tokens == 1 else f"{num_tokens} tokens"
        claim = f"number of hashes: one for each full block of 4 in {what}"
        expect(len(hashes), full, claim)


@task("7.1")
def test_the_first_hash_is_that_of_the_tokens_alone(exercise):
    expected = exercise.chained_hash(None, (10, 11, 12, 13))
    got = exercise.block_hashes([10, 11, 12, 13], 4)
    expect(got, [expected], "there is one block, and nothing stands in front of it")


@task("7.1")
def test_each_hash_is_made_of_the_one_in_front(exercise):
    first = exercise.chained_hash(None, (10, 11))
    second = exercise.chained_hash(first, (12, 13))
    third = exercise.chained_hash(second, (14, 15))
    got = exercise.block_hashes(tokens(7), 2)
    expect(
        got,
        [first, second, third],
        "7 tokens fill three blocks of 2, and one is left over",
    )


@task("7.1")
def test_equal_beginnings_have_equal_hashes(exercise):
    one = exercise.block_hashes([1, 2, 3, 4, 5, 6], 2)
    two = exercise.block_hashes([1, 2, 3, 4, 9, 9], 2)
    expect(two[:2], one[:2], "the first two blocks are the same")
    got = exercise.block_hashes([1, 2], 2)
    expect(got, one[:1], "a shorter sequence begins with the same block")


def expect_different(exercise, one, two, claim):
    """Of two sequences of one block or more, the last block's hashes differ."""
    first = exercise.block_hashes(one, 4)[-1]
    second = exercise.block_hashes(two, 4)[-1]
    expected = f"another hash than {first}, which {one} has"
    expect_that(first != second, claim, got=second, expected=expected)


@task("7.1")
def test_every_token_counts(exercise):
    for place in range(4):
        rewrite_history(exercise)
        other = tokens(4)
        other[place] = 99
        claim = f"another token at place {place} gives another hash"
        expect_different(exercise, tokens(4), other, claim)


@task("7.1")
def test_the_order_of_the_tokens_counts(exercise):
    claim = "the same tokens in another order have another hash"
    expect_different(exercise, [1, 2, 3, 4], [4, 3, 2, 1], claim)
    expect_different(exercise, [1, 2, 3, 4], [1, 3, 2, 4], claim)


@task("7.1")
def test_large_tokens_are_not_cut(exercise):
    for wide in (321, 65 + 65536):
        claim = f"65 and {wide} are two tokens (the vocabulary is larger than a byte)"
        expect_different(exercise, [65] * 4, [wide] * 4, claim)


@task("7.1")
def test_what_stands_in_front_counts(exercise):
    claim = "the same tokens after another beginning have another hash"
    expect_different(
        exercise, [1, 1, 1, 1, 5, 5, 5, 5], [2, 2, 2, 2, 5, 5, 5, 5], claim
    )
    expect_different(exercise, [5, 5, 5, 5], [1, 1, 1, 1, 5, 5, 5, 5], claim)
    claim = "when two blocks change places, the hash is another"
    expect_different(
        exercise, [1, 1, 1, 1, 2, 2, 2, 2], [2, 2, 2, 2, 1, 1, 1, 1], claim
    )
    claim = "the same block once more has another hash"
    expect_different(exercise, [5] * 8, [5] * 4, claim)
    expect_different(exercise, [5] * 12, [5] * 8, claim)


@task("7.1")
def test_thousands_of_contents_have_different_hashes(exercise):
    """All beginnings of two tokens, and of two blocks of two tokens."""
    prompts = [list(pair) for pair in itertools.product(range(48), repeat=2)]
    prompts += [list(four) for four in itertools.product((0, 1, 2, 31, 47), repeat=4)]
    helper = f"{HELPERS}:all_hashes"
    content_of = {}
    hashes = in_worker(exercise, helper, exercise.block_hashes, prompts, 2)
    expect(len(hashes), len(prompts), "each prompt has a list of hashes")
    for prompt, found in zip(prompts, hashes, strict=True):
        expect(len(found), len(prompt) // 2, f"full blocks of 2 in {prompt}")
        other = content_of.setdefault(found[-1], prompt)
        if other != prompt:
            claim = f"{other} and {prompt} have different hashes"
            fail(claim, expected="two hashes", got=f"{found[-1]} for both")


# 7.2


def index_of(exercise, block_size=4, hash_function=None):
    """An index that holds nothing, on a pool of which nothing is in use."""
    pool = given_pool(exercise, 16)
    if hash_function is None:
        return exercise.PrefixIndex(pool, block_size)
    return exercise.PrefixIndex(pool, block_size, Hidden(hash_function))


@task("7.2")
def test_an_empty_index_finds_nothing(exercise):
    index = index_of(exercise)
    for num_tokens in (0, 1, 4, 9):
        expect(index.match(tokens(num_tokens)), [], "nothing is remembered")


@task("7.2")
def test_a_block_is_found_by_its_tokens(exercise):
    for block_id in (7, 0):
        index = index_of(exercise)
        got = index.remember([block_id], [1, 2, 3, 4])
        expect(got, [block_id], f"block {block_id} was added")
        got = index.match([1, 2, 3, 4, 5])
        expect(got, [block_id], "the first four tokens are known")
        expect(index.match([1, 2, 3, 9, 5]), [], "the fourth token is another one")
        expect(index.match([9, 2, 3, 4, 5]), [], "the first token is another one")


@task("7.2")
def test_at_least_one_token_is_left_over(exercise):
    index = index_of(exercise)
    index.remember([5, 3], tokens(8))
    for num_tokens, found in [(3, 0), (4, 0), (5, 1), (7, 1), (8, 1), (9, 2), (20, 2)]:
        claim = (
            f"match is asked with {num_tokens} tokens, {min(num_tokens, 8)} of them are "
            "known; one at least must be left over for the model"
        )
        expect(index.match(tokens(num_tokens)), [5, 3][:found], claim)


@task("7.2")
def test_the_longest_known_beginning_is_found(exercise):
    index = index_of(exercise)
    index.remember([5, 3, 8], tokens(12))
    for same in (3, 4, 6, 8, 11, 12):
        prompt = [*tokens(same), 99, 99]
        claim = f"the first {same} tokens are those of the blocks 5, 3, 8"
        expect(index.match(prompt), [5, 3, 8][: same // 4], claim)


@task("7.2")
def test_equal_tokens_after_another_beginning_are_no_hit(exercise):
    index = index_of(exercise)
    index.remember([5, 3], [1, 1, 1, 1, 2, 2, 2, 2])
    expect(index.match([2, 2, 2, 2, 0]), [], "2 2 2 2 was remembered after 1 1 1 1")
    got = index.match([9, 9, 9, 9, 2, 2, 2, 2, 0])
    expect(got, [], "2 2 2 2 was remembered after 1 1 1 1, not after 9 9 9 9")
    expect(
        index.match([1, 1, 1, 1, 1, 1, 1, 1, 0]),
        [5],
        "1 1 1 1 is known once, not twice",
    )


@task("7.2")
def test_two_sequences_go_on_from_one_block(exercise):
    index = index_of(exercise)
    expect(index.remember([5, 3], [*tokens(4), 1, 1, 1, 1]), [5, 3], "both are new")
    got = index.remember([6, 4], [*tokens(4), 2, 2, 2, 2])
    expect(got, [4], "what block 6 holds is known: block 5 holds it")
    expect(index.match([*tokens(4), 1, 1, 1, 1, 0]), [5, 3], "the first one is found")
    expect(index.match([*tokens(4), 2, 2, 2, 2, 0]), [5, 4], "the second is found")


@task("7.2")
def test_what_is_known_keeps_its_block(exercise):
    index = index_of(exercise)
    index.remember([5], tokens(4))
    expect(index.remember([6], tokens(4)), [], "these tokens are known already")
    expect(index.remember([5], tokens(4)), [], "block 5 is known already")
    expect(index.match(tokens(5)), [5], "of two blocks the older one is found")


@task("7.2")
def test_only_full_blocks_are_remembered(exercise):
    index = index_of(exercise)
    for ids, num_tokens in [([5], 3), ([5], 5), ([5, 3], 7), ([5], 8), ([], 1)]:
        claim = f"{num_tokens} tokens do not fill {len(ids)} blocks of 4"
        expect_raises(ValueError, index.remember, ids, tokens(num_tokens), claim=claim)
        expect(index.match(tokens(9)), [], "the refused call remembered nothing")
    expect(index.remember([], []), [], "no blocks need no tokens")


@task("7.2")
def test_hits_end_at_the_first_hole(exercise):
    ids = [5, 3, 8]
    for found, forgotten in enumerate(ids):
        index = index_of(exercise)
        index.remember(ids, tokens(12))
        index.forget(forgotten)
        claim = f"of the blocks 5, 3, 8 block {forgotten} was forgotten"
        expect(index.match(tokens(13)), ids[:found], claim)


@task("7.2")
def test_only_what_is_remembered_can_be_forgotten(exercise):
    index = index_of(exercise)
    expect_raises(ValueError, index.forget, 5, claim="nothing is remembered")
    index.remember([5], tokens(4))
    index.remember([6], tokens(4))
    claim = "block 6 was not added: block 5 holds the same"
    expect_raises(ValueError, index.forget, 6, claim=claim)
    expect(index.match(tokens(5)), [5], "the refused calls changed nothing")
    index.forget(5)
    expect_raises(ValueError, index.forget, 5, claim="block 5 was forgotten before")


@task("7.2")
def test_a_forgotten_block_may_get_another_content(exercise):
    index = index_of(exercise)
    index.remember([5], [1, 1, 1, 1])
    index.forget(5)
    expect(index.remember([5], [2, 2, 2, 2]), [5], "block 5 has new tokens")
    expect(index.match([1, 1, 1, 1, 0]), [], "block 5 does not hold 1 1 1 1 any more")
    expect(index.match([2, 2, 2, 2, 0]), [5], "block 5 holds 2 2 2 2")
    expect(index.remember([6], [1, 1, 1, 1]), [6], "1 1 1 1 is new again")
    expect(index.match([1, 1, 1, 1, 0]), [6], "block 6 holds 1 1 1 1")
    index.forget(5)
    expect(index.match([1, 1, 1, 1, 0]), [6], "block 5 was forgotten, block 6 was not")


@task("7.2")
def test_a_hole_that_is_filled_again_leads_to_what_lies_behind(exercise):
    index = index_of(exercise)
    index.remember([5, 3, 8], tokens(12))
    index.forget(5)
    expect(index.remember([9], tokens(4)), [9], "the first content is new again")
    expect(index.match(tokens(13)), [9, 3, 8], "the blocks 3 and 8 are known as before")


@task("7.2")
def test_one_index_knows_nothing_of_another(exercise):
    pool = given_pool(exercise, 16)
    one, two = exercise.PrefixIndex(pool, 4), exercise.PrefixIndex(pool, 4)
    one.remember([5], tokens(4))
    expect(two.match(tokens(5)), [], "the other index remembers it")


@task("7.2")
def test_blocks_of_any_size(exercise):
    for block_size in (1, 3, 16):
        index = index_of(exercise, block_size)
        index.remember([5, 3], tokens(2 * block_size))
        got = index.match(tokens(2 * block_size + 1))
        expect(got, [5, 3], f"two blocks of {block_size} are known")
        got = index.match(tokens(2 * block_size))
        expect(got, [5], f"of two blocks of {block_size}, one token must be left over")


@task("7.2")
def test_matching_takes_no_references(exercise):
    pool = given_pool(exercise, 4)
    ids = pool.allocate_many(2)
    index = exercise.PrefixIndex(pool, 4)
    index.remember(ids, tokens(8))
    index.match(tokens(9))
    expect(pool._counts, [1, 1, 0, 0], "the allocator is not used yet (ref_counts)")


def constant(parent_hash, tokens):
    return 7


def last_token(parent_hash, tokens):
    return tokens[-1]


def sum_of_tokens(parent_hash, tokens):
    return (parent_hash or 0) + sum(tokens)


def cut_to_two_bits(parent_hash, tokens):
    return hash((parent_hash, tokens)) % 4


WEAK = [constant, last_token, sum_of_tokens, cut_to_two_bits]
PROMPTS = [
    [1, 1, 1, 1, 2, 2],
    [3, 3, 1, 1, 2, 2],
    [1, 1, 2, 2],
    [2, 0, 1, 1, 2, 2],
    [0, 2, 1, 1, 0, 4],
    [1, 1, 1, 1],
    [2, 2, 1, 1, 1, 1],
]


@task("7.2")
@pytest.mark.parametrize("weak", WEAK)
def test_a_hit_is_certain_whatever_the_hash_function_does(exercise, weak):
    index = index_of(exercise, 2, weak)
    content_of = {}
    ids = itertools.count()
    for prompt in PROMPTS:
        blocks = list(itertools.islice(ids, len(prompt) // 2))
        for block_id in index.remember(blocks, prompt):
            end = 2 * blocks.index(block_id) + 2
            content_of[block_id] = prompt[:end]
        for asked in PROMPTS:
            hits = index.match([*asked, 9])
            for i, block_id in enumerate(hits):
                wanted, held = asked[: 2 * i + 2], content_of.get(block_id)
                claim = (
                    "a hit is a block of just these tokens, those in front included; "
                    f"with this hash function ({weak.__name__}) contents collide"
                )
                got, expected = f"{hits}: block {block_id} is that of {held}", (
                    f"no hit, or a block of {wanted}"
                )
                if held != wanted:
                    fail(claim, expected=expected, got=got)
        first = content_of[0]
        got = index.match([*first, 9])
        expect(got, [0], "what was known first is still found")


@task("7.2")
def test_tokens_in_front_are_compared_too(exercise):
    """The parent was forgotten, and a content with the same hash took its place."""
    index = index_of(exercise, 2, last_token)
    index.remember([5, 3], [1, 8, 2, 2])
    index.forget(5)
    index.remember([6], [4, 8])
    claim = "block 3 comes after 1 8, not after 4 8, whose hash is the same (8)"
    expect(index.match([4, 8, 2, 2, 0]), [6], claim)


@task("7.2")
def test_the_index_agrees_with_a_list_of_all_contents(exercise):
    def choices(chance):
        prompt = [chance.randrange(2) for _ in range(chance.choice([2, 4, 4, 6]))]
        return chance.choice(["remember", "match", "match", "forget"]), prompt

    def run(calls):
        index = index_of(exercise, 2)
        known = {}
        ids = itertools.count()
        for name, prompt in calls:
            ends = range(2, len(prompt) + 1, 2)
            contents = [tuple(prompt[:end]) for end in ends]
            if name == "remember":
                blocks = [next(ids) for _ in contents]
                new = {
                    content: block_id
                    for content, block_id in zip(contents, blocks, strict=True)
                    if content not in known
                }
                got = index.remember(blocks, prompt)
                expect(got, list(new.values()), "the blocks whose content was new")
                known |= new
            elif name == "forget" and contents[-1] in known:
                index.forget(known.pop(contents[-1]))
            else:
                hits = list(itertools.takewhile(known.__contains__, contents))
                expected = [known[content] for content in hits]
                expect(index.match([*prompt, 1]), expected, "the longest beginning")

    walk(choices, run, num_walks=25, length=20)


@task("7.2")
def test_the_steps_of_a_match_do_not_grow_with_the_index(exercise):
    helper, kind = f"{HELPERS}:steps_of_match", exercise.PrefixIndex
    small, large = (
        measured(exercise, helper, kind, num_known, names=["match"])["match"]
        for num_known in (10, 1_000)
    )
    if large > 3 * small + 100:
        fail(
            "finding a block takes as many steps among 1,000 blocks as among 10",
            expected=f"about {small} steps",
            got=f"{large} steps: a loop over all that is remembered?",
        )


# 7.3


def published(exercise, num_blocks=8, num_tokens=8):
    """An index, its pool, and a sequence in use that is published."""
    pool = given_pool(exercise, num_blocks, (5, 2, 7, 0)[: num_blocks // 2])
    index = exercise.PrefixIndex(pool, 4)
    ids = pool.allocate_many(-(-num_tokens // 4))
    index.publish(ids, tokens(num_tokens))
    return index, pool, ids


def counts(pool, ids):
    return [pool.ref_count(block_id) for block_id in ids]


@task("7.3")
def test_a_published_block_is_found_and_held(exercise):
    index, pool, ids = published(exercise, num_tokens=4)
    expect(index.match(tokens(5)), ids, "the block that was published is found")
    expect(
        counts(pool, ids), [2], "the sequence and the index hold the block (ref_counts)"
    )


@task("7.3")
def test_only_full_blocks_of_what_is_written_are_published(exercise):
    for written, full in [(4, 1), (3, 0), (6, 1), (8, 2), (0, 0)]:
        pool = given_pool(exercise, 8, (5, 2, 7))
        index = exercise.PrefixIndex(pool, 4)
        ids = pool.allocate_many(2)
        index.publish(ids, tokens(written))
        claim = f"{written} of 8 tokens are written, so {full} full blocks are found"
        expect(index.match(tokens(9)), ids[:full], claim)
        expected = [2] * full + [1] * (2 - full)
        claim = f"the sequence holds 2 blocks, the index {full} of them (ref_counts)"
        expect(counts(pool, ids), expected, claim)


@task("7.3")
def test_a_prompt_in_two_chunks_is_published_as_it_is_written(exercise):
    index, pool, ids = published(exercise, num_tokens=6)
    expect(index.match(tokens(9)), ids[:1], "of 6 tokens one full block is found")
    index.publish(ids, tokens(8))
    expect(index.match(tokens(9)), ids, "of 8 tokens two full blocks are found")
    expect(counts(pool, ids), [2, 2], "the index holds each block once (ref_counts)")


@task("7.3")
def test_publishing_again_takes_no_second_reference(exercise):
    index, pool, ids = published(exercise)
    index.publish(ids, tokens(8))
    expect(counts(pool, ids), [2, 2], "the index holds each block once (ref_counts)")
    expect(index.match(tokens(9)), ids, "both are found as before")


@task("7.3")
def test_a_block_that_is_known_already_is_not_held(exercise):
    index, pool, ids = published(exercise)
    twins = pool.allocate_many(3)
    index.publish(twins, tokens(12))
    claim = "the first two contents are known, in the older blocks; the third is new"
    expect(index.match(tokens(13)), [*ids, twins[2]], claim)
    expect(
        counts(pool, ids), [2, 2], "the index holds the older blocks once (ref_counts)"
    )
    claim = "of the new blocks the index holds only the third (ref_counts)"
    expect(counts(pool, twins), [1, 1, 2], claim)


@task("7.3")
def test_after_a_cut_only_contents_decide(exercise):
    index, pool, ids = published(exercise)
    pool.free(ids[1])  # the sequence is cut to 4 tokens
    (other,) = pool.allocate_many(1)
    rewritten = [*tokens(4), 70, 71, 72, 73]
    index.publish([ids[0], other], rewritten)
    expect(index.match([*rewritten, 0]), [ids[0], other], "the new content is found")
    expect(index.match(tokens(9)), ids, "the old one still lies in the old block")
    expect(
        counts(pool, [*ids, other]),
        [2, 1, 2],
        "the index holds all, the sequence not the old one (ref_counts)",
    )


@task("7.3")
def test_what_grows_in_many_steps_is_found_block_by_block(exercise):
    pool = given_pool(exercise, 8, (5, 2, 7))
    index = exercise.PrefixIndex(pool, 4)
    ids = []
    for written in range(1, 14):
        if written % 4 == 1:
            ids += pool.allocate_many(1)
        index.publish(ids, tokens(written))
        got = index.match(tokens(20))
        expect(
            got,
            ids[: written // 4],
            f"{written} tokens are written, and their full blocks are found",
        )
    expect(
        counts(pool, ids),
        [2, 2, 2, 1],
        "three of four blocks are full, and the index holds these (ref_counts)",
    )


@task("7.3")
def test_more_tokens_than_the_blocks_hold_are_refused(exercise):
    pool = given_pool(exercise, 4)
    index = exercise.PrefixIndex(pool, 4)
    ids = pool.allocate_many(2)
    for num_tokens in (9, 12):
        claim = f"2 blocks of 4 cannot hold {num_tokens} tokens"
        expect_raises(ValueError, index.publish, ids, tokens(num_tokens), claim=claim)
        expect(index.match(tokens(13)), [], "the refused call remembered nothing")
        expect(
            counts(pool, ids), [1, 1], "the refused call took no reference (ref_counts)"
        )


@task("7.3")
def test_a_block_that_is_not_in_use_stops_all(exercise):
    pool = given_pool(exercise, 4)
    index = exercise.PrefixIndex(pool, 4)
    first, second = pool.allocate_many(2)
    pool.free(second)
    claim = f"nobody holds block {second}, so none of them is published"
    ids = [first, second]
    expect_raises(ValueError, index.publish, ids, tokens(8), claim=claim)
    expect(counts(pool, ids), [1, 0], "the refused call took no reference (ref_counts)")
    expect(index.match(tokens(9)), [], "the refused call remembered nothing")
    index.publish(ids, tokens(7))
    claim = "without it all is well: 7 tokens fill only the first block"
    expect(index.match(tokens(9)), [first], claim)


@task("7.3")
def test_a_block_that_is_not_in_use_stops_all_also_where_its_content_is_known(exercise):
    index, pool, ids = published(exercise, num_tokens=4)
    (other,) = pool.allocate_many(1)
    pool.free(other)
    claim = (
        f"nobody holds block {other}; that block {ids[0]} holds the same tokens does "
        "not matter"
    )
    expect_raises(ValueError, index.publish, [other], tokens(4), claim=claim)
    expect(counts(pool, [*ids, other]), [2, 0], "nothing has changed (ref_counts)")
    expect(index.match(tokens(5)), ids, "the block in use is found as before")


@task("7.3")
def test_acquire_holds_what_it_finds(exercise):
    index, pool, ids = published(exercise)
    expect(
        index.acquire(tokens(9)),
        ids,
        "the blocks of the longest known beginning are found",
    )
    claim = "sequence, index and the caller of acquire hold the blocks (ref_counts)"
    expect(counts(pool, ids), [3, 3], claim)
    expect(index.acquire(tokens(8)), ids[:1], "one token must be left over")
    expect(
        counts(pool, ids),
        [4, 3],
        "acquire took a reference to the one block that it found (ref_counts)",
    )
    expect(index.acquire([9, 9, 9, 9, 9]), [], "these tokens are not known")
    expect(
        counts(pool, ids),
        [4, 3],
        "acquire took no reference, as it found nothing (ref_counts)",
    )


@task("7.3")
def test_only_what_was_added_is_held_when_hashes_collide(exercise):
    pool = given_pool(exercise, 8)
    index = exercise.PrefixIndex(pool, 4, Hidden(constant))
    one, two = pool.allocate_many(2), pool.allocate_many(2)
    index.publish(one, [1, 1, 1, 1, 1, 1, 1, 1])
    index.publish(two, [2, 2, 2, 2, 1, 1, 1, 1])
    hits = index.acquire([2, 2, 2, 2, 1, 1, 1, 1, 0])
    claim = "where every hash is 7, acquire finds blocks of this sequence, or fewer"
    expect_that(hits == two[: len(hits)], claim, got=hits, expected=f"{two} or fewer")
    expect(index.acquire([1, 1, 1, 1, 0]), one[:1], "what was known first is found")
    held = counts(pool, two)
    known = [3 if block_id in hits else 1 for block_id in two]
    claim = "no reference is taken to blocks that cannot be found (ref_counts)"
    expect(held, known, claim)


# 7.4


def run(index, prompt):
    """One sequence up to where all of its prompt is written; its blocks."""
    ids = index.acquire(prompt)
    ids += index.allocate_many(-(-len(prompt) // 4) - len(ids))
    index.publish(ids, prompt)
    return ids


def small_index(exercise, num_blocks, order=()):
    pool = given_pool(exercise, num_blocks, order)
    index = exercise.PrefixIndex(pool, 4)
    return index, pool


@task("7.4")
def test_blocks_that_are_not_published_are_free_at_once(exercise):
    index, pool = small_index(exercise, 3)
    expect(index.num_free, 3, "nothing is in use")
    ids = index.allocate_many(2)
    expect(counts(pool, ids), [1, 1], "each new block has one holder (ref_counts)")
    expect(index.num_free, 1, "two of three are in use")
    index.release(ids)
    expect(index.num_free, 3, "both were released")
    expect(
        pool.num_free,
        3,
        "nobody remembers them, so they are free in the allocator, too",
    )


@task("7.4")
def test_blocks_that_only_the_index_holds_count_as_free(exercise):
    index, pool = small_index(exercise, 3)
    ids = run(index, tokens(8))
    expect(index.num_free, 1, "two of three are in use")
    index.release(ids)
    expect(counts(pool, ids), [1, 1], "only the index holds them (ref_counts)")
    expect(pool.num_free, 1, "they are not free in the allocator")
    expect(index.num_free, 3, "they can be had nevertheless")
    expect(index.match(tokens(9)), ids, "they are still found")


@task("7.4")
def test_a_block_that_another_sequence_holds_is_not_free(exercise):
    index, pool = small_index(exercise, 3)
    ids = run(index, tokens(4))
    index.acquire(tokens(5))
    index.release(ids)
    expect(index.num_free, 2, "the second sequence still holds the block")
    index.release(ids)
    expect(index.num_free, 3, "now both have released it")
    expect(counts(pool, ids), [1], "only the index holds it (ref_counts)")


@task("7.4")
def test_what_is_acquired_is_in_use_again(exercise):
    index, pool = small_index(exercise, 3)
    index.release(run(index, tokens(8)))
    ids = index.acquire(tokens(9))
    expect(index.num_free, 1, "two of three are in use again")
    claim = "one block can be had; the two that were acquired cannot be evicted"
    expect_raises(OutOfBlocksError, index.allocate_many, 2, claim=claim)
    expect(index.match(tokens(9)), ids, "they are still found")
    expect(
        counts(pool, ids),
        [2, 2],
        "the caller and the index hold the blocks (ref_counts)",
    )


@task("7.4")
def test_nothing_is_evicted_while_others_are_free(exercise):
    index, _ = small_index(exercise, 4, (2, 3))
    ids = run(index, tokens(8))
    index.release(ids)
    new = index.allocate_many(2)
    expect(sorted(new), [0, 1], "the two blocks that were free are handed out")
    expect(index.match(tokens(9)), ids, "both that are remembered are still found")


@task("7.4")
def test_an_evicted_block_is_forgotten_and_handed_out(exercise):
    index, pool = small_index(exercise, 1)
    index.release(run(index, tokens(4)))
    expect(index.match(tokens(5)), [0], "the block is still found")
    expect(index.allocate_many(1), [0], "the only block of the pool is handed out")
    expect(
        counts(pool, [0]),
        [1],
        "only the caller holds the block; the index let go of it (ref_counts)",
    )
    expect(
        index.match(tokens(5)),
        [],
        "the block is not found any more: its tokens will be overwritten",
    )
    expect(index.num_free, 0, "it is in use")


@task("7.4")
def test_the_tail_is_evicted_before_the_head(exercise):
    for taken in (1, 2, 3):
        index, _ = small_index(exercise, 3, (2, 0, 1))
        ids = run(index, tokens(12))
        index.release(ids)
        index.allocate_many(taken)
        claim = f"{ids} were released in one call, and {taken} had to be evicted: the "
        claim += "last ones of the sequence go first, so the others are still found"
        expect(index.match(tokens(13)), ids[: 3 - taken], claim)


@task("7.4")
def test_the_sequence_that_was_released_first_is_evicted_first(exercise):
    index, _ = small_index(exercise, 4)
    old, new = run(index, tokens(8, 10)), run(index, tokens(8, 50))
    index.release(old)
    index.release(new)
    for evicted, found in enumerate([(1, 2), (0, 2), (0, 1), (0, 0)], start=1):
        index.allocate_many(1)
        claim = (
            f"{evicted} blocks evicted: what was released first goes first, its end "
            "before its beginning"
        )
        expect_found(index, {10: found[0], 50: found[1]}, claim, num_tokens=9)


def expect_found(index, num_found, claim, num_tokens=5):
    """How many blocks are found of each sequence, which is named by its first token."""
    got = {first: len(index.match(tokens(num_tokens, first))) for first in num_found}
    expect(got, num_found, f"{claim} (first token of a sequence: blocks found)")


@task("7.4")
def test_what_was_used_again_is_evicted_later(exercise):
    index, _ = small_index(exercise, 3)
    for first in (10, 50, 90):
        index.release(run(index, tokens(4, first)))
    index.release(index.acquire(tokens(5, 10)))
    index.allocate_many(2)
    claim = "acquired and released once more, the first was used last, so it goes last"
    expect_found(index, {10: 1, 50: 0, 90: 0}, claim)


@task("7.4")
def test_looking_is_not_using(exercise):
    index, _ = small_index(exercise, 2)
    for first in (10, 50):
        index.release(run(index, tokens(4, first)))
    index.match(tokens(5, 10))
    index.allocate_many(1)
    claim = "the first was released the longest ago; to match is not to use"
    expect_found(index, {10: 0, 50: 1}, claim)


@task("7.4")
def test_the_last_holder_counts(exercise):
    index, _ = small_index(exercise, 2)
    ids = run(index, tokens(4, 10))
    index.acquire(tokens(5, 10))
    index.release(ids)
    index.release(run(index, tokens(4, 50)))
    index.release(ids)
    index.allocate_many(1)
    claim = "of the first block one holder went early, but the other one last of all"
    expect_found(index, {10: 1, 50: 0}, claim)


@task("7.4")
def test_a_block_in_use_is_never_evicted(exercise):
    index, pool = small_index(exercise, 2)
    ids = run(index, tokens(8))
    claim = "both blocks are in use"
    expect_raises(OutOfBlocksError, index.allocate_many, 1, claim=claim)
    expect(index.match(tokens(9)), ids, "the refused call evicted nothing")
    expect(
        counts(pool, ids),
        [2, 2],
        "the sequence and the index hold the blocks (ref_counts)",
    )
    expect(index.num_free, 0, "nothing is free")


@task("7.4")
def test_when_too_few_can_be_evicted_none_is(exercise):
    index, pool = small_index(exercise, 4)
    index.allocate_many(1)
    ids = run(index, tokens(8))
    index.release(ids)
    claim = "one block is free, two can be evicted, four are wanted"
    expect_raises(OutOfBlocksError, index.allocate_many, 4, claim=claim)
    expect(index.match(tokens(9)), ids, "the refused call evicted nothing")
    expect(counts(pool, ids), [1, 1], "the index still holds them (ref_counts)")
    expect(index.num_free, 3, "three can be had, as before")
    expect(len(index.allocate_many(3)), 3, "three can be had")


@task("7.4")
def test_the_pool_is_asked_for_no_impossible_number(exercise):
    index, _ = small_index(exercise, 2)
    index.release(run(index, tokens(4)))
    expect_raises(ValueError, index.allocate_many, -1, claim="-1 blocks make no sense")
    expect(index.allocate_many(0), [], "no blocks are asked for")
    expect(index.num_free, 2, "both can be had, as before")


@task("7.4")
def test_hits_that_nobody_uses_still_cost_free_blocks(exercise):
    """A pool of 3: two hits and a new block need all of it, and one is in use."""
    index, pool = small_index(exercise, 3)
    index.release(run(index, tokens(8)))
    index.allocate_many(1)
    expect(index.num_free, 2, "the two blocks that only the index holds can be had")
    ids = index.acquire(tokens(9))
    expect(len(ids), 2, "both were found")
    expect(index.num_free, 0, "both are in use now")
    claim = "the ninth token needs a block, and none is left"
    expect_raises(OutOfBlocksError, index.allocate_many, 1, claim=claim)
    expect(counts(pool, ids), [2, 2], "the refused call changed nothing (ref_counts)")


@task("7.4")
def test_no_hit_on_a_block_that_was_overwritten(exercise):
    index, _ = small_index(exercise, 2)
    for prompt in ([1] * 5, [2] * 5, [1] * 5, [3] * 5):
        index.release(run(index, prompt))
        expect(len(index.match(prompt)), 1, f"{prompt} was published last")
    expect(index.match([1] * 5), [], "three other sequences ran in this pool of two")


@task("7.4")
def test_hits_end_at_what_was_evicted_in_the_middle(exercise):
    index, _ = small_index(exercise, 3)
    ids = run(index, tokens(12))
    index.release(ids[1:2])
    index.allocate_many(1)
    claim = f"of the blocks {ids} the middle one was released and evicted"
    expect(index.match(tokens(13)), ids[:1], claim)


@task("7.4")
def test_the_reference_of_the_index_cannot_be_released(exercise):
    index, pool = small_index(exercise, 2)
    ids = run(index, tokens(4))
    index.release(ids)
    claim = "only the index holds the block"
    expect_raises(DoubleFreeError, index.release, ids, claim=claim)
    expect(counts(pool, ids), [1], "the index still holds it (ref_counts)")
    expect(index.num_free, 2, "the refused call changed nothing")
    expect(index.match(tokens(5)), ids, "it is still found")
    (other,) = [block_id for block_id in range(2) if block_id not in ids]
    claim = f"block {other} is free"
    expect_raises(DoubleFreeError, index.release, [other], claim=claim)


@task("7.4")
def test_all_blocks_are_released_or_none(exercise):
    index, pool = small_index(exercise, 4)
    ids = run(index, tokens(8))
    (other,) = index.allocate_many(1)
    before = pool._counts
    for wrong, error in [
        ([*ids, ids[1]], DoubleFreeError),
        ([other, ids[0], other], DoubleFreeError),
        ([*ids, 4], ValueError),
        ([-1, *ids], ValueError),
    ]:
        claim = f"{wrong} names a block too often, or one that does not exist"
        expect_raises(error, index.release, wrong, claim=claim)
        expect(pool._counts, before, "the refused call changed nothing (ref_counts)")
        expect(index.num_free, 1, "the refused call changed nothing")
    index.release([*ids, other])
    expect(index.num_free, 4, "all can be had")


@task("7.4")
def test_a_block_that_two_hold_may_be_released_twice_in_one_call(exercise):
    index, pool = small_index(exercise, 2)
    ids = run(index, tokens(4))
    pool.share(ids[0])  # by a fork of the sequence
    index.release(ids + ids)
    expect(counts(pool, ids), [1], "only the index holds it (ref_counts)")
    expect(index.num_free, 2, "it can be had")
    expect(len(index.allocate_many(2)), 2, "both blocks can be had, each once")


@task("7.4")
def test_a_twin_of_a_known_block_is_free_at_once(exercise):
    index, pool = small_index(exercise, 4)
    ids = run(index, tokens(4))
    twin = run(index, tokens(4))
    claim = "3 blocks are free: allocate_many(1) returns none that is in use"
    expect_that(twin != ids, claim, got=twin, expected=f"another block than {ids}")
    index.release(twin)
    expect(pool.num_free, 3, "the index holds the older block, not this one")
    index.release(ids)
    expect(index.num_free, 4, "all can be had")
    expect(index.match(tokens(5)), ids, "the older block is found")


class Books:
    """What must be true of an index, its pool and the sequences that run."""

    def __init__(self, exercise, num_blocks):
        self.pool = given_pool(exercise, num_blocks)
        self.index = exercise.PrefixIndex(self.pool, 2)
        self.running = []
        self.known = {}  # content -> block
        self.idle = []  # blocks that only the index holds, first to go first

    def start(self, prompt):
        contents = [tuple(prompt[:end]) for end in range(2, len(prompt) + 1, 2)]
        findable = contents[: (len(prompt) - 1) // 2]
        hits = [*itertools.takewhile(self.known.__contains__, findable)]
        ids = self.index.acquire(prompt)
        expect(ids, [self.known[content] for content in hits], "blocks that are found")
        self.idle = [block_id for block_id in self.idle if block_id not in ids]
        self.running.append(ids)
        missing = -(-len(prompt) // 2) - len(ids)
        can_be_had = self.pool.num_free + len(self.idle)
        if missing > can_be_had:
            claim = f"{missing} blocks wanted, {can_be_had} can be had"
            call = self.index.allocate_many
            expect_raises(OutOfBlocksError, call, missing, claim=claim)
            self.end(-1)
            return
        evicted = self.idle[: max(0, missing - self.pool.num_free)]
        new = self.index.allocate_many(missing)
        self.idle = self.idle[len(evicted) :]
        self.known = {c: b for c, b in self.known.items() if b not in evicted}
        others = {b for each in self.running for b in each} | set(self.known.values())
        fits = len(set(new)) == missing and others.isdisjoint(new)
        expected = f"{missing} blocks, none of {sorted(others)}: these are held"
        expect_that(fits, "blocks that nobody holds", got=new, expected=expected)
        ids += new
        self.index.publish(ids, prompt)
        for content, block_id in zip(contents, ids, strict=False):
            self.known.setdefault(content, block_id)

    def end(self, place):
        if not self.running:
            return
        ids = self.running.pop(place % len(self.running))
        self.index.release(ids)
        still = {b for each in self.running for b in each}
        known = self.known.values()
        self.idle += [b for b in reversed(ids) if b in known and b not in still]

    def agree(self):
        held = [b for each in self.running for b in each] + list(self.known.values())
        expected = [held.count(b) for b in range(self.pool.num_blocks)]
        claim = (
            f"ref_counts: sequences {self.running} and the index, which remembers "
            f"{sorted(self.known.values())}, hold the blocks"
        )
        expect(self.pool._counts, expected, claim)
        expected = self.pool.num_free + len(self.idle)
        expect(self.index.num_free, expected, "blocks that can be had")


@task("7.4")
@pytest.mark.parametrize("order", ["last freed first", "lowest first", "by chance"])
def test_the_books_agree_after_any_sequence_of_calls(exercise, order):
    """Whatever order the allocator hands out its free blocks in."""

    def choices(chance):
        if chance.random() < 0.4:
            return "end", chance.randrange(4)
        length = chance.choice([1, 2, 3, 4, 5, 6, 7])
        return "start", [chance.randrange(2) for _ in range(length)]

    def run_calls(calls):
        books, chance = Books(exercise, 7), random.Random(7)
        for name, argument in calls:
            if order == "lowest first":
                books.pool._free.sort(key=lambda block: -block.block_id)
            elif order == "by chance":
                chance.shuffle(books.pool._free)
            getattr(books, name)(argument)
            books.agree()

    walk(choices, run_calls, num_walks=6, length=24)


@task("7.4")
def test_the_steps_do_not_grow_with_the_pool(exercise):
    helper, kind = f"{HELPERS}:steps_of_eviction", exercise.PrefixIndex
    names = ("acquire", "allocate_many", "num_free", "publish", "release")
    small = measured(exercise, helper, kind, 20, names=names)
    large = measured(exercise, helper, kind, 1_000, names=names)
    for name, steps in small.items():
        if large[name] > 3 * steps + 100:
            fail(
                f"{name} takes as many steps in a large pool as in a small one",
                expected=f"about {steps} steps, as in a pool of 20 blocks",
                got=f"{large[name]} steps in a pool of 1,000: a loop over them?",
            )


@task("7.4")
def test_the_work_does_not_grow_with_the_pool(exercise):
    """Sees what C functions do. Only what is slow three times in a row is slow."""
    helper, kind = f"{HELPERS}:microseconds_of_use", exercise.PrefixIndex
    slow = []
    for _ in range(3):
        small, large = (
            measured(exercise, helper, kind, size, names=("acquire", "release"))
            for size in (100, 8_000)
        )
        slow = [name for name in small if large[name] > 5 * small[name] + 20]
        if not slow:
            return
    name = slow[0]
    fail(
        f"{name} does as much work in a large pool as in a small one",
        expected=f"about {small[name]:.1f} µs, as in a pool of 100 blocks",
        got=f"{large[name]:.1f} µs in a pool of 8,000: does it search, sort, copy, or "
        "move a whole list (`in`, remove, index, min)?",
    )


@task("7.4")
def test_the_index_does_not_grow_for_ever(exercise):
    helper = f"{HELPERS}:growth"
    names, kind = ("half way", "at the end"), exercise.PrefixIndex
    in_use = measured(exercise, helper, kind, 5_000, names=names)
    gained = in_use["at the end"] - in_use["half way"]
    if gained > 1_000:
        fail(
            "after 5,000 sequences in a pool of 6 blocks the index is no larger",
            expected="no more memory after 5,000 sequences than after 2,500",
            got=f"{gained:,} more pieces of memory: what was evicted is still kept?",
        )
