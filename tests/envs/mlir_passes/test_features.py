import subprocess
import sys
import zlib

import numpy as np
import pytest
from torch_mlir import ir

from solgym.envs.machine_features import group_limits
from solgym.envs.mlir_passes.features import (
    FULL_GROUPS,
    FULL_NAMES,
    LEVELS,
    MQSS_GROUPS,
    MQSS_NAMES,
    Context,
    feature_limits,
    feature_table,
    full,
    module_part,
    mqss,
    survey,
)
from solgym.envs.mlir_passes.kinds import KINDS, kind_of
from solgym.envs.mlir_passes.programs import PROGRAMS, parse_task
from solgym.envs.rewards import Timing
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.speed_of_light import speed_of_light
from solgym.hardware.target import cpu_spec
from solgym.hardware.task import Work
from tests.envs.fakes import PROFILE

MLIR = ir.Context()
MLIR.enable_multithreading(False)

GEMM = """
func.func @main(%A: memref<4x16xf32>, %B: memref<16x8xf32>, %C: memref<4x8xf32>) {
  affine.for %i = 0 to 4 {
    affine.for %j = 0 to 8 {
      affine.for %k = 0 to 16 {
        %a = affine.load %A[%i, %k] : memref<4x16xf32>
        %b = affine.load %B[%k, %j] : memref<16x8xf32>
        %c = affine.load %C[%i, %j] : memref<4x8xf32>
        %product = arith.mulf %a, %b : f32
        %sum = arith.addf %c, %product : f32
        affine.store %sum, %C[%i, %j] : memref<4x8xf32>
      }
    }
  }
  return
}"""

MATMUL = """
func.func @main(%A: memref<4x16xf32>, %B: memref<16x8xf32>, %C: memref<4x8xf32>) {
  linalg.matmul ins(%A, %B : memref<4x16xf32>, memref<16x8xf32>) outs(%C : memref<4x8xf32>)
  return
}"""

TILED = """
func.func @main(%A: memref<32x64xf32>, %B: memref<32x64xf32>) {
  %c0 = arith.constant 0 : index
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  scf.for %i = %c0 to %c32 step %c8 {
    %a = memref.subview %A[%i, 0] [8, 64] [1, 1]
      : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    %b = memref.subview %B[%i, 0] [8, 64] [1, 1]
      : memref<32x64xf32> to memref<8x64xf32, strided<[64, 1], offset: ?>>
    linalg.copy ins(%a : memref<8x64xf32, strided<[64, 1], offset: ?>>)
      outs(%b : memref<8x64xf32, strided<[64, 1], offset: ?>>)
  }
  return
}"""


def surveyed(text, detailed=True):
    module = ir.Module.parse(text, MLIR)
    return survey(module.operation, detailed)


def named(text, level="scf", actions=()):
    found = surveyed(text)
    numbers = mqss(found, level, "cpu", actions)
    return dict(zip(FULL_NAMES, [float(value) for value in (*numbers, *module_part(found))], strict=False))


def count(number, scale):
    return pytest.approx(np.log2(1 + number) / scale, rel=1e-6)


def log2(number, scale):
    return pytest.approx(np.log2(number) / scale, rel=1e-6)


def test_there_are_28_features_of_a_module_and_names_are_unique():
    assert len(MQSS_NAMES) == 28
    assert [sum(group.size for group in MQSS_GROUPS[a:b]) for a, b in ((0, 1), (1, 5), (5, 6))] == [8, 16, 4]
    assert FULL_NAMES[:28] == MQSS_NAMES
    assert len(set(FULL_NAMES)) == len(FULL_NAMES)
    low, high = feature_limits()
    assert low.shape == high.shape == (len(FULL_NAMES),)
    assert np.all((low == 0) | (low == -1))
    assert np.all(high == 1)


def test_the_table_has_a_row_for_every_group_and_ends_at_the_last_feature():
    rows = feature_table().splitlines()[2:]
    assert len(rows) == len(FULL_GROUPS)
    assert rows[0].startswith("| 0-7 | `structure_`")
    assert rows[5].startswith("| 24-27 | `context_`")
    assert rows[-1].startswith(f"| {len(FULL_NAMES) - 8}-{len(FULL_NAMES) - 1} | `action_#_`")


