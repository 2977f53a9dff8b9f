"""Findings about the processes of an application, and about a middleware that is built for each of its routes."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from operator import is_
from typing import Any, Final
from weakref import WeakSet

from ..limiter import Limiter
from ..web.policy import Finding
from ..web.routes import attribute_of

_WORKERS: Final = "WEB_CONCURRENCY"
"""The environment variable from which several servers read how many processes they start."""
_SEVERAL: Final = re.compile("0*([2-9]|[1-9][0-9]+)")
_OFTEN: Final = 3
_built: Final[WeakSet[Any]] = WeakSet()
"""The middlewares that live and count apart."""


def about_workers(limiter: Limiter) -> Iterator[Finding]:
    """Yield the finding about several processes that count apart: a setting or a server starts them."""
    count = _workers()
    if _SEVERAL.fullmatch(os.environ.get(_WORKERS, "")):
        count = int(os.environ[_WORKERS])
    if count > 1 and limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {count} workers a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def _workers() -> int:
    """Return how many processes the server has that runs this one; 0 if it has started none.

    It calls its workers with its configuration, which so is in the stack of the main thread.
    """
    workers = 0
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in ("uvicorn", "gunicorn", "hypercorn"):
            for value in [*frame.f_locals.values()]:
                config = attribute_of(value, "cfg", value)
                if not attribute_of(config, "should_reload"):  # it starts one
                    workers = max(workers, attribute_of(config, "workers", 0))
        if module in ("multiprocessing.process", "gunicorn.arbiter"):  # else it serves in its own process
            return workers
        frame = frame.f_back
    return 0


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
