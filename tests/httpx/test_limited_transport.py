"""The transport waits for room, charges on sending, pauses when servers request it, and retries."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from itertools import pairwise
from random import Random
from typing import Any

import httpx
import pytest
import trio
from trio.testing import MockClock

from slidegate import ConfigurationError, Limiter, MemoryStore, SlidegateError
from slidegate.core import Concurrency, StoreUnavailable
from slidegate.httpx import LimitedTransport, TurnTimeout
from slidegate.testing import FakeClock, RecordingObserver

from ..virtual_time import VirtualTime

URL = "http://api.example.com/"
OK = (200, {})


class Answers(httpx.AsyncBaseTransport):
    """Returns responses from a list, repeating the last one; records the times of requests in seconds."""

    def __init__(self, *answers: tuple[int, Mapping[str, str]]) -> None:
        self._answers = list(answers)
        self.asked_s: list[float] = []
        self.delay_s = 0.0
        self.closed = 0
        self.bodies: list[bytes] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        assert isinstance(request.stream, httpx.AsyncByteStream)
        self.bodies.append(b"".join([part async for part in request.stream]))
        self.asked_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.delay_s)
        status, headers = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        return httpx.Response(status, headers=dict(headers))

    async def aclose(self) -> None:
        self.closed += 1

    @property
    def gaps_s(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in pairwise(self.asked_s)]


class Scene:
    def __init__(self, *answers: tuple[int, dict[str, str]], **options: Any) -> None:
        self.clock = FakeClock(10**12)
        self.time = VirtualTime(self.clock)
        self.heard = RecordingObserver(without=["refused"])
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.server = Answers(*(answers or [OK]))
        options = {"limiter": self.limiter, "transport": self.server, "limits": "1000/second", **options}
        self.client = httpx.AsyncClient(transport=LimitedTransport(**options))

    async def statuses(self, count: int = 1) -> list[int]:
        return [(await self.client.get(URL)).status_code for _ in range(count)]


async def test_requests_wait_for_room_instead_of_failing() -> None:
    scene = Scene(limits="2/second")
    assert await scene.statuses(5) == [200] * 5
    assert scene.server.gaps_s == [0, 1, 0, 1]


async def test_a_unit_is_charged_when_a_request_is_sent_and_not_moved_while_it_is_under_way() -> None:
    scene = Scene(limits="1/second")
    scene.server.delay_s = 10
    first = asyncio.create_task(scene.client.get(URL))
    await asyncio.sleep(1)
    second = asyncio.create_task(scene.client.get(URL))
    await asyncio.gather(first, second)
    assert scene.time.passed_s == 11


async def test_no_window_has_more_sendings_than_the_limit(rng: Random) -> None:
    scene = Scene(limits="5/second; 12/4s", wait="10m")

    async def one() -> None:
        await asyncio.sleep(rng.uniform(0, 10))
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice((0.5, 600))):
                await scene.client.get(URL)

    await asyncio.gather(*(one() for _ in range(100)))
    sent = scene.server.asked_s
    assert len(sent) > 20
    for amount, window_s in ((5, 1), (12, 4)):
        assert all(later - earlier >= window_s - 1e-6 for earlier, later in zip(sent, sent[amount:], strict=False))


async def test_a_turn_that_would_come_too_late_is_an_error_of_httpx_at_once() -> None:
    scene = Scene(limits="1/minute", wait="20s")
    await scene.client.get(URL)
    with pytest.raises(TurnTimeout, match="no room for a request within 20 s; retry after 60 s") as caught:
        await scene.client.get(URL)
    assert isinstance(caught.value, SlidegateError)
    assert (caught.value.key, caught.value.retry_after_us) == ("to:api.example.com", 60_000_000)
    assert caught.value.request.url == URL
    assert scene.clock.now_us == 10**12
    assert len(scene.server.asked_s) == 1


async def test_each_host_has_a_queue_and_a_count_of_its_own() -> None:
    scene = Scene(limits="1/second")
    await scene.limiter.ban("192.0.2.1", "1h")  # a banned client can still be a server of outbound requests
    for host in ("a.example.com", "b.example.com", "192.0.2.1"):
        await scene.client.get(f"http://{host}:8000/")
    assert scene.server.gaps_s == [0, 0]


async def test_a_cancelled_request_leaves_the_queue_and_charges_nothing() -> None:
    scene = Scene(limits="1/second")
    first, second, third = (asyncio.create_task(scene.client.get(URL)) for _ in range(3))
    await first
    await asyncio.sleep(0.5)
    second.cancel()
    await third
    assert scene.server.gaps_s == [1]


async def test_a_request_that_is_cancelled_under_way_stays_charged_from_its_sending() -> None:
    scene = Scene(limits="1/second")
    scene.server.delay_s = 0.4
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await scene.client.get(URL)
    await scene.client.get(URL)
    assert scene.time.passed_s == pytest.approx(1 + 0.4)


@pytest.mark.parametrize(
    ("status", "fields", "statuses"),
    [
        (429, {"Retry-After": "7"}, [200]),
        (429, {"RateLimit": '"a";r=0;t=7'}, [200]),
        (429, {"X-RateLimit-Reset": "7"}, [200]),
        (429, {}, [429]),
        (503, {"Retry-After": "7"}, [503, 200]),
    ],
)
async def test_a_refused_request_is_sent_again_when_the_server_said_and_an_overloaded_server_gets_its_pause(
    status: int, fields: dict[str, str], statuses: list[int]
) -> None:
    scene = Scene((status, fields), OK)
    assert await scene.statuses(len(statuses)) == statuses
    assert scene.server.gaps_s == [7] * (200 in statuses)


@pytest.mark.parametrize(("retries", "answers"), [(0, [429, 429]), (1, [429, 200]), (3, [200])])
async def test_a_request_is_sent_again_as_often_as_it_may(retries: int, answers: list[int]) -> None:
    scene = Scene(*[(429, {"Retry-After": "1"})] * 3, OK, retries=retries)
    assert await scene.statuses(len(answers)) == answers


async def test_a_pause_of_more_than_an_hour_is_not_kept() -> None:
    scene = Scene((429, {"Retry-After": "3601"}), OK, wait="2h")
    assert await scene.statuses(2) == [429, 200]
    assert scene.server.gaps_s == [0]
    assert scene.heard.kinds == ["pause_ignored"]


async def test_a_pause_longer_than_the_wait_gives_the_answer_and_still_holds() -> None:
    scene = Scene((429, {"Retry-After": "60"}), OK, wait="30s")
    assert await scene.statuses() == [429]
    with pytest.raises(TurnTimeout, match="after 60 s at the earliest"):
        await scene.client.get(URL)
    await asyncio.sleep(60)
    assert await scene.statuses() == [200]


async def test_workers_that_share_a_limiter_pause_together_and_an_operator_can_end_it() -> None:
    scene = Scene((429, {"Retry-After": "60"}), OK, retries=0)
    other = httpx.AsyncClient(
        transport=LimitedTransport(limits="9/second", limiter=scene.limiter, transport=scene.server, wait="90s")
    )

    await scene.client.get(URL)
    waiting = asyncio.create_task(other.get(URL))
    await asyncio.sleep(5)
    (ban,) = [ban async for ban in scene.limiter.bans()]
    assert (ban.key, ban.by, ban.reason) == ("to:api.example.com", "outbound", "it answered 429")
    assert [(event.kind, event.message) for event in scene.heard.events] == [
        ("banned", f"to:api.example.com is paused until {ban.until:%Y-%m-%dT%H:%M:%SZ}: it answered 429")
    ]
    await scene.limiter.unban(ban.key)
    await waiting
    assert scene.heard.events[-1].message == "the pause of to:api.example.com was ended by manual"
    await scene.limiter.ban("203.0.113.7", "1h", by="outbound")
    assert " is banned until " in scene.heard.events[-1].message, "it is no pause, whoever made it"
    assert 5 <= scene.server.gaps_s[0] <= 6


@pytest.mark.parametrize(
    ("name", "gaps_s"), [("k" * 500, [0, 7, 0]), ("", [0, 7, 0]), ("\udc80", [0, 7, 0]), (None, [0, 0])]
)
async def test_whatever_a_key_is_it_counts_and_pauses_and_without_one_nothing_does(
    name: str | None, gaps_s: list[float]
) -> None:
    scene = Scene(OK, (429, {"Retry-After": "7"}), OK, limits="2/second", key=lambda request: name)
    await scene.statuses(3)
    assert scene.server.gaps_s == ([0, 0] if name is None else [0, 7, 0])


async def test_a_short_pause_does_not_end_a_longer_one_or_the_ban_of_an_operator() -> None:
    scene = Scene((429, {"Retry-After": "60"}), (429, {"Retry-After": "2"}), retries=0)
    scene.server.delay_s = 1
    await asyncio.gather(scene.client.get(URL), scene.client.get(URL))
    ban = await scene.limiter.banned("to:api.example.com")
    assert ban.left_us(scene.clock.now_us) == 60_000_000
    scene = Scene((429, {"Retry-After": "60"}), retries=0)
    scene.server.delay_s = 1
    asking = asyncio.create_task(scene.client.get(URL))
    await asyncio.sleep(0.5)
    await scene.limiter.ban("to:api.example.com", "permanent", by="alice")
    await asking
    with pytest.raises(TurnTimeout) as caught:
        await scene.client.get(URL)
    assert caught.value.retry_after_us is None


async def test_a_pause_that_a_store_does_not_take_is_an_event_and_the_answer_is_returned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unreachable(*ban: object) -> None:
        raise StoreUnavailable("the wire is cut")

    scene = Scene((429, {"Retry-After": "7"}), OK)
    monkeypatch.setattr(scene.limiter.store.bans, "ban", unreachable)
    assert await scene.statuses() == [429]
    assert scene.heard.kinds == ["pause_unshared"]


@pytest.mark.parametrize(("kind", "times"), [("known", 2), ("streams", 1), ("was read before", 2)])
async def test_a_body_is_sent_again_where_it_is_known(kind: str, times: int) -> None:
    scene = Scene((429, {"Retry-After": "1"}), OK)

    async def parts() -> AsyncIterator[bytes]:
        yield b"once"

    request = scene.client.build_request("POST", URL, content=b"once" if kind == "known" else parts())
    if kind == "was read before":
        await request.aread()
    assert (await scene.client.send(request)).status_code == (200 if times == 2 else 429)
    assert scene.server.bodies == [b"once"] * times


class Streaming(httpx.AsyncBaseTransport, httpx.AsyncByteStream):
    """Returns responses with streamed bodies; records how often one was closed."""

    def __init__(self, *statuses: int) -> None:
        self._statuses = list(statuses)
        self.closed = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        status = self._statuses.pop(0)
        return httpx.Response(status, headers={"Retry-After": "5"} if status == 429 else {}, stream=self)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"answer"

    async def aclose(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("statuses", [(429, 200), (429, 429)])
async def test_an_answer_in_whose_place_another_came_is_closed(statuses: tuple[int, int]) -> None:
    server = Streaming(*statuses)
    scene = Scene(transport=server)
    async with scene.client.stream("GET", URL) as answer:
        assert answer.status_code == statuses[1]
        assert server.closed == 1
    assert server.closed == 2


async def test_an_answer_is_closed_when_its_task_is_cancelled_before_the_next_one() -> None:
    server = Streaming(429, 200)
    scene = Scene(transport=server)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(2):
            await scene.client.get(URL)
    assert server.closed == 1


def test_trio_runs_it() -> None:
    async def run() -> float:
        store = MemoryStore(clock=lambda: round(trio.current_time() * 1_000_000))
        began_s = trio.current_time()
        inner = httpx.MockTransport(lambda request: httpx.Response(200))
        async with httpx.AsyncClient(
            transport=LimitedTransport(limits="2/second", limiter=Limiter(store), transport=inner)
        ) as client:
            for _ in range(5):
                await client.get(URL)
        return trio.current_time() - began_s

    assert trio.run(run, clock=MockClock(autojump_threshold=0)) == pytest.approx(2)


async def test_closing_closes_the_transport_and_an_own_limiter_alone() -> None:
    limiter, inner = Limiter(), Answers(OK)
    async with httpx.AsyncClient(transport=LimitedTransport(limits="9/second", limiter=limiter, transport=inner)):
        pass
    assert inner.closed == 1
    assert (await limiter.hit("k", "5/minute")).allowed
    await LimitedTransport(limits="9/second", transport=inner).aclose()
    assert inner.closed == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"transport": httpx.HTTPTransport()}, "transport: expected one with handle_async_request"),
        ({"limits": "ten a second"}, "limits: "),
        ({"limits": Concurrency(4)}, "limits: "),
        ({"key": "host"}, "key: expected a function"),
        ({"limiter": MemoryStore()}, "limiter: expected a Limiter"),
        ({"wait": 0}, "wait: must be greater than zero"),
        ({"retries": -1}, "retries: expected a whole number from 0 to 10"),
        ({"name": ""}, "name: expected 1 to 64 characters"),
    ],
)
def test_a_value_that_cannot_work_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        LimitedTransport(**{"limits": "9/second", **options})
