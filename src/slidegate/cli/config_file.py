"""The middleware of a configuration file, whose application is never called."""

from __future__ import annotations

from os import PathLike
from typing import Any

from ..core.errors import ConfigurationError
from ..web.middleware import RateLimitMiddleware
from .output import failed


def middleware_of(path: str | PathLike[str], store: str = "memory://") -> RateLimitMiddleware:
    """Return the middleware of a configuration file.

    Args:
        path: The file.
        store: The address of a store to use instead of the file's; an empty string for the file's.

    Raises:
        click.ClickException: The file is invalid.
        StoreError: The store cannot be opened.
    """
    try:
        return RateLimitMiddleware.from_file(_no_app, path, store=store, on_exceeded=_ignore).app
    except ConfigurationError as error:
        raise failed(error) from error


async def _no_app(*_: Any) -> None:
    """A placeholder for the application."""


def _ignore(*_: Any) -> None:
    """A placeholder for the callback of a rule with ``on_exceeded``."""
