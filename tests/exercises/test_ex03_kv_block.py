"""Exercise 03: torch itself says where a number lies; all sizes differ on purpose."""

import itertools

import pytest
import torch

from course.grader import (
    expect,
    expect_close,
    expect_raises,
    expect_that,
    in_worker,
    rewrite_history,
    task,
)
from course.grader.failures import fail

HELPERS = "course.grader.helpers.ex03"
NHD = "block offset head dim"
HND = "block head offset dim"
ROTATED = "head block offset dim"
SIZES = {"block": 5, "offset": 4, "head": 3, "dim": 2}
LAYOUTS = [" ".join(axes) for axes in itertools.permutations(SIZES)]


def shape_of(layout):
    return [SIZES[axis] for axis in layout.split()]


def sizes_of(layout):
    return [(axis, SIZES[axis]) for axis in layout.split()]


# 3.1


@task("3.1")
def test_neighbours_along_the_last_axis_are_one_apart(exercise):
    got = exercise.dense_strides("dim", {"dim": 7})
    expect(got, {"dim": 1}, "a layout of one axis has stride 1")


@task("3.1")
def test_an_outer_axis_steps_over_all_inner_ones(exercise):
    got = exercise.dense_strides("head dim", {"dim": 7, "head": 3})
    expect(got, {"head": 7, "dim": 1}, "from one head to the next are 7 numbers")


@task("3.1")
def test_dense_strides_are_those_of_torch(exercise):
    for layout in LAYOUTS:
        strides = torch.empty(shape_of(layout)).stride()
        expected = dict(zip(layout.split(), strides, strict=True))
        expect(exercise.dense_strides(layout, SIZES), expected, f"layout {layout!r}")


def offset(exercise, slot, head, dim, strides):
    return exercise.element_offset(slot, head, dim, SIZES, strides)


@task("3.1")
def test_the_first_number_lies_at_the_start(exercise):
    strides = {"block": 24, "offset": 6, "head": 2, "dim": 1}
    expect(offset(exercise, 0, 0, 0, strides), 0, "slot 0, head 0, number 0")


@task("3.1")
def test_a_slot_is_a_block_and_an_offset(exercise):
    strides = {"block": 1000, "offset": 100, "head": 10, "dim": 1}
    expect(offset(exercise, 3, 0, 0, strides), 300, "slot 3: block 0, offset 3")
    expect(offset(exercise, 4, 0, 0, strides), 1000, "slot 4: block 1, offset 0")
    expect(offset(exercise, 7, 2, 1, strides), 1321, "slot 7: block 1, offset 3")


