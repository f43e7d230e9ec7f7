"""What every call of a launcher has to fulfil, whatever the test claims beside it.

A kernel did the work: the source has one and launches it (kernel_source), programs were
seen to run, and what came back lies where they stored. Nothing else was touched.
"""

from dataclasses import dataclass
from typing import Any, NoReturn

from course.grader.failures import fail, fail_change
from course.grader.history import rounded
from course.grader.kernel_layout import Layout
from course.grader.kernel_source import Source

# What a launcher may ask of torch: memory, shapes, where things are, and looks at the
# numbers that it decides by. Moving and computing is what its kernels are for.
_HOST_CALLS = """
    empty empty_like empty_strided zeros zeros_like ones ones_like full full_like tensor
    as_tensor arange new_empty new_empty_strided new_zeros new_ones new_full new_tensor
    zero_ fill_ pin_memory
    __get__ size stride numel nelement dim ndimension element_size data_ptr device
    storage_offset untyped_storage is_contiguous is_floating_point is_tensor get_device
    finfo iinfo get_default_dtype __len__ __hash__ __repr__ __format__
    view view_as reshape ravel flatten unflatten unsqueeze squeeze expand expand_as
    t transpose broadcast_to permute movedim swapaxes unbind split chunk select narrow
    as_strided contiguous detach __getitem__ __iter__
    to cpu cuda type int long short bool float double half bfloat16
    tolist item __int__ __bool__ __index__ __float__
    max min amax amin any all unique eq ne lt le gt ge cumsum
    __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ record_stream
    _set_grad_enabled requires_grad_
"""
HOST_CALLS = frozenset(_HOST_CALLS.split())


@dataclass(frozen=True)
class Call:
    """One call of a launcher: the file that it is from, and what the worker saw."""

    launcher: str
    file: str
    source: Source
    layout: Layout
    reply: dict[str, Any]
    writes: frozenset[int | str] = frozenset()  # arguments that it is to write

    def check(self, allowed: frozenset[str]) -> None:
        self._check_kernel()
        self._check_torch(allowed)
        self._check_last_word()
        self._check_source()
        self._check_memory()
        self._check_arguments()

    def _check_kernel(self) -> None:
        if not self.source.kernels:
            self.no_kernel("the file has no function marked @triton.jit")
        if not self.source.launches(self.launcher):
            self.no_kernel(f"{self.launcher} has no line like kernel[grid](…)")
        launches, value = self.reply["launches"], self.reply["value"]
        idle = not any(launch["programs"] for launch in launches)
        if self.reply["lost"] and not launches:
            idle = False  # launches cannot be counted either
        has_result = value is not None and not _is_empty(value)
        changed = self.layout.changed(self.reply["storages"])
        if idle and (has_result or changed):
            self.no_kernel("it launched none")
        for storage in changed:
            if not self.reply["written"][storage]:
                self.no_kernel(f"{self._names(storage)} changed without one")
        if not self.reply["from_kernel"]:
            self.no_kernel(
                "it returned a tensor that no kernel has written to (a copy of one, as "
                "by .to(dtype), is another tensor)"
            )

    def no_kernel(self, why: str) -> NoReturn:
        fail(
            f"the work of {self.launcher} is done by a Triton kernel",
            expected="a function marked @triton.jit, launched as kernel[grid](…)",
            got=why,
        )

    def _check_torch(self, allowed: frozenset[str]) -> None:
        for name, line in self.reply["calls"].items():
            if name not in allowed:
                fail(
                    f"the work of {self.launcher} is done by a Triton kernel",
                    expected="torch for memory and shapes alone",
                    got=f"a call of torch's {name}",
                    location=f"{self.file}:{line}" if line else None,
                )

    def _check_last_word(self) -> None:
        """What a kernel wrote is what the launcher leaves, whoever else could write."""
        for storage in self.reply["changed_later"]:
            whose = "what it returned" if storage is None else self._names(storage)
            self.no_kernel(f"{whose} changed again after the last launch")

    def _check_source(self) -> None:
        for patch in self.source.patches():
            fail(
                "an answer leaves torch, Triton and Python as they are",
                expected="no assignment to what belongs to them",
                got=patch.text,
                location=f"{self.file}:{patch.line}",
            )
        for load in self.source.loads_without_other():
            fail(
                "every tl.load with a mask says what masked-off lanes get",
                expected="other=…  (what they hold is undefined without it)",
                got=load.text,
                location=f"{self.file}:{load.line}",
            )

    def _check_memory(self) -> None:
        """What the watch over accesses shows more exactly, where there is one."""
        if not all(self.reply["guards"]):
            place = self._names(self.reply["guards"].index(False))
            fail(
                "a kernel stores only to the tensors it was given",
                expected="the bytes before and behind each tensor as they were",
                got=f"others beside {place}",
            )
        if gap := self.layout.changed_gap(self.reply["storages"]):
            fail(
                "what lies between the rows of a tensor with strides stays as it is",
                expected="the same numbers as before the call",
                got=f"another one at element {gap[1]} of the buffer of "
                f"{self._names(gap[0])}",
            )

    def _check_arguments(self) -> None:
        """What is only read is as it was."""
        if self.reply["changed"] is not None:
            fail_change(self.launcher, self.reply["changed"])
        for i in self.layout.changed(self.reply["storages"]):
            if self.writes.isdisjoint(self.layout.owners[i]):
                element, was, now = self.layout.first_change(i, self.reply["storages"])
                name = f"element {element} of {self._names(i)}, counted in memory,"
                fail_change(self.launcher, (name, rounded(was), rounded(now)))

    def _names(self, storage: int) -> str:
        """The arguments that are views of this storage, as the learner calls them."""
        function = self.source.functions.get(self.launcher)
        names = [each.arg for each in function.args.args] if function else []
        labels = self.layout.owners[storage]
        return " and ".join(
            names[label]
            if isinstance(label, int) and label < len(names)
            else f"argument {label}"
            for label in labels
        )


def _is_empty(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_empty, value))
    return hasattr(value, "numel") and value.numel() == 0
