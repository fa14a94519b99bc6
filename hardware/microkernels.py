"""LLVM IR of the small kernels that calibration times: multiply-adds and memory streams.

Each function returns a module with one entry, ``void kernel(ptr base, i64 bytes, i64 passes)``. The text is
explicit about vectors and unrolling, and loads are volatile, so that no optimiser can leave work out and
no arithmetic stands between the loads of a bandwidth kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["ENTRY", "STREAMS", "StreamKernel", "StreamKind", "fma_kernel", "library_kernel"]

ENTRY = "kernel"
_SIGNATURE = f"define void @{ENTRY}(ptr %base, i64 %bytes, i64 %passes)"
_ELEMENTS = {"f32": ("float", 32), "f64": ("double", 64)}

# Not zero: some CPUs (Zen 5) write lines of zeros past the caches twice as fast as any others.
_WRITTEN = "splat (i32 1065353216)"

StreamKind = Literal["read", "copy", "add", "write"]

STREAMS: dict[StreamKind, tuple[int, int]] = {"read": (1, 0), "copy": (1, 1), "add": (2, 1), "write": (0, 1)}
"""Arrays read and written by each stream; a working set is split into as many equal arrays."""


def library_kernel(kind: StreamKind) -> str:
    """The C library's ``memcpy`` (copy) or ``memset`` (write), which candidates may call as well.

    On some CPUs their string instructions own a line without reading it, as no ordinary store can.
    """
    if kind == "copy":
        body = [
            "  %half = udiv i64 %bytes, 2",
            "  %target = getelementptr i8, ptr %base, i64 %half",
            "  call void @llvm.memcpy.p0.p0.i64(ptr %target, ptr %base, i64 %half, i1 false)",
        ]
    elif kind == "write":
        body = ["  call void @llvm.memset.p0.i64(ptr %base, i8 1, i64 %bytes, i1 false)"]
    else:
        raise ValueError(f"the C library has no function for the stream {kind!r}")
    return "\n".join(
        [
            "declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)",
            "declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)",
            f"{_SIGNATURE} {{",
            "entry:",
            "  br label %loop",
            "loop:",
            "  %pass = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *body,
            "  %next = add i64 %pass, 1",
            "  %more = icmp slt i64 %next, %passes",
            "  br i1 %more, label %loop, label %done",
            "done:",
            "  ret void",
            "}",
            "",
        ]
    )


def fma_kernel(dtype: Literal["f32", "f64"], vector_bits: int, chains: int, unroll: int = 4) -> str:
    """Independent chains of fused multiply-adds on vector registers, ``passes`` times round a loop.

    One pass does ``2 * lanes * chains * unroll`` flops. ``chains`` must cover latency times issue width
    and leave two registers for the constants. Every lane converges to 1 from nearby, so that no operand
    is ever denormal, infinite, or all zeros.
    """
    element, bits = _ELEMENTS[dtype]
    lanes = vector_bits // bits
    vector = f"<{lanes} x {element}>"

    def splat(value: str) -> str:
        return "<" + ", ".join(f"{element} {value}" for _ in range(lanes)) + ">"

    name = f"llvm.fma.v{lanes}{dtype}"
    body, phis, stores = [], [], []
    for chain in range(chains):
        phis.append(
            f"  %x{chain} = phi {vector} [ {splat(f'{1 + (chain + 1) / 32:.6e}')}, %entry ], "
            f"[ %y{chain}_{unroll - 1}, %loop ]"
        )
        stores.append(f"  store volatile {vector} %y{chain}_{unroll - 1}, ptr %base, align 64")
    for step in range(unroll):
        for chain in range(chains):
            source = f"%x{chain}" if step == 0 else f"%y{chain}_{step - 1}"
            body.append(
                f"  %y{chain}_{step} = call {vector} @{name}({vector} {source}, {vector} %a, {vector} %b)"
            )
    # The constants go through memory once: a constant operand would be folded into every instruction.
    return "\n".join(
        [
            f"declare {vector} @{name}({vector}, {vector}, {vector})",
            f"{_SIGNATURE} {{",
            "entry:",
            f"  %slots = alloca [2 x {vector}], align 64",
            f"  %second = getelementptr {vector}, ptr %slots, i64 1",
            f"  store volatile {vector} {splat('5.000000e-01')}, ptr %slots, align 64",
            f"  store volatile {vector} {splat('5.000000e-01')}, ptr %second, align 64",
            f"  %a = load volatile {vector}, ptr %slots, align 64",
            f"  %b = load volatile {vector}, ptr %second, align 64",
            "  br label %loop",
            "loop:",
            "  %pass = phi i64 [ 0, %entry ], [ %next, %loop ]",
            *phis,
            *body,
            "  %next = add i64 %pass, 1",
            "  %more = icmp slt i64 %next, %passes",
            "  br i1 %more, label %loop, label %done",
            "done:",
            *stores,
            "  ret void",
            "}",
            "",
        ]
    )


@dataclass(frozen=True)
class StreamKernel:
    """A kernel that streams through a working set of ``bytes``, ``passes`` times.

    Attributes:
        kind: ``read``, ``copy``, ``add`` or ``write``; see ``STREAMS``.
        vector_bits: width of each access.
        strands: places at which each array is walked at the same time, so that several hardware
            prefetchers work on it.
        unroll: vectors per strand in one trip of the loop.
        nontemporal: whether stores bypass the caches.
        prefetch_bytes: how far ahead each line read is prefetched; 0 for not at all.
        library: whether the C library's function does it, see ``library_kernel``.
    """

    kind: StreamKind
    vector_bits: int
    strands: int = 1
    unroll: int = 4
    nontemporal: bool = False
    prefetch_bytes: int = 0
    library: bool = False

    @property
    def granule_bytes(self) -> int:
        """Working sets must be a multiple of this, arrays and strands included."""
        return sum(STREAMS[self.kind]) * self.strands * self.unroll * self.vector_bits // 8

    def ir(self) -> str:
        """The module's text."""
        if self.library:
            return library_kernel(self.kind)
        read_arrays, written_arrays = STREAMS[self.kind]
        arrays = read_arrays + written_arrays
        step, vector = self.vector_bits // 8, f"<{self.vector_bits // 32} x i32>"
        hint = ", !nontemporal !0" if self.nontemporal else ""
        setup, body = [], []
        for strand in range(self.strands):
            for array in range(arrays):
                piece = array * self.strands + strand
                setup.append(f"  %o{piece} = mul i64 %piece, {piece}")
                setup.append(f"  %p{piece} = getelementptr i8, ptr %base, i64 %o{piece}")
        for slot in range(self.unroll):
            for strand in range(self.strands):
                for array in range(arrays):
                    piece = array * self.strands + strand
                    name = f"{piece}_{slot}"
                    body.append(f"  %i{name} = add i64 %i, {slot * step}")
                    body.append(f"  %q{name} = getelementptr i8, ptr %p{piece}, i64 %i{name}")
                    if array < read_arrays:
                        if self.prefetch_bytes and slot * step % 64 == 0:
                            ahead = f"getelementptr i8, ptr %q{name}, i64 {self.prefetch_bytes}"
                            body.append(f"  %f{name} = {ahead}")
                            body.append(f"  call void @llvm.prefetch.p0(ptr %f{name}, i32 0, i32 3, i32 1)")
                        body.append(f"  %v{name} = load volatile {vector}, ptr %q{name}, align {step}")
                    else:
                        value = f"%v{strand}_{slot}" if read_arrays else _WRITTEN
                        if read_arrays == 2:
                            body.append(f"  %s{name} = or {vector} {value}, %v{self.strands + strand}_{slot}")
                            value = f"%s{name}"
                        body.append(f"  store {vector} {value}, ptr %q{name}, align {step}{hint}")
        return "\n".join(
            [
                "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
                f"{_SIGNATURE} {{",
                "entry:",
                f"  %piece = udiv i64 %bytes, {arrays * self.strands}",
                *setup,
                "  br label %outer",
                "outer:",
                "  %pass = phi i64 [ 0, %entry ], [ %pass.next, %outer.end ]",
                "  br label %loop",
                "loop:",
                "  %i = phi i64 [ 0, %outer ], [ %i.next, %loop ]",
                *body,
                f"  %i.next = add i64 %i, {self.unroll * step}",
                "  %more = icmp slt i64 %i.next, %piece",
                "  br i1 %more, label %loop, label %outer.end",
                "outer.end:",
                "  %pass.next = add i64 %pass, 1",
                "  %again = icmp slt i64 %pass.next, %passes",
                "  br i1 %again, label %outer, label %done",
                "done:",
                "  ret void",
                "}",
                "!0 = !{i32 1}",
                "",
            ]
        )
