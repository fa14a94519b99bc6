"""LLVM IR text as one LLVM prints it, rewritten for another to read.

torch-mlir's LLVM is newer than llvmlite's and prints floating-point constants in forms that the older one
does not know (shortest decimals, ``-inf``, ``f0x...``). In the older form every constant is the bit pattern
of a double; half and bfloat have forms of their own.
"""

from __future__ import annotations

import math
import re
import struct

__all__ = ["readable_by_llvmlite"]

_TOKEN = re.compile(
    r"\b(?P<type>float|double|half|bfloat)\b"
    r"|(?<![\w.%@$\"-])(?P<literal>[-+]?(?:f0x[0-9A-Fa-f]+|\d+\.\d*(?:e[-+]?\d+)?|inf|nan|qnan)\b)"
    r"|\"[^\"\n]*\""
)
_BITS = {"float": "<I", "double": "<Q", "half": "<H", "bfloat": "<H"}


def readable_by_llvmlite(text: str) -> str:
    """Rewrite every floating-point constant to hexadecimal form by its type.

    The type of a constant is the nearest floating-point type before it; LLVM's text has one in every
    instruction that takes such a constant.
    """
    last_type = "double"

    def rewrite(match: re.Match[str]) -> str:
        nonlocal last_type
        if match["type"]:
            last_type = match["type"]
        elif match["literal"]:
            return _hexadecimal(match["literal"], last_type)
        return match[0]

    return _TOKEN.sub(rewrite, text)


def _hexadecimal(literal: str, kind: str) -> str:
    sign = literal.startswith("-")
    body = literal.lstrip("+-")
    if body.startswith("f0x"):
        bits = int(body[3:], 16)
        if kind == "half":
            return f"0xH{bits:04X}"
        if kind == "bfloat":
            return f"0xR{bits:04X}"
        if kind == "double":
            return f"0x{bits:016X}"
        return _double_bits(struct.unpack("<f", struct.pack("<I", bits))[0])
    value = math.nan if body.endswith("nan") else float(body)
    value = math.copysign(value, -1.0 if sign else 1.0)
    if kind == "half":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    if kind == "bfloat":
        (bits,) = struct.unpack("<I", struct.pack("<f", value))
        return f"0xR{bits >> 16:04X}"
    if kind == "float":
        value = struct.unpack("<f", struct.pack("<f", value))[0]
    return _double_bits(value)


def _double_bits(value: float) -> str:
    return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
