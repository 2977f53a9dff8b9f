"""Both transports wait for room, charge on sending, pause when servers request it, and send again.

Where a test is not about tasks or threads, it runs with a client that awaits and with one that blocks.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, suppress
from functools import partial
from itertools import pairwise
from pathlib import Path
from random import Random
from threading import Barrier
from time import monotonic
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import anyio
import httpx
import pytest
import trio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from slidegate import ConfigurationError, Limiter, MemoryStore, SlidegateError
from slidegate.core import StoreUnavailable
from slidegate.httpx import GITHUB_STATUSES, LimitedTransport, SyncLimitedTransport, TurnTimeout, read_pause_us
from slidegate.limiter.aio import answer_of
from slidegate.testing import FakeClock, RecordingObserver

from ..virtual_time import VirtualTime

URL = "http://api.example.com/"
KEY = "to:api.example.com"
Answer: TypeAlias = tuple[int, Mapping[str, str]]
OK: Answer = (200, {})


class Body(httpx.ByteStream):
    """The body of a response; counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        await checkpoint()
        self.close()


class Server(httpx.AsyncBaseTransport, httpx.BaseTransport):
    """Returns responses from a list, repeating the last one; records the bodies and times of requests."""

    def __init__(self, now_s: Callable[[], float], *answers: Answer) -> None:
        self._now_s = now_s
        self._answers = list(answers or [OK])
        self.sent_s, self.bodies, self.responses = list[float](), list[bytes](), list[Body]()
        self.delay_s = 0.0
        self.closed = 0

    def handle_request(self, request: Any) -> httpx.Response:
        return self._answer(b"".join(request.stream))

    async def handle_async_request(self, request: Any) -> httpx.Response:
        answer = self._answer(b"".join([part async for part in request.stream]))
        await asyncio.sleep(self.delay_s)
        return answer

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        self.close()

    def _answer(self, body: bytes) -> httpx.Response:
        self.sent_s.append(self._now_s())
        self.bodies.append(body)
        status, headers = self._answers[0] if len(self._answers) == 1 else self._answers.pop(0)
        self.responses.append(Body(b"answer"))
        return httpx.Response(status, headers=dict(headers), stream=self.responses[-1])

    @property
    def gaps_s(self) -> list[float]:
        return [round(later - earlier, 6) for earlier, later in pairwise(self.sent_s)]


