"""Writing modules from templates: what the texts of most programs have in common.

In a template, ``$name`` stands for a number, such as an extent, and types go by MLIR's own aliases: ``!f``
is the element type, ``!memref_NAME`` and ``!tensor_NAME`` are arrays of a shape that has a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from solgym.hardware.task import DType

__all__ = ["module_text"]


def module_text(
    template: str, dtype: DType, shapes: Mapping[str, tuple[int, ...]], **numbers: int | float
) -> str:
    """Fill in a template.

    Args:
        template: the module without its type aliases.
        dtype: the element type.
        shapes: what follows ``!memref_`` and ``!tensor_`` in the aliases, and the extents that it stands for.
        numbers: what ``$name`` stands for.
    """
    lines = [f"!f = {dtype}"]
    for name, shape in shapes.items():
        array = "x".join((*map(str, shape), dtype))
        lines += [f"!memref_{name} = memref<{array}>", f"!tensor_{name} = tensor<{array}>"]
    return "\n".join(lines) + "\n" + Template(template).substitute(numbers)
