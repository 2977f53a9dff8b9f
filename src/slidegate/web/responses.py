"""Answers: the one `send` by which all of them leave, those to refused requests, and the event that tells of one.

The first message of an answer gets the header fields (`headers.py`), and the stats are told how an answer begins and
ends (`stats.py`). The answers to refused requests are problem details (RFC 9457) of the types that
draft-ietf-httpapi-ratelimit-headers-11 registers. The parts that do not depend on the moment are made once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from inspect import isawaitable
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..core.arguments import check_takes
from ..core.bans.policy import BanPolicy
from ..core.concurrency import Concurrency
from ..core.decision import Bucket, Decision, Reason, RuleRefusal, StruckRefusal, ceil_s
from ..core.errors import ConfigurationError, quoted
from ..core.limits import AnyLimit
from ..core.logs import escaped
from ..core.memo import remember
from ..core.store import Event
from ..limiter import Limiter
from .callbacks import UserCallbacks, request_of
from .client_ip import ClientAddress
from .headers import (
    NOT_STORED,
    Buckets,
    Field,
    Fields,
    HeaderWriter,
    asked_buckets,
    completed,
    distinct_names,
    sendable,
)
from .request import RECORD, STATUS, RequestLimits
from .routes import RouteIndex
from .stats import RequestStats

Refused: TypeAlias = Callable[[HTTPConnection, Decision], Response | Awaitable[Response]]
Rendered: TypeAlias = tuple[int, bytes, Fields]
"""Status, body and header fields of an answer."""

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_ABUSE: Final = "abnormal-usage-detected"
_CAPACITY: Final = "temporary-reduced-capacity"
_TITLES: Final = {
    _QUOTA: "Request cannot be satisfied as assigned quota has been exceeded",
    _ABUSE: "Request not satisfied due to detection of abnormal request pattern",
    _CAPACITY: "Request cannot be satisfied due to temporary server capacity constraints",
}
_NEEDED: Final = frozenset({b"cache-control", b"retry-after"})
"""The names of the fields that every answer to a refused request has."""
_BODIES: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
    }
)
"""The messages that are a piece of a body."""
_MAX_BLOCKS: Final = 1_024
_MAX_METHOD: Final = 64
"""How many characters of a method are shown; all that are registered are shorter."""
_HANDSHAKE: Final = "WEBSOCKET"
POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client is banned or refused (RFC 6455, section 7.4.1)."""
_NORMAL: Final = 1000


class Sender:
    """Sends the messages of the answers to the requests of one middleware.

    Args:
        headers: Writes the header fields.
        stats: Counts requests.
        routes: Says which route a refused request would have gone to.
    """

    def __init__(self, headers: HeaderWriter, stats: RequestStats, routes: RouteIndex) -> None:
        self._headers = headers
        self._stats = stats
        self._routes = routes

    def send(self, scope: Scope, request: RequestLimits, send: Send, message: Message) -> Awaitable[None]:
        """Send a message of an answer.

        It is no coroutine function, because most messages have nothing to wait for.
        """
        kind = message["type"]
        if not request.answered:
            if kind in STATUS:
                if request.on_start:
                    return self._start_later(scope, request, send, message)
                request.answered = True
                request.status = message.get("status") or STATUS[kind]
                fields = message.get("headers", ())
                if request.refusal is not None:
                    fields = self.refused(request, request.refusal, fields)
                elif kind != "http.response.start" and not request.counted:
                    self._stats.begin(scope, request)
                if kind != "websocket.close":
                    # Another message, because an application may send one prepared message again and again.
                    message = {**message, "headers": self._headers.add(fields, request.entries)}
        elif not request.counted and kind in _BODIES:
            if message.get("more_body", False):
                self._stats.begin(scope, request)
            else:
                self._stats.end(scope, request, "success")
        return _send_and_release(request, send, message) if request.unfinished else send(message)

    async def _start_later(self, scope: Scope, request: RequestLimits, send: Send, message: Message) -> None:
        """Send the start of an answer whose status somebody waits for."""
        status = message.get("status") or STATUS[message["type"]]
        await request.start(scope, status, message.get("headers", ()))
        await self.send(scope, request, send, message)

    def refused(self, request: RequestLimits, refusal: Decision, fields: Iterable[Field] = ()) -> Iterable[Field]:
        """Count a refusal, and tell of it; where the client left before the answer, its status is 0.

        Returns:
            The fields of the answer, with those that it must have.
        """
        listened = request.middleware.limiter.engine.events.refused
        # A scope that its own record holds would be left to the garbage collector.
        scope, request.refused_scope = request.refused_scope, None
        if scope is not None and (listened or not request.counted):
            route = self._routes.label(scope)
            if not request.counted:
                self._stats.refuse(request, refusal, route)
            if listened:
                request.middleware.refusal_events.tell(scope, refusal, route, request.status or None)
        return completed(fields, request.needed) if request.needed else fields


