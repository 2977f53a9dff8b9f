"""One environment for each path in a process: a second one would not be held back by the locks of the process."""

from __future__ import annotations

import threading
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from ....core.errors import ConfigurationError
from .data_files import check_directory
from .environment import Environment
from .opening import Options

_lock: Final = threading.Lock()
_open: dict[Path, tuple[Environment, int]] = {}


def open_environment(path: str | PathLike[str], options: Options) -> Environment:
    """Return the environment at a path, and open it if this process has not. `close_environment` has to follow.

    Raises:
        ConfigurationError: The path cannot be used, or is open with other options.
        StoreUnavailable: It is to be read only, and cannot be.
        StoreTimeout: Another process holds the files and does not go on.
    """
    text = fspath(path) if isinstance(path, (str, PathLike)) else ""
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigurationError(f'path: expected a directory, for example "/var/lib/app/slidegate", not {path!r}')
    with _lock:
        if not options.read_only:
            check_directory(Path(text))
        place = Path(text).resolve()
        environment, users = _open.get(place, (None, 0))
        if environment is None:
            environment = Environment(place, options)
        elif environment.options != options:
            raise ConfigurationError(
                f"lmdb: {place} is open in this process with {environment.options._asdict()}, not {options._asdict()}; "
                "use the same options"
            )
        _open[place] = environment, users + 1
        return environment


def close_environment(environment: Environment) -> None:
    """Close an environment if nobody else of this process uses it."""
    with _lock:
        _, users = _open[environment.path]
        if users > 1:
            _open[environment.path] = environment, users - 1
        else:
            del _open[environment.path]
            environment.close()
