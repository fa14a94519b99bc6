"""Environments in which an agent builds the pass pipeline of an MLIR program, ``MLIRPasses-<Program>-v0``."""

from __future__ import annotations

import string
from collections import OrderedDict, deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from solgym.envs.base import Split, TuningEnv
from solgym.envs.design import CodeText, Move
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.client import PassFailure, default_pass_worker
from solgym.envs.mlir_passes.experts import applicable, known_sequence, overall_sequence
from solgym.envs.mlir_passes.features import FULL_NAMES, MQSS_NAMES, Context, feature_limits, full
from solgym.envs.mlir_passes.modes import FloatMode, Form, Jit, Want
from solgym.envs.mlir_passes.programs import PROGRAMS, SUITES, Program, ProgramTask, parse_task
from solgym.envs.mlir_passes.sequence import MAX_ACTIONS, PassSequence
from solgym.envs.mlir_passes.state import PassState
from solgym.envs.mlir_passes.user_program import UserTask, load_program
from solgym.envs.proposals import EpisodeSource, ProposalSource
from solgym.errors import IllegalSchedule, InvalidOption, UnknownTask
from solgym.hardware.measurement import Measurement, Status
from solgym.hardware.target import Candidate

__all__ = ["HeldOut", "MLIRPassesEnv"]

HeldOut = Literal["programs", "shapes"]

TEXT_MAX: Final = 1 << 20
"""Longest module text in an observation; longer ones are cut off."""

ACTIONS_SHOWN: Final = 8
FALLBACK_AFTER: Final = 3
FALLBACK_BELOW: Final = -0.5

PROPOSED_ACTIONS_MAX: Final = 20
"""Longest sequence that a tuner proposes; the longest known to be good has 18 actions. Random ones of 40 cost
several times the time to draw, and make modules of hundreds of operations that take LLVM seconds.
"""

FATAL_ACTIONS_MAX: Final = 10_000
"""Actions that crashed or hung that a process remembers."""

FATAL_TRIES: Final = 2
"""How often an action may crash or hang on a module, for seconds each: once may be a busy machine's fault."""

FUTILE: Final = "it has been tried in this state, and changed nothing or failed"
TOO_LONG: Final = f"a sequence has at most {MAX_ACTIONS} actions"

_NOT_RUNNING: Final = frozenset(
    {Status.COMPILE_ERROR, Status.CRASHED, Status.RUNTIME_ERROR, Status.WRONG_RESULT, Status.ILLEGAL}
)


_fatal_actions: OrderedDict[tuple[str, str], int] = OrderedDict()
"""How often an action has crashed or hung, by the module's digest and the action."""


def _count_fatal(digest: str, action: str) -> None:
    _fatal_actions[digest, action] = _fatal_actions.get((digest, action), 0) + 1
    while len(_fatal_actions) > FATAL_ACTIONS_MAX:
        _fatal_actions.popitem(last=False)


