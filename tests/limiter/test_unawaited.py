"""A question to a limiter that was not awaited is no answer: it raises where it is used as one, and works elsewhere."""

import asyncio
import copy
import gc
import pickle
import warnings
from collections.abc import Callable
from typing import Any
from unittest.mock import AsyncMock, create_autospec

import anyio
import pytest

from slidegate import BanPolicy, ConfigurationError, Limiter, SyncLimiter

ASKED: dict[str, Callable[[Limiter], Any]] = {
    "hit": lambda limiter: limiter.hit("ann", "5/minute"),
    "peek": lambda limiter: limiter.peek("ann", "5/minute"),
    "charge": lambda limiter: limiter.charge("ann", "5/minute", 2),
    "refund": lambda limiter: limiter.refund(SyncLimiter(limiter).hit("ann", "5/minute")),
    "reset": lambda limiter: limiter.reset("ann"),
    "reset_all": lambda limiter: limiter.reset_all(),
    "restore": lambda limiter: limiter.restore("api"),
    "unban": lambda limiter: limiter.unban("ann"),
    "banned": lambda limiter: limiter.banned("ann"),
    "strike": lambda limiter: limiter.strike("ann", BanPolicy("5/minute", "1h")),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_forgotten_await_raises_and_says_what_to_write(asked: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(ConfigurationError, match=rf"write await limiter\.{asked}\(\.\.\.\)$"):
            bool(ASKED[asked](Limiter()))
        gc.collect()


def test_an_attribute_of_the_answer_is_missing_and_said() -> None:
    unawaited: Any = Limiter().hit("ann", "5/minute")
    with pytest.raises(AttributeError, match=r"no 'allowed' yet; write \(await limiter\.hit\(\.\.\.\)\)\.allowed$"):
        unawaited.allowed  # noqa: B018 - it raises
    assert not hasattr(unawaited, "remaining")
    assert unawaited.__name__ == "hit"
    unawaited.close()


def test_it_cannot_be_copied_as_no_coroutine_can() -> None:
    unawaited = Limiter().hit("ann", "5/minute")
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match=r"limiter\.hit\(\.\.\.\) was not awaited"):
            copied(unawaited)
    unawaited.close()


async def test_it_is_a_coroutine_for_whatever_runs_one() -> None:
    limiter = Limiter()
    ways = [
        limiter.hit("ann", "5/minute"),
        asyncio.create_task(limiter.hit("ann", "5/minute")),
        asyncio.wait_for(limiter.hit("ann", "5/minute"), 5),
        asyncio.to_thread(asyncio.run, limiter.hit("ann", "5/minute")),
    ]
    assert [(await one).remaining for one in ways] == [4, 3, 2, 1]
    async with anyio.create_task_group() as group:
        group.start_soon(limiter.hit, "ann", "5/minute")
    assert [decision.allowed for decision in await asyncio.gather(limiter.hit("ann", "5/minute"))] == [False]


async def test_an_error_passes_through_a_task() -> None:
    with pytest.raises(ConfigurationError, match="limits"):
        await asyncio.create_task(Limiter().hit("ann", "5"))
    work = Limiter().hit("ann", "5/minute")
    with pytest.raises(ZeroDivisionError):
        work.throw(ZeroDivisionError())


def test_a_mock_of_a_limiter_can_be_awaited() -> None:
    assert isinstance(create_autospec(Limiter, instance=True).hit, AsyncMock) or asyncio.iscoroutinefunction(
        Limiter.hit
    )
