"""Exceptions that a middleware sees: which of them the server answers with 500, and what answers the others.

An application of Starlette has two layers for exceptions. The inner one has handlers for classes and statuses. It is
within the middlewares of the application, and around those of its routes and mounts. The outer one is around all of
them: it answers 500, unless the user has a handler for `Exception`.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Scope
from starlette.websockets import WebSocketDisconnect

from .routes import attribute_of

FAILED: Final = 500
"""The status that a server sends if the application raises before it answers."""
_KNOWN_HANDLERS: Final = ("starlette.middleware.exceptions", "fastapi.exception_handlers", "slidegate.web.endpoints")
"""The modules whose handlers answer an `HTTPException` with its status."""


def is_failure(error: BaseException | None) -> bool:
    """Return whether a server answers an exception with 500, which it does not when the client has disconnected."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))


def handler_of(error: BaseException, handlers: Any) -> Any:
    """Return the exception handler that answers an exception, as Starlette finds it; None if there is none.

    Args:
        handlers: The handlers around the middleware; None if nothing but the server is.
    """
    if handlers is None:
        return None
    by_class, by_status = handlers
    if isinstance(error, HTTPException) and error.status_code in by_status:
        return by_status[error.status_code]
    for kind in type(error).__mro__:
        if kind in by_class:
            return by_class[kind]
    return None


def answered_status(error: BaseException, handler: Any, scope: Scope) -> int:
    """Return the status that an exception is answered with; 0 if it is a function of the user's that decides it.

    Args:
        handler: What answers it around a middleware of a route; None if the server does.
    """
    if handler is None:
        handlers: Any = attribute_of(scope.get("app"), "exception_handlers") or ()
        if scope["type"] == "http" and (Exception in handlers or FAILED in handlers):  # no websocket reaches them
            return 0
        return FAILED
    if isinstance(error, HTTPException) and getattr(handler, "__module__", "") in _KNOWN_HANDLERS:
        return error.status_code
    return 0
