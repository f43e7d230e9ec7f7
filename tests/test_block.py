import pytest

from paged_attention.block import KVBlock, num_blocks_for


@pytest.mark.parametrize(
    ("num_tokens", "num_blocks"), [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (33, 3)]
)
def test_the_last_block_may_be_partly_filled(num_tokens, num_blocks):
    assert num_blocks_for(num_tokens, block_size=16) == num_blocks


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_blocks_cover_the_tokens_and_one_less_would_not(block_size):
    for num_tokens in range(1, 100):
        num_blocks = num_blocks_for(num_tokens, block_size)
        assert (num_blocks - 1) * block_size < num_tokens <= num_blocks * block_size


def test_negative_num_tokens_is_refused():
    with pytest.raises(ValueError, match="num_tokens must be >= 0, got -1"):
        num_blocks_for(-1, 16)


def test_block_size_zero_is_refused():
    with pytest.raises(ValueError, match="block_size must be >= 1, got 0"):
        num_blocks_for(1, 0)


def test_a_new_block_is_free():
    assert KVBlock(block_id=3).ref_count == 0
