"""Whether the server of this process has been told to stop.

A server that stops waits for the answers that are under way, and ASGI has no word for "hurry": an answer without an end
holds it up for as long as the server is patient. uvicorn notes the signal in the object whose method handles it, so
reading the handler is enough, and nothing of the server has to be replaced. Under other servers a stream ends when its
time is up, and is opened anew by the browser if there is somebody to open it.
"""

from __future__ import annotations

import signal
from typing import Final

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def server_is_stopping() -> bool:
    """Return whether a signal handler of this process belongs to a server that is about to exit."""
    owners = (getattr(signal.getsignal(number), "__self__", None) for number in _SIGNALS)
    return any(getattr(owner, "should_exit", False) is True for owner in owners)