async def _send_and_release(request: RequestLimits, send: Send, message: Message) -> None:
    """Send a message, and give back the permits of the request behind the last one.

    Whatever an application does afterwards, such as background tasks, holds no permit.
    """
    request.trailers = request.trailers or bool(message.get("trailers"))
    await send(message)
    if _is_last(message, request.trailers):
        await request.release()


def _is_last(message: Message, trailers: bool) -> bool:
    """Tell whether nothing of the answer comes after a message.

    Args:
        message: The message.
        trailers: Whether the answer ends with trailers.
    """
    kind = message["type"]
    if kind in _BODIES:
        return not message.get("more_body", False) and not trailers
    return kind == "websocket.close" or (kind == "http.response.trailers" and not message.get("more_trailers", False))


class RefusalResponses:
    """Answers refused requests; the default answers are rendered once each.

    Args:
        policies: The ban policies by name, which say how their bans are answered.
        on_refused: Makes the user's own answer.
        calls: Calls the functions of the user's.

    Raises:
        ConfigurationError: `on_refused` cannot be called.
    """

    def __init__(self, policies: Mapping[str, BanPolicy], on_refused: Refused | None, calls: UserCallbacks) -> None:
        if on_refused is not None:
            if not callable(on_refused):
                raise ConfigurationError(
                    f"on_refused: expected a function of request and decision, not {quoted(on_refused)}"
                )
            check_takes("on_refused", on_refused, "request", "decision")
        self._on_refused = on_refused
        self._calls = calls
        self._policies = dict(policies)
        self._policies.update((policy.prefix.name, policy) for policy in policies.values() if policy.prefix is not None)
        self._limited: dict[tuple[Buckets, Buckets, tuple[bool, ...], Reason], Rendered] = {}
        self._banned: dict[tuple[str, bool], Rendered] = {}

    async def send(self, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        """Answer a request that was refused."""
        status, body, fields = self.answer(decision, scope)
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send, status, body, fields)
            return
        own = self._on_refused
        dropped = own is None or self._drops(decision)
        if own is not None and not dropped and await self._send_own(own, scope, receive, send, decision, fields):
            return
        await send({"type": "http.response.start", "status": status, "headers": [*fields]})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def answer(self, decision: Decision, scope: Scope) -> Rendered:
        """Return the answer to a refused request."""
        if decision.reason is Reason.BANNED:
            return self._to_banned(decision, scope)
        if not decision.readings:
            return _to_client(decision)
        waits = [reading[3] for reading in decision.readings]
        wait_us = min(waits)
        if wait_us >= 0:  # neither `NEVER` nor `OPEN`
            wait_us = max(waits)
        if isinstance(decision, StruckRefusal):
            wait_us = decision.retry_after_us or wait_us
        # The buckets, what else is in the answer, which of their limits have no room, and whether they ever will.
        outer = _asked_before(decision, scope)
        asked = asked_buckets(decision.checks), outer, tuple(map(bool, waits)), decision.reason
        rendered = self._limited.get(asked)
        if rendered is None:
            names = distinct_names([*outer, *(bucket for bucket, _, _ in decision.checks)])[-len(waits) :]
            full = zip(names, decision.states, strict=True)
            violated = [(name, state.limit) for name, state in full if state.retry_after_us != 0]
            too_large = decision.reason is Reason.TOO_LARGE
            rendered = remember(self._limited, asked, _over_quota(violated, too_large=too_large))
        return rendered if wait_us < 0 else _later(rendered, wait_us)

    def _policy_of(self, decision: Decision) -> BanPolicy | None:
        """Return the policy that has banned the client: by hand anybody may ban in any name, also in that of one."""
        ban = decision.ban
        return self._policies.get(ban.by) if ban is not None and ban.level else None

    def _drops(self, decision: Decision) -> bool:
        """Tell whether the client gets an empty answer, and no connection for another request."""
        policy = self._policy_of(decision)
        return policy is not None and policy.answer == "drop"

    def _to_banned(self, decision: Decision, scope: Scope) -> Rendered:
        """Return the answer to a banned client, which says no more than that and until when."""
        policy = self._policy_of(decision)
        if policy is not None and policy.answer == "drop":
            # Other versions of HTTP have no such field, and no connection of one request to close.
            close = [(b"connection", b"close")] if scope.get("http_version", "1.1").startswith("1") else []
            return policy.status, b"", [(b"content-length", b"0"), NOT_STORED, *close]
        wait_us = decision.retry_after_us
        asked = "" if policy is None else policy.name, wait_us is not None
        rendered = self._banned.get(asked)
        if rendered is None:
            rendered = self._banned[asked] = _shut_out(policy, ends=wait_us is not None)
        return rendered if wait_us is None else _later(rendered, wait_us)

    async def _send_own(
        self, on_refused: Refused, scope: Scope, receive: Receive, send: Send, decision: Decision, fields: Fields
    ) -> bool:
        """Send the user's own answer; False if there is none and nothing was sent."""
        started = False
        rule = refused_by(decision)

        def send_completed(message: Message) -> Awaitable[None]:
            nonlocal started
            if message["type"] == "http.response.start":
                message = self._checked(message, rule)
                needed = [field for field in fields if field[0] in _NEEDED]
                message = {**message, "headers": completed(message["headers"], needed)}
            started = True
            return send(message)

        try:
            answer = on_refused(request_of(scope), decision)
            response = await answer if isawaitable(answer) else answer
            await response(scope, receive, send_completed)
        except Exception as error:
            self._calls.report("on_refused", rule, error, "the client gets the default answer")
            if started:
                raise
        return started

    def _checked(self, message: Message, rule: str) -> Message:
        """Leave out of the user's answer what no server can send; one bad field would cost the client its answer."""
        status = message.get("status")
        if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 999:
            raise ConfigurationError(f"on_refused: expected a status such as 429, not {quoted(status)}")
        good, bad = sendable(message.get("headers", ()))
        for field in bad:
            error = ConfigurationError(f"a header field cannot be sent: {quoted(field)}")
            self._calls.report("on_refused", rule, error, "the field is left out")
        return {**message, "headers": good}


