"""Findings about the settings of a middleware and the processes of its application."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from ..limiter import Limiter
from .report import Finding

_WORKERS: Final = "WEB_CONCURRENCY"
"""The environment variable from which several servers read how many processes they start."""
_DIGITS: Final = re.compile(rb"[0-9]+")


def about_switch(off_by: str) -> Iterator[Finding]:
    """Yield the finding about a middleware that is switched off.

    Args:
        off_by: The setting that switches it off; empty if none does.
    """
    if off_by:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({off_by}): every request passes; if that is not intended, remove this setting",
        )


def about_configured_workers(limiter: Limiter) -> Iterator[Finding]:
    """Yield the finding about several processes that count apart, where a setting starts them."""
    yield from _about_workers(limiter, _configured_workers())


def about_running_workers(limiter: Limiter) -> Iterator[Finding]:
    """Yield the finding about several processes that count apart, where no setting says so, but they run."""
    if not _configured_workers():
        yield from _about_workers(limiter, _sibling_workers())


def _about_workers(limiter: Limiter, where: str) -> Iterator[Finding]:
    if where and limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def _configured_workers() -> str:
    """Return the environment variable that starts several processes for the application; empty if it does not."""
    count = os.environ.get(_WORKERS, "")
    if count.isascii() and count.isdigit() and int(count) > 1:
        return f"{_WORKERS}={count}"
    return ""


def _sibling_workers() -> str:
    """Return how many workers of this application this process sees beside it; empty if it sees none.

    Workers are children of one process with one command line, but for numbers in it. Only processes that a server has
    made are compared, so that programs which a shell or a test runner starts are no workers.
    """
    processes: Any = sys.modules.get("multiprocessing.process")  # imported in each process that it has started
    is_started = processes is not None and processes.parent_process() is not None
    if not is_started and "gunicorn.arbiter" not in sys.modules:
        return ""
    parent = os.getppid()
    try:
        own = _command_of(os.getpid())
        lists = [task.joinpath("children").read_bytes() for task in Path(f"/proc/{parent}/task").iterdir()]
    except OSError:  # another system than Linux
        return ""
    workers = 0
    for child in b" ".join(lists).split():
        with suppress(OSError):  # it has ended meanwhile
            if _command_of(int(child)) == own:
                workers += 1
    if workers < 2:
        return ""
    return f"{workers} workers below process {parent}"


def _command_of(process: int) -> bytes:
    """Return the command line of a process, without the numbers in it."""
    line = Path(f"/proc/{process}/cmdline").read_bytes()
    return _DIGITS.sub(b"", line)
