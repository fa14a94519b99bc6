"""A user's own file: what it may look like, and what is said of one that may not."""

import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import solgym  # noqa: F401 (registers the environments)
from solgym.envs.mlir_passes.user_program import load_program, program_from_text
from solgym.errors import InvalidOption, SolgymError
from tests.envs.mlir_passes.settings import QUIET

PRODUCT = """
func.func @product(%a: tensor<9x17xf32>, %b: tensor<17x5xf32>) -> tensor<9x5xf32> {
  %zero = arith.constant 0.0 : f32
  %empty = tensor.empty() : tensor<9x5xf32>
  %start = linalg.fill ins(%zero : f32) outs(%empty : tensor<9x5xf32>) -> tensor<9x5xf32>
  %result = linalg.matmul ins(%a, %b : tensor<9x17xf32>, tensor<17x5xf32>) outs(%start : tensor<9x5xf32>)
    -> tensor<9x5xf32>
  return %result : tensor<9x5xf32>
}
"""

RUNNING_SUM = """
func.func @running_sum(%x: memref<33xf64> {solgym.name = "x"}) {
  affine.for %i = 1 to 33 {
    %before = affine.load %x[%i - 1] : memref<33xf64>
    %here = affine.load %x[%i] : memref<33xf64>
    %sum = arith.addf %before, %here : f64
    affine.store %sum, %x[%i] : memref<33xf64>
  }
  return
}
"""

MIXED = """
func.func private @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
  %sum = arith.addf %x, %x : tensor<8xf32>
  return %sum : tensor<8xf32>
}
func.func @mixed(%x: tensor<8xf32>, %y: memref<8xf64>) -> (tensor<8xf32>, tensor<8xf32>) {
  %two = func.call @twice(%x) : (tensor<8xf32>) -> tensor<8xf32>
  affine.for %i = 0 to 8 {
    %index = arith.index_cast %i : index to i64
    %value = arith.sitofp %index : i64 to f64
    affine.store %value, %y[%i] : memref<8xf64>
  }
  return %two, %x : tensor<8xf32>, tensor<8xf32>
}
"""


def make(tmp_path, text, **more):
    path = tmp_path / "mine.mlir"
    path.write_text(text)
    return gym.make("MLIRPasses-v0", program=str(path), **QUIET, **more)


@pytest.mark.parametrize("text", [PRODUCT, RUNNING_SUM, MIXED], ids=["tensors", "in place", "mixed"])
def test_checkers_are_content(tmp_path, text):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(tmp_path, text).unwrapped)


def test_arguments_become_inputs_and_outputs():
    task = program_from_text(PRODUCT, "product")
    assert [(spec.shape, spec.dtype) for spec in task.input_specs] == [((9, 17), "f32"), ((17, 5), "f32")]
    assert [(spec.shape, spec.dtype) for spec in task.output_specs] == [((9, 5), "f32")]
    in_place = program_from_text(RUNNING_SUM, "sum")
    assert [spec.name for spec in (*in_place.input_specs, *in_place.output_specs)] == ["x", "x"]
    mixed = program_from_text(MIXED, "mixed")
    assert [spec.dtype for spec in mixed.output_specs] == ["f64", "f32", "f32"]


def test_the_reference_is_what_the_program_computes():
    task = program_from_text(PRODUCT, "product")
    a, b = task.make_inputs(0)
    assert np.allclose(task.reference((a, b))[0], a.astype(float) @ b.astype(float), atol=1e-5)
    in_place = program_from_text(RUNNING_SUM, "sum")
    (x,) = in_place.make_inputs(0)
    assert np.allclose(in_place.reference((x,))[0], np.cumsum(x))
    assert x[1] != np.cumsum(x)[1]
    mixed = program_from_text(MIXED, "mixed")
    (x,) = mixed.make_inputs(0)
    y, two, same = mixed.reference((x,))
    assert np.array_equal(y, np.arange(8.0))
    assert np.array_equal(two, 2.0 * x)
    assert np.array_equal(same, x)


