"""Leases: a worker takes a share of a limit in one question to the store, and answers requests from it.

A lease is a charge like any other: the store counts its units as spent from the moment when it gave them. That is right
because of when they may be spent here. A ring of counts does not know when in its slice a unit was spent, so units that
are charged in a slice and admitted in the same slice are counted as if each request had asked for itself::

    store time    |<------------------ slice q ------------------>|<---- slice q+1
                        charged at T0        may be spent         |
                           |.....................................>| not any more
    local time        sent |
                        |..........  t - sent  .........>| t

The store read its clock after the question was sent, so at a local moment t its time is at most T0 + (t - sent). A
lease ends where that reaches the end of the slice (of a bucket with several limits, the first end of theirs) less a
margin for clocks that do not run at the same rate, and after `lease.MAX_LIFE_US` in any case. The units that are left
then go back.

The first requests of a key ask for themselves. Then the key gets a lease of twice the units spent since the last one,
at most `Bucket.lease` and at most one in `lease_pool.SHARE` of the units that are left: near the limit every request
asks for itself again. Requests that come while a lease is on its way wait for it. Every event loop has its own leases.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from inspect import isawaitable
from time import monotonic
from typing import Final

from ...core.bans.in_force import Guarded
from ...core.barred import Barred
from ...core.decision import Check, Decision
from ...core.protocols import Clock, ListsBans, Store
from ..failsafe import Failsafe
from ..running_loop import on_asyncio
from ..stand_ins import Parted, Unserved
from ..uncancelled import to_the_end
from .lease import Lease, Leased, boot_us, seen
from .lease_pool import Share, Shares

BANS_S: Final = 1.0
"""How old a list of bans may be to be believed."""


class Leases:
    """Answers from leases where it can, for a store that is shared.

    Args:
        store: The store.
        safe: Asks the store.
        clock: Returns microseconds that never run back and go on while the machine sleeps.
    """

    def __init__(self, store: Store, safe: Failsafe, clock: Clock = boot_us) -> None:
        self._store = store
        self._safe = safe
        self._plain = safe.hit
        self._clock = clock
        self._listed = store.bans if isinstance(store.bans, ListsBans) else None
        self._shares = Shares(store, safe, clock)
        self.forget = self._shares.forget
        self.close = self._shares.close
        self.is_empty = self._shares.is_empty

    def hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision | Awaitable[Decision]:
        """Charge every check or none; see `Store.hit`."""
        for bucket, _, _ in checks:
            if bucket.lease:
                return self._hit(tuple(checks), guarded)
        return self._plain(checks, guarded)

    async def refund(self, decision: Decision) -> bool:
        """Hand the units of a decision back: to its lease while that lasts, else to the store; see `Store.refund`."""
        if not isinstance(decision, Leased):
            return await self._safe.refund(decision)
        if not decision.charge:
            return False
        decision.charge.clear()
        loop = asyncio.get_running_loop() if on_asyncio() else None
        now_us, changed = self._clock(), False
        late: list[Decision] = [] if decision.rest is None else [decision.rest]
        for place, lease in decision.leases.items():
            cost = decision.checks[place][2]
            if lease.lasts(now_us) and lease.loop is loop:
                lease.units += cost
                changed |= cost > 0
            elif cost:
                late.append(lease.part(cost))
        for part in late:
            changed |= await self._safe.refund(part)
        return changed

    async def _hit(self, checks: tuple[Check, ...], guarded: Sequence[Guarded]) -> Decision:
        # Nothing is leased while a store of this process counts as well, or where a request may wait for its turn.
        if self._safe.local is not None or any(bucket.wait_us for bucket, _, _ in checks):
            return await self._ask(checks, guarded)
        shares = [self._shares.find(bucket, key) if bucket.lease else None for bucket, key, _ in checks]
        warm = all(share is not None and (share.lease or share.used) for share in shares)
        if warm and await self._is_banned(checks, guarded):
            return await self._ask(checks, guarded)  # a question that may prolong the ban
        now_us = self._clock()
        for share, (_, _, cost) in zip(shares, checks, strict=True):
            if share is None or share.covers(cost, now_us):
                continue
            if not await self._shares.prepare(share, cost):
                return self._safe.instead("hit", checks, guarded)
            now_us = self._clock()
        taken: dict[int, Lease] = {}
        for place, share in enumerate(shares):
            if share is not None and (lease := share.take(checks[place][2], now_us)) is not None:
                taken[place] = lease
        if len(taken) == len(checks):
            return Leased(checks, taken, None, *seen(checks, taken, now_us, None))
        if taken:
            return await self._with_rest(checks, guarded, taken, shares)
        decision = await self._ask(checks, guarded)
        self._learn(checks, shares, decision)
        return decision

    async def _is_banned(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> bool:
        listed = self._listed
        if listed is not None and monotonic() - listed.known_s < BANS_S:
            return listed.judge(checks, guarded) is not None
        return await self._safe.find_ban((*guarded, *(key for _, key, _ in checks))) is not None

    async def _with_rest(
        self,
        checks: tuple[Check, ...],
        guarded: Sequence[Guarded],
        taken: dict[int, Lease],
        shares: Sequence[Share | None],
    ) -> Decision:
        """Ask the store about the checks that no lease answers; if the store refuses, no lease is spent either."""
        places = [place for place in range(len(checks)) if place not in taken]
        rest = tuple(checks[place] for place in places)
        spends = False
        try:
            other = await self._ask(rest, (*guarded, *(checks[place][1] for place in taken)))
            now_us = self._clock()
            plain = other.__class__ is Decision
            spends = plain and other.allowed and all(lease.lasts(now_us) for lease in taken.values())
        finally:
            if not spends:
                self._put_back(checks, taken)
        if isinstance(other, Barred):
            return Barred(other.by, other.ban, other.now_us, checks)
        if plain:
            self._learn(rest, [shares[place] for place in places], other)
        if spends:
            return Leased(checks, taken, other, *seen(checks, taken, now_us, other))
        if plain and not other.allowed:
            store_us, readings = seen(checks, taken, now_us, other)
            return Decision(False, other.reason, store_us, checks, readings)
        # A lease ended while the store was asked, or another store answered.
        if other.charge:
            await to_the_end(self._safe.refund(other))
        if isinstance(other, Unserved) or (isinstance(other, Parted) and other.parts[0][0] is not self._store):
            return self._safe.instead("hit", checks, guarded)
        return await self._ask(checks, guarded)

    def _put_back(self, checks: Sequence[Check], taken: dict[int, Lease]) -> None:
        now_us = self._clock()
        for place, lease in taken.items():
            cost = checks[place][2]
            if lease.lasts(now_us):
                lease.units += cost
            elif cost:
                self._shares.start(self._safe.refund(lease.part(cost)))

    async def _ask(self, checks: Sequence[Check], guarded: Sequence[Guarded]) -> Decision:
        answer = self._plain(checks, guarded)
        return await answer if isawaitable(answer) else answer

    def _learn(self, checks: Sequence[Check], shares: Sequence[Share | None], decision: Decision) -> None:
        if decision.__class__ is not Decision or not decision.readings:
            return
        now_us, first = self._clock(), 0
        for (bucket, _, cost), share in zip(checks, shares, strict=True):
            last = first + len(bucket.limits)
            if share is not None:
                share.learn([reading[0] for reading in decision.readings[first:last]], now_us)
                share.used += cost if decision.allowed else 0
            first = last
