"""The one `send` of a request: every message of an answer leaves here, at the outermost middleware.

The first message gets the header fields (`headers.py`), and the figures are told how an answer begins and ends
(`stats.py`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from starlette.types import Message, Scope, Send

from ..core.decision import Decision
from .headers import Field, HeaderWriter, completed
from .request import STATUS, RequestLimits
from .routes import RouteIndex
from .stats import RequestStats

_BODIES: Final = frozenset(
    {
        "http.response.body",
        "http.response.pathsend",
        "http.response.zerocopysend",
        "websocket.http.response.body",
    }
)
"""The messages that are a piece of a body."""


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
            route = self._routes.label_of(scope)
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
