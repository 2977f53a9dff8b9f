"""What tests change for all limiters of this process, existing and future; public in `slidegate.testing`."""

from __future__ import annotations

from typing import Final

from ..stores.system_clock import SYSTEM
from .callers import living
from .engine import Engine, all_engines


def reset() -> None:
    """Clear what has been counted; see `Engine.forget`."""
    for engine in living(all_engines):
        engine.forget()


def switch(on: bool) -> None:
    """Turn all limits and middlewares on or off.

    While they are off, middlewares pass all requests and limiters exempt all keys, without a query to a store.
    """
    Engine.counting = on
    for engine in living(all_engines):
        engine.rebuild()
        engine.callers.restart()


use_clock: Final = SYSTEM.use
"""Makes all limiters use a clock, or with None that of the system."""
