"""What goes wrong in a pool of blocks, one class per kind.

A caller of the allocator can meet three situations that it has to tell apart:
the pool is empty (wait or preempt somebody), a block was given back twice (a bug),
a block that others still read was about to be written (a bug as well). Whatever
raises leaves the state exactly as it was.
"""


# Not a ValueError, as the other two are: whoever catches a caller's mistake must not
# catch a shortage with it, or a request that could have waited is refused.
class OutOfBlocksError(Exception):
    """More blocks were asked for than are free.

    An expected shortage, not a bug: the scheduler catches it and lets somebody wait.
    """


class DoubleFreeError(ValueError):
    """A block was freed more often than it was allocated and shared."""


class SharedBlockError(ValueError):
    """A block with a ref_count above 1 was about to be written in place."""
