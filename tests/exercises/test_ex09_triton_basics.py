"""Exercise 09: against plain indexing. All sizes differ, and what is not to be read or
written is NaN."""

from math import prod

import torch

from course.grader import (
    Huge,
    ahead_of_time,
    compiled,
    expect_close,
    expect_that,
    kernel_run,
    on_gpu,
    rewrite_history,
    task,
)
from course.grader.failures import CheckFailed

NAN = float("nan")
# The first block that begins at element 2**31, and what a block of it is.
FAR, FAR_SHAPE = 4_194_304, (4, 2, 64)
# block_size, num_kv_heads, head_dim
SIZES = [(1, 2, 3), (16, 3, 20), (3, 5, 80), (12, 1, 33), (20, 33, 1), (2, 1, 272)]


def cases(exercise, name, *values):
    """One value after the other; a report tells of the one that failed alone."""
    for value in values:
        rewrite_history(exercise, [f"{name} = {value}"])
        yield value


def numbers(*shape, dtype=torch.float32):
    """1, 2, 3, …: each number tells where it comes from."""
    count = torch.Size(shape).numel()
    return torch.arange(1, count + 1, dtype=dtype).reshape(shape)


def expect_moved(got, expected, claim, **sources):
    """They are the same; else the first that isn't, and which number of sources it is.

    Each number of the sources is there once, or nearly so.
    """
    try:
        expect_close(got, expected, claim, atol=0)
    except CheckFailed as error:
        if got.shape == expected.shape and got.dtype == expected.dtype:
            is_wrong = (got != expected) & ~(got.isnan() & expected.isnan())
            at = is_wrong.nonzero()[0].tolist()
            stays = "NaN, as before: nothing is to be stored there"
            error.expected = whence(expected[tuple(at)], at, stays, sources)
            stays = "NaN, as before: nothing was stored there"
            error.got = whence(got[tuple(at)], at, stays, sources)
            error.got += f"; {int(is_wrong.sum())} of {got.numel()} elements are wrong"
        raise


def whence(number, at, if_nan, sources):
    """What is at this place, and which number of the sources that is."""
    told = if_nan if number.isnan() else f"{number.item():g}"
    for name, source in sources.items():
        for found in (source == number).nonzero()[:1].tolist():
            told += f", which is {name}{found} before the call"
    return f"at {at}: {told}"


def caches(num_blocks, block_size=5, num_kv_heads=3, head_dim=6, written=()):
    """Two caches of NaN, with numbers in the blocks that were written."""
    both = torch.full((2, num_blocks, block_size, num_kv_heads, head_dim), NAN)
    for i, block in enumerate(written):
        content = numbers(2, block_size, num_kv_heads, head_dim)
        both[:, block] = content + 1000 * i
    return both[0].clone(), both[1].clone()


def in_one_buffer(key_cache, value_cache):
    """K and V of a block side by side: neither of the two is contiguous."""
    both = torch.stack([key_cache, value_cache], dim=1)
    return both[:, 0], both[:, 1]


def with_gaps(tensor, axis):
    """The same numbers as a view of a wider tensor, whose other numbers are NaN."""
    shape = list(tensor.shape)
    shape[axis] += 2
    wide = torch.full(shape, NAN, dtype=tensor.dtype)
    view = wide.narrow(axis, 1, tensor.shape[axis])
    view.copy_(tensor)
    return view


def turned(tensor, *axes):
    """The same numbers, with the two axes the other way round in memory."""
    return tensor.transpose(*axes).contiguous().transpose(*axes)


# 9.1


def check_copy(exercise, n, m, dtype=torch.float32, backwards=False):
    source, destination = numbers(n, dtype=dtype), torch.full((m,), NAN, dtype=dtype)
    run = kernel_run(exercise.copy_vector, source, destination, backwards=backwards)
    expected = torch.cat([source, destination[n:]])
    claim = f"the first {n} of {m} numbers are those of source, the others still NaN"
    expect_moved(run.after(1), expected, claim, source=source)
    expect_close(run.after(0), source, "source stays as it is", atol=0)
    return run


@task("9.1")
def test_a_short_vector_is_copied(exercise):
    check_copy(exercise, 4, 4)
    check_copy(exercise, 3, 3)


@task("9.1")
def test_what_lies_behind_n_stays(exercise):
    check_copy(exercise, 5, 40)
    check_copy(exercise, 1, 2)


@task("9.1")
def test_a_vector_of_several_tiles_is_copied(exercise):
    for n in cases(exercise, "n", 1000, 1024, 9_001):
        check_several_tiles(exercise, n)


def check_several_tiles(exercise, n):
    check_copy(exercise, n, n + 3)
    run = check_copy(exercise, n, n, backwards=True)
    grids = [launch.grid for launch in run.launches]
    expect_that(
        n <= 1024 or not grids or sum(map(prod, grids)) > 1,
        f"{n:,} numbers are shared by several programs",
        got=f"one program: the launches have the grids {grids}",
        expected="a grid of cdiv(n, TILE) programs",
    )


