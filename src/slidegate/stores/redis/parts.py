"""What the batchers and the requests of a store have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .changes import Changes
from .link import AnyLink
from .poll import Polled
from .protocol import Packing, StoreTime
from .refusals import Refusals
from .unit_leases import UnitLeases


@dataclass(slots=True, eq=False)
class Parts:
    """The parts of a store that its batchers and requests use. Nothing here refers to the store.

    Attributes:
        packing: Names keys, and packs requests.
        script: The text of the script.
        changes: What the process has changed, which ends refusals and leases.
        refusals: The refusals that it repeats.
        leases: The units that it spends without asking.
        polled: The last poll: the bans of networks, and the state of the data.
        open_link: Opens the link of an event loop.
        lease_us: How long the permits of a dead process stay taken.
        late_observers: Called for each answer that arrived after its request was cancelled.
        is_closed: Whether the store is closed.
    """

    packing: Packing
    script: bytes
    time: StoreTime
    changes: Changes
    refusals: Refusals
    leases: UnitLeases
    polled: Polled
    open_link: Callable[[], AnyLink]
    lease_us: int
    late_observers: list[Callable[[], None]] = field(default_factory=list)
    is_closed: bool = False
