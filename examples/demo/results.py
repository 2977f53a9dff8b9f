"""What a site decides about the requests of an access log, and whether each Retry-After is exact.

The log is read as `slidegate simulate` reads one, and sent to the application itself. The limiter's clock is the time
in the log, so two hours pass in seconds and every run has the same result.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from starlette.types import ASGIApp, Message

from slidegate import Decision, Limiter
from slidegate.core import Reason
from slidegate.events import Event, Outcome
from slidegate.ops.replay import AccessLogs, AccessRecord
from slidegate.ops.replay.replay import scope_of
from slidegate.ops.statistics import Statistics

MINUTE_US: Final = 60_000_000
OUTCOMES: Final = ("admitted", "limited", "blocked", "banned")
WORDS: Final = {Reason.BLOCKED: "blocked", Reason.BANNED: "banned"}


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
    wrong: list[AccessRecord] = field(default_factory=list)
    latest: Outcome | None = None

    def request(self, outcome: Outcome) -> None:
        """Receive the outcome of a request."""
        self.latest = outcome

    def event(self, event: Event) -> None:
        """Receive an event."""
        if event.kind == "banned":
            self.bans.append((event.time_us, event.details))


def read(path: Path) -> list[AccessRecord]:
    """Return the HTTP requests of a log in chronological order."""
    return [record for record in AccessLogs([str(path)]) if record.method]


async def replay(app: ASGIApp, limiter: Limiter, clock: LogClock, requests: Iterable[AccessRecord]) -> Result:
    """Send requests through an application, and check the wait of every request that a limit refuses."""
    result, statistics = Result(), Statistics.of(limiter)
    limiter.observe(result)
    for request in requests:
        if clock() // MINUTE_US != request.time_us // MINUTE_US:
            await statistics.publish()  # which happens by itself where time passes
        clock.now_us, result.latest = request.time_us, None
        await app(scope_of(request), receive, ignore)
        if result.latest is None or not result.latest.decisions:  # nothing is decided with SLIDEGATE_ENABLED=0
            result.clients[request.client]["admitted"] += 1
            continue
        decision = result.latest.decisions[-1]
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
    return WORDS.get(decision.reason, "limited")


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


async def receive() -> Message:
    """Receive the body of a request, which is empty."""
    return {"type": "http.request", "body": b"", "more_body": False}


async def ignore(message: Message) -> None:
    """Send a message of a response to nobody."""
