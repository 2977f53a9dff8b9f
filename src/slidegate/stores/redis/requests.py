"""Requests, which share script calls: how each is packed when it is sent, and how its answer is read."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

from ...core.buckets import Check
from .protocol import Packed

Read: TypeAlias = Callable[[Any, int], Any]
"""Returns a result, given the answer of the script, which is no failure, and the server's time in microseconds."""


@dataclass(slots=True, eq=False)
class Request(ABC):
    """What shares a script call with others.

    Attributes:
        future: Receives the result, unless it is cancelled.
        has_permits: Whether it is about permits, so that its call waits for the answers to others that are, too.
    """

    future: asyncio.Future[Any]
    has_permits: bool

    @abstractmethod
    def pack(self) -> Packed:
        """Pack it; called when it is sent."""

    @abstractmethod
    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        """Deliver the answer.

        Args:
            answer: The answer of the script, which is no failure.
            now_us: The server's time.
            sent_ns: When it was sent (monotonic).
        """

    def is_awaited(self) -> bool:
        """Return whether anybody still awaits the result."""
        return not self.future.done()

    def answer(self, result: Any) -> None:
        """Complete the future with a result, unless it was cancelled."""
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: Exception) -> None:
        """Complete the future with an error, unless it was cancelled."""
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(slots=True, eq=False)
class Command(Request):
    """A request whose answer is the result, perhaps after it was read.

    Attributes:
        packer: Packs it.
        read: Returns the result; an exception is raised in the task that awaits the request.
    """

    packer: Callable[[], Packed]
    read: Read

    def pack(self) -> Packed:
        return self.packer()

    def deliver(self, answer: Any, now_us: int, sent_ns: int) -> None:
        self.answer(self.read(answer, now_us))


def concern_permits(checks: Iterable[Check]) -> bool:
    """Return whether some checks are about permits."""
    return any(bucket.is_permit for bucket, _, _ in checks)
