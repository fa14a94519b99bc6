"""Linking without LLVM must give what LLVM's own linker gives."""

from __future__ import annotations

import ctypes
import platform

import pytest

from solgym.hardware.jit import LoadedObject, compile_object
from solgym.hardware.object_file import LinkedObject, link

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="elsewhere LLVM's linker is used")

# Constants in read-only data, a jump table, calls between functions, calls out, zeroed and initialised
# globals, a table of function addresses.
IR = """
@table = internal constant [4 x i64] [i64 10, i64 20, i64 30, i64 40]
@zeroed = global [1000 x i64] zeroinitializer, align 64
@set = global i64 7
@functions = global [2 x ptr] [ptr @twice, ptr @thrice]
declare i64 @strlen(ptr)
declare ptr @memset(ptr, i32, i64)
declare i64 @labs(i64)
@text = private constant [6 x i8] c"hello\\00"

define i64 @twice(i64 %x) { %y = mul i64 %x, 2 ret i64 %y }
define i64 @thrice(i64 %x) { %y = mul i64 %x, 3 ret i64 %y }

define double @vectors(double %x) {
  %v = insertelement <4 x double> <double 1.5, double 2.5, double 3.5, double 4.5>, double %x, i32 0
  %w = fmul <4 x double> %v, <double 0.1, double 0.2, double 0.3, double 0.4>
  %a = extractelement <4 x double> %w, i32 0
  %b = extractelement <4 x double> %w, i32 3
  %s = fadd double %a, %b
  ret double %s
}

define i64 @everything(i64 %x) {
entry:
  %slot = getelementptr [4 x i64], ptr @table, i64 0, i64 %x
  %loaded = load i64, ptr %slot
  %length = call i64 @strlen(ptr @text)
  %absolute = call i64 @labs(i64 -100)
  %filled = call ptr @memset(ptr @zeroed, i32 1, i64 8)
  %ones = load i64, ptr @zeroed
  %last = getelementptr [1000 x i64], ptr @zeroed, i64 0, i64 999
  %zero = load i64, ptr %last
  %old = load i64, ptr @set
  %new = add i64 %old, 1
  store i64 %new, ptr @set
  %pair = and i64 %x, 1
  %function_slot = getelementptr [2 x ptr], ptr @functions, i64 0, i64 %pair
  %function = load ptr, ptr %function_slot
  %called = call i64 %function(i64 1000)
  switch i64 %x, label %other [
    i64 0, label %c0
    i64 1, label %c1
    i64 2, label %c2
    i64 3, label %c3
  ]
c0:
  br label %join
c1:
  br label %join
c2:
  br label %join
c3:
  br label %join
other:
  br label %join
join:
  %case = phi i64 [ 11, %c0 ], [ 222, %c1 ], [ 3333, %c2 ], [ 44444, %c3 ], [ 0, %other ]
  %s1 = add i64 %loaded, %length
  %s2 = add i64 %s1, %absolute
  %s3 = add i64 %s2, %ones
  %s4 = add i64 %s3, %zero
  %s5 = add i64 %s4, %old
  %s6 = add i64 %s5, %called
  %s7 = add i64 %s6, %case
  ret i64 %s7
}
"""

INTEGER = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64)
DOUBLE = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_it_agrees_with_llvm(level: int) -> None:
    code = compile_object(IR, level)
    names = ("everything", "vectors")
    ours, theirs = LinkedObject(code, names), LoadedObject(code, names)
    for value in range(4):
        mine = INTEGER(ours.addresses["everything"])(value)
        assert mine == INTEGER(theirs.addresses["everything"])(value)
        by_hand = [10, 20, 30, 40][value] + 5 + 100 + 0x0101010101010101 + 7 + value
        by_hand += (2000, 3000)[value % 2] + (11, 222, 3333, 44444)[value]
        assert mine == by_hand
    assert DOUBLE(ours.addresses["vectors"])(1.0) == pytest.approx(0.1 + 4.5 * 0.4)
    ours.close()
    theirs.close()


def test_copies_do_not_share_globals() -> None:
    code = compile_object(IR)
    first, second = link(code, ("everything",)), link(code, ("everything",))
    start = INTEGER(first.addresses["everything"])(0)
    assert INTEGER(first.addresses["everything"])(0) == start + 1
    assert INTEGER(second.addresses["everything"])(0) == start


def test_closing_unmaps_the_code() -> None:
    def lines() -> int:
        with open("/proc/self/maps") as file:
            return sum("r-xp 00000000 00:00 0" in line for line in file)

    before = lines()
    linked = LinkedObject(compile_object(IR), ("everything",))
    assert lines() == before + 1
    linked.close()
    linked.close()
    assert lines() == before
    assert linked.addresses == {}


def test_code_is_not_writable() -> None:
    linked = LinkedObject(compile_object(IR), ("everything",))
    address = linked.addresses["everything"]
    with open("/proc/self/maps") as file:
        for line in file:
            bounds, permissions = line.split()[:2]
            low, high = (int(bound, 16) for bound in bounds.split("-"))
            if low <= address < high:
                assert permissions == "r-xp"
                return
    raise AssertionError("the code is not mapped")


def test_every_truncation_is_refused() -> None:
    code = compile_object(IR)
    for end in range(0, len(code), 97):
        with pytest.raises(RuntimeError):
            LinkedObject(code[:end], ("everything",))


def test_what_is_missing_is_named() -> None:
    with pytest.raises(RuntimeError, match="no symbol 'nothing'"):
        LinkedObject(compile_object(IR), ("nothing",))
    outside = (
        "declare void @missing_function()\ndefine void @f() {\n call void @missing_function()\n ret void\n}"
    )
    with pytest.raises(RuntimeError, match="missing_function"):
        LinkedObject(compile_object(outside), ("f",))
