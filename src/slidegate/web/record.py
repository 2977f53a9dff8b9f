"""What the gates on the way of one request decided, step by step: ``scope["slidegate"]``.

A record is data. A gate adds a `Step`, and a limit at an endpoint adds one for the gate above it; `strike`, `charge`,
the header fields and the statistics read them. Its `side` is the gate nearest above, where limits at endpoints count.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Set
from typing import NamedTuple

from starlette.types import Receive, Scope, Send

from ..core.decision import Bucket, Decision, Reason
from ..limiter import Limiter
from .answers.tightest import tightest
from .bans.signals import AbuseWatch
from .endpoints.endpoint_buckets import EndpointBuckets
from .finishing import hand_back


class Side(NamedTuple):
    """One gate, as a record shows it: the same for all of its requests.

    Attributes:
        limiter: The limiter that the gate asks.
        names: The names that users gave to its rules.
        onlookers: The identities of its rules that only look on.
        abuse: Its ban policies, and the signals that they strike for.
        endpoints: The buckets of the limits at endpoints below it.
        refuse: Answers a request that one of those limits refused.
    """

    limiter: Limiter
    names: Set[str]
    onlookers: Set[str]
    abuse: AbuseWatch
    endpoints: EndpointBuckets
    refuse: Callable[[Scope, Receive, Send, Decision], Awaitable[None]]


class Step:
    """One decision about a request. It has no constructor: every request makes one, and a tuple takes twice the time.

    Attributes:
        decision: The decision.
        side: The gate that asked for it.
        spared: Whether the policies of that gate hold nothing of this request against its client.
    """

    __slots__ = ("decision", "side", "spared")

    decision: Decision
    side: Side
    spared: bool


class Record(list[Step]):
    """What the gates on the way of one request decided, the outermost first.

    Attributes:
        side: The gate nearest above: limits at endpoints count there, and it answers their refusals.
        refused: The refusal of a limit at an endpoint.
        answered: Whether a response has begun.
        userless: Whether a limit by user counted the address, because the user was not known.
    """

    __slots__ = ("answered", "asked", "refused", "side", "userless")

    side: Side
    refused: Decision | None
    answered: bool
    userless: bool
    asked: list[tuple[object, str]]

    def add(self, decision: Decision) -> None:
        """Add a decision that a limit at an endpoint asked for."""
        step = Step()
        step.decision = decision
        step.side = self.side
        step.spared = self.spared_by(self.side)
        self.append(step)

    def charged(self, bucket: Bucket, limiter: Limiter) -> bool:
        """Tell whether the same windows were asked about the same limits on this request."""
        return any(
            other.rule == bucket.rule and other.limits == bucket.limits and step.side.limiter is limiter
            for step in self
            for other, _, _ in step.decision.checks
        )

    def turn(self, limit: object, rule: str) -> int:
        """Return how many other limits at endpoints asked under this identity before: 0 for the first.

        Two limits that look alike are two limits all the same, and each counts.
        """
        asked: list[tuple[object, str]] | None = getattr(self, "asked", None)
        if asked is None:
            asked = self.asked = []
        others = [other for other, identity in asked if identity == rule]
        if not any(other is limit for other in others):
            asked.append((limit, rule))
            others.append(limit)
        return next(place for place, other in enumerate(others) if other is limit)

    def names(self) -> set[str]:
        """Return the names of all rules that stand on the way of this request, counted or not."""
        return self.side.endpoints.names().union(*(step.side.names for step in self))

    def allowlisted(self) -> bool:
        """Tell whether the client is on the allowlist of a gate on the way."""
        return any(step.decision.reason is Reason.ALLOWLISTED for step in self)

    def spared_by(self, side: Side) -> bool:
        """Tell whether the policies of a gate hold nothing of this request against its client."""
        return any(step.spared for step in self if step.side is side) or self.allowlisted()

    def own_answer(self) -> bool:
        """Tell whether the answer is the refusal of a gate, and not the application's."""
        return self.refused is not None or not self[-1].decision.allowed

    async def hand_back(self) -> None:
        """Hand back all units charged so far, also if the request is cancelled meanwhile.

        Units stay charged where refused requests count.
        """
        await hand_back(
            [
                (step.side.limiter, step.decision.take_out(place))
                for step in self
                for place, (bucket, _, _) in enumerate(step.decision.checks if step.decision.charge else ())
                if not bucket.count_denied
            ]
        )

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of all steps."""
        return [step.decision for step in self]

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one after which the fewest more such requests fit."""
        return tightest(self.decisions)
