"""The lines that are added to a file, each once, while programs rotate it.

* **Renamed, or deleted, and made anew**: another file lies at the path. The old one stays open and is read on, because
  servers go on writing to it until they are told; it is closed when nothing has come for a while.
* **Copied and cut off** (``copytruncate``): the text in front of our place is no longer the one that we have read. The
  lines that we have not read are in the copy, which lies beside the file and has that text at that place.
* **A line without an end** waits for the rest of it, however long that takes.

Two rotations between two looks are one too many: nobody has seen the file between them.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Final, cast

from ..core.logs import escaped, logger
from .access_record import MAX_LINE_BYTES
from .line_parser import Names
from .raw_lines import BLOCK_BYTES, Block, LineCutter, names_behind

_FINGERPRINT_BYTES: Final = 256
_QUIET_LOOKS: Final = 60
"""An old file is closed after so many looks that found nothing new in it."""
_MOST_OLD: Final = 4
_MOST_COPIES: Final = 8


class _Opened:
    """One file that is or was at the path, and our place in it."""

    def __init__(self, file: IO[bytes], at_end: bool) -> None:
        self.file = file
        found = os.fstat(file.fileno())
        self.identity = (found.st_dev, found.st_ino)
        self.quiet_looks = 0
        self._cut = LineCutter()
        self._place = 0
        self._before = b""
        self._names: Names = ()
        if at_end:
            self._go_to_last_line(found.st_size)

    def added(self, copies: Path) -> Iterator[Block]:
        """Yield the lines that were added, at most a block of them.

        Args:
            copies: The path, beside which a copy lies if the file was cut off.
        """
        data = self._read(self._place, BLOCK_BYTES)
        # In this order: if the file was cut off in between, the data are from behind the cut, and this shows it.
        if self._read(self._place - len(self._before), len(self._before)) != self._before:
            yield from self._rest_in_copy(copies)
            yield from self.rest()
            self._place, self._before = 0, b""
            data = self._read(0, BLOCK_BYTES)
        yield from self._taken(data)

    def rest(self) -> Iterator[Block]:
        """Yield the last line, if it has no end and will get none."""
        lines = self._cut.rest()
        if lines:
            yield Block(lines, self._names)

    def _taken(self, data: bytes) -> Iterator[Block]:
        if data:
            self._place += len(data)
            self._before = (self._before + data)[-_FINGERPRINT_BYTES:]
            lines = self._cut.whole(data)
            if lines:
                yield Block(lines, self._names)
                self._names = names_behind(lines, self._names)

    def _rest_in_copy(self, path: Path) -> Iterator[Block]:
        """Yield the lines behind our place in the copy that was made before the file was cut off."""
        start = self._place - len(self._before)
        for copy in _copies(path):
            with suppress(OSError, EOFError, zlib.error), _opened(copy) as file:
                file.seek(start)
                if not self._before or file.read(len(self._before)) != self._before:
                    continue
                while data := file.read(BLOCK_BYTES):
                    yield from self._taken(data)
                return

    def _read(self, place: int, size: int) -> bytes:
        self.file.seek(place)
        return self.file.read(size)

    def _go_to_last_line(self, size: int) -> None:
        """Go behind the last line that is whole."""
        head = self._read(0, _FINGERPRINT_BYTES * 16)
        self._names = names_behind(head[: head.rfind(b"\n") + 1], ())
        start = max(0, size - MAX_LINE_BYTES)
        tail = self._read(start, size - start)
        end = tail.rfind(b"\n") + 1
        self._place = start + end if end else size
        before = max(0, self._place - _FINGERPRINT_BYTES)
        self._before = self._read(before, self._place - before)


class Tail:
    """The lines that are added to the file at a path, whatever rotates it.

    Args:
        path: The file, which need not be there yet.
        from_start: Whether the lines that it has already are among them.
    """

    def __init__(self, path: Path, *, from_start: bool) -> None:
        self._path = path
        self._at_end = not from_start
        self._opened: list[_Opened] = []
        self._refused = ""

    def look(self) -> list[Block]:
        """Return some of the lines that were added since the last look; none where there were none."""
        self._follow_path()
        found: list[Block] = []
        for opened in self._opened:
            blocks = list(opened.added(self._path))
            opened.quiet_looks = 0 if blocks else opened.quiet_looks + 1
            found += blocks
        for old in self._opened[:-1]:
            if old.quiet_looks >= _QUIET_LOOKS or len(self._opened) > _MOST_OLD:
                found += self._let_go(old)
        return found

    def close(self) -> None:
        """Close the files; the next look begins anew."""
        for opened in self._opened:
            opened.file.close()
        self._opened.clear()

    def _let_go(self, old: _Opened) -> list[Block]:
        self._opened.remove(old)
        blocks = list(old.rest())
        old.file.close()
        return blocks

    def _follow_path(self) -> None:
        """Open the file at the path, if it is another one than before."""
        try:
            found = os.stat(self._path)
            if self._opened and self._opened[-1].identity == (found.st_dev, found.st_ino):
                self._refused = ""
                return
            file = open(self._path, "rb", buffering=0)  # noqa: SIM115 - it stays open
            self._opened.append(_Opened(file, self._at_end))
            self._refused = ""
        except FileNotFoundError:
            pass  # between two files, or before the first one
        except OSError as error:
            if str(error) != self._refused:
                self._refused = str(error)
                logger.warning("cannot follow %s: %s", escaped(str(self._path), 200), error.strerror or error)
        # All that comes later is new, also a file that lies there for the first time.
        self._at_end = False


def _copies(path: Path) -> list[Path]:
    """Return the files beside one that rotation has made, the latest first."""
    found = []
    with suppress(OSError), os.scandir(path.parent) as entries:
        for entry in entries:
            with suppress(OSError):
                if entry.name.startswith(path.name) and entry.name != path.name and entry.is_file():
                    found.append((entry.stat().st_mtime_ns, entry.path))
    return [Path(name) for _, name in sorted(found, reverse=True)[:_MOST_COPIES]]


def _opened(copy: Path) -> IO[bytes]:
    """Open a copy, which may be packed by now."""
    file = open(copy, "rb")  # noqa: SIM115 - the caller closes it
    packed = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    if not packed:
        return file
    file.close()
    return cast(IO[bytes], gzip.open(copy, "rb"))
