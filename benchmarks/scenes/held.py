"""What stays: requests that wait for a turn, a million bans that end at once, and idle websockets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from ipaddress import ip_address

from starlette.routing import WebSocketRoute
from starlette.types import Message, Scope
from starlette.websockets import WebSocket

from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitMiddleware, Rule

from ..asgi import scope_of
from .field import Seen, loop_clock, play
from .fresh import FIRST_IPV4, PATH, PLENTY, starlette

WAITING = 2_500
WAITING_KEYS = 5
BANS = 1_000_000
STRIKERS = 20_000
STRIKES = 5
WEBSOCKETS = 5_000
CLOSED_S = 10
HOUR_US = 3_600_000_000
HONEST_PATH = "/shops/mine/400/7"


def address(number: int) -> str:
    return str(ip_address(FIRST_IPV4 + number))


def visits(clients: int, count: int) -> Iterator[Scope]:
    """Return requests of so many clients in turn."""
    return (scope_of(PATH, address(number % clients)) for number in range(count))


def rules_that_ban() -> list[Rule]:
    """Return rules that refuse the second request of a client, but none of the honest one."""
    return [Rule("/shops/{rest:path}", PLENTY, final=True), Rule("/ws", PLENTY, final=True), Rule("*", "1/hour")]


async def waiting(scale: float) -> Seen:
    """Let requests of five keys wait, as many of each as may, and as many again come."""
    most = int(WAITING * scale) // WAITING_KEYS
    app = starlette()
    rules = [
        Rule("/shops/{rest:path}", PLENTY, final=True),
        Rule("*", f"{max(most // 20, 1)}/second", wait="20s", wait_max=most),
    ]
    app.add_middleware(RateLimitMiddleware, rules=rules, limiter=Limiter(MemoryStore(clock=loop_clock())))
    count = most * WAITING_KEYS * 2
    return await play(app, starlette(), lambda count: visits(WAITING_KEYS, count), count, held=True, path=HONEST_PATH)


async def bans(scale: float) -> Seen:
    """Let a million bans end at once, and clients strike until they are banned."""
    held, strikers = int(BANS * scale), int(STRIKERS * scale)
    clock, later_us = loop_clock(), [0]
    store = MemoryStore(max_bans=held, clock=lambda: clock() + later_us[0])
    for number in range(held):
        store.bans.ban(f"2001:db8:{number >> 16:x}:{number & 0xFFFF:x}::/64", HOUR_US, "scene", "scene")
    app = starlette()
    policy = BanPolicy(f"{STRIKES}/10m")
    app.add_middleware(RateLimitMiddleware, rules=rules_that_ban(), limiter=Limiter(store), bans=policy)

    def end() -> None:
        later_us[0] = HOUR_US

    count = strikers * (STRIKES + 2)
    return await play(app, starlette(), lambda count: visits(strikers, count), count, begin=end, path=HONEST_PATH)


async def idle(websocket: WebSocket) -> None:
    """Accept a websocket and say nothing until it ends."""
    await websocket.accept()
    await websocket.receive()


class IdleClient:
    """The client of a websocket: it connects and says nothing; the server tells the application when it is closed."""

    def __init__(self, number: int) -> None:
        self.scope = {**scope_of("/ws", address(number)), "type": "websocket", "scheme": "ws", "subprotocols": []}
        self._coming: asyncio.Queue[Message] = asyncio.Queue()
        self._coming.put_nowait({"type": "websocket.connect"})

    async def receive(self) -> Message:
        return await self._coming.get()

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.close":
            self._coming.put_nowait({"type": "websocket.disconnect", "code": message["code"]})


async def websockets(scale: float) -> Seen:
    """Let the clients of idle websockets strike until they are banned; their websockets have to be closed in time."""
    count = int(WEBSOCKETS * scale)
    app, bare = starlette(), starlette()
    app.router.routes.append(WebSocketRoute("/ws", idle))
    policy = BanPolicy(f"{STRIKES}/10m")
    limiter = Limiter(MemoryStore(clock=loop_clock()))
    app.add_middleware(RateLimitMiddleware, rules=rules_that_ban(), limiter=limiter, bans=policy)
    clients = [IdleClient(number) for number in range(count)]
    open_ones = [asyncio.create_task(app(client.scope, client.receive, client.send)) for client in clients]
    await asyncio.sleep(0.1)

    async def all_closed() -> None:
        _, left = await asyncio.wait(open_ones, timeout=CLOSED_S)
        if left:
            raise SystemExit(f"{len(left)} websockets of banned clients are open after {CLOSED_S} s")

    requests = count * (STRIKES + 2)
    return await play(app, bare, lambda requests: visits(count, requests), requests, end=all_closed, path=HONEST_PATH)
