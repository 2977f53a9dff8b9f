"""The responses to refused requests, and the events that report a refusal.

The responses are problem details (RFC 9457) of the types that draft-ietf-httpapi-ratelimit-headers-11 registers.
Everything in them but Retry-After is rendered once and cached.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from copy import copy
from functools import lru_cache
from http import HTTPStatus
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from ..core.arguments import check_takes
from ..core.concurrency import Concurrency
from ..core.decision import Decision, Reason
from ..core.errors import ConfigurationError, quoted
from ..core.events import Event
from ..core.limits import AnyLimit
from ..core.logs import escaped
from ..core.memo import remember
from ..core.readings import ceil_s
from .callbacks import request_of
from .exchange import CLOSED, Exchange
from .headers import Fields
from .hooks import RefusalReport

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

Refused: TypeAlias = Callable[[Any, Decision], Response | Awaitable[Response | None] | None]

_TYPES: Final = "https://iana.org/assignments/http-problem-types#"
_QUOTA: Final = "quota-exceeded"
_ABUSE: Final = "abnormal-usage-detected"
_CAPACITY: Final = "temporary-reduced-capacity"
_TITLES: Final = {
    _QUOTA: "Request cannot be satisfied as assigned quota has been exceeded",
    _ABUSE: "Request not satisfied due to detection of abnormal request pattern",
    _CAPACITY: "Request cannot be satisfied due to temporary server capacity constraints",
}
_MAX_RENDERED: Final = 1_024
"""The most answers that are cached for all middlewares."""
_MAX_METHOD: Final = 64
"""The most characters of a method in an event; all registered methods are shorter."""
_MAX_PATH: Final = 200
"""The most characters of a path in an event."""
_HANDSHAKE: Final = "WEBSOCKET"
POLICY_VIOLATION: Final = 1008
"""The close code of a connection whose client is banned or refused (RFC 6455, section 7.4.1)."""
TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket that exceeded a limit (IANA's registry of close codes)."""
_NORMAL: Final = 1000


class Answer(NamedTuple):
    """The default answer to a refused request, with problem details.

    Attributes:
        status: The status.
        detail: A sentence with the reason.
        body: The body.
        needed: The header fields that every answer to this request has.
        fields: These, and those of the body.
        headers: The needed ones as an `HTTPException` has them.
    """

    status: int
    detail: str
    body: bytes
    needed: Fields
    fields: Fields
    headers: dict[str, str]


