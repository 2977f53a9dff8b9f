"""Calls the user's functions.

A failing function neither bypasses limits nor breaks the response. If a key function fails, the request is counted
under the client's address; if a limits function fails, the fallback limits apply; if a cost function fails, the cost is
1; if a `count_if` fails, the request counts. If a `when` fails, limits and blocks apply and exemptions do not. If an
`on_refused` fails, the default answer is sent. Each failure is logged with the rule's name, at most once a minute.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from operator import index
from typing import Any, Final, NoReturn, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ..core.errors import ConfigurationError
from ..core.logs import Throttle, escaped, logger, written
from ..limiter import check_cost
from .keys import KeyCondition
from .rules import Rule

_T = TypeVar("_T")

_CONSEQUENCES: Final = {
    "limits": "its fallback limits apply",
    "key": "the request is counted under the client's address",
    "cost": "the request costs 1",
    "count_if": "the request is counted",
    "when": "the rule limits or blocks the request, or does not exempt it",
    "fair": "the request waits with those of unknown tenants",
}


_ALREADY_READ: Final = ("_body", "_form", "_json", "_stream_consumed")
"""Where Starlette keeps what was read of a request."""


async def _no_body() -> NoReturn:
    raise RuntimeError(
        "the request has no body here, because it is decided before its body is read; use headers, path or query, "
        "or limit at the endpoint with RateLimit(key=...)"
    )


def request_of(scope: Scope) -> HTTPConnection:
    """Return the request for the user's functions; its body cannot be read."""
    return Request(scope, _no_body) if scope["type"] == "http" else HTTPConnection(scope)


class _ReadTwice:
    """The messages of a request's body, for a function of the user's and then again for the endpoint.

    Args:
        receive: The receive channel of the request.
        max_body: How many bytes the function may read.
    """

    def __init__(self, receive: Receive, max_body: int) -> None:
        self._receive = receive
        self._left = max_body
        self._kept: deque[Message] = deque()

    async def receive(self) -> Message:
        """Receive for the function."""
        message = await self._receive()
        self._keep(message)
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            raise RuntimeError(
                "the body is larger than a function may read before the endpoint; write RateLimit(..., "
                'max_body="10MB"), or use headers, path or query'
            )
        return message

    def _keep(self, message: Message) -> None:
        """Keep a message; those of the body as one, because a client may send it in parts of a byte, or of none."""
        if message["type"] == "http.request":
            body = bytearray()
            if self._kept and self._kept[-1]["type"] == "http.request":
                body = self._kept.pop()["body"]
            body += message.get("body", b"")
            message = {**message, "body": body}
        self._kept.append(message)

    async def receive_again(self) -> Message:
        """Receive for the endpoint, whatever the function has read."""
        if not self._kept:
            return await self._receive()
        message = self._kept.popleft()
        return {**message, "body": bytes(message["body"])} if "body" in message else message


def with_body(request: object, max_body: int) -> object:
    """Return a request for functions at an endpoint, which may read its body in any way, and the endpoint again."""
    if isinstance(request, int) or not isinstance(request, Request):  # a status is found out faster
        return request
    own = vars(request)
    channel = _ReadTwice(request.receive, max_body)
    own["_receive"] = channel.receive_again
    shown = Request(request.scope, channel.receive)
    vars(shown).update({name: own[name] for name in _ALREADY_READ if name in own})
    return shown


class UserCallbacks:
    """Calls the user's functions and throttles the logging of their failures."""

    def __init__(self) -> None:
        self._throttle = Throttle()

    async def is_true(self, rule: Rule, request: HTTPConnection, client_key: str) -> bool | None:
        """Return whether the condition of a rule is true; True without a condition, None if the condition fails."""
        when = rule.matching.when
        if when is None:
            return True
        if isinstance(when, KeyCondition):
            return when.is_true(request.scope, client_key)
        return await self.ask(rule, request, "when", when, bool, None)

    async def ask(
        self,
        rule: Rule,
        given: object,
        what: str,
        function: Callable[..., object],
        read: Callable[[Any], _T],
        default: _T,
    ) -> _T:
        """Return the result of a user's function, sync or async.

        Args:
            rule: Its rule.
            given: Its argument: a status, or the request, whose body it may read at an endpoint.
            what: The name of the option, for the log.
            function: The function.
            read: Converts its result, and raises if the result is invalid.
            default: The result if either of them fails.
        """
        try:
            answer = function(with_body(given, rule.max_body))
            return read(await answer if hasattr(answer, "__await__") else answer)
        except Exception as error:
            self.report(what, rule.label, error, _CONSEQUENCES[what])
            return default

    def report(self, what: str, where: str, error: Exception, consequence: str) -> None:
        """Log a failure of the user's function, at most once a minute for each function and rule."""
        suppressed = self._throttle.left_out((what, where), time.monotonic())
        if suppressed is None:
            return
        trace = None if isinstance(error, ConfigurationError) else error
        said = "%s function of rule %r failed, so %s (suppressed=%d): %s"
        logger.error(said, what, where, consequence, suppressed, escaped(written(error)), exc_info=trace)


def whole_cost(units: Any) -> int:
    """Return a checked cost; other whole numbers, such as numpy's, are converted to `int`."""
    return check_cost(index(units) if hasattr(type(units), "__index__") else units)