def test_names_and_limits_do_not_load_mlir():
    code = "import sys, solgym.envs.mlir_passes.features; print('torch_mlir' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_structure_of_a_loop_nest():
    # module, function, return, 3 loops, 3 yields, 3 loads, a store, a product and a sum
    features = named(GEMM)
    assert features["structure_log2_operations"] == count(15, 20)
    assert features["structure_max_loop_depth"] == pytest.approx(3 / 16)
    assert features["structure_log2_loops"] == count(3, 16)
    assert features["structure_log2_blocks"] == count(5, 16)
    assert features["structure_log2_block_arguments"] == count(3, 16)
    assert features["structure_log2_functions"] == count(1, 8)
    assert features["structure_load_store_share"] == pytest.approx(4 / 15)
    assert features["structure_vectorisable_share"] == pytest.approx(2 / 15)
    assert features["count_loads"] == count(3, 16)
    assert features["count_stores"] == count(1, 16)
    assert features["count_float"] == count(2, 16)
    assert features["count_structured"] == 0.0
    assert features["shape_log2_largest"] == log2(16 * 8, 32)
    assert features["shape_log2_smallest"] == log2(4 * 8, 32)
    assert features["shape_rank"] == pytest.approx(2 / 8)
    assert features["shape_log2_innermost"] == pytest.approx((4 + 3 + 3) / 3 / 24)
    assert features["bits_element"] == 0.5
    assert features["bits_log2_vector"] == 0.0


def test_operations_are_told_apart_by_loop_depth():
    features = named(GEMM)
    assert features["operations_3_load"] == count(3, 16)
    assert features["operations_3_float"] == count(2, 16)
    assert features["operations_0_control"] == count(4, 16)
    assert features["operations_2_control"] == count(2, 16)
    assert features["operations_2_load"] == 0.0


@pytest.mark.parametrize(("text", "structured"), [(GEMM, 0), (MATMUL, 1)])
def test_loops_and_the_memory_that_they_touch(text, structured):
    levels = surveyed(text).levels
    assert [level.loops for level in levels] == [1, 1, 1, 0, 0, 0, 0, 0]
    assert [level.structured for level in levels[:3]] == [structured] * 3
    assert [level.estimated for level in levels[:3]] == [0, 0, 0]
    assert [level.trips for level in levels[:3]] == [4, 8, 16]
    assert [level.iterations for level in levels[:3]] == [4, 32, 512]
    everything = 4 * (4 * 16 + 16 * 8 + 4 * 8)
    one_row_of_c = 4 * (16 + 16 * 8 + 8)
    one_element_of_c = 4 * (16 + 16 + 1)
    assert [level.footprint_bytes for level in levels[:3]] == [everything, one_row_of_c, one_element_of_c]


def test_slices_are_parts_of_what_they_are_cut_from():
    found = surveyed(TILED)
    assert found.max_loop_depth == 3
    assert [level.trips for level in found.levels[:3]] == [4, 8, 64]
    tile = 2 * 4 * 8 * 64
    assert [level.footprint_bytes for level in found.levels[:3]] == [4 * tile, tile, tile / 8]
    assert found.smallest_elements == 8 * 64
    assert found.largest_integer == 32


def test_a_tile_of_an_affine_loop_has_a_constant_trip_count_and_a_triangle_an_estimated_one():
    text = """
    func.func @main(%A: memref<64x64xf32>) {{
      affine.for %i = 0 to 64 step 16 {{
        affine.for %j = {lower} to {upper} {{
          %a = affine.load %A[%i, %j] : memref<64x64xf32>
          affine.store %a, %A[%i, %j] : memref<64x64xf32>
        }}
      }}
      return
    }}"""
    same, end = "affine_map<(d0) -> (d0)>(%i)", "affine_map<(d0) -> (d0 + 16)>(%i)"
    tile = surveyed(text.format(lower=same, upper=end)).levels[1]
    assert (tile.trips, tile.estimated) == (16, 0)
    triangle = surveyed(text.format(lower="0", upper=same)).levels[1]
    # The outer loop goes through 0, 16, 32, 48; 32 is in the middle.
    assert (triangle.trips, triangle.estimated) == (32, 1)


