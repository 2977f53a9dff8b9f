"""Names in ASGI scopes and messages that several files read."""

from __future__ import annotations

from typing import Final

from starlette.types import Scope

RECORD: Final = "slidegate"
"""The key of a request's `RequestLimits` in its ASGI scope."""
OFF: Final = "slidegate.off"
"""The key in the ASGI scope by which a middleware that is switched off says that it is there."""
STATUS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}
"""The messages that start a response, and the status of each where the message does not say."""


def is_preflight(scope: Scope) -> bool:
    """Tell whether a request is a CORS preflight (Fetch standard, section 3.2.2)."""
    if scope.get("method") != "OPTIONS":
        return False
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names
