"""What the gates on the way of one request decided, step by step: ``scope["slidegate"]``.

A record is data. A gate adds a `Step`, and a limit at an endpoint adds one for the gate above it; `strike`, `charge`,
the header fields and the statistics read them. Its `side` is the gate nearest above, where limits at endpoints count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.types import Receive, Scope

from ..core.decision import Bucket, Decision, Reason
from ..limiter import Limiter
from .answers.refusal_events import RefusalEvents
from .answers.refusals import Refusals
from .answers.tightest import tightest
from .bans.signals import AbuseWatch
from .finishing import hand_back
from .settling import FAILED, Reservation, is_failure, settle
from .waiting import Ahead

if TYPE_CHECKING:
    from .endpoints.rate_limit import EndpointBuckets

_ALLOWLISTED: Final = Reason.ALLOWLISTED


class Side(NamedTuple):
    """One gate, as a record shows it: the same for all of its requests.

    Attributes:
        limiter: The limiter that the gate asks.
        names: The names that users gave to its rules.
        onlookers: The identities of its rules that only look on.
        abuse: Its ban policies, and the signals that they strike for.
        endpoints: The buckets of the limits at endpoints below it.
        refusals: Answers the requests that it, or one of those limits, refuses.
        refusal_events: Tells of them.
    """

    limiter: Limiter
    names: Set[str]
    onlookers: Set[str]
    abuse: AbuseWatch
    endpoints: EndpointBuckets
    refusals: Refusals
    refusal_events: RefusalEvents


class Step:
    """One decision about a request. It has no constructor, because a tuple with names takes twice the time.

    Attributes:
        decision: The decision.
        side: The gate that asked for it.
        spared: Whether the policies of that gate hold nothing of this request against its client.
    """

    __slots__ = ("decision", "side", "spared")

    decision: Decision
    side: Side
    spared: bool


def charged(steps: Iterable[Step], bucket: Bucket, limiter: Limiter) -> bool:
    """Tell whether the same windows were asked about the same limits on this request."""
    for step in steps:
        if step.side.limiter is limiter:
            for other, _, _ in step.decision.checks:
                if other.rule == bucket.rule and other.limits == bucket.limits:
                    return True
    return False


def allowlisted(steps: Iterable[Step]) -> bool:
    """Tell whether the client is on the allowlist of a gate on the way."""
    for step in steps:  # noqa: SIM110 - a generator is a call on CPython 3.11, and so is a member of an enumeration
        if step.decision.reason is _ALLOWLISTED:
            return True
    return False


class Record:
    """What the gates on the way of one request decided, the outermost first.

    It has no constructor, because that takes as long as a third call: `refuse` or `Outgoing.open` sets its attributes.

    Attributes:
        first: The decision of the outermost gate, if it has decided at once: its step is made when somebody looks.
        side: The gate nearest above: limits at endpoints count there, and it answers their refusals.
        refused: The refusal of a limit at an endpoint.
        handlers: The exception handlers of the application in which it refused.
        answered: Whether a response has begun.
        userless: Whether a limit by user counted the address, because the user was not known.
        unfinished: Whether the outermost gate has more to do when the application answers, and when it is done: a limit
            at an endpoint has refused, or the request holds places.
        waited: Whether the request waited for room.
    """

    __slots__ = (
        "_steps", "ahead", "answered", "asked", "first", "handlers", "looked", "refused", "reserved", "side",
        "unfinished", "userless", "waited",
    )  # fmt: skip

    _steps: list[Step] | None
    first: Decision
    side: Side
    refused: Decision | None
    handlers: Any
    answered: bool
    unfinished: bool
    userless: bool
    waited: bool
    ahead: list[Ahead]
    asked: list[tuple[object, str]]
    looked: list[str]
    reserved: list[Reservation]

    def refuse(self, decision: Decision, side: Side) -> None:
        """Begin and end: the outermost gate has refused at once."""
        self.first = decision
        self.side = side
        self._steps = self.refused = None
        self.answered = True
        self.userless = self.waited = self.unfinished = False

    @property
    def steps(self) -> list[Step]:
        """The steps so far."""
        steps = self._steps
        if steps is None:
            step = Step()
            step.decision, step.side, step.spared = self.first, self.side, False
            self._steps = steps = [step]
        return steps

    def note(self, decision: Decision, side: Side, *, spared: bool) -> None:
        """Add the decision of a gate."""
        steps = self.steps  # the first of them is of the gate that has been the nearest until now
        step = Step()
        step.decision = decision
        step.side = self.side = side
        step.spared = spared
        steps.append(step)

    def add(self, decision: Decision) -> None:
        """Add a decision that a limit at an endpoint asked for."""
        self.note(decision, self.side, spared=self.spared_by(self.side))

    def turn(self, limit: object, rule: str) -> int:
        """Return how many other limits at endpoints asked under this identity before: 0 for the first.

        Two limits that look alike are two limits all the same, and each counts.
        """
        asked: list[tuple[object, str]] | None = getattr(self, "asked", None)
        if asked is None:
            self.asked = [(limit, rule)]
            return 0
        others = [other for other, identity in asked if identity == rule]
        if not any(other is limit for other in others):
            asked.append((limit, rule))
            others.append(limit)
        return next(place for place, other in enumerate(others) if other is limit)

    def has_looked(self, rule: str) -> bool:
        """Tell whether a rule at an endpoint that only looks on has seen this request; it has from now on."""
        looked: list[str] | None = getattr(self, "looked", None)
        if looked is None:
            self.looked = [rule]
            return False
        if rule in looked:
            return True
        looked.append(rule)
        return False

    def reserve(self, reservation: Reservation) -> None:
        """Note units of a limit at an endpoint that the start of the answer settles."""
        self.unfinished = True
        reserved: list[Reservation] | None = getattr(self, "reserved", None)
        self.reserved = [reservation] if reserved is None else [*reserved, reservation]

    def read_ahead(self, receive: Receive) -> Ahead:
        """Return the channel of this request, to be read while it waits, until it ends."""
        self.unfinished = True
        channel = Ahead(receive)
        self.ahead = [*getattr(self, "ahead", ()), channel]
        return channel

    def names(self) -> set[str]:
        """Return the names of all rules that stand on the way of this request, counted or not."""
        return self.side.endpoints.names().union(*(step.side.names for step in self.steps))

    def spared_by(self, side: Side) -> bool:
        """Tell whether the policies of a gate hold nothing of this request against its client."""
        for step in self.steps:  # noqa: SIM110 - as above
            if (step.spared and step.side is side) or step.decision.reason is _ALLOWLISTED:
                return True
        return False

    def own_answer(self) -> bool:
        """Tell whether the answer is the refusal of a gate, and not the application's."""
        return self.refused is not None or not self.steps[-1].decision.allowed

    async def hand_back(self) -> None:
        """Hand back all units charged so far, also if the request is cancelled meanwhile.

        Units stay charged where refused requests count.
        """
        await hand_back(
            [
                (step.side.limiter, step.decision.take_out(place))
                for step in self.steps
                for place, (bucket, _, _) in enumerate(step.decision.checks if step.decision.charge else ())
                if not bucket.count_denied
            ]
        )

    async def give_up(self, scope: Scope, error: BaseException) -> None:
        """Settle what limits at endpoints have reserved, and let go, for an exception of the application's."""
        if self.refused is None and not self.answered and is_failure(error):
            await settle(scope, getattr(self, "reserved", ()), FAILED)
        if self.refused is not None and not self.answered:
            self.tell(scope, self.refused, None)
        await self.end()

    def tell(self, scope: Scope, refused: Decision, status: int | None) -> None:
        """Tell of the refusal of a limit at an endpoint; there is no status where the client left before the answer."""
        if self.side.limiter.engine.events.refused:
            self.side.refusal_events.tell(scope, refused, status)

    async def end(self) -> None:
        """Let go of all that the request holds: the application is done."""
        channels: Sequence[Ahead] = getattr(self, "ahead", ())
        self.ahead = []  # as with `ENDED`: whoever holds the request shall not hold the server's channel
        for channel in channels:
            channel.close()
        await self.let_go()

    async def let_go(self) -> None:
        """Hand back the places that the request holds, also if it is cancelled meanwhile. It does so once."""
        await hand_back(
            [(step.side.limiter, part) for step in self.steps for part in step.decision.take_apart(held=True)]
        )

    @property
    def decisions(self) -> list[Decision]:
        """The decisions of all steps."""
        return [step.decision for step in self.steps]

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one after which the fewest more such requests fit."""
        return tightest(self.decisions)
