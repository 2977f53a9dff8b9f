"""Other processes on the environment of a test, and what tests look at there."""

import fcntl
import itertools
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest

from slidegate.stores.lmdb import LmdbStore
from slidegate.stores.lmdb.gate import GATE

from ..forked import actor, outcome

SMALL: dict[str, Any] = {"max_map_size": 1 << 22}
ROOT = Path(__file__).resolve().parents[3]


def in_another_process(store: LmdbStore, act: Callable[[LmdbStore], object]) -> None:
    """Fork a process that does something with a store of its own, which has to succeed."""

    def work(_: int) -> None:
        signal.alarm(60)
        assert act(LmdbStore(store._env.path, **SMALL))

    assert outcome(*actor(work)) == (b"", 0)


def python(code: str, *given: object, before: tuple[str, ...] = ()) -> str:
    command = [*before, sys.executable, "-c", IMPORTS + textwrap.dedent(code), *map(str, given)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, f"{ended.returncode}: {ended.stderr[-4_000:]}"
    return ended.stdout


IMPORTS = """
import sys
from contextlib import suppress
from slidegate import Limiter
from slidegate.core import Bucket, parse_limits
from slidegate.core.errors import ConfigurationError, StoreTimeout, StoreUnavailable
from slidegate.stores.lmdb import LmdbStore
path, asked = sys.argv[1], Bucket("rule", parse_limits("5/hour"))
"""


def unshared(*kind: str) -> tuple[str, ...]:
    command = ("unshare", *(() if os.geteuid() == 0 else ("--map-root-user",)), *kind)
    if not shutil.which("unshare") or subprocess.run([*command, "true"], capture_output=True).returncode:
        pytest.skip(f"there is no {' '.join(kind)} here")
    return command


def mounted(mount: str) -> tuple[str, ...]:
    apart = unshared("--mount")
    if subprocess.run([*apart, "sh", "-c", mount], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    return (*apart, "sh", "-c", f'{mount} && exec "$@"', "sh")


@contextmanager
def gate_held(store: Any) -> Iterator[int]:
    """Write for ever, as seen from the store."""
    gate = os.open(store._env.path / GATE, os.O_RDWR)
    fcntl.flock(gate, fcntl.LOCK_EX)
    yield gate
    os.close(gate)


def counts_file(path: str | Path) -> Path:
    (found,) = Path(path).glob("counts-*")
    return found


def open_files(path: Path) -> list[str]:
    found = list[str]()
    for link in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # another thread has closed it meanwhile
            found.append(os.path.realpath(link))
    return [name for name in found if name.startswith(str(path))]


def keys_in(store: LmdbStore) -> Any:
    """Return the number of windows in a store, without shared cells."""
    return store._batcher.run(lambda transaction: transaction.windows.count(), needs_room=False)


def overwrite(data: Path, *pieces: tuple[int, bytes]) -> None:
    with data.open("r+b") as file:
        for at, piece in pieces:
            file.seek(at)
            file.write(piece)


class Faulty:
    """LMDB's objects, some of whose calls fail, as do those of the transactions and cursors that they return."""

    def __init__(self, inner: Any, error: Exception, fails: Callable[[str], bool]) -> None:
        self.inner, self.error, self.fails = inner, error, fails

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.inner, name)
        return self._checked(found, name) if callable(found) else found

    def __enter__(self) -> "Faulty":
        self.inner.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        commits = isinstance(self.inner, lmdb.Transaction) and raised[0] is None
        self._checked(self.inner.__exit__, "commit" if commits else "close")(*raised)

    def __iter__(self) -> Any:
        return iter(self.inner)

    def _checked(self, call: Any, name: str) -> Any:
        def checked(*given: Any, **named: Any) -> Any:
            if self.fails(name):
                if name == "commit":
                    self.inner.abort()  # as LMDB does
                raise self.error
            answer = call(*given, **named)
            returns_more = isinstance(answer, (lmdb.Transaction, lmdb.Cursor))
            return Faulty(answer, self.error, self.fails) if returns_more else answer

        return checked


def at_call(number: int) -> Callable[[str], bool]:
    """Let the call of one number fail."""
    calls = itertools.count(1)
    return lambda name: name not in ("abort", "close", "info", "readers") and next(calls) == number
