"""Bans in the rows of an LMDB file, and commands of operators beside a process that writes."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from typing import Any

import pytest

from slidegate import Limiter, StoreError
from slidegate.core import Ban, Reason, StoreTimeout
from slidegate.core.bans.rows import to_rows
from slidegate.stores.lmdb.transaction import Transactions
from slidegate.testing import FakeClock

from ...hurry import PATIENCE_S, at_once, hurried
from ...virtual_time import VirtualTime, turns
from ..conftest import Opened
from .processes import gate_held


def export(bans: int) -> list[str]:
    """Return the lines of an export of so many bans."""
    return [json.dumps(row) for row in to_rows(Ban(f"user:{n}", "", "ann", 0, 10**15, None) for n in range(bans))]


SECOND_US = 1_000_000


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10**15)


@pytest.fixture
def store(opened: Opened, clock: FakeClock) -> Any:
    return opened(clock=clock, max_bans=500)


async def test_others_are_answered_while_many_bans_are_imported(store: Any) -> None:
    limiter = Limiter(store, on_error="deny")
    importing = asyncio.ensure_future(limiter.import_bans(export(400)))
    answers = []
    while not importing.done():
        answers.append(await limiter.hit("user:399", "1000000/hour"))
        await asyncio.sleep(0)
    assert await importing == 400
    assert len([ban async for ban in limiter.bans()]) == 400
    assert len([line async for line in limiter.export_bans()]) == 401
    assert [answer.allowed for answer in answers].count(True) > 5
    assert not await limiter.hit("user:399", "1000000/hour")


async def test_an_import_that_ends_half_way_goes_on_when_it_is_repeated(store: Any) -> None:
    VirtualTime()  # in which half a minute is nothing
    limiter = Limiter(store, deadline="50ms", on_error="deny")
    importing = asyncio.ensure_future(limiter.import_bans(export(400)))
    await turns(3)
    with gate_held(store), pytest.raises(StoreTimeout):
        await importing
    written = store.bans.count()
    assert 0 < written < 400
    assert await limiter.import_bans(export(400)) == store.bans.count() == 400


def test_without_an_event_loop_many_bans_are_imported_too(store: Any, clock: FakeClock) -> None:
    for number in range(300):
        store.bans.ban(f"over:{number}", SECOND_US, "why", "me")
    clock.advance("2s")
    rows = [json.loads(line) for line in export(400)]
    active: Any = store.bans.active
    assert store.bans.load(rows) == len(list(active())) == 400


def test_each_event_of_threads_that_ban_at_once_is_told_once(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    emitted: list[object] = []
    tell = Transactions.tell

    def slowly(own: Transactions) -> None:
        time.sleep(0)  # lets other threads go on
        tell(own)

    monkeypatch.setattr(Transactions, "tell", slowly)
    store.observe(lambda event: emitted.append(event.details["key"]))
    keys = [[f"user:{thread}-{number}" for number in range(50)] for thread in range(4)]

    def ban(thread: int) -> None:
        store.keep_deadline(PATIENCE_S)
        for key in keys[thread]:
            store.bans.ban(key, None, "why", "me")

    with hurried():
        at_once(ban, threads=len(keys))
    assert sorted(map(str, emitted)) == sorted(key for some in keys for key in some)


# -- commands of operators, which have more time than requests, whoever asks in between --------------------------------


COMMANDS: dict[str, Callable[[Any], Any]] = {
    "ban": lambda limiter: limiter.ban("user:eve", "1h"),
    "unban": lambda limiter: limiter.unban("user:bob"),
    "reset": lambda limiter: limiter.reset("user:ann"),
    "reset_all": lambda limiter: limiter.reset_all(),
}
IMPORT = {"import_bans": lambda limiter: limiter.import_bans(export(150))}  # more than are written at once


@pytest.fixture
async def limiter(store: Any) -> AsyncIterator[Limiter]:
    async with Limiter(store, deadline="20ms", on_error="deny") as made:
        await made.hit("user:ann", "5/hour")
        await made.ban("user:bob", "1h")
        yield made


async def requests_are_given_up(limiter: Limiter) -> None:
    for _ in range(2):
        assert (await limiter.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE


async def done_after_requests(limiter: Limiter, command: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer to a command that waited for a process that wrote for longer than requests wait."""
    with gate_held(limiter.store):
        working = asyncio.ensure_future(command())
        await asyncio.sleep(0)
        await requests_are_given_up(limiter)
        assert not working.done(), working.exception()
    return await working


@pytest.mark.parametrize(("name", "in_thread"), [*product(COMMANDS, (False, True)), ("import_bans", False)])
async def test_a_command_waits_longer_for_a_writer_than_a_request(limiter: Limiter, name: str, in_thread: bool) -> None:
    do = (COMMANDS | IMPORT)[name]

    def after_a_request() -> Any:
        limiter.sync.hit("user:ann", "5/hour")  # for which this thread waits 20 ms
        return do(limiter.sync)

    assert await done_after_requests(limiter, lambda: asyncio.to_thread(after_a_request) if in_thread else do(limiter))


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_is_given_up_after_half_a_minute(limiter: Limiter, name: str) -> None:
    time = VirtualTime()
    with gate_held(limiter.store):
        with pytest.raises(StoreError):
            await COMMANDS[name](limiter)
        assert time.passed_s == pytest.approx(30, abs=0.1)
        await requests_are_given_up(limiter)
        assert time.passed_s == pytest.approx(30, abs=0.1)


async def test_each_step_of_an_import_has_the_time_of_a_command(limiter: Limiter) -> None:
    importing = asyncio.ensure_future(IMPORT["import_bans"](limiter))
    while not limiter.store.bans.count() > 1:  # type: ignore[operator]
        assert not importing.done()
        await limiter.hit("user:ann", "5/hour")
        await asyncio.sleep(0)

    async def rest() -> Any:
        return await importing

    assert await done_after_requests(limiter, rest) == 150