def _asked_before(decision: Decision, scope: Scope) -> tuple[Bucket, ...]:
    """Return the buckets of the decisions further out, whose limits are in the answer, too."""
    record: RequestLimits | None = scope.get(RECORD)
    if record is None or len(record.entries) < 2:
        return ()
    outer: list[Bucket] = []
    for _, before in record.entries:
        if before.checks is decision.checks:
            break
        outer += [bucket for bucket, _, _ in before.checks if before.readings]
    return tuple(outer)


def _to_client(decision: Decision) -> Rendered:
    """Return the answer to a client that is refused as such, by a list or a rule, or because no store answers."""
    match decision.reason:
        case Reason.UNAVAILABLE:
            return _later(_unavailable(), decision.retry_after_us or 0)
        case Reason.NOBODY:
            return _for_nobody(decision.by)
    if isinstance(decision, RuleRefusal):
        return _blocked(decision.status, decision.by)
    return _listed()


class RefusalEvents:
    """Tells the observers of a limiter of the requests that a middleware refuses, each once.

    Args:
        limiter: The limiter.
        client: Finds the client's address.
    """

    def __init__(self, limiter: Limiter, client: ClientAddress) -> None:
        self._tell = limiter.engine.emit
        self._client = client

    def tell(self, scope: Scope, refusal: Decision, route: str, status: int | None) -> None:
        """Tell of a refused request.

        Args:
            scope: Its scope.
            refusal: The decision.
            route: The route that it would have gone to.
            status: The status of the answer; None where the client left before it.
        """
        client, _ = self._client.locate(scope)
        state, ban = refusal.binding, refusal.ban
        key = state.key if state is not None else client if ban is None else ban.key
        wait_us = refusal.retry_after_us
        rule, by = "", refusal.by
        if state is not None:
            rule = next((bucket.label for bucket, _, _ in refusal.checks if bucket.rule == state.rule), state.rule)
        elif isinstance(refusal, RuleRefusal) or refusal.reason is Reason.NOBODY:
            rule, by = by, ""
        method = escaped(scope.get("method", _HANDSHAKE), _MAX_METHOD)
        why = " ".join(filter(None, (str(refusal.reason), f"by {by}" if by else "", f"under {rule!r}" if rule else "")))
        details = {
            "key": key,
            "client": client,
            "rule": rule,
            "limit": "" if state is None else str(state.limit),
            "reason": str(refusal.reason),
            "by": by,
            "route": route,
            "method": method,
            "retry_after_s": None if wait_us is None else ceil_s(wait_us),
            "status": status,
        }
        self._tell(Event("refused", f"{key} was refused: {why}, {method} on {route}", details))


