"""Follows files while serving, without a timer of its own.

The files are looked at when a request comes and the last look is a second old. The look, and the reading if there is
something to read, happen in a thread that lives no longer than that, so no request waits for either; there is never
more than one.

A file that was renamed into place is read at once: it was complete when it got its name. A file that was changed in
place is read when it has stood still for ten seconds, because a writer that has finished looks like one that pauses.
A reader may ask for another minute, for a file that has lost most of its entries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from threading import Lock, Thread
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import anyio.to_thread

from ...core.logs import logger

if TYPE_CHECKING:
    from pathlib import Path

LOOK_EVERY_S: Final = 1.0
STILL_S: Final = 10.0
"""How long a file that is changed in place has to stand still."""
SHRUNK_S: Final = 60.0
"""How much longer it has to stand still if it has lost more than half of its entries."""
THREAD: Final = "slidegate-files"


class Stamp(NamedTuple):
    """The facts that tell one version of a file from another without reading it."""

    path: str
    """The path of the file to which links lead."""
    file: tuple[int, int]
    """The device and the number of the file there."""
    size: int
    written_ns: int
    changed_ns: int


def stamp_of(path: Path) -> Stamp | None:
    """Return the stamp of a file; None if there is none."""
    try:
        found = path.stat()
        real = os.path.realpath(path)
    except (OSError, ValueError):
        return None
    return Stamp(real, (found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Change(NamedTuple):
    """Another version of a file, which may be read now.

    Attributes:
        path: The file.
        stamp: The stamp of the version; None if the file is gone.
        renamed: Whether it was renamed into place, and so is complete.
        waited: Whether this version has waited for another minute, because it has lost most of the entries.
    """

    path: Path
    stamp: Stamp | None
    renamed: bool
    waited: bool

    def still(self) -> bool:
        """Return whether the file is still the same version; ask after reading it."""
        return stamp_of(self.path) == self.stamp

    def loses_too_much(self, before: int, now: int) -> bool:
        """Return whether this version has to wait: it has less than half of the entries that were read before."""
        return 2 * now < before and not self.renamed and not self.waited


Read: TypeAlias = "Callable[[Mapping[Path, Change]], Collection[Path]]"
"""Reads the changed files, and returns those that have to wait until they have stood still for a minute more."""


class Follower:
    """Has files read again when they have changed, each version once.

    Args:
        read: Reads the changed files. It must not raise.
        clock: Returns seconds; measures the time between two looks.
        together: Whether all changed files are read at once, when the last of them stands still.

    Attributes:
        stamps: Every file that was read, with its stamp from before it was read.
    """

    def __init__(self, read: Read, clock: Callable[[], float], *, together: bool = False) -> None:
        self.stamps: dict[Path, Stamp | None] = {}
        self._read = read
        self._clock = clock
        self._together = together
        self._since: dict[Path, tuple[Stamp | None, float]] = {}
        self._waiting: dict[Path, Stamp | None] = {}
        self._looking = Lock()
        self._next_look_s = clock() + LOOK_EVERY_S

    def due(self) -> bool:
        """Return whether it is time for a look."""
        return self._clock() >= self._next_look_s

    def look_aside(self) -> None:
        """Look at the files in a thread, and read there those that have changed; return at once."""
        self._next_look_s = self._clock() + LOOK_EVERY_S
        Thread(target=self._look, name=THREAD, daemon=True).start()

    async def look(self) -> None:
        """Look at the files in a thread, and wait until those that have changed are read."""
        self._next_look_s = self._clock() + LOOK_EVERY_S
        await anyio.to_thread.run_sync(self._look)

    def _look(self) -> None:
        # A reading may take longer than the time between two looks, and a caller that awaits it may be cancelled.
        if not self._looking.acquire(blocking=False):
            return
        try:
            changes = self._changes()
            if changes:
                waiting = self._read(changes)
                for path, change in changes.items():
                    if path in waiting:
                        self._waiting[path] = change.stamp
                    elif path in self.stamps:
                        self.stamps[path] = change.stamp
        except Exception:
            logger.exception("following %s failed", ", ".join(map(str, self.stamps)))
        finally:
            self._looking.release()

    def _changes(self) -> dict[Path, Change]:
        now_s = self._clock()
        ready: dict[Path, Change] = {}
        unready = False
        for path, known in self.stamps.items():
            stamp = stamp_of(path)
            if stamp == known:
                self._since.pop(path, None)
                continue
            seen, since_s = self._since.get(path, (known, now_s))
            if seen != stamp:
                seen, since_s = stamp, now_s
            self._since[path] = seen, since_s
            renamed = _was_renamed(known, stamp)
            waited = path in self._waiting and self._waiting[path] == stamp
            if renamed or now_s - since_s >= STILL_S + (SHRUNK_S if waited else 0.0):
                ready[path] = Change(path, stamp, renamed, waited)
            else:
                unready = True
        return {} if unready and self._together else ready


def _was_renamed(before: Stamp | None, now: Stamp | None) -> bool:
    """Return whether a version was complete when it got its name."""
    if now is None:
        return False
    if before is not None:
        if before.path != now.path:
            return True  # a link leads elsewhere
        if before.file == now.file:
            return False
    try:
        named_ns = os.stat(os.path.dirname(now.path)).st_mtime_ns
    except OSError:
        return False
    # This is another file of that name. If it was last written before the directory last changed, it was complete when
    # it got its name. A file that was removed and written anew was not.
    return now.written_ns <= named_ns
