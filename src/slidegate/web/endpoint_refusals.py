"""What becomes of a request for which a limit at its endpoint has no room: it waits for its turn, or is refused.

To refuse it, the limit raises an `EndpointRefusal`. A handler of the user's may answer it; where only the default of
the framework would, problem details do, because the limit puts a handler of its own into the table of the application
that it is in. The middleware answers what nobody has answered, and adds to every answer what one to a refused request
has to have.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

import anyio
from starlette._exception_handler import wrap_app_handling_exceptions
from starlette.exceptions import HTTPException, WebSocketException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..core.bans.ban import BanSubject
from ..core.decision import Decision
from ..core.errors import RateLimitExceeded, SlidegateError
from ..limiter import Limiter
from .exchange import SCOPE_KEY, Exchange
from .responses import NEEDED, Answer, Refusals

_HANDLERS: Final = "starlette.exception_handlers"
TRY_AGAIN_LATER: Final = 1013
"""The close code of a websocket that went beyond a limit (IANA's registry of close codes)."""
TOO_MANY: Final = "Too many requests."
_RECEIVE: Final = "_receive"
"""The attribute by which Starlette's requests and websockets read their messages."""


class EndpointRefusal(RateLimitExceeded, HTTPException):
    """The refusal of a limit at an endpoint, for exception handlers.

    Args:
        decision: The refusal.
        answer: Its answer, where nobody gives another.
        scope: The scope as the endpoint sees it.
        refusals: Sends the answer; that of the middleware nearest above.

    Attributes:
        answer: The same.
        refusals: The same.
        needed: The header fields that every answer to the request has.
        handlers: The exception handlers of the application that the endpoint is in.
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
    """The client has left while its request waited at an endpoint: nobody is answered.

    Args:
        scope: The scope of the request.
    """

    def __init__(self, scope: Scope) -> None:
        _handlers(scope)[ClientLeft] = _answer_nobody


async def wait_at_endpoint(
    request: HTTPConnection, decision: Decision, limiter: Limiter, subjects: Sequence[BanSubject]
) -> Decision:
    """Wait for room in spite of a refusal, and return the last decision.

    Messages that come meanwhile are there for whoever reads the request afterwards.

    Raises:
        ClientLeft: The client left meanwhile.
    """
    exchange: Exchange = request.scope[SCOPE_KEY]
    channel = exchange.read_ahead(vars(request).get(_RECEIVE, _nothing))
    if _RECEIVE in vars(request):
        vars(request)[_RECEIVE] = channel
    last = await exchange.wait(channel, decision, limiter, subjects)
    if last is None:
        raise ClientLeft(request.scope)
    return last


async def _nothing() -> Message:
    """Stand for the messages of a request that was made without them."""
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
    """Have problem details answer where only the default of the framework would.

    The routes of an application have taken its table before they call the endpoint: it can be changed, not replaced.
    """
    handlers = _handlers(scope)
    handler = next((handlers[kind] for kind in EndpointRefusal.__mro__ if kind in handlers), None)
    if getattr(handler, "__func__", handler) is not ExceptionMiddleware.http_exception and not _is_fastapis(handler):
        return
    # FastAPI's own exception is a subclass of Starlette's, so Starlette does not find its handler for ours.
    fastapis = getattr(sys.modules.get("fastapi.exceptions"), "HTTPException", None)
    handlers[EndpointRefusal] = handlers.get(fastapis, _answer)


def _handlers(scope: Scope) -> dict[Any, Any]:
    """Return the exception handlers of the application that calls an endpoint, as it keeps them."""
    handlers: dict[Any, Any] = scope.get(_HANDLERS, ({},))[0]
    return handlers


def _is_fastapis(handler: object) -> bool:
    module = sys.modules.get("fastapi.exception_handlers")
    return module is not None and handler is getattr(module, "http_exception_handler", None)


async def _answer(connection: HTTPConnection, refusal: EndpointRefusal) -> ASGIApp:
    """Answer with problem details, as a handler. It is async, or each refusal would take a thread."""
    return partial(refusal.refusals.send, refusal.decision, refusal.answer)


async def _answer_nobody(connection: HTTPConnection, error: ClientLeft) -> None:
    """Do nothing, as a handler."""


async def answer_unanswered(
    error: Exception | None, exchange: Exchange, scope: Scope, receive: Receive, send: Send
) -> bool:
    """Answer a request that a limit at an endpoint has refused, if nobody has.

    Args:
        error: The exception that has reached the middleware, if one has.
        exchange: The request.
        scope: Its scope.
        receive: Its receive channel.
        send: Sends to the client, through the middleware.

    Returns:
        Whether all is done; an exception that is more than the refusal is to be raised on.
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
    """Ask the exception handlers of the application in which a limit has refused, if it has one for that."""
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
    """Return whether an exception is one of some kinds, or a group of nothing else."""
    if isinstance(error, BaseExceptionGroup):
        return error.split(kinds)[1] is None
    return isinstance(error, kinds)
