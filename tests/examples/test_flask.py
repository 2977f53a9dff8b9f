"""The WSGI example: refusals, bans and turns, as its page says."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import pytest

from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

pytest.importorskip("flask")

pytestmark = pytest.mark.all

CLIENT = {"REMOTE_ADDR": "192.0.2.7"}
OTHER = {"REMOTE_ADDR": "198.51.100.7"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(10**9)


@pytest.fixture
def example(clock: FakeClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The example, whose limiter has the clock of the test."""
    made = Limiter(MemoryStore(clock=clock))
    monkeypatch.setattr(Limiter, "from_url", lambda url: made)
    module = importlib.reload(importlib.import_module("examples.flask.app"))
    with made.sync:
        yield module


def statuses(example: Any, times: int, path: str = "/", client: dict[str, str] = CLIENT) -> list[int]:
    visitor = example.app.test_client()
    return [visitor.get(path, environ_base=client).status_code for _ in range(times)]


def test_a_client_gets_its_requests_and_is_told_when_to_come_back(example: Any, clock: FakeClock) -> None:
    assert statuses(example, 31) == [200] * 30 + [429]
    assert statuses(example, 1, client=OTHER) == [200]
    answer = example.app.test_client().get("/", environ_base=CLIENT)
    assert answer.headers["Retry-After"] == "60"
    clock.advance("60s")
    assert statuses(example, 1) == [200]


def test_wrong_passwords_ban_the_client(example: Any) -> None:
    visitor = example.app.test_client()

    def login(password: str) -> int:
        return int(visitor.post("/login", data={"password": password}, environ_base=CLIENT).status_code)

    assert login("correct horse") == 200
    assert [login(f"guess {number}") for number in range(6)] == [401] * 5 + [429]
    assert login("correct horse") == 429
    assert statuses(example, 1, client=OTHER) == [200]


def test_another_service_is_asked_no_faster_than_it_allows(
    example: Any, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits_s: list[float] = []

    async def wait(waiter: object, wait_s: float) -> None:
        waits_s.append(wait_s)
        clock.advance("1s")  # the wait is a little less: it began before it was asked for

    monkeypatch.setattr("slidegate.limiter.waiting.Waiter.wait", wait)
    assert statuses(example, 6, "/weather") == [200] * 6
    assert waits_s == pytest.approx([1.0, 1.0], abs=0.5)
