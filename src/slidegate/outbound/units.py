"""The units of requests that are under way: they are held from sending until a window after the answer.

A server counts a request at some moment between its sending and its answer; nobody here knows when. So a unit is
charged before the request is sent, and moved to the moment of the answer when that has come. Moving charges the new
moment first and hands the old one back then, so that no other worker finds the place empty in between. A request whose
answer takes longer than half a window is moved now and then while it is under way: a unit that is held never ages out,
as long as the store takes no more than a quarter of a window to answer. (Half a window is slept through; then a charge
has to arrive there, and the answers to it and to the refund before it have to arrive here.)

At every sending, therefore, the requests under way and those answered within the last window are at most N. If a server
counted N + 1 requests within one window, the one that was sent last among them was sent at a moment when all the others
were under way or had been answered less than a window ago: N + 1 in all.
"""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import timedelta
from typing import Any, Final, TypeVar

import anyio

from ..core.decision import Bucket, Decision
from ..core.errors import ConfigurationError
from ..core.limits import Limit
from ..limiter import Limiter
from ..limiter.aio import to_the_end
from ..limiter.inspect import BucketCaller

T = TypeVar("T")

MOST_EXACT: Final = 256
"""The largest amount whose units are all kept with their times; beyond it they are counted in slices."""
SLICES: Final = 256


def held_limit(limit: Limit) -> Limit:
    """Return the limit that holds units long enough for a server with the given limit.

    A server that counts in slices, as ours does above the resolution, lets go of a unit up to one slice later than
    after a window. While a unit is moved it counts twice, so an exact window needs room for twice the amount.

    Raises:
        ConfigurationError: The limit has no window.
    """
    if type(limit) is not Limit:
        raise ConfigurationError(f'limits: expected limits with a window, for example "10/second", not {limit}')
    window_us = limit.window_us if limit.exact else limit.span_us + limit.slice_us
    finest = window_us // 10
    if limit.amount <= MOST_EXACT and 2 * limit.amount <= finest:
        resolution = 2 * limit.amount
    else:
        resolution = min(SLICES, finest, limit.amount - 1)
    return Limit(limit.amount, timedelta(microseconds=window_us), resolution=resolution, name=limit.name)


class Units:
    """The units of one transport. Nobody's cancellation loses one.

    Args:
        limiter: The limiter that counts them.
        rule: The name under which they are counted.
        limits: The limits, as `held_limit` returns them.
    """

    def __init__(self, limiter: Limiter, rule: str, limits: tuple[Limit, ...]) -> None:
        self._limiter = limiter
        self._rule = rule
        self._limits = limits
        self._bucket = Bucket(rule, limits)
        self._known = BucketCaller(self._bucket)
        limiter.engine.callers.add(self._known)
        self.move_after_s = min(limit.window_us for limit in limits) / 2_000_000
        """After how many seconds a unit is moved while its request is under way."""

    def name(self, key: str) -> tuple[str, str]:
        """Return the name of the line for a key."""
        return self._rule, self._limiter.key_for(key)

    async def take(self, key: str) -> Decision:
        """Charge a unit if there is room, for the first of a line. A task that is cancelled meanwhile pays nothing."""
        engine = self._limiter.engine
        known, subjects = engine.keys.learn(key)
        return await engine.lines.ask(((self._bucket, known, 1),), subjects)

    async def move(self, key: str, decision: Decision) -> Decision:
        """Charge a unit now instead of when it was charged before; return the new charge."""

        async def charge_and_refund() -> Decision:
            moved = await self._limiter.charge(key, self._limits, 1, rule=self._rule)
            await self._limiter.refund(decision)
            return moved

        return await self._to_the_end(charge_and_refund())

    async def hand_back(self, decision: Decision) -> None:
        """Hand a unit back that was not used."""
        await self._to_the_end(self._limiter.refund(decision))

    async def _to_the_end(self, work: Coroutine[Any, Any, T]) -> T:
        if self._limiter.engine.per_process:
            return await work  # there is nothing to wait for, so nothing to cancel
        return await to_the_end(work)


class Hold:
    """The unit of one request, from its sending until its answer has arrived.

    Args:
        units: The units that it is one of.
        key: The key under which it is counted.
        decision: Its charge.
    """

    def __init__(self, units: Units, key: str, decision: Decision) -> None:
        self._units = units
        self._key = key
        self._decision = decision

    async def keep(self) -> None:
        """Keep the unit from ageing out, until this is cancelled."""
        while True:
            await anyio.sleep(self._units.move_after_s)
            # Where the answer comes in the middle of this, the unit may count twice for one window.
            self._decision = await self._units.move(self._key, self._decision)

    async def settle(self) -> Decision:
        """Count the unit from now on: its answer has arrived, or nobody waits for it any more.

        Returns:
            The charge. The unit counts twice in its readings: the moved one was handed back after them.
        """
        return await self._units.move(self._key, self._decision)

    async def hand_back(self) -> None:
        """Hand the unit back: its request was not sent."""
        await self._units.hand_back(self._decision)