class MLIRPassesEnv(TuningEnv[PassState]):
    """Build the pass pipeline of an MLIR program, pass by pass, until its code runs at the speed of light.

    ## Description

    An episode begins with a program as MLIR, for example a matrix product as `linalg.matmul` on tensors. In
    each step the agent applies one action of a catalogue: it tiles, fuses and vectorises structured
    operations, turns tensors into buffers, transforms affine and scf loops, lowers vectors, cleans up. After
    each action the module is verified and, unless rewards are put off, finished by a fixed pipeline,
    compiled, checked against a float64 reference and timed on this machine.

    Passes run in a process of their own. One that fails, crashes or hangs costs the penalty and is undone,
    and the episode goes on; so does one that makes the program compute something wrong, which happens, or
    many times slower than it was. What has crashed or hung twice on a module is not tried on it again.

    Programs: `solgym list MLIRPasses` and docs/mlir_passes.md. A suite draws a program at each reset.

    ## Action Space

    A `Discrete` over the catalogue, `solgym.envs.mlir_passes.catalogue.ACTIONS`, the same for every program.
    `finish`, action 0, ends the episode.

    | level | actions work on |
    |---|---|
    | `tensor` | linalg operations on tensors or buffers: tile, fuse, pad, interchange, pack, vectorise |
    | `bufferize` | the step from tensors to buffers, and where buffers live |
    | `affine` | affine loops: tile, unroll, unroll and jam, vectorise, fuse, replace by scalars |
    | `scf` | scf loops: peel, unroll, specialise; parallel loops |
    | `vector` | vectors: hoist and lower transfers, contractions, reductions, transposes |
    | `any` | clean-ups at any level, approximate mathematics, and `finish` |

    The module itself decides which actions are offered: what an action works on must be there, and
    combinations that are known to give wrong code or to crash a pass are left out, and so is what has come to
    nothing in the state in force. `info["action_mask"]` and
    `env.unwrapped.action_masks()` say which are; `env.unwrapped.explain(action)` why one is not;
    `env.unwrapped.action_meanings()` names all. An action that leaves the module's text as it was measures
    nothing and says so in `info["unchanged"]`. The action space has its own random generator: seed it with
    `env.action_space.seed(seed)`.

    ## Observation Space

    With `observation="full"` (default) a `Box` of float32 in [-1, 1] with all the rows below; with
    `observation="mqss"` the first 28 numbers; with `observation="text"` a `Text`, the module itself.
    `env.unwrapped.feature_names` names every number. With `mask_in_observation=True` it is a `Dict` with the
    keys `features` (or `text`) and `action_mask`.

    | index | name | min | max | meaning |
    |---|---|---|---|---|
    | 0-7 | `structure_`: max_loop_depth, log2_blocks, log2_block_arguments, load_store_share, vectorisable_share, log2_operations, log2_functions, log2_loops | 0 | 1 | deepest loop nest / 16; log2(1 + n) of blocks and of block arguments, which MLIR has in the place of phis, / 16; loads and stores, and floating-point operations on single numbers inside loops, as shares of all operations; log2(1 + n) of operations / 20, of functions / 8, of loops / 16, those that linalg operations stand for included |
    | 8-15 | `count_`: loads, stores, float, function, integer, structured, view, vector | 0 | 1 | log2(1 + n) / 16 of operations by kind: loads, stores, floating-point arithmetic, elementary functions, integers and comparisons, linalg operations, views and allocations, operations on whole vectors |
    | 16-19 | `shape_`: log2_largest, log2_smallest, rank, log2_innermost | 0 | 1 | of the types of tensors and buffers, slices included: log2 of elements of the largest / 32 and of the smallest / 32; most extents / 8; mean log2 of the last extent / 24 |
    | 20-21 | `bits_`: element, log2_vector | 0 | 1 | bits of the widest floating-point number / 64; log2 of the bits of the largest vector / 20 |
    | 22-23 | `constant_`: log2_integer, log10_float | -1 | 1 | log2(1 + largest absolute integer constant) / 64; log10 of the largest absolute finite floating-point constant / 40 |
    | 24-27 | `context_`: level, target, passes_hash, log2_passes | 0 | 1 | dialect level: 0 tensor, 0.2 linalg on buffers, 0.4 affine, 0.6 scf, 0.8 cf, 1 llvm; target: 0 cpu, 1 gpu; CRC-32 of the names of the applied passes / 2**32, 0 without any; log2(1 + passes applied) / 8 |
    | 28-139 | `operations_#_`: load, store, float, function, integer, selection, constant, contraction, structured, view, allocation, shuffle, control, other | 0 | 1 | operations inside # loops (7: or more), by kind: log2(1 + n) / 16 (# from 0 to 7) |
    | 140-187 | `loops_#_`: log2_count, structured, estimated, log2_trips, log2_iterations, log2_footprint | 0 | 1 | loops inside # others (7: or more): log2(1 + n) / 12; share that linalg operations stand for; share whose trip count is not constant; log2 of the largest trip count / 32, of iterations with the loops around / 64, of the bytes that one run of a loop touches / 40 (# from 0 to 7) |
    | 188-189 | `registers_`: log2_vector, log2_integer | 0 | 1 | log2(1 + n) / 12 of the most registers of 512 bits that floating-point values and vectors need at one place, and of the most integers and indices alive at one place |
    | 190-220 | `machine_`: log10_cores, log10_vector_bits, log10_peak_f32_flops_per_s_1, log10_peak_f32_flops_per_s_all, log10_peak_f64_flops_per_s_1, log10_peak_f64_flops_per_s_all, log10_L1_size_bytes, log10_L1_read_bytes_per_s_1, log10_L1_copy_bytes_per_s_1, log10_L1_read_bytes_per_s_all, log10_L1_copy_bytes_per_s_all, log10_L2_size_bytes, log10_L2_read_bytes_per_s_1, log10_L2_copy_bytes_per_s_1, log10_L2_read_bytes_per_s_all, log10_L2_copy_bytes_per_s_all, log10_L3_size_bytes, log10_L3_read_bytes_per_s_1, log10_L3_copy_bytes_per_s_1, log10_L3_read_bytes_per_s_all, log10_L3_copy_bytes_per_s_all, log10_DRAM_size_bytes, log10_DRAM_read_bytes_per_s_1, log10_DRAM_copy_bytes_per_s_1, log10_DRAM_read_bytes_per_s_all, log10_DRAM_copy_bytes_per_s_all, log10_call_s, log10_parallel_region_s, log2_threads, log2_lanes, vector_registers | -1 | 1 | the profile's log10 values / 20; log2(threads) / 8, log2(vector lanes) / 8, vector registers / 64 |
    | 221-225 | `bound_`: compute, memory, log10_time, log10_balance, log10_room | -1 | 1 | one-hot: what binds; -log10(speed of light in s) / 9; log10(compute / memory term) / 4; log10(baseline / speed of light) / 5 |
    | 226-236 | `attempt_`: ok, illegal, compile_error, runtime_error, crashed, timeout, wrong_result, faster_than_light, unstable, log10_speedup, spread | -1 | 1 | one-hot: status of the last candidate tried; log10(its speedup over the baseline) / 5; its relative interval |
    | 237-240 | `score_`: gap_closed, sol_fraction, log10_distance, log10_speedup | -1 | 1 | of the schedule in force: gap closed, fraction of the speed of light, log10(time / speed of light) / 5, log10(speedup) / 5 |
    | 241 | `episode_`: steps_left | 0 | 1 | steps left / steps of an episode |
    | 242-249 | `action_#_`: index | 0 | 1 | the action taken # steps before the last one: (index + 1) / number of actions; 0 if there was none (# from 0 to 7) |

    ## Rewards

    As in all families (docs/environments.md): by default `gap_closed`, the score after the step minus the
    score before. The baseline of the score is the untouched program through the plain pipeline at O3. An
    illegal action, a pass that fails and code that fails cost `failure_penalty` and are undone. With
    `reward_at="end"` only the last module is compiled and measured.

    ## Starting State

    The untouched program, or what `options` at reset ask for: `warm_start="expert"` (the best known sequence
    of the program), `warm_start="ranked"` (proposed by a learned ranker) or `schedule=...`, a `PassSequence`
    or its JSON. `options={"task": "gemm/f32/m100n37k5"}` chooses any shape.

    ## Episode End

    Termination: `finish`, or a module that reaches the fraction `stop_at` of the speed of light, or the
    expert's sequence where `fallback="expert"` calls for it. Truncation: `max_steps` steps.

    ## Arguments

    Those of `solgym.envs.base.TuningEnv`, and:

    * `program`: the name of a program, or an MLIR file of your own (see `user_program`); set by most ids.
    * `suite`: `PolyBench`, `ML` or `All` instead of a program.
    * `function`: the function of the file to run, where it has several.
    * `observation`: `full`, `mqss` or `text`.
    * `mask_in_observation`: observe the action mask too.
    * `jit`: `llvmlite` or `mlir`, which LLVM makes machine code.
    * `float_mode`: `contract,reassoc` (multiply-adds may be fused, sums reordered), `contract` or `strict`;
    the same
      for every candidate and the baseline.
    * `enforce_masks`: whether actions that are not offered are refused. Without, they are tried.
    * `fallback`: `expert` finishes an episode with the expert's sequence after three rewards below -0.5 in a
    row.
    * `held_out`: what `split="test"` of a suite holds out: `programs`, or `shapes` of the training programs.
    * `max_steps`: 40 by default.

    ## Version History

    * v0: first release.
    """  # noqa: E501 (tables)

    modes = ("passes",)

    def __init__(
        self,
        program: str | Path | None = None,
        *,
        suite: str | None = None,
        function: str | None = None,
        observation: Want = "full",
        mask_in_observation: bool = False,
        jit: Jit = "llvmlite",
        float_mode: FloatMode = "contract,reassoc",
        enforce_masks: bool = True,
        fallback: Literal["expert"] | None = None,
        held_out: HeldOut = "programs",
        max_steps: int = 40,
        **arguments: Any,
    ) -> None:
        """Make an environment of a program, a suite or a file; see the class for the arguments."""
        for name, value, known in (
            ("observation", observation, get_args(Want)),
            ("jit", jit, get_args(Jit)),
            ("float_mode", float_mode, get_args(FloatMode)),
            ("fallback", fallback, ("expert", None)),
            ("held_out", held_out, get_args(HeldOut)),
        ):
            if value not in known:
                raise InvalidOption(f"{name} is {value!r}; it must be one of {', '.join(map(repr, known))}.")
        if max_steps > MAX_ACTIONS:
            raise InvalidOption(
                f"max_steps is {max_steps}; pass sequences have at most {MAX_ACTIONS} actions."
            )
        if arguments.get("threads", 1) != 1:
            raise InvalidOption(f"threads is {arguments['threads']!r}; MLIR programs run on one thread.")
        self._user: UserTask | None = None
        self._programs: tuple[Program, ...] = self._chosen(program, suite, function)
        self.suite = suite
        self.held_out: HeldOut = held_out
        self.observation: Want = observation
        self.mask_in_observation = mask_in_observation
        self.jit: Jit = jit
        self.float_mode: FloatMode = float_mode
        self.enforce_masks = enforce_masks
        self.fallback = fallback
        self._recent: deque[int] = deque(maxlen=ACTIONS_SHOWN)
        self._futile: set[int] = set()
        """Actions that came to nothing in the state in force: no change, or a failure."""
        self._futile_before: set[int] = set()
        self._fell_back = False
        self._bad_rewards = 0
        super().__init__(max_steps=max_steps, **arguments)
        if self.target.spec.threads != 1:
            raise InvalidOption("The target has several threads; MLIR programs run on one.")
        self.feature_names: tuple[str, ...] = {"mqss": MQSS_NAMES, "full": FULL_NAMES, "text": ()}[
            observation
        ]
        self.action_space = spaces.Discrete(len(ACTIONS))
        seen: spaces.Space[Any]
        if observation == "text":
            seen = spaces.Text(TEXT_MAX, min_length=0, charset=string.printable)
        else:
            seen = spaces.Box(*feature_limits(self.feature_names), dtype=np.float32)
        self.observation_space: spaces.Space[Any] = seen
        if mask_in_observation:
            name = "text" if observation == "text" else "features"
            self.observation_space = spaces.Dict(
                {name: seen, "action_mask": spaces.MultiBinary(len(ACTIONS))}
            )

    # ------------------------------------------------------------------ programs and tasks

    def _chosen(
        self, program: str | Path | None, suite: str | None, function: str | None
    ) -> tuple[Program, ...]:
        if (program is None) == (suite is None):
            raise InvalidOption(
                f"program is {program!r} and suite is {suite!r}; give one of them: program, an MLIR file or "
                f"the name of a program, or suite, one of {', '.join(SUITES)}."
            )
        if suite is not None:
            if suite not in SUITES:
                raise InvalidOption(f"There is no suite {suite!r}; choose one of {', '.join(SUITES)}.")
            return SUITES[suite]
        if isinstance(program, str) and program in PROGRAMS:
            if function not in (None, "main"):
                raise InvalidOption(f"Program {program!r} has no function {function!r}; leave it out.")
            return (PROGRAMS[program],)
        if not isinstance(program, str | Path):
            raise InvalidOption(f"program is {program!r}; it must be a name or an MLIR file.")
        if isinstance(program, str) and "." not in program and "/" not in program:
            raise UnknownTask(
                f"There is no program {program!r}; there are {', '.join(sorted(PROGRAMS))}; "
                "a file ends in .mlir."
            )
        self._user = load_program(program, function)
        return ()

    @property
    def task(self) -> ProgramTask | UserTask:
        """The task of the current episode."""
        task = super().task
        assert isinstance(task, ProgramTask | UserTask)
        return task

    def _task_ids(self, split: Split) -> tuple[str, ...]:
        if self._user is not None:
            return (self._user.id,)
        if self.suite is None or self.held_out == "shapes":
            chosen = [p for p in self._programs if self.suite is None or p.split == "train"]
            return tuple(task for program in chosen for task in program.task_ids(split))
        chosen = [program for program in self._programs if program.split == split]
        shapes: tuple[Split, ...] = ("train",) if split == "train" else ("train", "test")
        return tuple(task for program in chosen for part in shapes for task in program.task_ids(part))

    @property
    def _default_task_id(self) -> str:
        return self._user.id if self._user is not None else self._programs[0].default_task_id

    def _offered(self, task: str | None, split: Split | None) -> tuple[str, ...]:
        if task is None and split is None and self.suite is not None:
            return tuple(program.default_task_id for program in self._programs)
        return super()._offered(task, split)

    def _make_task(self, task_id: str) -> ProgramTask | UserTask:
        if self._user is not None:
            if task_id != self._user.id:
                raise UnknownTask(f"Task {task_id!r} is not offered here; the only one is {self._user.id!r}.")
            return self._user
        task = parse_task(task_id)
        if task.program not in self._programs:
            raise UnknownTask(
                f"Task {task_id!r} belongs to MLIRPasses-{task.program.env_id}-v0; make that one, or choose "
                f"a task of {', '.join(program.name for program in self._programs)}."
            )
        return task

    # ------------------------------------------------------------------ candidates

    @classmethod
    def read_candidate(cls, data: object) -> PassSequence:
        """A pass sequence from what its ``to_json`` wrote, or the text of that."""
        return PassSequence.from_json(data)

    def _untouched(self) -> PassState:
        try:
            return self._state_after(())
        except IllegalSchedule as error:
            raise InvalidOption(f"The module of {self.task.id} cannot be read: {error}; mend it.") from error

    def _state_of(self, candidate: object) -> PassState:
        sequence = candidate if isinstance(candidate, PassSequence) else PassSequence.from_json(candidate)
        return self._state_after(sequence.actions)

    def _state_after(self, actions: tuple[str, ...]) -> PassState:
        view = default_pass_worker().view(self.task, actions, self.observation)
        if isinstance(view, PassFailure):
            raise IllegalSchedule(view.error)
        return PassState(self._sequence(actions), view)

    def _sequence(self, actions: tuple[str, ...]) -> PassSequence:
        return PassSequence(self.task.id, actions, self.jit, self.float_mode)

    def _expert(self) -> PassSequence:
        return self._sequence(applicable(self.task, known_sequence(self.task.id)))

    @property
    def best_fixed(self) -> PassSequence:
        """The pipeline that is best over all training programs, on the current task."""
        return self._sequence(applicable(self.task, overall_sequence()))

    def _proposals(self, mode: str) -> ProposalSource:
        return EpisodeSource(
            self._untouched(),
            self._move,
            lambda state: np.flatnonzero(state.view.mask),
            min(self.max_steps, PROPOSED_ACTIONS_MAX),
            actions=len(ACTIONS),
            state_of=self._state_of,
            actions_of=_actions_of,
        )

    @property
    def toolchain(self) -> str:
        """What turns candidates into machine code."""
        return default_pass_worker().toolchain

    def code_of(self, candidate: Candidate) -> tuple[CodeText, ...]:
        """The module after a candidate's actions, as MLIR, LLVM IR and assembly."""
        assert isinstance(candidate, PassSequence)
        forms: tuple[tuple[Form, str, str], ...] = (
            ("mlir", "MLIR", ".mlir"),
            ("llvm", "LLVM IR", ".ll"),
            ("asm", "assembly", ".s"),
        )
        made = []
        for form, title, suffix in forms:
            text = default_pass_worker().code(self.task, candidate.actions, form, candidate.float_mode)
            if isinstance(text, PassFailure):
                raise IllegalSchedule(text.error)
            made.append(CodeText(form, title, suffix, text))
        return tuple(made)

    def history_of(self, candidate: Candidate) -> Iterator[tuple[str, str]]:
        """The module before the first action of a candidate and after every one."""
        assert isinstance(candidate, PassSequence)
        for count in range(len(candidate.actions) + 1):
            text = default_pass_worker().code(self.task, candidate.actions[:count])
            if isinstance(text, PassFailure):
                raise IllegalSchedule(text.error)
            yield f"after step {count}: {candidate.actions[count - 1]}" if count else "untouched", text

    def evaluate(self, candidate: Candidate, known: Measurement | None = None) -> Measurement:
        """Compile, check and time a candidate; code that crashes or computes something wrong goes to the
        crash log. Code that is too slow is nobody's fault.
        """
        measurement = super().evaluate(candidate, known)
        if measurement.status in (Status.WRONG_RESULT, Status.CRASHED, Status.RUNTIME_ERROR):
            self._log(candidate, measurement)
        return measurement

    def _log(self, candidate: Candidate, measurement: Measurement) -> None:
        from solgym.envs.mlir_passes.crash_log import record_failure

        if isinstance(candidate, PassSequence) and measurement.artifact_digest is not None:
            failure = PassFailure(measurement.status, measurement.error or "")  # type: ignore[arg-type]
            record_failure(self.task, candidate.actions, "run", failure)

    # ------------------------------------------------------------------ actions

    def _move(self, state: PassState, action: Any) -> Move[PassState]:
        index = int(action)
        if index == 0:
            return Move(state, finishes=True)
        name, actions = ACTIONS[index].name, state.candidate.actions
        worker = default_pass_worker()
        if self.enforce_masks and self._running and state is self._state and index in self._futile:
            return Move(None, illegal_because=FUTILE)
        if self.enforce_masks and not state.view.mask[index]:
            return Move(
                None, illegal_because=worker.why_not(self.task, actions, name) or "it is not offered now"
            )
        if len(actions) >= MAX_ACTIONS:
            return Move(None, illegal_because=TOO_LONG)
        if _fatal_actions.get((state.view.digest, name), 0) >= FATAL_TRIES:
            self._note_futile(state, index)
            text = f"{name} crashed or hung on this module {FATAL_TRIES} times and is not tried again"
            return Move(None, failed=Measurement.failed(Status.CRASHED, text))
        view = worker.step(self.task, actions, name, self.observation, self.enforce_masks)
        if isinstance(view, PassFailure) and view.status in (Status.CRASHED, Status.TIMEOUT):
            _count_fatal(state.view.digest, name)
        elif isinstance(view, PassFailure) or not view.changed:
            self._note_futile(state, index)
        if isinstance(view, PassFailure):
            if view.status is Status.ILLEGAL:
                return Move(None, illegal_because=view.error)
            return Move(None, failed=Measurement.failed(view.status, f"{name}: {view.error}"))
        if not view.changed:
            return Move(state)
        return Move(PassState(self._sequence((*actions, name)), view))

    def _note_futile(self, state: PassState, index: int) -> None:
        if self._running and state is self._state:
            self._futile.add(index)

    def _enter(self, state: PassState) -> None:
        if state is not self._state:
            self._futile_before, self._futile = self._futile, set()
        super()._enter(state)

    def _evaluate_state(self) -> Measurement:
        measurement = super()._evaluate_state()
        is_decided = measurement.status not in (Status.OK, Status.UNSTABLE)  # noise may pass
        if is_decided and self.reward_at == "step":  # back to where the last action was taken
            self._futile = self._futile_before | {self._recent[-1]}
        return measurement

    def action_masks(self) -> NDArray[np.bool_]:
        """Which actions are offered now."""
        if not self.enforce_masks:
            return np.ones(len(ACTIONS), dtype=np.bool_)
        mask = self.state.view.mask.copy()
        mask[list(self._futile)] = False
        if len(self.state.candidate.actions) >= MAX_ACTIONS:
            mask[1:] = False
        return mask

    def action_meanings(self) -> tuple[str, ...]:
        """The names of all actions."""
        return tuple(action.name for action in ACTIONS)

    def explain(self, action: Any) -> str | None:
        """Why an action is not offered now, or None if it is."""
        index, state = int(action), self.state
        if index == 0 or not self.enforce_masks:
            return None
        if index in self._futile:
            return FUTILE
        if len(state.candidate.actions) >= MAX_ACTIONS:
            return TOO_LONG
        if state.view.mask[index]:
            return None
        return default_pass_worker().why_not(self.task, self.state.candidate.actions, ACTIONS[index].name)

    def _label(self, action: Any) -> str:
        return ACTIONS[int(action)].name

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Draw a task and begin at its untouched module; see ``TuningEnv.reset``.

        Raises:
            InvalidOption: besides the reasons given there, a user's own program does not run.
        """
        self._recent.clear()
        self._futile.clear()
        self._fell_back = False
        self._bad_rewards = 0
        begun = super().reset(seed=seed, options=options)
        baseline = self._attempts[0].measurement
        is_uncompiled = baseline.artifact_digest is None and not baseline.ok
        if self._user is not None and (is_uncompiled or baseline.status in _NOT_RUNNING):
            advice = "mend it and try again"
            if baseline.max_error is not None and self.float_mode != "strict":
                advice += ", or with float_mode='strict' if it depends on how numbers are rounded"
            self._running = False
            raise InvalidOption(
                f"The program {self._user.name!r} does not run untouched: {baseline.error}; {advice}."
            )
        return begun

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action; see the class."""
        before = self._state if self._running else None
        self._fell_back = False
        if self._running and self.action_space.contains(action):
            self._recent.append(int(action))
        observation, reward, terminated, truncated, info = super().step(action)
        info["unchanged"] = int(action) != 0 and info["status"] == "ok" and self._state is before
        self._bad_rewards = self._bad_rewards + 1 if reward < FALLBACK_BELOW else 0
        if self.fallback is None or self._bad_rewards < FALLBACK_AFTER or not self._running:
            return observation, reward, terminated, truncated, info
        return self._finish_with_expert(reward)

    def _finish_with_expert(self, reward: float) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """End the episode with the expert's sequence, which counts like an agent's own."""
        before, status, error, attempt_s = self._timing, Status.OK, "", None
        try:
            state = self._state_of(self._expert())
            self._last = self.evaluate(state.candidate)
            self._note("expert", self._last)
            attempt_s = self._last.time_s
            if self._last.ok:
                self._adopt(state, self._last)
            else:
                status, error = self._last.status, self._last.error or ""
        except IllegalSchedule as refusal:
            status, error = Status.ILLEGAL, str(refusal)
        self._running, self._fell_back = False, True
        self._state = self._measured
        reward += self._earned(before, failed=status is not Status.OK)
        self._show()
        info = dict(self._info(status, error, "", attempt_s))
        return self._observation(), float(reward), True, False, info

    def _info(self, *arguments: Any) -> Any:
        info: dict[str, Any] = dict(super()._info(*arguments))
        view = self._state.view
        return info | {
            "unchanged": False,
            "level": view.level,
            "operations": view.operations,
            "fallback": self._fell_back,
        }

    # ------------------------------------------------------------------ observations

    def _observation(self) -> Any:
        view = self._state.view
        seen: Any
        if self.observation == "text":
            seen = view.text[:TEXT_MAX]
        elif self.observation == "mqss":
            seen = view.numbers.copy()
        else:
            seen = full(view.numbers, self._context())
        if not self.mask_in_observation:
            return seen
        name = "text" if self.observation == "text" else "features"
        return {name: seen, "action_mask": self.action_masks().astype(np.int8)}

    def _context(self) -> Context:
        return Context(
            profile=self.profile,
            spec=self.target.spec,
            bound=self.bound,
            timing=self._timing,
            last=self._last,
            steps_left=(self.max_steps - self._steps) / self.max_steps,
            recent_actions=tuple(self._recent),
            actions=len(ACTIONS),
        )

    def _describe(self) -> str:
        text = default_pass_worker().code(self.task, self._state.candidate.actions)
        return text.error if isinstance(text, PassFailure) else text


def _actions_of(candidate: Candidate) -> list[int]:
    assert isinstance(candidate, PassSequence)
    return [ACTION_INDEX[name] for name in candidate.actions]
