"""Files that are read whole or not at all, and followed while serving, without a timer.

A name may lead to anything: a pipe that nobody writes to, a device without an end, links that go round, a file as large
as the disk, a file that somebody is writing. None of them holds the reader up, and none is read by halves.

The files are looked at when a request comes and the last look is a second old. The look, and the reading if there is
something to read, happen in a thread that lives no longer than that, so no request waits for either; there is never
more than one. A changed file is read once its size and times were the same in two checks.
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
from ..core.store import EventListener, Observers

LOOK_EVERY_S: Final = 1.0
THREAD: Final = "slidegate-files"
# Opening a pipe waits for a writer, and opening a terminal may make it ours; Windows has neither.
_FLAGS: Final = os.O_RDONLY | sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY", "O_BINARY"))


class FileVersion(NamedTuple):
    """The facts that tell one version of a file from another without reading it."""

    file: tuple[int, int]
    """The device and the number of the file to which the path leads."""
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
    """Read a regular file; links are followed, as many as the system allows.

    Args:
        path: The file.
        max_bytes: How large it may be.

    Raises:
        OSError: It cannot be opened or read.
        ConfigurationError: It is no regular file, is too large, or changes while it is read.
    """
    try:
        number = os.open(path, _FLAGS)
    except ValueError as error:
        raise OSError(errno.EINVAL, str(error)) from None  # a NUL in the name
    with open(number, "rb", buffering=0) as file:
        before = os.fstat(number)
        if not stat.S_ISREG(before.st_mode):
            raise ConfigurationError("expected a file that can be read again, no pipe or device")
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
        what: What takes it, for the error message.
        path: The file.
        max_bytes: How large it may be.

    Raises:
        ConfigurationError: It cannot be read; the message says what takes the file, its path and why.
    """
    try:
        return read_whole(path, max_bytes)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror or error}", what) from error
    except ConfigurationError as error:
        raise ConfigurationError(f"cannot read {path}: {error}", what) from None


class FileWatcher:
    """Has files read again when they have changed, each version once.

    Args:
        paths: The files; it is made before they are read.
        prepare: Reads the changed files, and returns a function that puts what was read to work. That is called if the
            files are still the same versions after the reading. Neither must raise.
        clock: Returns seconds; measures the time between two looks.
        together: Whether nothing is read as long as one of the changed files is still being written.

    Attributes:
        versions: Every file that was read, with its version from before it was read.
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
        self._looking = Lock()
        self._next_look_s = clock() + LOOK_EVERY_S

    def observe(self, observer: EventListener) -> None:
        """Send `observer` each further event about the files once."""
        if observer not in self._observers:
            self._observers.add(observer)

    def look_when_due(self) -> None:
        """Check the files in a thread, at most once a second, and read those that have changed."""
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        try:
            Thread(target=self._look, name=THREAD, daemon=True).start()
        except RuntimeError as error:  # the request that looks shall not fail for it; the next look tries again
            logger.warning("no thread to look at %s: %s", ", ".join(self.versions), error)

    def _look(self) -> None:
        # A reading may take longer than the time between two looks.
        if not self._looking.acquire(blocking=False):
            return
        try:
            changed = self._changed()
            if changed:
                put_to_work = self._prepare(changed)
                if all(version_of(path) == version for path, version in changed.items()):
                    self.versions.update(changed)
                    put_to_work()
        except Exception:
            logger.exception("following %s failed", ", ".join(self.versions))
        finally:
            self._looking.release()

    def _changed(self) -> dict[str, FileVersion | None]:
        """Return the files with another version than was read, which was there at the last look too."""
        now = {path: version_of(path) for path in self.versions}
        changed = {path: version for path, version in now.items() if version != self.versions[path]}
        before, self._seen = self._seen, changed
        steady = {path: version for path, version in changed.items() if path in before and before[path] == version}
        return {} if self._together and len(steady) < len(changed) else steady
