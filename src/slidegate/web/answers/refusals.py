"""Answers to refused requests.

The answers are problem details (RFC 9457) of the types that draft-ietf-httpapi-ratelimit-headers-11 registers. The
parts that do not depend on the moment are made once.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import lru_cache
from http import HTTPStatus
from inspect import isawaitable
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ...core.arguments import check_takes
from ...core.bans.policy import Answer, BanPolicy
from ...core.barred import RuleBlock
from ...core.decision import Decision, Reason
from ...core.errors import ConfigurationError
from ...core.limits import AnyLimit, Concurrency
from ...core.memo import remember
from ...core.ring import NEVER, OPEN
from ..callbacks import UserCallbacks, request_of
from .foreign_fields import Fields, lowered, sendable
from .header_fields import Buckets, asked_buckets

Refused: TypeAlias = Callable[[HTTPConnection, Decision], Response | Awaitable[Response]]
_Asked: TypeAlias = tuple[Reason | None, Buckets, tuple[bool, ...]]
"""The content of a refusal besides the wait: the reason, the buckets, and which of their limits had no room. None is
LIMITED, the reason of nearly all: CPython 3.11 takes a call to hash a member."""

# A tuple without names: making one with names takes a sixth of a whole refusal.
Rendered: TypeAlias = tuple[int, bytes, Fields, Answer]
"""Status, body and header fields of an answer, and how it is given."""

_LIMITED: Final = Reason.LIMITED
_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_NOT_STORED: Final = (b"cache-control", b"no-store")
_MOST_BLOCKS: Final = 1_024
_EMPTY: Final = ((b"content-length", b"0"), _NOT_STORED)


class Refusals:
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
                raise ConfigurationError(f"on_refused: expected a function of request and decision, not {on_refused!r}")
            check_takes("on_refused", on_refused, "request", "decision")
        self._on_refused = on_refused
        self._calls = calls
        self._known: dict[_Asked, Rendered] = {}
        self._policies = dict(policies)
        self._policies.update((policy.prefix.name, policy) for policy in policies.values() if policy.prefix is not None)
        self._shut: dict[tuple[str, bool], Rendered] = {}

    async def send(self, scope: Scope, receive: Receive, send: Send, decision: Decision) -> None:
        """Answer a request that was refused."""
        status, body, fields, answer = self.answer(decision, scope)
        if scope["type"] == "websocket":
            await refuse_websocket(scope, send, status, body, fields)
            return
        own = self._on_refused if answer != "drop" else None
        if own is not None and await self._send_own(own, scope, receive, send, decision, fields):
            return
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def answer(self, decision: Decision, scope: Scope) -> Rendered:
        """Return the answer to a refused request."""
        readings = decision.readings
        if not readings and decision.reason is Reason.BANNED:
            return self._to_banned(decision, scope)
        if not readings and decision.reason is Reason.UNAVAILABLE:
            return (*reduced_capacity("cannot count requests now", decision.retry_after_us or 0), "problem")
        if not readings and decision.reason is Reason.NOBODY:
            return _for_nobody(decision.by)
        if isinstance(decision, RuleBlock):
            return _blocked(decision.status, decision.by)
        lacking: tuple[bool, ...] = (True,)
        if len(readings) == 1:
            wait_us = readings[0][3]
        else:
            waits = [reading[3] for reading in readings]
            wait_us = min(waits) if NEVER in waits or OPEN in waits else max(waits, default=NEVER)
            lacking = tuple(map(bool, waits))
        reason = decision.reason
        asked = None if reason is _LIMITED else reason, asked_buckets(decision), lacking
        rendered = self._known.get(asked) or self._render(asked, decision)
        return rendered if wait_us < 0 else _later(rendered, wait_us)

    async def _send_own(
        self, on_refused: Refused, scope: Scope, receive: Receive, send: Send, decision: Decision, fields: Fields
    ) -> bool:
        """Send the user's own answer; False if there is none and nothing was sent."""
        started = False
        rule = refused_by(decision)

        def watch(message: Message) -> Awaitable[None]:
            nonlocal started
            if message["type"] == "http.response.start":
                message = self._checked(message, rule)
                message = {**message, "headers": _completed(message["headers"], fields)}
            started = True
            return send(message)

        try:
            answer = on_refused(request_of(scope), decision)
            response = await answer if isawaitable(answer) else answer
            await response(scope, receive, watch)
        except Exception as error:
            self._calls.report("on_refused", rule, error, "the client gets the default answer")
            if started:
                raise
        return started

    def _checked(self, message: Message, rule: str) -> Message:
        """Leave out of the user's answer what no server can send; one bad field would cost the client its answer."""
        status = message.get("status")
        if not isinstance(status, int) or isinstance(status, bool) or not 200 <= status <= 999:
            raise ConfigurationError(f"on_refused: expected a status such as 429, not {status!r}")
        good, bad = sendable(message.get("headers", ()))
        for field in bad:
            error = ConfigurationError(f"a header field cannot be sent: {field!r}")
            self._calls.report("on_refused", rule, error, "the field is left out")
        return {**message, "headers": good}

    def _render(self, asked: _Asked, decision: Decision) -> Rendered:
        violated = [(state.name, state.limit) for state in decision.violated]
        return remember(self._known, asked, _written(*_problem(decision.reason, violated)))

    def _to_banned(self, decision: Decision, scope: Scope) -> Rendered:
        """Return the answer to a banned client, which says no more than that and until when."""
        ban = decision.ban
        # By hand anybody may ban in any name, also in that of a policy.
        policy = self._policies.get(ban.by) if ban is not None and ban.rung else None
        if policy is not None and policy.answer == "drop":
            # Other versions of HTTP have no such field, and no connection of one request to close.
            close = [(b"connection", b"close")] if scope.get("http_version", "1.1").startswith("1") else []
            return policy.status, b"", [*_EMPTY, *close], "drop"
        wait_us = decision.retry_after_us
        known = "" if policy is None else policy.name, wait_us is not None
        rendered = self._shut.get(known)
        if rendered is None:
            rendered = self._shut[known] = _written(*_ban_problem(policy, ends=wait_us is not None))
        if policy is not None:
            rendered = (*rendered[:3], policy.answer)
        return rendered if wait_us is None else _later(rendered, wait_us)