def test_bounds_are_followed_through_arithmetic():
    text = """
    func.func @main(%A: memref<100xf32>, %x: f32) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c7 = arith.constant 7 : index
      %extent = memref.dim %A, %c0 : memref<100xf32>
      %less = arith.subi %extent, %c7 : index
      scf.for %i = %c0 to %less step %c7 {
        %j = affine.apply affine_map<(d0) -> (d0 + 1)>(%i)
        memref.store %x, %A[%j] : memref<100xf32>
      }
      return
    }"""
    level = surveyed(text).levels[0]
    # ceil(93 / 7) iterations, each of which touches another element
    assert (level.trips, level.estimated, level.footprint_bytes) == (14, 0, 14 * 4)


def test_parallel_loops():
    text = """
    func.func @main(%A: memref<8x32xf32>, %x: f32) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c8 = arith.constant 8 : index
      scf.forall (%i, %j) in (8, 4) {
        scf.parallel (%k) = (%c0) to (%c8) step (%c1) {
          %l = affine.apply affine_map<(d0, d1) -> (d0 * 8 + d1)>(%j, %k)
          memref.store %x, %A[%i, %l] : memref<8x32xf32>
        }
      }
      return
    }"""
    levels = surveyed(text).levels
    assert [level.trips for level in levels[:4]] == [8, 4, 8, 0]
    assert [level.footprint_bytes for level in levels[:3]] == [8 * 32 * 4, 32 * 4, 8 * 4]


def test_loops_of_branches_are_seen():
    text = """
    func.func @main(%more: i1, %x: f32) -> f32 {
      cf.br ^outer
    ^outer:
      cf.br ^inner(%x : f32)
    ^inner(%y: f32):
      %z = arith.addf %y, %x : f32
      cf.cond_br %more, ^inner(%z : f32), ^check
    ^check:
      cf.cond_br %more, ^outer, ^end
    ^end:
      return %z : f32
    }"""
    found = surveyed(text)
    assert (found.loops, found.max_loop_depth, found.blocks, found.block_arguments) == (2, 2, 6, 1)
    assert [row[KINDS.index("float")] for row in found.histogram[:4]] == [0, 0, 1, 0]
    assert [level.estimated for level in found.levels[:3]] == [1, 1, 0]


def test_register_pressure_counts_what_is_alive_at_once():
    text = """
    func.func @main(%A: memref<64xf32>, %B: memref<4x32xf32>) {
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %c4 = arith.constant 4 : index
      %kept = vector.load %A[%c0] : memref<64xf32>, vector<16xf32>
      scf.for %i = %c0 to %c4 step %c1 {
        %wide = vector.load %B[%i, %c0] : memref<4x32xf32>, vector<32xf32>
        %twice = arith.addf %wide, %wide : vector<32xf32>
        vector.store %twice, %B[%i, %c0] : memref<4x32xf32>, vector<32xf32>
        vector.store %kept, %A[%c0] : memref<64xf32>, vector<16xf32>
      }
      return
    }"""
    found = surveyed(text)
    # One register is kept throughout; the loop has a value of 1024 bits, or its double, at any time.
    assert found.vector_pressure == 1 + 2
    assert found.integer_pressure == 1
    assert found.vector_bits == 1024
    assert found.vectorisable == 0


def test_constants():
    text = """
    func.func @main() -> (i32, f32, vector<4xf64>, f32) {
      %a = arith.constant -1000 : i32
      %b = arith.constant 0.25 : f32
      %c = arith.constant dense<100.0> : vector<4xf64>
      %d = arith.constant 0xFF800000 : f32
      return %a, %b, %c, %d : i32, f32, vector<4xf64>, f32
    }"""
    features = named(text)
    assert features["constant_log2_integer"] == count(1000, 64)
    assert features["constant_log10_float"] == pytest.approx(2 / 40)
    assert features["bits_element"] == pytest.approx(0.5)
    assert features["bits_log2_vector"] == log2(256, 20)


