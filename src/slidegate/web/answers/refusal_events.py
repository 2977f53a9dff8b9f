"""The event that tells of a refused request. It is made only where somebody hears it."""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ...core.bans.in_force import shown
from ...core.barred import RuleBlock
from ...core.decision import Decision, Reason, ceil_s
from ...core.logs import escaped
from ...core.store import Event
from ...limiter import Limiter
from ..keys.client_ip import ClientAddress
from ..scope_keys import STATUS
from .refusals import Refusals
from .refused_routes import RefusedRoutes

_MOST: Final = 64
"""How many characters of a method are shown; all that are registered are shorter."""
_HANDSHAKE: Final = "WEBSOCKET"


class RefusalEvents:
    """Tells the observers of a limiter of the requests that its gate refuses, each once.

    Args:
        limiter: The limiter.
        client: Finds the client's address.
        refusals: Answers refused requests.
        app: The application, where no scope names one.
    """

    def __init__(self, limiter: Limiter, client: ClientAddress, refusals: Refusals, app: ASGIApp) -> None:
        self._tell = limiter.engine.tell
        self._client = client
        self._refusals = refusals
        self._routes = RefusedRoutes(app)

    async def send(self, scope: Scope, receive: Receive, send: Send, refusal: Decision) -> None:
        """Answer a refused request, and tell of it as soon as its answer begins, or when it ends without one."""
        told = False

        async def watch(message: Message) -> None:
            nonlocal told
            if not told and message["type"] in STATUS:
                told = True
                self.tell(scope, refusal, message.get("status") or STATUS[message["type"]])
            await send(message)

        try:
            await self._refusals.send(scope, receive, watch, refusal)
        finally:
            if not told:
                self.tell(scope, refusal, None)

    def tell(self, scope: Scope, refusal: Decision, status: int | None) -> None:
        """Tell of a refused request.

        Args:
            scope: Its scope.
            refusal: The decision.
            status: The status of the answer; None where the client left before it.
        """
        client, _ = self._client.locate(scope)
        state, ban = refusal.binding, refusal.ban
        key = state.key if state is not None else client if ban is None else ban.key
        wait_us = refusal.retry_after_us if state is None else state.retry_after_us
        rule, by = "", refusal.by
        if state is not None:
            rule = next((bucket.label for bucket, _, _ in refusal.checks if bucket.rule == state.rule), state.rule)
        elif isinstance(refusal, RuleBlock) or refusal.reason is Reason.NOBODY:
            rule, by = by, ""
        method = escaped(scope.get("method", _HANDSHAKE), _MOST)
        route = self._routes.of(scope)
        limit = "" if state is None else str(state.limit)
        why = " ".join(filter(None, (str(refusal.reason), f"by {by}" if by else "", f"under {rule!r}" if rule else "")))
        details = {
            "key": key,
            "client": client,
            "rule": rule,
            "limit": limit,
            "reason": str(refusal.reason),
            "by": by,
            "route": route,
            "method": method,
            "retry_after_s": None if wait_us is None else ceil_s(wait_us),
            "status": status,
        }
        self._tell(Event("refused", f"{shown(key)} was refused: {why}, {method} on {route}", details))
