"""The permits of concurrency limits that requests of this process hold in Redis, and how they are renewed.

A permit in Redis carries the moment until which it is held, and its worker puts that off as long as the request is
under way. That a request has ended is a fact of this process: its permits are renewed no more from then on, also where
Redis cannot be told. A permit that was taken for a request whose answer never came is free after the length of a
lease, and so is one that nobody can hand back any more, because its decision is gone.

Those of an event loop are renewed together, every third of a lease, as long as there are any. Renewals are requests
like others, so they share calls, connections and their troubles with them. A permit may be missing, because it ran out
or Redis was emptied. It is put back where there is room. Where others have taken all permits since, it is lost: its
request goes on, and each renewal tries again to put it back. An event says how many were missing.

A process that was stopped renews the permits of a key before it asks for more of them, in the same call.
"""

from __future__ import annotations

import asyncio
import os
from asyncio import AbstractEventLoop
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, TypeAlias

from ...core.charge import RENEWALS, Charge, HeldPlace
from ...core.decision import Bucket, Check, Decision
from ...core.errors import StoreError, StoreUnavailable
from ...core.limits import AnyLimit
from ...core.store import Clock, Event
from ..held_weakly import HeldWeakly
from .clock import ServerClock
from .requests import Request
from .script import Packing, raise_failure

if TYPE_CHECKING:
    from .batch import Batcher

WORKER_BYTES: Final = 8
MAX_AT_ONCE: Final = 8
"""How many permits of a key are one request, so that a call of 64 requests keeps nobody waiting for long."""
MAX_IN_STEP: Final = 128
"""How many permits go to Redis before the first of them are answered, so that renewals never fill a line."""
AGAIN: Final = 4
"""After a renewal that failed, the next comes so many times as soon."""
LOST, RENEWED, BACK = 0, 1, 2

Fates: TypeAlias = tuple[int, int]
"""How many permits were lost, and how many were put back."""


