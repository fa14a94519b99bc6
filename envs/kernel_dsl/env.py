"""Environments in which an agent schedules one tensor kernel, ``KernelDSL-<Kernel>-v0``."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from solgym.envs.base import Split, TuningEnv
from solgym.envs.design import CodeText, Move
from solgym.envs.kernel_dsl.actions import ActionTable, Pattern
from solgym.envs.kernel_dsl.experts import expert_schedule
from solgym.envs.kernel_dsl.features import FEATURE_NAMES, feature_limits, static_features, step_features
from solgym.envs.kernel_dsl.kernels import KERNELS, Kernel, KernelTask, parse_task
from solgym.envs.kernel_dsl.knob_source import KnobSource
from solgym.envs.kernel_dsl.knobs import KnobSpace, knob_space, pattern_actions
from solgym.envs.kernel_dsl.nest import ProgramNest
from solgym.envs.kernel_dsl.primitives import Step
from solgym.envs.kernel_dsl.schedule import Schedule
from solgym.envs.kernel_dsl.state import ScheduleState
from solgym.envs.proposals import EpisodeSource, ProposalSource
from solgym.errors import IllegalSchedule, InvalidOption, UnknownTask
from solgym.hardware.jit import assembly
from solgym.hardware.measurement import Measurement
from solgym.hardware.target import Candidate, TargetSpec

__all__ = ["ActionMode", "KernelDSLEnv"]

ActionMode = Literal["primitive", "knobs"]
HEAD_START_S = 0.002
"""How long finding the mask of a state waits for its code generation, which needs Python's lock too."""
DEFAULT_MAX_STEPS = {"primitive": 40, "knobs": 1}


