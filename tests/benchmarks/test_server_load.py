"""Both clients count the answers of a server, other answers than expected are an error, and ratios are of pairs."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest

from benchmarks.serving import load as subject

ANSWER = b"HTTP/1.1 %d X\r\nContent-Length: 4\r\n\r\nbody"


@contextmanager
def answering(status: int) -> Iterator[subject.Server]:
    """Serve in threads, in two pieces for each answer, until the clients have gone."""
    threads: list[threading.Thread] = []
    answer = ANSWER % status

    def serve(connection: socket.socket) -> None:
        # A client that has seen enough closes in the midst of an answer.
        with connection, suppress(OSError):
            while connection.recv(65_536):
                connection.sendall(answer[:-2])
                connection.sendall(answer[-2:])

    def accept() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0), backlog=64) as listening:
        accepting = threading.Thread(target=accept, daemon=True)
        accepting.start()
        yield subject.Server(listening.getsockname()[1], os.getpid(), status)
        listening.shutdown(socket.SHUT_RDWR)
    accepting.join(30)


@pytest.fixture(params=["wrk", "stand-in"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client that is used."""
    if request.param == "stand-in":
        monkeypatch.setattr(shutil, "which", lambda name: None)
    elif not shutil.which("wrk"):
        pytest.skip("wrk is not installed")


@pytest.mark.usefixtures("client")
@pytest.mark.parametrize("status", [200, 429])
def test_the_answers_of_a_server_are_counted_with_its_processor_time(status: int) -> None:
    with answering(status) as server:
        assert subject.ask(server.port) == status
        found = subject.load(server, 1)
    assert found.per_second > 1
    assert found.cpu_us is None or found.cpu_us > 0


@pytest.mark.usefixtures("client")
def test_another_answer_than_the_expected_is_an_error() -> None:
    with answering(500) as server, pytest.raises(RuntimeError, match="expected 200 only"):
        subject.load(server._replace(status=200), 1)
    with answering(200) as server, pytest.raises(RuntimeError, match="expected 429 only"):
        subject.load(server._replace(status=429), 1)


def test_ratios_are_medians_of_pairs_of_one_round() -> None:
    base = [subject.Round(100.0, 10.0), subject.Round(10.0, 100.0), subject.Round(100.0, 10.0)]
    own = [subject.Round(90.0, 12.5), subject.Round(9.0, 125.0), subject.Round(20.0, 12.5)]
    assert subject.relative(own, base) == [0.9, 0.8]
    assert subject.relative([subject.Round(50.0, None)], [subject.Round(100.0, None)]) == [0.5, None]
