"""Files that are read completely or not at all, and followed while serving, without a timer.

A path may lead to anything: a pipe without a writer, an endless device, a loop of links, a huge file, a file that is
being written. None of them blocks the reader, and no file is read partially.

A request triggers a look if the last one is at least a second old. A short-lived thread looks at the files and reads
those that have changed, so no request waits; there is at most one such thread. Changed files are read once their sizes
and times were equal at two looks.
"""

from __future__ import annotations

import logging
import os
import stat
from abc import abstractmethod
from collections.abc import Callable, Mapping
from threading import Lock, Thread
from typing import Final, TypeAlias

from ..core.errors import ConfigurationError
from ..core.logs import logger
from ..core.store import Event, EventListener, Observers

LOOK_EVERY_S: Final = 1.0
THREAD: Final = "slidegate-files"
# Opening a pipe would wait for a writer, and a terminal could become the controlling one; Windows has no such flags.
_AT_ONCE: Final = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY"))

FileVersion: TypeAlias = tuple[int, ...]
"""Device, inode number, size and times of a file, which identify a version of it without reading it."""
Versions: TypeAlias = Mapping[str, FileVersion | None]
"""The versions of some files by path; None for a file that does not exist."""


def version_of(path: str) -> FileVersion | None:
    """Return the version of a file, following links; None if there is none."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def read_whole(path: str, max_bytes: int, option: str = "") -> bytes:
    """Read a regular file, following links.

    Args:
        path: The file.
        max_bytes: Its maximum size.
        option: The option that names it, for the error message.

    Raises:
        ConfigurationError: It cannot be read, is empty, is not a regular file, is too large, or changes meanwhile.
    """
    try:
        return _read(path, max_bytes)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or one of `_read`'s own
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot read {path}: {reason}", option) from error


def _read(path: str, max_bytes: int) -> bytes:
    with open(path, "rb", opener=_opened_at_once) as file:
        before = os.fstat(file.fileno())
        if not stat.S_ISREG(before.st_mode):
            raise ValueError("expected a regular file, not a pipe or a device")
        if before.st_size > max_bytes:
            raise ValueError(f"expected at most {max_bytes >> 20} MiB, and it has more")
        content = file.read(before.st_size)
        after = os.fstat(file.fileno())
    if (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
        raise ValueError("it changes while it is read; write another file and rename it into place")
    if not content:  # most probably it is still being written
        raise ValueError("it has zero bytes; if it is to contain nothing, write a comment such as: # empty")
    return content


def _opened_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | _AT_ONCE)


class FileWatcher:
    """Follows files, and reads them again when they have changed.

    Args:
        versions: The files, with their versions from before they were read.
        read_again: Reads the files, and returns a function that applies the new content. That function is called unless
            the files have changed during the reading. Neither must raise.
        clock: Returns the time in seconds, for the interval between two looks.

    Attributes:
        versions: The files that are followed, with the versions that were read last.
    """

    def __init__(
        self, versions: Versions, read_again: Callable[[], Callable[[], None]], clock: Callable[[], float]
    ) -> None:
        self.versions = versions
        self._read_again = read_again
        self._clock = clock
        self._observers = Observers()
        self._seen = versions
        self._looking = Lock()
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
        """Look at the files in a thread, at most once a second, and read those that have changed."""
        now_s = self._clock()
        if now_s < self._next_look_s:
            return
        self._next_look_s = now_s + LOOK_EVERY_S
        try:
            Thread(target=self._look, name=THREAD, daemon=True).start()
        except RuntimeError as error:  # the request must not fail because of this; the next look tries again
            logger.warning("no thread to look at %s: %s", ", ".join(self.versions), error)

    def _look(self) -> None:
        if not self._looking.acquire(blocking=False):  # reading may take longer than the interval between two looks
            return
        try:
            now = {path: version_of(path) for path in self.versions}
            is_steady, self._seen = now == self._seen, now
            if now == self.versions or not is_steady:
                return
            apply = self._read_again()
            if all(version_of(path) == version for path, version in now.items()):
                self.versions = now
                apply()
        except Exception:
            logger.exception("reading %s again failed", ", ".join(self.versions))
        finally:
            self._looking.release()


class FollowedFile(FileWatcher):
    """A file whose content is replaced as a whole when it changes: a list of networks, or one of operators.

    Args:
        path: The file.
        name: Its name in events.
        versions: Its version, from before it was read first.
        clock: Returns the time in seconds, for the interval between two looks.

    Attributes:
        path: The file.
        name: Its name in events.
        generation: How often its content was replaced.
    """

    def __init__(self, path: str, name: str, versions: Versions, clock: Callable[[], float]) -> None:
        super().__init__(versions, self._read_again_or_keep, clock)
        self.path = path
        self.name = name
        self.generation = 0

    @abstractmethod
    def load(self) -> tuple[int, Callable[[], None]]:
        """Read the file, and return how many entries it has and a function that applies them.

        Raises:
            ConfigurationError: It cannot be read.
        """

    def _read_again_or_keep(self) -> Callable[[], None]:
        details = {"list": self.name, "path": self.path}
        try:
            count, apply = self.load()
        except Exception as error:
            if not isinstance(error, ConfigurationError):
                logger.exception("reading %s failed", self.path)
            message = f"list {self.name!r} is kept unchanged: {getattr(error, 'text', error)}"
            return lambda: self.report(logging.ERROR, Event("list_rejected", message, details))

        def applied() -> None:
            apply()
            self.generation += 1  # last, so that nothing cached for this generation comes from the old content
            message = f"list {self.name!r}: {count} networks"
            level = logging.INFO if count else logging.WARNING
            self.report(level, Event("list_reloaded", message, {**details, "count": count}))

        return applied
