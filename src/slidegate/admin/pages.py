"""Pages of long lists, which stay right while entries come and go.

A page ends at an entry, and the next one begins behind it in an order that never changes: nothing is skipped and
nothing shown twice, whatever has come or gone meanwhile. No list is kept between two pages.
"""

from __future__ import annotations

import base64
import binascii
import json
from heapq import heappush, heapreplace
from typing import Any, Final, Generic, TypeVar

from .parameters import Unusable

Place = list[Any]
"""The place of an entry in the order of its list: numbers and texts, alike in every entry."""
T = TypeVar("T")

_LOOK: Final = "cursor"


class Page(Generic[T]):
    """Gathers the entries behind a place that come first, of any number of entries in any order.

    Args:
        most: How many entries the page has at most.
        cursor: The `next` of the page before, None for the first page.
        like: A place such as the entries have, to see that the cursor is one of this list.

    Raises:
        Unusable: The cursor is none of this list.
    """

    def __init__(self, most: int, cursor: str | None, like: Place) -> None:
        self._most = most
        self._behind = None if cursor is None else _read(cursor, like)
        self._held: list[tuple[_Backwards, T]] = []
        self._more = False

    def add(self, place: Place, entry: T) -> None:
        """Take an entry in, at its place in the order, if it belongs to the page."""
        if self._behind is not None and place <= self._behind:
            return
        if len(self._held) < self._most:
            heappush(self._held, (_Backwards(place), entry))
            return
        self._more = True
        if place < self._held[0][0].place:
            heapreplace(self._held, (_Backwards(place), entry))

    def entries(self) -> list[T]:
        """Return the entries in their order."""
        return [entry for _, entry in sorted(self._held, key=lambda held: held[0].place)]

    def next(self) -> str | None:
        """Return the cursor of the next page; None if this is the last one."""
        return _written(self._held[0][0].place) if self._more else None


class _Backwards:
    """A place that compares the other way round, so that a heap has the last one on top."""

    __slots__ = ("place",)

    def __init__(self, place: Place) -> None:
        self.place = place

    def __lt__(self, other: _Backwards) -> bool:
        return other.place < self.place


def _written(place: Place) -> str:
    return base64.urlsafe_b64encode(json.dumps(place, separators=(",", ":")).encode()).decode().rstrip("=")


def _read(cursor: str, like: Place) -> Place:
    wrong = Unusable([(_LOOK, "expected the `next` of the page before, or nothing for the first page")])
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError, binascii.Error):
        raise wrong from None
    if not isinstance(place, list) or list(map(type, place)) != list(map(type, like)):
        raise wrong
    return place


def pack(value: Any) -> str:
    """Return a value as an opaque text, to hand out and take back."""
    return _written([value])


def unpack(text: str, like: Any) -> Any:
    """Return the value of a text that `pack` returned.

    Raises:
        Unusable: It did not.
    """
    return _read(text, [like])[0]
