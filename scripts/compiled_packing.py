"""Replaces `slidegate.core.packing` in a compiled wheel: the same bytes, computed with machine integers.

`struct` is called through the interpreter, which creates an object for every number; these functions are C calls.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from librt.strings import BytesWriter, read_i32_le, read_i64_le, write_i32_le, write_i64_le

if TYPE_CHECKING:
    from mypy_extensions import i32, i64  # built into mypyc; not imported at run time

Head: TypeAlias = tuple[int, int, int, int]
HEAD_BYTES: Final = 24
COUNT_BYTES: Final = 8
ENTRY_BYTES: Final = 12
_ENTRY: Final = Struct("<qI")
_MAX_UNITS: Final = 2**32 - 1


def read_head(window: bytes) -> Head:
    spent, units = i64(read_i32_le(window, 0)), i64(read_i32_le(window, 4))
    return spent & _MAX_UNITS, units & _MAX_UNITS, read_i64_le(window, 8), read_i64_le(window, 16)


def pack_head(spent: int, units: int, newest_us: int, oldest_us: int) -> bytes:
    writer = BytesWriter()
    write_i32_le(writer, _signed(spent))
    write_i32_le(writer, _signed(units))
    write_i64_le(writer, newest_us)
    write_i64_le(writer, oldest_us)
    return writer.getvalue()


def pack_counts(spent: int, units: int) -> bytes:
    writer = BytesWriter()
    write_i32_le(writer, _signed(spent))
    write_i32_le(writer, _signed(units))
    return writer.getvalue()


def pack_entry(moment_us: int, units: int) -> bytes:
    writer = BytesWriter()
    write_i64_le(writer, moment_us)
    write_i32_le(writer, _signed(units))
    return writer.getvalue()


def read_entry(packed: bytes) -> tuple[int, int]:
    return read_i64_le(packed, 0), i64(read_i32_le(packed, 8)) & _MAX_UNITS


def read_entries(packed: bytes) -> Iterator[tuple[int, int]]:
    return _ENTRY.iter_unpack(packed)


def _signed(units: int) -> i32:  # the signed integer with the same 32 bits
    if not 0 <= units <= _MAX_UNITS:
        raise OverflowError(f"units: expected 0 to 2**32 - 1, not {units}")
    number: i64 = units
    return i32(number if number < 2**31 else number - 2**32)
