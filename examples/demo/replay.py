"""Sends the requests of an access log through an application, at the times of the log.

The limiter's clock is the time in the log, so two hours pass in seconds and every run has the same result.
"""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message

from slidegate import Decision, Limiter
from slidegate.core import Reason
from slidegate.events import Event, Outcome
from slidegate.ops.statistics import Statistics

LINE = re.compile(
    r'(?P<client>[\da-fA-F.:]+) \S+ \S+ \[(?P<time>[^]]+)] "(?P<method>[A-Z]+) (?P<target>\S+) HTTP/[\d.]+" \d{3} '
)
"""A request in the common or the combined format of access logs."""
MINUTE_US = 60_000_000
OUTCOMES = ("admitted", "limited", "blocked", "banned")


class Request(NamedTuple):
    """A request of the log."""

    time_us: int
    client: str
    method: str
    target: str


class LogClock:
    """The time of the log in microseconds; the system's while `now_us` is None."""

    now_us: int | None = None

    def __call__(self) -> int:
        return time.time_ns() // 1_000 if self.now_us is None else self.now_us


@dataclass
class Result:
    """What the limiter reported: an observer.

    Attributes:
        clients: The number of requests with each outcome, by client.
        limited: The number of refusals by client, by rule and limit.
        bans: The time and the details of each ban.
        exact: The number of refusals whose wait was exact to the microsecond.
        wrong: The refusals whose wait was not.
    """

    clients: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    limited: defaultdict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    bans: list[tuple[int, Any]] = field(default_factory=list)
    exact: int = 0
    wrong: list[Request] = field(default_factory=list)
    latest: Outcome | None = None

    def request(self, outcome: Outcome) -> None:
        """Receive the outcome of a request."""
        self.latest = outcome

    def event(self, event: Event) -> None:
        """Receive an event."""
        if event.kind == "banned":
            self.bans.append((event.time_us, event.details))


def read(path: Path) -> list[Request]:
    """Return the requests of a log in chronological order."""
    requests = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for found in filter(None, map(LINE.match, lines)):
            moment = datetime.strptime(found["time"], "%d/%b/%Y:%H:%M:%S %z")
            time_us = int(moment.timestamp()) * 1_000_000
            requests.append(Request(time_us, found["client"], found["method"], found["target"]))
    return sorted(requests, key=lambda request: request.time_us)


async def replay(app: ASGIApp, limiter: Limiter, clock: LogClock, requests: Iterable[Request]) -> Result:
    """Send requests through an application, and check the wait of every request that a limit refuses."""
    result, statistics = Result(), Statistics.of(limiter)
    limiter.observe(result)
    for request in requests:
        if clock() // MINUTE_US != request.time_us // MINUTE_US:
            await statistics.publish()  # which happens by itself where time passes
        clock.now_us, result.latest = request.time_us, None
        await send(app, request)
        # With SLIDEGATE_ENABLED=0 nothing is decided.
        decisions = result.latest.decisions if result.latest else ()
        decision = decisions[-1] if decisions else Decision(True, Reason.EXEMPT)
        if decision.binding is not None and not decision.allowed:
            result.limited[decision.binding.rule, str(decision.binding.limit)][request.client] += 1
            if await is_exact(limiter, clock, decision):
                result.exact += 1
            else:
                result.wrong.append(request)
        result.clients[request.client][word(decision)] += 1
    return result


def word(decision: Decision) -> str:
    """Return the outcome of a request in a word."""
    if decision.allowed:
        return "admitted"
    return {Reason.BLOCKED: "blocked", Reason.BANNED: "banned"}.get(decision.reason, "limited")


async def is_exact(limiter: Limiter, clock: LogClock, refusal: Decision) -> bool:
    """Return whether a refused request would pass after its wait, and not a microsecond earlier."""
    now_us, wait_us = clock(), refusal.retry_after_us
    if wait_us is None:  # it costs more than the limit, and can never pass
        return True
    clock.now_us = now_us + wait_us - 1
    early = await admits(limiter, refusal)
    clock.now_us = now_us + wait_us
    then = await admits(limiter, refusal)
    clock.now_us = now_us
    return then and not early


async def admits(limiter: Limiter, refusal: Decision) -> bool:
    """Return whether each limit of a refused request has room for it now."""
    asked = [await limiter.peek(key, bucket.limits, cost, rule=bucket.name) for bucket, key, cost in refusal.checks]
    return all(decision.allowed for decision in asked)


async def send(app: ASGIApp, request: Request) -> None:
    """Send one request without a body, as a server passes it to the application."""
    path, _, query = request.target.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode(),
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"demo.example")],
        "client": (request.client, 50_000),
        "server": ("127.0.0.1", 8000),
    }

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def ignore(message: Message) -> None:
        pass

    await app(scope, receive, ignore)
