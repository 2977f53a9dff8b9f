"""The nodes of a cluster, as one event loop reaches them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from ....core.errors import StoreUnavailable
from ..wire.batch import Request
from ..wire.connection import Wire

MOST_REDIRECTIONS: Final = 5

Place: TypeAlias = tuple[str, int]


class Call(NamedTuple):
    """Requests of one slot on their way."""

    slot: int
    requests: Sequence[Request]
    how: bytes
    what: bytes
    redirections: int = 0


class Node:
    """One node: its connection, and the calls that wait for it, so that a node that hangs holds up no other.

    Args:
        place: Where it is.

    Attributes:
        wire: The connection, if there was one.
        opening: Opens the next one.
        calls: How many calls are unanswered.
        line: Calls that have not gone yet, and whether each asks for a slot that is still on its way here.
    """

    __slots__ = ("calls", "line", "opening", "place", "wire")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.wire: Wire | None = None
        self.opening: asyncio.Task[Any] | None = None
        self.calls = 0
        self.line: deque[tuple[Call, bool]] = deque()

    @property
    def is_open(self) -> bool:
        """Whether there is a connection."""
        return self.wire is not None and self.wire.open

    @property
    def is_idle(self) -> bool:
        """Whether nobody waits for it."""
        return not (self.calls or self.line or self.opening)

    def take_line(self) -> list[Call]:
        """Return the calls that were not sent yet, and take them out of the line."""
        calls = [call for call, _ in self.line]
        self.line.clear()
        return calls


def shown(place: Place | None) -> str:
    """Return a name for a place."""
    return "no node" if place is None else f"{place[0]}:{place[1]}"


def read_slots(rows: Any, asked: Place) -> Iterator[tuple[int, Place]]:
    """Yield each slot and its node, from an answer of ``CLUSTER SLOTS``.

    Args:
        rows: The answer.
        asked: The node that gave it: a node that does not know its own name leaves it out.

    Raises:
        StoreUnavailable: It cannot be read.
    """
    try:
        for first, last, (host, port, *_), *_ in rows:
            name = host.decode() if host and host != b"?" else asked[0]
            yield from ((slot, (name, int(port))) for slot in range(first, last + 1))
    except (TypeError, ValueError, AttributeError) as error:
        raise StoreUnavailable(f"redis: {shown(asked)} does not say who has which slot: {error!r}") from error
