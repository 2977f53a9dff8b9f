"""The environments of this process, one for each path, which its stores share; what a fork does to them.

Neither an LMDB environment nor a file lock survives `fork`: a child closes what it has inherited, and opens the files
again. It could not close an environment in which another thread has a transaction, so a fork waits for its end.
"""

from __future__ import annotations

import os
import re
import threading
from concurrent.futures import Future
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError, quoted
from ...core.logs import written
from ...core.store import COMMAND_DEADLINE_S
from ..forks import InChild, ProcessLock
from .counts import Options
from .environment import Environment
from .gate import TURNS, patience_s
from .kept import COPYING, in_background

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


def close_environment(environment: Environment) -> Future[None] | None:
    """Close an environment if no other store of this process uses it, and what has changed is kept.

    Returns:
        None, or what a thread does who waits for others: for a copy, or for a thread that has its turn.
    """
    with _counting:
        environment.users -= 1
    wait_s = patience_s()
    try:
        is_kept = bool(environment.users) or environment.keep(wait_s)
    except BaseException:  # of a signal handler; LMDB opens no file twice
        _close_unused(environment, wait_s)
        raise
    if is_kept and _close_unused(environment, wait_s):
        return None

    def close() -> None:
        environment.keep(COMMAND_DEADLINE_S)
        _close_unused(environment, -1)

    return in_background(close)


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
"""Has as `held` the locks that this thread keeps from others over its fork."""


def _before_fork() -> None:
    """Wait until nobody copies, or is in a transaction."""
    _fork.held = [turns.lock for turns in (COPYING, TURNS) if turns.lock.acquire(timeout=FORK_S)]


def _after_fork() -> None:
    for lock in _fork.held:
        lock.release()


def _begin_anew() -> None:
    """Close the files, as a child of fork."""
    TURNS.begin_anew()
    COPYING.begin_anew()
    for environment in _open.values():
        environment.kept.close_in_child()
        environment.close_files()


_in_child: Final = InChild(_begin_anew)
os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)
