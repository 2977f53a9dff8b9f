"""A tool that only looks at a store sees what workers see, and changes nothing, whatever the store."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, ConfigurationError, Limiter, RateLimitMiddleware
from slidegate.core import SharedRow, StoreUnavailable
from slidegate.core.errors import StoreError
from slidegate.limiter.failover import OnError
from slidegate.stores.read_only import ReadOnlyStore
from slidegate.testing import RecordingObserver

from ..asgi import hello
from ..contract.player import listed, settle
from ..contract.store_contract import CHECKS, QUESTIONS, SHARED_QUESTIONS
from .conftest import Opened

LOOKING = {"peek", "inspect", "find", "pages", "read"}
"""The questions that change nothing."""


@pytest.mark.parametrize("kind", ["memory", "lmdb", "redis"])
async def test_a_read_only_store_looks_and_refuses_every_change(opened: Opened) -> None:
    worker = opened()
    assert (await settle(worker.hit(CHECKS))).remaining == 4
    await settle(worker.bans.ban("user:bob", None, "why", "ann"))
    tool = ReadOnlyStore(worker)
    questions = dict(QUESTIONS)
    if tool.shared_rows is not None:
        questions |= {name: SHARED_QUESTIONS[name] for name in ("write", "read")}
        await settle(worker.shared_rows.write(b"worker00", SharedRow("5s", 0, b"ann", 60_000_000)))
    for name in questions.keys() & LOOKING:
        await settle(questions[name](tool))
    for name in questions.keys() - LOOKING:
        with pytest.raises(StoreUnavailable, match=f"^{re.escape(repr(worker))} is open for reading only$"):
            await settle(questions[name](tool))
    assert (await settle(worker.peek(CHECKS))).remaining == (await settle(tool.peek(CHECKS))).remaining == 3
    assert [ban.key for ban in await listed(tool)] == ["user:bob"]
    assert tool.bans.may_refuse()


CHANGES: dict[str, Callable[[Limiter], Any]] = {
    "hit": lambda limiter: limiter.hit("user:bob", "5/minute"),
    "charge": lambda limiter: limiter.charge("user:bob", "5/minute", 2),
    "reset": lambda limiter: limiter.reset("user:bob"),
    "reset_all": lambda limiter: limiter.reset_all(),
    "ban": lambda limiter: limiter.ban("user:bob", "1h"),
    "unban": lambda limiter: limiter.unban("user:ann"),
    "strike": lambda limiter: limiter.strike("user:bob", BanPolicy("1/1m")),
    "override": lambda limiter: limiter.override("api", "5/minute", "1h"),
    "keep_row": lambda limiter: limiter.keep_row("notes", 0, b"", 1_000_000),
}


@pytest.mark.parametrize("on_error", ["local", "allow", "deny"])
async def test_a_limiter_that_only_reads_counts_nothing_itself(on_error: OnError, tmp_path: Path) -> None:
    """That it is open for reading only is no outage of the store."""
    url, observer = f"lmdb://{tmp_path}/store", RecordingObserver()
    async with Limiter.from_url(url, deadline="60s") as worker:
        await worker.ban("user:ann", "1h")
    limiter = Limiter.from_url(url, read_only=True, on_error=on_error, deadline="60s", observers=[observer])
    for change in CHANGES.values():
        for _ in range(3):
            with pytest.raises(StoreUnavailable, match="open for reading only"):
                await change(limiter)
    assert (await limiter.peek("user:bob", "5/minute")).remaining == 4
    assert (observer.kinds, limiter.is_failing, limiter.failures) == ([], False, 0)
    await limiter.close()


@pytest.mark.parametrize("options", [{"limits": "5/minute"}, {"bans": BanPolicy()}])
def test_a_middleware_needs_a_limiter_that_counts(options: dict[str, Any]) -> None:
    limiter = Limiter.from_url("memory://", read_only=True)
    with pytest.raises(ConfigurationError, match="read_only"):
        RateLimitMiddleware(hello, limiter=limiter, **options)


@pytest.mark.parametrize("kind", ["lmdb", "redis"])
async def test_a_tool_creates_nothing(opened: Opened) -> None:
    """Neither one that reads nor one that writes: after a mistyped address it would change what no worker reads."""
    with pytest.raises(StoreError, match="the first worker creates it"):
        await settle(opened(create=False).bans.ban("user:bob", None, "why", "ann"))
    opened_by_a_worker: Any = opened()
    await settle(opened_by_a_worker.hit(CHECKS))