class Permit(HeldPlace):
    """A permit that a request holds; a decision keeps it among its charges.

    Args:
        worker: The name of the worker that has taken it.
        serial: Tells the permits of a worker apart.
        key: The key of the request.
        bucket: The bucket of the concurrency limit.
        asked_us: When it was asked for.

    Attributes:
        asked_us: When it was asked for or renewed.
        lost: Whether it has run out, and others have taken all permits since.
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


class LoopPermits:
    """The permits that were taken from one event loop, which also renews them.

    Attributes:
        permits: The permits, some of requests that have ended; see `under_way`.
        renewed_us: When the question was asked by which all of them were last renewed or taken.
        is_kept: Whether a task renews them.
        is_late: Whether they are renewed now because they may have run out.
    """

    __slots__ = ("is_kept", "is_late", "permits", "renewed_us")

    def __init__(self) -> None:
        self.permits: HeldWeakly[Permit] = HeldWeakly()
        self.renewed_us = 0
        self.is_kept = self.is_late = False

    def add(self, permit: Permit) -> None:
        """Hold a permit."""
        if not self.permits:
            self.renewed_us = permit.asked_us
        self.permits.add(permit)

    def under_way(self) -> list[Permit]:
        """Return the permits of requests that are under way."""
        for permit in self.permits:
            if permit.ended:
                self.permits.discard(permit)
        return list(self.permits)


class HeldPermits:
    """The permits of this process.

    Args:
        lease_us: How long a permit stays taken that is not renewed.
        now_us: A clock that never runs back.
    """

    def __init__(self, lease_us: int, now_us: Clock) -> None:
        self.lease_us = lease_us
        self.now_us = now_us
        self._process = 0
        self._worker = b""
        self._by_loop: dict[AbstractEventLoop, LoopPermits] = {}

    @property
    def worker(self) -> bytes:
        """The name of this process, made when it is first needed; a child of `fork` gets another, and holds nothing."""
        if self._process != os.getpid():
            self._process = os.getpid()
            self._worker = os.urandom(WORKER_BYTES)
            self._by_loop = {}
        return self._worker

    def of(self, loop: AbstractEventLoop) -> LoopPermits:
        """Return the permits that were taken from an event loop."""
        held = self._by_loop.get(loop)
        if held is None:
            for gone in [other for other in self._by_loop.copy() if other.is_closed()]:
                self._by_loop.pop(gone, None)
            held = self._by_loop[loop] = LoopPermits()
        return held

    def note(self, decision: Decision, loop: AbstractEventLoop, asked_us: int) -> None:
        """Put permits into the charge of a decision, where Redis has told their serials where others have moments."""
        worker, charge, states, at = self.worker, list(decision.charge), list(decision.readings), 0
        for bucket, key, _ in decision.checks:
            if bucket.held:
                taken, leaves_us, serial, wait_us = states[at]
                states[at] = taken, leaves_us, 0, wait_us
                permit = charge[at] = Permit(worker, serial, key, bucket, asked_us)
                self.of(loop).add(permit)
            at += len(bucket.limits)
        decision.readings, decision.charge = states, Charge(charge)

    def count(self) -> int:
        """Return how many permits this process holds, without those that were lost."""
        if self._process != os.getpid():
            return 0
        return sum(not permit.lost for held in self._by_loop.copy().values() for permit in held.under_way())

    def is_overdue(self, loop: AbstractEventLoop) -> bool:
        """Tell whether permits of an event loop may have run out, because they were not renewed in time."""
        held = self._by_loop.get(loop)
        if held is None or self._process != os.getpid() or not held.permits:
            return False
        return self.now_us() - held.renewed_us >= self.lease_us


class Renewal(Request):
    """The renewal of permits of one key and rule."""

    __slots__ = ("_packing", "_permits", "_sent")

    def __init__(self, future: asyncio.Future[Fates], packing: Packing, permits: Sequence[Permit]) -> None:
        super().__init__(future)
        self._packing = packing
        self._permits = permits
        self._sent: Sequence[Permit] = ()

    @property
    def key(self) -> str:
        """See `Request`."""
        return self._permits[0].key

    def pack(self, names: dict[bytes, int]) -> bytes:
        """See `Request`."""
        first = self._permits[0]
        self._sent = [permit for permit in self._permits if not permit.ended]
        serials = [permit.serial for permit in self._sent]
        return self._packing.renewal(first.worker, first.bucket, first.key, serials, names)

    def answered(self, answer: bytes, now_us: int, clock: ServerClock) -> Fates:
        """Record how the permits have fared; return how many were lost now, and how many were put back."""
        raise_failure(answer)
        lost = back = 0
        for permit, fate in zip(self._sent, answer[1:], strict=True):
            lost += fate == LOST and not permit.lost
            back += fate == BACK
            permit.lost = fate == LOST
        return lost, back


class Renewals:
    """Renews the permits of a process.

    Args:
        held: The permits.
        packing: Packs renewals.
        tell: Passes events on.
        batcher: Returns the batcher of the running event loop.
    """

    def __init__(
        self,
        held: HeldPermits,
        packing: Packing,
        tell: Callable[[Sequence[Event]], None],
        batcher: Callable[[], Batcher],
    ) -> None:
        self.held = held
        self._packing = packing
        self._tell = tell
        self._batcher = batcher

    def hold(self, decision: Decision, asked_us: int) -> None:
        """Hold the permits that a decision has taken, and renew them from now on."""
        batcher = self._batcher()
        held = self.held.of(batcher.loop)
        self.held.note(decision, batcher.loop, asked_us)
        if not held.is_kept:
            held.is_kept = True
            batcher.attend(self._keep(batcher))

    def catch_up(self, checks: Sequence[Check]) -> None:
        """Renew permits that may have run out: those of the keys of a demand ahead of it, and all others after that."""
        batcher = self._batcher()
        if not self.held.is_overdue(batcher.loop):
            return
        held, keys = self.held.of(batcher.loop), {key for bucket, key, _ in checks if bucket.held}
        late_us = self.held.now_us() - self.held.lease_us
        late = [permit for permit in held.under_way() if permit.key in keys and permit.asked_us <= late_us]
        if sent := [self._send(batcher, some) for some in grouped(late)]:
            batcher.attend(self._settle(sent))
        if not held.is_late:
            held.is_late = True
            batcher.attend(self.renew())

    async def renew(self) -> None:
        """Renew the permits of the running event loop, `MAX_IN_STEP` at a time.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        batcher, asked_us = self._batcher(), self.held.now_us()
        held = self.held.of(batcher.loop)
        try:
            for step in in_steps(grouped(held.under_way())):
                if not await self._settle([self._send(batcher, some) for some in step]):
                    raise StoreUnavailable("redis: places of requests under way were not renewed")
            held.renewed_us = max(held.renewed_us, asked_us)
        finally:
            held.is_late = False

    async def _keep(self, batcher: Batcher) -> None:
        held = self.held.of(batcher.loop)
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

    def _send(self, batcher: Batcher, some: Sequence[Permit]) -> asyncio.Future[Fates]:
        for permit in some:
            permit.asked_us = self.held.now_us()
        request = Renewal(batcher.loop.create_future(), self._packing, some)
        batcher.add(request)
        return request.future

    async def _settle(self, sent: Sequence[asyncio.Future[Fates]]) -> bool:
        """Wait for renewals, and tell whether permits were missing; return whether all were answered."""
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


def grouped(permits: Iterable[Permit]) -> Iterator[list[Permit]]:
    """Yield permits in groups that are one request each: of one worker, key and rule, at most `MAX_AT_ONCE`."""
    groups: dict[tuple[bytes, str, str, AnyLimit], list[Permit]] = {}
    for permit in permits:
        bucket = permit.bucket
        groups.setdefault((permit.worker, permit.key, bucket.rule, bucket.limits[0]), []).append(permit)
    for group in groups.values():
        rest = iter(group)
        while some := list(islice(rest, MAX_AT_ONCE)):
            yield some


def in_steps(groups: Iterable[list[Permit]]) -> Iterator[list[list[Permit]]]:
    """Yield as many groups at a time as have `MAX_IN_STEP` permits together."""
    step: list[list[Permit]] = []
    many = 0
    for group in groups:
        step.append(group)
        many += len(group)
        if many >= MAX_IN_STEP:
            yield step
            step, many = [], 0
    if step:
        yield step