ON_THE_STACK = {
    "a while loop that hands its buffer on": """
  %first = memref.alloca() : memref<1xf32>
  memref.store %zero, %first[%c0] : memref<1xf32>
  %end:2 = scf.while (%i = %c0, %sum = %first) : (index, memref<1xf32>) -> (index, memref<1xf32>) {
    %more = arith.cmpi slt, %i, %c4 : index
    scf.condition(%more) %i, %sum : index, memref<1xf32>
  } do {
  ^bb0(%i: index, %sum: memref<1xf32>):
    %longer = memref.alloca() : memref<1xf32>
    memref.store %zero, %longer[%c0] : memref<1xf32>
    %before = memref.load %sum[%c0] : memref<1xf32>
    %here = memref.load %x[%i] : memref<4xf32>
    %after = arith.addf %before, %here : f32
    memref.store %after, %longer[%c0] : memref<1xf32>
    %next = arith.addi %i, %c1 : index
    scf.yield %next, %longer : index, memref<1xf32>
  }
  %result = memref.load %end#1[%c0] : memref<1xf32>
  memref.store %result, %y[%c0] : memref<1xf32>
  return""",
    "a loop that hands an address on by way of an intrinsic": """
  %one = llvm.mlir.constant(1 : i32) : i32
  %first = llvm.alloca %one x f32 : (i32) -> !llvm.ptr
  llvm.store %zero, %first : f32, !llvm.ptr
  cf.br ^head(%c0, %first : index, !llvm.ptr)
^head(%i: index, %sum: !llvm.ptr):
  %more = arith.cmpi slt, %i, %c4 : index
  cf.cond_br %more, ^body, ^end
^body:
  %longer = llvm.alloca %one x f32 : (i32) -> !llvm.ptr
  llvm.store %zero, %longer : f32, !llvm.ptr
  %same = llvm.intr.launder.invariant.group %longer : !llvm.ptr
  %before = llvm.load %sum : !llvm.ptr -> f32
  %here = memref.load %x[%i] : memref<4xf32>
  %after = arith.addf %before, %here : f32
  llvm.store %after, %longer : f32, !llvm.ptr
  %next = arith.addi %i, %c1 : index
  cf.br ^head(%next, %same : index, !llvm.ptr)
^end:
  %result = llvm.load %sum : !llvm.ptr -> f32
  memref.store %result, %y[%c0] : memref<1xf32>
  return""",
    "a long loop that keeps an atomic sum to itself": """
  %long = arith.constant 300000 : index
  %all = scf.for %k = %c0 to %long step %c1 iter_args(%last = %zero) -> f32 {
    %sum = memref.alloca() : memref<64xf32>
    %place = arith.remui %k, %c4 : index
    memref.store %zero, %sum[%place] : memref<64xf32>
    scf.for %i = %c0 to %c4 step %c1 {
      %here = memref.load %x[%i] : memref<4xf32>
      %before = memref.atomic_rmw addf %here, %sum[%place] : (f32, memref<64xf32>) -> f32
    }
    %total = memref.load %sum[%place] : memref<64xf32>
    scf.yield %total : f32
  }
  memref.store %all, %y[%c0] : memref<1xf32>
  return""",
    "a branch in a loop that would need much and is never taken": """
  %many = arith.constant 33554432 : index
  scf.for %i = %c0 to %c4 step %c1 {
    %here = memref.load %x[%i] : memref<4xf32>
    %root = math.exp %here : f32
    %log = math.log %root : f32
    %sum = memref.load %y[%c0] : memref<1xf32>
    %after = arith.addf %sum, %log : f32
    memref.store %after, %y[%c0] : memref<1xf32>
    %negative = arith.cmpf olt, %here, %zero : f32
    scf.if %negative {
      %much = memref.alloca() : memref<33554432xf32>
      scf.for %k = %c0 to %many step %c1 {
        %other = arith.remui %k, %c4 : index
        %there = memref.load %x[%other] : memref<4xf32>
        memref.store %there, %much[%k] : memref<33554432xf32>
      }
      %where = arith.fptoui %root : f32 to i32
      %place = arith.index_cast %where : i32 to index
      %value = memref.load %much[%place] : memref<33554432xf32>
      memref.store %value, %y[%c0] : memref<1xf32>
    }
  }
  return""",
}