class KernelDSLEnv(TuningEnv[ScheduleState]):
    """Schedule a tensor kernel: transform its loop nest until it runs at the hardware's speed of light.

    ## Description

    An episode begins with a kernel written as plain loops, for example a matrix product. In each step the
    agent applies one schedule primitive: it splits, reorders, unrolls or vectorises loops, packs tensors,
    moves stages into each other. The new schedule is compiled, its outputs are checked against a float64
    reference, and it is timed on this machine. Whatever the agent does, the kernel stays correct: primitives
    refuse what they cannot do safely, and refusals are known in advance by a mask.

    `render()` shows the loop nest, and `env.unwrapped.state.nest` holds it.

    ## Action Space

    With `action_mode="primitive"` the action space is a `Discrete` over (primitive, slot, argument), of the
    same size for every shape. Loop slots count the loops of the *stage in focus* from outside; tensor
    slots count the tensors that it reads.

    | actions | slots | arguments | what they do |
    |---|---|---|---|
    | `finish` | | | end the episode with the schedule in force |
    | `focus` | stage | | choose the stage that later actions refer to; measures nothing |
    | `pattern` | number | | start again from a well-known schedule skeleton |
    | `split` | loop | factor | two loops of one |
    | `reorder` | loop | `outer`, `outermost`, `innermost` | move a loop |
    | `unroll` | loop | | unroll completely |
    | `vectorize` | | lanes | run the innermost loop in vectors |
    | `parallel` | | | distribute the outermost loop over the threads |
    | `fuse` | loop | | make one loop of a loop and the next one inside |
    | `accumulate` | loop | | hold results in registers around a loop |
    | `split_reduction` | loop | none or a factor | several partial sums |
    | `compute_at` | loop of the reader | `reader`, `output` | move the stage into a loop of its last reader or of the output |
    | `cache_read` | tensor, loop or none | scope | copy what a loop's body reads into a contiguous buffer |
    | `prefetch` | tensor, loop | distance | touch what will be read some trips later |
    | `transpose` | tensor | | transpose square blocks in registers |
    | `slide` | tensor | | read overlapping vectors once and shift them in registers |
    | `stream` | | | store past the caches |

    `env.unwrapped.action_meanings()` names all actions. `info["action_mask"]` and
    `env.unwrapped.action_masks()` say which are legal now, and `env.unwrapped.explain(action)` why one is
    not. The action space has its own random generator: seed it with `env.action_space.seed(seed)`.

    With `action_mode="knobs"` the action space is a `MultiDiscrete` with one entry per schedule knob of the
    kernel (tile sizes, unrolling, packing, ...), and one action is a whole schedule.

    ## Observation Space

    A `Box` of float32 in [-1, 1], the same for every kernel and machine, so that one policy can serve all.
    `env.unwrapped.feature_names` names every number. With `mask_in_observation=True` it is a `Dict` with
    the keys `features` and `action_mask`.

    | index | name | min | max | meaning |
    |---|---|---|---|---|
    | 0-6 | `kernel_`: contraction, convolution, stencil, rows, pointwise, f32, f64 | 0 | 1 | one-hot: family of the kernel, element type |
    | 7-14 | `extent_#_`: log2 | 0 | 1 | log2 / 24, in the order of the task id; 0 if none (# from 0 to 7) |
    | 15-19 | `work_`: log2_flops, log2_bytes, log2_intensity, log2_terms, stages | -1 | 1 | log2 of flops / 42, of compulsory bytes / 32, of flop per byte / 12, of summed terms / 24; number of stages / 16 |
    | 20-50 | `machine_`: log10_cores, log10_vector_bits, log10_peak_f32_flops_per_s_1, log10_peak_f32_flops_per_s_all, log10_peak_f64_flops_per_s_1, log10_peak_f64_flops_per_s_all, log10_L1_size_bytes, log10_L1_read_bytes_per_s_1, log10_L1_copy_bytes_per_s_1, log10_L1_read_bytes_per_s_all, log10_L1_copy_bytes_per_s_all, log10_L2_size_bytes, log10_L2_read_bytes_per_s_1, log10_L2_copy_bytes_per_s_1, log10_L2_read_bytes_per_s_all, log10_L2_copy_bytes_per_s_all, log10_L3_size_bytes, log10_L3_read_bytes_per_s_1, log10_L3_copy_bytes_per_s_1, log10_L3_read_bytes_per_s_all, log10_L3_copy_bytes_per_s_all, log10_DRAM_size_bytes, log10_DRAM_read_bytes_per_s_1, log10_DRAM_copy_bytes_per_s_1, log10_DRAM_read_bytes_per_s_all, log10_DRAM_copy_bytes_per_s_all, log10_call_s, log10_parallel_region_s, log2_threads, log2_lanes, vector_registers | -1 | 1 | the profile's log10 values / 20; log2(threads) / 8, log2(vector lanes) / 8, vector registers / 64 |
    | 51-55 | `bound_`: compute, memory, log10_time, log10_balance, log10_room | -1 | 1 | one-hot: what binds; -log10(speed of light in s) / 9; log10(compute / memory term) / 4; log10(baseline / speed of light) / 5 |
    | 56-66 | `attempt_`: ok, illegal, compile_error, runtime_error, crashed, timeout, wrong_result, faster_than_light, unstable, log10_speedup, spread | -1 | 1 | one-hot: status of the last candidate tried; log10(its speedup over the baseline) / 5; its relative interval |
    | 67-70 | `score_`: gap_closed, sol_fraction, log10_distance, log10_speedup | -1 | 1 | of the schedule in force: gap closed, fraction of the speed of light, log10(time / speed of light) / 5, log10(speedup) / 5 |
    | 71 | `episode_`: steps_left | 0 | 1 | steps left / steps of an episode |
    | 72-295 | `loop_#_`: present, serial, unrolled, vector, parallel, device, reduction, fused, accumulates, partial, hosts, prefetches, axis, log2_trips, log2_stride, log2_span | 0 | 1 | loops of the stage in focus, outermost first: present, one-hot kind, flags (reduction, fused, accumulators begin here, partial sums, stages computed inside, prefetches inside), axis / 8, log2 of trips, stride and span / 24 (# from 0 to 13) |
    | 296-361 | `tensor_#_`: present, copy, intermediate, padded, transposed, sliding, prefetched, log2_bytes, invariant, contiguous, strided | 0 | 1 | tensors that the stage in focus reads: present, flags, log2(bytes) / 32, one-hot: how the innermost loop walks through it (# from 0 to 5) |
    | 362-569 | `stage_#_`: present, focus, attached, copy, output, sum, max, vectorised, accumulates, parallel, streams, loops, log2_points | 0 | 1 | stages in the order of computation: present, flags, loops / 14, log2(points) / 40 (# from 0 to 15) |

    ## Rewards

    `reward="gap_closed"` (default): the score after the step minus the score before, where the score of a
    time `T` is `ln(T_0 / T) / ln(T_0 / T_sol)` with the baseline `T_0` and the speed of light `T_sol`. The
    return of an episode that begins at the baseline is the final score, plus the cost of failures.
    `log_speedup`, `relative` and `sol_weighted` are described in `docs/environments.md`.

    An illegal action or a candidate that fails costs `failure_penalty` and leaves the schedule as it was.
    With `reward_at="end"` only the last schedule is measured, and the change over the whole episode is paid
    in the last step; steps before it cost no time on the hardware and find no failures but illegal actions.

    ## Starting State

    The untouched loop nest, or what `options` at reset ask for: `warm_start="expert"` (the best known
    hand-written schedule), `warm_start="ranked"` (proposed by a learned ranker) or `schedule=...`.
    `options={"task": "gemm/f32/m100n37k5"}` chooses any shape.

    ## Episode End

    Termination: `finish`, or a schedule that reaches the fraction `stop_at` of the speed of light. Truncation:
    `max_steps` steps; an episode of a single step, as in knobs mode, terminates instead.

    ## Arguments

    Those of `solgym.envs.base.TuningEnv`, and:

    * `kernel`: set by the id.
    * `action_mode`: `primitive` or `knobs`.
    * `mask_in_observation`: observe the action mask too.
    * `max_steps`: 40 by default, 1 in knobs mode.

    ## Version History

    * v0: first release.
    """  # noqa: E501 (tables)

    modes = ("knobs", "primitive")

    def __init__(
        self,
        kernel: str,
        *,
        action_mode: ActionMode = "primitive",
        mask_in_observation: bool = False,
        max_steps: int | None = None,
        **arguments: Any,
    ) -> None:
        """Make an environment of one kernel; see the class and ``TuningEnv`` for the arguments."""
        if kernel not in KERNELS:
            raise UnknownTask(f"There is no kernel {kernel!r}; there are {', '.join(sorted(KERNELS))}.")
        if action_mode not in DEFAULT_MAX_STEPS:
            raise InvalidOption(f"action_mode is {action_mode!r}; it must be 'primitive' or 'knobs'.")
        self.kernel: Kernel = KERNELS[kernel]
        self.action_mode: ActionMode = action_mode
        self.mask_in_observation = mask_in_observation
        super().__init__(
            max_steps=DEFAULT_MAX_STEPS[action_mode] if max_steps is None else max_steps, **arguments
        )
        self.table = ActionTable(self.target.spec.loop_kinds, self.target.spec.scopes)
        self.feature_names = FEATURE_NAMES
        self._masks: tuple[tuple[ScheduleState, NDArray[np.bool_]], ...] = ()
        self._static: NDArray[np.float32] | None = None
        if action_mode == "primitive":
            self.action_space = spaces.Discrete(len(self.table))
        else:
            self._sizes = self._knob_sizes()
            self.action_space = spaces.MultiDiscrete(self._sizes)
        low, high = feature_limits()
        features = spaces.Box(low, high, dtype=np.float32)
        self.observation_space: spaces.Space[Any] = features
        if mask_in_observation:
            actions = sum(self._sizes) if action_mode == "knobs" else len(self.table)
            mask = spaces.MultiBinary(actions)
            self.observation_space = spaces.Dict({"features": features, "action_mask": mask})

    # ------------------------------------------------------------------ tasks and candidates

    @property
    def task(self) -> KernelTask:
        """The task of the current episode."""
        task = super().task
        assert isinstance(task, KernelTask)
        return task

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """Whole schedules that the current task offers as single actions."""
        return _patterns(self.task, self.target.spec)

    def _task_ids(self, split: Split) -> tuple[str, ...]:
        return self.kernel.task_ids(split)

    @property
    def _default_task_id(self) -> str:
        return self.kernel.default_task_id

    def _make_task(self, task_id: str) -> KernelTask:
        task = parse_task(task_id)
        if task.kernel.name != self.kernel.name:
            raise UnknownTask(
                f"Task {task_id!r} belongs to KernelDSL-{task.kernel.env_id}-v0, but this is "
                f"KernelDSL-{self.kernel.env_id}-v0; make that one, or choose a task of {self.kernel.name}."
            )
        return task

    def _untouched(self) -> ScheduleState:
        return ScheduleState.untouched(self.task)

    def _state_of(self, candidate: object) -> ScheduleState:
        schedule = candidate if isinstance(candidate, Schedule) else self.read_candidate(candidate)
        return ScheduleState.scheduled(self.task, schedule.steps, self.target.spec)

    @classmethod
    def read_candidate(cls, data: object) -> Schedule:
        """A schedule from what ``Schedule.to_json`` wrote, or the text of that."""
        return Schedule.from_json(data)

    def _expert(self) -> Schedule:
        return expert_schedule(self.task, self.target.spec)

    def _proposals(self, mode: str) -> ProposalSource:
        if mode == "knobs":
            return KnobSource(self.knobs)
        every = np.arange(len(self.table))
        steps = self.max_steps if self.action_mode == "primitive" else DEFAULT_MAX_STEPS["primitive"]
        start = self._untouched()
        return EpisodeSource(
            start,
            self._primitive_move,
            lambda _: every,
            steps,
            actions=len(self.table),
            legal=lambda state: np.flatnonzero(self._mask_of(state)),
            state_of=self._state_of,
            actions_of=lambda schedule: self.table.path_to(
                _as_schedule(schedule), start, self.target.spec, self.patterns
            ),
        )

    def code_of(self, candidate: Candidate) -> tuple[CodeText, ...]:
        """A schedule of the current task as a loop nest, as LLVM IR and as assembly."""
        schedule = _as_schedule(candidate)
        nest = schedule.apply(ProgramNest.initial(self.task.computation), self.target.spec)
        ir = schedule.lower(self.task, self.target.spec).ir
        return (
            CodeText("nest", "loop nest", ".txt", str(nest)),
            CodeText("llvm", "LLVM IR", ".ll", ir),
            CodeText("asm", "assembly", ".s", assembly(ir)),
        )

    def history_of(self, candidate: Candidate) -> Iterator[tuple[str, str]]:
        """The loop nest before and after every step of a schedule of the current task."""
        schedule = _as_schedule(candidate)
        nests = schedule.nests(ProgramNest.initial(self.task.computation), self.target.spec)
        for number, nest in enumerate(nests):
            step = schedule.steps[number - 1] if number else None
            yield "untouched" if step is None else f"after step {number}: {_words(step)}", str(nest)

    def _describe(self) -> str:
        return str(self.state.nest)

    # ------------------------------------------------------------------ actions

    @property
    def knobs(self) -> KnobSpace:
        """The schedule knobs of the current task."""
        return knob_space(self.task, self.target.spec)

    def _knob_sizes(self) -> list[int]:
        """Choices per knob: the most that any named task has, so that the space is the same for all."""
        named = {*self.kernel.task_ids("train"), *self.kernel.task_ids("test")}
        spaces_ = [knob_space(parse_task(task), self.target.spec) for task in sorted(named)]
        return [
            max(len(choices) for choices in knobs)
            for knobs in zip(*(s.knobs.values() for s in spaces_), strict=True)
        ]

    def _move(self, state: ScheduleState, action: Any) -> Move[ScheduleState]:
        if self.action_mode == "primitive":
            return self._primitive_move(state, int(action))
        try:
            return Move(self._configured(action))
        except IllegalSchedule as error:
            return Move(None, illegal_because=str(error))

    def _primitive_move(self, state: ScheduleState, index: int) -> Move[ScheduleState]:
        try:
            successor = self.table.apply(index, state, self.target.spec, self.patterns)
        except IllegalSchedule as error:
            return Move(None, illegal_because=str(error))
        return Move(successor, finishes=self.table.actions[index].kind == "finish")

    def _configured(self, action: Any) -> ScheduleState:
        """The state that a setting of all knobs gives."""
        knobs = self.knobs
        for (name, choices), chosen in zip(knobs.knobs.items(), action, strict=True):
            if chosen >= len(choices):
                raise IllegalSchedule(
                    f"knob {name} has {len(choices)} choices for this task, not {chosen + 1}"
                )
        return ScheduleState.reached(*knobs.scheduled(knobs.decode(action)))

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are legal now; in knobs mode the choices of each knob, one after the other."""
        if self.action_mode == "primitive":
            return self._mask_of(self.state).copy()
        masks = []
        for size, choices in zip(self._sizes, self.knobs.knobs.values(), strict=True):
            masks.append(np.arange(size) < len(choices))
        return np.concatenate(masks)

    def _evaluate_state(self) -> Measurement:
        """Measure the state in force, and meanwhile find out what is legal in it.

        Most of a trial is spent in LLVM and waiting for the worker, both without Python's lock. The short
        sleep lets code generation have the lock first, so that the mask falls into that time.
        """
        if self.action_mode == "knobs":
            return super()._evaluate_state()
        state = self._state

        def look_ahead() -> None:
            time.sleep(HEAD_START_S)
            self._mask_of(state)

        ahead = threading.Thread(target=look_ahead, daemon=True)
        ahead.start()
        try:
            return super()._evaluate_state()
        finally:
            ahead.join()

    def _mask_of(self, state: ScheduleState) -> NDArray[np.bool_]:
        """The mask of a state; those of the last two are remembered, as a failed step leads back."""
        for known, mask in self._masks:
            if known is state:
                return mask
        mask = self.table.mask(state, self.target.spec, self.patterns)
        self._masks = ((state, mask), *self._masks[:1])
        return mask

    def action_meanings(self) -> tuple[str, ...]:
        """What each entry of the mask means on the current task."""
        if self.action_mode == "knobs":
            return tuple(
                f"{name} = {choices[k] if k < len(choices) else 'unused'}"
                for size, (name, choices) in zip(self._sizes, self.knobs.knobs.items(), strict=True)
                for k in range(size)
            )
        named = {f"pattern number {k}": pattern.label for k, pattern in enumerate(self.patterns)}
        return tuple(named.get(meaning, meaning) for meaning in self.table.meanings)

    def explain(self, action: Any) -> str | None:
        """Why an action is illegal now, or None if it is legal."""
        if not self.action_space.contains(action):
            return f"it is not in {self.action_space}"
        return self._move(self.state, action).illegal_because or None

    def _label(self, action: Any) -> str:
        if self.action_mode == "knobs":
            settings = zip(self.knobs.knobs.items(), action, strict=True)
            return ", ".join(f"{name}={choices[k]}" for (name, choices), k in settings if k < len(choices))
        chosen = self.table.actions[int(action)]
        if chosen.kind == "pattern" and chosen.slot is not None and chosen.slot < len(self.patterns):
            return self.patterns[chosen.slot].label
        return str(chosen)

    # ------------------------------------------------------------------ observations

    def _observation(self) -> Any:
        if self._steps == 0:
            self._static = static_features(
                self.task, self.target.spec, self.profile, self.bound, self._timing.baseline_s
            )
        assert self._static is not None
        left = 1.0 - self._steps / self.max_steps
        features = step_features(self._static, self.state, self._timing, self._last, left)
        if not self.mask_in_observation:
            return features
        return {"features": features, "action_mask": self.action_masks().astype(np.int8)}


def _as_schedule(candidate: Candidate) -> Schedule:
    if not isinstance(candidate, Schedule):
        raise InvalidOption(f"{candidate!r} is no schedule")
    return candidate


def _words(step: Step) -> str:
    return " ".join(f"{key}={value}" if key != "op" else str(value) for key, value in step.items())


@functools.lru_cache(maxsize=64)
def _patterns(task: KernelTask, spec: TargetSpec) -> tuple[Pattern, ...]:
    return tuple(pattern_actions(task, spec))
