"""The gates of a limiter, for those who show an operator which rules are in force."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from weakref import ref


class Gates:
    """The gates that ask one limiter, in the order in which they were made. It keeps none of them alive."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: list[Callable[[], object | None]] = []

    def add(self, gate: object) -> None:
        """Note a gate; one that is known already is noted once."""
        with self._lock:
            alive = [known for known in self._known if (other := known()) is not None and other is not gate]
            self._known = [*alive, ref(gate)]

    def listed(self) -> list[object]:
        """Return the gates that are there."""
        return [gate for known in self._known if (gate := known()) is not None]
