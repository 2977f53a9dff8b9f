"""Websockets: refused at the handshake, closed at a limit of messages, and closed when their client is banned."""

import asyncio

import anyio
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Receive, Scope, Send

from slidegate import BanPolicy, Limiter, MemoryStore, MessageLimits, RateLimitMiddleware
from slidegate.testing import FakeClock, limits_clock

from ..asgi import PEER
from ..remote_stores import SlowStore
from ..virtual_time import turns
from .sockets import BYE, Client, listening, texts


@given(
    st.lists(st.tuples(st.sampled_from(["192.0.2.1", "192.0.2.2"]), st.integers(0, 4), st.integers(0, 2)), max_size=8),
    st.sampled_from([None, "GET", "CONNECT"]),
    st.sampled_from([None, "100/hour"]),
)
def test_the_messages_of_all_websockets_of_a_client_are_admitted_as_the_limiter_admits(
    connections: list[tuple[str, int, int]], method: str | None, limits: str | None
) -> None:
    async def run() -> None:
        clock = FakeClock(10**9)
        limiter, model = (Limiter(MemoryStore(clock=clock)) for _ in range(2))
        app = RateLimitMiddleware(listening, limits=limits, messages=MessageLimits("5/2s"), limiter=limiter)
        for address, sent, later_s in connections:
            clock.advance(us=later_s * 1_000_000)
            client = await Client(*texts(sent), BYE, address=address, method=method).run(app)
            admitted = 0
            while admitted < sent and (await model.hit(address, "5/2s")).allowed:
                admitted += 1
            assert client.received[:-1] == texts(admitted)
            assert bool(client.closes) == (admitted < sent), "the first message that is refused ends the connection"

    asyncio.run(run())


@given(st.lists(st.integers(0, 9), max_size=8), st.sampled_from(["counts", "refuses", "looks", "banned"]))
def test_no_message_is_lost_or_counted_twice_when_a_read_is_given_up(patience: list[int], what: str) -> None:
    """As with a timeout around a read, while a store is asked about its message, or counts a strike."""
    clock = FakeClock(10**9)
    limiter = Limiter(SlowStore(clock))

    async def impatient(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        scope["received"] = []
        if what == "banned":
            await limiter.ban(PEER, "1d")
            clock.advance("10s")
        for count in [*patience, *[99] * 4]:
            if what == "looks":  # for a ban of the client, at each message
                clock.advance("10s")
            read = asyncio.create_task(receive())
            await turns(count)
            read.cancel()
            scope["received"] += [
                one for one in await asyncio.gather(read, return_exceptions=True) if type(one) is dict
            ]

    async def run() -> None:
        bans = BanPolicy("2/d", "1d", signals={"refused": 1})
        messages = None if what == "banned" else MessageLimits("2/hour" if what == "refuses" else "9/hour")
        app = RateLimitMiddleware(impatient, messages=messages, limiter=limiter, bans=bans)
        with limits_clock(clock):
            client = await Client(*texts(3), BYE).run(app)
        admitted, code = {"refuses": (2, 1013), "banned": (0, 1008)}.get(what, (3, 1000))
        assert client.received[:admitted] == texts(admitted)
        assert client.received[admitted]["code"] == code
        assert sum(one.used for one in (await limiter.inspect(PEER)).windows) == admitted
        assert (await limiter.banned(PEER) is not None) is (what == "banned"), "a refused message is one strike"

    asyncio.run(run())


def test_under_trio_messages_are_counted_too() -> None:
    client = Client(*texts(2), BYE)
    anyio.run(client.run, RateLimitMiddleware(listening, messages=MessageLimits("1/hour")), backend="trio")
    assert (client.kinds, client.closes) == (["accept", "close"], [(1013, "message limit exceeded")])
