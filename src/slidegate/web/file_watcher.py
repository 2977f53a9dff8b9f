"""Files that are read completely or not at all, and watched while serving, without a timer.

A path may lead to anything: a pipe without a writer, an endless device, a loop of links, a huge file, a file that is
being written. None of them blocks the reader, and no file is read partially.

A request triggers a check if the last one is at least a second old. A short-lived thread checks the files and reads
those that have changed, so no request waits; there is at most one such thread. A changed file is read once its size and
times were equal in two checks.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from threading import Lock, Thread
from typing import Final, NamedTuple, TypeAlias

from ..core.errors import ConfigurationError
from ..core.logs import logger
from ..core.store import Event, EventListener, Observers

LOOK_EVERY_S: Final = 1.0
THREAD: Final = "slidegate-files"
# Opening a pipe would wait for a writer, and a terminal could become the controlling one; Windows has no such flags.
_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


class FileVersion(NamedTuple):
    """The attributes that identify a version of a file without reading it."""

    file: tuple[int, int]
    """The device and the inode number."""
    size: int
    written_ns: int
    changed_ns: int


def version_of(path: str) -> FileVersion | None:
    """Return the version of a file; None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return FileVersion((found.st_dev, found.st_ino), found.st_size, found.st_mtime_ns, found.st_ctime_ns)


Versions: TypeAlias = Mapping[str, FileVersion | None]


def read_whole(path: str | PathLike[str], max_bytes: int) -> bytes:
    """Read a regular file, following links.

    Args:
        path: The file.
        max_bytes: Its maximum size.

    Raises:
        OSError: It cannot be opened or read.
        ConfigurationError: It is not a regular file, is too large, or changes while it is read.
    """
    try:
        number = os.open(path, _FLAGS)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None  # a NUL in the name
    with open(number, "rb", buffering=0) as file:
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode):
            raise ConfigurationError("expected a regular file, not a pipe or a device")
        content = bytearray()
        while len(content) <= max_bytes and (part := file.read(min(max_bytes + 1 - len(content), 1 << 20))):
            content += part
        if len(content) > max_bytes:
            raise ConfigurationError(f"expected at most {max_bytes >> 20} MiB, and it has more")
        after = os.fstat(number)
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ConfigurationError("it changes while it is read; write another file and rename it into place")
    return bytes(content)


def read_named(what: str, path: str, max_bytes: int) -> bytes:
    """Read a regular file, see `read_whole`.

    Args:
        what: The option that names it, for the error message.
        path: The file.
        max_bytes: Its maximum size.

    Raises:
        ConfigurationError: It cannot be read; the message contains the option, the path and the reason.
    """
    try:
        return read_whole(path, max_bytes)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}", what) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot read {path}: {error}", what) from None


class FileWatcher:
    """Reloads files when they have changed, each version once.

    Args:
        paths: The files. Create the watcher before reading them.
        prepare: Reads the changed files, and returns a function that applies the new content. That function is called
            if the files have not changed during the reading. Neither must raise.
        clock: Returns the time in seconds, for the interval between two checks.
        together: Whether to read nothing while any of the changed files is still being written.

    Attributes:
        versions: The version of each file, taken before it was read.
    """

    def __init__(
        self,
        paths: Iterable[str],
        prepare: Callable[[Versions], Callable[[], None]],
        clock: Callable[[], float],
        *,
        together: bool = False,
    ) -> None:
        self.versions: dict[str, FileVersion | None] = {path: version_of(path) for path in paths}
        self._observers = Observers()
        self._prepare = prepare
        self._clock = clock
        self._together = together
        self._seen: dict[str, FileVersion | None] = {}
        self._checking = Lock()
        self._next_look_s = clock() + LOOK_EVERY_S

    def observe(self, observer: EventListener) -> None:
        """Register an observer for later events about the files; registering it twice has no effect."""
        if observer not in self._observers:
            self._observers.add(observer)

    def report(self, level: int, event: Event) -> None:
        """Log an event about the files, and notify observers."""
        logger.log(level, "%s: %s", event.kind, event.message)
        self._observers.tell(event)

    def look_when_due(self) -> None:
        """Check the files in a thread, at most once a second, and read those that have changed."""
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        try:
            Thread(target=self._check, name=THREAD, daemon=True).start()
        except RuntimeError as error:  # the request must not fail because of this; the next check tries again
            logger.warning("no thread to check %s: %s", ", ".join(self.versions), error)

    def _check(self) -> None:
        # Reading may take longer than the interval between two checks.
        if not self._checking.acquire(blocking=False):
            return
        try:
            changed = self._changed()
            if changed:
                apply = self._prepare(changed)
                if all(version_of(path) == version for path, version in changed.items()):
                    self.versions.update(changed)
                    apply()
        except Exception:
            logger.exception("reloading %s failed", ", ".join(self.versions))
        finally:
            self._checking.release()

    def _changed(self) -> dict[str, FileVersion | None]:
        """Return the files whose version differs from the one that was read, but not from that of the last check."""
        now = {path: version_of(path) for path in self.versions}
        changed = {path: version for path, version in now.items() if version != self.versions[path]}
        before, self._seen = self._seen, changed
        steady = {path: version for path, version in changed.items() if path in before and before[path] == version}
        return {} if self._together and len(steady) < len(changed) else steady
