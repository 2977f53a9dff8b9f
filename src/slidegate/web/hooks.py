"""The hooks that depend on the status or the end of a response: `count_if`, strikes, permits, and read-ahead channels.

The hook that reports outcomes is in `outcomes`. Each is there only for requests whose rules need it.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from ..core.reservation import Reservation
from ..limiter.aio import in_background
from .exchange import Exchange, Hook
from .waiting import Peeked, refund

if TYPE_CHECKING:
    from ..limiter import Limiter
    from .bans import BanSignals
    from .callbacks import UserCallbacks
    from .rule_set import BoundRule, Plan


class CountIf(Hook):
    """Hands back the units that a rule has charged, unless its `count_if` counts the response.

    Args:
        calls: Calls the `count_if`.
        limiter: The limiter that charges.
        bound: The rule.
    """

    def __init__(self, calls: UserCallbacks, limiter: Limiter, bound: BoundRule) -> None:
        self._calls = calls
        self._limiter = limiter
        self._bound = bound

    async def start(self, exchange: Exchange, status: Any) -> None:
        """See `Hook.start`."""
        charged = [
            (decision, index)
            for decision in exchange.own
            if decision.allowed
            for index, (bucket, _, _) in enumerate(decision.checks)
            if self._bound.counts_in(bucket)
        ]
        if charged and not await self._calls.counts(self._bound.rule, status):
            for decision, index in charged:
                await refund((self._limiter, decision.take_back(index)))


class StrikeForStatus(Hook):
    """Strikes for the status of a response; a status that is no signal costs a look-up.

    Args:
        signals: The ban policies.
    """

    after_refusal = False

    def __init__(self, signals: BanSignals) -> None:
        self._signals = signals

    def start(self, exchange: Exchange, status: Any) -> Awaitable[object] | None:
        """See `Hook.start`."""
        if not self._signals.are_for(status) or exchange.is_uncounted:
            return None
        return self._signals.strike_for(status, exchange.scope, exchange)


class Release(Hook):
    """Releases the permits of a request, even if it is cancelled meanwhile. Of several, the first releases all.

    Args:
        limiter: The limiter that charges.
    """

    starts = False
    ends = True

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter

    def end(self, exchange: Exchange, error: BaseException | None) -> Awaitable[object] | None:
        """See `Hook.end`."""
        permits, exchange.permits = exchange.permits, ()
        for name, tenant in permits:  # before the store, so that the right waiter asks for the permit
            self._limiter.engine.queues.release(name, tenant)
        reservations: list[Reservation] = []
        for decision in exchange.own:
            reservations += decision.take_back(held=True)
        if not reservations:
            return None
        released = refund((self._limiter, reservations))
        if isinstance(error, GeneratorExit):  # a coroutine that is being closed cannot await
            in_background(released)
            return None
        return released


def hooks_of(plan: Plan, limiter: Limiter, calls: UserCallbacks, signals: BanSignals) -> list[Hook]:
    """Return the hooks for the responses to the requests of a plan. Permits are last: their release is awaited."""
    strikes = signals.on_status and not (plan.is_exempt or plan.kind.is_endpoint)
    hooks: list[Hook] = [StrikeForStatus(signals)] if strikes else []
    hooks += [CountIf(calls, limiter, bound) for bound in plan.limiting if bound.rule.count_if is not None]
    return [*hooks, Release(limiter)] if any(bound.permits is not None for bound in plan.limiting) else hooks


class StopReading(Hook):
    """Ends the read-ahead of a request that has waited.

    Args:
        channel: Its channel.

    Attributes:
        channel: The same.
    """

    starts = False
    stays = True

    def __init__(self, channel: Peeked) -> None:
        self.channel = channel

    def end(self, exchange: Exchange, error: BaseException | None) -> None:
        """See `Hook.end`."""
        self.channel.close()
