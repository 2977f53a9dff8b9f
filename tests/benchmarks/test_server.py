"""`bench server` compares requests a second of one round, and another answer than expected is an error."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks import server, versions

needs_wrk = pytest.mark.skipif(not shutil.which("wrk"), reason="wrk is not installed")
SOURCE = versions.ROOT / "src"


@contextmanager
def answering(status: int) -> Iterator[str]:
    """Serve answers of one status, and yield the address."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as listening:
        threading.Thread(target=listening.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{listening.server_port}/"
        listening.shutdown()


@needs_wrk
def test_the_answers_of_a_server_are_counted_and_another_status_is_an_error() -> None:
    with answering(200) as url:
        assert server.load(url, 1) > 1
    with answering(429) as url, pytest.raises(RuntimeError, match="expected 200 only"):
        server.load(url, 1)


@needs_wrk
def test_a_candidate_is_served_from_the_version_that_was_asked_for() -> None:
    candidate = server.Candidate("everything", "source", SOURCE, server.FIVE)
    with server.served(candidate) as url:
        assert server.load(url, 1) > 1
    other = candidate._replace(folder=versions.ROOT)
    with pytest.raises(SystemExit, match=r"did not start|was measured"), server.served(other):
        pass


def test_ratios_are_medians_of_pairs_of_one_round() -> None:
    ours = server.Candidate("default", "wheel", SOURCE, server.PEER)
    taken = {ours.name: [90.0, 9.0, 20.0], server.PEER: [100.0, 10.0, 100.0]}
    assert server.row_of(ours, taken) == ["default, wheel", 20.0, 0.9, "≥1.0"]
    peer = server.Candidate(server.PEER, "source", SOURCE, "")
    assert server.row_of(peer, taken) == [server.PEER, 100.0, None, None]
