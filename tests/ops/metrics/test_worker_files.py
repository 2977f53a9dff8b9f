"""Whatever happens to workers, the sums of all are exact in what was written, and no counter ever falls."""

from __future__ import annotations

import gc
import json
import logging
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slidegate import Limiter
from slidegate.core.errors import ConfigurationError
from slidegate.ops.metrics import worker_files
from slidegate.ops.metrics.catalogue import BANS, BOUNDS_S, CATALOGUE, DURATION, KEYS, REQUESTS, STORE_UP, Metric
from slidegate.ops.metrics.values import Labels, Times, Value, Values, together
from slidegate.ops.metrics.worker_files import WorkerFiles

PASSED: Labels = ("GET /", "passed", "memory")
ROUTE: Labels = ("GET /", "memory")


class Counted:
    """Stands for the readings of one worker."""

    def __init__(self) -> None:
        self.values: dict[Metric, Values] = {metric: {} for metric in CATALOGUE}

    def add(self, many: int) -> None:
        """Count requests, each of which took a second."""
        requests, times = self.values[REQUESTS], self.values[DURATION]
        requests[PASSED] = together([requests.get(PASSED, 0), many])
        bucket = BOUNDS_S.index(1.0)
        took = Times(tuple(many if place == bucket else 0 for place in range(len(BOUNDS_S) + 1)), many * 1_000_000)
        times[ROUTE] = together([*times.values(), took])

    def read_all(self) -> dict[Metric, Values]:
        return {metric: dict(values) for metric, values in self.values.items()}


class Worker:
    """One worker, in a process of its own as far as the files can tell."""

    def __init__(self, directory: Path) -> None:
        worker_files._in_use.clear()
        self.counted, self.written = Counted(), 0
        self.limiter = Limiter()
        self.files = WorkerFiles(self.counted, self.limiter.internals, directory, "60s")  # type: ignore[arg-type]

    def count(self) -> int:
        value = self.counted.values[REQUESTS].get(PASSED, 0)
        assert isinstance(value, int)
        return value

    def kill(self) -> None:
        """End as by SIGKILL: the system lets go of the lock, and nothing else happens."""
        if self.files._own is not None:
            self.files._own.end()


ACTS = st.tuples(st.sampled_from(["begin", "count", "write", "read", "kill", "close", "crash"]), st.integers(0, 9))


@settings(max_examples=150)
@given(st.lists(ACTS, max_size=40))
def test_sums_are_those_that_were_written_and_never_fall(acts: list[tuple[str, int]]) -> None:
    with TemporaryDirectory() as place:
        workers, gone, before = [Worker(Path(place))], 0, 0
        for act, number in acts:
            worker = workers[number % len(workers)]
            if act == "begin" and len(workers) < 4:
                workers.append(Worker(Path(place)))
            elif act == "count":
                worker.counted.add(number)
            elif act == "write":
                worker.files.publish()
                worker.written = worker.count()
            elif act in ("kill", "close") and len(workers) > 1:
                if act == "kill":
                    worker.kill()
                    gone += worker.written
                else:
                    gone += worker.count()
                    worker.files._serving_pid = worker_files.os.getpid()
                    worker.files.close()
                workers.remove(worker)
            elif act == "crash":
                crash_while_reading(worker)
                worker.written = worker.count()
            elif act == "read":
                total, times = read(worker)
                assert total == gone + sum(worker.written for worker in workers)
                assert total >= before
                assert (sum(times.counts), times.sum_us) == (total, total * 1_000_000)
                before = total
        left = list(Path(place).glob("worker-*"))
        read(workers[0])
        assert len(list(Path(place).glob("worker-*.json"))) <= len(workers), left


def read(worker: Worker) -> tuple[int, Times]:
    values = worker.files.read()
    worker.written = worker.count()
    total = values[REQUESTS].get(PASSED, 0)
    times = values[DURATION].get(ROUTE, Times((0,), 0))
    assert isinstance(total, int)
    assert isinstance(times, Times)
    return total, times


class Killed(BaseException):
    """The worker that reads is killed at this point."""


def crash_while_reading(worker: Worker) -> None:
    """Read, and be killed after the counts of others were taken over and before their files are gone."""

    def unlink(path: Path, missing_ok: bool = False) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Path, "unlink", unlink)
        try:
            worker.files.read()
        except Killed:
            return


