"""A plan: what the requests that match the same rules have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from starlette.types import Scope

from ..core.bans.policy import BanPolicy
from ..core.buckets import Bucket, Check
from ..core.decision import Decision, Reason
from .bound_rule import BoundRule
from .headers import Headers, Rendered
from .rules import Rule

EXEMPT: Final = Decision(True, Reason.EXEMPT)
DISABLED: Final = Decision(True, Reason.DISABLED)
LEFT: Final = Decision(False, Reason.LIMITED, by="left", status=429)
"""Decides about a request whose client has left while it waited: nobody strikes for it, reports or answers it."""


class RuleMatch(NamedTuple):
    """A rule that matches a request.

    Attributes:
        ends: Whether it ends the list, if its condition holds.
    """

    bound: BoundRule
    ends: bool = False


class Signal(NamedTuple):
    """A reason for which a ban policy strikes, and the number of strikes."""

    ban_policy: BanPolicy
    weight: int
    reason: str


class Traits(NamedTuple):
    """The requests of a plan, besides the rules that they match.

    Attributes:
        is_preflight: They are CORS preflights.
        is_evaluated: The conditions of their rules are true.
        is_enforced: Ban policies and limits at endpoints are enforced: the client is on no list, and nothing is off.
        is_brief: The rules do not remember their plan, as a request may have made its rule for itself.
    """

    is_preflight: bool = False
    is_evaluated: bool = False
    is_enforced: bool = True
    is_brief: bool = False


class Plan:
    """What the requests that match the same rules have in common.

    Args:
        matches: The rules, in order.
        strikes: The signals of ban policies for their path.
        traits: What else they have in common.
        headers: Writes their header fields.

    Attributes:
        matches: The rules, in order.
        is_conditional: Whether a rule has a condition. The plan depends on its result then, and no rule has ended the
            list yet.
        is_exempt: Whether ban policies ignore these requests.
        is_enforced: See `Traits`.
        strikes: The signals of ban policies for their path; none if they are exempt.
        limiting: The rules that limit them.
        shadows: The rules in shadow mode.
        reserving: The limiting rules that may hand back what they have charged, by the marks of their buckets.
        is_followed: Whether there are such rules, or shadow rules, which an admission has consequences for.
        waiting: The limiting rules with `wait`; none beside one that counts refusals.
        calls_functions: Whether a rule that limits them calls a function of the user's.
        is_direct: Whether one hit with `checks` decides them: there are limits, which call no function and do not wait,
            and neither conditions nor honeypots.
        verdict: What decides if no limit counts: exempt, or blocked by a rule.
        effects: What depends on their responses: each an `Effect` of `visit.py`.
        rendered: The header fields of an admission by these limits, without the numbers; None if functions or a wait
            decide which limits that are, or if there are none.
    """

    def __init__(
        self, matches: Sequence[RuleMatch], strikes: Sequence[Signal], traits: Traits, headers: Headers
    ) -> None:
        self.matches = matches
        self.traits = traits
        self.is_enforced = traits.is_enforced
        has_condition = any(bound.rule.when is not None for bound, _ in matches)
        self.is_conditional = has_condition and not traits.is_evaluated
        last: Rule | None = None
        if matches and matches[-1].ends and not self.is_conditional:  # else the conditions say which rule ends the list
            last = matches[-1].bound.rule
        self.is_exempt = traits.is_preflight or (last is not None and last.exempts)
        self.strikes: Sequence[Signal] = ()
        if not self.is_exempt:
            self.strikes = strikes
        self.verdict = EXEMPT
        if last is not None and last.blocks:
            self.verdict = Decision(False, Reason.BLOCKED, by=last.label, status=last.status)
        self.limiting: list[BoundRule] = []
        self.shadows: list[BoundRule] = []
        for bound, _ in matches:
            if bound.rule.counts and bound.rule.is_shadow:
                self.shadows.append(bound)
            elif bound.rule.counts and self.verdict.allowed:
                self.limiting.append(bound)
        self.waiting = _waiting(self.limiting)
        self.reserving = {bound.mark: bound.rule for bound in self.limiting if bound.rule.reserves}
        self.is_followed = bool(self.reserving or self.shadows)
        self.effects: Sequence[Any] = ()
        self.rendered: Rendered | None = None
        self.calls_functions = any(bound.calls_functions for bound in self.limiting)
        is_one_hit = bool(self.limiting) and not self.waiting and not self.calls_functions
        self.is_direct = is_one_hit and not self.is_conditional and not self.strikes
        self._by_client: Sequence[tuple[Bucket, int]] = ()  # what a request charges, if all rules count by client
        if all(bound.key is None for bound in self.limiting):
            self._by_client = [charge for bound in self.limiting for charge in bound.charges]
        if is_one_hit:
            charges = [charge for bound in self.limiting for charge in bound.charges]
            self.rendered = headers.of([(bucket, "", cost) for bucket, cost in charges])

    def checks(self, scope: Scope, client_key: str) -> list[Check]:
        """Return the checks of a request; only if no rule that limits it calls a function."""
        checks: list[Check] = []
        for bucket, cost in self._by_client:
            checks.append((bucket, client_key, cost))
        if not checks:
            for bound in self.limiting:
                checks += bound.checks(scope, client_key)
        return checks


def _waiting(limiting: Sequence[BoundRule]) -> Sequence[BoundRule]:
    """Return the rules that let a request wait; none beside one that counts refusals, as a wait asks many times."""
    if any(bound.rule.count_denied for bound in limiting):
        return ()
    return [bound for bound in limiting if bound.rule.wait_us]
