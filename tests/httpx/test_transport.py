"""Both transports wait for room, charge on sending, pause when servers request it, and send again.

What waits for a pause holds no connection, and a store that hangs delays a request by its deadline. Where a test is not
about tasks or threads, it runs with a client that awaits and with one that blocks.
"""

import asyncio
import copy
import pickle
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from functools import partial
from inspect import isawaitable
from itertools import pairwise
from pathlib import Path
from random import Random
from time import monotonic
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest.mock import MagicMock

import anyio
import pytest
import trio
from anyio.lowlevel import checkpoint
from hypothesis import example, given
from hypothesis import strategies as st
from trio.testing import MockClock

from slidegate import ConfigurationError, Limiter, MemoryStore, SlidegateError
from slidegate._pauses import read_pause_us
from slidegate.core import StoreUnavailable
from slidegate.httpx import GITHUB_STATUSES
from slidegate.limiter.aio import answer_of
from slidegate.testing import FakeClock, RecordingObserver

from ..redis_servers import AT_REDIS, RedisServer
from ..virtual_time import VirtualTime, turns
from .conftest import ASYNC, SYNC, Kind

URL = "http://api.example.com/"
KEY = "to:api.example.com"
BOUND_S = 10.0
"""Far below how long a command of an operator waits, 30 s, and a hung store for an answer of its server."""
Answer: TypeAlias = tuple[int, Mapping[str, str]]


class Body:
    """The body of a response, as `body_of` makes it; counts how often it was closed."""

    closed = 0

    def close(self) -> None:
        self.closed += 1

    async def aclose(self) -> None:
        await checkpoint()
        self.close()


def body_of(kind: Kind) -> Any:
    return type("BodyOf", (Body, kind.httpx.ByteStream), {})(b"answer")


