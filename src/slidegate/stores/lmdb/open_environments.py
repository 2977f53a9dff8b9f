"""The environments of this process: one for each path, however many stores use it, because LMDB opens no file twice."""

from __future__ import annotations

from concurrent.futures import Future
from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Final

from ...core.errors import ConfigurationError
from ...core.logs import safe_text
from ...core.store import COMMAND_DEADLINE_S
from ..forks import ForkHook, ProcessLock
from ..shared import running_loop
from .counts import Options
from .environment import Environment
from .gate import COPY_LOCK, THREAD_LOCK, find_path, patience_s
from .kept import in_background

_open: Final[dict[Path, Environment]] = {}
_counting: Final = ProcessLock()
"""Held while an environment gets a user or loses one."""


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, opened once per process; `close_environment` has to be called for each result.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It cannot be opened, and the options say not to create it.
    """
    real_path = find_path(path)
    with _counting:
        environment = _open.setdefault(real_path, Environment(real_path, options))
        if environment.options != options:
            raise ConfigurationError(
                f"lmdb: {real_path} is open in this process with {safe_text(environment.options._asdict())}, "
                f"not {safe_text(options._asdict())}; use the same options"
            )
        environment.users += 1
    try:
        if not environment.is_open:
            environment.start()
    except BaseException:
        close_environment(environment)
        raise
    return environment


def close_environment(environment: Environment) -> Future[None] | None:
    """Close an environment if no other store of this process uses it, and what has changed is kept.

    Returns:
        None, or the end of a thread that does so: where an event loop runs, or others hold the locks.
    """
    with _counting:
        environment.users -= 1
        if environment.users:
            return None
    wait_s = patience_s()
    if running_loop() is None or not environment.is_open:
        try:
            is_kept = environment.keep(wait_s)
        except BaseException:  # of a signal handler; LMDB opens no file twice
            _close_unused(environment, wait_s)
            raise
        if is_kept and _close_unused(environment, wait_s):
            return None

    def close() -> None:
        try:
            environment.keep(COMMAND_DEADLINE_S)
        finally:
            _close_unused(environment, -1)

    closing = in_background(close)
    if closing is None:
        close()
    return closing


def _close_unused(environment: Environment, wait_s: float) -> bool:
    """Close an environment if no store uses it; return False if other threads hold their lock for too long.

    Args:
        wait_s: How long to wait for the lock; -1 for ever.
    """
    try:
        if not THREAD_LOCK.lock.acquire(timeout=wait_s):
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
            THREAD_LOCK.lock.release()


def _close_in_child() -> None:
    """Close the files that a child of fork has inherited, and make new locks."""
    THREAD_LOCK.reset()
    COPY_LOCK.reset()
    for environment in _open.values():
        environment.kept.close_in_child()
        environment.close_files()


_in_child: Final = ForkHook(_close_in_child)
