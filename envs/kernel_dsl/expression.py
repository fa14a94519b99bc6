"""Tensor expressions: what a kernel computes, without a word about how.

A ``Computation`` is a list of stages. A stage defines every element of one tensor from earlier tensors:
``out[spatial axes] = reduce over reduction axes of expr``. Index expressions are affine; a padded load
reads zero outside its tensor. Schedules (``nest``, ``primitives``) decide the loops; ``interpreter`` gives
the meaning in numpy, which tests compare kernels against.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from solgym.hardware.task import DType

__all__ = [
    "Affine", "Axis", "Binary", "Builder", "Computation", "Const", "Expr", "Load", "Stage", "Tensor", "Unary",
    "absolute", "erf", "exp", "gelu", "maximum", "minimum", "relu", "rsqrt", "sqrt", "tanh",
]  # fmt: skip


@dataclass(frozen=True)
class Affine:
    """``constant + sum(coefficient * axis)``; coefficients are positive integers."""

    terms: tuple[tuple[str, int], ...]
    constant: int = 0

    def __add__(self, other: Affine | Axis | int) -> Affine:
        if isinstance(other, int):
            return Affine(self.terms, self.constant + other)
        other = affine(other)
        sums = dict(self.terms)
        for name, coefficient in other.terms:
            sums[name] = sums.get(name, 0) + coefficient
        return Affine(tuple(sums.items()), self.constant + other.constant)

    __radd__ = __add__

    def __sub__(self, other: int) -> Affine:
        return self + -other

    def __mul__(self, factor: int) -> Affine:
        return Affine(tuple((n, c * factor) for n, c in self.terms), self.constant * factor)

    __rmul__ = __mul__

    def coefficient(self, axis: str) -> int:
        """The coefficient of ``axis``, 0 if it does not occur."""
        return dict(self.terms).get(axis, 0)

    def __str__(self) -> str:
        parts = [name if c == 1 else f"{c}*{name}" for name, c in self.terms]
        if self.constant or not parts:
            parts.append(str(self.constant))
        return " + ".join(parts).replace("+ -", "- ")


@dataclass(frozen=True)
class Axis:
    """One dimension of a stage's iteration space, ``0 <= axis < extent``."""

    name: str
    extent: int
    reduction: bool = False

    def __add__(self, other: Affine | Axis | int) -> Affine:
        return affine(self) + other

    __radd__ = __add__

    def __sub__(self, other: int) -> Affine:
        return affine(self) - other

    def __mul__(self, factor: int) -> Affine:
        return affine(self) * factor

    __rmul__ = __mul__


def affine(value: Affine | Axis | int) -> Affine:
    """Turn an axis or an integer into an affine expression."""
    if isinstance(value, Affine):
        return value
    if isinstance(value, Axis):
        return Affine(((value.name, 1),))
    return Affine((), value)


class Expr:
    """Base class of scalar expressions; supports ``+ - * /`` with expressions and numbers."""

    def __add__(self, other: Expr | float) -> Expr:
        return Binary("add", self, expression(other))

    def __radd__(self, other: float) -> Expr:
        return Binary("add", expression(other), self)

    def __sub__(self, other: Expr | float) -> Expr:
        return Binary("sub", self, expression(other))

    def __rsub__(self, other: float) -> Expr:
        return Binary("sub", expression(other), self)

    def __mul__(self, other: Expr | float) -> Expr:
        return Binary("mul", self, expression(other))

    def __rmul__(self, other: float) -> Expr:
        return Binary("mul", expression(other), self)

    def __truediv__(self, other: Expr | float) -> Expr:
        return Binary("div", self, expression(other))

    def __rtruediv__(self, other: float) -> Expr:
        return Binary("div", expression(other), self)

    def loads(self) -> Iterator[Load]:
        """All loads, left to right."""
        raise NotImplementedError


