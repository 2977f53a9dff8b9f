"""``python3 dev.py example chat``: plays a visit, then serves the chat."""

from __future__ import annotations

import logging
import secrets
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.types import ASGIApp

from examples.serving import run
from slidegate import Limiter

from .app import make_app
from .visit import visit

TOKEN = secrets.token_urlsafe(32)


@asynccontextmanager
async def site() -> AsyncIterator[ASGIApp]:
    """Open the chat with fresh counts."""
    async with Limiter() as limiter:
        yield make_app(limiter, TOKEN)


def is_news(record: logging.LogRecord) -> bool:
    """Tell whether a line of uvicorn's log says something.

    It calls each refused handshake an error of the application, though the client has got the whole answer.
    """
    return record.getMessage() != "ASGI callable returned without completing handshake."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the example; return its exit code."""
    hints = [
        "Open {url}/ in two windows, and write six messages at once.",
        f"Moderators look at {{url}}/moderation/ with the token {TOKEN}",
    ]
    logging.getLogger("uvicorn.error").addFilter(is_news)
    return run("chat", "A chat whose joins, sockets and messages are limited.", visit, site, hints, arguments)


if __name__ == "__main__":
    sys.exit(main())
