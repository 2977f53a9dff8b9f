"""The middleware that a configuration file describes, for commands that ask it and serve nothing."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ..asgi import nothing
from ..limiter import Limiter
from ..web.middleware import RateLimitMiddleware


def middleware_of(
    path: str | PathLike[str], limiter: Limiter | None = None, *, opens_store: bool = False
) -> RateLimitMiddleware:
    """Return the middleware of a configuration file; the store that the file names is not touched by default.

    Args:
        path: The file.
        limiter: The limiter in the place of the file's store; by default one in memory.
        opens_store: Whether the store of the file is opened instead.

    Raises:
        ConfigurationError: The file cannot be used.
        StoreError: Its store cannot be opened.
    """
    options: dict[str, Any] = {"on_exceeded": _ignore}
    if not opens_store:
        options |= {"limiter": limiter or Limiter(), "replace_store": True}
    return RateLimitMiddleware.from_file(nothing, path, **options).app


def _ignore(*_: Any) -> None:
    """Hear that a tracked rule was exceeded, which no middleware without requests tells."""
