"""Writing one LLVM function as text: values, loops, and where each instruction belongs.

Every value knows the depth of the loop nest that it depends on, and is placed in front of the outermost loop
that it does not depend on; equal instructions at one depth are written once. That makes loop-invariant code
motion and common subexpressions a matter of construction, so that no LLVM pass but the promotion of stack
slots has to run, which keeps compiling at milliseconds.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from solgym.errors import IllegalSchedule

__all__ = ["FunctionWriter", "Linear", "Symbol", "Value", "float_literal"]

MAX_LINES = 12_000
"""Most lines of IR that a program may have; keeps compiling any schedule below a second."""

LOOP_LINES = 16
"""What a loop counts as: hundreds of short ones in a row take LLVM longer than as many lines without."""

Lines = list["str | Lines"]


class Value(NamedTuple):
    """An SSA name or literal, the loop depth that it depends on, and whether it is a vector."""

    name: str
    depth: int
    vector: bool = False
    constant: float | None = None


@dataclass(frozen=True, eq=False)
class Symbol:
    """A loop counter: an i64 SSA name, a multiple of ``stride`` from 0 to ``limit``."""

    name: str
    depth: int
    stride: int
    limit: int


@dataclass(frozen=True)
class Linear:
    """``constant + sum(coefficient * symbol)``."""

    terms: tuple[tuple[Symbol, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """``self + factor * other``; terms that cancel disappear."""
        if not other.terms:
            return Linear(self.terms, self.constant + factor * other.constant)
        sums = dict(self.terms)
        for symbol, coefficient in other.terms:
            total = sums.get(symbol, 0) + factor * coefficient
            if total:
                sums[symbol] = total
            else:
                del sums[symbol]
        return Linear(tuple(sums.items()), self.constant + factor * other.constant)

    def shifted(self, by: int) -> Linear:
        """``self + by``."""
        return Linear(self.terms, self.constant + by)

    def bounds(self) -> tuple[int, int]:
        """Smallest and largest value."""
        low = high = self.constant
        for symbol, coefficient in self.terms:
            if coefficient > 0:
                high += coefficient * symbol.limit
            else:
                low += coefficient * symbol.limit
        return low, high


@dataclass
class Frame:
    """An open loop or branch: where instructions go that belong in front of it, and what is known inside."""

    before: Lines
    known: dict[str, str] = field(default_factory=dict)


@lru_cache(maxsize=4096)
def float_literal(value: float, dtype: str) -> str:
    """A number as LLVM writes it: the bits of a double, rounded to f32 first where that is the type."""
    if dtype == "f32":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"


class LineCounter:
    """Counts the lines of a whole program, so that the cap holds over all its functions."""

    def __init__(self) -> None:
        self.lines = 0

    def add(self, number: int = 1) -> None:
        """Count lines; refuses the schedule when there are too many."""
        self.lines += number
        if self.lines > MAX_LINES:
            raise IllegalSchedule(
                f"the generated code would exceed {MAX_LINES} instructions; unroll less, or choose tiles "
                "that divide"
            )


class FunctionWriter:
    """Collects the text of one function."""

    def __init__(self, dtype: str, counter: LineCounter) -> None:
        self.dtype = dtype
        self.scalar = {"f32": "float", "f64": "double"}[dtype]
        self.element_bytes = {"f32": 4, "f64": 8}[dtype]
        self.lanes = 0
        self.counter = counter
        self.entry: Lines = []
        self.lines: Lines = []
        self.frames: list[Frame] = [Frame(self.entry)]
        self.block = "entry"
        self._names = 0
        self._splats: dict[str, str] = {}

    # ------------------------------------------------------------------------------------------ placing

    @property
    def depth(self) -> int:
        """How many loops and branches are open."""
        return len(self.frames) - 1

    @property
    def vector_type(self) -> str:
        """The vector type of the stage being written."""
        return f"<{self.lanes} x {self.scalar}>"

    def type_of(self, vector: bool) -> str:
        """LLVM type of a scalar or vector element."""
        return self.vector_type if vector else self.scalar

    def fresh(self, stem: str = "v") -> str:
        """A new SSA name."""
        self._names += 1
        return f"%{stem}{self._names}"

    def raw(self, text: str) -> None:
        """Write an instruction just here."""
        self.counter.add()
        self.lines.append(f"  {text}")

    def define(self, text: str, stem: str = "v") -> str:
        """Write ``name = text`` just here, without sharing it."""
        name = self.fresh(stem)
        self.raw(f"{name} = {text}")
        return name

    def place(self, depth: int, text: str, key: str | None = None) -> str:
        """The value of a pure instruction, written once at ``depth``."""
        known = self.frames[depth].known
        name = known.get(key or text)
        if name is None:
            name = self.fresh()
            self.counter.add()
            where = self.lines if depth == self.depth else self.frames[depth + 1].before
            where.append(f"  {name} = {text}")
            known[key or text] = name
        return name

    def alloca(self, type_name: str) -> str:
        """A stack slot, which LLVM promotes to registers."""
        name = self.fresh("acc")
        self.counter.add()
        self.entry.append(f"  {name} = alloca {type_name}, align 64")
        return name

    # --------------------------------------------------------------------------------- loops and branches

    @contextmanager
    def loop(self, start: str, end: str, step: int, limit: int) -> Iterator[Symbol]:
        """A loop that runs at least once, over ``start``, ``start + step``, ... below ``end``."""
        label = self.fresh("L")[1:]
        counter, following = f"%{label}.i", f"%{label}.n"
        before: Lines = []
        self.lines.append(before)
        predecessor = self.block
        self.counter.add(LOOP_LINES)
        self.lines.append(f"  br label %{label}\n{label}:")
        phi_slot: Lines = []
        self.lines.append(phi_slot)
        self.block = label
        self.frames.append(Frame(before))
        yield Symbol(counter, self.depth, step, limit)
        self.frames.pop()
        phi_slot.append(f"  {counter} = phi i64 [{start}, %{predecessor}], [{following}, %{self.block}]")
        self.lines.append(
            f"  {following} = add nuw nsw i64 {counter}, {step}\n"
            f"  {following}c = icmp ult i64 {following}, {end}\n"
            f"  br i1 {following}c, label %{label}, label %{label}.x\n{label}.x:"
        )
        self.block = f"{label}.x"

    def branch(self, condition: str, if_true: Callable[[], None], if_false: Callable[[], None]) -> None:
        """Write both sides of a condition, then go on together."""
        label = self.fresh("B")[1:]
        before: Lines = []
        self.lines.append(before)
        self.counter.add(6)
        self.lines.append(f"  br i1 {condition}, label %{label}.t, label %{label}.f")
        for suffix, side in (("t", if_true), ("f", if_false)):
            self.block = f"{label}.{suffix}"
            self.lines.append(f"{self.block}:")
            self.frames.append(Frame(before))
            side()
            self.frames.pop()
            self.lines.append(f"  br label %{label}.j")
        self.block = f"{label}.j"
        self.lines.append(f"{self.block}:")

    def text(self) -> str:
        """The body of the function, from its first instruction to before its return."""
        parts: list[str] = []
        _flatten(self.entry, parts)
        _flatten(self.lines, parts)
        return "\n".join(parts)

    # ------------------------------------------------------------------------------------------ integers

    def integer(self, value: Linear) -> Value:
        """An i64 that holds a linear form."""
        name, depth = str(value.constant), 0
        for symbol, coefficient in sorted(value.terms, key=lambda term: term[0].depth):
            scaled = symbol.name
            if coefficient != 1:
                scaled = self.place(symbol.depth, f"mul i64 {symbol.name}, {coefficient}")
            depth = max(depth, symbol.depth)
            name = scaled if name == "0" else self.place(depth, f"add i64 {name}, {scaled}")
        return Value(name, depth)

    def address(self, base: str, offset: Linear) -> Value:
        """A pointer ``offset`` elements behind ``base``; outer terms are added outside inner loops."""
        pointer, depth = base, 0
        for symbol, coefficient in sorted(offset.terms, key=lambda term: term[0].depth):
            depth = max(depth, symbol.depth)
            step = self.place(symbol.depth, f"mul i64 {symbol.name}, {coefficient * self.element_bytes}")
            pointer = self.place(depth, f"getelementptr i8, ptr {pointer}, i64 {step}")
        if offset.constant:
            text = f"getelementptr i8, ptr {pointer}, i64 {offset.constant * self.element_bytes}"
            pointer = self.place(depth, text)
        return Value(pointer, depth)

    # -------------------------------------------------------------------------------------------- floats

    def constant(self, value: float) -> Value:
        """A number."""
        return Value(float_literal(value, self.dtype), 0, False, value)

    def splat(self, value: Value) -> Value:
        """The same number in every lane."""
        if value.vector:
            return value
        if value.constant is not None:
            return Value(f"splat ({self.scalar} {value.name})", 0, True, value.constant)
        kind = self.vector_type
        one = self.place(value.depth, f"insertelement {kind} poison, {self.scalar} {value.name}, i64 0")
        mask = f"<{self.lanes} x i32> zeroinitializer"
        name = self.place(value.depth, f"shufflevector {kind} {one}, {kind} poison, {mask}")
        return Value(name, value.depth, True)

    def matched(self, *values: Value) -> tuple[Value, ...]:
        """All values as vectors if one of them is."""
        return tuple(map(self.splat, values)) if any(v.vector for v in values) else values

    def arithmetic(self, operation: str, left: Value, right: Value) -> Value:
        """``fadd``, ``fsub``, ``fmul`` or ``fdiv``."""
        left, right = self.matched(left, right)
        depth = max(left.depth, right.depth)
        text = f"{operation} contract {self.type_of(left.vector)} {left.name}, {right.name}"
        return Value(self.place(depth, text), depth, left.vector)

    def fma(self, left: Value, right: Value, addend: Value) -> Value:
        """``left * right + addend``, rounded once."""
        return self.call("fma", left, right, addend)

    def call(self, intrinsic: str, *arguments: Value) -> Value:
        """An elementwise LLVM intrinsic."""
        matched = self.matched(*arguments)
        depth = max(v.depth for v in matched)
        kind = self.type_of(matched[0].vector)
        suffix = f"{'v' + str(self.lanes) if matched[0].vector else ''}{self.dtype}"
        listed = ", ".join(f"{kind} {v.name}" for v in matched)
        return Value(
            self.place(depth, f"call {kind} @llvm.{intrinsic}.{suffix}({listed})"), depth, matched[0].vector
        )

    def larger(self, left: Value, right: Value, predicate: str = "ogt") -> Value:
        """The larger (or, with ``olt``, smaller) value; the second where either is not a number."""
        left, right = self.matched(left, right)
        depth = max(left.depth, right.depth)
        kind = self.type_of(left.vector)
        condition = self.place(depth, f"fcmp {predicate} {kind} {left.name}, {right.name}")
        return self.select(Value(condition, depth, left.vector), left, right)

    def compare(self, predicate: str, left: Value, right: Value) -> Value:
        """An i1, or a vector of them."""
        left, right = self.matched(left, right)
        depth = max(left.depth, right.depth)
        text = f"fcmp {predicate} {self.type_of(left.vector)} {left.name}, {right.name}"
        return Value(self.place(depth, text), depth, left.vector)

    def select(self, condition: Value, left: Value, right: Value) -> Value:
        """``left`` where the condition holds, else ``right``; a vector condition needs vectors."""
        if condition.vector:
            left, right = self.splat(left), self.splat(right)
        left, right = self.matched(left, right)
        depth = max(condition.depth, left.depth, right.depth)
        kind = self.type_of(left.vector)
        mask = f"<{self.lanes} x i1>" if condition.vector else "i1"
        text = f"select {mask} {condition.name}, {kind} {left.name}, {kind} {right.name}"
        return Value(self.place(depth, text), depth, left.vector)

    def integer_type(self, vector: bool) -> str:
        """Integer type as wide as an element."""
        bits = self.element_bytes * 8
        return f"<{self.lanes} x i{bits}>" if vector else f"i{bits}"

    def times_power_of_two(self, value: Value, shifted: Value) -> Value:
        """``value * 2 ** n`` for normal numbers, where ``shifted`` is n + ``rounding_shift``.

        Adding the shift has put n into the lowest bits of the mantissa; from there it is added to the
        exponent.
        """
        value, shifted = self.matched(value, shifted)
        depth = max(value.depth, shifted.depth)
        integer, kind = self.integer_type(value.vector), self.type_of(value.vector)
        places = "23" if self.dtype == "f32" else "52"
        if value.vector:
            places = f"splat (i{self.element_bytes * 8} {places})"
        bits = self.place(depth, f"bitcast {kind} {shifted.name} to {integer}")
        exponent = self.place(depth, f"shl {integer} {bits}, {places}")
        before = self.place(depth, f"bitcast {kind} {value.name} to {integer}")
        after = self.place(depth, f"add {integer} {before}, {exponent}")
        return Value(self.place(depth, f"bitcast {integer} {after} to {kind}"), depth, value.vector)

    @property
    def rounding_shift(self) -> float:
        """A number so large that adding it rounds to whole numbers: 1.5 times 2 to the mantissa's bits."""
        return 1.5 * 2.0 ** (23 if self.dtype == "f32" else 52)


def _flatten(lines: Lines, into: list[str]) -> None:
    for line in lines:
        if isinstance(line, str):
            into.append(line)
        else:
            _flatten(line, into)
