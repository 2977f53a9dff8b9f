"""Units that are charged before the answer is known, and handed back when it shows that they do not count.

A rule with `count_if` reserves: the start of the response decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from starlette.requests import ClientDisconnect
from starlette.types import Message, Scope, Send
from starlette.websockets import WebSocketDisconnect

from ..core.decision import Decision
from ..limiter import Limiter
from .callbacks import UserCallbacks
from .finishing import hand_back
from .rule_set import RuleSet
from .rules import Rule
from .scope_keys import STATUS

FAILED: Final[Message] = {"type": "http.response.start", "status": 500, "headers": ()}
"""The start of the answer that a server makes of an exception, outside of all middlewares."""


class Reservation(NamedTuple):
    """Units that a limit at an endpoint has charged before the answer is known."""

    rule: Rule
    limiter: Limiter
    decision: Decision
    calls: UserCallbacks


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
        calls: Calls the `count_if` functions.
    """

    def __init__(self, limiter: Limiter, rules: RuleSet, calls: UserCallbacks) -> None:
        self._limiter = limiter
        self._reserving = rules.reserving
        self._calls = calls

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