@dataclass(frozen=True)
class Load(Expr):
    """One element of a tensor. With ``padded``, zero where an index lies outside the tensor."""

    tensor: str
    index: tuple[Affine, ...]
    padded: bool = False

    def loads(self) -> Iterator[Load]:
        """All loads, left to right."""
        yield self

    def __str__(self) -> str:
        text = f"{self.tensor}[{', '.join(map(str, self.index))}]"
        return f"pad({text})" if self.padded else text


@dataclass(frozen=True)
class Const(Expr):
    """A number."""

    value: float

    def loads(self) -> Iterator[Load]:
        """All loads, left to right."""
        return iter(())

    def __str__(self) -> str:
        return f"{self.value:g}"


UNARY_OPERATORS = ("neg", "abs", "exp", "tanh", "erf", "sqrt", "rsqrt")
BINARY_OPERATORS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "max": "max", "min": "min"}


@dataclass(frozen=True)
class Unary(Expr):
    """A function of one argument, one of ``UNARY_OPERATORS``."""

    operator: str
    argument: Expr

    def loads(self) -> Iterator[Load]:
        """All loads, left to right."""
        yield from self.argument.loads()

    def __str__(self) -> str:
        return f"{self.operator}({self.argument})"


@dataclass(frozen=True)
class Binary(Expr):
    """A function of two arguments, one of ``BINARY_OPERATORS``."""

    operator: str
    left: Expr
    right: Expr

    def loads(self) -> Iterator[Load]:
        """All loads, left to right."""
        yield from self.left.loads()
        yield from self.right.loads()

    def __str__(self) -> str:
        symbol = BINARY_OPERATORS[self.operator]
        if symbol.isalpha():
            return f"{symbol}({self.left}, {self.right})"
        return f"({self.left} {symbol} {self.right})"


def expression(value: Expr | float) -> Expr:
    """Turn a number into an expression."""
    return value if isinstance(value, Expr) else Const(float(value))


def exp(x: Expr) -> Expr:
    """Natural exponential."""
    return Unary("exp", x)


def tanh(x: Expr) -> Expr:
    """Hyperbolic tangent."""
    return Unary("tanh", x)


def erf(x: Expr) -> Expr:
    """Error function."""
    return Unary("erf", x)


def sqrt(x: Expr) -> Expr:
    """Square root."""
    return Unary("sqrt", x)


def rsqrt(x: Expr) -> Expr:
    """Reciprocal square root."""
    return Unary("rsqrt", x)


def absolute(x: Expr) -> Expr:
    """Absolute value."""
    return Unary("abs", x)


def maximum(x: Expr | float, y: Expr | float) -> Expr:
    """The larger of two values."""
    return Binary("max", expression(x), expression(y))


def minimum(x: Expr | float, y: Expr | float) -> Expr:
    """The smaller of two values."""
    return Binary("min", expression(x), expression(y))


def relu(x: Expr) -> Expr:
    """``max(x, 0)``."""
    return maximum(x, 0.0)


def gelu(x: Expr) -> Expr:
    """Gaussian error linear unit in its exact form, ``x/2 * (1 + erf(x/sqrt 2))``."""
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


