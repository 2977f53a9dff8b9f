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

from ..core.decision import Bucket, Decision, Reason
from ..core.errors import ConfigurationError
from ..core.limits import Limit, parse_limits
from ..core.networks import Networks
from ..limiter import Limiter
from .calls import Calls, request_of
from .proxies import ClientAddress, client_ip
from .responses import Fields, HeaderStyle, HeaderWriter, Refusals, complete, refuse_websocket, tightest, with_fields
from .rules import Rule, RuleSet, Selection
from .startup import expect, is_enabled, names_checked, warn_about_workers

RECORD: Final = "slidegate"
"""The key of a request's `Record` in its ASGI scope."""

Refused: TypeAlias = Callable[[HTTPConnection, Decision], Response | Awaitable[Response]]

_JUDGED: Final = frozenset({"http", "websocket"})
_BLOCKED: Final = Decision(False, Reason.BLOCKED)
_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)

logger = logging.getLogger("slidegate")


class Record(list[Decision]):
    """What the gates on the way of one request decided, the outermost first."""

    __slots__ = ()

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one with the least left."""
        return tightest(self)


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
        self._client = expect("client", client, ClientAddress, "client_ip()") or client_ip()
        self._blocklist = expect("blocklist", blocklist, Networks, 'Networks(["192.0.2.0/24"])')
        self._allowlist = expect("allowlist", allowlist, Networks, 'Networks(["192.0.2.0/24"])')
        if on_refused is not None and not callable(on_refused):
            raise ConfigurationError(f"on_refused: expected a function of request and decision, not {on_refused!r}")
        if headers not in ("draft", "legacy", "both", None):
            raise ConfigurationError(f'headers: expected "draft", "legacy", "both" or None, not {headers!r}')
        self._on_refused = on_refused
        self._headers = HeaderWriter(headers) if headers is not None else None
        self._refusals = Refusals()
        self._calls = Calls()
        self._rules = RuleSet(_all_rules(limits, rules), self.limiter)
        self._preflight: Bucket | None = None
        if preflight_limits is not None:
            self._preflight = Bucket(self.limiter.claim("cors-preflight:"), parse_limits(preflight_limits), None)
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
        answer = self._judge(scope, record)
        decision = answer if isinstance(answer, Decision) else await answer
        record.append(decision)
        if outermost and self._headers is not None:
            send = with_fields(send, record, self._headers)
        if decision.allowed:
            await self.app(scope, receive, send)
        else:
            await self._refuse(scope, receive, send, decision)

    def _judge(self, scope: Scope, before: Sequence[Decision]) -> Decision | Awaitable[Decision]:
        """Decide about a request, given what gates further out decided."""
        client_key, address = self._client.locate(scope)
        if before and before[0].reason is Reason.ALLOWLISTED:
            return before[0]
        if address is not None:
            if self._allowlist is not None and self._allowlist.covers(*address):
                return _ALLOWLISTED
            if self._blocklist is not None and self._blocklist.covers(*address):
                return _BLOCKED
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            return _EXEMPT if self._preflight is None else self.limiter.decide(((self._preflight, client_key, 1),))
        selection = self._rules.select(scope)
        if before:
            selection = _without(selection, before)
        if not selection.gates:
            return _EXEMPT
        if not selection.plain:
            return self._ask(selection, scope, client_key)
        return self.limiter.decide([gate.check(scope, self.limiter, client_key) for gate in selection.gates])

    async def _ask(self, selection: Selection, scope: Scope, client_key: str) -> Decision:
        """Decide with the help of functions of the user's."""
        checks = [await self._calls.check(gate, scope, self.limiter, client_key) for gate in selection.gates]
        counted = [check for check in checks if check is not None]
        return await self.limiter.hit_all(counted) if counted else _EXEMPT

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

    def _warn_about_twins(self) -> None:
        """Say so when a gate further in counts a rule of the same name: it is charged once a request."""
        inner: object = self.app
        while inner is not None:
            if isinstance(inner, RateLimitMiddleware):
                for name in self._rules.names() & inner._rules.names():
                    logger.warning("rule %r stands in two middlewares, one inside the other; it is charged once", name)
            inner = getattr(inner, "app", None)


def is_preflight(scope: Scope) -> bool:
    """Tell whether an OPTIONS request is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names


def _without(selection: Selection, before: Sequence[Decision]) -> Selection:
    """Leave out the named rules that a gate further out has charged."""
    charged = {bucket.rule for decision in before for bucket, _, _ in decision.checks}
    gates = tuple(gate for gate in selection.gates if gate.rule.name is None or gate.rule.name not in charged)
    return selection if len(gates) == len(selection.gates) else Selection(gates, all(gate.plain for gate in gates))


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
