import pytest

from paged_attention.config import CacheConfig

LLAMA_3_8B = CacheConfig(num_layers=32, num_kv_heads=8, head_dim=128)


def test_token_of_llama_3_8b_takes_128_kib():
    assert LLAMA_3_8B.token_bytes == 131_072


def test_block_of_16_tokens_32_heads_32_layers_takes_8_mib():
    config = CacheConfig(num_layers=32, num_kv_heads=32, head_dim=128)
    assert config.block_bytes == 8_388_608


@pytest.mark.parametrize(("dtype", "size"), [("float16", 2), ("float32", 4)])
def test_a_token_is_one_key_and_one_value_per_kv_head_and_layer(dtype, size):
    config = CacheConfig(3, num_kv_heads=5, head_dim=7, dtype=dtype)
    assert config.token_bytes == 2 * 3 * 5 * 7 * size


def test_cache_bytes_is_the_sum_of_its_blocks():
    config = CacheConfig(3, 5, 7, num_blocks=11, block_size=13)
    assert config.cache_bytes == 11 * 13 * config.token_bytes


@pytest.mark.parametrize("spare", [0, 1, 2_097_151])
def test_memory_that_holds_7_blocks_and_a_bit_gives_7_blocks(spare):
    assert LLAMA_3_8B.block_bytes == 2_097_152
    assert LLAMA_3_8B.with_memory(7 * 2_097_152 + spare).num_blocks == 7


def test_with_memory_changes_nothing_else():
    config = CacheConfig(3, 5, 7, num_blocks=2, block_size=13, dtype="bfloat16")
    sized = config.with_memory(10**6)
    assert sized == CacheConfig(
        3, 5, 7, num_blocks=sized.num_blocks, block_size=13, dtype="bfloat16"
    )


def test_memory_for_less_than_a_block_is_refused_with_both_numbers():
    with pytest.raises(ValueError, match=r"2097152 bytes, got 2097151"):
        LLAMA_3_8B.with_memory(2_097_151)


@pytest.mark.parametrize("value", [0, -1, 2.0, True, "8"])
@pytest.mark.parametrize(
    "name", ["num_layers", "num_kv_heads", "head_dim", "block_size"]
)
def test_a_size_that_is_no_positive_integer_is_refused_by_name(name, value):
    sizes = {"num_layers": 1, "num_kv_heads": 1, "head_dim": 1, name: value}
    with pytest.raises(ValueError, match=rf"{name} must be an integer >= 1, got "):
        CacheConfig(**sizes)


def test_negative_num_blocks_is_refused():
    with pytest.raises(ValueError, match="num_blocks must be an integer >= 0, got -1"):
        CacheConfig(1, 1, 1, num_blocks=-1)


def test_unknown_dtype_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"float16, bfloat16.*got 'int8'"):
        CacheConfig(1, 1, 1, dtype="int8")


def test_memory_that_is_no_integer_is_refused_by_its_name():
    with pytest.raises(
        ValueError, match=r"memory_bytes must be an integer .* got 16000000000"
    ):
        LLAMA_3_8B.with_memory(16e9)
