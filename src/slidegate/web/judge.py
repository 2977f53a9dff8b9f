"""The order of judgement, in one place.

The allowlist comes first, then the blocklist, then bans and every rule that applies, in one question to the limiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final, TypeAlias

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.bans.in_force import Guarded
from ..core.barred import Barred, RuleBlock
from ..core.decision import Check, Decision, Reason
from ..core.errors import StoreError
from ..core.memo import remember
from ..limiter import Limiter
from ..limiter.waiting import may_wait
from .bans.signals import AbuseWatch, Offence
from .callbacks import ShadowRules, UserCallbacks
from .endpoints.waiting_there import turn_at_endpoint
from .keys.client_ip import GONE, ClientAddress
from .network_files import AddressList
from .record import Step, allowlisted, charged
from .rule_set import BoundRule, RuleSet, Selection
from .rules import Rule
from .scope_keys import RECORD, is_preflight

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_BY_NO_RULE: Final = Reason.EXEMPT
_EXEMPT: Final = Decision(True, _BY_NO_RULE)
_GONE: Final = Barred(GONE)
_Demand: TypeAlias = tuple[Sequence[Check], Sequence[Guarded]]
"""A question to the store: its checks, and the keys that a ban may refuse."""


class Judge:
    """Decides about requests.

    Args:
        limiter: The limiter that counts.
        client: How the client's address is found.
        rules: The rules of the gate.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        calls: Calls the user's functions.
        abuse: Strikes, and names the keys whose bans refuse a request.
        figures: Whether units and the refusals of shadows are figures of their rules.

    Attributes:
        at_once: Whether no list is asked, and the store answers at once.
    """

    def __init__(
        self,
        limiter: Limiter,
        client: ClientAddress,
        rules: RuleSet,
        *,
        blocklist: AddressList | None,
        allowlist: AddressList | None,
        calls: UserCallbacks,
        abuse: AbuseWatch,
        figures: bool = True,
    ) -> None:
        self._limiter = limiter
        self._engine = limiter.engine
        self._lines = limiter.engine.lines
        self._rules = rules
        self._client = client
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._calls = calls
        self._abuse = abuse
        self._onlookers = ShadowRules(limiter, calls, self._hit, figures=figures)
        lists = allowlist is not None or blocklist is not None
        self._demands: dict[str, _Demand] = {}
        self._figures = figures
        for bound in rules.bound():
            self.price(bound)
        self.at_once = not lists and self._engine.decide_at_once is not None

    def price(self, bound: BoundRule) -> None:
        """Have the figures of a rule know what each of its requests costs."""
        if bound.cost != 1:
            self._engine.statistics.costs[bound.bucket.label] = bound.cost

    def decide_at_once(self, scope: Scope) -> Decision | None:
        """Decide about an ordinary request at the outermost gate, and say when; None where that takes `decide`.

        Only a gate without lists and ban policies may ask, whose rules are `RuleSet.at_once`.
        """
        hit = self._engine.decide_at_once
        if hit is None or scope["type"] != "http" or scope["method"] == "OPTIONS" or RECORD in scope:
            return None
        peer = scope.get("client")
        demand = self._demands.get(peer[0]) if peer else None
        if demand is None and (demand := self._demand(scope)) is None:
            return None
        checks, guarded = demand
        decision = hit(checks, guarded)
        if not checks and decision.allowed:
            decision.reason = _BY_NO_RULE
        return decision

    def _demand(self, scope: Scope) -> _Demand | None:
        """Return the question about a request, for `decide_at_once`; None where somebody else has to be asked before.

        Most gates ask the same about every request of a peer: such a question is made once.
        """
        client_key, address = self._client.locate(scope)
        limiting, plain, *_ = self._rules.select(scope)
        if address is None or not plain:
            return None
        demand = tuple([bound.check(scope, self._limiter, client_key) for bound in limiting]), (address,)
        if self._rules.always is None or self._client.trusted or any(bound.key is not None for bound in limiting):
            return demand
        return remember(self._demands, scope["client"][0], demand)

    def decide(self, scope: Scope, before: Sequence[Step]) -> Decision | Awaitable[Decision]:
        """Decide about a request, after the gates further out, whose steps are in `before`."""
        client_key, address = self._client.locate(scope)
        if before and allowlisted(before):
            return _ALLOWLISTED
        if address is not None:
            if self._allowlist is not None and self._allowlist.covers(*address):
                return _ALLOWLISTED
            if self._blocklist is not None and (name := self._blocklist.find(*address)) is not None:
                return Barred(name)
        elif client_key is GONE:
            return _GONE
        guarded: Sequence[Guarded] = (client_key if address is None else address,)
        if self._abuse.keyed:
            guarded = self._abuse.guarded(scope, client_key, address)
        selection = self._rules.select(scope)
        if selection.open:
            return self._decide_later(selection, scope, before, client_key, guarded)
        return self._decide_by(selection, scope, before, client_key, guarded)

    async def _decide_later(
        self, selection: Selection, scope: Scope, before: Sequence[Step], client_key: str, guarded: Sequence[Guarded]
    ) -> Decision:
        """Decide when the conditions of the rules have been asked."""
        selection = await self._calls.evaluated(self._rules, selection, scope)
        answer = self._decide_by(selection, scope, before, client_key, guarded)
        return answer if isinstance(answer, Decision) else await answer

    def _decide_by(
        self, selection: Selection, scope: Scope, before: Sequence[Step], client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Decide by the rules that apply to a request."""
        offences = self._look(selection, scope, before) if self._abuse.looks else ()
        if before:
            selection = self._without(selection, before)
        if offences or selection.onlookers:
            return self._watched(offences, selection, scope, client_key, guarded)
        return self._apply(selection, scope, client_key, guarded)

    def _look(self, selection: Selection, scope: Scope, before: Sequence[Step]) -> Sequence[Offence]:
        """Return the offences that the request itself shows; a browser sends a preflight by itself."""
        if selection.exempt or is_preflight(scope):
            return ()
        return self._abuse.look(scope, [step.side.abuse for step in before])

    def _uncounted(self, guarded: Sequence[Guarded], otherwise: Decision = _EXEMPT) -> Decision | Awaitable[Decision]:
        """Decide about a request that no limit counts: a ban refuses it; without one the decision is `otherwise`."""
        answer = self._engine.decide((), guarded)
        if isinstance(answer, Decision):
            return otherwise if answer.allowed else answer
        return self._uncounted_later(answer, otherwise)

    async def _uncounted_later(self, answer: Awaitable[Decision], otherwise: Decision) -> Decision:
        decision = await answer
        return otherwise if decision.allowed else decision

    def _without(self, selection: Selection, before: Sequence[Step]) -> Selection:
        """Leave out the named rules that a gate further out has counted in the same place."""
        limiting = tuple(
            bound
            for bound in selection.limiting
            if not (bound.rule.name and charged(before, bound.bucket, self._limiter))
        )
        looked = {rule for step in before if step.side.limiter is self._limiter for rule in step.side.onlookers}
        onlookers = tuple(
            bound for bound in selection.onlookers if not (bound.rule.name and bound.bucket.rule in looked)
        )
        return selection._replace(limiting=limiting, plain=all(bound.plain for bound in limiting), onlookers=onlookers)

    def _apply(
        self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Put one question to the limiter about all rules that may refuse."""
        limiting = selection.limiting
        if not limiting:
            blocked = selection.blocked
            return self._uncounted(guarded) if blocked is None else self._uncounted(guarded, _refusal_by(blocked))
        if not selection.plain:
            return self._ask(selection, scope, client_key, guarded)
        limiter = self._limiter
        checks: list[Check] = []
        for bound in limiting:
            checks.append(bound.check(scope, limiter, client_key))  # noqa: PERF401 - a comprehension is a call on 3.11
        return self._lines.decide(checks, guarded)

    async def decide_at(self, bound: BoundRule, request: HTTPConnection) -> Decision | None:
        """Decide about a limit at an endpoint, where the request has its body; None if it is not counted."""
        client_key, address = self._client.locate(request.scope)
        guarded = self._abuse.guarded(request.scope, client_key, address)
        if bound.rule.action != "limit":
            await self._onlookers.look(bound, request.scope, client_key, request)
            return None
        if bound.plain:
            answer = self._lines.decide((bound.check(request.scope, self._limiter, client_key),), guarded)
            decision = answer if isinstance(answer, Decision) else await answer
        else:
            if bound.rule.concurrency is not None:
                self._engine.expect_places()
            checks = await self._calls.checks(bound, request.scope, self._limiter, client_key, request)
            if not checks:
                return None
            decision = await self._hit(checks, guarded)
        if bound.rule.wait_us and may_wait(decision):
            decision = await turn_at_endpoint(request, decision, self._limiter, guarded)
        self.note_units(decision)
        return decision

    async def _hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Put one question to the limiter, unless a limits function says that nobody may pass: a ban goes before it."""
        shut = next((bucket for bucket, _, _ in checks if not bucket.limits), None)
        if shut is None:
            answer = self._lines.decide(checks, guarded)
            return answer if isinstance(answer, Decision) else await answer
        decision = await self._limiter.hit_all((), guarded)
        return Barred(shut.label, reason=Reason.NOBODY) if decision.allowed else decision

    async def _ask(self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]) -> Decision:
        """Decide with the help of the user's functions."""
        counted = await self._checks(selection, scope, client_key)
        decision = await self._hit(counted, guarded)
        self.note_units(decision)
        return decision if counted or not decision.allowed else _EXEMPT

    def note_units(self, decision: Decision) -> None:
        """Count the units that functions have asked for, beyond those that each request of the rule costs."""
        statistics = self._engine.statistics
        for bucket, _, cost in decision.checks if decision.allowed and self._figures else ():
            extra = 0 if bucket.held else cost - statistics.costs.get(bucket.label, 1)
            if extra:
                statistics.add(bucket.label, "extra_units", extra)

    async def _checks(self, selection: Selection, scope: Scope, client_key: str) -> list[Check]:
        """Return what the rules that limit a request charge."""
        checks: list[Check] = []
        for bound in selection.limiting:
            checks += await self._calls.checks(bound, scope, self._limiter, client_key)
        return checks

    async def _watched(
        self,
        offences: Sequence[Offence],
        selection: Selection,
        scope: Scope,
        client_key: str,
        guarded: Sequence[Guarded],
    ) -> Decision:
        """Strike for the offences of the request, which may ban it at once; decide; and let the rules look on that
        never refuse, each on windows of its own. A strike that may have banned it, and was not answered, refuses."""
        try:
            for offence in offences:
                await self._abuse.strike(offence, scope)
        except StoreError:
            return self._engine.unanswered()
        answer = self._apply(selection, scope, client_key, guarded)
        decision = answer if isinstance(answer, Decision) else await answer
        for bound in selection.onlookers if decision.reason is not Reason.BANNED else ():
            if decision.allowed or bound.rule.action == "track":  # a shadow would not have charged it either
                await self._onlookers.look(bound, scope, client_key)
        return decision


def _refusal_by(rule: Rule) -> Decision:
    return RuleBlock(rule.label, rule.status)
