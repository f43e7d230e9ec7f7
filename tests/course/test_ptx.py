"""What is loaded, how wide, and from which parameter, read in PTX written by hand."""

from course.grader.ptx import loads_by_parameter

PTX = """
.visible .entry kernel(
    .param .u64 .ptr .global .align 1 kernel_param_0,
    .param .u64 .ptr .global .align 1 kernel_param_1
)
{
    ld.param.b64    %rd1, [kernel_param_0];
    ld.param.b64    %rd2, [kernel_param_1];
    ld.param.b32    %r9, [kernel_param_2];
    // begin inline asm
    mov.u32 %r1, 0x0;
    @%p1 ld.global.b32 { %r1 }, [ %rd1 + 0 ];
    // end inline asm
    mul.wide.s32    %rd3, %r1, %r9;
$L__BB0_1:
    add.s64         %rd4, %rd2, %rd3;
    @%p2 ld.global.v4.b32 { %r2, %r3, %r4, %r5 }, [ %rd4 + 0 ];
    @%p2 cp.async.cg.shared.global [ %r7 + 0 ], [ %rd4 + 16 ], 0x10, %r8;
    ld.shared.b16   %rs1, [%r7];
    mov.b64         %rd6, %rd5;
    @!%p3 ld.global.L1::evict_first.b16 { %rs2 }, [ %rd6 + 0 ];
    add.s64         %rd5, %rd1, 2;
    @%p4 bra        $L__BB0_1;
    ret;
}
"""


def loads() -> dict[tuple[tuple[int, ...], int], int]:
    found = loads_by_parameter(PTX)
    return {
        (tuple(sorted(which)), width): count for (which, width), count in found.items()
    }


def test_each_load_has_a_width_and_an_origin():
    assert loads() == {((0,), 4): 1, ((1, 2), 16): 2, ((0,), 2): 1}


def test_a_loaded_number_is_no_part_of_an_address():
    """The row of the second tensor was loaded from the first."""
    assert not any({0, 1} <= set(which) for which, _ in loads())
