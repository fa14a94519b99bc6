"""Files that harm, mislead or depend on chance: refused with one sentence, or made harmless."""

import os

import gymnasium as gym
import numpy as np
import pytest

import solgym  # noqa: F401 (registers the environments)
from solgym.envs.mlir_passes.client import default_pass_worker
from solgym.envs.mlir_passes.user_program import load_program, program_from_text
from solgym.errors import InvalidOption
from tests.envs.mlir_passes.settings import QUIET

ARRAY = "memref<8xf32>"
TWO = f"%a: {ARRAY}, %b: {ARRAY}"
COPY = f"memref.copy %a, %b : {ARRAY} to {ARRAY}"


def function(body, arguments=TWO, name="f", attributes="", more=""):
    return f"func.func @{name}({arguments}) {attributes} {{\n{body}\nreturn\n}}\n{more}"


def roles(text):
    return [role for *_, role in program_from_text(text, "mine").arguments]


def reset(tmp_path, text, **more):
    path = tmp_path / "mine.mlir"
    path.write_text(text, encoding="utf-8")
    return gym.make("MLIRPasses-v0", program=str(path), **QUIET, **more).reset(seed=0)[1]


def refusal(tmp_path, text):
    with pytest.raises(InvalidOption) as caught:
        reset(tmp_path, text)
    said = str(caught.value)
    assert "\n" not in said
    assert "Traceback" not in said
    return said


WRITTEN_THROUGH_A_VIEW = {
    "writable tensor": f"""
        %one = arith.constant 1.0 : f32
        %t = bufferization.to_tensor %a restrict writable : {ARRAY} to tensor<8xf32>
        %u = linalg.fill ins(%one : f32) outs(%t : tensor<8xf32>) -> tensor<8xf32>
        bufferization.materialize_in_destination %u in restrict writable %b : (tensor<8xf32>, {ARRAY}) -> ()
    """,
    "metadata": f"""
        %one = arith.constant 1.0 : f32
        %base, %offset, %size, %stride = memref.extract_strided_metadata %a
          : {ARRAY} -> memref<f32>, index, index, index
        memref.store %one, %base[] : memref<f32>
        {COPY}
    """,
    "alignment": f"""
        %one = arith.constant 1.0 : f32
        %zero = arith.constant 0 : index
        %aligned = memref.assume_alignment %a, 64 : {ARRAY}
        memref.store %one, %aligned[%zero] : {ARRAY}
        {COPY}
    """,
}


@pytest.mark.parametrize("body", WRITTEN_THROUGH_A_VIEW.values(), ids=WRITTEN_THROUGH_A_VIEW)
def test_what_is_written_through_a_view_is_an_output(tmp_path, body):
    text = function(body)
    assert roles(text) == ["inout", "out"]
    assert reset(tmp_path, text)["status"] == "ok"


REFUSED_WHEN_READ = {
    "too large": (function("", f"%a: {ARRAY}, %b: memref<1000000x1000000xf32>"), "MiB"),
    "beyond numbers": (function("", f"%a: {ARRAY}, %b: memref<{'3000000000x' * 4}f32>"), "MiB"),
    "too many extents": (function(COPY, f"{TWO}, %c: memref<{'1x' * 70}f32>"), "70 extents"),
    "name of no characters": (function(COPY, f'{TWO}, %c: {ARRAY} {{solgym.name = ""}}'), "solgym.name"),
    "name of two lines": (function(COPY, f'{TWO}, %c: {ARRAY} {{solgym.name = "a\\0Ab"}}'), "solgym.name"),
    "name that is a number": (function(COPY, f"{TWO}, %c: {ARRAY} {{solgym.name = 3}}"), "solgym.name"),
    "role of bytes": (function(COPY, f'{TWO}, %c: {ARRAY} {{solgym.role = "\\FF\\00"}}'), "cannot be read"),
    "tensor as output": (
        'func.func @f(%a: tensor<8xf32> {solgym.role = "out"}) -> tensor<8xf32> {\n'
        "return %a : tensor<8xf32> }",
        "tensor",
    ),
    "inline assembly": (
        function(f'llvm.inline_asm has_side_effects "nop", "" : () -> ()\n{COPY}'),
        "inline assembly",
    ),
    "the entry point": (
        function(COPY, more="llvm.func @solgym_entry(%a: !llvm.ptr) { llvm.return }"),
        "@solgym_entry",
    ),
    "the allocator": (function(COPY, name="malloc"), "@malloc"),
    "a mathematical function": (
        function(COPY, more="func.func private @sinf(%x: f32) -> f32 { return %x : f32 }"),
        "@sinf",
    ),
    "an intrinsic": (function(COPY, name="llvm.memcpy"), "@llvm.memcpy"),
}


