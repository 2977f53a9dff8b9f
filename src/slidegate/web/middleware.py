"""The gate itself: a pure ASGI 3 middleware.

One request goes: allowlist, blocklist, then all rules that match, in one question to the limiter. What was decided
stays in ``scope["slidegate"]``, a `Record`, where the gates further in add theirs; the outermost gate writes the
header fields of the tightest. Nothing about a request is kept on the middleware, and messages that are not the start
of a response pass untouched.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from inspect import isawaitable
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..core.decision import Bucket, Decision
from ..core.errors import ConfigurationError
from ..core.limits import Limit, parse_limits
from ..core.networks import Networks
from ..limiter import Limiter
from .calls import Calls, request_of
from .gates import RuleSet
from .judge import RECORD, Judge, Record
from .proxies import ClientAddress, client_ip
from .responses import Fields, HeaderStyle, HeaderWriter, Refusals, complete, refuse_websocket, with_fields
from .rules import Rule
from .startup import expect, is_enabled, names_checked, warn_about_workers

Refused: TypeAlias = Callable[[HTTPConnection, Decision], Response | Awaitable[Response]]

_JUDGED: Final = frozenset({"http", "websocket"})

logger = logging.getLogger("slidegate")


class RateLimitMiddleware:
    """Counts requests, and answers those beyond a limit with 429 and an exact `Retry-After`.

    Args:
        app: The application to guard.
        limits: The short form: ``"100/minute"`` for each client address; the same as ``rules=[Rule("*", limits)]``.
        rules: Which requests are held to which limits.
        limiter: Where the counts live; by default one of its own, in memory.
        client: How the client's address is found: the default key of a rule, and what the lists look at.
        blocklist: Networks whose requests are answered with 403 before anything is counted.
        allowlist: Networks whose requests are never refused nor counted; it comes before the blocklist.
        on_refused: Makes the answer to a refused HTTP request, sync or async, from the request (which has no body here)
            and the decision.
        headers: ``"draft"`` (RateLimit and RateLimit-Policy), ``"legacy"`` (X-RateLimit-*), ``"both"`` or None.
        preflight_limits: What CORS preflights of one client are held to; no rule counts them. None for no limit.
        enabled: False lets everything pass, and so does ``SLIDEGATE_ENABLED=0`` in the environment.

    Raises:
        ConfigurationError: A value cannot work; the message says what would.
    """

    @names_checked
    def __init__(
        self,
        app: ASGIApp,
        *,
        limits: str | Limit | Iterable[str | Limit] | None = None,
        rules: Sequence[Rule] | None = None,
        limiter: Limiter | None = None,
        client: ClientAddress | None = None,
        blocklist: Networks | None = None,
        allowlist: Networks | None = None,
        on_refused: Refused | None = None,
        headers: HeaderStyle | None = "draft",
        preflight_limits: str | Limit | Iterable[str | Limit] | None = "600/minute",
        enabled: bool = True,
    ) -> None:
        self.app = app
        self.limiter = expect("limiter", limiter, Limiter, "Limiter(MemoryStore())") or Limiter()
        client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        expect("blocklist", blocklist, Networks, 'Networks(["192.0.2.0/24"])')
        expect("allowlist", allowlist, Networks, 'Networks(["192.0.2.0/24"])')
        if on_refused is not None and not callable(on_refused):
            raise ConfigurationError(f"on_refused: expected a function of request and decision, not {on_refused!r}")
        if headers not in ("draft", "legacy", "both", None):
            raise ConfigurationError(f'headers: expected "draft", "legacy", "both" or None, not {headers!r}')
        self._on_refused = on_refused
        self._headers = HeaderWriter(headers) if headers is not None else None
        self._refusals = Refusals()
        self._calls = Calls()
        preflight: Bucket | None = None
        if preflight_limits is not None:
            preflight = Bucket(self._claim("cors-preflight:"), parse_limits(preflight_limits))
        self._judge = Judge(
            self.limiter,
            client,
            RuleSet(_all_rules(limits, rules), self._claim),
            blocklist=blocklist,
            allowlist=allowlist,
            preflight=preflight,
            calls=self._calls,
        )
        self._enabled = is_enabled(enabled)
        warn_about_workers(self.limiter)
        self._warn_about_twins()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge one request, and pass it on or answer it."""
        if scope["type"] not in _JUDGED or not self._enabled:
            await self.app(scope, receive, send)
            return
        record: Record | None = scope.get(RECORD)
        outermost = record is None
        if record is None:
            record = scope[RECORD] = Record()
            record.judges = []
        answer = self._judge.decide(scope, record)
        decision = answer if isinstance(answer, Decision) else await answer
        record.note(self._judge, decision)
        if outermost and self._headers is not None:
            send = with_fields(send, record, self._headers)
        if decision.allowed:
            if self._judge.rules.reserving:
                send = self._judge.settling(send, decision)
            await self.app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, decision)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        status, body, fields = self._refusals.answer(decision)
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send, status, body, fields)
            return
        if self._on_refused is not None and await self._refuse_as_asked(scope, receive, send, decision, fields):
            return
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    async def _refuse_as_asked(
        self, scope: Scope, receive: Receive, send: Send, decision: Decision, fields: Fields
    ) -> bool:
        """Send the user's own answer; False if there is none and nothing was sent."""
        assert self._on_refused is not None
        started = False

        def watch(message: Message) -> Awaitable[None]:
            nonlocal started
            started = True
            return send(complete(message, fields) if message["type"] == "http.response.start" else message)

        try:
            answer = self._on_refused(request_of(scope), decision)
            response = await answer if isawaitable(answer) else answer
            await response(scope, receive, watch)
        except Exception as error:
            violated = decision.binding
            rule = violated.name if violated is not None else str(decision.reason)
            self._calls.report("on_refused", rule, error, "the client gets the default answer")
            if started:
                raise
        return started

    def _claim(self, identity: str) -> str:
        """Make an identity for counts that no other middleware has; a file that is read again claims the same."""
        return self.limiter.claim(identity)

    def _warn_about_twins(self) -> None:
        """Say so when a gate further in counts a rule of the same name: it is charged once a request."""
        inner: object = self.app
        while inner is not None:
            if isinstance(inner, RateLimitMiddleware):
                for name in self._judge.rules.names() & inner._judge.rules.names():
                    logger.warning("rule %r stands in two middlewares, one inside the other; it is charged once", name)
            inner = getattr(inner, "app", None)


def _all_rules(limits: str | Limit | Iterable[str | Limit] | None, rules: Sequence[Rule] | None) -> Sequence[Rule]:
    if (limits is None) == (rules is None):
        raise ConfigurationError(
            'RateLimitMiddleware: give limits="100/minute" or rules=[Rule(...), ...], '
            + ("one of them" if limits is None else 'not both; limits is Rule("*", ...)')
        )
    if rules is None:
        return [Rule("*", limits)]
    if isinstance(rules, (str, Rule)) or not isinstance(rules, Iterable):
        raise ConfigurationError(f'rules: expected a list such as [Rule("*", "100/minute")], not {rules!r}')
    return tuple(rules)
