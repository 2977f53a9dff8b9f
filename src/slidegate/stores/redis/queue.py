"""The queue of an event loop: what its next calls to Redis will ask.

A hit joins an equal one that is queued, if nothing else about their keys was queued in between. So all are answered as
in the order in which they were asked, and the script decides one request instead of many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence

from ...core.decision import Decision
from ...core.errors import StoreUnavailable
from .question import Question
from .requests import AskedQuestion, Request
from .script import HIT


def have_permits(requests: Iterable[Request]) -> bool:
    """Return whether one of some requests is about permits."""
    for request in requests:
        if request.has_permits:
            return True
    return False


class RequestQueue:
    """Queued requests.

    Args:
        max_waiting: The most results that may be awaited from it.
    """

    def __init__(self, max_waiting: int) -> None:
        self._max_waiting = max_waiting
        self._requests: deque[Request] = deque()
        self._waiting = 0
        """How many results are awaited: more than there are requests, where hits have joined."""
        self._last_of_keys: dict[str, AskedQuestion] = {}
        """The last question about each key that was queued since the last call was made."""

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def has_permits(self) -> bool:
        """Whether a request that waits is about permits."""
        return have_permits(self._requests)

    def add(self, request: Request) -> bool:
        """Queue a request; fail it and return False if too many wait."""
        if self._waiting >= self._max_waiting:
            request.fail(StoreUnavailable(f"redis: {self._waiting} requests are already queued"))
            return False
        self._requests.append(request)
        self._waiting += len(request.futures)
        if isinstance(request, AskedQuestion):
            for _, key, _ in request.question.checks:
                self._last_of_keys[key] = request
        else:
            self._last_of_keys.clear()  # a command may be about any of them
        return True

    def join(self, question: Question, future: asyncio.Future[Decision]) -> bool:
        """Let a hit wait for the answer to an equal one that is queued; return False if it may join none."""
        equal = None
        for _, key, _ in question.checks:
            equal = self._last_of_keys.get(key)
            if equal is None or equal.question is not question:
                return False
        if equal is None or equal.what != HIT or not question.is_joinable or self._waiting >= self._max_waiting:
            return False
        equal.futures.append(future)
        self._waiting += 1
        return True

    def take(self, most: int) -> list[Request]:
        """Return the next requests, which no hit joins any more."""
        self._last_of_keys.clear()
        taken: list[Request] = []
        while self._requests and len(taken) < most:
            request = self._requests.popleft()
            self._waiting -= len(request.futures)
            taken.append(request)
        return taken

    def put_back(self, requests: Sequence[Request]) -> None:
        """Queue requests again, before all others."""
        for request in reversed(requests):
            self._requests.appendleft(request)
            self._waiting += len(request.futures)

    def fail(self, error: Exception) -> None:
        """Raise an error in the tasks that await what is queued, and drop it."""
        for request in self.take(len(self._requests)):
            request.fail(error)
