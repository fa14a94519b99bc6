"""Linking the object files that LLVM makes into this process, without LLVM.

A process that has LLVM loaded takes milliseconds to fork and to fork from; the worker forks for every
candidate. The objects are simple (one module, no exceptions, no thread-locals), so loading them is: copy the
sections, apply a handful of relocation types (System V ABI, AMD64 supplement, section 4.4), protect the
pages. On other architectures than x86-64 LLVM's own linker is used, and forking is slower.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import platform
import struct
from typing import Any, Final, Protocol

__all__ = ["Linked", "LinkedObject", "link", "map_memory"]

libc: Final = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]

_SYMTAB, _RELA, _NOBITS = 2, 4, 8
_ALLOC, _EXECUTABLE = 0x2, 0x4
_UNDEFINED, _ABSOLUTE = 0, 0xFFF1

# Relocation types, by what they ask for.
_WORD_64 = 1
_RELATIVE_64 = 24
_RELATIVE_32 = frozenset({2, 4})  # PC32, and PLT32, which differs only for symbols elsewhere
_THROUGH_TABLE = frozenset({9, 41, 42})  # GOTPCREL and its relaxable variants

_STUB: Final = b"\xff\x25\x00\x00\x00\x00"  # jmp *0(%rip), followed by the 8-byte address
_STUB_BYTES: Final = 16

_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


class Linked(Protocol):
    """Code in this process."""

    @property
    def addresses(self) -> dict[str, int]:
        """Where the symbols that were asked for are."""

    def close(self) -> None:
        """Unload the code."""


def map_memory(address: int | None, length: int, protection: int, flags: int, fd: int, offset: int) -> int:
    """Call ``mmap`` and return the address; Python's own ``mmap`` neither takes nor tells one.

    Raises:
        OSError: the system refused.
    """
    result = libc.mmap(address, length, protection, flags, fd, offset)
    if result is None or result == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"the system refused to map {length} bytes")
    return int(result)


def link(code: bytes, symbols: tuple[str, ...]) -> Linked:
    """Link an object file into this process and look up ``symbols``.

    Raises:
        RuntimeError: the object is damaged, or refers to something that does not exist.
    """
    if platform.machine() == "x86_64":
        return LinkedObject(code, symbols)
    from solgym.hardware.jit import LoadedObject

    return LoadedObject(code, symbols)


@functools.cache
def _process_symbol(name: str) -> int:
    try:
        function: Any = getattr(libc, name)
    except AttributeError:
        raise RuntimeError(f"the object refers to {name!r}, which this process does not have") from None
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class LinkedObject:
    """A relocatable ELF object for x86-64, linked. Addresses stay valid until ``close``."""

    def __init__(self, code: bytes, symbols: tuple[str, ...]) -> None:
        """Link ``code``; libc's symbols resolve from the process.

        Raises:
            RuntimeError: the object is damaged, uses a relocation that is not supported, or refers to a
                symbol that does not exist.
        """
        self._base = self._length = 0
        self.addresses: dict[str, int] = {}
        try:
            self._read(code)
            self._place(code)
            self.addresses = {name: self._addresses_by_name[name] for name in symbols}
        except (struct.error, IndexError, UnicodeDecodeError, ValueError) as error:
            self.close()
            raise RuntimeError(f"this is not an object file that can be linked: {error}") from error
        except KeyError as error:
            self.close()
            raise RuntimeError(f"the object has no symbol {error}") from error
        except RuntimeError:
            self.close()
            raise

    def _read(self, code: bytes) -> None:
        """Read section headers, symbols and relocations."""
        if code[:6] != b"\x7fELF\x02\x01" or struct.unpack_from("<HH", code, 16) != (1, 62):
            raise RuntimeError("this is not a relocatable ELF object for x86-64")
        (table,) = struct.unpack_from("<Q", code, 40)
        count, names_index = struct.unpack_from("<HH", code, 60)
        sections = [_SECTION.unpack_from(code, table + i * _SECTION.size) for i in range(count)]
        names_at = sections[names_index][4]
        self._sections = sections
        self._loaded = [
            index
            for index, section in enumerate(sections)
            # Unwind tables are for exceptions, which kernels do not throw.
            if section[2] & _ALLOC and section[5] and _text(code, names_at + section[0]) != ".eh_frame"
        ]
        self._symbols: list[tuple[str, int, int, int]] = []
        for section in sections:
            if section[1] == _SYMTAB:
                strings_at = sections[section[6]][4]
                for name, _info, _other, index, value, size in _SYMBOL.iter_unpack(
                    code[section[4] : section[4] + section[5]]
                ):
                    self._symbols.append((_text(code, strings_at + name), index, value, size))
        loaded = set(self._loaded)
        self._relocations: list[tuple[int, int, int, int, int]] = []
        for section in sections:
            if section[1] == _RELA and section[7] in loaded:
                for offset, info, addend in _RELOCATION.iter_unpack(
                    code[section[4] : section[4] + section[5]]
                ):
                    self._relocations.append((section[7], offset, info & 0xFFFFFFFF, info >> 32, addend))

    def _place(self, code: bytes) -> None:
        """Map memory, copy the sections, relocate, protect."""
        executable = [i for i in self._loaded if self._sections[i][2] & _EXECUTABLE]
        others = [i for i in self._loaded if not self._sections[i][2] & _EXECUTABLE]
        starts: dict[int, int] = {}
        cursor = 0
        for index in executable:
            cursor = _round_up(cursor, max(1, self._sections[index][8]))
            starts[index] = cursor
            cursor += self._sections[index][5]
        stubs_at = _round_up(cursor, _STUB_BYTES)
        outside = sorted(
            {s for _, _, kind, s, _ in self._relocations if kind in _RELATIVE_32 and self._is_outside(s)}
        )
        cursor = stubs_at + _STUB_BYTES * len(outside)
        executable_bytes = cursor = _round_up(cursor, mmap.PAGESIZE)
        for index in others:
            cursor = _round_up(cursor, max(1, self._sections[index][8]))
            starts[index] = cursor
            cursor += self._sections[index][5]
        table_at = _round_up(cursor, 8)
        through_table = sorted({s for _, _, kind, s, _ in self._relocations if kind in _THROUGH_TABLE})
        self._length = _round_up(table_at + 8 * len(through_table) + 1, mmap.PAGESIZE)
        self._base = map_memory(
            None, self._length, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0
        )
        image = memoryview((ctypes.c_char * self._length).from_address(self._base)).cast("B")
        for index, start in starts.items():
            section = self._sections[index]
            if section[1] != _NOBITS:
                image[start : start + section[5]] = code[section[4] : section[4] + section[5]]
        section_addresses = {index: self._base + start for index, start in starts.items()}
        addresses = {
            symbol: self._address(symbol, section_addresses)
            for symbol in {s for *_, s, _ in self._relocations}
        }
        stubs = {symbol: self._base + stubs_at + _STUB_BYTES * i for i, symbol in enumerate(outside)}
        for symbol, stub in stubs.items():
            entry = _STUB + struct.pack("<Q", addresses[symbol])
            image[stub - self._base : stub - self._base + len(entry)] = entry
        slots = {symbol: self._base + table_at + 8 * i for i, symbol in enumerate(through_table)}
        for symbol, slot in slots.items():
            struct.pack_into("<Q", image, slot - self._base, addresses[symbol])
        for index, offset, kind, symbol, addend in self._relocations:
            at = starts[index] + offset
            if kind == _WORD_64:
                struct.pack_into("<Q", image, at, (addresses[symbol] + addend) % (1 << 64))
            elif kind in _RELATIVE_32:
                target = stubs.get(symbol, addresses[symbol])
                struct.pack_into("<i", image, at, target + addend - (self._base + at))
            elif kind in _THROUGH_TABLE:
                struct.pack_into("<i", image, at, slots[symbol] + addend - (self._base + at))
            elif kind == _RELATIVE_64:
                struct.pack_into("<q", image, at, addresses[symbol] + addend - (self._base + at))
            else:
                raise RuntimeError(
                    f"the object uses relocation type {kind}, which SOLGym's linker does not know"
                )
        self._addresses_by_name = {
            name: section_addresses[index] + value
            for name, index, value, _ in self._symbols
            if name and index in section_addresses
        }
        if executable_bytes and libc.mprotect(self._base, executable_bytes, mmap.PROT_READ | mmap.PROT_EXEC):
            raise RuntimeError("the system does not allow generated code to be executed")

    def _is_outside(self, symbol: int) -> bool:
        return self._symbols[symbol][1] == _UNDEFINED

    def _address(self, symbol: int, section_addresses: dict[int, int]) -> int:
        name, index, value, _ = self._symbols[symbol]
        if index == _UNDEFINED:
            return _process_symbol(name)
        if index == _ABSOLUTE:
            return value
        if index not in section_addresses:
            raise RuntimeError(f"the object's symbol {name!r} lies in a section that is not loaded")
        return section_addresses[index] + value

    def close(self) -> None:
        """Unload the code; its addresses must not be used any more. Closing twice does nothing."""
        base, self._base = self._base, 0
        self.addresses = {}
        if base:
            libc.munmap(base, self._length)


def _text(code: bytes, start: int) -> str:
    return code[start : code.index(b"\0", start)].decode()


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
