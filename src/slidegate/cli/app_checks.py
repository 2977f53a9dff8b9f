"""What ``slidegate check`` asks about a whole application: its middlewares and their stores.

The findings of each middleware by itself, which a start logs too, are in `web.checks`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import Any, Final

from starlette.routing import Mount

from ..core.errors import StoreError
from ..core.logs import written
from ..limiter import Limiter
from ..web.checks import Finding
from ..web.middleware import RateLimitMiddleware
from ..web.routes import DEPTH, layers, router_of, routes_of

CODES: Final = {
    "SG201": "the application has no middleware",
    "SG202": "the store cannot be reached",
}
"""The codes of findings that only `slidegate check` has, with their subjects."""


def middlewares_in(app: Any, depth: int = 0) -> list[RateLimitMiddleware]:
    """Return the middlewares of an application: around it, around its routers and routes, and in mounted ones."""
    found: list[Any] = list(layers(app))
    router = router_of(app)
    for layer in [*found]:
        if hasattr(layer, "build_middleware_stack") and layer.middleware_stack is None:
            # As its first request would do: the lifespan of the application around does not reach a mounted one.
            layer.middleware_stack = layer.build_middleware_stack()
        found += layers(getattr(layer, "middleware_stack", None))
    found += layers(getattr(router, "middleware_stack", None))
    middlewares = [layer for layer in found if isinstance(layer, RateLimitMiddleware)]
    for route in (routes_of(app) or ()) if depth < DEPTH else ():
        below = getattr(route, "app", None)
        if isinstance(route, Mount) or below is not None:
            middlewares += middlewares_in(below, depth + 1)
    return list(dict.fromkeys(middlewares))


def about_application(middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about an application that was started: those of its middlewares."""
    if not middlewares:
        yield Finding(
            "SG201",
            "the application has no RateLimitMiddleware, so nothing is limited; write "
            'app.add_middleware(RateLimitMiddleware, limits="100/minute")',
        )
    for middleware in middlewares:
        yield from middleware.findings


async def about_store(limiter: Limiter, name: str) -> AsyncIterator[Finding]:
    """Yield the finding that a store does not answer; nothing is counted."""
    if limiter.engine.per_process or limiter.store.shared_stats is None:
        return
    try:
        answer = limiter.store.shared_stats.time()
        if isawaitable(answer):
            await answer
    except StoreError as error:
        yield Finding(
            "SG202", f"{name} does not answer: {written(error, str)}; is the address right, and the server up?"
        )


def about_directory(path: Path) -> Iterator[Finding]:
    """Yield the finding that the directory of a store is not there and cannot be made."""
    parent = next(above for above in (path, *path.parents) if above.exists() or above == above.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "this user may not write there" if parent.is_dir() else "it is no directory"
        yield Finding(
            "SG202", f"the store's directory {str(path)!r} cannot be made in {str(parent)!r}: {why}; choose another one"
        )
