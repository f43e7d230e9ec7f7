"""Exercise 13: your own parts serve a real model.

Grade with `course grade 13`. Task 13.1 stands for itself. Tasks 13.2 to 13.6 are the
end of the course: each gives a point for one part of yours that serves a language
model. They need your files ex04, ex05, ex06, ex08 and ex12, one each; whatever else the
model needs is the package's. So 13.3 can be solved before 13.2, and so on.


Task 13.1   beam_step(beams, log_probs, beam_width, fork, copy_on_write)
                -> tuple[list[tuple[Any, list[int], float]], list[tuple[int, int]]]

One step of beam search: which texts go on, and with which blocks. A beam is a text that
the search has not given up: a tuple (table, token_ids, score) of its block table, the
tokens made so far (without the prompt), and the sum of their log-probabilities.

    beams       the list of those that live. At the first step it is one, the prompt
    log_probs   one list of floats for each beam: log_probs[i][t] is the log-probability
                of token t after beams[i]. All are finite
    beam_width  how many beams live on: 1 or more

Every beam can go on with every token. Of all these candidates the beam_width with the
highest scores live on (all of them, if there are fewer); the score of a candidate is
that of its beam, plus the log-probability of its token. No two have the same score. So
one beam may go on with several tokens, and another one with none. (Tokens that end a
text are not treated here: all go on.)

The result is (new beams, copies).

    new beams   the best first. Each has a table of its own, in which there is room for
                the new token: one token more than before
    copies      pairs [(source, destination)] of block ids: what must be copied before
                the keys of the new tokens are written. The caller does that, in this
                order, as soon as you return

The tables are the package's, or others like them. Three things are asked of them:

- Of everything that was written before, each new beam reads what its text needs. What
  two of them have in common is in blocks that both hold; full blocks are not copied.
- A block is copied only if a new token has to go into it and others still hold it. The
  last one to hold it writes in place. Somebody else, not a beam, may hold blocks as
  well.
- Who does not live on holds nothing afterwards, and every block's ref_count is right.
  The pool may be full: then the only blocks that are free for the new tokens are those
  that dropped beams give back. With these there are enough.

beam_step uses up beams: take their tables over, or free them. What else it is given is
the same after the call.

    fork(table)           a second table over the same blocks
    copy_on_write(table)  sees to it that one more token can be appended: if its last
                          block is not full and others hold it too, the table gets one
                          of its own. [(source, destination)], or []
    table.append_tokens(1)    room for one more token
    table.free()          gives back all its blocks
    table.num_tokens .num_blocks .block_ids .allocator, and the others of exercise 05


Task 13.2   my_allocator() -> dict[str, Any]
Task 13.3   my_block_table() -> dict[str, Any]
Task 13.4   my_sharing() -> dict[str, Any]
Task 13.5   my_attention() -> dict[str, Any]
Task 13.6   my_scheduler() -> dict[str, Any]

Each returns keyword arguments for `Engine(model, …)`: those by which the engine takes
this part from you. They are all described here; the engine uses its own for the others.

    13.2  allocator_class     a class: allocator_class(num_blocks) makes a pool, with
                              all methods of exercise 04
    13.3  block_table_class   a class: block_table_class(allocator, block_size,
                              block_ids=(), num_tokens=0) makes a table, with all
                              methods of exercise 05
    13.4  fork, copy_on_write     functions of one table, as fork_table and
                              copy_before_write of exercise 06
    13.5  attention           a function like attend_over_blocks of exercise 08. The
                              engine always gives query_start_loc, scale and window
    13.6  scheduler_class     a class like StepScheduler of exercise 12

Import your own file inside of the function, as in `from ex04_free_list import …`: then
a file that is not finished does not disturb the other tasks. A part that needs a little
help to fit may get it here; but the work must be done by the code in your file, and the
package's own parts are refused.

An engine with your part serves a small model with random weights: many requests at
once, in blocks of 4; with and without a prefix cache, and a sliding window; several
answers to one prompt, and beams; in a pool so small that some of them have to leave and
come back. It must
make the same tokens, one after the other, as it makes with the package's part, and the
pool must be full again at the end.

With 13.6 goes one more test, for which the real model must be on this machine (`course
get-model`; else it is reported as not verified): SmolLM2 answers through all of your
parts at once, as far as they are solved. To see it happen, type

    course run "Name three primes." --mine
"""

from collections.abc import Callable
from typing import Any


def beam_step(
    beams: list[tuple[Any, list[int], float]],
    log_probs: list[list[float]],
    beam_width: int,
    fork: Callable[[Any], Any],
    copy_on_write: Callable[[Any], list[tuple[int, int]]],
) -> tuple[list[tuple[Any, list[int], float]], list[tuple[int, int]]]:
    raise NotImplementedError("exercise 13.1: choose among all, share, drop, then write")


def my_allocator() -> dict[str, Any]:
    raise NotImplementedError("exercise 13.2: the allocator of exercise 04")


def my_block_table() -> dict[str, Any]:
    raise NotImplementedError("exercise 13.3: the block table of exercise 05")


def my_sharing() -> dict[str, Any]:
    raise NotImplementedError("exercise 13.4: fork and copy-on-write of exercise 06")


def my_attention() -> dict[str, Any]:
    raise NotImplementedError("exercise 13.5: the attention of exercise 08")


def my_scheduler() -> dict[str, Any]:
    raise NotImplementedError("exercise 13.6: the scheduler of exercise 12")


# pristine stub, sha256 of the lines above: ebe9760ad5a26bfa