@task("3.1")
@pytest.mark.parametrize("layout", [NHD, HND, "dim block head offset"])
def test_every_number_is_found_where_torch_puts_it(exercise, layout):
    """Blocks are padded: a buffer with room for more than the sizes say."""
    axes = layout.split()
    wide = torch.arange(10_000)[: 6 * 5 * 4 * 3].view(
        *(SIZES[axis] + 1 for axis in axes)
    )
    strides = dict(zip(axes, wide.stride(), strict=True))
    in_order = wide.permute([axes.index(axis) for axis in NHD.split()])
    for slot, head, dim in [(0, 1, 0), (1, 0, 1), (5, 2, 1), (14, 1, 1), (19, 2, 1)]:
        expected = int(in_order[slot // 4, slot % 4, head, dim])
        claim = f"layout {layout!r}, with a gap after each axis"
        expect(offset(exercise, slot, head, dim, strides), expected, claim)


@task("3.1")
def test_what_does_not_exist_has_no_offset(exercise):
    strides = {"block": 24, "offset": 6, "head": 2, "dim": 1}
    claim = "there are 20 slots, 3 heads and 2 numbers; all count from 0"
    call = exercise.element_offset
    beyond = [(20, 0, 0), (0, 3, 0), (0, 0, 2), (-1, 0, 0), (0, -1, 0), (0, 0, -1)]
    for slot, head, dim in beyond:
        rewrite_history(exercise)
        expect_raises(IndexError, call, slot, head, dim, SIZES, strides, claim=claim)


# 3.2


def numbered(layout):
    """Numbers that tell where they belong: 1000 * block + 100 * offset + …"""
    weight = {"block": 1000, "offset": 100, "head": 10, "dim": 1}
    tensor = torch.empty(shape_of(layout))
    for index in itertools.product(*map(range, tensor.shape)):
        parts = zip(layout.split(), index, strict=True)
        tensor[index] = sum(weight[axis] * i for axis, i in parts)
    return tensor


def converted(exercise, tensor, source, target, half=None):
    """What the result and the tensor look like beside each other in the worker."""
    helper, convert = f"{HELPERS}:convert_and_look", exercise.convert_layout
    given = "tensor" if half is None else f"both[:, {half}]"
    story = [
        f"{given.partition('[')[0]} has the shape {list(tensor.shape)}",
        f"result = convert_layout({given}, {source!r}, {target!r})",
        "result.zero_()",
    ]
    try:
        return in_worker(exercise, helper, convert, tensor, source, target, half)
    finally:
        rewrite_history(exercise, story)


@task("3.2")
def test_two_axes_change_places(exercise):
    matrix = torch.tensor([[1, 2, 3], [4, 5, 6]])
    got = exercise.convert_layout(matrix, "head dim", "dim head")
    expect(got.tolist(), [[1, 4], [2, 5], [3, 6]], "a matrix and its transpose")


@task("3.2")
def test_every_number_keeps_its_indices(exercise):
    for source, target in [
        (NHD, HND),
        (HND, NHD),
        (NHD, ROTATED),
        (ROTATED, NHD),
        (HND, "dim offset head block"),
    ]:
        rewrite_history(exercise)
        got = exercise.convert_layout(numbered(source), source, target)
        claim = f"from {source!r} to {target!r}: each axis keeps its size"
        expect([*zip(target.split(), got.shape, strict=False)], sizes_of(target), claim)
        claim = (
            f"from {source!r} to {target!r}: the number 1000 * block + 100 * offset + "
            "10 * head + dim keeps its indices"
        )
        expect_close(got, numbered(target), claim, atol=0)


@task("3.2")
def test_the_dtype_stays(exercise):
    for dtype in (torch.float16, torch.int64, torch.float64):
        got = exercise.convert_layout(numbered(NHD).to(dtype), NHD, HND)
        expect_close(got, numbered(HND).to(dtype), f"{dtype} in and out", atol=0)


@task("3.2")
def test_the_result_is_contiguous(exercise):
    for source, target in [(NHD, HND), (NHD, ROTATED), (HND, HND)]:
        seen = converted(exercise, numbered(source), source, target)
        expect_contiguous(seen, source, target)


def expect_contiguous(seen, source, target):
    """No size here is 1, so a contiguous tensor has just these strides."""
    claim = f"from {source!r} to {target!r}: strides of the result, which is contiguous"
    expect(seen["strides"], list(torch.empty(shape_of(target)).stride()), claim)


@task("3.2")
def test_the_result_has_memory_of_its_own(exercise):
    for target in (HND, NHD):
        seen = converted(exercise, numbered(NHD), NHD, target)
        claim = f"from {NHD!r} to {target!r}: the result has memory of its own"
        if seen["changed"]:
            got = f"result.zero_() has changed {seen['changed']} numbers of tensor"
            fail(claim, expected="writing to result leaves tensor as it was", got=got)


@task("3.2")
def test_a_view_of_a_larger_buffer_is_converted(exercise):
    both = torch.stack([numbered(NHD), -numbered(NHD)], dim=1)
    for target in (HND, NHD):
        seen = converted(exercise, both, NHD, target, 1)
        claim = (
            "both[:, 1], the V half of a buffer whose blocks hold K and V: -(1000 * "
            "block + 100 * offset + 10 * head + dim)"
        )
        expect_close(seen["values"], -numbered(target), claim, atol=0)
        expect_contiguous(seen, NHD, target)


@task("3.2")
def test_other_axes_are_refused(exercise):
    call = exercise.convert_layout
    for target in ("block offset head", "block offset head layer"):
        claim = f"{NHD!r} cannot become {target!r}"
        expect_raises(ValueError, call, numbered(NHD), NHD, target, claim=claim)


# 3.3


@task("3.3")
def test_a_row_that_fits_needs_no_padding(exercise):
    got = exercise.aligned_stride(8, 2, 16)
    expect(got, 8, "8 elements of 2 bytes are 16 bytes, a multiple of 16 already")


@task("3.3")
def test_one_element_more_needs_padding(exercise):
    got = exercise.aligned_stride(9, 2, 16)
    expect(got, 16, "9 elements are 18 bytes; the next multiple of 16 is 32 bytes")


@task("3.3")
def test_large_elements_are_aligned_by_themselves(exercise):
    got = exercise.aligned_stride(3, 8, 4)
    expect(got, 3, "every multiple of 8 bytes is a multiple of 4")


@task("3.3")
def test_elements_and_alignment_may_fit_badly(exercise):
    got = exercise.aligned_stride(5, 6, 16)
    claim = "5 elements are 30 bytes; 6 are 36, 7 are 42, 8 are 48, a multiple of 16"
    expect(got, 8, claim)


@task("3.3")
def test_the_stride_is_the_smallest_for_all_sizes(exercise):
    for element_bytes, alignment in [(1, 1), (2, 128), (4, 16), (12, 32), (6, 9)]:
        for num_elements in (1, 2, 7, 8, 31, 32, 33, 80):
            stride = num_elements
            while stride * element_bytes % alignment:
                stride += 1
            got = exercise.aligned_stride(num_elements, element_bytes, alignment)
            claim = (
                f"{num_elements} elements of {element_bytes} bytes, {alignment} apart"
            )
            expect(got, stride, claim)


@task("3.3")
def test_a_start_is_no_better_aligned_than_the_buffer(exercise):
    expect(exercise.start_alignment(64, []), 64, "no axis: the buffer's start alone")
    expect(exercise.start_alignment(64, [256]), 64, "64 + 256 is a multiple of 64 only")


@task("3.3")
def test_a_start_is_no_better_aligned_than_a_stride(exercise):
    expect(
        exercise.start_alignment(64, [24]), 8, "64, 64 + 24, 64 + 48: multiples of 8"
    )


@task("3.3")
def test_strides_that_are_not_powers_of_two(exercise):
    claim = "512, 512 + 96, 512 + 80, 512 + 96 + 80, …: multiples of 16"
    expect(exercise.start_alignment(512, [96, 80]), 16, claim)
    expect(exercise.start_alignment(360, [48, 180]), 12, "divisors of 360, 48 and 180")


# 3.4

LAYERS, BLOCKS, SIZE, HEADS, DIM = 2, 5, 4, 3, 6
BLOCK = SIZE * HEADS * DIM  # numbers in the keys of one block
NAMES = ("key_cache", "value_cache")


def new_buffer(exercise):
    return exercise.KVBuffer(LAYERS, BLOCKS, SIZE, HEADS, DIM)


def cache_of(buffer, layer, name):
    return buffer.key_cache(layer) if name == "key_cache" else buffer.value_cache(layer)


def places(exercise):
    """Where each view lies; the report says it in words."""
    buffer = new_buffer(exercise)
    story = [f"buffer = KVBuffer({LAYERS}, {BLOCKS}, {SIZE}, {HEADS}, {DIM})"]
    try:
        found = in_worker(exercise, f"{HELPERS}:places", buffer, LAYERS)
    finally:
        rewrite_history(exercise, story)
    order = [(place["layer"], place["name"]) for place in found]
    expect(order, [*itertools.product(range(LAYERS), NAMES)], "a place for each view")
    rewrite_history(exercise, [*story, *map(in_words, found)])
    return found


def in_words(place):
    where = f"starts at number {place['start']}"
    if not place["same_storage"]:
        where = "lies in a storage of its own,"
    name, strides = f"{place['name']}({place['layer']})", place["strides"]
    return f"buffer.{name} {where} with strides {strides}"


@task("3.4")
def test_a_new_buffer_is_zeros(exercise):
    zeros = torch.zeros(BLOCKS, SIZE, HEADS, DIM)
    buffer = new_buffer(exercise)
    axes = "[num_blocks, block_size, num_kv_heads, head_dim] of a new buffer, float32"
    expect_close(buffer.key_cache(0), zeros, f"keys {axes}", atol=0)
    expect_close(buffer.value_cache(0), zeros, f"values {axes}", atol=0)


@task("3.4")
def test_all_views_share_one_storage(exercise):
    for place in places(exercise):
        if not place["same_storage"]:
            fail(
                "all views share one storage",
                expected="the views of all layers lie in the storage of key_cache(0)",
                got=f"{place['name']}({place['layer']}) lies in another one: a copy, "
                "or a tensor of its own",
            )


@task("3.4")
def test_the_storage_holds_keys_and_values_and_nothing_else(exercise):
    claim = "bytes of the storage: 2 halves of all blocks in float32"
    expected = 2 * LAYERS * BLOCKS * BLOCK * 4
    expect(places(exercise)[0]["storage_bytes"], expected, claim)


def put_number(exercise, buffer, name, layer, place):
    helper = f"{HELPERS}:put_number"
    story = [
        f"buffer = KVBuffer({LAYERS}, {BLOCKS}, {SIZE}, {HEADS}, {DIM})",
        f"buffer.{name}({layer})[{', '.join(map(str, place))}] = 7.0",
    ]
    try:
        in_worker(exercise, helper, buffer, name, layer, place, 7.0)
    finally:
        rewrite_history(exercise, story)


@task("3.4")
def test_writing_to_a_view_changes_the_buffer(exercise):
    for layer, name in itertools.product(range(LAYERS), NAMES):
        buffer = new_buffer(exercise)
        place = (2, 3, 1, 5)
        put_number(exercise, buffer, name, layer, place)
        for other_layer, other_name in itertools.product(range(LAYERS), NAMES):
            expected = torch.zeros(BLOCKS, SIZE, HEADS, DIM)
            if (other_layer, other_name) == (layer, name):
                expected[2, 3, 1, 5] = 7.0
            claim = f"after {name}({layer})[2, 3, 1, 5] = 7.0"
            got = cache_of(buffer, other_layer, other_name)
            expect_close(got, expected, f"{claim}: {other_name}({other_layer})", atol=0)


@task("3.4")
def test_rows_of_a_block_lie_without_gaps(exercise):
    for place in places(exercise):
        claim = f"strides of {place['name']}({place['layer']}) for offset, head and dim"
        expect(place["strides"][1:], [HEADS * DIM, DIM, 1], claim)


@task("3.4")
def test_the_values_of_a_block_follow_its_keys(exercise):
    seen = {(place["layer"], place["name"]): place for place in places(exercise)}
    for layer in range(LAYERS):
        keys, values = seen[layer, "key_cache"], seen[layer, "value_cache"]
        claim = (
            f"numbers from the first key to the first value of a block, layer {layer}"
        )
        expect(values["start"] - keys["start"], BLOCK, claim)
        strides = [keys["strides"][0], values["strides"][0]]
        expect_that(
            strides[0] == strides[1],
            "in each block the values are as far behind the keys",
            got=strides,
            expected="the same stride from block to block for keys and values",
        )


@task("3.4")
@pytest.mark.parametrize("slots", [[0], [4], [7, 8, 3], [19, 2, 11, 10, 1]])
def test_written_tokens_are_read_at_their_slots(exercise, slots):
    buffer = new_buffer(exercise)
    one = 10 * torch.arange(HEADS)[:, None] + torch.arange(DIM)  # of slot 0
    key = torch.stack([1000.0 + 100 * slot + one for slot in slots])
    buffer.write(1, slots, key, -key)
    expected = torch.zeros(BLOCKS, SIZE, HEADS, DIM)
    for token, slot in enumerate(slots):
        expected[slot // SIZE, slot % SIZE] = key[token]
    claim = (
        f"slot s is block s // {SIZE}, offset s % {SIZE}; key[t] is 1000 + 100 * "
        "slots[t] + 10 * head + dim at [block, offset, head, dim]"
    )
    expect_written(buffer.key_cache(1), expected, f"{claim}: the keys")
    claim += ", value[t] the same below 0"
    expect_written(buffer.value_cache(1), -expected, f"{claim}: the values")


def expect_written(cache, expected, claim):
    if isinstance(cache, torch.Tensor) and expected.any() and not cache.any():
        text = "zeros only: nothing has arrived. Was a copy written to?"
        fail(claim, expected="what was written", got=text)
    expect_close(cache, expected, claim, atol=0)


@task("3.4")
def test_a_write_leaves_the_rest_alone(exercise):
    buffer = new_buffer(exercise)
    ones = torch.ones(2, HEADS, DIM)
    buffer.write(0, [5, 6], ones, ones)
    buffer.write(0, [6, 7], 2 * ones, 3 * ones)
    key = torch.zeros(BLOCKS, SIZE, HEADS, DIM)
    key[1, 1], key[1, 2], key[1, 3] = 1.0, 2.0, 2.0
    value = torch.where(key == 2.0, 3.0, key)
    expect_written(buffer.key_cache(0), key, "slot 5 keeps its first key")
    expect_written(buffer.value_cache(0), value, "slot 5 keeps its first value")
    empty = torch.zeros(BLOCKS, SIZE, HEADS, DIM)
    expect_close(buffer.key_cache(1), empty, "nothing was written to layer 1", atol=0)


@task("3.4")
def test_a_layer_that_does_not_exist_is_refused(exercise):
    buffer = new_buffer(exercise)
    claim = f"there are {LAYERS} layers, 0 and 1"
    for layer in (LAYERS, -1):
        expect_raises(IndexError, buffer.key_cache, layer, claim=claim)
        expect_raises(IndexError, buffer.value_cache, layer, claim=claim)
