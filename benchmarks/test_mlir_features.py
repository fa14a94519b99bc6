"""How long the features of an MLIR module take: the suites' programs as they are, and after some passes."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

from pytest_benchmark.fixture import BenchmarkFixture
from torch_mlir import ir, passmanager

from benchmarks.scoreboard import QuantityRow, Report
from solgym.envs.mlir_passes.features import module_part, mqss, survey
from solgym.envs.mlir_passes.programs import PROGRAMS, parse_task

OPERATIONS = (20, 600)
"""Sizes of modules that count; a few untouched ones are smaller."""

STAGES = (
    "",
    "one-shot-bufferize{bufferize-function-boundaries=true}",
    "one-shot-bufferize{bufferize-function-boundaries=true},func.func(convert-linalg-to-affine-loops)",
    "one-shot-bufferize{bufferize-function-boundaries=true},func.func(convert-linalg-to-affine-loops,"
    "affine-loop-unroll{unroll-factor=8})",
    "one-shot-bufferize{bufferize-function-boundaries=true},func.func(convert-linalg-to-loops),convert-scf-to-cf",
)
"""What is done to each program, to have modules of every level."""


@dataclass(frozen=True)
class Taken:
    """Milliseconds for one module, each the median of some turns."""

    operations: int
    mqss_ms: float
    full_ms: float


def milliseconds(compute: Callable[[], object], turns: int) -> float:
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        compute()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


def measured(turns: int) -> list[Taken]:
    context = ir.Context()
    context.enable_multithreading(False)
    taken = []
    for program in PROGRAMS.values():
        text = parse_task(program.default_task_id).module_text
        for passes in STAGES:
            module = ir.Module.parse(text, context)
            passmanager.PassManager.parse(f"builtin.module({passes})", context).run(module.operation)
            operation = module.operation

            def short(operation: ir.Operation = operation) -> object:
                return mqss(survey(operation, detailed=False), "tensor", "cpu", ())

            def long(operation: ir.Operation = operation) -> object:
                found = survey(operation)
                return mqss(found, "tensor", "cpu", ()), module_part(found)

            size = survey(operation, detailed=False).operations
            if OPERATIONS[0] <= size <= OPERATIONS[1]:
                taken.append(Taken(size, milliseconds(short, turns), milliseconds(long, turns)))
    return taken


def test_features(benchmark: BenchmarkFixture, report: Report, quick: bool) -> None:
    taken: list[Taken] = benchmark.pedantic(measured, args=(3 if quick else 15,), rounds=1)
    sizes = [one.operations for one in taken]
    detail = (
        f"median over {len(taken)} modules of {min(sizes)} to {max(sizes)} operations, median "
        f"{median(sizes):.0f}; slowest " + "{:.2f} ms"
    )
    report.quantities += [
        QuantityRow(
            name="features mqss of a module",
            value=median(one.mqss_ms for one in taken),
            unit="ms",
            limit=1,
            detail=detail.format(max(one.mqss_ms for one in taken)),
        ),
        QuantityRow(
            name="features full of a module",
            value=median(one.full_ms for one in taken),
            unit="ms",
            limit=5,
            detail=detail.format(max(one.full_ms for one in taken)),
        ),
    ]
