"""Looks before it acts: nothing is done that would have to be undone."""

from collections import defaultdict

from paged_attention.errors import OutOfBlocksError, SharedBlockError


def fork_table(table):
    pool = table.allocator
    held = [block for block in table.block_ids if block is not None]
    for block in held:
        if pool.ref_count(block) == 0:
            raise ValueError(f"block {block} is not held by anybody")
    for block in held:
        pool.share(block)
    kind = type(table)
    return kind(pool, table.block_size, table.block_ids, num_tokens=table.num_tokens)


def copy_before_write(table):
    used = table.num_tokens % table.block_size
    tail = table.block_ids[-1] if used else None
    if tail is None or table.allocator.ref_count(tail) < 2:
        return []
    pair = tail, table.allocator.allocate_many(1)[0]
    table.replace(table.num_blocks - 1, pair[1])
    return [pair]


def freed_by_each(tables, order):
    """Who is the last to hold a block? It is freed by that one."""
    stays = {
        block for i, blocks in enumerate(tables) if i not in order for block in blocks
    }
    freed = []
    for step, i in enumerate(order):
        later = {block for j in order[step + 1 :] for block in tables[j]}
        freed.append({b for b in tables[i] if b is not None} - stays - later)
    return freed


def impossible_blocks(tables, tokens, block_size):
    """Compares each two places of a block."""
    places = defaultdict(list)
    for sequence, blocks in enumerate(tables):
        for i, block in enumerate(blocks):
            places[block].append((sequence, i))
    return {
        block
        for block, held in places.items()
        if any(
            i != j or not agree(tokens[a], tokens[b], (i + 1) * block_size)
            for a, i in held
            for b, j in held
        )
    }


def agree(one, two, end):
    shorter = min(len(one), len(two), end)
    return one[:shorter] == two[:shorter]


def check_sharing(allocator_class, table_class, fork, copy_on_write):
    """Short scenes, each written down as what must be seen."""
    for order in ([0, 1], [1, 0]):
        pool = allocator_class(6)
        a = table_class(pool, 2)
        a.append_tokens(3)
        first, second = a.block_ids
        b = fork(a)
        assert a.block_ids == b.block_ids == [first, second]
        assert [pool.ref_count(first), pool.ref_count(second)] == [2, 2], "shared"
        assert pool.num_free == 4
        for table in (a, b):
            try:
                table.append_tokens(1)
                refused = False
            except SharedBlockError:
                refused = True
            assert refused, "both still read the last block"
            assert pool.num_free == 4, "refused: nothing is taken"
        [(source, copy)] = copy_on_write(b)
        assert (source, b.block_ids) == (second, [first, copy])
        assert a.block_ids == [first, second], "the parent keeps its list"
        assert [pool.ref_count(i) for i in (first, second, copy)] == [2, 1, 1]
        b.append_tokens(2)
        assert a.num_blocks == 2 and b.num_blocks == 3
        gone, left = ([a, b][i] for i in order)
        kept = left.block_ids
        gone.free()
        assert all(pool.ref_count(i) == 1 for i in kept), "the other table lives on"
        new = table_class(pool, 2)
        new.append_tokens(2)
        assert new.block_ids[0] not in kept
        gone.free()
        assert pool.ref_count(new.block_ids[0]) == 1, "freed twice"
        left.free()
        new.free()
        assert pool.num_free == 6, "all is given back"

    pool = allocator_class(1)
    a = table_class(pool, 2)
    a.append_tokens(1)
    b = fork(a)
    try:
        copy_on_write(b)
    except OutOfBlocksError:
        assert pool.ref_count(0) == 2 and b.block_ids == [0], "out of blocks"
    else:
        raise AssertionError("no block could be had")

    pool = allocator_class(2)
    block = pool.allocate()
    pool.share(block)
    a = table_class(pool, 2, [block] * 2, 4)
    b = fork(a)
    a.free()
    b.free()
    assert pool.num_free == 2, "a block at two places"
