"""Does Triton compute the right number here? Run by `course doctor` in a process.

Some pairs of Triton and numpy break the interpreter, loudly or with silent zeros; a
loop with a bound that is known only at run time finds both. Prints one line of JSON.
"""

import json

import numpy
import torch
import triton
import triton.language as tl


@triton.jit
def add_up(x_ptr, n, out_ptr):  # x [n] float32, out [1] float32
    total = 0.0
    for i in range(n):
        total += tl.load(x_ptr + i)
    tl.store(out_ptr, total)


def main() -> None:
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
    out = torch.zeros(1)
    add_up[(1,)](x, len(x), out)
    right = out.item() == 15.0
    versions = f"triton {triton.__version__} with numpy {numpy.__version__}"
    print(json.dumps({"right": right, "got": out.item(), "versions": versions}))


if __name__ == "__main__":
    main()