def test_context_tells_level_and_history():
    for index, level in enumerate(LEVELS):
        assert named(GEMM, level)["context_level"] == pytest.approx(index / 5)
    features = named(GEMM, actions=("canonicalize", "cse"))
    assert features["context_passes_hash"] == pytest.approx(zlib.crc32(b"canonicalize\ncse") / 2**32)
    assert features["context_log2_passes"] == count(2, 8)
    assert (
        named(GEMM, actions=("cse", "canonicalize"))["context_passes_hash"] != features["context_passes_hash"]
    )
    untouched = named(GEMM)
    assert untouched["context_passes_hash"] == untouched["context_log2_passes"] == 0.0


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("affine.load", "load"),
        ("vector.transfer_write", "store"),
        ("math.exp", "function"),
        ("math.sqrt", "function"),
        ("arith.addi", "integer"),
        ("linalg.matmul", "structured"),
        ("linalg.yield", "control"),
        ("tensor.extract_slice", "view"),
        ("vector.broadcast", "shuffle"),
        ("vector.contract", "contraction"),
        ("scf.for", "control"),
        ("unheard.of", "other"),
    ],
)
def test_kinds(name, kind):
    assert KINDS[kind_of(name)] == kind


def context(**changes):
    bound = speed_of_light(Work("f32", 10**6, 10**5, 10**5), PROFILE, 1)
    values = {
        "profile": PROFILE,
        "spec": cpu_spec(),
        "bound": bound,
        "timing": Timing(4 * bound.time_s, 16 * bound.time_s, bound),
        "last": Measurement.failed(Status.CRASHED, "it crashed"),
        "steps_left": 0.25,
        "recent_actions": (3, 0, 7),
        "actions": 8,
    }
    return Context(**(values | changes))


def observed(**changes):
    found = surveyed(GEMM)
    numbers = np.concatenate([mqss(found, "affine", "cpu", ()), module_part(found)])
    return dict(zip(FULL_NAMES, full(numbers, context(**changes)), strict=True))


def test_full_adds_machine_measurements_and_actions():
    features = observed()
    assert features["structure_max_loop_depth"] == pytest.approx(3 / 16)
    assert features["machine_log10_cores"] == pytest.approx(np.log10(4) / 20)
    assert features["bound_log10_room"] == pytest.approx(np.log10(16) / 5)
    assert features["attempt_crashed"] == 1.0
    assert features["score_sol_fraction"] == pytest.approx(0.25)
    assert features["score_log10_speedup"] == pytest.approx(np.log10(4) / 5)
    assert features["episode_steps_left"] == 0.25
    last_first = [features[f"action_{slot}_index"] for slot in range(8)]
    assert last_first == [1.0, 1 / 8, 4 / 8, 0, 0, 0, 0, 0]


def test_only_the_last_eight_actions_are_told():
    features = observed(recent_actions=tuple(range(20)), actions=20)
    assert [features[f"action_{slot}_index"] for slot in range(8)] == pytest.approx(
        [(20 - slot) / 20 for slot in range(8)]
    )


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_are_described_within_the_limits_and_alike_each_time(name):
    text = parse_task(PROGRAMS[name].default_task_id).module_text
    module = ir.Module.parse(text, MLIR)
    before = str(module)
    found = survey(module.operation)
    assert str(module) == before
    assert found == surveyed(text)
    numbers = np.concatenate([mqss(found, "tensor", "cpu", ()), module_part(found)])
    low, high = group_limits(FULL_GROUPS)
    assert numbers.dtype == np.float32
    assert np.all((low[: len(numbers)] <= numbers) & (numbers <= high[: len(numbers)]))
    # Nothing was cut off at the limit: only shares and one-bit features may reach it.
    for feature, value in zip(FULL_NAMES, numbers, strict=False):
        assert value < 1 or not feature.partition("_")[2].startswith("log2")
    assert found.max_loop_depth > 0
    cheap = surveyed(text, detailed=False)
    np.testing.assert_array_equal(mqss(cheap, "tensor", "cpu", ()), numbers[:28])
