"""Handles requests that exceed a limit at their endpoint: they wait for their turn, or are refused.

To refuse a request, the limit raises an `EndpointRefusal`. An exception handler of the user may answer it. If only the
framework's default handler would, the limit adds its own handler, which answers with problem details, to the
application's handler table. The middleware answers refusals that no handler has answered, and adds the required header
fields to every answer.
"""

from __future__ import annotations

import sys
from functools import partial
from typing import Any, Final

import anyio
from starlette._exception_handler import wrap_app_handling_exceptions
from starlette.exceptions import HTTPException, WebSocketException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..core.decision import Decision
from ..core.errors import RateLimitExceeded, SlidegateError
from .exchange import SCOPE_KEY, Exchange
from .responses import NEEDED, Answer, Refusals

_HANDLERS: Final = "starlette.exception_handlers"
TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket that exceeded a limit (IANA's registry of close codes)."""
TOO_MANY: Final = "Too many requests."
_RECEIVE: Final = "_receive"
"""The attribute through which Starlette's requests and websockets read their messages."""


class EndpointRefusal(RateLimitExceeded, HTTPException):
    """The refusal of a limit at an endpoint, for exception handlers.

    Args:
        decision: The refusal.
        answer: The answer to send unless an exception handler builds another.
        scope: The scope that the endpoint received.
        refusals: Sends the answer; those of the nearest outer middleware.

    Attributes:
        answer: The default answer.
        refusals: Sends the answer.
        needed: The header fields that every answer to the request must have.
        handlers: The exception handlers of the application that contains the endpoint.
    """

    def __init__(self, decision: Decision, answer: Answer, scope: Scope, refusals: Refusals) -> None:
        RateLimitExceeded.__init__(self, decision)
        self.answer = answer
        self.refusals = refusals
        self.needed = [field for field in answer[3] if field[0] in NEEDED]
        self.handlers: Any = scope.get(_HANDLERS) or ({}, {})
        fields = {name.decode().title(): value.decode() for name, value in self.needed}
        status, detail, *_ = answer
        HTTPException.__init__(self, status, detail, fields)


class ClientLeft(SlidegateError, ClientDisconnect):
    """The client has disconnected while its request waited at an endpoint, so no answer is sent.

    Args:
        scope: The scope of the request.
    """

    def __init__(self, scope: Scope) -> None:
        _handlers(scope)[ClientLeft] = _answer_nobody


def channel_at_endpoint(request: HTTPConnection) -> Receive:
    """Return the channel of a request that may have to wait; messages that arrive meanwhile reach its later readers."""
    exchange: Exchange = request.scope[SCOPE_KEY]
    channel = exchange.read_ahead(vars(request).get(_RECEIVE, _nothing))
    if _RECEIVE in vars(request):
        vars(request)[_RECEIVE] = channel
    return channel


async def _nothing() -> Message:
    """Substitute the receive channel of a request that was created without one."""
    await anyio.sleep_forever()
    raise AssertionError  # sleep_forever never returns


async def refuse(connection: HTTPConnection, decision: Decision) -> Exception:
    """Refuse a request for a limit at an endpoint, and return the exception for it."""
    scope = connection.scope
    exchange: Exchange = scope[SCOPE_KEY]
    decision = await exchange.strike(scope, decision)
    answer = exchange.refuse(scope, decision)
    if exchange.status and scope["type"] == "websocket":
        return WebSocketException(TRY_AGAIN_LATER, TOO_MANY)
    refusal = EndpointRefusal(decision, answer, scope, exchange.parts.refusals)
    if not exchange.status:
        exchange.raised = refusal
        _put_handler(scope)
    return refusal


def _put_handler(scope: Scope) -> None:
    """Make problem details answer the refusal if only the framework's default handler would.

    Starlette has already read the application's handler table when it calls the endpoint, so change it in place.
    """
    handlers = _handlers(scope)
    handler = next((handlers[kind] for kind in EndpointRefusal.__mro__ if kind in handlers), None)
    if getattr(handler, "__func__", handler) is not ExceptionMiddleware.http_exception and not _is_fastapis(handler):
        return
    # FastAPI's own exception is a subclass of Starlette's, so Starlette does not find its handler for ours.
    fastapis = getattr(sys.modules.get("fastapi.exceptions"), "HTTPException", None)
    handlers[EndpointRefusal] = handlers.get(fastapis, _answer)


def _handlers(scope: Scope) -> dict[Any, Any]:
    """Return the mutable exception handler table of the application that calls an endpoint."""
    handlers: dict[Any, Any] = scope.get(_HANDLERS, ({},))[0]
    return handlers


def _is_fastapis(handler: object) -> bool:
    module = sys.modules.get("fastapi.exception_handlers")
    return module is not None and handler is getattr(module, "http_exception_handler", None)


async def _answer(connection: HTTPConnection, refusal: EndpointRefusal) -> ASGIApp:
    """Exception handler: answer with problem details. Async, because Starlette runs sync handlers in threads."""
    return partial(refusal.refusals.send, refusal.decision, refusal.answer)


async def _answer_nobody(connection: HTTPConnection, error: ClientLeft) -> None:
    """Exception handler: do nothing."""


async def answer_unanswered(
    error: Exception | None, exchange: Exchange, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Answer a request that a limit at an endpoint has refused, unless it was answered already.

    Args:
        error: The exception that has reached the middleware; None if there is none.
        exchange: The request.
        scope: Its scope.
        receive: Its receive channel.
        send: Sends to the client, through the middleware.

    Returns:
        Whether the exception is handled. If not, the caller must raise it again: it is more than the refusal.
    """
    refusal = exchange.raised
    if refusal is None or exchange.status:
        return _is_only(error, ClientLeft)
    refused = error is None or _is_only(error, (EndpointRefusal, ClientLeft))
    bug: Exception | None = None
    if refused:
        try:
            await _ask_handlers(refusal, scope, receive, send)
        except Exception as failed:
            bug = failed
    if not exchange.status:
        await refusal.refusals.send(refusal.decision, refusal.answer, scope, receive, send)
    if bug is not None:
        raise bug
    return refused


async def _ask_handlers(refusal: EndpointRefusal, scope: Scope, receive: Receive, send: Send) -> None:
    """Let the exception handlers of the application that contains the endpoint answer, if one applies."""
    there = {**scope, _HANDLERS: refusal.handlers}
    connection = Request(there, receive, send) if scope["type"] == "http" else WebSocket(there, receive, send)

    async def refused(scope: Scope, receive: Receive, send: Send) -> None:
        raise refusal

    try:
        await wrap_app_handling_exceptions(refused, connection)(there, receive, send)
    except EndpointRefusal as unanswered:
        if unanswered is not refusal:
            raise


def _is_only(error: BaseException | None, kinds: type[Exception] | tuple[type[Exception], ...]) -> bool:
    """Return whether an exception is of the given types, or a group of only such exceptions."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1] is None
    return isinstance(error, kinds)