def refused_by(decision: Decision) -> str:
    """Say what refuses: the limit, else the reason."""
    violated = decision.binding
    return violated.name if violated is not None else decision.by or str(decision.reason)


def _later(rendered: Rendered, wait_us: int) -> Rendered:
    status, body, fields, answer = rendered
    return status, body, [*fields, (b"retry-after", b"%d" % -(-wait_us // 1_000_000))], answer


def _written(status: int, problem: Mapping[str, object]) -> Rendered:
    # "<" cannot end a script element then, wherever the text is pasted.
    body = json.dumps(problem).replace("<", "\\u003c").encode()
    length = (b"content-length", b"%d" % len(body))
    return status, body, [(b"content-type", b"application/problem+json"), length, _NOT_STORED], "problem"


def reduced_capacity(what: str, wait_us: int) -> tuple[int, bytes, Fields]:
    """Return status, body and header fields of a 503 that says what the service does: "cannot count requests now"."""
    status, body, fields, _ = _later(_unavailable(what), wait_us)
    return status, body, fields


@lru_cache
def _unavailable(what: str) -> Rendered:
    problem = {
        "type": f"{_TYPES}temporary-reduced-capacity",
        "title": "Request cannot be satisfied due to temporary server capacity constraints",
        "status": 503,
        "detail": f"This service {what}; Retry-After says when to try again.",
    }
    return _written(503, problem)


def _for_nobody(rule: str) -> Rendered:
    problem: dict[str, object] = {
        "type": f"{_TYPES}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "This client's quota is nothing; the request will not pass later either.",
        "unsatisfiable": True,
        "violated-policies": [rule],
    }
    return _written(429, problem)


@lru_cache(_MOST_BLOCKS)
def _blocked(status: int, rule: str) -> Rendered:
    """Return the answer of a rule that blocks."""
    detail = "This service does not accept such a request now." if status >= 500 else "Such requests are not accepted."
    try:
        title = HTTPStatus(status).phrase
    except ValueError:
        title = "Request not accepted"
    problem = {"type": "about:blank", "title": title, "status": status, "detail": detail}
    return _written(status, {**problem, "violated-policies": [rule]})


def _ban_problem(policy: BanPolicy | None, *, ends: bool) -> tuple[int, dict[str, object]]:
    problem: dict[str, object] = {
        "type": f"{_TYPES}abnormal-usage-detected",
        "title": "Request not satisfied due to detection of abnormal request pattern",
        "status": 403 if policy is None else policy.status,
        "detail": "This client is shut out for now; Retry-After says when to try again."
        if ends
        else "This client is shut out.",
    }
    if policy is not None:
        problem["violated-policies"] = [policy.name]
    return 403 if policy is None else policy.status, problem


def _problem(reason: Reason, violated: Sequence[tuple[str, AnyLimit]]) -> tuple[int, dict[str, object]]:
    if reason is Reason.BLOCKED:
        detail = "Requests from this address are not accepted."
        return 403, {"type": "about:blank", "title": "Forbidden", "status": 403, "detail": detail}
    allowed = " and ".join(limit.said for _, limit in violated)
    problem: dict[str, object] = {
        "type": f"{_TYPES}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
    }
    if reason is Reason.TOO_LARGE:
        problem["detail"] = f"This request costs more than {allowed} ever allows; it will not pass later either."
        problem["unsatisfiable"] = True
    elif any(isinstance(limit, Concurrency) for _, limit in violated):
        problem["detail"] = f"No more than {allowed}; try again when an earlier request has ended."
    else:
        problem["detail"] = f"No more than {allowed}; Retry-After says when to try again."
    problem["violated-policies"] = [name for name, _ in violated]
    return 429, problem


def _completed(headers: Fields, fields: Fields) -> Fields:
    """Add to the user's answer what a refusal must have, unless it is there."""
    wanted = {b"cache-control", b"retry-after"} - {lowered(name) for name, _ in headers}
    return [*headers, *((name, value) for name, value in fields if name in wanted)]


async def refuse_websocket(scope: Scope, send: Send, status: int, body: bytes, fields: Fields) -> None:
    """Refuse a handshake: with the full answer where the server can send one, else by a close, which it makes a 403."""
    if "websocket.http.response" in (scope.get("extensions") or {}):
        await send({"type": "websocket.http.response.start", "status": status, "headers": fields})
        await send({"type": "websocket.http.response.body", "body": body})
    else:
        await send({"type": "websocket.close", "code": 1008})
