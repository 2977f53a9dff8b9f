"""OpenAPI: which limits each operation of a FastAPI application has, and what a refused request gets.

All this is asked of the middlewares and read from the routes. The stack of an application is only built when its
document is made, and not kept, so that middlewares can still be added.
"""

from __future__ import annotations

from typing import Any

from ..core.errors import ConfigurationError, quoted
from .document import LimitedDocument
from .operations import applications

__all__ = ["document_limits"]


def document_limits(app: Any, *, response: Any = None, names: bool = False, keys: bool = False) -> None:
    """Add the limits of each operation to the OpenAPI document of a FastAPI application.

    An operation to which a limit applies gets a 429, and ``x-ratelimit`` with these limits as they are configured. It
    gets a 403 if a ban policy or a blocklist may refuse it, and a 503 if ``on_error="deny"`` may. Responses that the
    application describes itself stay as they are. Rules that block, shadow rules and honeypots are not published.

    Call it when the application is complete: FastAPI applications that are mounted by then are documented too, each
    in its own document. A document is made once; ``app.openapi_schema = None`` makes it anew, for example after a
    configuration file has changed.

    Args:
        app: The application.
        response: The pydantic model of what `on_refused`, or an exception handler of your own, answers. Without it
            such a response has no body in the document.
        names: Whether to publish the names of rules.
        keys: Whether to publish what limits count by: ``address``, ``header:x-api-key``.

    Raises:
        ConfigurationError: `app` is no FastAPI application, and contains none.
    """
    found = [*applications(app)]
    if not found:
        raise ConfigurationError(f"document_limits: expected a FastAPI application, not {quoted(app)}", "app")
    for around in found:
        application = around[-1].app
        generate = application.openapi
        if isinstance(generate, LimitedDocument):
            # Of two calls, for it and for one in which it is mounted, the latter knows what is around it.
            around = max(around, generate.around, key=len)
            generate = generate.generate
        application.openapi = LimitedDocument(around, generate, response=response, names=names, keys=keys)
