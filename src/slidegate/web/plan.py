"""A plan: what the requests that match the same rules have in common."""

from __future__ import annotations

from collections.abc import Awaitable, Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from starlette.types import Scope

from ..core.bans.policy import BanPolicy
from ..core.buckets import Check
from ..core.decision import Decision, Reason
from .bound_rule import BoundRule
from .headers import Headers, Rendered
from .rules import Rule

if TYPE_CHECKING:
    from .visit import Visit

EXEMPT: Final = Decision(True, Reason.EXEMPT)
DISABLED: Final = Decision(True, Reason.DISABLED)


class Met(NamedTuple):
    """A rule that a request meets.

    Attributes:
        bound: The rule.
        ends: Whether it ends the list, if its condition holds.
    """

    bound: BoundRule
    ends: bool


class Signal(NamedTuple):
    """A reason for which a ban policy strikes, and the number of strikes."""

    ban_policy: BanPolicy
    weight: int
    reason: str


class Effect:
    """Something that happens when a response starts, or when it ends.

    Attributes:
        statuses: The statuses of responses for which `start` has to be called; None for all.
        ends: Whether `end` has to be called.
    """

    statuses: Collection[Any] | None = None
    ends = False

    def start(self, visit: Visit, status: Any) -> Awaitable[object] | None:
        """Act when the status of a response is known, before its first message is sent."""
        return None

    def end(self, visit: Visit, error: BaseException | None) -> Awaitable[object] | None:
        """Act once: after the last byte of the response, or when the application returns or raises `error` before."""
        return None


class Traits(NamedTuple):
    """The requests of a plan, besides the rules that they match.

    Attributes:
        is_preflight: They are CORS preflights.
        is_evaluated: The conditions of their rules are true.
    """

    is_preflight: bool = False
    is_evaluated: bool = False


class Plan:
    """What the requests that match the same rules have in common.

    Args:
        met: The rules, in order.
        strikes: The signals of ban policies for their path.
        traits: What else they have in common.
        headers: Writes their header fields.

    Attributes:
        met: The rules, in order.
        traits: The argument.
        headers: The argument.
        is_conditional: Whether a rule has a condition. The plan depends on its result then, and no rule has ended the
            list yet.
        is_exempt: Whether ban policies ignore these requests.
        strikes: The signals of ban policies for their path; none if they are exempt.
        limiting: The rules that limit them.
        shadows: The rules in shadow mode.
        waiting: The limiting rules with `wait`.
        is_direct: Whether one hit with `checks` decides them: there are limits, and none calls a function of the user's
            or waits.
        verdict: What decides if no limit counts: exempt, or blocked by a rule.
        effects: What depends on their responses.
        rendered: The header fields of their decisions without the numbers; None if these depend on functions or on a
            wait, or if there are none.
    """

    def __init__(self, met: Sequence[Met], strikes: Sequence[Signal], traits: Traits, headers: Headers) -> None:
        self.met = met
        self.traits = traits
        self.headers = headers
        self.is_conditional = False
        if not traits.is_evaluated:
            self.is_conditional = any(bound.rule.matching.when is not None for bound, _ in met)
        last = None
        if not self.is_conditional:  # else the conditions say which rule ends the list
            last = _ending(met)
        self.is_exempt = traits.is_preflight or (last is not None and last.action.exempts)
        self.strikes: Sequence[Signal] = ()
        if not self.is_exempt:
            self.strikes = strikes
        self.verdict = EXEMPT
        if last is not None and last.action.blocks:
            self.verdict = Decision(False, Reason.BLOCKED, by=last.label, status=last.action.status)
        self.limiting: list[BoundRule] = []
        self.shadows: list[BoundRule] = []
        for bound, _ in met:
            if bound.rule.counts and bound.rule.action.is_shadow:
                self.shadows.append(bound)
            elif bound.rule.counts and self.verdict.allowed:
                self.limiting.append(bound)
        self.waiting = [bound for bound in self.limiting if bound.rule.charging.wait_us]
        self.effects: Sequence[Effect] = ()
        self.rendered: Rendered | None = None
        calls_functions = any(bound.calls_functions for bound in self.limiting)
        self.is_direct = bool(self.limiting) and not self.waiting and not calls_functions
        if self.is_direct:
            self.rendered = headers.of_buckets([bucket for bound in self.limiting for bucket, _ in bound.charges])

    def checks(self, scope: Scope, client_key: str) -> list[Check]:
        """Return the checks of a request; only if the plan is direct."""
        checks: list[Check] = []
        for bound in self.limiting:  # as `BoundRule.checks` does; a call would cost each request
            key = client_key
            if bound.key is not None:
                key = bound.key_of(scope, client_key)
            for bucket, cost in bound.charges:
                checks.append((bucket, key, cost))
        return checks


def _ending(met: Sequence[Met]) -> Rule | None:
    """Return the rule that ends the list of those that a request meets; None if none does."""
    if met and met[-1].ends:
        return met[-1].bound.rule
    return None
