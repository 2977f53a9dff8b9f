"""Calls the user's functions.

A failing function neither bypasses limits nor breaks the response. If a key function fails, the request is counted
under the client's address; if a limits function fails, the fallback limits apply; if a cost function fails, the cost is
1; if a `count_if` fails, the request counts. If a `when` fails, limits and blocks apply and exemptions do not. If an
`on_refused` fails, the default answer is sent. A function that awaits what another request has cancelled has failed,
too. Each failure is logged with the rule's name, at most once a minute.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections import deque
from collections.abc import Callable
from operator import index
from typing import Any, Final, NoReturn, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ..core.errors import ConfigurationError
from ..core.logs import Throttle, escaped, logger, written
from ..limiter import check_cost
from ..limiter.aio import is_cancellation
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


def request_of(scope: Scope, at_endpoint: HTTPConnection | None = None) -> HTTPConnection:
    """Return the request for the user's functions: that at the endpoint, if it is there, else one without its body."""
    if at_endpoint is not None:
        return at_endpoint
    if scope["type"] == "http":
        return Request(scope, _no_body)
    return HTTPConnection(scope)


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
        if "body" not in message:
            return message
        return {**message, "body": bytes(message["body"])}


def with_body(request: Request, max_body: int) -> Request:
    """Return a copy of a request for a user's function, which may read the body in any way.

    This changes the request itself, too: from now on it receives first what the function has read.

    Args:
        request: The request, with whose body the endpoint goes on.
        max_body: How many bytes the function may read.
    """
    own = vars(request)
    channel = _ReadTwice(request.receive, max_body)
    own["_receive"] = channel.receive_again
    shown = Request(request.scope, channel.receive)
    for name in _ALREADY_READ:
        if name in own:
            vars(shown)[name] = own[name]
    return shown


class UserCallbacks:
    """Calls the user's functions and throttles the logging of their failures."""

    def __init__(self) -> None:
        self._throttle = Throttle()

    async def truth_of(self, rule: Rule, request: HTTPConnection, client_key: str) -> bool | None:
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
        """Return the checked result of a user's function, sync or async; a failure is logged and has a default result.

        Args:
            rule: The rule with the function.
            given: What the function is called with: the status for `count_if`, else the request. A function at an
                endpoint may read the body of the request, and the endpoint reads it again.
            what: The name of the option, which is also a key of `_CONSEQUENCES`.
            function: The function.
            read: Checks and converts what the function returns; it raises if that is invalid.
            default: What is returned if `function` or `read` raises.
        """
        try:
            # A status has no body. It comes first because `isinstance` of `Request` takes longer.
            if not isinstance(given, int) and isinstance(given, Request):
                given = with_body(given, rule.max_body)
            answer: Any = function(given)
            if hasattr(answer, "__await__"):
                answer = await answer
            return read(answer)
        except (Exception, CancelledError) as error:
            if is_cancellation(error):
                raise
            self.report(what, rule.label, error, _CONSEQUENCES[what])
            return default

    def report(self, what: str, where: str, error: BaseException, consequence: str) -> None:
        """Log a failure of the user's function, at most once a minute for each function and rule."""
        suppressed = self._throttle.left_out((what, where), time.monotonic())
        if suppressed is None:
            return
        trace: BaseException | None = error
        if isinstance(error, ConfigurationError):
            trace = None  # its message says it all
        said = "%s function of rule %r failed, so %s (suppressed=%d): %s"
        logger.error(said, what, where, consequence, suppressed, escaped(written(error)), exc_info=trace)


def whole_cost(units: Any) -> int:
    """Return a checked cost; other whole numbers, such as numpy's, are converted to `int`."""
    if hasattr(type(units), "__index__"):
        units = index(units)
    return check_cost(units)
