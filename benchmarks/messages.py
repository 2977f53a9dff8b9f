"""A message on an accepted websocket: other code runs before each, as between two requests."""

from typing import Final

from starlette.types import Message, Receive, Scope, Send

from slidegate import MessageLimits, RateLimitMiddleware

from .rounds import Round
from .traffic import client_of, now_ns, other_code, scope_of

MESSAGES: Final = 200
"""The messages of a round."""


async def listener(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept a websocket, and read its messages."""
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.connect":
            await send({"type": "websocket.accept"})


class Server:
    """The server of one websocket, on which a client sends messages.

    Attributes:
        taken_ns: The nanoseconds that the application took for all of them.
    """

    def __init__(self) -> None:
        self.taken_ns = self._began_ns = 0
        self._number = -1

    async def receive(self) -> Message:
        self.taken_ns += now_ns() - self._began_ns
        self._number += 1
        if self._number == 0:
            message = {"type": "websocket.connect"}
        elif self._number <= MESSAGES:
            await other_code(self._number)
            message = {"type": "websocket.receive", "text": "hi"}
        else:
            message = {"type": "websocket.disconnect", "code": 1000}
        if self._number == 1:
            self.taken_ns = 0  # the handshake is no message
        self._began_ns = now_ns()
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.close":
            raise RuntimeError("the websocket was closed")


async def candidate(limited: bool) -> Round:
    """Return the rounds of a websocket, with a limit or without a middleware."""

    async def one_round(turn: int) -> float:
        limits = MessageLimits("2000000000/minute")
        app = RateLimitMiddleware(listener, messages=limits) if limited else listener
        server, scope = Server(), {**scope_of("/feed", client_of(turn % 256)), "type": "websocket"}
        del scope["method"]
        await app(scope, server.receive, server.send)
        return server.taken_ns / MESSAGES / 1_000

    return one_round
