"""Takes first and gives back what was not needed; the hunt is a long random walk."""

import random
from contextlib import suppress

from paged_attention.errors import OutOfBlocksError, SharedBlockError


def fork_table(table):
    ids = table.block_ids
    child = type(table)(
        allocator=table.allocator,
        block_size=table.block_size,
        block_ids=ids,
        num_tokens=table.num_tokens,
    )
    done = []
    for block in ids:
        if block is None:
            continue
        try:
            child.allocator.share(block)
        except ValueError:
            for each in done:
                child.allocator.free(each)
            raise
        done.append(block)
    return child


def copy_before_write(table):
    pool = table.allocator
    whole, rest = divmod(table.num_tokens, table.block_size)
    if not rest:
        return []
    old = table.translate(whole)
    try:
        new = pool.allocate()
    except OutOfBlocksError:
        if pool.ref_count(old) > 1:
            raise
        return []
    if pool.ref_count(old) == 1:
        pool.free(new)
        return []
    table.replace(whole, new)
    return [(old, new)]


def freed_by_each(tables, order):
    left = [list(blocks) for blocks in tables]
    result = []
    for i in order:
        mine, left[i] = left[i], []
        still = {block for blocks in left for block in blocks} | {None}
        result.append(set(mine) - still)
    return result


def impossible_blocks(tables, tokens, block_size):
    """Writes every sequence down row by row; whoever has to overwrite gives it away."""
    rows, wrong = {}, set()
    for blocks, ids in zip(tables, tokens, strict=True):
        history = ""
        for position, token in enumerate(ids):
            history += f"{token} "
            block = blocks[position // block_size]
            place = block, position % block_size
            if rows.setdefault(place, history) != history:
                wrong.add(block)
    return wrong


def check_sharing(allocator_class, table_class, fork, copy_on_write):
    for seed in range(12):
        walk(random.Random(seed), allocator_class, table_class, fork, copy_on_write)


def walk(chance, allocator_class, table_class, fork, copy_on_write):
    pool = allocator_class(5)
    tables = [table_class(pool, 2) for _ in range(2)]
    models = [[], []]
    double = pool.allocate()
    pool.share(double)
    tables.append(table_class(pool, 2, [double, double], 4))
    models.append([double, double])
    for _ in range(25):
        i = chance.randrange(len(tables))
        table, model = tables[i], models[i]
        action = chance.choice(["fork", "append", "append", "write", "free"])
        if action == "fork" and len(tables) < 5:
            tables.append(fork(table))
            models.append(list(model))
        elif action == "append":
            with suppress(OutOfBlocksError):
                append(table, pool)
                models[i] = table.block_ids
                assert table.block_ids[: len(model)] == model, "it only grows"
        elif action == "write":
            with suppress(OutOfBlocksError):
                pairs = copy_on_write(table)
                assert [pair[0] for pair in pairs] == model[-1:] * len(pairs)
                models[i] = model[: len(model) - len(pairs)] + [p[1] for p in pairs]
                append(table, pool)
                assert table.block_ids[: len(model)] == models[i]
                models[i] = table.block_ids
        elif action == "free":
            table.free()
            models[i] = []
        held = [block for blocks in models for block in blocks]
        assert [each.block_ids for each in tables] == models, f"after {action}"
        assert [pool.ref_count(b) for b in range(5)] == [
            held.count(b) for b in range(5)
        ]
        assert pool.num_free == 5 - len(set(held)), f"free after {action}"


def append(table, pool):
    shared = table.num_tokens % 2 and pool.ref_count(table.block_ids[-1]) > 1
    try:
        table.append_tokens(1)
    except SharedBlockError:
        assert shared, "nobody else reads it"
    else:
        assert not shared, "others read it"
