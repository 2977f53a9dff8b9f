"""The answers to refused requests, and the events that report a refusal.

The answers are problem details (RFC 9457) of the types that draft-ietf-httpapi-ratelimit-headers-11 registers.
They are rendered once and remembered: those of limits by what is exceeded and the seconds until there is room, the
others by what they say.
"""

from __future__ import annotations

import json
from asyncio import CancelledError
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from http.client import responses
from inspect import isawaitable
from typing import Any, Final, NamedTuple, TypeAlias

from starlette.exceptions import WebSocketException
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..core.decision import Decision, Reason
from ..core.events import Event
from ..core.limits import AnyLimit, Concurrency
from ..core.logs import escaped
from ..core.memo import remember
from ..limiter.aio import is_cancellation
from ..limiter.engine import Engine
from .callbacks import UserCallbacks, request_in
from .headers import Fields, Headers, Rendered
from .plan import LEFT
from .signals import Signals
from .visit import CLOSED, STARTS, Visit

OnRefused: TypeAlias = Callable[[Any, Decision], Response | Awaitable[Response | None] | None]

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_ABUSE: Final = "abnormal-usage-detected"
_CAPACITY: Final = "temporary-reduced-capacity"
_TITLES: Final = {
    _QUOTA: "Request cannot be satisfied as assigned quota has been exceeded",
    _ABUSE: "Request not satisfied due to detection of abnormal request pattern",
    _CAPACITY: "Request cannot be satisfied due to temporary server capacity constraints",
}
_MAX_TEXT: Final = 200
"""The most characters of a method or a path in an event."""
POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client is banned or refused (RFC 6455, section 7.4.1)."""
TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket that exceeded a limit (IANA's registry of close codes)."""
_TYPES_OF_MESSAGES: Final = {
    "http": ("http.response.start", "http.response.body"),
    "websocket": ("websocket.http.response.start", "websocket.http.response.body"),
}
"""The types of the two messages of an answer, by the type of a scope."""


class Answer(NamedTuple):
    """The default answer to a refused request, with problem details. Many requests share one, so nothing changes it.

    Attributes:
        detail: A sentence with the reason.
        needed: The header fields that every answer to this request has.
        fields: These, and those of the body.
        headers: The needed ones as an `HTTPException` has them.
        rendered: What its fields of limits have in common with others; None if it names no limits.
    """

    status: int
    detail: str
    body: bytes
    needed: Fields
    fields: Fields
    headers: dict[str, str]
    rendered: Rendered | None = None