@pytest.mark.parametrize("body", ON_THE_STACK.values(), ids=ON_THE_STACK)
def test_memory_that_a_program_keeps_on_the_stack_is_its_own_matter(body):
    text = f"""
func.func @mine(%x: memref<4xf32>, %y: memref<1xf32> {{solgym.role = "out"}}) {{
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %zero = arith.constant 0.0 : f32
  memref.store %zero, %y[%c0] : memref<1xf32>
{body}
}}"""
    (result,) = program_from_text(text, "mine").reference([np.array([1, 2, 3, 4], np.float32)])
    assert result.tolist() == pytest.approx([10])


def test_an_episode_improves_a_users_program(tmp_path):
    env = make(tmp_path, PRODUCT)
    _, info = env.reset(seed=0)
    assert info["status"] == "ok"
    meanings = env.unwrapped.action_meanings()
    _, _, _, _, info = env.step(meanings.index("canonicalize"))
    assert info["status"] == "ok", info["error"]
    twin = pickle.loads(pickle.dumps(env))
    assert twin.reset(seed=0)[1]["task"] == info["task"]


BAD = {
    "no MLIR": "this is not MLIR",
    "nothing": "",
    "syntax": "func.func @f(",
    "integers": "func.func @f(%a: memref<8xi32>) { return }",
    "dynamic": "func.func @f(%a: memref<?xf32>) { return }",
    "scalar": "func.func @f(%a: f32, %b: memref<8xf32>) { return }",
    "empty array": "func.func @f(%a: memref<0xf32>) { return }",
    "layout": "func.func @f(%a: memref<8xf32, strided<[2]>>) { return }",
    "memory space": "func.func @f(%a: memref<8xf32, 3>) { return }",
    "no result": "func.func @f(%a: memref<8xf32>) { return }",
    "returned memref": "func.func @f(%a: memref<8xf32>) -> memref<8xf32> { return %a : memref<8xf32> }",
    "two functions": "func.func @f(%a: memref<8xf32>) { return }\nfunc.func @g(%a: memref<8xf32>) { return }",
    "declaration": "func.func private @f(%a: memref<8xf32>)",
    "role": 'func.func @f(%a: memref<8xf32> {solgym.role = "both"}) { return }',
    "unknown operation": 'func.func @f(%a: memref<8xf32>) { "my.op"(%a) : (memref<8xf32>) -> () return }',
    "binary": "\x00\x01\x02",
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_bad_files_get_one_sentence(tmp_path, text):
    with pytest.raises(InvalidOption) as caught:
        make(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert "mine.mlir" in str(caught.value)


def test_missing_files_and_functions_are_named(tmp_path):
    with pytest.raises(InvalidOption, match="cannot be read"):
        load_program(tmp_path / "nothing.mlir")
    with pytest.raises(InvalidOption, match="cannot be read"):
        load_program(tmp_path)
    with pytest.raises(InvalidOption, match="it has @product"):
        program_from_text(PRODUCT, "product", "other")
    with pytest.raises(SolgymError, match="give one of them"):
        gym.make("MLIRPasses-v0", **QUIET)


def test_an_unknown_external_function_is_refused_before_it_is_called(tmp_path):
    text = """
    func.func private @elsewhere(memref<8xf32>)
    func.func @f(%a: memref<8xf32>) { func.call @elsewhere(%a) : (memref<8xf32>) -> () return }
    """
    env = make(tmp_path, text)
    with pytest.raises(InvalidOption, match="elsewhere"):
        env.reset(seed=0)


def test_a_program_that_crashes_is_refused_and_harms_nobody(tmp_path):
    text = """
    func.func @f(%a: memref<8xf32>) {
      %far = arith.constant 1000000000 : index
      %zero = arith.constant 0.0 : f32
      memref.store %zero, %a[%far] : memref<8xf32>
      return
    }
    """
    env = make(tmp_path, text)
    with pytest.raises(InvalidOption, match="crashes"):
        env.reset(seed=0)
    assert make(tmp_path, PRODUCT).reset(seed=0)[1]["status"] == "ok"
