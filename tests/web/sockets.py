"""The client of a websocket behind a server that keeps ASGI's rules, and an application that only listens."""

import asyncio

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from starlette.websockets import WebSocket

from ..asgi import PEER, scope_of

BYE: Message = {"type": "websocket.disconnect", "code": 1000}


def texts(count: int) -> list[Message]:
    return [{"type": "websocket.receive", "text": f"m{number}"} for number in range(count)]


class Client:
    """A client that has sent some messages in advance, and keeps what comes back.

    Whoever closes, the application gets a disconnect, as behind every server.

    Attributes:
        came: What the server has sent.
        coming: What the application has not received yet.
    """

    def __init__(
        self, *sent: Message, address: str = PEER, strict: bool = False, gone: bool = False, **more: object
    ) -> None:
        """Make a client.

        Args:
            sent: What it sends after its handshake.
            address: Its address.
            strict: Whether the server sends no close code but 1000 and those of applications, as daphne does.
            gone: Whether it has gone by the time of a close.
            more: What else is in its scope, such as a method, as NGINX Unit named it.
        """
        self.scope = scope_of("/", type="websocket", client=(address, 1)) | more
        self.strict, self.gone = strict, gone
        self.came: list[Message] = []
        self.coming: asyncio.Queue[Message] = asyncio.Queue()
        for message in ({"type": "websocket.connect"}, *sent):
            self.coming.put_nowait(message)

    async def send(self, message: Message) -> None:
        code = message.get("code", 1000)
        if message["type"] == "websocket.close" and self.strict:
            if code != 1000 and not 3000 <= code <= 4999:
                raise Exception(f"invalid close code {code} (must be 1000 or from [3000, 4999])")
            assert not self.closes, f"{message} after the close"
        self.came.append(message)
        if message["type"] == "websocket.close" and self.gone:
            raise ConnectionResetError("the client has gone")
        if message["type"] == "websocket.close":
            self.coming.put_nowait({"type": "websocket.disconnect", "code": 1006})

    async def run(self, app: ASGIApp) -> "Client":
        await app(self.scope, self.coming.get, self.send)
        return self

    @property
    def received(self) -> list[Message]:
        """What the application has received after the handshake."""
        return self.scope.get("received", [])  # type: ignore[no-any-return]

    @property
    def closes(self) -> list[tuple[int, str]]:
        return [(m["code"], m.get("reason", "")) for m in self.came if m["type"] == "websocket.close"]


async def listening(scope: Scope, receive: Receive, send: Send) -> None:
    """Accept, and keep what comes until the connection ends, for the `Client` whose scope it is."""
    scope["received"], scope["send"] = [], send
    await receive()
    await send({"type": "websocket.accept"})
    while not scope["received"] or scope["received"][-1]["type"] == "websocket.receive":
        scope["received"].append(await receive())


async def greet(websocket: WebSocket) -> None:
    await websocket.accept()
    await websocket.close()


async def welcome(websocket: WebSocket) -> None:
    """Do as `greet` does, as another endpoint."""
    await greet(websocket)
