"""Look into a gate where a test cannot ask it from outside."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from slidegate import RateLimitMiddleware
from slidegate.web.endpoints.decorator import MARKS
from slidegate.web.lists.watching import THREAD


def skip_the_first_requests(gate: RateLimitMiddleware) -> None:
    """Have a gate take the short way at once, if it ever does: it looks on the first requests for findings."""
    gate._judge = gate._gate.at_once()
    gate._judged = frozenset({"http", "websocket"})
    gate._watch = None


@contextmanager
def nothing_decorated() -> Iterator[None]:
    """Have gates forget that a test has decorated an endpoint: in a process with one they look at every endpoint."""
    marks = MARKS[:]
    MARKS.clear()
    try:
        yield
    finally:
        MARKS[:] = marks


def end_of_looks() -> None:
    """Wait until every look at a file that a request has begun is over."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join(60)
            assert not thread.is_alive()
