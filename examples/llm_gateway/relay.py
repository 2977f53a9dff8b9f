"""An answer on its way from the model to the client; the tokens of it are charged when it ends, however it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing

from anyio import CancelScope
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from slidegate import Decision, charge

from .upstream import Answer, ModelError

RULE = "tokens"
"""The rule that the tokens are charged on."""


class Relay(StreamingResponse):
    """Streams an answer as server-sent events, with an event at its end that names the cost.

    Args:
        request: The request that is answered.
        answer: The answer, which has begun.
    """

    media_type = "text/event-stream"

    def __init__(self, request: Request, answer: Answer) -> None:
        self._request = request
        self._answer = answer
        self._uncharged = 0
        self._events = self.events()
        super().__init__(self._events, headers={"Cache-Control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Stream; afterwards let go of the model, and charge the tokens that were streamed."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            # A client that leaves cancels the stream. The tokens that it has had are charged all the same.
            with CancelScope(shield=True):
                await self._events.aclose()
                await self._answer.close()
                await self.settle()

    async def events(self) -> AsyncGenerator[str, None]:
        """Yield the events of the answer."""
        sent = 0
        try:
            async with aclosing(self._answer.tokens()) as tokens:
                async for token in tokens:
                    self._uncharged += 1
                    sent += 1
                    yield event({"text": token})
        except ModelError as error:
            # The status is on its way already, so the error is an event.
            yield event({"error": str(error)}, "error")
        left = {state.name: state.remaining for state in (await self.settle()).states}
        yield event({"tokens": sent, "left": left}, "usage")

    async def settle(self) -> Decision:
        """Charge the tokens that were streamed and not charged yet; a debt refuses the next requests."""
        units, self._uncharged = self._uncharged, 0
        return await charge(self._request, units, rule=RULE)


def event(data: object, kind: str = "") -> str:
    """Write a server-sent event."""
    return (f"event: {kind}\n" if kind else "") + f"data: {json.dumps(data)}\n\n"