class Scene:
    """A client of either kind, a limiter and a server; time passes by their clock, in threads that sleep, too."""

    def __init__(self, kind: str, monkeypatch: pytest.MonkeyPatch, *answers: Answer, **options: Any) -> None:
        self.kind = kind
        self.clock = FakeClock(10**12)
        self.time = VirtualTime(self.clock)
        self.observer = RecordingObserver(without=["refused"])
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.observer])
        self.server = Server(self.now_s, *answers)
        self.client = self.another_client(**options)
        times = SimpleNamespace(monotonic=self.now_s, time=self.now_s, sleep=self.sleep)
        monkeypatch.setattr("slidegate.httpx.time", times)

    def now_s(self) -> float:
        return self.clock.now_us / 1_000_000

    def sleep(self, span_s: float) -> None:
        self.clock.advance(us=round(span_s * 1_000_000))

    def another_client(self, **options: Any) -> Any:
        options = {"limiter": self.limiter, "transport": self.server, "limits": "1000/second", **options}
        if self.kind == "sync":
            return httpx.Client(transport=SyncLimitedTransport(**options))
        return httpx.AsyncClient(transport=LimitedTransport(**options))

    async def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a method of the client: in a thread if it blocks."""
        return await (run_sync(function, *arguments) if self.kind == "sync" else function(*arguments))

    async def get(self, url: str = URL) -> Any:
        return await self.call(self.client.get, url)

    async def statuses(self, count: int = 1) -> list[int]:
        return [(await self.get()).status_code for _ in range(count)]


@pytest.fixture(params=["async", "sync"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


MakeScene: TypeAlias = Callable[..., Scene]


@pytest.fixture
def scene(kind: str, monkeypatch: pytest.MonkeyPatch) -> MakeScene:
    return partial(Scene, kind, monkeypatch)


tasks = pytest.mark.parametrize("kind", ["async"])
"""Tests in which several requests wait at the same time: the virtual time is that of an event loop."""


def test_threads_wait_for_room() -> None:
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    transport = SyncLimitedTransport(limits="5/200ms", limiter=Limiter(), transport=inner)
    with httpx.Client(transport=transport) as client, ThreadPoolExecutor(8) as pool:
        began_s = monotonic()
        assert set(pool.map(lambda _: client.get(URL).status_code, range(16))) == {200}
        assert monotonic() - began_s >= 0.6


@tasks
async def test_a_unit_is_charged_at_the_time_of_sending(scene: MakeScene) -> None:
    made = scene(limits="1/second")
    made.server.delay_s = 10
    first = asyncio.create_task(made.get())
    await asyncio.sleep(1)
    await asyncio.gather(first, made.get())
    assert made.time.passed_s == 11


@tasks
async def test_no_window_has_more_sendings_than_the_limit(scene: MakeScene, rng: Random) -> None:
    made = scene(limits="5/second; 12/4s", wait="10m")

    async def one() -> None:
        await asyncio.sleep(rng.uniform(0, 10))
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice((0.5, 600))):
                await made.get()

    await asyncio.gather(*(one() for _ in range(100)))
    sent = made.server.sent_s
    assert len(sent) > 20
    for amount, window_s in ((5, 1), (12, 4)):
        assert all(later - earlier >= window_s - 1e-6 for earlier, later in zip(sent, sent[amount:], strict=False))


async def test_a_request_that_would_wait_too_long_fails_at_once(scene: MakeScene) -> None:
    made = scene(limits="1/minute", wait="20s")
    await made.get()
    with pytest.raises(TurnTimeout, match="no room for a request within 20 s: limited; retry after 60 s") as caught:
        await made.get()
    assert isinstance(caught.value, SlidegateError)
    assert isinstance(caught.value, httpx.PoolTimeout)
    assert (caught.value.key, caught.value.retry_after_us) == (KEY, 60_000_000)
    assert caught.value.request.url == URL
    assert made.clock.now_us == 10**12
    assert len(made.server.sent_s) == 1


async def test_each_host_has_a_queue_and_a_count_of_its_own(scene: MakeScene) -> None:
    made = scene(limits="1/second")
    await made.limiter.ban("192.0.2.1", "1h")  # a banned client can still be a server of outbound requests
    for host in ("a.example.com", "b.example.com", "192.0.2.1"):
        await made.get(f"http://{host}:8000/")
    assert made.server.gaps_s == [0, 0]
    (window,) = (await made.limiter.inspect("to:a.example.com")).windows
    assert (window.rule, window.used) == ("outbound", 1)


@tasks
async def test_a_cancelled_request_leaves_the_queue_and_charges_nothing(scene: MakeScene) -> None:
    made = scene(limits="1/second")
    first, second, third = (asyncio.create_task(made.get()) for _ in range(3))
    await first
    await asyncio.sleep(0.5)
    second.cancel()
    await third
    assert made.server.gaps_s == [1]


@tasks
async def test_a_request_cancelled_after_sending_stays_charged(scene: MakeScene) -> None:
    made = scene(limits="1/second")
    made.server.delay_s = 0.4
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await made.get()
    await made.get()
    assert made.time.passed_s == pytest.approx(1 + 0.4)


def test_a_request_is_sent_again_after_a_pause(scene: MakeScene, texts: Callable[..., None]) -> None:
    async def played(*answers: Answer, **options: Any) -> str:
        """Return the statuses until a client gets 200, the seconds between requests, and events of pauses."""
        made, statuses = scene(*answers, OK, **options), list[int]()
        while 200 not in statuses:
            statuses += await made.statuses()
        gaps = " ".join(f"{gap:g}" for gap in made.server.gaps_s)
        told = [f"\n{event.kind}: {event.message}" for event in made.observer.events if "pause_" in event.kind]
        return f"{' '.join(map(str, statuses))} with gaps of {gaps} s{''.join(told)}"

    names = {"played": played, "WAIT_7": {"Retry-After": "7"}, "GITHUB": GITHUB_STATUSES}
    texts(Path(__file__).with_name("sent.txt"), "> ", lambda line: asyncio.run(eval(f"played({line})", dict(names))))


async def test_clients_that_share_a_limiter_spend_and_pause_together(scene: MakeScene) -> None:
    made = scene(OK, (429, {"Retry-After": "60"}), OK, limits="9/minute", wait="20s")
    assert await made.statuses(2) == [200, 429]
    other = made.another_client(limits="9/minute", wait="20s")
    for client in (made.client, other):
        with pytest.raises(TurnTimeout, match="after 60 s at the earliest"):
            await made.call(client.get, URL)
    (ban,) = [ban async for ban in made.limiter.bans()]
    assert (ban.key, ban.by, ban.reason) == (KEY, "outbound", "it answered 429")
    assert len(made.server.sent_s) == 2
    (window,) = (await made.limiter.inspect(KEY)).windows
    assert window.used == 2
    made.clock.advance("60s")
    assert await made.statuses() == [200]


@tasks
async def test_an_operator_can_end_a_pause(scene: MakeScene) -> None:
    made = scene((429, {"Retry-After": "60"}), OK, retries=0, wait="90s")
    await made.get()
    waiting = asyncio.create_task(made.get())
    await asyncio.sleep(5)
    (ban,) = [ban async for ban in made.limiter.bans()]
    assert [(event.kind, event.message) for event in made.observer.events] == [
        ("banned", f"{KEY} is banned until {ban.until:%Y-%m-%dT%H:%M:%SZ} by outbound: it answered 429")
    ]
    await made.limiter.unban(ban.key)
    await waiting
    assert made.observer.events[-1].message == f"{KEY} was unbanned by manual"
    assert 5 <= made.server.gaps_s[0] <= 6


@pytest.mark.parametrize("name", ["k" * 500, "", "\udc80", None])
async def test_any_key_counts_and_pauses(scene: MakeScene, name: str | None) -> None:
    made = scene(OK, (429, {"Retry-After": "7"}), OK, limits="3/hour", key=lambda request: name)
    assert await made.statuses(2) == [200, 200 if name is not None else 429]
    assert made.server.gaps_s == ([0, 7] if name is not None else [0])
    with suppress(TurnTimeout) if name is None else pytest.raises(TurnTimeout) as caught:
        await made.statuses(2)
    assert caught is None or len(f"{caught.value.key}{caught.value}".encode()) < 200


@tasks
async def test_a_short_pause_does_not_end_a_longer_one_or_the_ban_of_an_operator(scene: MakeScene) -> None:
    made = scene((429, {"Retry-After": "60"}), (429, {"Retry-After": "2"}), retries=0)
    made.server.delay_s = 1
    await asyncio.gather(made.get(), made.get())
    ban = await made.limiter.banned(KEY)
    assert ban is not None
    assert ban.left_us(made.clock.now_us) == 60_000_000
    made = scene((429, {"Retry-After": "60"}), retries=0)
    made.server.delay_s, under_way = 1, list[asyncio.Task[Any]]()
    for later_s in (0, 0.06, 0.05):
        await asyncio.sleep(later_s)
        under_way.append(asyncio.create_task(made.get()))
    await asyncio.gather(*under_way)
    ban = await made.limiter.banned(KEY)
    assert ban is not None
    assert ban.left_us(made.clock.now_us) == 60_000_000, "the third answer is a tenth of a second after the first"
    assert made.observer.kinds == ["banned"] * 2
    made = scene((429, {"Retry-After": "60"}), retries=0)
    made.server.delay_s = 1
    overtaken = asyncio.create_task(made.get())
    await asyncio.sleep(0.5)
    await made.limiter.ban(KEY, "permanent", by="alice")
    await overtaken
    with pytest.raises(TurnTimeout) as caught:
        await made.get()
    assert caught.value.retry_after_us is None


async def unreachable(*ban: object) -> None:
    raise StoreUnavailable("the wire is cut")


async def silent(*ban: object) -> None:
    await asyncio.sleep(3_600)


@pytest.mark.parametrize(
    ("kind", "ban", "takes_s"), [("async", unreachable, 0), ("sync", unreachable, 0), ("async", silent, 1)]
)
async def test_a_pause_that_cannot_be_stored_is_an_event_and_delays_a_response_by_a_second(
    scene: MakeScene, monkeypatch: pytest.MonkeyPatch, ban: Any, takes_s: int
) -> None:
    made = scene((429, {"Retry-After": "7"}), OK)
    monkeypatch.setattr(made.limiter.store.bans, "ban", ban)
    assert await made.statuses() == [429]
    assert made.time.passed_s == takes_s
    assert made.observer.kinds == ["pause_unshared"]


@pytest.mark.parametrize(("body", "times"), [("in memory", 2), ("a stream", 1), ("read before", 2)])
async def test_a_body_is_sent_again_if_it_is_in_memory(scene: MakeScene, body: str, times: int) -> None:
    made = scene((429, {"Retry-After": "1"}), OK)
    stream = Body(b"answer").__iter__() if made.kind == "sync" else Body(b"answer").__aiter__()
    request = made.client.build_request("POST", URL, content=b"answer" if body == "in memory" else stream)
    if body == "read before":
        await made.call(request.read if made.kind == "sync" else request.aread)
    assert (await made.call(made.client.send, request)).status_code == (200 if times == 2 else 429)
    assert made.server.bodies == [b"answer"] * times


@pytest.mark.parametrize("statuses", [(429, 200), (429, 429)])
async def test_a_response_in_whose_place_another_came_is_closed(scene: MakeScene, statuses: tuple[int, int]) -> None:
    made = scene(*((status, {"Retry-After": "5"}) for status in statuses))
    send = partial(made.client.send, made.client.build_request("GET", URL), stream=True)
    response = await made.call(send)
    assert response.status_code == statuses[1]
    assert [body.closed for body in made.server.responses] == [1, 0]
    await made.call(response.close if made.kind == "sync" else response.aclose)
    assert [body.closed for body in made.server.responses] == [1, 1]


async def within_scope(work: Awaitable[Any], span_s: float) -> None:
    with anyio.fail_after(span_s):
        await work


@tasks
@pytest.mark.parametrize("within", [asyncio.wait_for, within_scope])
async def test_cancelling_a_retry_closes_the_response(scene: MakeScene, within: Callable[..., Awaitable[None]]) -> None:
    made = scene((429, {"Retry-After": "5"}), OK)
    with pytest.raises(TimeoutError):
        await within(made.get(), 2)
    assert [body.closed for body in made.server.responses] == [1]


def test_trio_runs_it() -> None:
    async def run() -> float:
        store = MemoryStore(clock=lambda: round(trio.current_time() * 1_000_000))
        began_s = trio.current_time()
        inner = httpx.MockTransport(lambda request: httpx.Response(200))
        transport = LimitedTransport(limits="2/second", limiter=Limiter(store), transport=inner)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(5):
                await client.get(URL)
        return trio.current_time() - began_s

    assert trio.run(run, clock=MockClock(autojump_threshold=0)) == pytest.approx(2)


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_client_works_in_threads_that_anyio_takes_for_its_own(backend: str) -> None:
    inner = httpx.MockTransport(lambda request: httpx.Response(200))
    client = httpx.Client(transport=SyncLimitedTransport(limits="9/second", transport=inner))
    to_thread: Any = asyncio.to_thread if backend == "asyncio" else trio.to_thread.run_sync
    assert anyio.run(to_thread, client.get, URL, backend=backend).status_code == 200


@pytest.mark.parametrize("kind", ["sync"])
async def test_a_blocking_client_is_refused_in_a_thread_with_an_event_loop(scene: MakeScene) -> None:
    made = scene()
    with pytest.raises(ConfigurationError, match="expected a thread without event loop; use LimitedTransport"):
        made.client.get(URL)
    assert await made.statuses() == [200]


def test_threads_that_send_first_at_once_use_one_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    both_create, used = Barrier(2), list[httpx.BaseTransport]()

    class Default(httpx.BaseTransport):
        def __init__(self) -> None:
            both_create.wait(60)

        def handle_request(self, request: httpx.Request) -> httpx.Response:
            used.append(self)
            return httpx.Response(200)

    monkeypatch.setattr(httpx, "HTTPTransport", Default)
    with httpx.Client(transport=SyncLimitedTransport(limits="9/second")) as client, ThreadPoolExecutor(2) as pool:
        assert [answer.status_code for answer in pool.map(client.get, [URL] * 2)] == [200, 200]
        assert len({*used}) == 1


async def test_closing_closes_the_transport_and_an_own_limiter_alone(scene: MakeScene) -> None:
    made = scene()
    for count, client in enumerate((made.client, made.another_client(), made.another_client(limiter=None)), start=1):
        await answer_of(client.close() if made.kind == "sync" else client.aclose())  # also in an event loop's thread
        assert made.server.closed == count
        assert (await made.limiter.hit("k", "5/minute")).allowed


async def test_a_client_enters_and_leaves_the_transport_that_sends(scene: MakeScene) -> None:
    made = scene()
    inner: Any = MagicMock(httpx.HTTPTransport if made.kind == "sync" else httpx.AsyncHTTPTransport)
    client = made.another_client(transport=inner, limiter=None)
    async with AsyncExitStack() as stack:
        enter: Any = stack.enter_context if made.kind == "sync" else stack.enter_async_context
        await answer_of(enter(client))
    assert str(inner.mock_calls).replace("__a", "__") == "[call.__enter__(), call.__exit__(None, None, None)]"


async def test_an_own_limiter_is_closed_though_the_transport_fails_to_close(scene: MakeScene) -> None:
    made = scene(limiter=None)
    transport, made.server.closed = made.client._transport, None  # which cannot be counted up
    with pytest.raises(TypeError):
        await made.call(made.client.close if made.kind == "sync" else made.client.aclose)
    send = transport.handle_request if made.kind == "sync" else transport.handle_async_request
    with pytest.raises(StoreUnavailable, match="was closed"):
        await made.call(send, httpx.Request("GET", URL))


# -- what servers ask for ----------------------------------------------------------------------------------------------


NOW_S = 1_700_000_000.0
"""Tue, 14 Nov 2023 22:13:20 GMT."""


def read_s(fields: dict[str, str], status: int = 429) -> float | None:
    pause_us = read_pause_us(status, fields, NOW_S)
    return None if pause_us is None else pause_us / 1_000_000


def pause_of(response: str) -> str:
    """Return the pause of a response: its status and fields, between bars."""
    status, *fields = response.split(" | ")
    pause_s = read_s(dict(field.split(": ", 1) for field in fields), int(status))
    return "no pause" if pause_s is None else f"{pause_s:g} s"


def test_responses_ask_for_pauses(texts: Callable[..., None]) -> None:
    texts(Path(__file__).with_name("pauses.txt"), "> ", pause_of)
    assert read_s({"ratelimit": ", ".join(['"a";r=0;t=12'] * 5_000)}) is None


def test_dates_are_in_utc_wherever_the_process_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    if not hasattr(time, "tzset"):
        pytest.skip("Windows has no time.tzset")
    try:
        with monkeypatch.context() as changed:
            changed.setenv("TZ", "America/New_York")
            time.tzset()
            assert read_s({"retry-after": "Tue Nov 14 22:14:20 2023"}) == 60
    finally:
        time.tzset()


NAMES = ("retry-after-ms", "retry-after", "ratelimit", "ratelimit-reset", "ratelimit-remaining", "date")
NAMES += tuple(f"x-ratelimit-{what}{of}" for what in ("reset", "remaining") for of in ("", "-requests", "-tokens"))
WRITTEN = st.text('"a;rtw=0123456789, ()?@:.-hms\\', max_size=60) | st.dates().map(str) | st.floats().map(str)
VALUES = st.binary(max_size=60) | WRITTEN.map(str.encode)


@given(st.sampled_from([403, 429, 503]), st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), VALUES)))
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 -9999")])
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 +" + b"9" * 40)])
@example(429, [(b"retry-after", b"inf"), (b"retry-after-ms", b"9" * 10_000)])
@example(429, [(b"retry-after", "7\u00b2".encode()), (b"x-ratelimit-reset", b"9" * 4_000)])
@example(429, [(b"ratelimit", b'"' + b'\\"' * 2_000 + b"\\")])
@example(429, [(b"ratelimit", b"r=0;t=" + b"9" * 1_000)])
@example(429, [(b"x-ratelimit-reset-tokens", b"999999999999h" * 300)])
def test_no_bytes_raise_and_no_pause_is_negative(status: int, headers: list[tuple[bytes, bytes]]) -> None:
    pause_us = read_pause_us(status, httpx.Headers(headers), NOW_S)
    assert pause_us is None or pause_us >= 0
