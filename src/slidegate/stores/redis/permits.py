"""The concurrency permits that requests of this process hold in Redis, and their renewal.

A permit in Redis has an expiry time. Its worker extends it while the request is in progress, for all its permits in one
command; see `stores.leases`. When a request has ended, its permits are no longer renewed, even if Redis cannot be
reached to release them. A permit that was taken for a request whose answer was lost expires with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ...core.decision import Decision
from ...core.errors import StoreUnavailable
from ...core.reservation import Permit
from ..leases import HeldPermits, LeaseRenewer, permits_lost
from .errors import sensible
from .script import MEMBER

if TYPE_CHECKING:
    from .batch import Shared

MAX_IN_CALL: Final = 1_000
"""The most permits in one command, which blocks Redis for 2 ms."""
_LOST, _FAILED = 0, 2


class Renewals(LeaseRenewer):
    """Holds the permits of the requests of this process, and renews them.

    Args:
        held: The permits.
        shared: The parts of the store.
    """

    def __init__(self, held: HeldPermits, shared: Shared) -> None:
        super().__init__(held, self.renew)
        self._shared = shared

    def hold(self, decision: Decision) -> None:
        """Add the permits of a decision to its reservations, and renew them from now on.

        The answer has their serial numbers where other limits have times.
        """
        held = self.held
        states, at = list(decision.readings), 0
        for reservation in decision.reservations:
            bucket, key, _ = reservation.check
            if bucket.is_permit:
                taken, leaves_us, serial, wait_us = states[at]
                states[at] = taken, leaves_us, 0, wait_us
                row, member = self._shared.packing.permits_row(bucket, key), MEMBER.pack(held.worker, serial)
                reservation.permit = Permit(row, bucket.limits[0].amount, member=member)
                reservation.units = (1,)
                held.add(reservation.permit)
            at += len(bucket.limits)
        decision.readings = states
        self.start()

    async def renew(self) -> None:
        """Renew the permits of this process, and report how many are lost.

        Raises:
            StoreError: Redis did not renew all of them.
        """
        permits = sorted(self.held.under_way(), key=lambda permit: permit.row)
        parts = [permits[first : first + MAX_IN_CALL] for first in range(0, len(permits), MAX_IN_CALL)]
        answers = await asyncio.gather(*map(self._renew_some, parts), return_exceptions=True)
        errors = [answer for answer in answers if isinstance(answer, BaseException)]
        fates = [told for answer in answers if not isinstance(answer, BaseException) for told in answer]
        # Permits of ended requests were released, and another event loop may have reported a loss first.
        lost = [permit for permit, fate in fates if fate == _LOST and permit in self.held and not permit.ended]
        for permit in lost:
            self.held.discard(permit)
        if lost:
            self._shared.tell((permits_lost("redis", len(lost)),))
        if errors:
            raise errors[0]
        if any(fate == _FAILED for _, fate in fates):
            raise StoreUnavailable("redis: permits of requests in progress were not renewed")

    @sensible
    async def _renew_some(self, permits: Sequence[Permit]) -> list[tuple[Permit, int]]:
        """Renew some permits by one command; return each with its result."""
        rows, lease_us = _rows(permits), self.held.lease_us
        members = [b"".join([permit.member for permit in row]) for row in rows.values()]
        args: list[bytes | int] = [lease_us, lease_us // 1_000 + self._shared.time.slack_ms, *members]
        _, fates = await self._shared.batcher().command(b"renew", list(rows), args)
        return list(zip((permit for row in rows.values() for permit in row), fates, strict=True))


def _rows(permits: Sequence[Permit]) -> dict[bytes, list[Permit]]:
    """Group permits by their set."""
    rows: dict[bytes, list[Permit]] = {}
    for permit in permits:
        rows.setdefault(permit.row, []).append(permit)
    return rows
