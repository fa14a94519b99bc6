"""Known faults of upstream passes: caught when the masks are off, and out of reach when they are on.

The numbers are those of the list of measured facts that the project began with.
"""

import gymnasium as gym
import numpy as np
import pytest

import solgym  # noqa: F401 (registers the environments)
from tests.envs.mlir_passes.settings import QUIET

STENCIL = """
func.func @stencil(%a: memref<256xf32>, %b: memref<256xf32>) {
  affine.for %i = 0 to 256 {
    %x = affine.load %a[%i] : memref<256xf32>
    affine.store %x, %b[%i] : memref<256xf32>
  }
  affine.for %i = 1 to 249 {
    %x = affine.load %a[%i - 1] : memref<256xf32>
    %y = affine.load %a[%i + 1] : memref<256xf32>
    %z = arith.addf %x, %y : f32
    affine.store %z, %b[%i] : memref<256xf32>
  }
  return
}
"""

DOITGEN = """
func.func @doitgen(%A: memref<8x8x16xf32>, %C: memref<16x16xf32>) {
  %sum = memref.alloc() : memref<16xf32>
  %zero = arith.constant 0.0 : f32
  affine.for %r = 0 to 8 {
    affine.for %q = 0 to 8 {
      affine.for %p = 0 to 16 {
        affine.store %zero, %sum[%p] : memref<16xf32>
        affine.for %s = 0 to 16 {
          %x = affine.load %A[%r, %q, %s] : memref<8x8x16xf32>
          %y = affine.load %C[%s, %p] : memref<16x16xf32>
          %z = affine.load %sum[%p] : memref<16xf32>
          %u = arith.mulf %x, %y : f32
          %v = arith.addf %z, %u : f32
          affine.store %v, %sum[%p] : memref<16xf32>
        }
      }
      affine.for %p = 0 to 16 {
        %x = affine.load %sum[%p] : memref<16xf32>
        affine.store %x, %A[%r, %q, %p] : memref<8x8x16xf32>
      }
    }
  }
  memref.dealloc %sum : memref<16xf32>
  return
}
"""

JACOBI = """
func.func @jacobi(%A: memref<34x34xf32>, %B: memref<34x34xf32>) {
  %c = arith.constant 0.2 : f32
  affine.for %t = 0 to 4 {
    affine.for %i = 1 to 33 {
      affine.for %j = 1 to 33 {
        %a = affine.load %A[%i, %j] : memref<34x34xf32>
        %b = affine.load %A[%i, %j - 1] : memref<34x34xf32>
        %d = affine.load %A[%i, %j + 1] : memref<34x34xf32>
        %e = affine.load %A[%i - 1, %j] : memref<34x34xf32>
        %f = affine.load %A[%i + 1, %j] : memref<34x34xf32>
        %g = arith.addf %a, %b : f32
        %h = arith.addf %g, %d : f32
        %k = arith.addf %h, %e : f32
        %l = arith.addf %k, %f : f32
        %m = arith.mulf %l, %c : f32
        affine.store %m, %B[%i, %j] : memref<34x34xf32>
      }
    }
    affine.for %i = 1 to 33 {
      affine.for %j = 1 to 33 {
        %a = affine.load %B[%i, %j] : memref<34x34xf32>
        %b = affine.load %B[%i, %j - 1] : memref<34x34xf32>
        %d = affine.load %B[%i, %j + 1] : memref<34x34xf32>
        %e = affine.load %B[%i - 1, %j] : memref<34x34xf32>
        %f = affine.load %B[%i + 1, %j] : memref<34x34xf32>
        %g = arith.addf %a, %b : f32
        %h = arith.addf %g, %d : f32
        %k = arith.addf %h, %e : f32
        %l = arith.addf %k, %f : f32
        %m = arith.mulf %l, %c : f32
        affine.store %m, %A[%i, %j] : memref<34x34xf32>
      }
    }
  }
  return
}
"""

UNROLLED = ("affine-unroll-4", "affine-vectorize-16")
CASES = {
    "1: vectors beyond the trip count": (STENCIL, ("affine-vectorize-16",), {"wrong_result", "crashed"}),
    "2: vectors after unrolling": (STENCIL, UNROLLED, {"wrong_result", "crashed"}),
    "3: fusion of an in-place program": (DOITGEN, ("affine-fuse",), {"wrong_result"}),
    "3: the same, maximal": (DOITGEN, ("affine-fuse-maximal",), {"wrong_result"}),
    "3: the same, producers": (DOITGEN, ("affine-fuse-producers",), {"wrong_result"}),
    "4: fusion after vectorisation": (
        JACOBI,
        ("affine-vectorize-16-reductions", "affine-fuse-maximal"),
        {"crashed"},
    ),
}


@pytest.fixture(params=CASES.values(), ids=CASES)
def case(request, tmp_path):
    text, actions, statuses = request.param
    path = tmp_path / "faulty.mlir"
    path.write_text(text)
    return path, actions, statuses


def make(path, **more):
    return gym.make("MLIRPasses-v0", program=str(path), **QUIET, **more)


def test_without_masks_they_cost_the_penalty_and_are_undone(case):
    path, actions, statuses = case
    env = make(path, enforce_masks=False)
    _, start = env.reset(seed=0)
    assert start["status"] == "ok"
    meanings = env.unwrapped.action_meanings()
    for action in actions[:-1]:
        _, _, _, _, info = env.step(meanings.index(action))
        assert info["status"] == "ok", info["error"]
    before = env.unwrapped.state
    _, reward, terminated, truncated, info = env.step(meanings.index(actions[-1]))
    assert info["status"] in statuses, info["error"]
    assert reward == env.unwrapped.failure_penalty
    assert not terminated
    assert not truncated
    assert env.unwrapped.state is before
    _, _, _, _, info = env.step(meanings.index("canonicalize"))
    assert info["status"] == "ok", info["error"]


def test_with_masks_they_are_not_offered(case):
    path, actions, _ = case
    env = make(path)
    _, info = env.reset(seed=0)
    meanings = env.unwrapped.action_meanings()
    for action in actions[:-1]:
        assert info["action_mask"][meanings.index(action)]
        _, _, _, _, info = env.step(meanings.index(action))
        assert info["status"] == "ok", info["error"]
    last = meanings.index(actions[-1])
    assert not info["action_mask"][last]
    _, reward, _, _, info = env.step(np.int64(last))
    assert info["status"] == "illegal"
    assert info["illegal_because"] == env.unwrapped.explain(last)
    assert reward == env.unwrapped.failure_penalty