def refused_by(decision: Decision) -> str:
    """Say what refuses: the limit, else the reason."""
    violated = decision.binding
    return violated.name if violated is not None else decision.by or str(decision.reason)


async def refuse_websocket(scope: Scope, send: Send, status: int, body: bytes, fields: Fields) -> None:
    """Refuse a handshake: with the full answer where the server can send one, else by a close, which it makes a 403."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": status, "headers": fields})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await close_websocket(send, POLICY_VIOLATION)


async def close_websocket(send: Send, code: int, reason: str = "") -> None:
    """Close a websocket; with the code 1000 where the server refuses the given one.

    daphne takes 1000 and 3000 to 4999 alone. An `OSError` says that the client has gone.
    """
    message: Message = {"type": "websocket.close", "code": code}
    if reason:
        message["reason"] = reason
    try:
        await send(message)
    except OSError:
        raise
    except Exception:
        await send({**message, "code": _NORMAL})


def _later(rendered: Rendered, wait_us: int) -> Rendered:
    status, body, fields = rendered
    return status, body, [*fields, (b"retry-after", b"%d" % -(-wait_us // 1_000_000))]


def _problem(
    kind: str, status: int, detail: str, violated: Sequence[str] = (), *, unsatisfiable: bool = False
) -> Rendered:
    """Write the answer of a registered problem type; of none, where the title is that of the status."""
    problem: dict[str, object] = {
        "type": f"{_TYPES}{kind}" if kind else "about:blank",
        "title": _TITLES[kind] if kind else _phrase(status),
        "status": status,
        "detail": detail,
    }
    if unsatisfiable:
        problem["unsatisfiable"] = True
    if violated:
        problem["violated-policies"] = violated
    # "<" cannot end a script element then, wherever the text is pasted.
    body = json.dumps(problem).replace("<", "\\u003c").encode()
    length = (b"content-length", b"%d" % len(body))
    return status, body, [(b"content-type", b"application/problem+json"), length, NOT_STORED]


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Request not accepted"


@lru_cache
def _unavailable() -> Rendered:
    """Return the answer where no store answers."""
    detail = "This service cannot count requests now; Retry-After says when to try again."
    return _problem(_CAPACITY, 503, detail)


def _for_nobody(rule: str) -> Rendered:
    detail = "This client's quota is nothing; the request will not pass later either."
    return _problem(_QUOTA, 429, detail, [rule], unsatisfiable=True)


@lru_cache
def _listed() -> Rendered:
    """Return the answer of a blocklist."""
    return _problem("", 403, "Requests from this address are not accepted.")


@lru_cache(_MAX_BLOCKS)
def _blocked(status: int, rule: str) -> Rendered:
    """Return the answer of a rule that blocks."""
    detail = "This service does not accept such a request now." if status >= 500 else "Such requests are not accepted."
    return _problem("", status, detail, [rule])


def _shut_out(policy: BanPolicy | None, *, ends: bool) -> Rendered:
    """Return the answer to a banned client, but for the moment."""
    detail = f"This client is shut out{' for now; Retry-After says when to try again.' if ends else '.'}"
    if policy is None:
        return _problem(_ABUSE, 403, detail)
    return _problem(_ABUSE, policy.status, detail, [policy.name])


def _over_quota(violated: Sequence[tuple[str, AnyLimit]], *, too_large: bool) -> Rendered:
    """Return the answer of limits that have no room, but for the moment."""
    allowed = " and ".join(limit.said for _, limit in violated)
    if too_large:
        detail = f"This request costs more than {allowed} ever allows; it will not pass later either."
    elif any(isinstance(limit, Concurrency) for _, limit in violated):
        detail = f"No more than {allowed}; try again when an earlier request has ended."
    else:
        detail = f"No more than {allowed}; Retry-After says when to try again."
    return _problem(_QUOTA, 429, detail, [name for name, _ in violated], unsatisfiable=too_large)
