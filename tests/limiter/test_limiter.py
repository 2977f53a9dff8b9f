"""The limiter: keys, addresses of stores, what is read of it, its observers, and its end."""

import asyncio
import copy
import gc
import inspect
import json
import logging
import os
import pickle
import re
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from hashlib import blake2b
from itertools import count
from pathlib import Path
from string import ascii_letters
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import anyio
import anyio.lowlevel
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

import slidegate
from slidegate import BanPolicy, Limiter, MemoryStore, RateLimitExceeded, RateLimitMiddleware, Rule, header
from slidegate.core import Ban, ConfigurationError, InvalidKey, Reason, Store, StoreTimeout, StoreUnavailable
from slidegate.core.bans.rows import HEADER
from slidegate.events import KINDS, Event, Observer
from slidegate.httpx import SyncLimitedTransport
from slidegate.limiter import MAX_KEY_BYTES
from slidegate.limiter.aio import answer_of
from slidegate.limiter.bans import read_export
from slidegate.ops.statistics import Statistics
from slidegate.stores.open_store import open_store
from slidegate.testing import FakeClock, RecordingObserver

from ..asgi import call, hello, page, statuses
from ..conftest import details
from ..contract.player import settle
from ..contract.store_contract import StatsContract
from ..hurry import at_once, hurried
from ..redis_servers import AT_REDIS
from ..remote_stores import RemoteStore, SlowStore
from ..virtual_time import VirtualTime

API_KEY = header("X-API-Key").of("k123")
LONG_KEY = "a long key of somebody's own " * 10


async def test_a_limiter_closes_its_store_also_where_an_observer_never_ends() -> None:
    class Endless(RecordingObserver):
        async def end(self) -> None:
            await anyio.sleep_forever()

    store = SlowStore()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Limiter(store, observers=[Endless()]).close(), 0.01)
    assert store.closed == 1


