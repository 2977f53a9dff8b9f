"""What the gates on the way of one request decided."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from ..core.decision import Bucket, Decision, Reason
from ..limiter import Limiter
from .answers.header_fields import tightest
from .finishing import hand_back

if TYPE_CHECKING:
    from .judge import Judge
    from .middleware import RateLimitMiddleware

RECORD: Final = "slidegate"
"""The key of a request's `Record` in its ASGI scope."""
OFF: Final = "slidegate.off"
"""The key in the ASGI scope by which a middleware that is switched off says that it is there."""
STATUS: Final = {
    "http.response.start": 200,
    "websocket.accept": 101,
    "websocket.http.response.start": 403,
    "websocket.close": 403,
}
"""What starts a response, and its status where the message does not say."""


class Record(list[Decision]):
    """What the gates on the way of one request decided, the outermost first.

    Attributes:
        judges: Who decided: one for each decision.
        sparing: Those of them whose policies hold nothing of this request against its client.
        gate: The middleware nearest above, whose limits at endpoints are.
        refused: The refusal of a limit at an endpoint.
        answered: Whether a response has begun.
        userless: Whether a limit by user counted the address, because the user was not known; set where that is so.
    """

    __slots__ = ("answered", "asked", "gate", "judges", "refused", "sparing", "userless")

    judges: list[Judge]
    sparing: list[Judge]
    gate: RateLimitMiddleware
    refused: Decision | None
    answered: bool
    asked: list[tuple[object, str]]
    userless: bool

    def note(self, judge: Judge, decision: Decision) -> None:
        """Add a decision."""
        self.judges.append(judge)
        self.append(decision)

    def spared_by(self, judge: Judge) -> bool:
        """Tell whether the policies of a gate hold nothing of this request against its client."""
        return judge in self.sparing or self.allowlisted()

    def charged(self, bucket: Bucket, limiter: Limiter) -> bool:
        """Tell whether the same windows were asked about the same limits on this request."""
        return any(
            other.rule == bucket.rule and other.limits == bucket.limits and judge.limiter is limiter
            for judge, decision in zip(self.judges, self, strict=True)
            for other, _, _ in decision.checks
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
        names = self.gate.endpoints.names()
        return names.union(*(judge.rules.names() for judge in self.judges))

    def allowlisted(self) -> bool:
        """Tell whether the client is on the allowlist of a gate on the way."""
        return any(decision.reason is Reason.ALLOWLISTED for decision in self)

    def own_answer(self) -> bool:
        """Tell whether what goes out is the refusal of a gate, not an answer of the application."""
        return self.refused is not None or not self[-1].allowed

    async def hand_back(self) -> None:
        """Hand back what was charged so far, except where refused requests count: all of it, also if the request is
        cancelled meanwhile."""
        await hand_back(
            [
                (judge.limiter, decision.take_out(place))
                for judge, decision in zip(self.judges, self, strict=True)
                for place, (bucket, _, _) in enumerate(decision.checks if decision.charge else ())
                if not bucket.count_denied
            ]
        )

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one after which the fewest more such requests fit."""
        return tightest(self)


def is_preflight(scope: Scope) -> bool:
    """Tell whether an OPTIONS request is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names
