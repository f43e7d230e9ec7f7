"""Exercise 00: meet the grader.

Put your answer in place of the line `raise NotImplementedError(...)`, save the file and
run

    course grade 0

The grader runs your file in a process of its own, so nothing has to be restarted. For
the first thing that is wrong it shows what it called, what it expected and what it got.
Run it as often as you like; `course hint 0.1` helps when you are stuck.


Task 0.1   blocks_needed(num_tokens, block_size) -> int

The memory for keys and values is handed out in blocks; a block holds block_size tokens,
and a sequence gets whole blocks. How many blocks do num_tokens tokens need?

    num_tokens   int, 0 or more
    block_size   int, 1 or more
    result       int, the smallest number of blocks that holds them all

40 tokens in blocks of 16 need 3 blocks: two full ones and one that holds 8 tokens.
"""


def blocks_needed(num_tokens: int, block_size: int) -> int:
    raise NotImplementedError("exercise 0.1: return how many blocks hold num_tokens tokens")


# pristine stub, sha256 of the lines above: c2d380d3d7c53c15