@pytest.mark.parametrize("secret", [None, b"only for this test, no secret"])
@pytest.mark.parametrize("of_all", [None, b"of no use where one is given"])
def test_a_digest_is_16_bytes_of_blake2b_with_the_secret_of_the_limiter_or_the_environment(
    of_all: bytes | None, secret: bytes | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if of_all is not None:
        monkeypatch.setenv("SLIDEGATE_SECRET", of_all.decode())
    made = [make(secret=secret) for make in (Limiter, partial(Limiter, RemoteStore()))]
    made.append(Limiter.from_url(f"lmdb://{tmp_path}/store", secret=secret))
    used = secret or of_all
    keyed: Any = {"person": b"slidegate"} if used is None else {"key": used}
    for key, hashed in ((API_KEY, b"header:x-api-key\0k123"), (LONG_KEY, b"long\0" + LONG_KEY.encode())):
        expected = blake2b(hashed, digest_size=16, **keyed).hexdigest()
        assert {limiter.key_for(key).partition("#")[2] for limiter in made} == {expected}
    assert made[0].key_for(API_KEY).startswith("header:x-api-key#")
    kind = "a kind that is much longer than it should be, but then one never knows"
    assert len(made[0].digest(kind, b"")) == MAX_KEY_BYTES


def test_a_bad_secret_in_the_environment_makes_no_limiter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLIDEGATE_SECRET", "short")
    for make in (Limiter, lambda: Limiter.from_url(f"lmdb://{tmp_path}/new")):
        with pytest.raises(ConfigurationError, match="SLIDEGATE_SECRET: expected 16 to 64 bytes"):
            make()
    assert not (tmp_path / "new").exists()


def test_a_rule_is_claimed_once_under_its_own_name_while_its_owner_lives() -> None:
    unique_id, owners = Limiter().engine.owners.identity, [lambda: None for _ in range(3)]
    claimed = [unique_id(rule, owners[at]) for rule, at in (("api", 0), ("login", 0), ("api", 1), ("api", 2))]
    assert claimed == ["api", "login", "api#2", "api#3"]
    del owners[1]
    assert unique_id("api", lambda: None) == "api#2"
    owners = [lambda: None for _ in range(300)]
    with hurried(collecting=False):
        parts = at_once(lambda thread: [unique_id("api", owner) for owner in owners[thread::3]], 3)
    assert len({*parts[0], *parts[1], *parts[2]}) == 300


# -- what is read of it: windows of a customer, middlewares and limits, rows for all workers ---------------------------


class TestRowsOfAStoreWithoutSharedOnes(StatsContract):
    def make_store(self, clock: FakeClock) -> MemoryStore:
        store = MemoryStore(clock=clock)
        store.shared_rows = Limiter(store).engine.rows._shared
        return store


@pytest.mark.skipif(
    any(name.startswith("COVERAGE_PROCESS") for name in os.environ),
    reason="what measures coverage makes an object for each line, and so a row, which makes the next copy longer",
)
async def test_rows_are_written_and_read_whatever_other_threads_write_meanwhile() -> None:
    """A collection runs while a copy of the rows is made, and in a collection other threads get their turn."""
    limiter = Limiter(MemoryStore())
    for number in range(100):
        await limiter.keep_row("kept", number, b"x", 3_600_000_000)
    own, numbers, before = limiter.engine.rows._local, count(), gc.get_threshold()

    def another_thread_writes(phase: str, info: object) -> None:
        own.rows["other", next(numbers), b"w"] = b"x", own.time() + 3_600_000_000

    gc.callbacks.append(another_thread_writes)
    gc.freeze()  # for the rest of the run, since a collection of all that other tests have left would take seconds
    gc.set_threshold(1)
    try:
        for number in range(100, 110):
            await limiter.keep_row("kept", number, b"x", 3_600_000_000)
            assert len(await limiter.rows("kept", 0, 200)) == number + 1
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(another_thread_writes)
    assert next(numbers) > 10


# -- observers get events and outcomes in the thread where they happen; the log gets all events -----------------------


def test_threads_that_emit_at_once_lose_and_repeat_nothing_and_observers_get_each_in_order_in_its_thread() -> None:
    emitted: list[tuple[int, Event]] = []
    limiter = Limiter(observers=[lambda event: emitted.append((threading.get_ident(), event))])

    def run(number: int) -> int:
        for step in range(500):
            limiter.engine.emit(Event("banned", f"{number}", {"step": step}))
        return threading.get_ident()

    for number, thread in enumerate(at_once(run, threads=6)):
        own = [(event.message, event.details["step"]) for emitted_in, event in emitted if emitted_in == thread]
        assert own == [(f"{number}", step) for step in range(500)]
    assert len(emitted) == 6 * 500


def test_an_observer_may_stop_its_own_thread_with_an_interrupt() -> None:
    def interrupts(event: Event) -> None:
        raise KeyboardInterrupt

    limiter = Limiter(observers=[interrupts])
    with pytest.raises(KeyboardInterrupt):
        limiter.engine.emit(Event("banned", "once"))


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_an_observer_may_call_the_limiter_because_no_lock_is_taken(url: str) -> None:
    kinds: list[str] = []

    def pardon(event: Event) -> None:
        kinds.append(event.kind)
        if event.kind == "banned":
            sync.unban(str(event.details["key"]))

    with Limiter.from_url(url, deadline="60s", observers=[pardon]).sync as sync:
        assert sync.strike("user:7", BanPolicy("1/minute", "1h"))
        assert kinds == ["banned", "unbanned"]
        assert not sync.banned("user:7")


def test_observers_get_resets_and_ends_if_they_derive_from_observer(caplog: pytest.LogCaptureFixture) -> None:
    calls = list[str]()

    class Foreign:
        """Has methods of these names for a purpose of its own."""

        def event(self, event: Event) -> None: ...

        async def end(self) -> None:
            calls.append("end")
            raise RuntimeError("nothing may depend on an observer")

        def forget(self) -> None:
            calls.append("forget")

    class Derived(Foreign, Observer):
        pass

    limiter = Limiter(observers=[Foreign(), Derived()])
    with TestClient(Starlette(middleware=[Middleware(RateLimitMiddleware, limits="5/minute", limiter=limiter)])):
        assert calls == []
    assert calls == ["end"]
    limiter.engine.forget()
    limiter.sync.close()
    assert calls == ["end", "forget", "end"]
    assert "nothing may depend on an observer" in caplog.text


# -- after its end it answers no question, whatever store it has and whatever `on_error` is ----------------------------


@pytest.fixture(params=["memory", "lmdb", AT_REDIS, "own"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def store(kind: str, request: pytest.FixtureRequest) -> Any:
    """A store; one of a user's own goes on answering when it is closed."""
    return RemoteStore() if kind == "own" else open_store(request.getfixturevalue("url"))


async def listed(found: Any) -> list[Any]:
    return [each async for each in found]


QUESTIONS: list[tuple[Any, ...]] = [
    ("hit", "user:ann", "5/minute"),
    ("peek", "user:ann", "5/minute"),
    ("charge", "user:ann", "5/minute", 1),
    ("inspect", "user:ann"),
    ("strike", "user:ann", BanPolicy("3/minute", "10m")),
    ("banned", "user:ann"),
    ("unban", "user:ann"),
    ("ban", "user:ann", "1h"),
    ("bans",),
    ("reset", "user:ann"),
    ("reset_all",),
]
"""Methods of a limiter and their arguments."""
MOVES: list[tuple[Any, ...]] = [("export_bans",), ("import_bans", ['{"slidegate": "bans", "version": 4}'])]


async def asked(limiter: Limiter, method: str, *arguments: object) -> object:
    found = getattr(limiter, method)(*arguments)
    return await (listed(found) if isinstance(found, AsyncIterator) else found)


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
@pytest.mark.parametrize("is_off", [False, True])
async def test_a_closed_limiter_raises_at_questions_and_requests(store: Any, on_error: Any, *, is_off: bool) -> None:
    observer = RecordingObserver()
    limiter = Limiter(store, on_error=on_error, observers=[observer], deadline="60s")
    trap = BanPolicy("5/minute", "1h", signals={"/trap": 1})
    app = RateLimitMiddleware(hello, limits="5/minute", limiter=limiter, bans=trap)
    assert await statuses(app, 1) == [200]
    decision = await limiter.hit("user:ann", "5/minute")
    waiting = [asyncio.create_task(limiter.limited("1/minute", key="user:bob", wait="2m").__aenter__()) for _ in "12"]
    await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    if is_off:
        await limiter.override("*", "off", "10m")
        assert await statuses(app, 1) == [200]
        await asyncio.wait(waiting)
    await limiter.close()
    closed = f"^the limiter on {re.escape(repr(store))} was closed and can no longer be used; create a new one$"
    await asyncio.wait(waiting, timeout=30)
    assert [task.exception() is None for task in waiting] == [True, is_off]
    before = threading.enumerate()
    enter = limiter.limited("5/minute", key="user:ann", wait="9s").__enter__
    asks: list[Callable[[], Awaitable[object]]] = [partial(asked, limiter, *one) for one in QUESTIONS + MOVES]
    asks += [partial(statuses, app, 1, path) for path in ("/", "/trap") * 3]
    asks += [partial(asyncio.to_thread, limiter.sync.hit, "user:ann", "5/minute"), partial(asyncio.to_thread, enter)]
    if not is_off:
        asks.append(lambda: waiting[1])
    for ask in asks:
        with pytest.raises(StoreUnavailable, match=closed):
            await ask()
    assert "slidegate-loop" not in [thread.name for thread in threading.enumerate() if thread not in before]
    assert await limiter.refund(decision) is False, "a request may outlive its limiter"
    assert observer.kinds == ["switched_off"] * is_off, "nothing has failed"


async def test_a_request_that_outlives_its_limiter_ends_as_it_is(store: Any) -> None:
    limiter = Limiter(store, deadline="60s")

    async def closes(scope: Any, receive: Any, send: Any) -> None:
        await limiter.close()
        await hello(scope, receive, send)

    held = [] if isinstance(store, RemoteStore) else [Rule("*", concurrency=2, name="at once")]
    failures = Rule("*", "5/minute", count_if=lambda status: status != 200)
    app = RateLimitMiddleware(closes, rules=[failures, *held], limiter=limiter)
    assert await statuses(app, 1) == [200]


class Cut(SlowStore):
    """A store whose end cuts off what it is asked."""

    def close(self) -> None:
        self.closed, self.error = True, StoreUnavailable("cut off")
        self.goes_on.set()


async def test_nothing_has_failed_where_a_limiter_is_closed_in_the_middle_of_calls(store: Any) -> None:
    cut = Cut(FakeClock())
    cut.hangs = True
    for each in (store, cut):
        limiter = Limiter(each, deadline="60s", observers=[observer := RecordingObserver()])
        tasks = []
        for _ in range(30):  # each is a call of its own
            tasks.append(asyncio.create_task(asks_on(limiter)))
            await asyncio.sleep(0)
        await limiter.close()
        await asyncio.gather(*tasks)
        assert observer.kinds == []


async def asks_on(limiter: Limiter) -> None:
    with suppress(StoreUnavailable):
        while True:
            await limiter.hit("user:ann", "5/minute", 0)
            await asyncio.sleep(0)


# -- what users do with bans -------------------------------------------------------------------------------------------


NAMES = """{word}y {word}y.example.com {word}@example.com {word}y.{word} v{n}.{n} tenant-{n} {word}y::{n} {n}-{n}
user:{n} user:203.0.113.{word} key:l{n}.0.0.1 org/{word}/{n} acme.com oil.co id::42 lol 1O x:1:2:y::
tenant/7 headers:x x:y:z feed:{n} {n}"""
"""What applications call a client."""


@given(st.text("abcdefghijklmnopqrstuvwxyz", min_size=2, max_size=12), st.integers(0, 2**64), st.uuids())
async def test_what_applications_call_a_client_is_banned_as_it_is_counted(word: str, number: int, own: UUID) -> None:
    limiter = Limiter()
    names: list[Any] = [*NAMES.format(word=word, n=number).split(), str(own), f"{word}y {word}", "R\u00e9sum\u00e9: x"]
    for name in names:
        assert (await limiter.ban(name, "1h")).key == name
        assert (await limiter.hit(name, "5/minute")).reason is Reason.BANNED
        assert await limiter.banned(name)
        assert await limiter.unban(name)
        assert (await limiter.hit(name, "5/minute")).allowed
        assert await limiter.strike(name, BanPolicy("1/10m", "1h"))


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_no_step_of_many_bans_holds_up_the_event_loop(url: str, calls: list[int]) -> None:
    """Not more calls than take about 4 ms."""
    keys = [f"10.{number >> 8}.{number & 255}.0/24" for number in range(300)]
    keys += [f"user:{number}" for number in range(300, 2_000)]
    bans = [Ban(key, "scan", "ann", 0, 0, None) for key in keys]
    lines = [json.dumps(row) for row in (HEADER, *(ban._asdict() for ban in bans))]
    async with Limiter.from_url(url, deadline="20s") as limiter:
        ways = {
            "import": (limiter.import_bans, (lines,)),
            "import again": (limiter.import_bans, (lines,)),
            "list": (listed, (limiter.bans(),)),
            "export": (listed, (limiter.export_bans(),)),
        }
        for name, (way, arguments) in ways.items():
            calls[:] = [0]
            await asyncio.sleep(0)
            found: Any = await way(*arguments)  # type: ignore[operator]
            assert (found if "import" in name else len(found)) == 2_000 + (name == "export")
            assert max(calls) <= 4_000, name


async def test_an_import_has_the_longer_the_more_lines_it_has(clock: FakeClock) -> None:
    class Slow(RemoteStore):
        async def answer(self, question: Callable[..., Any], *arguments: Any) -> Any:
            await asyncio.sleep(40)
            return await answer_of(question(*arguments))

    limiter = Limiter(MemoryStore(clock=clock))
    for number in range(5_000):
        await limiter.ban(f"user:{number}", "1h")
    lines = [line async for line in limiter.export_bans()]
    VirtualTime(clock)
    async with Limiter(Slow(clock)) as shared:
        with pytest.raises(StoreTimeout, match="no answer within 30"):
            await shared.import_bans(lines[:2])
        assert await shared.import_bans(lines) == 5_000


async def test_no_ban_that_an_import_has_still_to_store_is_visited_by_the_garbage_collector() -> None:
    limiter = Limiter()
    for number in range(100):
        await limiter.ban(f"user:{number}", "1h")
    bans = await read_export([line async for line in limiter.export_bans()])
    gc.collect()
    assert len(bans) == 100
    assert not any(map(gc.is_tracked, bans))


# -- keys that requests can have: values of clients are stored as digests only -----------------------------------------

SOURCES = {"header": header, "cookie": slidegate.cookie, "query": slidegate.query, "path": slidegate.path_param}
NAMED = st.text(ascii_letters + "-_", min_size=1, max_size=12).filter(lambda name: name[0].isalpha())
VALUES = st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=24).map(lambda text: f"s3cr3t{text}")
CASES = st.sampled_from([str.lower, str.upper, str.capitalize])


@given(st.sampled_from([*SOURCES]), CASES, NAMED, st.sampled_from([":", "#", "=", ": ", " "]), VALUES)
async def test_what_a_client_sends_is_banned_by_its_digest_and_refused_if_it_is_readable(
    source: str, case: Callable[[str], str], name: str, between: str, value: str
) -> None:
    limiter, key = Limiter(), SOURCES[source](name).of(value)
    digest = limiter.key_for(key)
    for spelled in (key, digest):
        assert (await limiter.ban(spelled, "1h")).key == digest
        assert (await limiter.hit(key, "5/minute")).reason is Reason.BANNED
        assert await limiter.unban(spelled)
    for typed in (f"{case(source)}:{name}{between}{value}", f"{case(source)}:{name}", f"{case(source)}: {name}"):
        with pytest.raises(InvalidKey) as refused:
            await limiter.ban(typed, "1h")
        assert value not in str(refused.value).replace(name, "")
        assert "values that clients send are stored as digests" in str(refused.value)
    assert await listed(limiter.bans()) == []


# -- what a limiter answers, call by call: calls.txt says it as a program of a user sees it ----------------------------


def ran(times: int, function: Callable[..., object], *arguments: object) -> list[object]:
    """Call a function several times; return what it returns, or the seconds that a refusal says."""
    found = list[object]()
    for _ in range(times):
        try:
            found.append(function(*arguments))
        except RateLimitExceeded as refusal:
            found.append(refusal.retry_after_s)
    return found


def entered(block: Any) -> int | None:
    """Return how much is left within a block."""
    with block as decision:
        return decision.remaining  # type: ignore[no-any-return]


def entered_on_a_loop(block: Any) -> int | None:
    async def enter() -> int | None:
        async with block as decision:
            return decision.remaining  # type: ignore[no-any-return]

    return asyncio.run(enter())


HELPERS: list[Any] = [ran, listed, entered, entered_on_a_loop, copy, pickle, partial, gc, logging, asyncio.run]
HELPERS += [inspect.signature, inspect.iscoroutinefunction, httpx, SyncLimitedTransport, Statistics, details, call]
HELPERS += [Starlette, Route, PlainTextResponse, BackgroundTask, hello, page, statuses, SlowStore, SimpleNamespace]
WORDS = vars(slidegate.core) | vars(slidegate.testing) | vars(slidegate) | {one.__name__: one for one in HELPERS}


def said_by(error: Exception) -> str:
    """Return what an error says; behind a text that it shortens stands what Python says, each version otherwise."""
    assert len(str(error)) < 300
    status = f" ({error.decision.status})" if isinstance(error, RateLimitExceeded) else ""
    return re.sub("\u2026: .*", "\u2026", f"{type(error).__name__}: {error}{status}")


class Program:
    """Makes the calls of a text, one a line, to the limiter that the last ``limiter`` has made; ``x = ...`` is kept.

    As in Python's shell, None is not shown. ``begin`` enters a block, and ``end`` leaves all of them.
    """

    def __init__(self, store: Callable[..., Any], blocks: ExitStack, caplog: pytest.LogCaptureFixture) -> None:
        self.store, self.caplog = store, caplog
        self.limiters: list[Limiter] = []
        self.names = WORDS | {"sent": list[str](), "events": self.events, "log": self.log, "KINDS": KINDS}
        self.names |= {"begin": blocks.enter_context, "end": blocks.close}

    def answer(self, line: str) -> str:
        if line == "limiter":
            self.clock, self.observer = FakeClock(1_800_000_000_000_000), RecordingObserver()
            self.caplog.clear()
            limiter = Limiter(self.store(clock=self.clock), observers=[self.observer], deadline="60s")
            self.limiters.append(limiter)
            self.names |= {name: getattr(limiter.sync, name) for name in dir(limiter.sync) if name[0] != "_"}
            self.names |= {"limiter": limiter, "observer": self.observer}
            return ""
        if line.startswith("+"):
            self.clock.advance(line.removeprefix("+"))
            return ""
        name, _, expression = line.partition(" = ") if re.match(r"\w+ = ", line) else ("", "", line)
        try:
            found = eval(expression, self.names)
            found = asyncio.run(settle(found)) if inspect.isawaitable(found) else found
        except (slidegate.SlidegateError, AttributeError, TypeError) as error:
            return said_by(error)
        if name:
            self.names[name] = found
        if name or found is None:
            return ""
        return found if isinstance(found, str) else repr(found)

    def events(self) -> str:
        said = [f"{event.kind}: {event.message}; {dict(event.details)}" for event in self.observer.events]
        self.observer.events.clear()
        return "\n".join(said)

    def log(self) -> str:
        records = [record for record in self.caplog.records if record.name == "slidegate"]
        self.caplog.clear()
        return "\n".join(f"{record.levelname}: {record.getMessage()}" for record in records)


class Smallest(RemoteStore):
    """Answers what every store has to answer, and nothing else."""

    permits_held: Any = None
    close = Store.close  # type: ignore[assignment]


@pytest.mark.parametrize("store", [MemoryStore, SlowStore, Smallest])
def test_calls_are_answered_as_the_text_says(
    store: Callable[..., Any],
    texts: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as blocks, caplog.at_level(logging.INFO, logger="slidegate"):
        program = Program(store, blocks, caplog)
        monkeypatch.setattr("slidegate.limiter.observers.monotonic", lambda: program.clock() / 1e6)
        texts(Path(__file__).with_name("calls.txt"), "> ", program.answer)
    for limiter in program.limiters:
        limiter.sync.close()