class Refusals:
    """Counts, reports and answers the requests that a middleware refuses.

    Args:
        middleware: The middleware.
        on_refused: Builds the user's own answer.

    Raises:
        ConfigurationError: `on_refused` is not a function of request and decision.
    """

    def __init__(self, middleware: RateLimitMiddleware, on_refused: Refused | None) -> None:
        if on_refused is not None:
            check_takes("on_refused", on_refused, "request", "decision")
        self._engine = middleware.limiter.engine
        self._observers = middleware.limiter.engine.observers
        self.on_refused = on_refused
        self._signals = middleware.signals
        self._writer = middleware.header_writer
        self._answers: dict[object, Answer] = {}

    async def count(self, exchange: Exchange, scope: Scope, decision: Decision, *, at_endpoint: bool = False) -> Answer:
        """Strike for a refusal by a limit, and report the refusal.

        Args:
            exchange: The request in this middleware.
            scope: Its scope in the middleware or at the endpoint that refuses.
            decision: The refusal.
            at_endpoint: Whether an endpoint refuses. It may catch that and go on, so its refusal is reported when the
                request ends, if it still stands.

        Returns:
            The answer to the refusal, whose retry-after from now on includes a ban that it has caused.
        """
        signals = self._signals
        is_late = exchange.status and scope["type"] == "http"  # its connection breaks; a websocket ends regularly
        is_news = not is_late and exchange.decided.left is None
        if is_news and signals.on_refusal and decision.readings:
            bans = await signals.strike_for("refused", scope, exchange)
            lengths = [ban.until_us - ban.since_us for ban in bans if ban.until_us is not None]
            exchange.banned_us = decision.at_least_us = max([exchange.banned_us, *lengths])
        answer = self.answer(decision)
        if is_news and self._observers.wants("exceeded"):
            if at_endpoint:
                report = RefusalReport(self, scope, decision, answer.status)
                exchange.report = report
                exchange.hooks = [report, *exchange.hooks]
            else:
                self.report(exchange, scope, decision, answer.status)
        return answer

    async def send(
        self, decision: Decision, answer: Answer, exchange: Exchange, receive: Receive, send: Send | None = None
    ) -> None:
        """Answer a refused request.

        Args:
            decision: The refusal.
            answer: The answer to send unless `on_refused` builds another.
            exchange: The request in this middleware.
            receive: Its receive channel.
            send: The channel of an exception handler; None for a refusal by the middleware itself.
        """
        scope, fields = exchange.scope, [*answer.fields]
        if scope["type"] == "websocket":
            await _refuse_websocket(scope, send or exchange.send, answer)
            return
        if self.on_refused is not None and await self._is_answered(decision, answer, exchange, receive, send):
            return
        if send is None:  # no hook is for the status of this answer
            send, exchange.status = exchange.send_on, answer.status
            if decision.readings:
                fields = decision.checks.rendered.added_to(fields, decision)
        await send({"type": "http.response.start", "status": answer.status, "headers": fields})
        await send({"type": "http.response.body", "body": b"" if scope.get("method") == "HEAD" else answer.body})

    def answer(self, decision: Decision, *, is_listed: bool = True) -> Answer:
        """Return the answer to a refused request.

        Args:
            decision: The refusal.
            is_listed: Whether its limits stand in the header fields. Those of a limited function do not, and have the
                names of modules; so the answer does not name them.
        """
        if not decision.readings:
            return self._without_limit(decision)
        rendered = decision.checks.rendered or self._writer.render(decision.checks)
        waits_s = [-(-wait_us // 1_000_000) if wait_us > 0 else wait_us for _, _, _, wait_us in decision.readings]
        known = rendered, is_listed, decision.at_least_us, *waits_s
        answer = self._answers.get(known)
        if answer is None:
            limits = zip(rendered.names, rendered.limits, waits_s, strict=True)
            violated = [(name, limit) for name, limit, wait_s in limits if wait_s]
            names = tuple([name for name, _ in violated]) if is_listed else ()
            said = _too_much([limit for _, limit in violated], too_large=decision.reason is Reason.TOO_LARGE)
            made = _answer(_QUOTA, 429, said, decision.retry_after, names)
            answer = remember(self._answers, known, made)
        return answer

    def _without_limit(self, decision: Decision) -> Answer:
        """Return the answer to a refusal by a ban, a list or a rule, or because the store is unavailable."""
        wait_us, ban = decision.retry_after_us, decision.ban
        retry_after_s = None if wait_us is None else ceil_s(wait_us)
        if ban is not None:  # the answer contains only that fact and the end of the ban
            policy = self._signals.policies.get(ban.by) if ban.level else None  # one by hand may carry its name
            status, names = (403, ()) if policy is None else (policy.status, (policy.name,))
            detail = "This client is banned." if wait_us is None else "This client is temporarily banned."
            return _answer(_ABUSE, status, detail, retry_after_s, names)
        if decision.reason is Reason.UNAVAILABLE:
            detail = "This service cannot count requests now; Retry-After says when to try again."
            return _answer(_CAPACITY, 503, detail, retry_after_s or 0)
        if decision.status:  # of a rule
            detail = "This service does not accept such a request now."
            detail = detail if decision.status >= 500 else "Such requests are not accepted."
            return _answer("", decision.status, detail, retry_after_s, (decision.by,))
        return _answer("", 403, "Requests from this address are not accepted.", retry_after_s)

    def report(self, exchange: Exchange, scope: Scope, refusal: Decision, status: int) -> None:
        """Report a refused request to the observers, with the status of the default answer."""
        self._observers.report_exceeded(refusal, self._engine.now_us())
        if not self._observers.wants("refused"):
            return
        client = exchange.client.key
        state, ban, wait_us = refusal.binding, refusal.ban, refusal.retry_after_us
        label = label_of_refusal(refusal)
        rule, by = (label, "") if state is not None or refusal.status else ("", refusal.by)
        key = state.key if state is not None else client if ban is None else ban.key
        method = escaped(str(scope.get("method", _HANDSHAKE)), _MAX_METHOD)
        path = escaped(str(scope.get("path", "")), _MAX_PATH)
        why = " ".join(filter(None, (str(refusal.reason), f"by {by}" if by else "", f"under {rule!r}" if rule else "")))
        details = {
            "key": key,
            "client": client,
            "rule": rule,
            "limit": "" if state is None else str(state.limit),
            "reason": str(refusal.reason),
            "by": by,
            "route": exchange.middleware.route_labels.label(scope),
            "method": method,
            "path": path,
            "retry_after_s": None if wait_us is None else ceil_s(wait_us),
            "status": status if takes_answer(scope) else CLOSED,
        }
        self._observers.emit(Event("refused", f"{key} was refused: {why}, {method} {path}", details))

    async def _is_answered(
        self, decision: Decision, answer: Answer, exchange: Exchange, receive: Receive, send: Send | None
    ) -> bool:
        """Send the answer of `on_refused`; return False if there is none, or it failed before anything was sent."""
        if exchange.decided.left is not None:
            return False
        on_refused: Any = self.on_refused
        shown = copy(decision)  # lists and rules give one object to all whom they refuse
        shown.status = answer.status
        exchange.complete(answer.needed)
        try:
            made = on_refused(request_of(exchange.scope), shown)
            response = await made if isawaitable(made) else made
            if response is not None and not callable(response):
                expected = 'a Response such as JSONResponse({"error": "slow down"}, 429), or None'
                raise ConfigurationError(f"expected {expected}, not {quoted(response)}", "on_refused")
            if response is not None:
                await response(exchange.scope, receive, send or exchange.send)
        except Exception as error:
            where = label_of_refusal(decision)
            exchange.middleware.calls.report("on_refused", where, error, "the client gets the default answer")
            if exchange.status:
                raise
        return bool(exchange.status)


def label_of_refusal(refusal: Decision) -> str:
    """Return the label of the rule, list or policy that refuses, else the reason.

    There are no more labels than rules and lists, whatever paths clients invent.
    """
    state, ban = refusal.binding, refusal.ban
    if state is not None:
        return state.label
    if ban is not None and not ban.level:  # one by hand, which names its author and no policy
        return str(refusal.reason)
    return refusal.by or str(refusal.reason)


def takes_answer(scope: Scope) -> bool:
    """Return whether the server can send a full answer; not every server can answer a websocket handshake."""
    extensions = scope.get("extensions")
    return scope["type"] == "http" or (isinstance(extensions, Mapping) and "websocket.http.response" in extensions)


async def _refuse_websocket(scope: Scope, send: Send, answer: Answer) -> None:
    """Refuse a handshake with the full answer if the server can send one, else by a close, which clients see as 403."""
    if takes_answer(scope):
        await send({"type": "websocket.http.response.start", "status": answer.status, "headers": [*answer.fields]})
        await send({"type": "websocket.http.response.body", "body": answer.body})
    else:
        await close_websocket(send, POLICY_VIOLATION)


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
        await send({**message, "code": _NORMAL})


@lru_cache(_MAX_RENDERED)
def _answer(kind: str, status: int, detail: str, retry_after_s: int | None, violated: tuple[str, ...] = ()) -> Answer:
    """Render an answer. If `kind` is empty, the type is about:blank and the title is the status phrase."""
    phrase = next((known.phrase for known in HTTPStatus if known == status), "Request not accepted")
    problem: dict[str, object] = {
        "type": f"{_TYPES}{kind}" if kind else "about:blank",
        "title": _TITLES[kind] if kind else phrase,
        "status": status,
        "detail": detail,
    }
    if violated:
        problem["violated-policies"] = violated
    # Escape "<", so that the text cannot end a script element into which a page embeds it.
    body = json.dumps(problem).replace("<", "\\u003c").encode()
    headers = {"Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    needed = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    of_body = [(b"content-type", b"application/problem+json"), (b"content-length", b"%d" % len(body))]
    return Answer(status, detail, body, needed, [*of_body, *needed], headers)


def _too_much(exceeded: Sequence[AnyLimit], *, too_large: bool) -> str:
    """Return the sentence about exceeded limits."""
    allowed = " and ".join(limit.said for limit in exceeded)
    if too_large:
        return f"This request costs more than {allowed} ever allows; retrying will not help."
    if any(isinstance(limit, Concurrency) for limit in exceeded):
        return f"No more than {allowed}; try again when an earlier request has ended."
    return f"No more than {allowed}; Retry-After says when to try again."
