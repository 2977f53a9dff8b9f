"""Findings about the processes of an application, and about a middleware that is built for each of its routes."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from operator import is_
from typing import Any, Final
from weakref import WeakSet

from ..limiter import Limiter
from ..web.finding import Finding
from ..web.routes import attribute_of

_WORKERS: Final = "WEB_CONCURRENCY"
"""The environment variable from which several servers read how many processes they start."""
_SEVERAL: Final = re.compile("0*([2-9]|[1-9][0-9]+)")
_OFTEN: Final = 3
_built: Final[WeakSet[Any]] = WeakSet()
"""The middlewares that live and count apart."""


def about_workers(limiter: Limiter) -> Iterator[Finding]:
    """Yield the finding about several processes that count apart: a setting starts them."""
    if not limiter.engine.per_process:
        return
    count = os.environ.get(_WORKERS, "")
    if _SEVERAL.fullmatch(count):
        yield Finding(
            "SG103",
            f"limits are per process: with {_WORKERS}={count} a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def about_building(middleware: Any) -> Iterator[Finding]:
    """Yield the finding about a middleware that a framework builds for each of its routes.

    Args:
        middleware: A `RateLimitMiddleware` that counts apart from others: its limiter is its own, or its limits have no
            name. The same objects as options mean that one line of code is run again. Starlette builds a middleware
            once for each line, and lines may share a text.
    """
    if attribute_of(middleware.app, "__module__", "").partition(".")[0] in ("starlette", "fastapi"):
        return
    _built.add(middleware)
    if _count_alike(middleware) == _OFTEN:
        gc.collect()  # some may be unused, but in cycles
    if _count_alike(middleware) == _OFTEN:
        yield Finding(
            "SG131",
            "this middleware is built again and again, and counts apart each time, so a client gets each limit as many "
            "times; a framework may build it for each route: wrap the whole application, or make one limiter = "
            'Limiter() and write RateLimitMiddleware(..., limiter=limiter) with rules that have names: name="api"',
        )


def _count_alike(middleware: Any) -> int:
    """Return how many living middlewares have the same objects as options."""
    return sum(all(map(is_, other.options, middleware.options)) for other in _built)
