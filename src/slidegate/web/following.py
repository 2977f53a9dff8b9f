"""Following files while serving, without a thread or a timer of our own.

A file is looked at when a request comes and the last look is a second old. It is read when it stood still between two
looks, so that a file that is just being written is not taken for a finished one. It is read in a thread, never twice
at a time, and a request that is cancelled meanwhile stops nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Final, TypeAlias

import anyio.to_thread

LOOK_EVERY_S: Final = 1.0

Stamp: TypeAlias = tuple[int, int, int, int] | None
"""What changes with a file; None if there is none."""


def stamp_of(path: Path) -> Stamp:
    """Return what tells one version of a file from another, without reading it."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino


class Follower:
    """Has files read again when one of them has changed and all of them stand still.

    Args:
        read: Reads them and sets `stamps`, also where something in them is wrong: it is not read twice then.
        clock: Returns seconds; how time passes between two looks.

    Attributes:
        stamps: Every file that was read, with its stamp from before it was read.
    """

    def __init__(self, read: Callable[[], None], clock: Callable[[], float]) -> None:
        self.stamps: dict[Path, Stamp] = {}
        self._seen: dict[Path, Stamp] | None = None
        self._read = read
        self._clock = clock
        self._reading = Lock()
        self._next_look_s = clock() + LOOK_EVERY_S

    def due(self) -> bool:
        """Tell whether it is time for a look."""
        return self._clock() >= self._next_look_s

    async def look(self) -> None:
        """Look at the files, and read them if need be."""
        self._next_look_s = self._clock() + LOOK_EVERY_S
        if self._has_changed():
            # A list of networks may be long, and the loop has other requests to serve.
            await anyio.to_thread.run_sync(self._read_once)

    def _has_changed(self) -> bool:
        """Tell whether a file is another one than was read, and stood still since the last look."""
        before = self.stamps if self._seen is None else self._seen
        self._seen = {path: stamp_of(path) for path in self.stamps}
        return self._seen == before and self._seen != self.stamps

    def _read_once(self) -> None:
        # A reading may take longer than the time between two looks, and the request that began it may be cancelled.
        if self._reading.acquire(blocking=False):
            try:
                self._read()
            finally:
                self._reading.release()
