"""The outcome of a request, as observers receive it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from ..core.decision import Decision, Reason

Ended: TypeAlias = Literal["refused", "success", "exception", "cancelled"]


class Outcome(NamedTuple):
    """The outcome of one request, or of one call of the limiter without HTTP.

    Attributes:
        allowed: Whether it was admitted.
        reason: Why it was admitted or refused: the reason of its most significant decision.
        rules: The names of the rules that counted it; for a refusal, of those that refused it.
        shadow_rules: The names of the shadow rules that would have refused it.
        route: The methods and the template of the route, for example ``GET /items/{id}``; ``(no route)`` if no route
            was found, None without HTTP. For a request refused before, the label of the rule, list or policy that
            refused it.
        status: The status code of the response; 0 if none was sent, or without HTTP.
        ended: ``refused``; or, if admitted, ``success``, ``exception`` or ``cancelled``. A client that disconnects
            while it waits for room is ``cancelled``, and not allowed.
        began_us: When it arrived, in microseconds of Unix time.
        duration_us: The time until the last byte of its response was sent, in microseconds.
        waited_us: How long it waited for room, in microseconds; None if it did not wait.
        decisions: Its decisions, those of outer middlewares first.
    """

    allowed: bool
    reason: Reason
    rules: tuple[str, ...]
    shadow_rules: tuple[str, ...]
    route: str | None
    status: int
    ended: Ended
    began_us: int
    duration_us: int
    waited_us: int | None
    decisions: Sequence[Decision]


def outcome_of_question(decision: Decision, now_us: int) -> Outcome:
    """Return the outcome of a call of the limiter without HTTP, made at `now_us`."""
    ended: Ended = "success" if decision.allowed else "refused"
    waited_us = 0 if decision.reason is Reason.WAITED else None
    rules = tuple([bucket.label for bucket, _, _ in decision.checks]) if decision.allowed else refusing_rules(decision)
    return Outcome(decision.allowed, decision.reason, rules, (), None, 0, ended, now_us, 0, waited_us, (decision,))


def refusing_rules(refusal: Decision) -> tuple[str, ...]:
    """Return the names of the rules that had no room; empty for a refusal for another reason."""
    if not refusal.readings:
        return ()
    if len(refusal.checks) == 1:
        return (refusal.checks[0][0].label,)
    violated = {state.rule for state in refusal.violated}
    return tuple([bucket.label for bucket, _, _ in refusal.checks if bucket.name in violated])
