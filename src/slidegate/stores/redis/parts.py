"""What the parts of a Redis store have in common: how it was made, and what it has seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .clock import StoreTime
from .refusals import Refusals
from .script import Packing, Script
from .slice_leases import SliceLeases
from .store_news import StoreNews
from .urls import Client


@dataclass(slots=True, eq=False)
class Parts:
    """The parts of a store that its batchers and requests use. Nothing here refers to the store.

    Attributes:
        packing: Names keys, and packs requests.
        script: The script.
        time: The clock.
        refusals: The known refusals.
        news: What Redis last said of bans of networks, and of the data.
        open_client: Returns a client with the user's settings, for a line.
        lease_us: How long the permits of a dead process stay taken.
        connections: How many connections each event loop opens.
        max_waiting: The most requests of an event loop that may be queued.
        leases: The leases of the process, in a store that has them.
        late_observers: Are called with the microseconds of each answer that nobody awaited any more.
        writes: How many calls have stored anything.
        is_closed: Whether the store is closed.
    """

    packing: Packing
    script: Script
    time: StoreTime
    refusals: Refusals
    news: StoreNews
    open_client: Callable[[], Client]
    lease_us: int
    connections: int
    max_waiting: int
    leases: SliceLeases | None
    late_observers: list[Callable[[int], None]] = field(default_factory=list)
    writes: int = 0
    is_closed: bool = False
