"""Calls the user's functions.

A failing function neither bypasses limits nor breaks the response. If a key function fails, the request is counted
under the client's address; if a limits function fails, the fallback limits apply; if a cost function fails, the cost is
`cost_max`, or 1 without it; if a `count_if` fails, the request counts. If a `when` fails, limits, blocks and strikes
apply and exemptions do not. If an `on_refused` fails, the default answer is sent. A function that awaits what another
request has cancelled has failed, too. Each failure is logged with the rule's name, at most once a minute.
"""

from __future__ import annotations

import time
from asyncio import CancelledError
from collections.abc import Callable
from operator import index
from typing import Any, Final, NoReturn, TypeVar

from starlette.requests import HTTPConnection, Request
from starlette.types import Message, Receive, Scope

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..core.logs import Throttle, escaped, logger, safe_text
from ..limiter import Limiter, check_cost
from ..limiter.aio import is_cancellation
from .clients import KEY
from .keys import KeyCondition
from .rules import Rule

_T = TypeVar("_T")

_CONSEQUENCES: Final = {
    "limits": "its fallback limits apply",
    "key": "the request is counted under the client's address",
    "cost": "the request costs cost_max, or 1 without it",
    "count_if": "the request is counted",
    "when": "limits, blocks and strikes apply to the request, and exemptions do not",
    "fair": "the request waits with those of unknown tenants",
    "on_refused": "the client gets the default answer",
}


async def _no_body() -> NoReturn:
    raise RuntimeError(
        "the request has no body here, because it is decided before its body is read; use headers, path or query, "
        "or limit at the endpoint with RateLimit(key=...)"
    )


class BodyReader:
    """The receive channel of a request whose body functions at its endpoint may read, and then the endpoint.

    Args:
        receive: The channel behind it.

    Attributes:
        is_within_body: Whether more of the body may follow what was received last.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.is_within_body = False

    async def __call__(self) -> Message:
        """Receive a message."""
        self.is_within_body = True  # also if the read is cancelled
        message = await self._receive()
        self.is_within_body = message["type"] != "http.request" or message.get("more_body", False)
        return message


def begin_body(visit: Any) -> None:
    """Follow what functions at an endpoint read of the body of a request.

    Args:
        visit: The request in its middleware.
    """
    if visit.scope["type"] == "http" and not isinstance(visit.receive_from, BodyReader):
        visit.receive_from = BodyReader(visit.receive_from)


def request_in(scope: Scope) -> HTTPConnection:
    """Return a request without its body."""
    if scope["type"] == "http":
        return Request(scope, _no_body)
    return HTTPConnection(scope)


def _is_within_body(argument: object) -> bool:
    """Return whether a function at an endpoint got a request as its argument, and has read a part of the body."""
    if not isinstance(argument, Request) or argument.receive is _no_body:
        return False
    channel = argument.scope[KEY].active().receive_from
    return isinstance(channel, BodyReader) and channel.is_within_body


class UserCallbacks:
    """Calls the user's functions and throttles the logging of their failures.

    Args:
        limiter: Makes keys of the texts that functions return.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._throttle = Throttle()

    async def truth_of(self, rule: Rule | BanPolicy, request: HTTPConnection, client_key: str) -> bool | None:
        """Return whether the condition of a rule or a ban policy is true; True without one, None if it fails."""
        when: Any = rule.when
        if when is None:
            return True
        if isinstance(when, KeyCondition):
            return when.is_true(request.scope, client_key)
        return await self.ask(rule, request, "when", when, bool, None)

    async def ask(
        self,
        rule: Rule | BanPolicy,
        argument: object,
        what: str,
        function: Callable[..., object],
        read: Callable[[Any], _T],
        default: _T,
    ) -> _T:
        """Return the checked result of a user's function, sync or async; a failure is logged and has a default result.

        Args:
            rule: The rule or the ban policy with the function.
            argument: What the function is called with: the status for `count_if`, else the request.
            what: The name of the option, which is also a key of `_CONSEQUENCES`.
            read: Checks and converts what the function returns; it raises if that is invalid.
            default: What is returned if `function` or `read` raises.

        Raises:
            Exception: That of a function at an endpoint which has read a part of the body. The endpoint would get the
                rest, so what the client sends would be counted as one body and served as another.
        """
        try:
            answer: Any = function(argument)
            if hasattr(answer, "__await__"):
                answer = await answer
            return read(answer)
        except (Exception, CancelledError) as error:
            if is_cancellation(error) or _is_within_body(argument):
                raise
            self.report(what, rule.label, error)
            return default

    def checked_key(self, key: Any) -> str | None:
        """Return the key that a function has returned; None and an empty text stay as they are."""
        if key is None or key == "":
            return key  # type: ignore[no-any-return]
        return self._limiter.key_for(key)

    def report(self, what: str, where: str, error: BaseException) -> None:
        """Log a failure of the user's function, at most once a minute for each function and rule."""
        left_out = self._throttle.left_out((what, where), time.monotonic())
        if left_out is None:
            return
        trace: BaseException | None = error
        if isinstance(error, ConfigurationError):
            trace = None  # its message says it all
        text = "%s function of %r failed, so %s%s: %s"
        logger.error(text, what, where, _CONSEQUENCES[what], left_out, escaped(safe_text(error)), exc_info=trace)


def whole_cost(units: Any) -> int:
    """Return a checked cost; other whole numbers, such as numpy's, are converted to `int`."""
    if hasattr(type(units), "__index__"):
        units = index(units)
    return check_cost(units)
