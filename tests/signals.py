"""Signal handlers, which run in the middle of what a thread does."""

import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from types import FrameType


class Interrupt(Exception):
    """What a signal handler raises, such as a timeout by SIGALRM."""


def interrupt() -> None:
    raise Interrupt


def is_interrupted(
    act: Callable[[], object], number: int, handle: Callable[[], object] = interrupt, where: str = "slidegate/stores/"
) -> bool:
    """Act, and handle a signal at one of the moments at which the interpreter may do so; return whether there is one.

    Such a moment is where a function begins, or where one that is written in C has returned.
    """
    moments = count()

    def look(frame: FrameType, event: str, _: object) -> None:
        is_ours = where in frame.f_code.co_filename
        if is_ours and event in ("call", "c_return") and next(moments) == number:
            handle()

    try:
        sys.setprofile(look)
        with suppress(Interrupt):
            act()
    finally:
        sys.setprofile(None)
    return next(moments) > number
