"""A set of weak references that one thread may walk while others change it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class HeldWeakly(Generic[T]):
    """Objects, each for as long as somebody else holds it.

    `weakref.WeakSet` raises while it is walked if another thread adds to it. This one is walked as it was at first.
    """

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: WeakValueDictionary[int, T] = WeakValueDictionary()

    def __iter__(self) -> Iterator[T]:
        for reference in self._by_id.valuerefs():
            held = reference()
            if held is not None:
                yield held

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def __contains__(self, item: object) -> bool:
        return id(item) in self._by_id

    def add(self, item: T) -> None:
        """Hold an object."""
        self._by_id[id(item)] = item

    def discard(self, item: T) -> None:
        """Hold an object no more; it need not be held."""
        self._by_id.pop(id(item), None)
