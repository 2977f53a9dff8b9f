"""Commands of operators beside a process that writes: they have more time than requests, whoever asks in between."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from slidegate import Limiter, StoreError
from slidegate.core import Ban, Reason
from slidegate.core.bans.rows import to_rows
from slidegate.stores.lmdb import LmdbStore
from slidegate.testing import FakeClock

from ...virtual_time import VirtualTime
from .processes import SMALL, gate_held

NOW_US = 10**15
EXPORT = [*to_rows(Ban(f"user:{at}", "", "ann", 0, NOW_US, None) for at in range(150))]  # more than are written at once
COMMANDS: dict[str, Callable[[Any], Any]] = {
    "ban": lambda limiter: limiter.ban("user:eve", "1h"),
    "unban": lambda limiter: limiter.unban("user:bob"),
    "reset": lambda limiter: limiter.reset("user:ann"),
    "reset_all": lambda limiter: limiter.reset_all(),
}
IMPORT = {"import_bans": lambda limiter: limiter.import_bans(json.dumps(row) for row in EXPORT)}


@pytest.fixture
async def limiter(tmp_path: Path) -> AsyncIterator[Limiter]:
    store = LmdbStore(tmp_path / "lmdb", clock=FakeClock(NOW_US), **SMALL)
    async with Limiter(store, deadline="20ms", on_error="deny") as made:
        await made.hit("user:ann", "5/hour")
        await made.ban("user:bob", "1h")
        yield made


async def requests_are_given_up(limiter: Limiter) -> None:
    for _ in range(2):
        assert (await limiter.hit("user:ann", "5/hour")).reason is Reason.UNAVAILABLE


async def done_after_requests(limiter: Limiter, command: Callable[[], Awaitable[Any]]) -> Any:
    """Return the answer to a command that waited for a process that wrote for longer than requests wait."""
    with gate_held(limiter.store):  # type: ignore[arg-type]
        working = asyncio.ensure_future(command())
        await asyncio.sleep(0)
        await requests_are_given_up(limiter)
        assert not working.done(), working.exception()
    return await working


@pytest.mark.parametrize(("name", "in_thread"), [*product(COMMANDS, (False, True)), ("import_bans", False)])
async def test_a_command_waits_for_a_process_that_writes_for_longer_than_a_request_may_take(
    limiter: Limiter, name: str, in_thread: bool
) -> None:
    do = (COMMANDS | IMPORT)[name]

    def after_a_request() -> Any:
        limiter.sync.hit("user:ann", "5/hour")  # for which this thread waits 20 ms
        return do(limiter.sync)

    assert await done_after_requests(limiter, lambda: asyncio.to_thread(after_a_request) if in_thread else do(limiter))


@pytest.mark.parametrize("name", COMMANDS)
async def test_a_command_is_given_up_after_half_a_minute(limiter: Limiter, name: str) -> None:
    time = VirtualTime()
    with gate_held(limiter.store):  # type: ignore[arg-type]
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
