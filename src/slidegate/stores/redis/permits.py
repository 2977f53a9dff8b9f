"""The permits of concurrency limits that requests of this process hold in Redis, and how they are renewed.

A permit in Redis carries the moment until which it is held, and its worker puts that off as long as the request is
under way; see `stores.leases`. That a request has ended is a fact of this process: its permits are renewed no more from
then on, also where Redis cannot be told. A permit that was taken for a request whose answer never came is free after
the length of a lease.

Renewals are requests like others, so they share calls, connections and their troubles with them. A process that was
stopped renews the permits of a key before it asks for more of them, in the same call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from ...core.decision import Check, Decision
from ...core.errors import StoreUnavailable
from ...core.reservation import Permit
from ...core.store import Clock, Event
from ..leases import HeldPermits, LeaseRenewer, permits_lost
from .requests import Command
from .script import MEMBER, Packing

if TYPE_CHECKING:
    from .batch import Batcher

MAX_AT_ONCE: Final = 64
"""How many permits go to Redis before the first of them are answered: it renews them in a fifth of a millisecond."""
LOST, RENEWED, BACK = 0, 1, 2

Fates: TypeAlias = tuple[int, int]
"""How many permits were lost, and how many were put back."""


class Renewals:
    """Holds the permits that requests of a process have taken, and renews them.

    Args:
        held: The permits.
        now_us: A clock that never runs back.
        packing: Packs renewals.
        tell: Passes events on.
        batcher: Returns the batcher of the running event loop.
    """

    def __init__(
        self,
        held: HeldPermits,
        now_us: Clock,
        packing: Packing,
        tell: Callable[[Sequence[Event]], None],
        batcher: Callable[[], Batcher],
    ) -> None:
        self.held = held
        self.now_us = now_us
        self._packing = packing
        self._tell = tell
        self._batcher = batcher
        self._renewer = LeaseRenewer(held, self.renew)
        self._renewed_us = 0  # when all permits had been renewed or taken
        self._is_late = False
        self._late_rows: set[bytes] = set()  # that were renewed since, ahead of a question

    def close(self) -> None:
        """Renew no more."""
        self._renewer.close()

    def hold(self, decision: Decision, asked_us: int) -> None:
        """Put permits among the charges of a decision, and renew them from now on.

        Redis has told their serials where other limits have moments.
        """
        held = self.held
        if not held.holds_any():
            self._renewed_us = asked_us
        states, at = list(decision.readings), 0
        for reservation in decision.reservations:
            bucket, key, _ = reservation.check
            if bucket.held:
                taken, leaves_us, serial, wait_us = states[at]
                states[at] = taken, leaves_us, 0, wait_us
                row, member = self._packing.permits_row(bucket, key), MEMBER.pack(held.worker, serial)
                reservation.permit = Permit(row, bucket.limits[0].amount, member=member)
                reservation.units = (1,)
                held.add(reservation.permit)
            at += len(bucket.limits)
        decision.readings = states
        self._renewer.start()

    def catch_up(self, checks: Sequence[Check]) -> None:
        """Renew permits that may have run out: those of a question's keys ahead of it, and all others after that."""
        if not self.held.holds_any() or self.now_us() - self._renewed_us < self.held.lease_us:
            return
        batcher = self._batcher()
        rows = {self._packing.permits_row(bucket, key) for bucket, key, _ in checks if bucket.held} - self._late_rows
        self._late_rows |= rows
        late = [permit for permit in self.held.under_way() if permit.row in rows]
        for step in in_steps(late):
            batcher.attend(self._settle([self._send(batcher, some) for some in grouped(step)]))
        if not self._is_late:
            self._is_late = True
            batcher.attend(self.renew())

    async def renew(self) -> None:
        """Renew the permits of this process, `MAX_AT_ONCE` at a time.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        batcher, asked_us = self._batcher(), self.now_us()
        try:
            for step in in_steps(sorted(self.held.under_way(), key=lambda permit: permit.row)):
                if not await self._settle([self._send(batcher, some) for some in grouped(step)]):
                    raise StoreUnavailable("redis: permits of requests under way were not renewed")
            self._renewed_us = max(self._renewed_us, asked_us)
        finally:
            self._is_late = False
            self._late_rows.clear()

    def _send(self, batcher: Batcher, some: Sequence[Permit]) -> asyncio.Future[Fates]:
        """Send the renewal of permits of one key and rule."""
        sent: list[Permit] = []

        def pack(names: dict[bytes, int]) -> bytes:
            sent[:] = [permit for permit in some if not permit.ended]
            return self._packing.renewal(some[0], [permit.member for permit in sent], names)

        def read(answer: bytes, now_us: int) -> Fates:
            lost = back = 0
            for permit, fate in zip(sent, answer[1:], strict=True):
                lost += fate == LOST and not permit.lost
                back += fate == BACK
                permit.lost = fate == LOST
            return lost, back

        request = Command(batcher.loop.create_future(), some[0].row, pack, read)
        batcher.add(request)
        return request.future

    async def _settle(self, sent: Sequence[asyncio.Future[Fates]]) -> bool:
        """Wait for renewals, and tell whether permits were missing; return whether all were answered."""
        await asyncio.wait(sent)
        fates = [future.result() for future in sent if future.exception() is None]
        lost, back = sum(fate[0] for fate in fates), sum(fate[1] for fate in fates)
        if lost or back:
            self._tell((permits_lost("redis", lost, back),))
        return len(fates) == len(sent)


def grouped(permits: Iterable[Permit]) -> list[list[Permit]]:
    """Return permits in groups that are one request each: of one row and amount."""
    groups: dict[tuple[bytes, int], list[Permit]] = {}
    for permit in permits:
        groups.setdefault((permit.row, permit.amount), []).append(permit)
    return list(groups.values())


def in_steps(permits: Sequence[Permit]) -> Iterator[Sequence[Permit]]:
    """Yield `MAX_AT_ONCE` permits at a time."""
    return (permits[first : first + MAX_AT_ONCE] for first in range(0, len(permits), MAX_AT_ONCE))
