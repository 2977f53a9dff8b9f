"""Who may pass: the order of judgement, in one place.

Allowlist, blocklist, then bans and every rule that matches, in one question to the limiter.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from functools import partial
from typing import Final

from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from ..core.bans.in_force import Ban, Guarded, shown
from ..core.barred import Barred
from ..core.decision import Bucket, Check, Decision, Reason
from ..core.protocols import Event
from ..limiter import Limiter
from .bans.signals import AbuseWatch, Offence
from .finishing import hand_back
from .keys.client_ip import GONE, ClientAddress
from .lists.network_files import AddressList
from .record import STATUS, Record, is_preflight
from .rules.rule_set import Gate, RuleSet, Selection
from .rules.user_functions import Calls
from .waiting import wait_turn
from .websockets.ban_sweep import OpenSockets
from .websockets.held import Held
from .websockets.message_limits import Watched

_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)
_GONE: Final = Barred(GONE)
_MEMO: Final = 4_096


class Judge:
    """Decides about requests.

    Args:
        limiter: Where the counts live.
        client: How the client's address is found.
        rules: What applies to which request.
        blocklist: Networks refused before anything is counted.
        allowlist: Networks let through before anything is counted.
        preflight: What CORS preflights are counted in, if they are.
        calls: Calls the functions of the user's.
        abuse: Sees to it that who keeps abusing is banned.
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
        self.limiter = limiter
        self.rules = rules
        self._client = client
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._preflight = preflight
        self._calls = calls
        self.abuse = abuse
        self._exceeded: dict[tuple[str, str], None] = {}
        self._sockets = OpenSockets(limiter.internals.find_ban)

    def decide(self, scope: Scope, before: Record) -> Decision | Awaitable[Decision]:
        """Decide about a request, given what gates further out decided."""
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
        if self.abuse.keyed:
            guarded = self.abuse.guarded(scope, client_key, address)
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            if self.rules.takes(scope, "OPTIONS"):
                return self._reserve(scope, before, client_key, guarded)
            return self._preflown(client_key, guarded)
        selection = self.rules.select(scope)
        if self.abuse.looks and not selection.exempt and (offences := self.abuse.look(scope, before)):
            return self._struck(offences, selection, scope, before, client_key, guarded)
        return self._decide(selection, scope, before, client_key, guarded)

    async def _struck(
        self,
        offences: Sequence[Offence],
        selection: Selection,
        scope: Scope,
        before: Record,
        client_key: str,
        guarded: Sequence[Guarded],
    ) -> Decision:
        """Decide after what the request itself has done: a strike may ban it at once."""
        for offence in offences:
            await self.abuse.strike(offence, scope, *self._client.locate(scope))
        answer = self._decide(selection, scope, before, client_key, guarded)
        return answer if isinstance(answer, Decision) else await answer

    def _decide(
        self, selection: Selection, scope: Scope, before: Record, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Decide by bans and limits."""
        if before:
            selection = self._without(selection, before)
        if selection.onlookers:
            return self._watched(selection, scope, client_key, guarded)
        return self._apply(selection, scope, client_key, guarded)

    async def _reserve(self, scope: Scope, before: Record, client_key: str, guarded: Sequence[Guarded]) -> Decision:
        """Decide about what looks like a CORS preflight, and may come to an endpoint that takes OPTIONS."""
        selection = self._without(self.rules.select(scope), before)
        counted = [await self._calls.check(gate, scope, self.limiter, client_key) for gate in selection.gates]
        checks = [check for check in counted if check is not None]
        if self._preflight is not None:
            checks.append((self._preflight, client_key, 1))
        if checks:
            return await self.limiter.hit_all(checks, guarded)
        answer = self._uncounted(guarded)
        return answer if isinstance(answer, Decision) else await answer

    def _preflown(self, client_key: str, guarded: Sequence[Guarded]) -> Decision | Awaitable[Decision]:
        """Decide about a CORS preflight, which no rule counts."""
        if self._preflight is None:
            return self._uncounted(guarded)
        return self.limiter.internals.decide(((self._preflight, client_key, 1),), guarded)

    def _uncounted(self, guarded: Sequence[Guarded]) -> Decision | Awaitable[Decision]:
        """Decide about a request that no limit counts: a ban refuses it all the same."""
        answer = self.limiter.internals.decide((), guarded)
        if isinstance(answer, Decision):
            return _EXEMPT if answer.allowed else answer
        return self._uncounted_later(answer)

    async def _uncounted_later(self, answer: Awaitable[Decision]) -> Decision:
        decision = await answer
        return _EXEMPT if decision.allowed else decision

    def _without(self, selection: Selection, before: Record) -> Selection:
        """Leave out the named rules that a gate further out has counted in the same place."""
        gates = tuple(
            gate for gate in selection.gates if not (gate.rule.name and before.charged(gate.bucket, self.limiter))
        )
        outer = {judge for judge in before.judges if judge.limiter is self.limiter}
        looked = {rule for judge in outer for rule in judge.rules.looking}
        onlookers = tuple(gate for gate in selection.onlookers if not (gate.rule.name and gate.bucket.rule in looked))
        return Selection(gates, all(gate.plain for gate in gates), onlookers, selection.exempt)

    def _apply(
        self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision | Awaitable[Decision]:
        """Put one question to the limiter about all gates that may refuse."""
        gates = selection.gates
        if not gates:
            return self._uncounted(guarded)
        if not selection.plain:
            return self._ask(selection, scope, client_key, guarded)
        limiter = self.limiter
        checks: list[Check] = []
        for gate in gates:
            checks.append(gate.check(scope, limiter, client_key))  # noqa: PERF401 - a comprehension is a call on 3.11
        return limiter.internals.decide(checks, guarded)

    async def decide_at(self, gate: Gate, request: HTTPConnection) -> Decision | None:
        """Decide about a limit at an endpoint, where the request has its body; None if it is not counted."""
        client_key, address = self._client.locate(request.scope)
        guarded = self.abuse.guarded(request.scope, client_key, address)
        if gate.plain:
            return await self.limiter.hit_all((gate.check(request.scope, self.limiter, client_key),), guarded)
        check = await self._calls.check(gate, request.scope, self.limiter, client_key, request)
        return None if check is None else await self._hit((check,), guarded)

    async def _hit(self, checks: Sequence[Check], guarded: Sequence[Guarded] = ()) -> Decision:
        """Put one question to the limiter, unless a limits function says that nobody may pass: a ban goes before it."""
        shut = next((bucket for bucket, _, _ in checks if not bucket.limits), None)
        if shut is None:
            return await self.limiter.hit_all(checks, guarded)
        decision = await self.limiter.hit_all((), guarded)
        return Barred(shut.label, reason=Reason.NOBODY) if decision.allowed else decision

    async def _ask(self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]) -> Decision:
        """Decide with the help of functions of the user's."""
        checks = [await self._calls.check(gate, scope, self.limiter, client_key) for gate in selection.gates]
        counted = [check for check in checks if check is not None]
        decision = await self._hit(counted, guarded)
        return decision if counted or not decision.allowed else _EXEMPT

    async def _watched(
        self, selection: Selection, scope: Scope, client_key: str, guarded: Sequence[Guarded]
    ) -> Decision:
        """Decide, and let the gates look on that never refuse: each on windows of its own."""
        answer = self._apply(selection, scope, client_key, guarded)
        decision = answer if isinstance(answer, Decision) else await answer
        for gate in selection.onlookers if decision.reason is not Reason.BANNED else ():
            shadow = gate.rule.action == "shadow"
            if shadow and not decision.allowed:
                continue  # it would not have been charged either
            check = await self._calls.check(gate, scope, self.limiter, client_key)
            if check is None:
                continue
            if gate.hot is not None:
                for key, found in gate.hot.hit(check[1], self.limiter.internals.statistics.now_us()):
                    await self._calls.exceeded(gate, key, found)
                continue
            seen = await self._hit((check,))
            if seen.reason is Reason.BANNED:
                continue  # it was not counted
            if not shadow:
                await self._track(gate, check[1], seen)
            elif not seen.allowed:
                message = f"rule {gate.rule.label!r} would have refused {shown(check[1])}"
                event = Event("shadow_refused", message, {"rule": gate.rule.label, "key": check[1]})
                self.limiter.internals.tell(event)
        return decision

    async def _track(self, gate: Gate, key: str, seen: Decision) -> None:
        """Call the user's function when a key passes the limit, and not again before it has cooled."""
        known = gate.bucket.rule, key
        if seen.allowed:
            self._exceeded.pop(known, None)
        elif known not in self._exceeded:
            if len(self._exceeded) >= _MEMO:
                self._exceeded.pop(next(iter(self._exceeded)))
            self._exceeded[known] = None
            await self._calls.exceeded(gate, key, seen)

    def spares(self, scope: Scope) -> bool:
        """Tell whether nothing that this request does is held against its client: a rule exempts it, or a browser sends
        it by itself. To be asked before the application, which may change the path that rules see."""
        return self.rules.select(scope).exempt or (scope.get("method") == "OPTIONS" and is_preflight(scope))

    async def strike(self, scope: Scope, offence: Offence) -> Ban | None:
        """Count a strike of whoever sent a request."""
        return await self.abuse.strike(offence, scope, *self._client.locate(scope))

    async def strike_refused(self, scope: Scope, record: Record) -> None:
        """Strike for a refusal by a limit, under the policies of all gates on the way."""
        for place, judge in enumerate(record.judges):
            if not record.spared_by(judge):
                await judge.abuse.refused(scope, record.judges[:place])

    def watch_over(self, scope: Scope, receive: Receive, send: Send, record: Record) -> Watched:
        """Return a websocket that ends when its client is banned."""
        client_key, address = self._client.locate(scope)
        guarded = Held(self.limiter, scope, lambda scope: self.abuse.guarded(scope, client_key, address))

        async def banned() -> bool:
            return await self.limiter.internals.find_ban(guarded()) is not None

        return Watched(receive, send, guarded, banned, partial(self.strike_refused, scope, record), self._sockets.add)

    def settling(self, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that the status of the response settles what was reserved; without one, the charge stays."""
        if not any(bucket.rule in self.rules.reserving for bucket, _, _ in decision.checks):
            return send
        settled = False

        async def send_settled(message: Message) -> None:
            nonlocal settled
            if message["type"] in STATUS and not settled:
                settled = True
                await self.settle(decision, message.get("status", STATUS[message["type"]]))
            await send(message)

        return send_settled

    def returning(self, scope: Scope, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that what a preflight has reserved goes back if another middleware answers, and no endpoint.

        The router writes the endpoint into the scope before it calls it.
        """
        before = scope.get("endpoint")
        begun = False

        async def send_returned(message: Message) -> None:
            nonlocal begun
            if message["type"] in STATUS and not begun:
                begun = True
                if scope.get("endpoint") is not before:
                    await self.settle(decision, message.get("status", STATUS[message["type"]]))
                else:
                    await self._return(decision)
            await send(message)

        return send_returned

    async def _return(self, decision: Decision) -> None:
        """Hand back what was reserved by rules, and keep what the limit of preflights counts."""
        checks = decision.checks if decision.charge else ()
        places = [place for place, (bucket, _, _) in enumerate(checks) if bucket is not self._preflight]
        await hand_back([(self.limiter, decision.take_out(place)) for place in places])

    async def wait(self, receive: Receive, decision: Decision) -> Receive | None:
        """Wait for the place that was booked, and return the channel to go on with.

        None if the client left meanwhile: its place is handed back then, as when the request is cancelled.
        """
        turn: Receive | None = None
        try:
            turn = await wait_turn(receive, decision.wait_us)
        finally:
            if turn is None:
                await hand_back([(self.limiter, decision)])
        return turn

    async def settle(self, decision: Decision, status: int) -> None:
        """Hand back what was reserved by rules that do not count an answer of this status."""
        if not decision.charge:
            return  # a refusal further in has handed everything back
        parts = []
        for place, (bucket, _, _) in enumerate(decision.checks):
            rule = self.rules.reserving.get(bucket.rule)
            if rule is None or rule.count_if is None or self._calls.counts(rule.count_if, rule.label, status):
                continue
            parts.append((self.limiter, decision.take_out(place)))
        await hand_back(parts)
