"""How long a policy takes to decide on a CPU, one observation at a time: the network, then features too."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
from pytest_benchmark.fixture import BenchmarkFixture
from torch_mlir import ir, passmanager

from benchmarks.scoreboard import QuantityRow, Report
from benchmarks.test_mlir_features import OPERATIONS, STAGES
from solgym.baselines.rl.policy import Policy, PolicyInfo, action_names, branches_of
from solgym.baselines.runner import make_env
from solgym.envs.base import TuningEnv
from solgym.envs.mlir_passes.features import full, module_part, mqss, survey
from solgym.envs.mlir_passes.programs import PROGRAMS, parse_task
from solgym.hardware.profile import HardwareProfile

HIDDEN = (128, 64, 32)
NETWORK_LIMIT_MS = 0.4
DECISION_LIMIT_MS = 1.0
Decisions = tuple[list[float], list[float]]
"""Milliseconds of the network alone, and of the features with it, one of each per state."""


def policy_for(env: TuningEnv[Any]) -> Policy:
    """Random weights: how long a product takes does not depend on them."""
    features, actions = env.feature_names, action_names(env)
    rng = np.random.default_rng(0)
    sizes = (len(features), *HIDDEN, len(actions))
    info = PolicyInfo(
        algo="maskable-ppo", env_id="any", features=features, actions=actions, branches=branches_of(env)
    )
    return Policy(info, [(rng.normal(size=(b, a)) / a**0.5, np.zeros(b)) for a, b in pairwise(sizes)])


def milliseconds(compute: Callable[[], object], turns: int) -> float:
    times = []
    for _ in range(turns):
        started = time.perf_counter()
        compute()
        times.append(time.perf_counter() - started)
    return 1e3 * median(times)


def decisions_on_a_kernel(profile: HardwareProfile, turns: int) -> tuple[Policy, Decisions]:
    """Along random episodes of GEMM; features as ``step`` makes them, masks left out."""
    alone, whole = [], []
    options: dict[str, Any] = {"profile": profile, "reward_at": "end", "max_steps": 12}
    with closing(make_env("KernelDSL-GEMM-v0", task="gemm/f32/m64n64k64", options=options)) as env:
        policy = policy_for(env)
        env.action_space.seed(0)
        for seed in range(4):
            observation, info = env.reset(seed=seed)
            is_over = False
            while not is_over:
                action = env.action_space.sample(info["action_mask"])
                observation, _, terminated, truncated, info = env.step(action)
                is_over, mask = terminated or truncated, info["action_mask"].astype(bool)
                alone.append(milliseconds(lambda o=observation, m=mask: policy.act(o, m), turns))
                whole.append(milliseconds(lambda m=mask: policy.act(env._observation(), m), turns))
    return policy, (alone, whole)


def decisions_on_programs(profile: HardwareProfile, turns: int, observation: str) -> tuple[Policy, Decisions]:
    """On the suites' programs before and after some passes, with the survey of the module itself."""
    alone, whole = [], []
    options: dict[str, Any] = {"profile": profile, "observation": observation}
    task = "gemm/f32/m64n64k64"
    with closing(make_env("MLIRPasses-Gemm-v0", task=task, options=options)) as env:
        policy = policy_for(env)
        env.reset(seed=0)
        around = env._context()  # type: ignore[attr-defined]
    context = ir.Context()
    context.enable_multithreading(False)
    mask = np.ones(sum(policy.info.branches), dtype=np.bool_)
    for program in PROGRAMS.values():
        text = parse_task(program.default_task_id).module_text
        for passes in STAGES:
            module = ir.Module.parse(text, context)
            passmanager.PassManager.parse(f"builtin.module({passes})", context).run(module.operation)

            def features(operation: ir.Operation = module.operation) -> Any:
                if observation == "mqss":
                    return mqss(survey(operation, detailed=False), "tensor", "cpu", ())
                found = survey(operation)
                numbers = np.concatenate([mqss(found, "tensor", "cpu", ()), module_part(found)])
                return full(numbers, around)

            size = survey(module.operation, detailed=False).operations
            if OPERATIONS[0] <= size <= OPERATIONS[1]:
                seen = features()
                alone.append(milliseconds(lambda o=seen: policy.act(o, mask), turns))
                whole.append(milliseconds(lambda f=features: policy.act(f(), mask), turns))
    return policy, (alone, whole)


def rows(name: str, policy: Policy, decisions: Decisions) -> list[QuantityRow]:
    alone, whole = decisions
    sizes = "-".join(str(size) for size in (len(policy.info.features), *HIDDEN, len(policy.info.actions)))
    return [
        QuantityRow(
            name=f"decision, {name}: network",
            value=median(alone),
            unit="ms",
            limit=NETWORK_LIMIT_MS,
            detail=f"{sizes}, {policy.parameters:,} parameters; slowest state {max(alone):.2f} ms",
        ),
        QuantityRow(
            name=f"decision, {name}: with features",
            value=median(whole),
            unit="ms",
            limit=DECISION_LIMIT_MS,
            detail=f"median over {len(whole)} states; slowest {max(whole):.2f} ms",
        ),
    ]


def test_decisions(
    benchmark: BenchmarkFixture, report: Report, profile: HardwareProfile, quick: bool
) -> None:
    turns = 5 if quick else 31

    def measured() -> list[QuantityRow]:
        found = rows("kernels", *decisions_on_a_kernel(profile, turns))
        for observation in ("full", "mqss"):
            found += rows(f"programs, {observation}", *decisions_on_programs(profile, turns, observation))
        return found

    report.quantities += benchmark.pedantic(measured, rounds=1)
