"""What tests of several rooms ask about a middleware and cannot see in its answers."""

import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import http_sf
from starlette.types import ASGIApp, Scope

from slidegate.core.decision import Check
from slidegate.events import Outcome
from slidegate.testing import FakeClock, RecordingObserver
from slidegate.web import file_watcher

from ..asgi import call, scope_of, send_scope

WRITTEN_NS = 1_800_000_000_000_000_000


def checks(scope: Scope) -> list[Check]:
    """Return what the limits of all middlewares and endpoints asked about a request: bucket, key and cost of each."""
    return [check for _, decision in scope["slidegate"] for check in decision.checks]


def charged(scope: Scope) -> list[str]:
    return [bucket.label for bucket, _, _ in checks(scope)]


async def counted(app: ASGIApp, path: str, method: str = "GET", **more: Any) -> list[str]:
    """Return the labels of the limits that one request was counted on."""
    scope = scope_of(path, method, **more)
    await send_scope(app, scope)
    return charged(scope)


def fields(value: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the items of a structured field, each with its parameters."""
    return [(item, dict(params)) for item, params in http_sf.parse(value.encode(), tltype="list")] if value else []


def end_of_looks() -> None:
    """Wait until every look at a file that a request has begun is over."""
    for thread in threading.enumerate():
        if thread.name == file_watcher.THREAD:
            thread.join(60)
            assert not thread.is_alive()


class Listener(RecordingObserver):
    """Hears events and outcomes."""

    def __init__(self, *, without: Sequence[str] = ()) -> None:
        super().__init__(without=without)
        self.outcomes: list[Outcome] = []

    def request(self, outcome: Outcome, /) -> None:
        self.outcomes.append(outcome)


class Log(logging.Handler):
    """Keeps the warnings and errors of the log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class FollowedFiles:
    """A directory of files that are followed, the clock that all files go by until the test ends, and an ear."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.clock = FakeClock()
        file_watcher.now_s = self.seconds
        self.observer = RecordingObserver(without=["refused", "exceeded"])
        self._written = 0

    def seconds(self) -> float:
        return self.clock.now_us / 1_000_000

    def write(self, name: str, content: str | bytes) -> Path:
        path = self.directory / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        # Two versions within one tick of the file system's clock are two versions all the same.
        self._written += 1
        os.utime(path, ns=(self._written, WRITTEN_NS + self._written * 1_000))
        return path

    async def look(self, app: ASGIApp) -> None:
        """Have a request that is not counted look at the files."""
        self.clock.advance("1s")
        await call(app, "/", "OPTIONS", headers={"Origin": "x", "Access-Control-Request-Method": "GET"})
        end_of_looks()

    async def visit(self, app: ASGIApp) -> None:
        """Let a change be seen at two looks."""
        await self.look(app)
        await self.look(app)
