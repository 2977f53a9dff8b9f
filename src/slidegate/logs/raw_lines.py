"""Whole lines out of a file, in blocks: plain, gzip or zstd, told apart by their first bytes, not by the name.

Nothing here grows with the file. A line is kept up to `MAX_LINE_BYTES` and a byte, so that its reader sees that it is
too long and nobody holds the rest: neither a line without an end nor packed data that unpacks to one fills the memory.
Packed data that unpacks to far more than any log is given up.
"""

from __future__ import annotations

import gzip
import importlib
import io
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Final, NamedTuple, Protocol, cast

from ..core.errors import ConfigurationError
from .access_record import MAX_LINE_BYTES, Skip
from .formats.w3c_logs import FIELDS, w3c_names
from .line_parser import Names

BLOCK_BYTES: Final = 1 << 18
MAX_RATIO: Final = 300
"""How far gzip data may unpack: logs of nothing but one health check reach a third of it, and newlines 1,030."""
MAX_ZSTD_RATIO: Final = 20_000
"""How far zstd data may unpack, which packs lines that repeat much better."""
MIN_BOMB_BYTES: Final = 1 << 20
_PIECE: Final = 1_024
_GZIP_MAGIC: Final = b"\x1f\x8b"
_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAGIC_BYTES: Final = 6
_OTHER_MAGIC: Final = {
    b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"PK\x03\x04": "zip", b"7z\xbc\xaf": "7z", b"\x04\x22\x4d\x18": "lz4",
}  # fmt: skip
_HEADER: Final = FIELDS.encode()
_LONGEST_WINDOW: Final = 1 << 27


class Block(NamedTuple):
    """Some lines of a file."""

    lines: bytes
    """Whole lines, each with its end; only the last line of a file may have none."""
    names: Names
    """The names that the last header line in front of these gave."""
    damage: Skip | None = None
    """The reason for which the file could not be read further than to here."""


class Source(Protocol):
    """Bytes, as they are read."""

    def read1(self, size: int, /) -> bytes:
        """Return at most so many bytes, at least one unless there are none."""


class Packed:
    """Gives packed data in small pieces, so that the bytes taken tell how much was unpacked."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.taken = 0

    def read(self, size: int = -1) -> bytes:
        """Return some bytes."""
        part = self._file.read(min(size, _PIECE) if size >= 0 else _PIECE)
        self.taken += len(part)
        return part


class _Zstd:
    """Unpacks zstd data, frame after frame."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed
        self._new, self._error = _zstd()
        self._frame: Any = None

    def read1(self, size: int) -> bytes:
        """Return the next bytes.

        Raises:
            EOFError: The data is damaged or cut off.
        """
        while True:
            piece = self._packed.read(size)
            if not piece:
                if self._frame is not None:
                    raise EOFError("a frame has no end")
                return b""
            unpacked = self._unpacked(piece)
            if unpacked:
                return unpacked

    def _unpacked(self, piece: bytes) -> bytes:
        unpacked = b""
        while piece:
            if self._frame is None:
                self._frame = self._new()
            try:
                unpacked += self._frame.decompress(piece)
            except self._error as error:
                raise EOFError("a frame is damaged") from error
            piece = self._frame.unused_data if self._frame.eof else b""
            if self._frame.eof:
                self._frame = None
        return unpacked


def _zstd() -> tuple[Callable[[], Any], type[Exception]]:
    """Return a maker of decompressors, and the error that they raise; from 3.14 on Python has one."""
    try:
        module = importlib.import_module("compression.zstd")
    except ImportError:
        pass
    else:
        return module.ZstdDecompressor, module.ZstdError
    try:
        module = importlib.import_module("zstandard")
    except ImportError:
        raise ConfigurationError(
            "it is packed with zstd, and nothing here unpacks that; install slidegate[cli], or unpack it with `zstd -d`"
        ) from None
    decompressor = module.ZstdDecompressor(max_window_size=_LONGEST_WINDOW)
    return decompressor.decompressobj, module.ZstdError


def blocks_of(file: io.BufferedReader) -> Iterator[Block]:
    """Yield the lines of a file, from where it stands.

    Raises:
        ConfigurationError: It is packed in a way that cannot be unpacked here.
        OSError: It cannot be read.
    """
    magic = file.peek(_MAGIC_BYTES)[:_MAGIC_BYTES]
    for sign, packer in _OTHER_MAGIC.items():
        if magic.startswith(sign):
            raise ConfigurationError(f"it is packed with {packer}; expected plain text, gzip or zstd, so unpack it")
    if magic.startswith(_GZIP_MAGIC):
        packed = Packed(file)
        yield from _whole_lines(gzip.GzipFile(fileobj=cast(Any, packed)), packed, MAX_RATIO, Skip.GZIP)
    elif magic.startswith(_ZSTD_MAGIC):
        packed = Packed(file)
        yield from _whole_lines(_Zstd(packed), packed, MAX_ZSTD_RATIO, Skip.ZSTD)
    else:
        yield from _whole_lines(file, None, 0, Skip.GZIP)


def _whole_lines(source: Source, packed: Packed | None, most: int, damaged: Skip) -> Iterator[Block]:
    unpacked = 0
    cut = LineCutter()
    names: Names = ()
    damage: Skip | None = None
    while damage is None:
        try:
            part = source.read1(BLOCK_BYTES)
        except (EOFError, gzip.BadGzipFile, zlib.error):
            part, damage = b"", damaged
        unpacked += len(part)
        if packed is not None and unpacked > MIN_BOMB_BYTES + most * packed.taken:
            part, damage = b"", Skip.BOMB
        # A line that damage cut off is a part of the damage.
        lines = cut.whole(part) if part else b"" if damage else cut.rest()
        if lines or damage:
            yield Block(lines, names, damage)
            names = names_behind(lines, names)
        if not part:
            return


def names_behind(lines: bytes, names: Names) -> Names:
    """Return the names of fields that hold behind some lines, where others held in front of them."""
    start = lines.rfind(b"\n" + _HEADER) + 1
    if start == 0 and not lines.startswith(_HEADER):
        return names
    return w3c_names(lines[start:].partition(b"\n")[0].decode(errors="replace"))


class LineCutter:
    """Puts parts of a text together, and gives its lines as soon as they are whole."""

    def __init__(self) -> None:
        self._begun = b""

    def whole(self, part: bytes) -> bytes:
        """Take the next part; return the lines that are whole now."""
        end = part.rfind(b"\n") + 1
        if not end:
            self._begun = (self._begun + part)[: MAX_LINE_BYTES + 1]
            return b""
        # What begun a line that is too long already stays so, however it goes on.
        if len(self._begun) > MAX_LINE_BYTES:
            lines = self._begun + part[part.find(b"\n") : end]
        else:
            lines = self._begun + part[:end]
        self._begun = part[end:][: MAX_LINE_BYTES + 1]
        return lines

    def rest(self) -> bytes:
        """Return the last line, which has no end; nothing is kept then."""
        begun, self._begun = self._begun, b""
        return begun
