"""The values of several workers on one host, put together by way of a directory.

Each worker writes a file of its own, now and then and when its limiter is closed. Whichever worker Prometheus asks
reads all of them and puts them together::

    worker-HOST-PID-1f3a.json    the values of one worker, replaced as a whole
    worker-HOST-PID-1f3a.lock    locked by that worker as long as it lives
    gone.json                    the sums of workers that live no more
    directory.lock               held by whoever reads

A counter must never fall, or Prometheus takes it for a restart. So a worker that is asked writes its own file first,
and no worker that is asked later knows less. The counts of a worker that has ended are added to those in `gone.json`
before its files are removed, by the next worker that reads; its gauges are dropped. If that reader is killed in
between, `gone.json` names the workers whose counts it already has.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from os import PathLike
from pathlib import Path
from threading import Event, Lock, Thread
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary, finalize, ref

from ..core.durations import format_duration
from ..core.errors import ConfigurationError
from ..core.limits import parse_duration_us
from ..core.logs import logger
from ..core.statistics.series import Series
from ..limiter.engine import Engine
from ..stores.forks import hold_over_fork
from .catalogue import CATALOGUE, Metric
from .values import Times, Value, Values, ValuesOfLimiter, together

if sys.platform != "win32":
    import fcntl

All: TypeAlias = Mapping[Metric, Values]

FORMAT: Final = 1
_SHORTEST_US: Final = 100_000
_LONGEST_US: Final = 60_000_000
_GONE: Final = "gone.json"
_BY_NAME: Final = {metric.name: metric for metric in CATALOGUE}


class WorkerFiles:
    """Writes the values of this worker, and reads those of all.

    A thread writes them. It starts with the first recorded request, so each process that was forked has files of its
    own, and one that only forks has none.

    Args:
        own_values: The values of this worker.
        engine: Tells when requests come and when the limiter is closed.
        directory: The directory; it is made if it is not there.
        interval: How often the values are written, 100 ms to 60 s.

    Raises:
        ConfigurationError: The directory cannot be used, another limiter of this process uses it, or the interval is
            outside its range.
    """

    def __init__(
        self, own_values: ValuesOfLimiter, engine: Engine, directory: object, interval: str | float | timedelta
    ) -> None:
        interval_us = parse_duration_us(interval, "interval")
        if not _SHORTEST_US <= interval_us <= _LONGEST_US:
            shortest, longest = format_duration(_SHORTEST_US), format_duration(_LONGEST_US)
            raise ConfigurationError(f'interval: expected {shortest} to {longest}, for example "5s", not {interval!r}')
        self.closed = False
        self._directory = _checked(directory)
        known = _in_use.get(str(self._directory))
        if known is not None and not known.closed:
            raise ConfigurationError(
                f"directory: another limiter of this process uses {directory!r}; give each limiter its own, for "
                f'example "{self._directory}-2"'
            )
        _in_use[str(self._directory)] = self
        self._own_values = own_values
        self._engine = engine
        self._interval_s = interval_us / 1_000_000
        self._lock, self._starting = Lock(), Lock()
        hold_over_fork(self._starting)
        hold_over_fork(self._lock)
        self._own: _Own | None = None
        self._failing = False
        self._stop, self._serving_pid = Event(), 0
        engine.closing.append(self.publish)
        engine.statistics.follow(self._begin)

    def read(self) -> All:
        """Return the values of all workers together, and add the counts of those that have ended to `gone.json`."""
        self.publish()
        own = self._own
        if own is None or self._failing:
            return self._own_values.read_all()  # better than nothing
        with _locked(self._directory):
            return _merged(*self._gathered(own.name))

    def publish(self) -> None:
        """Write the values of this worker now. A failure is logged, and the next call tries again."""
        try:
            with self._lock:
                if self._own is None or self._own.pid != os.getpid():
                    self._own = _Own(self._directory)
                self._own.write(self._own_values.read_all())
            self._failing = False
        except OSError as error:
            if not self._failing:
                logger.error("the metrics of this worker cannot be written: %s", error)
            self._failing = True

    def close(self) -> None:
        """Write the values for the last time, and count as a worker that has ended."""
        if not self.closed:
            self.closed = True
            self._engine.statistics.unfollow(self._begin)
            self._engine.closing.remove(self.publish)
            self._stop.set()
            if self._serving_pid == os.getpid():
                self.publish()
            if self._own is not None:
                self._own.end()

    def _begin(self, _: Series) -> None:
        """Have the values written from now on. This is called within a request, so it does nothing else."""
        with self._starting:
            begun, self._serving_pid = self._serving_pid == os.getpid(), os.getpid()
        if not begun:
            named = (ref(self), self._stop, self._interval_s, os.getpid())
            Thread(target=_keep_publishing, args=named, name="slidegate-metrics", daemon=True).start()

    def _gathered(self, own: str) -> tuple[list[All], All]:
        """Return the values of the workers that live, and the sums of the others. Needs the lock of the directory."""
        alive: list[str] = []
        ended: list[str] = []
        for path in sorted(self._directory.glob("worker-*.lock")):
            (alive if path.stem == own or _is_locked(path) else ended).append(path.stem)
        gone, known = _read(self._directory / _GONE)
        if ended:
            added = [_read(self._directory / f"{name}.json")[0] for name in ended if name not in known]
            gone = _counts(_merged(added, gone))
            _write(self._directory / _GONE, gone, ended)
            for name in ended:
                for suffix in (".json", ".lock"):
                    (self._directory / f"{name}{suffix}").unlink(missing_ok=True)
        return [_read(self._directory / f"{name}.json")[0] for name in alive], gone


_in_use: Final[WeakValueDictionary[str, WorkerFiles]] = WeakValueDictionary()


class _Own:
    """The files of this worker.

    Args:
        directory: Where they lie.

    Attributes:
        name: Their name without a suffix.
        pid: The process that they are of.
        end: Lets go of the lock; so does the end of the process.
    """

    def __init__(self, directory: Path) -> None:
        self.pid = os.getpid()
        self.name = f"worker-{socket.gethostname()}-{self.pid}-{secrets.token_hex(4)}"
        self._path = directory / f"{self.name}.json"
        with _locked(directory):  # or a reader could find the file before it is locked
            lock = os.open(directory / f"{self.name}.lock", os.O_CREAT | os.O_RDWR, 0o644)
            fcntl.flock(lock, fcntl.LOCK_EX)
        self.end = finalize(self, os.close, lock)

    def write(self, values: All) -> None:
        """Replace the values."""
        _write(self._path, values, [])


def _keep_publishing(known: ref[WorkerFiles], stop: Event, interval_s: float, pid: int) -> None:
    """Publish until the files are closed or forgotten, or this process is another one."""
    while not stop.wait(interval_s) and os.getpid() == pid:
        files = known()
        if files is None:
            return
        files.publish()
        del files


def _checked(directory: object) -> Path:
    """Return a directory that can be used; it is made if it is not there."""
    if not isinstance(directory, (str, PathLike)) or not str(directory):
        raise ConfigurationError(f'directory: expected a path, for example "/run/app/metrics", not {directory!r}')
    if sys.platform == "win32":
        raise ConfigurationError(f"directory: expected none, because this system has no flock, not {directory!r}")
    path = Path(os.fsdecode(directory))
    try:
        path.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            return path.resolve()
    except OSError as error:
        raise ConfigurationError(
            f'directory: expected one to write to, for example "/run/app/metrics", not {directory!r}: {error}'
        ) from error


@contextmanager
def _locked(directory: Path) -> Iterator[None]:
    """Keep all others of this host out."""
    with open(directory / "directory.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _is_locked(path: Path) -> bool:
    """Return whether the worker lives that has locked a file."""
    with open(path) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _write(path: Path, values: All, known: Sequence[str]) -> None:
    """Replace a file as a whole."""
    written = {
        "format": FORMAT,
        "known": list(known),
        "values": {
            metric.name: [[labels, _plain(value)] for labels, value in of.items()] for metric, of in values.items()
        },
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(written, separators=(",", ":")), encoding="utf-8")
    os.replace(fresh, path)


def _plain(value: Value) -> object:
    return value if isinstance(value, int) else [value.sum_us, *value.counts]


def _read(path: Path) -> tuple[All, Sequence[str]]:
    """Return the values in a file, and the names of the workers whose counts are in them; of a bad file nothing."""
    try:
        written = json.loads(path.read_text(encoding="utf-8"))
        if written["format"] != FORMAT:
            raise ValueError(f"format {written['format']!r}")
        values = {
            _BY_NAME[name]: {tuple(map(str, labels)): _value(value) for labels, value in listed}
            for name, listed in written["values"].items()
            if name in _BY_NAME
        }
        return values, list(map(str, written["known"]))
    except FileNotFoundError:
        return {}, ()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        logger.error("metrics: %s cannot be read, so its values are missing: %r", path, error)
        return {}, ()


def _value(written: Any) -> Value:
    if isinstance(written, int):
        return written
    sum_us, *counts = map(int, written)
    return Times(tuple(counts), sum_us)


def _counts(values: All) -> All:
    """Return what stays when a worker has ended."""
    return {metric: of for metric, of in values.items() if metric.kind != "gauge"}


def _merged(alive: Sequence[All], gone: All) -> dict[Metric, Values]:
    """Return the values of several workers together."""
    found: dict[Metric, Values] = {}
    for metric in CATALOGUE:
        parts: dict[tuple[str, ...], list[Value]] = defaultdict(list)
        for values in (*alive, gone):
            for labels, value in values.get(metric, {}).items():
                parts[labels].append(value)
        found[metric] = {labels: _one(metric, labels, several) for labels, several in parts.items()}
    return found


def _one(metric: Metric, labels: tuple[str, ...], several: Sequence[Value]) -> Value:
    how = metric.merge if labels[-1] == "memory" else metric.merge_shared or metric.merge
    numbers = [value for value in several if isinstance(value, int)]
    if how == "sum" or not numbers:
        return together(several)
    return max(numbers) if how == "max" else min(numbers)
