"""The finding about limiters in memory that requests make for themselves, so that no request is over a limit."""

from __future__ import annotations

import sys
from collections import deque
from functools import cache
from types import FrameType
from typing import Final
from weakref import ref

from ..core.logs import logger

_OFTEN: Final = 3
_latest: Final[deque[ref[object]]] = deque(maxlen=_OFTEN)
"""The latest limiters in memory that were made while a request was served."""


def note(limiter: object) -> None:
    """Note a new limiter in memory. Those that stay, though a first request has made them, are no finding."""
    if not _is_within_request(sys._getframe(2)):
        return
    if len(_latest) == _OFTEN and not any(reference() for reference in _latest):
        _report()
    _latest.append(ref(limiter))


@cache
def _report() -> None:
    """Log the finding, once."""
    logger.warning(
        "SG142: a limiter in memory is made for each request, and forgotten with it, so its limits refuse nobody; make "
        "one for the application, outside of its functions: limiter = Limiter()"
    )


def _is_within_request(frame: FrameType | None) -> bool:
    """Return whether code is called by an application for a request, and not by a middleware that is being built."""
    while frame is not None:
        if frame.f_globals.get("__name__") == "slidegate.web.policy":
            return False
        if "scope" in frame.f_code.co_varnames:
            scope = frame.f_locals.get("scope")
            return isinstance(scope, dict) and scope.get("type") in ("http", "websocket")
        frame = frame.f_back
    return False
