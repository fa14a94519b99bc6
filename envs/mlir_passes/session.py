"""What the pass worker knows and does: programs, modules by sequence of actions, and code made of them.

A module is a function of its program and the actions applied to it, so modules are kept by that key, as many
as fit; one that is not there is made again from the longest prefix that is. Undoing an action therefore costs
nothing and is exact, and a worker that was killed loses nothing.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import signal
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from torch_mlir import ir

from solgym.envs.mlir_passes.apply import PassFailed, apply_action
from solgym.envs.mlir_passes.catalogue import ACTION_INDEX, ACTIONS
from solgym.envs.mlir_passes.codegen import ObjectCode, assembly_of, compile_ir, llvm_ir, machine_code
from solgym.envs.mlir_passes.entry_point import ENTRY
from solgym.envs.mlir_passes.facts import MAX_OPERATIONS, Facts, facts_of, level_of, mask_of, refusal
from solgym.envs.mlir_passes.features import module_part, mqss, survey
from solgym.envs.mlir_passes.finishing import CannotFinish, first_line
from solgym.envs.mlir_passes.modes import PASS_TIMEOUT_S, ArgumentShape, FloatMode, Form, Jit, Want
from solgym.envs.mlir_passes.reference_run import ProgramFailed, run_apart
from solgym.hardware.checking import POISON_BYTE

__all__ = ["CannotFinish", "PassFailed", "ProgramFailed", "Refused", "Session"]

MODULES_MAX: Final = 256
OPERATIONS_MAX: Final = 200_000
"""Modules that are kept: so many, and with so many operations together."""

REPEATING: Final = 3.0
"""Times that an action may take where it is applied again, after it has succeeded once."""

OBJECT_BYTES_MAX: Final = 64 << 20
"""Object files that are kept, by their size: different sequences often give the same module."""

_OTHER_FILL: Final = 0x3D
"""Bytes of a small number, where ``POISON_BYTE`` makes a NaN."""


class Refused(Exception):
    """An action is not offered in a state; the message says why."""


@dataclass(frozen=True)
class _Program:
    """An untouched module, with the function to run and its arguments."""

    text: str
    function: str
    arguments: tuple[ArgumentShape, ...]


class _State:
    """A module and what is known of it; what ``before`` knows is taken over where the text is the same."""

    def __init__(self, module: ir.Operation, actions: tuple[str, ...], before: _State | None) -> None:
        self.module = module
        self.actions = actions
        self.text_digest = hashlib.sha256(text_of(module).encode()).hexdigest()
        same = before is not None and before.text_digest == self.text_digest
        self.facts: Facts = before.facts if before is not None and same else facts_of(module)
        self._features: dict[str, bytes] = {}

    def features(self, want: Want) -> bytes:
        """The mask, and the numbers or the text that an observation needs, as bytes."""
        if want not in self._features:
            self._features[want] = self._observed(want)
        return self._features[want]

    def _observed(self, want: Want) -> bytes:
        mask = mask_of(self.facts).astype(np.uint8).tobytes()
        if want == "text":
            return mask + text_of(self.module).encode()
        surveyed = survey(self.module, detailed=want == "full")
        numbers = mqss(surveyed, level_of(self.facts), "cpu", self.actions)
        if want == "full":
            numbers = np.concatenate([numbers, module_part(surveyed)])
        return mask + numbers.astype(np.float32).tobytes()


class Session:
    """The modules of a worker process, in one MLIR context.

    Attributes:
        pass_timeout_s: how long one action may take; one that takes longer ends the process by SIGALRM.
    """

    def __init__(self) -> None:
        self.pass_timeout_s = PASS_TIMEOUT_S
        self._context = ir.Context()
        self._context.enable_multithreading(False)
        self._programs: dict[str, _Program] = {}
        self._determined: set[str] = set()
        self._states: OrderedDict[tuple[str, tuple[str, ...]], _State] = OrderedDict()
        self._operations = 0
        self._objects: OrderedDict[tuple[str, ...], ObjectCode] = OrderedDict()
        self._object_bytes = 0

    @property
    def context(self) -> ir.Context:
        """The context that everything lives in."""
        return self._context

    def knows(self, key: str) -> bool:
        """Whether a program has been introduced."""
        return key in self._programs

    def introduce(self, key: str, text: str, function: str, arguments: tuple[ArgumentShape, ...]) -> None:
        """Take a program.

        Raises:
            ir.MLIRError: the text is no valid module.
        """
        self._programs[key] = _Program(text, function, arguments)
        self._state(key, ())

    def view(self, key: str, actions: tuple[str, ...], want: Want) -> tuple[dict[str, Any], bytes]:
        """What there is to know of the module after ``actions``."""
        state = self._state(key, actions)
        return self._described(state), state.features(want)

    def step(
        self, key: str, actions: tuple[str, ...], action: str, want: Want, enforce_masks: bool
    ) -> tuple[dict[str, Any], bytes]:
        """Apply one more action and describe the result; the state before it is untouched.

        Raises:
            Refused: the action is not offered there.
            PassFailed: it failed.
        """
        before = self._state(key, actions)
        if enforce_masks:
            reason = refusal(ACTIONS[ACTION_INDEX[action]], before.facts)
            if reason is not None:
                raise Refused(reason)
        after = self._state(key, (*actions, action), self.pass_timeout_s)
        if after.text_digest == before.text_digest:
            return self._described(before) | {"changed": False}, before.features(want)
        if after.facts.operations > MAX_OPERATIONS:
            size = after.facts.operations
            raise Refused(f"{action} would make a module of {size} operations, more than {MAX_OPERATIONS}")
        return self._described(after), after.features(want)

    def why_not(self, key: str, actions: tuple[str, ...], action: str) -> str | None:
        """Why an action is not offered in a state, or None if it is."""
        return refusal(ACTIONS[ACTION_INDEX[action]], self._state(key, actions).facts)

    def module(self, key: str, actions: tuple[str, ...]) -> ir.Operation:
        """The module after ``actions``; not to be changed."""
        return self._state(key, actions).module

    def build(self, key: str, actions: tuple[str, ...], mode: FloatMode, jit: Jit) -> ObjectCode:
        """Machine code of the module after ``actions``.

        Raises:
            CannotFinish: it cannot be lowered.
        """
        program, state = self._programs[key], self._state(key, actions)
        name = (key, state.text_digest, mode, jit)
        known = self._objects.get(name)
        if known is not None:
            self._objects.move_to_end(name)
            return known
        with self._context, ir.Location.unknown():
            if jit == "mlir":
                made = machine_code(state.module, program.function, program.arguments, mode, jit)
            else:
                made = self._compiled(*llvm_ir(state.module, program.function, program.arguments, mode))
        return self._keep(name, made)

    def _compiled(self, text: str, workspace_bytes: int) -> ObjectCode:
        """Machine code of LLVM IR, which different modules often have in common."""
        name = (hashlib.sha256(text.encode()).hexdigest(),)
        return self._keep(name, self._objects.get(name) or compile_ir(text, workspace_bytes))

    def _keep(self, name: tuple[str, ...], made: ObjectCode) -> ObjectCode:
        """Remember an object file, and forget those not asked for longest while they are too large."""
        if name not in self._objects:
            self._object_bytes += len(made.code)
        self._objects[name] = made
        self._objects.move_to_end(name)
        while len(self._objects) > 1 and self._object_bytes > OBJECT_BYTES_MAX:
            _, old = self._objects.popitem(last=False)
            self._object_bytes -= len(old.code)
        return made

    def run(self, key: str, inputs: bytes, sizes: list[int]) -> bytes:
        """Run the untouched module, strictly as written, and return its outputs one after the other.

        The first time it is run twice, with different bytes in the memory that it has not written.

        Raises:
            CannotFinish: it cannot be lowered.
            ProgramFailed: it has no outputs, or they are not determined by its inputs.
        """
        program = self._programs[key]
        made = self.build(key, (), "strict", "llvmlite")
        ends = list(itertools.accumulate(sizes, initial=0))
        arrays = [inputs[start:end] for start, end in itertools.pairwise(ends)]
        outputs = [math.prod(shape) * width for shape, width, role in program.arguments if role != "in"]

        def once(fill: int) -> tuple[bytes, ...]:
            return run_apart(made.code, ENTRY, arrays, outputs, made.workspace_bytes, fill)

        found = once(POISON_BYTE)
        if key not in self._determined:
            for number, (one, other) in enumerate(zip(found, once(_OTHER_FILL), strict=True)):
                _require_determined(f"output {number + 1} of {len(outputs)}", one, other)
            self._determined.add(key)
        return b"".join(found)

    def code(self, key: str, actions: tuple[str, ...], mode: FloatMode, form: Form) -> str:
        """The module after ``actions`` as ``mlir``, ``llvm`` or ``asm`` text.

        Raises:
            CannotFinish: it cannot be lowered.
        """
        program, state = self._programs[key], self._state(key, actions)
        if form == "mlir":
            return text_of(state.module)
        with self._context, ir.Location.unknown():
            text, _ = llvm_ir(state.module, program.function, program.arguments, mode)
        return text if form == "llvm" else assembly_of(text)

    def gpu(self, key: str, actions: tuple[str, ...], chip: str) -> dict[str, Any]:
        """The module after ``actions`` compiled for a GPU, as plain data.

        Raises:
            CannotFinish: it cannot be.
        """
        from solgym.envs.mlir_passes.gpu import compile_for_gpu

        program, state = self._programs[key], self._state(key, actions)
        with self._context, ir.Location.unknown():
            return compile_for_gpu(state.module, program.function, program.arguments, chip).to_json()

    def _described(self, state: _State) -> dict[str, Any]:
        return {
            "digest": state.text_digest,
            "level": level_of(state.facts),
            "operations": state.facts.operations,
            "changed": True,
        }

    def _state(self, key: str, actions: tuple[str, ...], timeout_s: float | None = None) -> _State:
        """The module after ``actions``; ``timeout_s`` is for the last of them, if it has to be applied."""
        known = self._states.get((key, actions))
        if known is not None:
            self._states.move_to_end((key, actions))
            return known
        before = None
        with self._context, ir.Location.unknown():
            if not actions:
                module = ir.Module.parse(self._programs[key].text).operation.clone().operation
            else:
                before = self._state(key, actions[:-1])
                module = before.module.clone().operation
                self._apply(module, actions[-1], timeout_s or REPEATING * self.pass_timeout_s)
            made = _State(module, actions, before)
        self._states[key, actions] = made
        self._operations += made.facts.operations
        self._forget_old()
        return made

    def _apply(self, module: ir.Operation, action: str, timeout_s: float) -> None:
        signal.setitimer(signal.ITIMER_REAL, timeout_s)
        try:
            apply_action(module, ACTIONS[ACTION_INDEX[action]])
        except ir.MLIRError as error:
            raise PassFailed(first_line(error)) from error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)

    def _forget_old(self) -> None:
        while len(self._states) > 1 and (
            len(self._states) > MODULES_MAX or self._operations > OPERATIONS_MAX
        ):
            _, old = self._states.popitem(last=False)
            self._operations -= old.facts.operations


def _require_determined(name: str, one: bytes, other: bytes) -> None:
    """Refuse an output of two runs that depends on what was in memory before; it may leave parts as they
    were.

    Raises:
        ProgramFailed: it does, or nothing of it was written.
    """
    first, second = np.frombuffer(one, np.uint8), np.frombuffer(other, np.uint8)
    kept = (first == POISON_BYTE) & (second == _OTHER_FILL)
    if kept.all():
        raise ProgramFailed(f'never writes {name}, which needs the role "in"')
    if np.any((first != second) & ~kept):
        raise ProgramFailed(
            f"computes {name} from memory that it has not written, or not the same each time; an argument "
            'that is read needs the role "in" or "inout"'
        )


def text_of(module: ir.Operation) -> str:
    """The module as text. It has been verified before, as printing would do once more."""
    text: str = module.get_asm(assume_verified=True)
    return text