class Scene:
    """A client of some kind, its limiter, and the server behind its transport, which gives its `answers`, and then 200.

    Time passes by their clock, in threads that sleep, too.
    """

    def __init__(self, kind: Kind, monkeypatch: pytest.MonkeyPatch, *answers: Answer, **options: Any) -> None:
        """Make them; the server takes `delay_s`, and `ban` stands in the place of the store's method."""
        self.kind, self.answers, self.delay_s = kind, list(answers), options.pop("delay_s", 0)
        self.clock = FakeClock(10**12)
        self.time = VirtualTime(self.clock)
        self.observer = RecordingObserver(without=["refused"])
        store = MemoryStore(clock=self.clock)
        if "ban" in options:
            monkeypatch.setattr(store.bans, "ban", options.pop("ban"))
        self.limiter = Limiter(store, observers=[self.observer])
        self.sent_s, self.bodies, self.responses = list[float](), list[bytes](), list[Body]()
        self.tasks, self.scopes = list[asyncio.Task[str]](), list[anyio.CancelScope]()
        self.use_client(**options)
        times = SimpleNamespace(monotonic=self.now_s, time=self.now_s, sleep=self._sleep)
        monkeypatch.setattr("slidegate._outbound.time", times)

    # -- the server ----------------------------------------------------------------------------------------------------

    def _inner(self) -> Any:
        httpx = self.kind.httpx

        class Inner(httpx.AsyncBaseTransport, httpx.BaseTransport):  # type: ignore[misc, name-defined]
            def handle_request(_, request: Any) -> Any:
                return self._answer(b"".join(request.stream))

            async def handle_async_request(_, request: Any) -> Any:
                answer = self._answer(b"".join([part async for part in request.stream]))
                await asyncio.sleep(self.delay_s)
                return answer

        return Inner()

    def _answer(self, body: bytes) -> Any:
        self.sent_s.append(self.now_s())
        self.bodies.append(body)
        status, headers = self.answers.pop(0) if self.answers else (200, {})
        self.responses.append(body_of(self.kind))
        return self.kind.httpx.Response(status, headers=dict(headers), stream=self.responses[-1])

    # -- time and the client -------------------------------------------------------------------------------------------

    def now_s(self) -> float:
        return self.clock.now_us / 1_000_000

    def passed_s(self) -> float:
        return round(self.now_s() - 10**6, 4)  # timers add microseconds

    def _sleep(self, span_s: float) -> None:
        self.clock.advance(us=round(span_s * 1_000_000))

    def use_client(self, **options: Any) -> None:
        options = {"limiter": self.limiter, "transport": self._inner(), "limits": "1000/second", **options}
        self.client = self.kind.client(**options)

    async def call(self, name: str, *arguments: Any, of: Any = None, **options: Any) -> Any:
        """Call a method of the client, or of another object: in a thread if it blocks."""
        return await self.kind.call(of or self.client, name, *arguments, **options)

    # -- the words of sent.txt and tasks.txt ---------------------------------------------------------------------------

    async def play(self, line: str) -> str:
        """Return what an expression gives, of these methods, the tasks and their scopes, and what operators write."""
        operators = {"ban": self.limiter.ban, "unban": self.limiter.unban, "advance": self.clock.advance}
        own = {name: getattr(self, name) for name in dir(self) if not name.startswith("_")}
        said = eval(line, WORDS | own | operators)
        said = await said if isawaitable(said) else said
        return said if isinstance(said, str) else ""

    async def get(self, url: str = URL) -> str:
        try:
            said = str((await self.call("get", url)).status_code)
        except SlidegateError as error:
            about: Any = error
            said = f"{about!r} of {about.key}, {about.request.url}, {about.retry_after_us} us"
        return f"{said} at {self.passed_s():g} s"

    async def gets(self) -> str:
        """Return the statuses until one is 200, the seconds between requests, and events of pauses."""
        statuses = list[str]()
        while "200" not in statuses:
            statuses.append((await self.get()).partition(" ")[0])
        gaps = " ".join(f"{round(later - earlier, 6):g}" for earlier, later in pairwise(self.sent_s))
        told = [f"\n{event.kind}: {event.message}" for event in self.observer.events if "pause_" in event.kind]
        return f"{' '.join(statuses)} with gaps of {gaps} s{''.join(told)}"

    async def post(self, *, streamed: bool = False, read: bool = False) -> str:
        body = body_of(self.kind)
        stream = body.__iter__() if self.kind.is_sync else body.__aiter__()
        request = self.client.build_request("POST", URL, content=stream if streamed else b"answer")
        if read:
            await self.call("aread", of=request)
        status = (await self.call("send", request)).status_code
        return f"{status} for {b', '.join(self.bodies).decode()}"

    async def stream(self) -> str:
        """Return the status, and how often responses were closed before the client closes its own, and then."""
        response = await self.call("send", self.client.build_request("GET", URL), stream=True)
        before = self.closed()
        await self.call("aclose", of=response)
        return f"{response.status_code}, closed {before}, then {self.closed()}"

    async def come(self, times: int = 1) -> None:
        async def within(scope: anyio.CancelScope) -> str:
            with scope:
                return await self.get()
            return f"left at {self.passed_s():g} s"

        for _ in range(times):
            self.scopes.append(anyio.CancelScope())
            self.tasks.append(asyncio.create_task(within(self.scopes[-1])))
            await turns()

    async def end(self) -> str:
        ended = await asyncio.gather(*self.tasks, return_exceptions=True)
        return "\n".join(one if isinstance(one, str) else type(one).__name__ for one in ended)

    async def bans(self) -> str:
        found = [ban async for ban in self.limiter.bans()]
        return "\n".join(f"{ban.key} by {ban.by} for {ban.left_us(self.clock())} us: {ban.reason}" for ban in found)

    async def used(self, key: str) -> str:
        return "\n".join(f"{one.rule}: {one.used}" for one in (await self.limiter.inspect(key)).windows)

    def told(self) -> str:
        return "\n".join(f"{event.kind}: {event.message}" for event in self.observer.events)

    def sent(self) -> str:
        return f"at {', '.join(f'{round(at_s - 10**6, 4):g}' for at_s in self.sent_s)} s"

    def closed(self) -> str:
        return " ".join(str(body.closed) for body in self.responses)


async def unreachable(*ban: object) -> None:
    raise StoreUnavailable("the wire is cut")


async def hanging(*ban: object) -> None:
    await asyncio.sleep(1)


def after(seconds: float, status: int = 429) -> Answer:
    return status, {"Retry-After": str(seconds)}


WORDS: dict[str, Any] = {"OK": (200, {}), "after": after, "unreachable": unreachable, "hanging": hanging, "KEY": KEY}
WORDS |= {"GITHUB": GITHUB_STATUSES, "sleep": asyncio.sleep}


MakeScene: TypeAlias = Callable[..., Scene]


