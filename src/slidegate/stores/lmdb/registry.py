"""The environments of this process, one for each path; what a fork does to them.

Neither an LMDB environment nor a file lock survives `fork`, so a child closes what it has inherited, and opens the
files again. It could not close an environment in which another thread has a transaction, so a fork waits for its end.
"""

from __future__ import annotations

import os
import re
import threading
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError, quoted
from ...core.logs import written
from ..forks import InChild, ProcessLock
from .environment import Environment
from .gate import TURNS, patience_s
from .journal import in_background
from .opening import Options

FORK_S: Final = 5.0
"""How long a fork waits for a transaction, or for files that are opened."""

_ADDRESS: Final = re.compile(r"\w[\w+.-]*:/")
"""How an address begins, also one that was made a path; it may have a password, which a directory's name would show."""
_open: Final[dict[Path, Environment]] = {}
_counting: Final = ProcessLock()
"""Held while an environment gets a user or loses one."""


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; `close_environment` has to be called for each result.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It cannot be opened, and the options say not to create it.
    """
    real_path = _real_path(path)
    with _counting:
        environment = _open.setdefault(real_path, Environment(real_path, options))
        if environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {written(environment.options._asdict())}, "
                f"not {written(options._asdict())}; use the same options"
            )
        environment.users += 1
    try:
        environment.start()
    except BaseException:
        close_environment(environment)
        raise
    return environment


def _real_path(path: str | PathLike[str]) -> Path:
    """Return a path without symbolic links.

    Raises:
        ConfigurationError: It is no path.
    """
    try:
        if path and not _ADDRESS.match(os.fsdecode(path)):
            return Path(os.path.realpath(path))
    except (TypeError, ValueError):
        pass
    raise ConfigurationError(f'path: expected a directory, for example "/var/lib/app/slidegate", not {quoted(path)}')


def close_environment(environment: Environment) -> None:
    """Close an environment if no other store of this process uses it; where another thread has its turn, after that."""
    with _counting:
        environment.users -= 1
    if not _close_unused(environment, patience_s()):
        in_background(lambda: _close_unused(environment, -1))


def _close_unused(environment: Environment, wait_s: float) -> bool:
    """Close an environment if no store uses it, in a turn of this thread; return whether there was one.

    Args:
        environment: The environment.
        wait_s: How long to wait for the turn; -1 for ever.
    """
    try:
        if not TURNS.lock.acquire(timeout=wait_s):
            return False
        with _counting:
            is_unused = not environment.users and _open.get(environment.path) is environment
            if is_unused:
                del _open[environment.path]
        if is_unused:
            environment.close()
        return True
    finally:
        with suppress(RuntimeError):  # another thread has it
            TURNS.lock.release()


_fork: Final = threading.local()
"""Has as `has_turn` whether this thread keeps others from their turns over its fork."""


def _before_fork() -> None:
    """Wait until nobody is in a transaction."""
    _fork.has_turn = TURNS.lock.acquire(timeout=FORK_S)


def _after_fork() -> None:
    if _fork.has_turn:
        TURNS.lock.release()


def _begin_anew() -> None:
    """Close the files, as a child of fork."""
    TURNS.begin_anew()
    for environment in _open.values():
        environment.close_files()


_in_child: Final = InChild(_begin_anew)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
