"""Units that are charged before the answer is known, and handed back when it shows that they do not count.

A rule with `count_if` reserves: the start of the response decides. A preflight reserves too: it counts under rules
only if an endpoint answers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Bucket, Decision
from ..limiter import Limiter
from .finishing import hand_back
from .rules.rule import Rule
from .rules.rule_set import RuleSet
from .rules.user_functions import Calls
from .scope_keys import STATUS

FAILED: Final[Message] = {"type": "http.response.start", "status": 500, "headers": ()}
"""The start of the answer that a server makes of an exception, outside of all middlewares."""


class Reservation(NamedTuple):
    """Units that a limit at an endpoint has charged before the answer is known."""

    rule: Rule
    limiter: Limiter
    decision: Decision
    calls: Calls


def is_failure(error: BaseException) -> bool:
    """Tell whether a server makes a 500 of an exception: not of one that says that the client has gone."""
    return isinstance(error, Exception) and not isinstance(error, (ClientDisconnect, WebSocketDisconnect))


def by_start(scope: Scope, send: Send, reserved: Sequence[Reservation]) -> Send:
    """Wrap `send` so that its first message, the start of a response, settles the units of limits at endpoints."""
    settled = False

    async def send_settled(message: Message) -> None:
        nonlocal settled
        if not settled:
            settled = True
            await settle(scope, reserved, message)
        await send(message)

    return send_settled


async def settle(scope: Scope, reserved: Sequence[Reservation], start: Message) -> None:
    """Hand back the units of limits at endpoints that do not count an answer with this start."""
    status, fields = start.get("status", STATUS[start["type"]]), start.get("headers", ())
    parts = []
    for rule, limiter, decision, calls in reserved:
        if not calls.counts(rule, status, fields, scope):
            parts += [(limiter, part) for part in decision.take_apart(held=False)]
    await hand_back(parts)


class Settling:
    """Settles the reserved units of one gate.

    Args:
        limiter: The limiter that charged them.
        rules: The rules of the gate.
        preflight: The bucket of CORS preflights, if they are counted.
        calls: Calls the `count_if` functions.
    """

    def __init__(self, limiter: Limiter, rules: RuleSet, preflight: Bucket | None, calls: Calls) -> None:
        self._limiter = limiter
        self._reserving = rules.reserving
        self._preflight = preflight
        self._calls = calls

    def buckets(self) -> Sequence[Bucket]:
        """Return the bucket of CORS preflights, if they are counted."""
        return () if self._preflight is None else (self._preflight,)

    def by_answer(self, scope: Scope, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that the start of the response settles the units; without a response, the charge stays."""
        if not any(bucket.rule in self._reserving for bucket, _, _ in decision.checks):
            return send
        settled = False

        async def send_settled(message: Message) -> None:
            nonlocal settled
            if message["type"] in STATUS and not settled:
                settled = True
                await self.settle(scope, decision, message)
            await send(message)

        return send_settled

    def by_endpoint(self, scope: Scope, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that the units of a preflight go back if another middleware answers it, and no endpoint.

        The router writes the endpoint into the scope before it calls it.
        """
        before = scope.get("endpoint")
        begun = False

        async def send_returned(message: Message) -> None:
            nonlocal begun
            if message["type"] in STATUS and not begun:
                begun = True
                if scope.get("endpoint") is not before:
                    await self.settle(scope, decision, message)
                else:
                    await self._return(decision)
            await send(message)

        return send_returned

    async def _return(self, decision: Decision) -> None:
        """Hand back the units that rules reserved, and keep those that the limit of preflights counts."""
        checks = decision.checks if decision.charge else ()
        kept = self._preflight
        places = [place for place, (bucket, _, _) in enumerate(checks) if bucket is not kept and not bucket.held]
        await hand_back([(self._limiter, decision.take_out(place)) for place in places])

    async def settle(self, scope: Scope, decision: Decision, start: Message) -> None:
        """Hand back the units of rules that do not count an answer with this start."""
        if not decision.charge:
            return  # a refusal further in has handed everything back
        status, fields = start.get("status", STATUS[start["type"]]), start.get("headers", ())
        parts = []
        for place, (bucket, _, _) in enumerate(decision.checks):
            rule = None if bucket.held else self._reserving.get(bucket.rule)
            if rule is None or self._calls.counts(rule, status, fields, scope):
                continue
            parts.append((self._limiter, decision.take_out(place)))
        await hand_back(parts)
