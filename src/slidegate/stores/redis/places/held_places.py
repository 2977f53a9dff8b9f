"""The places that requests of this process hold in Redis.

A place in Redis carries the moment until which it is held, and its worker puts that off as long as the request is under
way (`renewals`). That a request has ended is a fact of this process: its places are renewed no more from then on, also
where Redis cannot be told. A place that was taken for a request whose answer never came is free after the length of a
lease, and so is one that nobody can hand back any more, because its decision is gone.
"""

from __future__ import annotations

import os
from asyncio import AbstractEventLoop
from typing import Final

from ....core.charge import Charge, HeldPlace
from ....core.decision import Bucket, Decision
from ....core.store import Clock
from ...held_weakly import HeldWeakly

WORKER_BYTES: Final = 8


class Place(HeldPlace):
    """A place that a request holds; a decision keeps it among its charges.

    Args:
        worker: The name of the worker that has taken it.
        serial: Tells the places of a worker apart.
        key: The key of the request.
        bucket: The bucket of the concurrency limit.
        asked_us: When it was asked for.

    Attributes:
        asked_us: When it was asked for or renewed.
        lost: Whether it has run out, and others have taken all places since.
    """

    __slots__ = ("asked_us", "bucket", "key", "lost", "serial", "worker")

    def __init__(self, worker: bytes, serial: int, key: str, bucket: Bucket, asked_us: int) -> None:
        super().__init__()
        self.worker = worker
        self.serial = serial
        self.key = key
        self.bucket = bucket
        self.asked_us = asked_us
        self.lost = False


class LoopPlaces:
    """The places that were taken from one event loop, which also renews them.

    Attributes:
        places: The places, some of requests that have ended; see `under_way`.
        renewed_us: When the question was asked by which all of them were last renewed or taken.
        is_kept: Whether a task renews them.
        is_late: Whether they are renewed now because they may have run out.
    """

    __slots__ = ("is_kept", "is_late", "places", "renewed_us")

    def __init__(self) -> None:
        self.places: HeldWeakly[Place] = HeldWeakly()
        self.renewed_us = 0
        self.is_kept = self.is_late = False

    def add(self, place: Place) -> None:
        """Hold a place."""
        if not self.places:
            self.renewed_us = place.asked_us
        self.places.add(place)

    def under_way(self) -> list[Place]:
        """Return the places of requests that are under way."""
        for place in self.places:
            if place.ended:
                self.places.discard(place)
        return list(self.places)


class HeldPlaces:
    """The places of this process.

    Args:
        lease_us: How long a place stays taken that is not renewed.
        now_us: A clock that never runs back.
    """

    def __init__(self, lease_us: int, now_us: Clock) -> None:
        self.lease_us = lease_us
        self.now_us = now_us
        self._process = 0
        self._worker = b""
        self._by_loop: dict[AbstractEventLoop, LoopPlaces] = {}

    @property
    def worker(self) -> bytes:
        """The name of this process, made when it is first needed; a child of `fork` gets another, and holds nothing."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._worker = os.urandom(WORKER_BYTES)
            self._by_loop = {}
        return self._worker

    def of(self, loop: AbstractEventLoop) -> LoopPlaces:
        """Return the places that were taken from an event loop."""
        held = self._by_loop.get(loop)
        if held is None:
            for gone in [other for other in self._by_loop.copy() if other.is_closed()]:
                self._by_loop.pop(gone, None)
            held = self._by_loop[loop] = LoopPlaces()
        return held

    def note(self, decision: Decision, loop: AbstractEventLoop, asked_us: int) -> None:
        """Put places into the charge of a decision, where Redis has told their serials in the place of moments."""
        worker, charge, states, at = self.worker, list(decision.charge), list(decision.readings), 0
        for bucket, key, _ in decision.checks:
            if bucket.held:
                taken, leaves_us, serial, wait_us = states[at]
                states[at] = taken, leaves_us, 0, wait_us
                place = charge[at] = Place(worker, serial, key, bucket, asked_us)
                self.of(loop).add(place)
            at += len(bucket.limits)
        decision.readings, decision.charge = states, Charge(charge)

    def count(self) -> int:
        """Return how many places this process holds, without those that were lost."""
        if self._process != os.getpid():
            return 0
        return sum(not place.lost for held in self._by_loop.copy().values() for place in held.under_way())

    def is_overdue(self, loop: AbstractEventLoop) -> bool:
        """Tell whether places of an event loop may have run out, because they were not renewed in time."""
        held = self._by_loop.get(loop)
        if held is None or self._process != os.getpid() or not held.places:
            return False
        return self.now_us() - held.renewed_us >= self.lease_us