@task("9.1")
def test_nothing_is_copied_from_an_empty_vector(exercise):
    check_copy(exercise, 0, 7)


@task("9.1")
def test_half_precision_is_copied(exercise):
    check_copy(exercise, 300, 333, torch.float16)


@task("9.1")
@ahead_of_time
def test_the_copy_compiles_for_a_gpu(exercise):
    compiled(exercise.copy_vector, numbers(1000), torch.zeros(1003))


@task("9.1")
@on_gpu
def test_the_copy_is_right_on_a_gpu(exercise):
    for n, m in [(3, 3), (5, 40), (0, 7), (4097, 4100)]:
        check_copy(exercise, n, m)


# 9.2


def check_blocks(exercise, caches, pairs, backwards=False):
    key_cache, value_cache = caches
    expected = [key_cache.clone(), value_cache.clone()]
    for source, destination in pairs:
        for cache in expected:
            cache[destination] = cache[source].clone()
    run = kernel_run(
        exercise.copy_pairs, key_cache, value_cache, pairs, backwards=backwards
    )
    for i, name in enumerate(["key_cache", "value_cache"]):
        claim = f"{name} is as after the copies {pairs}, one after the other"
        sources = {name: caches[i]}
        expect_moved(run.after(i), expected[i], claim, **sources)
    return run


@task("9.2")
def test_one_block_is_copied(exercise):
    check_blocks(exercise, caches(3, 1, 1, 1, written=[2]), [(2, 0)])
    check_blocks(exercise, caches(7, written=[2, 4]), [(2, 5)])


@task("9.2")
def test_without_pairs_nothing_is_copied(exercise):
    check_blocks(exercise, caches(3, written=[0]), [])


@task("9.2")
def test_pairs_that_do_not_meet_are_copied(exercise):
    check_blocks(exercise, caches(9, written=[7, 2, 4]), [(7, 1), (2, 8), (4, 0)])


@task("9.2")
def test_pairs_without_a_block_in_common_share_launches(exercise):
    pairs = [(7, 1), (2, 8), (4, 0), (9, 3), (5, 11), (6, 10)]
    sources = [source for source, _ in pairs]
    counts = []
    for some in (pairs[:1], pairs):
        pools = caches(12, 2, 1, 3, written=sources)
        counts.append(len(check_blocks(exercise, pools, some).launches))
    expect_that(
        counts[1] <= counts[0],
        f"{pairs} have no block in common and go into the same launches",
        got=f"{counts[1]} launches for the six pairs, {counts[0]} for the first alone",
        expected=f"{counts[0]} launches for six pairs as well",
    )


@task("9.2")
def test_blocks_of_any_size_are_copied(exercise):
    for sizes in cases(exercise, "block_size, num_kv_heads, head_dim", *SIZES):
        check_blocks(exercise, caches(4, *sizes, written=[3]), [(3, 1)])


@task("9.2")
def test_keys_and_values_of_one_buffer_are_copied(exercise):
    pools = in_one_buffer(*caches(7, written=[6, 1]))
    check_blocks(exercise, pools, [(6, 2), (1, 4)])


@task("9.2")
def test_caches_with_strides_of_their_own_are_copied(exercise):
    keys, values = caches(4, written=[3, 0])
    pools = with_gaps(keys, 3), with_gaps(turned(values, 1, 2), 2)
    check_blocks(exercise, pools, [(3, 1), (0, 2)])
    pools = turned(keys, 1, 3), values
    check_blocks(exercise, pools, [(3, 2)])


@task("9.2")
def test_pairs_that_meet_act_one_after_the_other(exercise):
    meeting = [
        [(0, 1), (1, 2)],
        [(1, 2), (0, 1)],
        [(0, 1), (2, 1)],
        [(0, 1), (1, 0)],
        [(1, 3), (0, 1), (2, 0), (3, 2)],
        [(2, 2), (2, 3)],
        [(0, 3), (0, 1), (0, 4)],
        [(0, 1), (2, 3), (1, 4)],
        [(0, 1), (2, 1), (0, 1)],
    ]
    for pairs in cases(exercise, "pairs", *meeting):
        for backwards in (False, True):
            pools = caches(5, 2, 1, 3, written=[0, 1, 2])
            check_blocks(exercise, pools, pairs, backwards)


@task("9.2")
def test_a_block_beyond_32_bits_is_copied(exercise):
    content, elsewhere = numbers(2, *FAR_SHAPE), torch.zeros(FAR_SHAPE)
    content = content.to(torch.float16)
    pools = [
        Huge((FAR + 1, *FAR_SHAPE), {0: elsewhere.to(torch.float16), FAR: part})
        for part in content
    ]
    run = kernel_run(exercise.copy_pairs, *pools, [(FAR, 0)])
    for i in range(2):
        claim = f"block 0 holds what block {FAR} holds"
        expect_close(run.after(i)[0], content[i], claim, atol=0)