@pytest.mark.parametrize(("text", "says"), REFUSED_WHEN_READ.values(), ids=REFUSED_WHEN_READ)
def test_what_cannot_be_called_is_refused_before_anything_runs(text, says):
    with pytest.raises(InvalidOption) as caught:
        program_from_text(text, "mine")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


REFUSED_WHEN_RUN = {
    "a sum onto nothing": (
        """func.func @f(%a: memref<4x4xf32>, %c: memref<4x4xf32> {solgym.role = "out"}) {
        linalg.matmul ins(%a, %a : memref<4x4xf32>, memref<4x4xf32>) outs(%c : memref<4x4xf32>)
        return }""",
        "memory that it has not written",
    ),
    "nothing written": (function("", f'{TWO} {{solgym.role = "out"}}'), "never writes output 1 of 1"),
    "a copy of nothing": (
        function(f"%m = memref.alloca() : {ARRAY}\nmemref.copy %m, %b : {ARRAY} to {ARRAY}"),
        "output 1 of 1",
    ),
    "arithmetic that needs a library": (
        function(
            f"""affine.for %i = 0 to 8 {{
            %x = affine.load %a[%i] : {ARRAY}
            %whole = arith.fptosi %x : f32 to i128
            %back = arith.sitofp %whole : i128 to f32
            affine.store %back, %b[%i] : {ARRAY}
            }}"""
        ),
        "__fixsfti",
    ),
    "a variable from elsewhere": (
        function(
            f"""%p = llvm.mlir.addressof @environ : !llvm.ptr
            %x = llvm.load %p : !llvm.ptr -> f32
            %zero = arith.constant 0 : index
            memref.store %x, %b[%zero] : {ARRAY}""",
            more="llvm.mlir.global external @environ() : !llvm.ptr",
        ),
        "'environ', which does not exist",
    ),
    "its process ends": (function(f'"llvm.intr.trap"() : () -> ()\n{COPY}'), "SIGILL"),
    "endless nesting": (
        function("%t = arith.constant true\n" + "scf.if %t {\n" * 3000 + COPY + "}\n" * 3000),
        "cannot be read",
    ),
}


@pytest.mark.parametrize(("text", "says"), REFUSED_WHEN_RUN.values(), ids=REFUSED_WHEN_RUN)
def test_what_has_no_certain_result_is_refused(tmp_path, text, says):
    assert says in refusal(tmp_path, text)


def test_state_that_survives_a_call_is_found_out(tmp_path):
    text = """
    memref.global "private" @count : memref<1xf32> = dense<0.0>
    func.func @f(%b: memref<1xf32>) {
      %zero = arith.constant 0 : index
      %one = arith.constant 1.0 : f32
      %g = memref.get_global @count : memref<1xf32>
      %x = memref.load %g[%zero] : memref<1xf32>
      %y = arith.addf %x, %one : f32
      memref.store %y, %g[%zero] : memref<1xf32>
      memref.store %y, %b[%zero] : memref<1xf32>
      return
    }
    """
    assert "right in its first run" in refusal(tmp_path, text)


def test_an_output_may_be_written_in_part(tmp_path):
    text = """
    func.func @f(%a: memref<8x8xf32>, %b: memref<8x8xf32>) {
      affine.for %i = 0 to 8 {
        affine.for %j = 0 to affine_map<(d) -> (d + 1)>(%i) {
          %x = affine.load %a[%i, %j] : memref<8x8xf32>
          affine.store %x, %b[%i, %j] : memref<8x8xf32>
        }
      }
      return
    }
    """
    assert roles(text) == ["in", "out"]
    assert reset(tmp_path, text)["status"] == "ok"


