"""Who is in which room, and what they hear. Everything here has an end: rooms, members, what is kept and queued."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream

MOST_ROOMS = 100
MOST_MEMBERS = 200
KEPT = 20
"""How many messages a newcomer hears at once."""
QUEUED = 64
"""How many messages wait for a member who reads slowly. Whoever falls further behind has to come again."""


class Full(Exception):
    """There is no room for another room, or for another member."""


class Room:
    """The members of one room, and its last messages."""

    def __init__(self) -> None:
        self._members: set[_Member] = set()
        self._last: deque[str] = deque(maxlen=KEPT)

    @property
    def empty(self) -> bool:
        """Whether nobody is here."""
        return not self._members

    @contextmanager
    def joined(self, name: str) -> Iterator[MemoryObjectReceiveStream[str]]:
        """Be a member for a while.

        Yields:
            What the member hears, as JSON; it ends when the member falls too far behind.

        Raises:
            Full: `MOST_MEMBERS` are here.
        """
        if len(self._members) >= MOST_MEMBERS:
            raise Full(f"{MOST_MEMBERS} people are in this room")
        member = _Member(self._last)
        self._members.add(member)
        self._tell({"note": f"{name} joined"})
        try:
            yield member.hears
        finally:
            self._members.discard(member)
            member.close()
            member.hears.close()
            self._tell({"note": f"{name} left"})

    def say(self, name: str, text: str) -> None:
        """Tell all members what one of them has written."""
        message = {"from": name, "text": text}
        self._last.append(json.dumps(message))
        self._tell(message)

    def _tell(self, message: dict[str, str]) -> None:
        encoded = json.dumps(message)
        for member in [member for member in self._members if not member.told(encoded)]:
            self._members.discard(member)
            member.close()


class _Member:
    def __init__(self, last: deque[str]) -> None:
        self._queue, self.hears = anyio.create_memory_object_stream[str](QUEUED)
        for message in last:
            self._queue.send_nowait(message)

    def told(self, message: str) -> bool:
        """Queue a message; tell whether there was room."""
        try:
            self._queue.send_nowait(message)
        except (anyio.WouldBlock, anyio.BrokenResourceError):
            return False
        return True

    def close(self) -> None:
        """Let what the member hears end, after what is queued."""
        self._queue.close()


class Rooms:
    """All rooms in which somebody is."""

    def __init__(self) -> None:
        self._rooms: dict[str, Room] = {}

    @contextmanager
    def joined(self, name: str, room: str) -> Iterator[tuple[Room, MemoryObjectReceiveStream[str]]]:
        """Be a member of a room for a while; a room is there as long as somebody is in it.

        Raises:
            Full: There is no place.
        """
        if room not in self._rooms and len(self._rooms) >= MOST_ROOMS:
            raise Full(f"there are {MOST_ROOMS} rooms")
        found = self._rooms.setdefault(room, Room())
        try:
            with found.joined(name) as hears:
                yield found, hears
        finally:
            if found.empty:
                self._rooms.pop(room, None)
