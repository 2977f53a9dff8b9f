"""The exception that is raised where a refusal prevents a call. `errors` has all others."""

from __future__ import annotations

from .decision import Decision
from .errors import SlidegateError


class RateLimitExceeded(SlidegateError):
    """A call under `Limiter.limited`, or a request to an endpoint under `RateLimit`, was refused and did not run.

    At an endpoint it is also a Starlette `HTTPException`, so an exception handler may answer it.

    Attributes:
        decision: The refusal.
    """

    # Does not call `super().__init__`: the next class may be `HTTPException`, which takes other arguments.
    def __init__(self, decision: Decision) -> None:
        self.decision = decision

    @property
    def retry_after_s(self) -> float | None:
        """Seconds until the same call is admitted if nothing else is charged; None if never."""
        wait_us = self.decision.retry_after_us
        if wait_us is None:
            return None
        return wait_us / 1_000_000

    def __str__(self) -> str:
        checks = self.decision.checks
        rule = checks[0][0].label if checks else self.decision.by
        wait_s, reason = self.retry_after_s, self.decision.reason
        if wait_s:
            when = f"for {wait_s:g} s"
        elif reason == "limited":
            # Only permits have no time: another request has to return one.
            when = "until a permit is free"
        else:
            when = "for ever"
        return f"{rule} is refused {when}: {reason}"