@dataclass(frozen=True)
class Tensor:
    """A dense row-major array."""

    name: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Stage:
    """Defines ``tensor[axes] = combine over reduction axes of expr``; ``combiner`` is None, sum or max."""

    tensor: Tensor
    axes: tuple[Axis, ...]
    reduction_axes: tuple[Axis, ...]
    combiner: str | None
    expr: Expr

    @property
    def name(self) -> str:
        """A stage is called as the tensor that it defines."""
        return self.tensor.name

    @property
    def all_axes(self) -> tuple[Axis, ...]:
        """Spatial axes, then reduction axes."""
        return self.axes + self.reduction_axes

    @cached_property
    def loads(self) -> tuple[Load, ...]:
        """The distinct loads of the expression, left to right."""
        return tuple(dict.fromkeys(self.expr.loads()))

    def loads_of(self, tensor: str) -> tuple[Load, ...]:
        """The distinct loads of one tensor."""
        return tuple(load for load in self.loads if load.tensor == tensor)

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the stage reads, in order of their first load."""
        return tuple(dict.fromkeys(load.tensor for load in self.loads))

    def __str__(self) -> str:
        target = f"{self.name}[{', '.join(a.name for a in self.axes)}]"
        if self.combiner is None:
            return f"{target} = {self.expr}"
        over = ", ".join(a.name for a in self.reduction_axes)
        return f"{target} = {self.combiner}[{over}] {self.expr}"


@dataclass(frozen=True)
class Computation:
    """Inputs, stages in order, and which tensors are outputs. All elements have one dtype."""

    dtype: DType
    inputs: tuple[Tensor, ...]
    stages: tuple[Stage, ...]
    outputs: tuple[str, ...]

    def tensor(self, name: str) -> Tensor:
        """The input or stage tensor called ``name``."""
        for tensor in self.inputs:
            if tensor.name == name:
                return tensor
        return self.stage(name).tensor

    def stage(self, name: str) -> Stage:
        """The stage that defines tensor ``name``."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)

    def __str__(self) -> str:
        return "\n".join(map(str, self.stages))


@dataclass(frozen=True)
class TensorHandle:
    """What ``Builder`` returns for a tensor: index it to load, ``.pad[...]`` to load with zero padding."""

    tensor: Tensor
    padded: bool = False

    @property
    def pad(self) -> TensorHandle:
        """The same tensor, reading zero outside its bounds."""
        return TensorHandle(self.tensor, padded=True)

    def __getitem__(self, index: Affine | Axis | int | tuple[Affine | Axis | int, ...]) -> Load:
        items = index if isinstance(index, tuple) else (index,)
        if len(items) != len(self.tensor.shape):
            raise ValueError(
                f"{self.tensor.name} has {len(self.tensor.shape)} dimensions, got {len(items)} indices"
            )
        return Load(self.tensor.name, tuple(affine(item) for item in items), self.padded)


@dataclass
class Builder:
    """Writes a ``Computation`` step by step.

    Example:
        >>> b = Builder("f32")
        >>> A, B = b.input("A", 8, 4), b.input("B", 4, 8)
        >>> k = b.reduce("k", 4)
        >>> C = b.stage("C", {"i": 8, "j": 8}, lambda i, j: A[i, k] * B[k, j], over=[k], combiner="sum")
        >>> print(b.build("C"))
        C[i, j] = sum[k] (A[i, k] * B[k, j])
    """

    dtype: DType
    _inputs: list[Tensor] = field(default_factory=list)
    _stages: list[Stage] = field(default_factory=list)

    def input(self, name: str, *shape: int) -> TensorHandle:
        """Declare an input."""
        tensor = Tensor(name, shape)
        self._inputs.append(tensor)
        return TensorHandle(tensor)

    @staticmethod
    def reduce(name: str, extent: int) -> Axis:
        """Make a reduction axis."""
        return Axis(name, extent, reduction=True)

    def stage(
        self,
        name: str,
        axes: Mapping[str, int],
        body: Callable[..., Expr],
        over: list[Axis] | None = None,
        combiner: str | None = None,
    ) -> TensorHandle:
        """Define a tensor; ``body`` receives one axis per entry of ``axes``."""
        spatial = tuple(Axis(n, e) for n, e in axes.items())
        tensor = Tensor(name, tuple(axes.values()))
        self._stages.append(Stage(tensor, spatial, tuple(over or ()), combiner, body(*spatial)))
        return TensorHandle(tensor)

    def build(self, *outputs: str) -> Computation:
        """Finish; the last stage is the output unless names are given."""
        names = outputs or (self._stages[-1].name,)
        return Computation(self.dtype, tuple(self._inputs), tuple(self._stages), names)
