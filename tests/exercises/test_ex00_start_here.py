"""Exercise 00: one function, and the first meeting with the grader."""

from course.grader import expect, task


@task("0.1")
def test_one_token_needs_a_block_of_its_own(exercise):
    expect(exercise.blocks_needed(1, 16), 1, "even a single token needs a block")


@task("0.1")
def test_a_full_block_is_not_followed_by_an_empty_one(exercise):
    claim = "16 tokens fill one block of 16 exactly, a second one would stay empty"
    expect(exercise.blocks_needed(16, 16), 1, claim)


@task("0.1")
def test_no_tokens_need_no_block(exercise):
    expect(exercise.blocks_needed(0, 16), 0, "no token, no block")


@task("0.1")
def test_40_tokens_need_3_blocks_of_16(exercise):
    expect(exercise.blocks_needed(40, 16), 3, "two full blocks, one for the last 8")


@task("0.1")
def test_every_token_has_a_place_for_any_block_size(exercise):
    for block_size in (1, 2, 3, 16):
        for num_tokens in range(3 * block_size + 2):
            blocks = len(range(0, num_tokens, block_size))  # where each block starts
            claim = f"{num_tokens} tokens in blocks of {block_size}"
            expect(exercise.blocks_needed(num_tokens, block_size), blocks, claim)