class Refusals:
    """Reports and answers the requests that a middleware, or a limit at an endpoint within it, refuses.

    Args:
        engine: The engine of the limiter.
        signals: The signals of ban policies, whose statuses the answers to bans have.
        headers: Writes header fields.
        calls: Calls the user's functions.
        on_refused: Builds the user's own answer.

    Attributes:
        wants: Returns whether an observer wants events of a kind; with "exceeded", whether one wants refusals reported.
    """

    def __init__(
        self,
        engine: Engine,
        signals: Signals,
        headers: Headers,
        calls: UserCallbacks,
        on_refused: OnRefused | None,
    ) -> None:
        self._engine = engine
        self._signals = signals
        self._headers = headers
        self._calls = calls
        self.on_refused = on_refused
        self.wants = engine.observers.wants
        self._answers: dict[object, Answer] = {}

    # -- answers -------------------------------------------------------------------------------------------------------

    async def refuse(self, visit: Visit, decision: Decision) -> None:
        """Strike for, report and answer a request that its middleware refuses.

        Args:
            visit: The request in the middleware.
        """
        scope = visit.scope
        if self._engine.reservations.by_window:
            visit.explain(decision)
        if self._signals.by_refusal:
            await self._signals.strike_for_refusal(visit, decision, scope)
        if self.wants("exceeded"):
            self.report(visit, decision, scope)
        answer = self.answer(decision)
        if self.on_refused is not None or scope["type"] == "websocket":
            visit.answer = answer
            await self._send(visit, decision, answer, scope, visit.receive, visit.send)
            return
        start, body = _messages(scope, answer)
        visit.status = answer.status  # no effect depends on the status of this answer
        if answer.rendered is not None:
            start = answer.rendered.added_to(start, decision)
        await visit.send_on(start)
        await visit.send_on(body)

    async def answer_at_endpoint(
        self, visit: Visit, decision: Decision, scope: Scope, receive: Receive, send: Send, *, names_limits: bool
    ) -> None:
        """Answer a request that a limit at its endpoint refuses, through the channels of an exception handler.

        Args:
            visit: The request in the middleware, which adds the fields to what the handler sends within it.
            scope: The scope of the handler.
            receive: Its receive channel.
            send: Its send channel.
            names_limits: See `answer`.
        """
        if visit.status == STARTS["websocket.accept"]:
            close = close_of(decision, is_accepted=True)
            await close_websocket(send, close.code, close.reason)
            return
        answer = self.answer(decision, names_limits=names_limits)
        if visit.scope is not None:
            await self._send(visit, decision, answer, scope, receive, send)
            return
        # The handler is around the middleware, which is one of a route, and over.
        ended, visit.send_on, visit.status = visit.send_on, send, 0
        try:
            await self._send(visit, decision, answer, scope, receive, visit.send)
        finally:
            visit.send_on = ended

    async def _send(
        self, visit: Visit, decision: Decision, answer: Answer, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Send the answer of `on_refused`; the default one if it makes none, or fails before anything is sent."""
        if not takes_answer(scope):  # clients see a close as 403
            await close_websocket(send, POLICY_VIOLATION)
            return
        if self.on_refused is not None and decision is not LEFT and scope["type"] == "http":
            refusal = copy(decision)  # all refusals by a list or a rule are one object
            refusal.status = answer.status
            try:
                response: Any = self.on_refused(request_in(scope), refusal)
                if isawaitable(response):
                    response = await response
                if response is not None:
                    await response(scope, receive, send)
            except (Exception, CancelledError) as error:
                if is_cancellation(error):
                    raise
                self._calls.report("on_refused", _label_of(decision), error)
                if visit.status:
                    raise
            if visit.status:
                return
        for message in _messages(scope, answer):
            await send(message)

    def answer(self, decision: Decision, *, names_limits: bool = True) -> Answer:
        """Return the default answer to a refused request.

        Args:
            names_limits: Whether its limits stand in the header fields. Those of a limited function do not, and have
                the names of modules; so the answer does not name them.
        """
        if not decision.readings:
            return self._without_limit(decision)
        rendered = self._headers.render(decision.checks)
        waits_s: list[int] = []
        for _, _, _, wait_us in decision.readings:
            if wait_us > 0:
                waits_s.append(-(-wait_us // 1_000_000))  # `ceil_s`, without a call
            else:
                waits_s.append(wait_us)  # 0 for room, below for a permit or for ever
        memo_key = rendered, names_limits, decision.at_least_us, *waits_s
        answer = self._answers.get(memo_key)
        if answer is None:
            limits = zip(rendered.names, rendered.limits, waits_s, strict=True)
            violated = [(name, limit) for name, limit, wait_s in limits if wait_s]
            names: tuple[str, ...] = ()
            if names_limits:
                names = tuple([name for name, _ in violated])
            detail = _too_much([limit for _, limit in violated], too_large=decision.reason is Reason.TOO_LARGE)
            answer = _answer(_QUOTA, 429, detail, decision.retry_after, names)._replace(rendered=rendered)
            remember(self._answers, memo_key, answer)
        return answer

    def _without_limit(self, decision: Decision) -> Answer:
        """Return the answer to a refusal by a ban, a list or a rule, or because the store is unavailable."""
        retry_after_s = decision.retry_after
        ban = decision.ban
        if ban is not None:  # the answer contains only that fact and the end of the ban
            detail = "This client is temporarily banned."
            if retry_after_s is None:
                detail = "This client is banned."
            policy = self._signals.ban_policies.get(ban.by)
            if policy is None:
                return _answer(_ABUSE, 403, detail, retry_after_s)
            return _answer(_ABUSE, policy.status, detail, retry_after_s, (policy.name,))
        if decision.reason is Reason.UNAVAILABLE:
            detail = "This service cannot count requests now; Retry-After says when to try again."
            return _answer(_CAPACITY, 503, detail, retry_after_s or 0)
        if not decision.status:
            return _answer("", 403, "Requests from this address are not accepted.", retry_after_s)
        detail = "Such requests are not accepted."  # by a rule
        if decision.status >= 500:
            detail = "This service does not accept such a request now."
        return _answer("", decision.status, detail, retry_after_s, (decision.by,))

    # -- reports -------------------------------------------------------------------------------------------------------

    def report(self, visit: Visit, refusal: Decision, scope: Scope) -> None:
        """Report a refused request to the observers.

        Args:
            visit: The request in the middleware.
            scope: The scope in the middleware, or at the endpoint that refuses.
        """
        if refusal is LEFT:
            return
        self._engine.observers.report_exceeded(refusal, self._engine.monotonic_us())
        if not self.wants("refused"):
            return
        key = client = visit.client.key
        rule, limit, by = "", "", refusal.by
        state = refusal.binding
        if state is not None:
            key, rule, limit, by = state.key, state.label, str(state.limit), ""
        elif refusal.ban is not None:
            key = refusal.ban.key
        elif refusal.status:  # by a rule that blocks
            rule, by = by, ""
        status = CLOSED
        if visit.status:  # of a websocket that was accepted before
            status = visit.status
        elif takes_answer(scope):
            status = self.answer(refusal).status
        method = escaped(str(scope.get("method", "WEBSOCKET")), _MAX_TEXT)
        path = escaped(str(scope.get("path", "")), _MAX_TEXT)
        details: dict[str, object] = {
            "key": key,
            "client": client,
            "rule": rule,
            "limit": limit,
            "reason": str(refusal.reason),
            "by": by,
            "route": visit.policy.routes.label(scope),
            "method": method,
            "path": path,
            "retry_after_s": refusal.retry_after,
            "status": status,
        }
        why = f"{key} was refused: {refusal.reason}"
        if by:
            why += f" by {by}"
        if rule:
            why += f" under {rule!r}"
        self._engine.emit(Event("refused", f"{why}, {method} {path}", details))


def _messages(scope: Scope, answer: Answer) -> tuple[Message, Message]:
    """Return the start and the body of an answer to a request, or to a handshake."""
    start, end = _TYPES_OF_MESSAGES[scope["type"]]
    body = answer.body
    if scope.get("method") == "HEAD":
        body = b""
    return {"type": start, "status": answer.status, "headers": [*answer.fields]}, {"type": end, "body": body}


def _label_of(refusal: Decision) -> str:
    """Return the label of the limit that refuses, else why a request is refused."""
    if refusal.binding is None:
        return str(refusal.reason)
    return refusal.binding.label


def takes_answer(scope: Scope) -> bool:
    """Return whether the server can send a full answer; not every server can answer a websocket handshake."""
    extensions = scope.get("extensions")
    return scope["type"] == "http" or (isinstance(extensions, Mapping) and "websocket.http.response" in extensions)


def close_of(refusal: Decision, *, is_accepted: bool) -> WebSocketException:
    """Return what closes a refused websocket whose client gets no answer."""
    if refusal.reason is Reason.BANNED:
        return WebSocketException(POLICY_VIOLATION, "banned")
    code = POLICY_VIOLATION
    if is_accepted:
        code = TRY_AGAIN_LATER
    return WebSocketException(code, "Too many requests.")


async def close_websocket(send: Send, code: int, reason: str = "") -> None:
    """Close a websocket, with code 1000 if the server rejects the given one.

    daphne accepts only 1000 and 3000 to 4999. An `OSError` means that the client has disconnected.
    """
    message: Message = {"type": "websocket.close", "code": code, "reason": reason}
    try:
        await send(message)
    except OSError:
        raise
    except Exception:
        await send({**message, "code": 1000})


@lru_cache(1_024)  # for all middlewares
def _answer(kind: str, status: int, detail: str, retry_after_s: int | None, violated: tuple[str, ...] = ()) -> Answer:
    """Render an answer. If `kind` is empty, the type is about:blank and the title is the status phrase."""
    problem: dict[str, object] = {
        "type": "about:blank",
        "title": responses.get(status, "Request not accepted"),
        "status": status,
        "detail": detail,
    }
    if kind:
        problem["type"] = f"{_TYPES}{kind}"
        problem["title"] = _TITLES[kind]
    if violated:
        problem["violated-policies"] = violated
    # Escape "<", so that the text cannot end a script element into which a page embeds it.
    body = json.dumps(problem).replace("<", "\\u003c").encode()
    headers = {"Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    needed = tuple([(name.lower().encode(), value.encode()) for name, value in headers.items()])
    of_body = (b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))
    return Answer(status, detail, body, needed, (*of_body, *needed), headers)


def _too_much(exceeded: Sequence[AnyLimit], *, too_large: bool) -> str:
    """Return the sentence about exceeded limits."""
    allowed = " and ".join(limit.wording for limit in exceeded)
    if too_large:
        return f"This request costs more than {allowed} ever allows; retrying will not help."
    if any(isinstance(limit, Concurrency) for limit in exceeded):
        return f"No more than {allowed}; try again when an earlier request has ended."
    return f"No more than {allowed}; Retry-After says when to try again."