@pytest.fixture
def scene(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> MakeScene:
    return partial(Scene, kind, monkeypatch)


@pytest.mark.parametrize(
    ("file", "kind"),
    [*(("sent.txt", kind) for kind in (*ASYNC, *SYNC)), *(("tasks.txt", kind) for kind in ASYNC)],
    ids=str,
)
def test_what_clients_send_and_get(file: str, texts: Callable[..., None], scene: MakeScene) -> None:
    path = Path(__file__).with_name(file)
    scenarios: list[list[str]] = []
    for line in re.findall("^> (.*)$", path.read_text("utf-8"), re.MULTILINE):
        if line.startswith("client"):
            scenarios.append([])
        scenarios[-1].append(line)

    async def played(first: str, *others: str) -> list[str]:
        made = eval(first, WORDS | {"client": scene})
        if isawaitable(made):
            return [await made]
        return ["", *[await made.play(line) for line in others]]

    answers = [answer for scenario in scenarios for answer in asyncio.run(played(*scenario))]
    texts(path, "> ", lambda _: answers.pop(0))


@pytest.mark.parametrize("kind", SYNC, ids=str)
def test_threads_wait_for_room(kind: Kind) -> None:
    made = kind.client(limits="5/200ms", limiter=Limiter(), transport=kind.answering())
    with made as client, ThreadPoolExecutor(8) as pool:
        began_s = monotonic()
        assert set(pool.map(lambda _: client.get(URL).status_code, range(16))) == {200}
        assert monotonic() - began_s >= 0.6


@pytest.mark.parametrize("kind", ASYNC, ids=str)
async def test_no_window_has_more_sendings_than_the_limit(scene: MakeScene, rng: Random) -> None:
    made = scene(limits="5/second; 12/4s", wait="10m")

    async def one() -> None:
        await asyncio.sleep(rng.uniform(0, 10))
        with suppress(TimeoutError):
            async with asyncio.timeout(rng.choice((0.5, 600))):
                await made.get()

    await asyncio.gather(*(one() for _ in range(100)))
    sent = made.sent_s
    assert len(sent) > 20
    for amount, window_s in ((5, 1), (12, 4)):
        assert all(later - earlier >= window_s - 1e-6 for earlier, later in zip(sent, sent[amount:], strict=False))


@pytest.mark.parametrize("kind", ASYNC, ids=str)
def test_trio_runs_it(kind: Kind) -> None:
    async def run() -> float:
        store = MemoryStore(clock=lambda: round(trio.current_time() * 1_000_000))
        began_s = trio.current_time()
        async with kind.client(limits="2/second", limiter=Limiter(store), transport=kind.answering()) as client:
            for _ in range(5):
                await client.get(URL)
        return trio.current_time() - began_s

    assert trio.run(run, clock=MockClock(autojump_threshold=0)) == pytest.approx(2)


@pytest.mark.parametrize("kind", SYNC, ids=str)
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_a_blocking_client_works_in_threads_that_anyio_takes_for_its_own(backend: str, kind: Kind) -> None:
    client = kind.client(limits="9/second", transport=kind.answering())
    to_thread: Any = asyncio.to_thread if backend == "asyncio" else trio.to_thread.run_sync
    assert anyio.run(to_thread, client.get, URL, backend=backend).status_code == 200


@pytest.mark.parametrize("kind", SYNC, ids=str)
async def test_a_blocking_client_is_refused_in_a_thread_with_an_event_loop(scene: MakeScene) -> None:
    made = scene()
    with pytest.raises(ConfigurationError, match="blocks, and would block the event loop that runs in this thread"):
        made.client.get(URL)
    assert await made.get() == "200 at 0 s"


@pytest.mark.parametrize("kind", SYNC, ids=str)
def test_threads_use_one_transport(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[Any]()

    def default() -> Any:
        made.append(kind.answering())
        return made[-1]

    monkeypatch.setattr(kind.httpx, "HTTPTransport", default)
    with kind.client(limits="9/second") as client, ThreadPoolExecutor(2) as pool:
        assert [answer.status_code for answer in pool.map(client.get, [URL] * 2)] == [200, 200]
    assert len(made) == 1


@pytest.fixture
def inner(kind: Kind) -> Any:
    return MagicMock(kind.inner)


async def test_closing_closes_the_transport_and_an_own_limiter_alone(scene: MakeScene, inner: Any) -> None:
    made = scene()
    for options in ({}, {}, {"limiter": None}):
        made.use_client(transport=inner, **options)
        await answer_of(made.client.close() if made.kind.is_sync else made.client.aclose())  # also in a loop's thread
        assert (await made.limiter.hit("k", "5/minute")).allowed
    assert str(inner.mock_calls).replace(".aclose", ".close") == "[call.close(), call.close(), call.close()]"


async def test_an_own_limiter_is_closed_though_the_transport_fails_to_close(scene: MakeScene, inner: Any) -> None:
    made = scene(transport=inner, limiter=None)
    inner.configure_mock(**{"close.side_effect" if made.kind.is_sync else "aclose.side_effect": OSError})
    with pytest.raises(OSError):  # noqa: PT011
        await made.call("aclose")
    transport = made.client._transport
    send = transport.handle_request if made.kind.is_sync else transport.handle_async_request
    with pytest.raises(StoreUnavailable, match="was closed"):
        await made.call("__call__", made.kind.httpx.Request("GET", URL), of=send)


# -- what servers ask for ----------------------------------------------------------------------------------------------


NOW_S = 1_700_000_000.0
"""Tue, 14 Nov 2023 22:13:20 GMT."""


def pause_of(response: str) -> str:
    """Return the pause of a response: its status and fields, between bars."""
    status, *fields = response.split(" | ")
    pause_us = read_pause_us(int(status), dict(field.split(": ", 1) for field in fields), NOW_S)
    return "no pause" if pause_us is None else f"{pause_us / 1_000_000:g} s"


@pytest.mark.parametrize("zone", ["UTC", "America/New_York"])
def test_responses_ask_for_pauses(zone: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dates are in UTC wherever the process runs."""
    text = Path(__file__).with_name("pauses.txt").read_text("utf-8")
    rows = re.findall(r"^(\S.*?)  +(\d+ \| .*)$", text, re.MULTILINE)
    assert len(rows) == len(re.findall(r"^[^#\n]", text, re.MULTILINE))
    set_zone = getattr(time, "tzset", lambda: None)  # which Windows has not
    try:
        with monkeypatch.context() as changed:
            changed.setenv("TZ", zone)
            set_zone()
            assert [(pause_of(response), response) for _, response in rows] == rows
            assert pause_of("429 | ratelimit: " + ", ".join(['"a";r=0;t=12'] * 5_000)) == "no pause"
    finally:
        set_zone()


NAMES = ("retry-after-ms", "retry-after", "ratelimit", "ratelimit-reset", "ratelimit-remaining", "date")
NAMES += tuple(f"x-ratelimit-{what}{of}" for what in ("reset", "remaining") for of in ("", "-requests", "-tokens"))
WRITTEN = st.text('"a;rtw=0123456789, ()?@:.-hms\\', max_size=60) | st.dates().map(str) | st.floats().map(str)
VALUES = st.binary(max_size=60) | WRITTEN.map(str.encode)


@pytest.mark.parametrize("headers_of", [kind.httpx.Headers for kind in ASYNC], ids=["httpx", "httpx2"])
@given(st.sampled_from([403, 429, 503]), st.lists(st.tuples(st.sampled_from(NAMES).map(str.encode), VALUES)))
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 -9999")])
@example(429, [(b"retry-after", b"Fri, 31 Dec 9999 23:59:60 +" + b"9" * 40)])
@example(429, [(b"retry-after", b"inf"), (b"retry-after-ms", b"9" * 10_000)])
@example(429, [(b"retry-after", "7\u00b2".encode()), (b"x-ratelimit-reset", b"9" * 4_000)])
@example(429, [(b"ratelimit", b'"' + b'\\"' * 2_000 + b"\\")])
@example(429, [(b"ratelimit", b"r=0;t=" + b"9" * 1_000)])
@example(429, [(b"x-ratelimit-reset-tokens", b"999999999999h" * 300)])
def test_no_bytes_raise_and_no_pause_is_negative(
    headers_of: Any, status: int, headers: list[tuple[bytes, bytes]]
) -> None:
    pause_us = read_pause_us(status, headers_of(headers), NOW_S)
    assert pause_us is None or pause_us >= 0


# -- the defaults, and errors ------------------------------------------------------------------------------------------


async def test_the_default_transport_sends_over_the_network(kind: Kind) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 204 No Content\r\n\r\n")
        writer.close()

    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(answer, sock=listener) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        made = kind.client(limits="9/second")
        assert (await kind.call(made, "get", url)).status_code == 204
        await kind.call(made, "aclose")


async def test_while_a_request_waits_for_the_end_of_a_pause_a_pool_of_one_connection_is_free(
    kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the body of the response that asked for it does not come."""
    monkeypatch.setattr("slidegate._outbound.LOOK_EVERY_S", 0.02)
    asked, answering = asyncio.Event(), list[Any]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answering.append(asyncio.current_task())
        with closing(writer), suppress(asyncio.IncompleteReadError, ConnectionError):
            while b"/free" in await reader.readuntil(b"\r\n\r\n") or asked.is_set():
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
            writer.write(b"HTTP/1.1 429 Slow\r\nRetry-After: 30\r\nContent-Length: 9\r\n\r\n")
            asked.set()
            await reader.read()

    limiter, alone = Limiter(), kind.httpx.Limits(max_connections=1)
    options: dict[str, Any] = {"limits": "1000/second", "limiter": limiter, "wait": "10m"}
    options["key"] = lambda request: None if request.url.path == "/free" else "paused"
    made = kind.client(transport=kind.inner(limits=alone), **options)
    listener = socket.create_server(("127.0.0.1", 0))
    async with await asyncio.start_server(answer, sock=listener):
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        waiting = asyncio.create_task(kind.call(made, "get", f"{url}/paused"))
        await asked.wait()
        assert (await kind.call(made, "get", f"{url}/free")).status_code == 200
        async with asyncio.timeout(BOUND_S):
            while not await limiter.unban("to:paused"):  # noqa: ASYNC110 - bans are no event of asyncio
                await asyncio.sleep(0.01)
        assert (await waiting).status_code == 200
        await kind.call(made, "aclose")
        await asyncio.gather(*answering)
        await asyncio.sleep(0)  # a transport closes its socket in the next turn


async def test_a_request_that_is_not_sent_is_a_pool_timeout_that_can_be_copied_and_pickled(kind: Kind) -> None:
    httpx = kind.httpx
    answers = [httpx.Response(429, headers={"Retry-After": "0"}), httpx.Response(200)]
    made = kind.client(limits="2/hour", transport=httpx.MockTransport(lambda request: answers.pop(0)))
    assert (await kind.call(made, "request", "POST", URL, json={"a": 1})).status_code == 200
    with pytest.raises(httpx.PoolTimeout) as caught:
        await kind.call(made, "get", URL)
    original: Any = caught.value
    for error in (original, copy.copy(original), pickle.loads(pickle.dumps(original))):
        assert type(error) is kind.limited.TurnTimeout
        assert (str(error), error.key) == (str(original), "to:api.example.com")
        assert error.retry_after_us == original.retry_after_us
        assert error.request.url == URL


# -- stores that hang --------------------------------------------------------------------------------------------------


@contextmanager
def hung(kind: str, path: Path, **options: Any) -> Iterator[Limiter]:
    """Give a limiter whose store has answered and now hangs: its server, or another process that holds its files."""
    if kind == "redis":
        with RedisServer() as server:
            limiter = Limiter.from_url(f"{server.url}?timeout=20s", **options)
            assert limiter.sync.hit("k", "5/minute")
            server.pause()
            yield limiter
            server.resume()
            limiter.sync.close()
        return
    fcntl = pytest.importorskip("fcntl")
    limiter = Limiter.from_url(f"lmdb://{path}/store", **options)
    assert limiter.sync.hit("k", "5/minute")
    with (path / "store" / "gate").open("rb") as gate:
        fcntl.flock(gate, fcntl.LOCK_EX)
        yield limiter
    limiter.sync.close()


@contextmanager
def getting(kind: Kind, limiter: Limiter) -> Iterator[Callable[[], Any]]:
    """Give what sends a request by a client of a kind, whose server asks for a pause, and waits for the response."""
    answering = kind.httpx.MockTransport(lambda request: kind.httpx.Response(429, headers={"Retry-After": "60"}))
    client = kind.client(limits="9/hour", limiter=limiter, transport=answering)
    if kind.is_sync:
        with client:
            yield lambda: client.get("http://api.example.com/")
        return
    with asyncio.Runner() as runner:
        yield lambda: runner.run(client.get("http://api.example.com/"))
        runner.run(client.aclose())


@pytest.mark.parametrize("store", ["lmdb", AT_REDIS])
@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
def test_a_pause_that_cannot_be_stored_delays_a_response_by_the_deadline(
    kind: Kind, store: str, on_error: str, tmp_path: Path
) -> None:
    """With "local" this process observes it."""
    observer = RecordingObserver(without=["refused"])
    with hung(store, tmp_path, on_error=on_error, observers=[observer]) as limiter, getting(kind, limiter) as get:
        began_s = monotonic()
        if on_error != "deny":
            assert get().status_code == 429
        if on_error != "allow":
            with pytest.raises(kind.limited.TurnTimeout, match={"local": "banned", "deny": "unavailable"}[on_error]):
                get()
        assert monotonic() - began_s < BOUND_S
    told = [event.message for event in observer.events if event.kind == "pause_unshared"]
    unshared = "'to:api.example.com' requested a pause of 60 s, which is not observed: "
    assert told == ([f"{unshared}StoreUnavailable('the store did not answer')"] if on_error == "allow" else [])
