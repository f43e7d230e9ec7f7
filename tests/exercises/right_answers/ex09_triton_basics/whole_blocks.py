"""Large tiles: a block, or several tokens, in one program; two launches at most when
the pairs allow it."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def copy_rows(
    source, destination, n, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):  # a vector, looked at as a table
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    place = row[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    value = tl.load(source + place, mask=place < n, other=float("nan"))
    tl.store(destination + place, value, mask=place < n)


def copy_vector(source, destination):
    n = source.shape[0]
    rows, columns = 2, 16
    grid = (max(1, -(-n // (rows * columns))), 1)
    copy_rows[grid](source, destination, n, ROWS=rows, COLUMNS=columns, num_warps=1)


@triton.jit
def move(
    from_ptr,
    to_ptr,
    from_starts_ptr,  # [n]   int64: element at which the piece begins; -1 skips it
    to_starts_ptr,
    rows,
    heads,
    dims,
    from_row,
    from_head,
    from_dim,
    to_row,
    to_head,
    to_dim,
    ROWS: tl.constexpr,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
):
    """Program i moves a piece of rows, heads and dims."""
    i = tl.program_id(0)
    start, target = tl.load(from_starts_ptr + i), tl.load(to_starts_ptr + i)
    row = tl.arange(0, ROWS)[:, None, None]
    head = tl.arange(0, HEADS)[None, :, None]
    dim = tl.arange(0, DIMS)[None, None, :]
    inside = (row < rows) & (head < heads) & (dim < dims) & (target >= 0)
    place = row * from_row + head * from_head + dim * from_dim
    value = tl.load(from_ptr + start + place, mask=inside, other=0.0)
    place = row * to_row + head * to_head + dim * to_dim
    tl.store(to_ptr + target + place, value, mask=inside)


def start_moves(source, destination, starts, targets, rows, from_row, to_row):
    heads, dims = source.shape[-2:]
    up = triton.next_power_of_2
    device = source.device
    move[(len(starts),)](
        source,
        destination,
        torch.tensor(starts, dtype=torch.int64, device=device),
        torch.tensor(targets, dtype=torch.int64, device=device),
        rows,
        heads,
        dims,
        from_row,
        *source.stride()[-2:],
        to_row,
        *destination.stride()[-2:],
        ROWS=up(rows),
        HEADS=up(heads),
        DIMS=up(dims),
    )


def copy_pairs(
    key_cache: Tensor, value_cache: Tensor, pairs: list[tuple[int, int]]
) -> None:
    """Where each block's content comes from in the end; through a copy if they meet."""
    holds: dict[int, int] = {}
    for source, destination in pairs:
        holds[destination] = holds.get(source, source)
    todo = [(source, block) for block, source in holds.items() if source != block]
    if not todo:
        return
    size, heads, dims = key_cache.shape[1:]
    for cache in (key_cache, value_cache):
        block, row = cache.stride()[:2]
        scratch = torch.empty(
            (len(todo), size, heads, dims), dtype=cache.dtype, device=cache.device
        )
        here = [i * size * heads * dims for i in range(len(todo))]
        came = [source * block for source, _ in todo]
        goes = [destination * block for _, destination in todo]
        start_moves(cache, scratch, came, here, size, row, heads * dims)
        start_moves(scratch, cache, here, goes, size, heads * dims, row)


def write_slots(
    key: Tensor,
    value: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    slot_mapping: Tensor,
) -> None:
    for new, cache in ((key, key_cache), (value, value_cache)):
        starts, targets = [], []
        for i, slot in enumerate(slot_mapping.tolist()):
            block, offset = divmod(slot, cache.shape[1])
            place = block * cache.stride(0) + offset * cache.stride(1)
            starts.append(i * new.stride(0))
            targets.append(place if slot >= 0 else -1)
        if starts:
            start_moves(new, cache, starts, targets, 1, 0, 0)
