"""Files that are read completely or not at all, and followed while serving, without a timer.

A path may lead to anything: a pipe without a writer, an endless device, a loop of links, a huge file, a file that is
being written. None of them blocks the reader, and no file is read partially.

A request triggers a check of each file whose last one is at least a second old. A short-lived thread checks the file
and reads it if it has changed, so no request waits; there is at most one such thread for each file. A changed file is
read once its size and times were equal at two checks. A file that could not be read because of another one is read
again when either of them changes.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from abc import abstractmethod
from collections.abc import Callable
from threading import Thread, current_thread
from typing import Final, TypeAlias

from .core.errors import ConfigurationError
from .core.events import Event, EventListener, Observers
from .core.logs import logger, net
from .core.passwords import without_passwords

CHECK_EVERY_S: Final = 1.0
now_s: Callable[[], float] = time.monotonic
"""The clock of the interval between two checks; tests replace it."""
THREAD: Final = "slidegate-files"
# Opening a pipe would wait for a writer, and a terminal could become the controlling one; Windows has no such flags.
_AT_ONCE: Final = sum(getattr(os, name, 0) for name in ("O_NONBLOCK", "O_NOCTTY"))

FileVersion: TypeAlias = tuple[int, ...]
"""Device, inode number, size and times of a file, which identify a version of it without reading it."""


def version_of(path: str) -> FileVersion | None:
    """Return the version of a file, following links; None if there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def read_whole(path: str, max_bytes: int, option: str = "") -> bytes:
    """Read a regular file, following links.

    Args:
        max_bytes: Its maximum size.
        option: The option that names it, for the error message.

    Raises:
        ConfigurationError: It cannot be read, is not a regular file, is too large, or changes meanwhile.
    """
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _AT_ONCE)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ValueError("expected a regular file, not a pipe or a device")
            if status.st_size > max_bytes:
                raise ValueError(f"expected at most {max_bytes >> 20} MiB, and it has more")
            content = file.read(status.st_size)
            status_after = os.fstat(file.fileno())
        if (status.st_size, status.st_mtime_ns) != (status_after.st_size, status_after.st_mtime_ns):
            raise ValueError("it changes while it is read; write another file and rename it into place")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name, or one of these
        reason = getattr(error, "strerror", None) or error
        raise ConfigurationError(f"cannot read {without_passwords(str(path))}: {reason}", option) from error
    return content


class FollowedFile:
    """A file whose content is replaced as a whole when it has changed: a list, a database, or a configuration.

    Args:
        name: Its name in events; empty for none.

    Attributes:
        needs: The other file because of which it could not be read last, with its version before; empty for none.
        version: The versions of both that were read last; None for a file that did not exist.
        generation: How often its content was replaced.
    """

    kind = "list"
    """The first part of the kinds of its events."""
    reloaded = "list {name!r}: address ranges: {count}"
    rejected = "list {name!r} is kept unchanged: {error}"
    changes = ""
    """What `load` has found changed, for the event."""

    needs: tuple[str, FileVersion | None] = "", None

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        self.name = name
        self.version = self._versions()  # from before it is read
        self.generation = 0
        self._details = {"path": path}
        if name:
            self._details = {"list": name, "path": path}
        self._observers = Observers()
        self._last_versions = self.version
        self._checking: dict[int, Thread] = {}
        """The thread that checks, by process: a child of `fork` does not have that of its parent."""
        self._next_check_s = now_s() + CHECK_EVERY_S

    @abstractmethod
    def load(self) -> tuple[int, Callable[[], None]]:
        """Read the file.

        Returns:
            Its size, as its event reports it, and a function that applies them.

        Raises:
            ConfigurationError: It cannot be read.
        """

    def observe(self, observer: EventListener) -> None:
        """Register an observer for later events about the file; registering it twice has no effect."""
        self._observers.add(observer)

    def check_if_due(self) -> None:
        """Check the file in a thread, at most once a second, and read it if it has changed."""
        now = now_s()
        if now < self._next_check_s:
            return
        self._next_check_s = now + CHECK_EVERY_S
        try:
            Thread(target=self._check, name=THREAD, daemon=True).start()
        except RuntimeError as error:  # the request must not fail because of this; the next check tries again
            logger.warning("no thread to check %s: %s", self.path, error)

    def _versions(self) -> tuple[FileVersion | None, FileVersion | None]:
        return version_of(self.path), version_of(self.needs[0])

    def _check(self) -> None:
        process, thread = os.getpid(), current_thread()
        if self._checking.setdefault(process, thread) is not thread:  # reading may take longer than the interval
            return
        try:
            with net(f"reading {self.path} again failed", time.monotonic):
                now = self._versions()
                is_steady, self._last_versions = now == self._last_versions, now
                if now != self.version and is_steady:
                    self._read_again(now[0])
        finally:
            del self._checking[process]

    def _read_again(self, now: FileVersion | None) -> None:
        """Read the file, and apply its content unless it has changed meanwhile."""
        count, problem, apply = 0, "", None
        try:
            count, apply = self.load()
        except Exception as error:
            if not isinstance(error, ConfigurationError):
                logger.exception("reading %s failed", self.path)
            problem = getattr(error, "text", "") or str(error) or repr(error)
        if version_of(self.path) != now:
            return
        values = {"name": self.name, "path": self.path, "count": count, "changes": self.changes, "error": problem}
        if apply is None:
            self.version = now, self.needs[1]
            self._report(logging.ERROR, Event(f"{self.kind}_rejected", self.rejected.format(**values), self._details))
            return
        apply()
        self.generation += 1  # now, so that nothing cached for this generation comes from the old content
        self.version = now, None  # last: a child that is forked before this reads the file again
        details = {**self._details, "count": count}
        level = logging.INFO
        if self.name and not count:  # a list that is empty now
            level = logging.WARNING
        self._report(level, Event(f"{self.kind}_reloaded", self.reloaded.format(**values), details))

    def _report(self, level: int, event: Event) -> None:
        logger.log(level, "%s: %s", event.kind, event.message)
        self._observers.tell(event)
