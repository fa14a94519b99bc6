"""Writes the text of a module whose function works on tensors: what the programs of linear algebra share.

A program says which operations follow each other; this module names values, spells types and turns the memref
arguments into tensors and back. It knows nothing of any pass.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from solgym.envs.mlir_passes.programs.program import Argument, Extents
from solgym.hardware.task import DType

__all__ = ["Tensor", "TensorFunction", "tensor_module"]

_MINUS_INFINITY: dict[str, str] = {"f32": "0xFF800000", "f64": "0xFFF0000000000000"}


@dataclass(frozen=True)
class Tensor:
    """A tensor inside the function: its SSA value and its shape."""

    value: str
    shape: tuple[int, ...]


class TensorFunction:
    """The function ``@main`` of a module, written from its first operation to its last."""

    def __init__(self, arguments: Sequence[Argument], dtype: DType) -> None:
        """Start a function with these arguments, as memrefs of one element type."""
        self.dtype: DType = dtype
        self._arguments = {argument.name: argument for argument in arguments}
        self._lines: list[str] = []
        self._values = 0

    def read(self, name: str) -> Tensor:
        """An argument as a tensor."""
        shape = self._arguments[name].shape
        types = f"{self._type(shape, 'memref')} to {self._type(shape)}"
        return self._tensor(shape, f"bufferization.to_tensor %{name} restrict : {types}")

    def write(self, tensor: Tensor, name: str) -> None:
        """Make an argument hold a tensor when the function returns."""
        types = f"({self._type(tensor.shape)}, {self._type(self._arguments[name].shape, 'memref')}) -> ()"
        self._lines.append(
            f"bufferization.materialize_in_destination {tensor.value} in restrict writable %{name} : {types}"
        )

    def constant(self, number: float) -> str:
        """A number, as the value to use in bodies and to fill tensors with."""
        return self._define(f"arith.constant {self._literal(number)} : {self.dtype}")

    def constants(self, numbers: Sequence[float]) -> Tensor:
        """A constant tensor of rank one."""
        shape = (len(numbers),)
        listed = ", ".join(self._literal(number) for number in numbers)
        return self._tensor(shape, f"arith.constant dense<[{listed}]> : {self._type(shape)}")

    def empty(self, shape: tuple[int, ...]) -> Tensor:
        """A tensor of no particular value: what is overwritten, or only lends its shape to a window."""
        return self._tensor(shape, f"tensor.empty() : {self._type(shape)}")

    def filled(self, shape: tuple[int, ...], number: float) -> Tensor:
        """A tensor of one number: what a reduction starts from."""
        constant, empty = self.constant(number), self.empty(shape)
        return self._tensor(
            shape,
            f"linalg.fill ins({constant} : {self.dtype}) outs({self._typed(empty)}) -> {self._type(shape)}",
        )

    def slice(self, tensor: Tensor, offsets: tuple[int, ...], shape: tuple[int, ...]) -> Tensor:
        """A contiguous window of a tensor."""
        ones = ", ".join("1" for _ in shape)
        return self._tensor(
            shape,
            f"tensor.extract_slice {tensor.value}[{_listed(offsets)}] [{_listed(shape)}] [{ones}] : "
            f"{self._type(tensor.shape)} to {self._type(shape)}",
        )

    def named(self, operation: str, inputs: Sequence[Tensor], start: Tensor, attributes: str = "") -> Tensor:
        """A named operation of linalg, such as ``matmul``, that adds to ``start``."""
        return self._tensor(
            start.shape,
            f"linalg.{operation} {attributes} ins({self._typed(*inputs)}) outs({self._typed(start)}) "
            f"-> {self._type(start.shape)}",
        )

    def reduce(self, operation: str, tensor: Tensor, dimension: int, start: float) -> Tensor:
        """Combine the elements along one dimension, by an operation of arith."""
        shape = tensor.shape[:dimension] + tensor.shape[dimension + 1 :]
        result = self.filled(shape, start)
        return self._tensor(
            shape,
            f"linalg.reduce {{ arith.{operation} }} ins({self._typed(tensor)}) outs({self._typed(result)}) "
            f"dimensions = [{dimension}]",
        )

    def transpose(self, tensor: Tensor, permutation: tuple[int, ...]) -> Tensor:
        """Dimension ``d`` of the result is dimension ``permutation[d]`` of the tensor."""
        result = self.empty(tuple(tensor.shape[dimension] for dimension in permutation))
        return self._tensor(
            result.shape,
            f"linalg.transpose ins({self._typed(tensor)}) outs({self._typed(result)}) "
            f"permutation = [{_listed(permutation)}]",
        )

    def generic(
        self,
        loops: str,
        inputs: Mapping[str, tuple[Tensor, str]],
        output: tuple[Tensor, str],
        body: Sequence[str] = (),
    ) -> Tensor:
        """A ``linalg.generic``.

        Args:
            loops: the loops' names, outermost first, as in ``"i, j"``.
            inputs: tensors with the index that they are read at, by the name of the element in the body.
            output: what the result starts from, with the index that is written. Loops that are not in this
                index reduce.
            body: operations without their types. ``%out`` is the element that the output holds; the last
                operation's result is its new value.
        """
        written = set(re.findall("[a-z]+", output[1]))
        iterators = ", ".join(
            '"parallel"' if loop in written else '"reduction"' for loop in loops.split(", ")
        )
        maps = ", ".join(
            f"affine_map<({loops}) -> ({index})>"
            for index in [index for _, index in inputs.values()] + [output[1]]
        )
        block = ", ".join(f"%{name}: {self.dtype}" for name in (*inputs, "out"))
        operations = "\n".join(f"    {operation} : {self.dtype}" for operation in body)
        result = body[-1].partition(" = ")[0]
        sources = f"ins({self._typed(*(tensor for tensor, _ in inputs.values()))}) " if inputs else ""
        return self._tensor(
            output[0].shape,
            f"linalg.generic {{indexing_maps = [{maps}], iterator_types = [{iterators}]}} "
            f"{sources}outs({self._typed(output[0])}) {{\n  ^bb0({block}):\n{operations}\n"
            f"    linalg.yield {result} : {self.dtype}\n  }} -> {self._type(output[0].shape)}",
        )

    def elementwise(
        self, inputs: Mapping[str, tuple[Tensor, str]], shape: tuple[int, ...], *body: str
    ) -> Tensor:
        """A ``linalg.generic`` over every element of a result, whose loops are called ``i, j, k, l``."""
        loops = ", ".join("ijkl"[: len(shape)])
        return self.generic(loops, inputs, (self.empty(shape), loops), body)

    def text(self) -> str:
        """The module."""
        arguments = ", ".join(
            f"%{argument.name}: {self._type(argument.shape, 'memref')}"
            for argument in self._arguments.values()
        )
        lines = "".join(f"  {line}\n" for line in self._lines)
        return f"func.func @main({arguments}) {{\n{lines}  return\n}}\n"

    def _define(self, operation: str) -> str:
        value = f"%{self._values}"
        self._values += 1
        self._lines.append(f"{value} = {operation}")
        return value

    def _tensor(self, shape: tuple[int, ...], operation: str) -> Tensor:
        return Tensor(self._define(operation), shape)

    def _type(self, shape: tuple[int, ...], container: str = "tensor") -> str:
        return f"{container}<{''.join(f'{extent}x' for extent in shape)}{self.dtype}>"

    def _typed(self, *tensors: Tensor) -> str:
        values = ", ".join(tensor.value for tensor in tensors)
        return f"{values} : {', '.join(self._type(tensor.shape) for tensor in tensors)}"

    def _literal(self, number: float) -> str:
        # Sixteen decimals tell any two numbers of either type apart.
        return _MINUS_INFINITY[self.dtype] if number == float("-inf") else f"{number:.16e}"


def tensor_module(
    arguments: Callable[[Extents], tuple[Argument, ...]],
    write: Callable[[TensorFunction, Extents], None],
) -> Callable[[Extents, DType], str]:
    """A program's ``mlir``, from its arguments and from what writes its function."""

    def text(extents: Extents, dtype: DType) -> str:
        function = TensorFunction(arguments(extents), dtype)
        write(function, extents)
        return function.text()

    return text


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))
