"""The order of judgement, in one place.

The allowlist comes first, then the blocklist, then bans and every rule that matches, in one question to the limiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Scope

from ..core.bans.in_force import Guarded, shown
from ..core.barred import Barred
from ..core.decision import Bucket, Check, Decision, Reason
from ..core.protocols import Event
from ..limiter import Limiter
from .bans.signals import AbuseWatch, Offence
from .keys.client_ip import GONE, ClientAddress
from .lists.network_files import AddressList
from .record import Record
from .rules.rule_set import BoundRule, RuleSet, Selection
from .rules.user_functions import Calls
from .scope_keys import is_preflight

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)
_GONE: Final = Barred(GONE)
_MEMO: Final = 4_096


class Judge:
    """Decides about requests.

    Args:
        limiter: The limiter that counts.
        client: How the client's address is found.
        rules: The rules of the gate.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        preflight: The bucket of CORS preflights, if they are counted.
        calls: Calls the user's functions.
        abuse: Strikes, and names the keys whose bans refuse a request.
    """

    def __init__(
        self,
        limiter: Limiter,
        client: ClientAddress,
        rules: RuleSet,
        *,
        blocklist: AddressList | None,
        allowlist: AddressList | None,
        preflight: Bucket | None,
        calls: Calls,
        abuse: AbuseWatch,
    ) -> None:
        self._limiter = limiter
        self._internals = limiter.internals
        self._rules = rules
        self._client = client
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._preflight = preflight
        self._calls = calls
        self._abuse = abuse
        self._exceeded: dict[tuple[str, str], None] = {}

    def decide(self, scope: Scope, before: Record) -> Decision | Awaitable[Decision]:
        """Decide about a request, after the gates further out, whose steps are in `before`."""
        client_key, address = self._client.locate(scope)
        if before and before.allowlisted():
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
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            return self._preflown(scope, before, client_key, guarded)
        selection = self._rules.select(scope)
        offences = self._look(selection, scope, before) if self._abuse.looks else ()
        if before:
            selection = self._without(selection, before)
        if offences or selection.onlookers:
            return self._watched(offences, selection, scope, client_key, guarded)
        return self._apply(selection, scope, client_key, guarded)

    def _look(self, selection: Selection, scope: Scope, before: Record) -> Sequence[Offence]:
        """Return the offences that the request itself shows."""
        return () if selection.exempt else self._abuse.look(scope, [step.side.abuse for step in before])

    async def _reserve(self, scope: Scope, before: Record, client_key: str, guarded: Sequence[Guarded]) -> Decision:
        """Decide about a request that looks like a CORS preflight, and may come to an endpoint that takes OPTIONS."""
        selection = self._without(self._rules.select(scope), before)
        counted = [await self._calls.check(bound, scope, self._limiter, client_key) for bound in selection.limiting]
        checks = [check for check in counted if check is not None]
        if self._preflight is not None:
            checks.append((self._preflight, client_key, 1))
        if checks:
            return await self._limiter.hit_all(checks, guarded)
        answer = self._uncounted(guarded)
        return answer if isinstance(answer, Decision) else await answer

    def _preflown(
        self, scope: Scope, before: Record, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Decide about a CORS preflight: rules count it only where an endpoint may answer it."""
        if self._rules.takes(scope, "OPTIONS"):
            return self._reserve(scope, before, client_key, guarded)
        if self._preflight is None:
            return self._uncounted(guarded)
        return self._internals.decide(((self._preflight, client_key, 1),), guarded)

    def _uncounted(self, guarded: Sequence[Guarded]) -> Decision | Awaitable[Decision]:
        """Decide about a request that no limit counts: a ban refuses it all the same."""
        answer = self._internals.decide((), guarded)
        if isinstance(answer, Decision):
            return _EXEMPT if answer.allowed else answer
        return self._uncounted_later(answer)

    async def _uncounted_later(self, answer: Awaitable[Decision]) -> Decision:
        decision = await answer
        return _EXEMPT if decision.allowed else decision

    def _without(self, selection: Selection, before: Record) -> Selection:
        """Leave out the named rules that a gate further out has counted in the same place."""
        limiting = tuple(
            bound
            for bound in selection.limiting
            if not (bound.rule.name and before.charged(bound.bucket, self._limiter))
        )
        looked = {rule for step in before if step.side.limiter is self._limiter for rule in step.side.onlookers}
        onlookers = tuple(
            bound for bound in selection.onlookers if not (bound.rule.name and bound.bucket.rule in looked)
        )
        return Selection(limiting, all(bound.plain for bound in limiting), onlookers, selection.exempt)

    def _apply(
        self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Put one question to the limiter about all rules that may refuse."""
        limiting = selection.limiting
        if not limiting:
            return self._uncounted(guarded)
        if not selection.plain:
            return self._ask(selection, scope, client_key, guarded)
        limiter = self._limiter
        checks: list[Check] = []
        for bound in limiting:
            checks.append(bound.check(scope, limiter, client_key))  # noqa: PERF401 - a comprehension is a call on 3.11
        return self._internals.decide(checks, guarded)

    async def decide_at(self, bound: BoundRule, request: HTTPConnection) -> Decision | None:
        """Decide about a limit at an endpoint, where the request has its body; None if it is not counted."""
        client_key, address = self._client.locate(request.scope)
        guarded = self._abuse.guarded(request.scope, client_key, address)
        if bound.plain:
            return await self._limiter.hit_all((bound.check(request.scope, self._limiter, client_key),), guarded)
        check = await self._calls.check(bound, request.scope, self._limiter, client_key, request)
        return None if check is None else await self._hit((check,), guarded)

    async def _hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Put one question to the limiter, unless a limits function says that nobody may pass: a ban goes before it."""
        shut = next((bucket for bucket, _, _ in checks if not bucket.limits), None)
        if shut is None:
            return await self._limiter.hit_all(checks, guarded)
        decision = await self._limiter.hit_all((), guarded)
        return Barred(shut.label, reason=Reason.NOBODY) if decision.allowed else decision

    async def _ask(self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]) -> Decision:
        """Decide with the help of the user's functions."""
        checks = [await self._calls.check(bound, scope, self._limiter, client_key) for bound in selection.limiting]
        counted = [check for check in checks if check is not None]
        decision = await self._hit(counted, guarded)
        return decision if counted or not decision.allowed else _EXEMPT

    async def _watched(
        self,
        offences: Sequence[Offence],
        selection: Selection,
        scope: Scope,
        client_key: str,
        guarded: Sequence[Guarded],
    ) -> Decision:
        """Strike for the offences of the request, which may ban it at once; decide; and let the rules look on that
        never refuse, each on windows of its own."""
        for offence in offences:
            await self._abuse.strike(offence, scope)
        answer = self._apply(selection, scope, client_key, guarded)
        decision = answer if isinstance(answer, Decision) else await answer
        for bound in selection.onlookers if decision.reason is not Reason.BANNED else ():
            shadow = bound.rule.action == "shadow"
            if shadow and not decision.allowed:
                continue  # it would not have been charged either
            check = await self._calls.check(bound, scope, self._limiter, client_key)
            if check is None:
                continue
            if bound.hot is not None:
                for key, found in bound.hot.hit(check[1], self._internals.statistics.now_us()):
                    await self._calls.exceeded(bound, key, found)
                continue
            seen = await self._hit((check,))
            if seen.reason is Reason.BANNED:
                continue  # it was not counted
            if not shadow:
                await self._track(bound, check[1], seen)
            elif not seen.allowed:
                message = f"rule {bound.rule.label!r} would have refused {shown(check[1])}"
                self._internals.tell(Event("shadow_refused", message, {"rule": bound.rule.label, "key": check[1]}))
        return decision

    async def _track(self, bound: BoundRule, key: str, seen: Decision) -> None:
        """Call the user's function when a key passes the limit, and not again before it has cooled."""
        known = bound.bucket.rule, key
        if seen.allowed:
            self._exceeded.pop(known, None)
        elif known not in self._exceeded:
            if len(self._exceeded) >= _MEMO:
                self._exceeded.pop(next(iter(self._exceeded)))
            self._exceeded[known] = None
            await self._calls.exceeded(bound, key, seen)
