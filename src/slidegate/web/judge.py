"""Who may pass: the order of judgement, in one place.

Allowlist, blocklist, then every rule that matches, in one question to the limiter.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

import anyio
from starlette.requests import HTTPConnection
from starlette.types import Message, Receive, Scope, Send

from ..core.decision import Bucket, Check, Decision, Reason
from ..core.networks import Networks
from ..core.protocols import Event
from ..limiter import Limiter
from .calls import Calls
from .gates import Gate, RuleSet, Selection
from .proxies import ClientAddress
from .responses import tightest
from .waiting import wait_turn

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

RECORD: Final = "slidegate"
"""The key of a request's `Record` in its ASGI scope."""
OFF: Final = "slidegate.off"
"""The key in the ASGI scope by which a middleware that is switched off says that it is there."""

_BLOCKED: Final = Decision(False, Reason.BLOCKED)
_ALLOWLISTED: Final = Decision(True, Reason.ALLOWLISTED)
_EXEMPT: Final = Decision(True, Reason.EXEMPT)
_MEMO: Final = 4_096
_STATUS: Final = {
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
        gate: The middleware nearest above, whose limits at endpoints are.
        refused: The refusal of a limit at an endpoint.
        answered: Whether a response has begun.
    """

    __slots__ = ("answered", "asked", "gate", "judges", "refused")

    judges: list[Judge]
    gate: RateLimitMiddleware
    refused: Decision | None
    answered: bool
    asked: list[tuple[object, str]]

    def note(self, judge: Judge, decision: Decision) -> None:
        """Add a decision."""
        self.judges.append(judge)
        self.append(decision)

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

    def uncounted(self, scope: Scope) -> bool:
        """Tell whether no limit counts this request: its client is on an allowlist, or it is a CORS preflight."""
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            return True
        return self.allowlisted()

    def allowlisted(self) -> bool:
        """Tell whether the client is on the allowlist of a gate on the way."""
        return any(decision.reason is Reason.ALLOWLISTED for decision in self)

    async def hand_back(self) -> None:
        """Hand back what was charged so far, except where refused requests count."""
        for judge, decision in zip(self.judges, self, strict=True):
            for place, (bucket, _, _) in enumerate(decision.checks if decision.charge else ()):
                if not bucket.count_denied:
                    await judge.limiter.refund(decision.take_out(place))

    @property
    def decision(self) -> Decision:
        """The decision that matters most: a refusal, else the one with the least left."""
        return tightest(self)


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
    """

    def __init__(
        self,
        limiter: Limiter,
        client: ClientAddress,
        rules: RuleSet,
        *,
        blocklist: Networks | None,
        allowlist: Networks | None,
        preflight: Bucket | None,
        calls: Calls,
    ) -> None:
        self.limiter = limiter
        self.rules = rules
        self._client = client
        self._blocklist = blocklist
        self._allowlist = allowlist
        self._preflight = preflight
        self._calls = calls
        self._exceeded: dict[tuple[str, str], None] = {}

    def decide(self, scope: Scope, before: Record) -> Decision | Awaitable[Decision]:
        """Decide about a request, given what gates further out decided."""
        client_key, address = self._client.locate(scope)
        if before and before.allowlisted():
            return _ALLOWLISTED
        if address is not None:
            if self._allowlist is not None and self._allowlist.covers(*address):
                return _ALLOWLISTED
            if self._blocklist is not None and self._blocklist.covers(*address):
                return _BLOCKED
        if scope.get("method") == "OPTIONS" and is_preflight(scope):
            return _EXEMPT if self._preflight is None else self.limiter.decide(((self._preflight, client_key, 1),))
        selection = self.rules.select(scope)
        if before:
            selection = self._without(selection, before)
        if selection.onlookers:
            return self._watched(selection, scope, client_key)
        return self._apply(selection, scope, client_key)

    def _without(self, selection: Selection, before: Record) -> Selection:
        """Leave out the named rules that a gate further out has counted in the same place."""
        gates = tuple(
            gate for gate in selection.gates if not (gate.rule.name and before.charged(gate.bucket, self.limiter))
        )
        outer = {judge for judge in before.judges if judge.limiter is self.limiter}
        looked = {rule for judge in outer for rule in judge.rules.looking}
        onlookers = tuple(gate for gate in selection.onlookers if not (gate.rule.name and gate.bucket.rule in looked))
        return Selection(gates, all(gate.plain for gate in gates), onlookers)

    def _apply(self, selection: Selection, scope: Scope, client_key: str) -> Decision | Awaitable[Decision]:
        """Put one question to the limiter about all gates that may refuse."""
        gates, plain, _ = selection
        if not gates:
            return _EXEMPT
        if not plain:
            return self._ask(selection, scope, client_key)
        limiter = self.limiter
        checks: list[Check] = []
        for gate in gates:
            checks.append(gate.check(scope, limiter, client_key))  # noqa: PERF401 - a comprehension is a call on 3.11
        return limiter.decide(checks)

    async def decide_at(self, gate: Gate, request: HTTPConnection) -> Decision | None:
        """Decide about a limit at an endpoint, where the request has its body; None if it is not counted."""
        client_key, _ = self._client.locate(request.scope)
        if gate.plain:
            return await self.limiter.hit_all((gate.check(request.scope, self.limiter, client_key),))
        check = await self._calls.check(gate, request.scope, self.limiter, client_key, request)
        return None if check is None else await self.limiter.hit_all((check,))

    async def _ask(self, selection: Selection, scope: Scope, client_key: str) -> Decision:
        """Decide with the help of functions of the user's."""
        checks = [await self._calls.check(gate, scope, self.limiter, client_key) for gate in selection.gates]
        counted = [check for check in checks if check is not None]
        return await self.limiter.hit_all(counted) if counted else _EXEMPT

    async def _watched(self, selection: Selection, scope: Scope, client_key: str) -> Decision:
        """Decide, and let the gates look on that never refuse: each on windows of its own."""
        answer = self._apply(selection, scope, client_key)
        decision = answer if isinstance(answer, Decision) else await answer
        for gate in selection.onlookers:
            shadow = gate.rule.action == "shadow"
            if shadow and not decision.allowed:
                continue  # it would not have been charged either
            check = await self._calls.check(gate, scope, self.limiter, client_key)
            if check is None:
                continue
            seen = await self.limiter.hit_all((check,))
            if not shadow:
                await self._track(gate, check[1], seen)
            elif not seen.allowed:
                message = f"rule {gate.rule.label!r} would have refused {check[1]}"
                self.limiter.tell(Event("shadow_refused", message, {"rule": gate.rule.label, "key": check[1]}))
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

    def settling(self, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that the status of the response settles what was reserved; without one, the charge stays."""
        if not any(bucket.rule in self.rules.reserving for bucket, _, _ in decision.checks):
            return send
        settled = False

        async def send_settled(message: Message) -> None:
            nonlocal settled
            if message["type"] in _STATUS and not settled:
                settled = True
                await self.settle(decision, message.get("status", _STATUS[message["type"]]))
            await send(message)

        return send_settled

    async def wait(self, receive: Receive, decision: Decision) -> Receive | None:
        """Wait for the place that was booked, and return the channel to go on with.

        None if the client left meanwhile: its place is handed back then, as when the request is cancelled.
        """
        turn: Receive | None = None
        try:
            turn = await wait_turn(receive, decision.wait_us)
        finally:
            if turn is None:
                with anyio.CancelScope(shield=True):
                    await self.limiter.refund(decision)
        return turn

    async def settle(self, decision: Decision, status: int) -> None:
        """Hand back what was reserved by rules that do not count an answer of this status."""
        if not decision.charge:
            return  # a refusal further in has handed everything back
        for place, (bucket, _, _) in enumerate(decision.checks):
            rule = self.rules.reserving.get(bucket.rule)
            if rule is None or rule.count_if is None or self._calls.counts(rule.count_if, rule.label, status):
                continue
            await self.limiter.refund(decision.take_out(place))


def is_preflight(scope: Scope) -> bool:
    """Tell whether an OPTIONS request is a CORS preflight (Fetch standard, section 3.2.2)."""
    names = {name for name, _ in scope["headers"]}
    return b"origin" in names and b"access-control-request-method" in names