@pytest.fixture
def two(tmp_path: Path) -> tuple[Worker, Worker]:
    return Worker(tmp_path), Worker(tmp_path)


@pytest.mark.parametrize(
    ("metric", "labels", "values", "expected"),
    [
        (KEYS, ("memory",), (3, 4), 7),
        (BANS, ("memory",), (3, 4), 7),
        (BANS, ("redis",), (3, 4), 4),
        (STORE_UP, ("redis",), (1, 0), 0),
    ],
)
def test_gauges_are_put_together_by_their_meaning_and_end_with_their_worker(
    two: tuple[Worker, Worker], metric: Metric, labels: Labels, values: tuple[int, int], expected: int
) -> None:
    for worker, value in zip(two, values, strict=True):
        worker.counted.values[metric][labels] = value
        worker.files.publish()
    first, second = two
    assert first.files.read()[metric] == {labels: expected}
    second.kill()
    assert first.files.read()[metric] == {labels: values[0]}


def test_a_file_that_cannot_be_read_is_reported_and_the_others_count(
    two: tuple[Worker, Worker], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two
    for worker in two:
        worker.counted.add(5)
        worker.files.publish()
    own = second.files._own
    assert own is not None
    written = json.loads((tmp_path / f"{own.name}.json").read_text())
    for bad in ("", "[]", "{}", json.dumps({**written, "format": 99}), json.dumps({**written, "values": [1]})):
        (tmp_path / f"{own.name}.json").write_text(bad)
        caplog.clear()
        assert read(first)[0] == 5
        assert "cannot be read, so its values are missing" in caplog.text


def test_a_full_disk_is_reported_once_and_shows_the_values_of_this_worker(
    two: tuple[Worker, Worker], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, second = two
    second.counted.add(4)
    second.files.publish()
    first.counted.add(3)

    def full(*_: Any) -> None:
        raise OSError("No space left on device")

    with monkeypatch.context() as patched, caplog.at_level(logging.ERROR):
        patched.setattr(worker_files, "_write", full)
        assert [read(first)[0] for _ in range(3)] == [3, 3, 3]
    assert caplog.text.count("cannot be written: No space left on device") == 1
    assert read(first)[0] == 7


def test_another_limiter_of_this_process_cannot_use_the_directory(tmp_path: Path) -> None:
    first = Worker(tmp_path)
    with pytest.raises(ConfigurationError, match=r"another limiter of this process uses .*; give each limiter its own"):
        WorkerFiles(Counted(), Limiter().internals, tmp_path, "5s")  # type: ignore[arg-type]
    first.files.close()
    WorkerFiles(Counted(), Limiter().internals, tmp_path, "5s").close()  # type: ignore[arg-type]


async def test_values_are_written_when_the_limiter_is_closed(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.counted.add(5)
    await worker.limiter.close()
    worker.kill()
    assert read(Worker(tmp_path))[0] == 5


def test_nothing_is_opened_before_the_first_request_and_then_by_a_thread_of_its_own(tmp_path: Path) -> None:
    worker_files._in_use.clear()
    limiter = Limiter()
    files = WorkerFiles(Counted(), limiter.internals, tmp_path, "100ms")  # type: ignore[arg-type]
    assert not list(tmp_path.glob("worker-*"))
    assert "slidegate-metrics" not in {thread.name for thread in threading.enumerate()}
    for route in ("GET /", "GET /other"):
        limiter.internals.statistics.series((), route)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "slidegate-metrics"]
    files.close()
    thread.join(60)
    assert not thread.is_alive()


def test_the_thread_ends_with_the_object_that_it_serves(tmp_path: Path) -> None:
    worker_files._in_use.clear()
    limiter = Limiter()
    limiter.internals.statistics.series((), "GET /")
    files: Any = WorkerFiles(Counted(), limiter.internals, tmp_path, "100ms")  # type: ignore[arg-type]
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "slidegate-metrics"]
    del files, limiter
    gc.collect()
    thread.join(60)
    assert not thread.is_alive()


def test_values_are_written_as_they_are_read() -> None:
    values: list[Value] = [0, 2**60, Times(tuple(range(len(BOUNDS_S) + 1)), 2**50)]
    for value in values:
        assert worker_files._value(json.loads(json.dumps(worker_files._plain(value)))) == value
