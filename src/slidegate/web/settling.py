"""Units that are charged before the answer is known, and handed back when it shows that they do not count.

A rule with `count_if` reserves: the status of the response decides. A preflight reserves too: it counts under rules
only if an endpoint answers it.
"""

from __future__ import annotations

from starlette.types import Message, Scope, Send

from ..core.decision import Bucket, Decision
from ..limiter import Limiter
from .finishing import hand_back
from .rules.rule_set import RuleSet
from .rules.user_functions import Calls
from .scope_keys import STATUS


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

    def by_status(self, send: Send, decision: Decision) -> Send:
        """Wrap `send` so that the status of the response settles the units; without a response, the charge stays."""
        if not any(bucket.rule in self._reserving for bucket, _, _ in decision.checks):
            return send
        settled = False

        async def send_settled(message: Message) -> None:
            nonlocal settled
            if message["type"] in STATUS and not settled:
                settled = True
                await self._settle(decision, message.get("status", STATUS[message["type"]]))
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
                    await self._settle(decision, message.get("status", STATUS[message["type"]]))
                else:
                    await self._return(decision)
            await send(message)

        return send_returned

    async def _return(self, decision: Decision) -> None:
        """Hand back the units that rules reserved, and keep those that the limit of preflights counts."""
        checks = decision.checks if decision.charge else ()
        places = [place for place, (bucket, _, _) in enumerate(checks) if bucket is not self._preflight]
        await hand_back([(self._limiter, decision.take_out(place)) for place in places])

    async def _settle(self, decision: Decision, status: int) -> None:
        """Hand back the units of rules that do not count an answer of this status."""
        if not decision.charge:
            return  # a refusal further in has handed everything back
        parts = []
        for place, (bucket, _, _) in enumerate(decision.checks):
            rule = self._reserving.get(bucket.rule)
            if rule is None or rule.count_if is None or self._calls.counts(rule.count_if, rule.label, status):
                continue
            parts.append((self._limiter, decision.take_out(place)))
        await hand_back(parts)
