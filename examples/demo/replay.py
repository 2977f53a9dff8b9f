"""Sends the requests of an access log through an ASGI application in virtual time.

The limiter's clock is the time in the log, so a year passes in seconds and every run has the same result. After each
refusal the clock is set to the end of `Retry-After`, and to the microsecond before, to check whether the limiter would
admit the request at these times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Scope

from slidegate import Decision, Limiter
from slidegate.core import Reason
from slidegate.events import Event
from slidegate.logs import AccessRecord
from slidegate.testing import FakeClock

SWITCHED_OFF = Decision(True, Reason.EXEMPT)  # with SLIDEGATE_ENABLED=0 the middleware makes no decision


OUTCOMES = ("admitted", "refused", "blocked", "banned")


class Answer(NamedTuple):
    """The outcome of one request of the log."""

    record: AccessRecord
    status: int
    decision: Decision
    violation: str
    """A description of what is wrong with the refusal; empty if it is correct."""


class MadeBan(NamedTuple):
    """A ban that began during a replay."""

    key: str
    by: str
    reason: str
    made_us: int
    until: datetime | None


class Exchange(NamedTuple):
    """One request of the log, and the response of the application in the replay."""

    record: AccessRecord
    status: int
    fields: dict[bytes, bytes]
    decision: Decision


@dataclass
class Report:
    """Counts of outcomes.

    Attributes:
        refused: The number of refusals by rule and limit.
        held: The number of refusals by rule, limit and client.
        clients: For each client, the outcomes of its requests: "admitted", "refused", "blocked" or "banned".
        first_us: The time of the first request.
        last_us: The time of the last request.
        retries_checked: The number of `Retry-After` values that were checked.
        bans: The bans, oldest first.
        later_us: The offset of the replay to the times in the log.
    """

    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    held: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    clients: dict[str, Counter[str]] = field(default_factory=dict)
    first_us: int | None = None
    last_us: int = 0
    retries_checked: int = 0
    bans: list[MadeBan] = field(default_factory=list)
    violations: list[Answer] = field(default_factory=list)
    later_us: int = 0

    def add(self, answer: Answer) -> None:
        """Count an answer."""
        decision = answer.decision
        self.clients.setdefault(answer.record.client, Counter())[outcome(decision)] += 1
        self.first_us = answer.record.time_us if self.first_us is None else self.first_us
        self.last_us = answer.record.time_us
        self.retries_checked += not decision.allowed and decision.retry_after_us is not None
        if decision.binding is not None and not decision.allowed:
            rule, limit = decision.binding.rule, str(decision.binding.limit)
            self.refused[rule, limit] += 1
            self.held[rule, limit, answer.record.client] += 1
        if answer.violation:
            self.violations.append(answer)

    def count(self, outcome: str) -> int:
        """Return the number of requests with an outcome."""
        return sum(outcomes[outcome] for outcomes in self.clients.values())

    def most_refused(self, number: int) -> list[tuple[str, Counter[str]]]:
        """Return the clients with the most requests not admitted, the worst first."""
        turned_away = {client: outcomes.total() - outcomes["admitted"] for client, outcomes in self.clients.items()}
        worst = sorted(
            (client for client in turned_away if turned_away[client]), key=turned_away.__getitem__, reverse=True
        )
        return [(client, self.clients[client]) for client in worst[:number]]


def bans_of(limiter: Limiter, clock: FakeClock) -> list[MadeBan]:
    """Return a list to which each ban of a limiter will be appended."""
    bans: list[MadeBan] = []

    def add(event: Event) -> None:
        ban: Any = event.details
        bans.append(MadeBan(ban["key"], ban["by"], ban["reason"], clock.now_us, ban["until"]))

    limiter.observe(add, kinds=["banned"])
    return bans


def outcome(decision: Decision) -> str:
    """Return the outcome of a request in a word."""
    if decision.allowed:
        return "admitted"
    return {Reason.BLOCKED: "blocked", Reason.BANNED: "banned"}.get(decision.reason, "refused")


async def replay(
    app: ASGIApp, limiter: Limiter, clock: FakeClock, records: Iterable[AccessRecord]
) -> AsyncIterator[Answer]:
    """Send each record through an application, and check every refusal.

    Args:
        app: The application.
        limiter: The limiter of its `RateLimitMiddleware`.
        clock: The clock of the limiter's store.
        records: The records in chronological order.
    """
    async for record, status, fields, decision in play(app, clock, records):
        violation = "" if decision.allowed else await fault(limiter, clock, decision, status, fields)
        yield Answer(record, status, decision, violation)


async def play(app: ASGIApp, clock: FakeClock, records: Iterable[AccessRecord]) -> AsyncIterator[Exchange]:
    """Send each record through an application at its time. The logged status is in ``request.state.status``."""
    for record in records:
        clock.set(record.time_us)
        status, fields, decision = await call(app, http_scope(record))
        yield Exchange(record, status, fields, decision)


def http_scope(record: AccessRecord) -> Scope:
    """Return the scope that a server would pass to the application for a logged request."""
    target = record.path
    if target.startswith(("http://", "https://")):
        # The absolute form, as sent to a proxy; applications get only the path.
        target = "/" + target.partition("://")[2].partition("/")[2]
    raw_path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": record.method,
        "scheme": "http",
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(errors="replace"),
        "query_string": query.encode(errors="replace"),
        "root_path": "",
        "headers": [(b"host", b"demo.example"), (b"user-agent", (record.user_agent or "").encode(errors="replace"))],
        "client": (record.client, 50_000),
        "server": ("127.0.0.1", 8000),
        "state": {"status": record.status},
    }


async def call(app: ASGIApp, scope: Scope) -> tuple[int, dict[bytes, bytes], Decision]:
    """Send one request without a body; return status and header fields of the response, and the decision."""
    incoming: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]
    started: dict[str, Any] = {}

    async def receive() -> Message:
        return incoming.pop() if len(incoming) > 1 else incoming[0]

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
            if "slidegate" in scope:  # only while the request is in progress
                started["decision"] = scope["slidegate"].decision

    await app(scope, receive, send)
    return started["status"], dict(started["headers"]), started.get("decision", SWITCHED_OFF)


async def fault(limiter: Limiter, clock: FakeClock, decision: Decision, status: int, fields: dict[bytes, bytes]) -> str:
    """Check a refusal; return what is wrong with it, or an empty string."""
    expected = 429 if outcome(decision) == "refused" else 403
    if status != expected:
        return f"status {status} instead of {expected}"
    wait_us = decision.retry_after_us
    promised = fields.get(b"retry-after")
    if wait_us is None:
        return "" if promised is None else f"Retry-After {promised!r}, but the request can never be admitted"
    if promised != b"%d" % max(1, -(-wait_us // 1_000_000)):
        return f"Retry-After is {promised!r}, but the wait is {wait_us} us"
    now_us = clock.now_us
    if decision.ban is not None:
        # Do not move the clock past the end of the ban, because the store would drop it; compare its end instead.
        left_us = decision.ban.left_us(now_us)
        return "" if left_us == wait_us else f"the wait is {wait_us} us, but the ban lasts {left_us} us"
    try:
        clock.set(now_us + wait_us - 1)
        early = await limiter.peek_all(decision.checks)
        clock.set(now_us + wait_us)
        then = await limiter.peek_all(decision.checks)
    finally:
        clock.set(now_us)
    if early.allowed:
        return f"admitted a microsecond before the end of the wait of {wait_us} us"
    return "" if then.allowed else f"still refused after the wait of {wait_us} us"
