"""The event loop that runs in this thread, if one does."""

from __future__ import annotations

import asyncio
import sys

import anyio


def on_asyncio() -> bool:
    """Return whether a loop of asyncio runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def on_loop() -> bool:
    """Return whether an event loop runs in this thread, one of asyncio or of trio."""
    if on_asyncio():
        return True
    if "trio" not in sys.modules:  # to ask anyio takes longer than a hit
        return False
    try:
        anyio.get_cancelled_exc_class()
    except RuntimeError:
        return False
    return True


async def let_others_run() -> None:
    """Let other tasks run, and be cancelled, if an event loop runs in this thread."""
    if on_loop():
        from anyio.lowlevel import checkpoint  # few processes need it, and its import takes a while

        await checkpoint()