@pytest.mark.parametrize("name", ['"my function"', '"a.b-c"', '"q\\"x"', '"\\C3\\A9"', "main", "printf"])
def test_any_name_will_do(tmp_path, name):
    assert reset(tmp_path, function(COPY, name=name))["status"] == "ok"
    on_tensors = f"func.func @{name}(%a: tensor<8xf32>) -> tensor<8xf32> {{ return %a : tensor<8xf32> }}"
    assert reset(tmp_path, on_tensors)["status"] == "ok"


OTHER_TARGETS = {
    "narrow indices": "module attributes {dlti.dl_spec = #dlti.dl_spec<#dlti.dl_entry<index, 32 : i32>>} {"
    + function(COPY)
    + "}",
    "assembly": 'module attributes {llvm.module_asm = ["no assembly"]} {' + function(COPY) + "}",
    "bare pointers": function(COPY, attributes="attributes {llvm.bareptr}"),
    "another processor": function(COPY, attributes='attributes {passthrough = [["target-cpu", "i386"]]}'),
}


@pytest.mark.parametrize("text", OTHER_TARGETS.values(), ids=OTHER_TARGETS)
def test_what_a_file_says_about_its_target_is_left_out(tmp_path, text):
    assert reset(tmp_path, text)["status"] == "ok"


def test_a_program_that_crashes_leaves_the_pass_worker_as_it_was(tmp_path):
    good = program_from_text(function(COPY), "good")
    (x,) = good.make_inputs(0)
    assert np.array_equal(good.reference((x,))[0], x)
    before = default_pass_worker().starts
    far = f"""
      %far = arith.constant 1000000000 : index
      %zero = arith.constant 0.0 : f32
      memref.store %zero, %b[%far] : {ARRAY}
    """
    assert "SIGSEGV" in refusal(tmp_path, function(far))
    assert np.array_equal(good.reference((x,))[0], x)
    assert default_pass_worker().starts == before


def test_the_same_module_with_other_roles_is_another_task():
    texts = [
        f'func.func @f(%x: tensor<8xf32>, %y: {ARRAY} {{solgym.role = "{role}"}}) -> tensor<8xf32> {{\n'
        "%zero = arith.constant 0.0 : f32\n"
        f"linalg.fill ins(%zero : f32) outs(%y : {ARRAY})\n"
        "return %x : tensor<8xf32> }"
        for role in ("out", "inout")
    ]
    first, second = (program_from_text(text, "mine") for text in texts)
    assert first.module_text == second.module_text
    assert first.id != second.id


def test_what_is_no_file_is_not_read(tmp_path):
    pipe = tmp_path / "pipe.mlir"
    os.mkfifo(pipe)
    for path in (pipe, "/dev/zero"):
        with pytest.raises(InvalidOption, match="cannot be read"):
            load_program(path)


def test_a_byte_order_mark_is_no_part_of_the_program(tmp_path):
    assert reset(tmp_path, "\ufeff" + function(COPY))["status"] == "ok"


def test_results_that_depend_on_rounding_are_told_of_the_float_mode(tmp_path):
    text = function(
        f"""
        %rate = arith.constant 3.9 : f32
        %half = arith.constant 0.5 : f32
        affine.for %i = 0 to 8 {{
          %x = affine.load %a[%i] : {ARRAY}
          %square = arith.mulf %x, %x : f32
          %start = arith.mulf %square, %half : f32
          %end = affine.for %k = 0 to 200 iter_args(%y = %start) -> f32 {{
            %p = arith.mulf %y, %y : f32
            %q = arith.subf %y, %p : f32
            %z = arith.mulf %q, %rate : f32
            affine.yield %z : f32
          }}
          affine.store %end, %b[%i] : {ARRAY}
        }}"""
    )
    assert "float_mode='strict'" in refusal(tmp_path, text)
    assert reset(tmp_path, text, float_mode="strict")["status"] == "ok"
