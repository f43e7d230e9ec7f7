"""Right in another way: a tree of halves, the upper half first; gaps by sorting."""

from dataclasses import dataclass

from paged_attention.errors import DoubleFreeError, OutOfBlocksError


@dataclass(frozen=True)
class Row:
    first_step: int
    prompt_len: int
    output_len: int
    asked: int
    start: int
    size: int


def classify_waste(num_places, rows, step, next_size):
    tokens = reserved = internal = rounding = 0
    regions = []
    for row in rows:
        made = step - row.first_step
        if made < 0 or made >= row.output_len:
            continue
        tokens += row.prompt_len + made
        reserved += row.output_len - made
        internal += row.asked - row.prompt_len - row.output_len
        rounding += row.size - row.asked
        regions.append((row.start, row.start + row.size))
    gaps, end = [], 0
    for start, stop in [*sorted(regions), (num_places, num_places)]:
        gaps.append(start - end)
        end = stop
    external = sum(gaps) if max(gaps) < next_size <= sum(gaps) else 0
    return {
        "free": sum(gaps) - external,
        "external": external,
        "rounding": rounding,
        "internal": internal,
        "reserved": reserved,
        "tokens": tokens,
    }


class Region:
    """Free, in use, or halved into two regions."""

    def __init__(self, start, size):
        self.start, self.size = start, size
        self.in_use = False
        self.halves = ()

    def free_ones(self):
        if self.halves:
            return [r for half in self.halves for r in half.free_ones()]
        return [] if self.in_use else [self]

    def free(self, start):
        """Whether a region in use started there; joins on the way back."""
        if not self.halves:
            found = self.in_use and self.start == start
            self.in_use = self.in_use and not found
            return found
        found = any(half.free(start) for half in self.halves)
        if all(not half.halves and not half.in_use for half in self.halves):
            self.halves = ()
        return found

    def used(self):
        if self.halves:
            return {s: z for half in self.halves for s, z in half.used().items()}
        return {self.start: self.size} if self.in_use else {}


class BuddyPool:
    def __init__(self, num_tokens):
        if num_tokens <= 0:
            raise ValueError(num_tokens)
        self.num_tokens = num_tokens
        self.roots = []
        start = 0
        for digit in reversed(range(num_tokens.bit_length())):
            if num_tokens >> digit & 1:
                self.roots.append(Region(start, 2**digit))
                start += 2**digit

    def _free(self):
        return [region for root in self.roots for region in root.free_ones()]

    @property
    def num_free(self):
        return sum(region.size for region in self._free())

    @property
    def largest_free(self):
        return max([0] + [region.size for region in self._free()])

    @property
    def free_regions(self):
        return [(region.start, region.size) for region in self._free()]

    def can_allocate(self, num_tokens):
        return any(region.size >= num_tokens for region in self._free())

    def allocate(self, num_tokens):
        if num_tokens < 1:
            raise ValueError(num_tokens)
        fitting = [region for region in self._free() if region.size >= num_tokens]
        if not fitting:
            raise OutOfBlocksError(num_tokens)
        # The last one of the smallest, and of that the upper half.
        region = min(reversed(fitting), key=lambda region: region.size)
        while region.size >= 2 * num_tokens:
            half = region.size // 2
            region.halves = (
                Region(region.start, half),
                Region(region.start + half, half),
            )
            region = region.halves[1]
        region.in_use = True
        return region.start

    def size(self, start):
        for root in self.roots:
            if start in root.used():
                return root.used()[start]
        raise ValueError(start)

    def free(self, start):
        if not any(root.free(start) for root in self.roots):
            raise DoubleFreeError(start)


def paging_waste(lengths, block_size):
    waste = 0
    for length in lengths:
        while length % block_size:
            length += 1
            waste += 1
    return waste


def best_block_size(trace, candidates, token_bytes, entry_bytes):
    if len(candidates) == 0:
        raise ValueError("no candidates")
    best = None
    for block_size in sorted(candidates, reverse=True):
        total = 0
        for prompt_len, output_len in trace:
            for made in range(output_len):
                blocks = (prompt_len + made - 1) // block_size + 1
                total += blocks * entry_bytes
                total += (blocks * block_size - prompt_len - made) * token_bytes
        if best is None or total < best[0]:
            best = total, block_size
    return best[1]
