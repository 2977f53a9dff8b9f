"""Sends the requests of an access log through an ASGI application, in the log's own time.

The limiter's clock stands wherever the log says, so a year passes in seconds and every run gives the same answers. At
each refusal the clock is moved to the microsecond before `Retry-After` has passed, and to that moment, and the limiter
is asked whether it would admit the request then.
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

SWITCHED_OFF = Decision(True, Reason.EXEMPT)  # SLIDEGATE_ENABLED=0: the middleware leaves no record


OUTCOMES = ("admitted", "refused", "blocked", "banned")


class Answer(NamedTuple):
    """The fate of one request of the log."""

    record: AccessRecord
    status: int
    decision: Decision
    violation: str
    """The fault of the refusal; empty if it has none."""


class MadeBan(NamedTuple):
    """A ban that was made during a replay."""

    key: str
    by: str
    reason: str
    made_us: int
    until: datetime | None


class Exchange(NamedTuple):
    """One request of the log, and the answer that the application gave now."""

    record: AccessRecord
    status: int
    fields: dict[bytes, bytes]
    decision: Decision


@dataclass
class Report:
    """Sums over answers.

    Attributes:
        refused: How often each limit refused, by rule and limit.
        held: How often each limit refused each client, by rule, limit and client.
        clients: For each client, the fates of its requests: "admitted", "refused", "blocked" or "banned".
        first_us: The time of the first request.
        last_us: The time of the last request.
        retries_checked: How many times a `Retry-After` was put to the test.
        bans: The bans that were made, oldest first.
        later_us: How much later the log was replayed than it says.
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
        """Count one more."""
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
        """Return how many requests had an outcome."""
        return sum(outcomes[outcome] for outcomes in self.clients.values())

    def most_refused(self, number: int) -> list[tuple[str, Counter[str]]]:
        """Return the clients whose requests were turned away most often, the worst first."""
        turned_away = {client: outcomes.total() - outcomes["admitted"] for client, outcomes in self.clients.items()}
        worst = sorted(
            (client for client in turned_away if turned_away[client]), key=turned_away.__getitem__, reverse=True
        )
        return [(client, self.clients[client]) for client in worst[:number]]


def bans_of(limiter: Limiter, clock: FakeClock) -> list[MadeBan]:
    """Return a list to which each ban that a limiter makes is added."""
    bans: list[MadeBan] = []

    def add(event: Event) -> None:
        told: Any = event.details
        bans.append(MadeBan(told["key"], told["by"], told["reason"], clock.now_us, told["until"]))

    limiter.observe(add, kinds=["banned"])
    return bans


def outcome(decision: Decision) -> str:
    """Return the fate of a request in a word."""
    if decision.allowed:
        return "admitted"
    return {Reason.BLOCKED: "blocked", Reason.BANNED: "banned"}.get(decision.reason, "refused")


async def replay(
    app: ASGIApp, limiter: Limiter, clock: FakeClock, records: Iterable[AccessRecord]
) -> AsyncIterator[Answer]:
    """Send each record through `app`, whose limits `limiter` keeps by `clock`, and check every refusal.

    Args:
        app: The application.
        limiter: The limiter of its `RateLimitMiddleware`.
        clock: The clock of the limiter's store.
        records: What to send, in the order of their times.
    """
    async for record, status, fields, decision in play(app, clock, records):
        violation = "" if decision.allowed else await fault(limiter, clock, decision, status, fields)
        yield Answer(record, status, decision, violation)


async def play(app: ASGIApp, clock: FakeClock, records: Iterable[AccessRecord]) -> AsyncIterator[Exchange]:
    """Send each record through `app` at its time. What the log answered stands in ``request.state.status``."""
    for record in records:
        clock.set(record.time_us)
        status, fields, decision = await call(app, http_scope(record))
        yield Exchange(record, status, fields, decision)


def http_scope(record: AccessRecord) -> Scope:
    """Return the scope that a server would hand to the application for a logged request."""
    target = record.path
    if target.startswith(("http://", "https://")):
        # As sent to a proxy; the application sees the path alone.
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
    """Send one request without a body; return status and header fields of the answer, and the decision behind it."""
    incoming: list[Message] = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"", "more_body": False}]
    started: dict[str, Any] = {}

    async def receive() -> Message:
        return incoming.pop() if len(incoming) > 1 else incoming[0]

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.update(message)
            if "slidegate" in scope:  # as long as the request is under way
                started["decision"] = scope["slidegate"].decision

    await app(scope, receive, send)
    return started["status"], dict(started["headers"]), started.get("decision", SWITCHED_OFF)


async def fault(limiter: Limiter, clock: FakeClock, decision: Decision, status: int, fields: dict[bytes, bytes]) -> str:
    """Put a refusal to the test; return its fault, or nothing."""
    expected = 429 if outcome(decision) == "refused" else 403
    if status != expected:
        return f"answered {status} instead of {expected}"
    wait_us = decision.retry_after_us
    promised = fields.get(b"retry-after")
    if wait_us is None:
        return "" if promised is None else f"Retry-After {promised!r} where no wait helps"
    if promised != b"%d" % max(1, -(-wait_us // 1_000_000)):
        return f"Retry-After is {promised!r}, the wait {wait_us} us"
    now_us = clock.now_us
    if decision.ban is not None:
        # A store forgets a ban that has ended, so nobody goes there to look: the ban itself knows its end.
        left_us = decision.ban.left_us(now_us)
        return "" if left_us == wait_us else f"told to wait for {wait_us} us where the ban lasts {left_us} us"
    try:
        clock.set(now_us + wait_us - 1)
        early = await limiter.peek_all(decision.checks)
        clock.set(now_us + wait_us)
        then = await limiter.peek_all(decision.checks)
    finally:
        clock.set(now_us)
    if early.allowed:
        return f"admitted a microsecond before the wait of {wait_us} us was over"
    return "" if then.allowed else f"still refused after the wait of {wait_us} us"