@task("9.2")
@ahead_of_time
def test_the_copy_of_blocks_compiles_for_a_gpu(exercise):
    compiled(exercise.copy_pairs, *caches(4, 8, 3, 16), [(0, 1), (1, 2)])


@task("9.2")
@on_gpu
def test_the_copy_of_blocks_is_right_on_a_gpu(exercise):
    for pairs in [[(2, 5)], [(0, 1), (1, 2)], [(0, 1), (1, 0)], [(0, 1), (2, 1)]]:
        check_blocks(exercise, caches(7, written=[0, 1, 2]), pairs)
        pools = in_one_buffer(*caches(7, written=[0, 1, 2]))
        check_blocks(exercise, pools, pairs)


# 9.3


def check_write(exercise, slots, caches, new=None, backwards=False):
    key_cache, value_cache = caches
    _, block_size, *sizes = key_cache.shape
    key, value = new or numbers(2, len(slots), *sizes).unbind()
    expected = [key_cache.clone(), value_cache.clone()]
    for i, slot in enumerate(slots):
        if slot >= 0:
            place = slot // block_size, slot % block_size
            expected[0][place], expected[1][place] = key[i], value[i]
    slot_mapping = torch.tensor(slots, dtype=torch.int64)
    run = kernel_run(
        exercise.write_slots,
        *(key, value, key_cache, value_cache, slot_mapping),
        backwards=backwards,
    )
    for i, name in enumerate(["key_cache", "value_cache"]):
        claim = f"{name} has its token in each slot of {slots}, NaN in all others"
        expect_moved(run.after(2 + i), expected[i], claim, key=key, value=value)


@task("9.3")
def test_one_token_is_written(exercise):
    check_write(exercise, [0], caches(1, 1, 1, 1))
    check_write(exercise, [13], caches(4))


@task("9.3")
def test_tokens_are_scattered_over_blocks(exercise):
    check_write(exercise, [31, 4, 5, 17, 0], caches(7))
    check_write(exercise, [31, 4, 5, 17, 0], caches(7), backwards=True)


@task("9.3")
def test_a_slot_of_minus_one_is_skipped(exercise):
    check_write(exercise, [-1, 11, -1, 2], caches(4))
    check_write(exercise, [-1], caches(4))


@task("9.3")
def test_without_tokens_nothing_is_written(exercise):
    check_write(exercise, [], caches(2))


@task("9.3")
def test_blocks_of_any_size_are_written(exercise):
    for sizes in cases(exercise, "block_size, num_kv_heads, head_dim", *SIZES):
        check_write(exercise, [sizes[0] + 1, 0, 2 * sizes[0]], caches(4, *sizes))


@task("9.3")
def test_caches_of_one_buffer_are_written(exercise):
    check_write(exercise, [34, 7, -1, 12], in_one_buffer(*caches(7)))


@task("9.3")
def test_new_keys_with_strides_of_their_own_are_written(exercise):
    projected = numbers(4, 2, 3, 6)  # [num_tokens, key or value, heads, dim]
    new = projected[:, 0], projected[:, 1]
    check_write(exercise, [3, 9, 14, 6], caches(4), new)
    key, value = numbers(2, 4, 3, 6).unbind()
    new = turned(key, 0, 1), with_gaps(value, 2)
    pools = with_gaps(turned(caches(4)[0], 1, 2), 3), caches(4)[1]
    check_write(exercise, [3, 9, -1, 6], pools, new)


@task("9.3")
def test_a_slot_beyond_32_bits_is_written(exercise):
    shape = (FAR + 1, *FAR_SHAPE)
    pools = [Huge(shape, {FAR: torch.zeros(FAR_SHAPE).half()}) for _ in range(2)]
    key, value = numbers(2, 1, 2, 64).half().unbind()
    slots = torch.tensor([4 * FAR + 3])
    run = kernel_run(exercise.write_slots, key, value, *pools, slots)
    for i, new in enumerate((key, value)):
        expected = torch.zeros(FAR_SHAPE).half()
        expected[3] = new[0]
        claim = f"slot {int(slots[0])} is offset 3 of block {FAR}"
        expect_close(run.after(2 + i)[0], expected, claim, atol=0)


@task("9.3")
@ahead_of_time
def test_the_write_compiles_for_a_gpu(exercise):
    key, value = numbers(2, 4, 3, 16).unbind()
    made = compiled(
        exercise.write_slots,
        key,
        value,
        *caches(4, 8, 3, 16),
        torch.tensor([1, 2, -1, 0]),
    )
    spills = {kernel.kernel: kernel.spill_bytes for kernel in made}
    expect_that(
        not any(spills.values()),
        "the kernels need no more registers than there are",
        got=spills,
        expected="0 bytes spilled to memory",
    )


@task("9.3")
@on_gpu
def test_the_write_is_right_on_a_gpu(exercise):
    for pools in (caches(7), in_one_buffer(*caches(7))):
        check_write(exercise, [31, -1, 5, 17, 0], pools)
    check_write(exercise, [], caches(7))
