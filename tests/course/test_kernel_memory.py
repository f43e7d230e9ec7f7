"""Which accesses of a kernel are those of its tensors."""

import random

import numpy as np
import pytest
import torch

from course.grader.kernel_memory import Extent

DTYPES = (torch.uint8, torch.float16, torch.float32, torch.int64)


def random_view(rng: random.Random) -> torch.Tensor:
    """A part of a larger tensor: with steps and gaps, its axes in any order."""
    shape = [rng.randint(1, 5) for _ in range(rng.randint(1, 3))]
    cut = [slice(rng.randrange(size), None, rng.randint(1, 2)) for size in shape]
    view = torch.zeros(shape, dtype=rng.choice(DTYPES))[tuple(cut)]
    view = view.permute(rng.sample(range(view.dim()), view.dim()))
    return view.unsqueeze(0).expand(2, *view.shape) if rng.random() < 0.2 else view


def bytes_of(view: torch.Tensor) -> set[int]:
    """The addresses of all bytes of its elements, one by one."""
    width, start = view.element_size(), view.untyped_storage().data_ptr()
    strides, first = view.stride(), view.storage_offset()
    return {
        start + (first + sum(map(int.__mul__, index, strides))) * width + byte
        for index in np.ndindex(*view.shape)
        for byte in range(width)
    }


@pytest.mark.parametrize("seed", range(20))
def test_an_access_is_right_if_all_its_bytes_belong_to_elements(seed):
    rng = random.Random(seed)
    for _ in range(10):
        view = random_view(rng)
        extent, owned = Extent("x_ptr", view), bytes_of(view)
        addresses = np.arange(min(owned) - 9, max(owned) + 9, dtype=np.int64)
        # As wide as an element, or narrower: through a pointer that was cast.
        for width in {1, view.element_size()}:
            expected = [owned.issuperset(range(a, a + width)) for a in addresses]
            assert extent.holds(addresses, width).tolist() == expected, view.stride()


def test_a_tensor_without_elements_holds_nothing():
    extent = Extent("x_ptr", torch.zeros(0, 4))
    assert not extent.holds(np.array([extent.start]), 4).any()
