"""Findings about the processes of an application, and about a middleware that is built for each of its routes."""

from __future__ import annotations

import gc
import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from operator import is_
from pathlib import Path
from typing import Any, Final
from weakref import WeakSet

from ..limiter import Limiter
from ..web.finding import Finding
from ..web.routes import attribute_of

_WORKERS: Final = "WEB_CONCURRENCY"
"""The environment variable from which several servers read how many processes they start."""
_SEVERAL: Final = re.compile("0*([2-9]|[1-9][0-9]+)")
_DIGITS: Final = re.compile(rb"[0-9]+")
_OFTEN: Final = 3
_built: Final[WeakSet[Any]] = WeakSet()
"""The middlewares that live and count apart."""


def about_workers(limiter: Limiter) -> Iterator[Finding]:
    """Yield the finding about several processes that count apart: a setting starts them, or they run."""
    if not limiter.engine.per_process:
        return
    where = _sibling_workers()
    count = os.environ.get(_WORKERS, "")
    if _SEVERAL.fullmatch(count):
        where = f"{_WORKERS}={count}"
    if where:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def _sibling_workers() -> str:
    """Return how many workers of this application this process sees beside it; empty if it sees none.

    Workers are children of one process with one command line, but for numbers in it. Only processes that a server has
    made are compared, so that programs which a shell or a test runner starts are no workers. Other systems than Linux
    do not show them.
    """
    processes: Any = sys.modules.get("multiprocessing.process")  # imported in each process that it has started
    is_started = processes is not None and processes.parent_process() is not None
    if not is_started and "gunicorn.arbiter" not in sys.modules:
        return ""
    parent, command = os.getppid(), _command_of(os.getpid())
    workers = 0
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in children.read_text("ascii").split():
            workers += _command_of(int(child)) == command
    if workers < 2:
        return ""
    return f"{workers} workers below process {parent}"


def _command_of(process: int) -> bytes:
    """Return the command line of a process, without the numbers in it; empty if it has ended."""
    with suppress(OSError):
        return _DIGITS.sub(b"", Path(f"/proc/{process}/cmdline").read_bytes())
    return b""


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
    return sum(all(map(is_, other.given, middleware.given)) for other in _built)
