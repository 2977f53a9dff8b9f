"""Notices that a server is told to end while requests wait for room, because its end waits for them.

Servers end by a signal, SIGTERM or SIGINT. ASGI tells an application only when the last request is answered. So while
a request waits in the main thread, which runs the handlers of signals, their handlers are called through one that takes
note first. The last of the waiting requests puts them back.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, Final

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class ServerEnd:
    """The end of the server of this process.

    Attributes:
        is_near: Whether the server was told to end while a request was waiting.
    """

    def __init__(self) -> None:
        self.is_near = False
        self._waiting = 0
        self._handlers: dict[int, Callable[[int, Any], object]] = {}
        self._own = self._take_note  # one object, which each access to the method would create anew

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Take note of signals in the block."""
        if current_thread() is not main_thread():  # others cannot set handlers, and need no lock here
            yield
            return
        self._waiting += 1
        if self._waiting == 1:
            self._begin()
        try:
            yield
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._end()

    def _begin(self) -> None:
        for number in _SIGNALS:
            handler = signal.getsignal(number)
            # Without a handler the process ends at once, or nothing does.
            if callable(handler) and handler not in (self._own, signal.default_int_handler):
                self._handlers[number] = handler
                signal.signal(number, self._own)

    def _end(self) -> None:
        for number, handler in self._handlers.items():
            if signal.getsignal(number) is self._own:  # not where the server has set others meanwhile
                signal.signal(number, handler)

    def _take_note(self, number: int, frame: Any) -> None:
        self.is_near = True
        self._handlers[number](number, frame)


SERVER_END: Final = ServerEnd()
