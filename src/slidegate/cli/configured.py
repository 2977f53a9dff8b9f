"""The middleware that a configuration file describes, for commands that ask it and serve nothing."""

from __future__ import annotations

from os import PathLike
from typing import Any

from starlette.types import Receive, Scope, Send

from ..limiter import Limiter
from ..web.middleware import RateLimitMiddleware


def middleware_of(path: str | PathLike[str], **options: Any) -> RateLimitMiddleware:
    """Return the middleware of a configuration file; the store that the file names is not touched.

    Args:
        path: The file.
        options: What `RateLimitMiddleware.from_file` takes; a `limiter` in the place of one in memory, for example.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    options = {"limiter": Limiter(), "replace_store": True, "on_exceeded": _ignore, **options}
    return RateLimitMiddleware.from_file(nothing, path, **options).app


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand where an application would."""


def _ignore(*_: Any) -> None:
    """Hear that a tracked rule was exceeded, which no middleware without requests tells."""
