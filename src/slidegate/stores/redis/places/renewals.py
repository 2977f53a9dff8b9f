"""How places in Redis are renewed: those of an event loop together, every third of a lease, as long as there are any.

Renewals are requests like others, so they share calls, connections and their troubles with them. A place may be
missing, because it ran out or Redis was emptied. It is put back where there is room. Where others have taken all places
since, it is lost: its request goes on, and each renewal tries again to put it back. An event says how many places were
missing.

A process that was stopped renews the places of a key before it asks for more of them, in the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, TypeAlias

from ....core.charge import RENEWALS
from ....core.decision import Check, Decision
from ....core.errors import StoreError, StoreUnavailable
from ....core.limits import AnyLimit
from ....core.store import Event
from ..packing import Packing, raise_failure
from ..server_clock import ServerClock
from ..wire.batch import Unguarded
from ..wire.pipeline import Lane
from .held_places import HeldPlaces, Place

MOST_AT_ONCE: Final = 8
"""How many places of a key are one request, so that a call of 64 requests keeps nobody waiting for long."""
MOST_IN_STEP: Final = 128
"""How many places go to Redis before the first of them are answered, so that renewals never fill a line."""
AGAIN: Final = 4
"""After a renewal that failed, the next comes so many times as soon."""
LOST, RENEWED, BACK = 0, 1, 2

Fates: TypeAlias = tuple[int, int]
"""How many places were lost, and how many were put back."""


class Renewal(Unguarded):
    """The renewal of places of one key and rule."""

    __slots__ = ("_packing", "_places", "_sent", "key")

    def __init__(self, future: asyncio.Future[Fates], packing: Packing, places: Sequence[Place]) -> None:
        super().__init__(future)
        self._packing = packing
        self._places = places
        self._sent: Sequence[Place] = ()
        self.key = places[0].key

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        first = self._places[0]
        self._sent = [place for place in self._places if not place.ended]
        serials = [place.serial for place in self._sent]
        return self._packing.renewal(first.worker, first.bucket, first.key, serials, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Fates:
        """Record how the places have fared; return how many were lost now, and how many were put back."""
        raise_failure(answer)
        lost = back = 0
        for place, fate in zip(self._sent, answer[1:], strict=True):
            lost += fate == LOST and not place.lost
            back += fate == BACK
            place.lost = fate == LOST
        return lost, back


class Renewals:
    """Renews the places of a process.

    Args:
        held: The places.
        packing: Packs renewals.
        tell: Passes events on.
        lane: Returns the lane of the running event loop.
    """

    def __init__(
        self,
        held: HeldPlaces,
        packing: Packing,
        tell: Callable[[Sequence[Event]], None],
        lane: Callable[[], Lane],
    ) -> None:
        self.held = held
        self._packing = packing
        self._tell = tell
        self._lane = lane

    def hold(self, decision: Decision, asked_us: int) -> None:
        """Hold the places that a decision has taken, and renew them from now on."""
        lane = self._lane()
        held = self.held.of(lane.loop)
        self.held.note(decision, lane.loop, asked_us)
        if not held.is_kept:
            held.is_kept = True
            lane.attend(self._keep(lane))

    def catch_up(self, checks: Sequence[Check]) -> None:
        """Renew places that may have run out: those of the keys of a demand ahead of it, and all others after that."""
        lane = self._lane()
        if not self.held.is_overdue(lane.loop):
            return
        held, keys = self.held.of(lane.loop), {key for bucket, key, _ in checks if bucket.held}
        late_us = self.held.now_us() - self.held.lease_us
        late = [place for place in held.under_way() if place.key in keys and place.asked_us <= late_us]
        if sent := [self._send(lane, some) for some in grouped(late)]:
            lane.attend(self._settle(sent))
        if not held.is_late:
            held.is_late = True
            lane.attend(self.renew())

    async def renew(self) -> None:
        """Renew the places of the running event loop, `MOST_IN_STEP` at a time.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        lane, asked_us = self._lane(), self.held.now_us()
        held = self.held.of(lane.loop)
        try:
            for step in in_steps(grouped(held.under_way())):
                if not await self._settle([self._send(lane, some) for some in step]):
                    raise StoreUnavailable("redis: places of requests under way were not renewed")
            held.renewed_us = max(held.renewed_us, asked_us)
        finally:
            held.is_late = False

    async def _keep(self, lane: Lane) -> None:
        held = self.held.of(lane.loop)
        pause_s = usual_s = self.held.lease_us / RENEWALS / 1_000_000
        try:
            while True:
                await asyncio.sleep(pause_s)
                if not held.under_way():
                    return
                try:
                    await self.renew()
                    pause_s = usual_s
                except StoreError:
                    pause_s = usual_s / AGAIN
        finally:
            held.is_kept = False

    def _send(self, lane: Lane, some: Sequence[Place]) -> asyncio.Future[Fates]:
        for place in some:
            place.asked_us = self.held.now_us()
        request = Renewal(lane.loop.create_future(), self._packing, some)
        lane.add(request)
        return request.future

    async def _settle(self, sent: Sequence[asyncio.Future[Fates]]) -> bool:
        """Wait for renewals, and tell whether places were missing; return whether all were answered."""
        await asyncio.wait(sent)
        fates = [future.result() for future in sent if future.exception() is None]
        lost, back = sum(fate[0] for fate in fates), sum(fate[1] for fate in fates)
        if lost or back:
            message = (
                f"redis: {lost + back} places of requests under way were missing: they were not renewed in time, "
                f"or data was lost; {back} were put back, and others had taken {lost}"
            )
            self._tell((Event("places_lost", message, {"lost": lost, "back": back}),))
        return len(fates) == len(sent)


def grouped(places: Iterable[Place]) -> Iterator[list[Place]]:
    """Yield places in groups that are one request each: of one worker, key and rule, at most `MOST_AT_ONCE`."""
    groups: dict[tuple[bytes, str, str, AnyLimit], list[Place]] = {}
    for place in places:
        bucket = place.bucket
        groups.setdefault((place.worker, place.key, bucket.rule, bucket.limits[0]), []).append(place)
    for group in groups.values():
        rest = iter(group)
        while some := list(islice(rest, MOST_AT_ONCE)):
            yield some


def in_steps(groups: Iterable[list[Place]]) -> Iterator[list[list[Place]]]:
    """Yield as many groups at a time as have `MOST_IN_STEP` places together."""
    step: list[list[Place]] = []
    many = 0
    for group in groups:
        step.append(group)
        many += len(group)
        if many >= MOST_IN_STEP:
            yield step
            step, many = [], 0
    if step:
        yield step
