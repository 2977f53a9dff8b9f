"""Sends the records of a log through the real middleware in virtual time.

The middlewares of an application, of a file or of limits on the command line are copied: the copies have the same
rules, lists and ban policies, and a memory store whose clock is the time of the record. Behind them, an application
answers with the logged status. So a replay decides as the live middleware would have decided, and no code of the
application runs, except functions of rules and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ... import ConfigurationError, Limiter, MemoryStore, RateLimitMiddleware, Rule, client_key
from ...core import Event
from ...events import Outcome
from ..kinds import FUNCTION, named_kind
from .logs import AccessRecord

MAX_KEYS: Final = 2_000_000
"""The most windows, and the most bans, that a replay keeps."""
_FULL: Final = ("keys_shared", "bans_full")
"""The events of a store that is full, whose decisions would no longer be those of the live one."""


class ReplayedRequest(NamedTuple):
    """The result of one replayed request.

    Attributes:
        client: Who sent it, as its middleware sees it.
        outcome: The outcome that the outermost middleware reports, with the decisions of all; None if it is exempt.
        events: The events that the limiters report: refusals, shadow refusals and bans.
    """

    client: str
    outcome: Outcome | None
    events: Sequence[Event]


class Replay:
    """Sends records, in chronological order, to copies of middlewares.

    Args:
        middlewares: The middlewares, from the outside in; at least one. They are only read.

    Attributes:
        now_us: The virtual time in microseconds.
        unwaited: The labels of rules with ``wait`` or ``concurrency``. Requests that would wait are refused, and
            permits are always free, because a log does not record the duration of requests.
        keyed: The labels of rules that count by what the log may lack, each with its key.
    """

    def __init__(self, middlewares: Sequence[RateLimitMiddleware]) -> None:
        self.now_us = 0
        self.unwaited = list[str]()
        self.keyed = list[str]()
        for middleware in middlewares:
            for rule in filter(None, (*middleware.rules, middleware.policy.rules.default_rule)):
                self._note(rule)
        self._innermost = _StatusApp(middlewares[-1].app)
        self._outcome: Any = None
        self._events = list[Event]()
        limiters: dict[Limiter, Limiter] = {}
        self._app: ASGIApp = self._innermost
        self.middlewares = list[RateLimitMiddleware]()
        for middleware in reversed(middlewares):
            limiter = middleware.limiter
            if limiter not in limiters:
                store = MemoryStore(max_keys=MAX_KEYS, max_bans=MAX_KEYS, clock=lambda: self.now_us)
                limiters[limiter] = Limiter(store, observers=[self])
            copied = _copied(middleware, self._app, limiters[limiter])
            self.middlewares.insert(0, copied)
            self._app = copied

    async def play(self, record: AccessRecord) -> ReplayedRequest:
        """Replay an HTTP request; a time before that of the previous record is moved forward to it.

        Raises:
            ConfigurationError: More than `MAX_KEYS` windows or bans are in use.
        """
        self.now_us = max(self.now_us, record.time_us)
        self._innermost.status = record.status
        if not 200 <= record.status <= 599:
            self._innermost.status = 200
        self._outcome = None
        self._events = []
        scope = scope_of(record)
        await self._app(scope, _receive, _send)
        if any(event.kind in _FULL for event in self._events):
            raise ConfigurationError(
                f"the log needs more than {MAX_KEYS:,} windows or bans at a time; pass a shorter part of it"
            )
        if self._outcome is None:  # it is exempt
            return ReplayedRequest(client_key(Request(scope)), None, self._events)
        return ReplayedRequest(self._outcome.client, self._outcome, self._events)

    def event(self, event: Event) -> None:
        """Receive an event of a limiter."""
        self._events.append(event)

    def request(self, outcome: Outcome) -> None:
        """Receive the outcome of a request; each limiter reports one, that of the outermost middleware the last."""
        self._outcome = outcome

    def _note(self, rule: Rule) -> None:
        """Note if a rule waits, or counts by what the log may lack."""
        if rule.wait_us or rule.concurrency:
            self.unwaited.append(rule.label)
        if rule.key is None:
            return
        name = getattr(rule.key, "identity", FUNCTION)
        if not all(named_kind(part).logged for part in name.split("+")):
            self.keyed.append(f"{rule.label} ({name})")


class _StatusApp:
    """Answers with the logged status. `app` shows the routes of the application, which limits of each route need."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.status = 200

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status, "headers": []})
        await send({"type": "http.response.body", "body": b""})


def _copied(middleware: RateLimitMiddleware, app: ASGIApp, limiter: Limiter) -> RateLimitMiddleware:
    """Return a copy of a middleware around another application and on another limiter."""
    policy = middleware.policy
    default_limits: Any = None
    rule = policy.rules.default_rule
    if rule is not None:
        default_limits = rule.limits_function or rule.limits
    copied = RateLimitMiddleware(
        app,
        rules=[_without_wait(rule) for rule in middleware.rules],
        default_limits=default_limits,
        key=policy.rules.key,
        limiter=limiter,
        client=policy.address,
        bans=policy.signals.ban_policies.values(),
        headers=None,
        name=policy.names.middleware or None,
        blocklist=middleware.lists["blocklist"],
        allowlist=middleware.lists["allowlist"],
    )
    copied.is_enabled = True  # the environment switches off applications
    return copied


def _without_wait(rule: Rule) -> Rule:
    """Return a copy of a rule that refuses instead of waiting and has no permits; it may still end the list."""
    copied = copy(rule)
    copied.concurrency = None
    copied.wait_us = 0
    return copied


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """The application behind a middleware whose options alone are used."""


async def _receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _send(message: Message) -> None:
    """Drop a part of an answer, whose status is in the outcome."""


def scope_of(record: AccessRecord) -> dict[str, Any]:
    """Return the ASGI scope of a logged HTTP request, with the logged header fields."""
    target = record.path
    if not target.startswith("/"):
        # A proxy gets targets such as http://example.org/a, whose path is what an application gets.
        _, _, below_scheme = target.partition("://")
        target = "/" + below_scheme.partition("/")[2]
    headers = []
    for name, value in record.headers:
        headers.append((name.encode("latin-1", "replace"), value.encode(errors="replace")))
    raw_path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": record.method,
        "path": unquote(raw_path),
        "raw_path": raw_path.encode(errors="replace"),
        "query_string": query.encode(errors="replace"),
        "root_path": "",
        "headers": headers,
        "client": (record.client, 0),
        "server": ("localhost", 80),
    }
