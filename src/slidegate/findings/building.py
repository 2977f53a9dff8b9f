"""The finding about a middleware that a framework builds again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from operator import is_
from typing import Final, Protocol
from weakref import WeakSet

from ..web.routes import attribute_of
from .report import Finding

_OFTEN: Final = 3


class Built(Protocol):
    """A middleware that was built."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def given(self) -> tuple[object, ...]:
        """Its options as they were given."""


_built: Final[WeakSet[Built]] = WeakSet()
"""The middlewares that live and count apart; their options may refer to them, so nothing else here holds those."""


def about_building(middleware: Built) -> Iterator[Finding]:
    """Yield the finding about a middleware that a framework builds for each of its routes.

    Args:
        middleware: A middleware that counts apart from others: its limiter is its own, or its limits have no name. The
            same objects as options mean that one line of code is run again. Starlette builds a middleware once for each
            line, and lines may share a text.
    """
    if attribute_of(middleware.app, "__module__", "").partition(".")[0] in ("starlette", "fastapi"):
        return
    _built.add(middleware)
    if _count_alike(middleware.given) == _OFTEN:
        gc.collect()  # some may be gone, and parts of cycles
    if _count_alike(middleware.given) == _OFTEN:
        yield Finding(
            "SG131",
            "this middleware is built again and again, and counts apart each time, so a client gets each limit as many "
            "times; a framework may build it for each route: wrap the whole application, or make one limiter = "
            'Limiter() and write RateLimitMiddleware(..., limiter=limiter) with rules that have names: name="api"',
        )


def _count_alike(options: tuple[object, ...]) -> int:
    """Return how many living middlewares have the same objects as options."""
    alike = 0
    for other in list(_built):
        if all(map(is_, other.given, options)):
            alike += 1
    return alike
