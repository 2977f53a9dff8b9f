"""Frames are made once for all who look, no more often than anybody can see, and say so when the store is away."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slidegate.admin.frames import (
    EVERY_S,
    LINE_POINTS,
    WINDOWS,
    Frames,
    interval_s,
    thinned,
)
from slidegate.core.errors import StoreUnavailable


class Desk:
    """Counts the questions; answers with figures of so many rules."""

    def __init__(self, rules: int = 3) -> None:
        self.asked: list[str] = []
        self.away = False
        self.rules = {f"rule-{number}": {"passed": number, "refused": 0} for number in range(rules)}

    async def stats(self, window: str) -> dict[str, Any]:
        self.asked.append(f"stats {window}")
        # Others get their turn, as they do while a store is asked.
        await anyio.lowlevel.checkpoint()
        if self.away:
            raise StoreUnavailable("redis://h:6379/0 does not answer")
        return {"rules": self.rules, "routes": {}, "total": {}, "workers": []}

    async def history(self, window: str, rule: str | None = None, route: str | None = None) -> dict[str, Any]:
        self.asked.append(f"history {rule or route or '*'}")
        return {"passed": [1, 2, 3], "refused": [0, 0, 1]}

    async def clients(self, sort: str, limit: int) -> dict[str, Any]:
        return {"clients": [{"key": "<script>"}], "next": None}


@pytest.fixture
def now() -> list[float]:
    return [100.0]


def made(desk: Desk) -> int:
    return sum(question.startswith("stats") for question in desk.asked)


async def test_many_who_look_at_once_get_one_frame(now: list[float]) -> None:
    desk = Desk()
    frames = Frames(desk, lambda: now[0])
    seen: list[str] = []

    async def look() -> None:
        seen.append(await frames.latest("5m"))

    async with anyio.create_task_group() as group:
        for _ in range(20):
            group.start_soon(look)
    assert len(seen) == 20
    assert len(set(seen)) == made(desk) == 1
    assert json.loads(seen[0])["clients"] == [{"key": "<script>"}]


@pytest.mark.parametrize("window", WINDOWS)
async def test_a_frame_is_good_for_its_interval_and_no_longer(window: str, now: list[float]) -> None:
    desk = Desk()
    frames = Frames(desk, lambda: now[0])
    await frames.latest(window)
    now[0] += interval_s(window) - 0.001
    await frames.latest(window)
    assert made(desk) == 1
    now[0] += 0.001
    await frames.latest(window)
    assert made(desk) == 2


async def test_without_a_store_the_frame_says_so_and_shows_no_address(now: list[float]) -> None:
    desk = Desk()
    frames = Frames(desk, lambda: now[0])
    desk.away = True
    text = await frames.latest("5m")
    assert json.loads(text)["problem"]["title"] == "Store away"
    assert "stats" not in json.loads(text)
    assert "redis" not in text
    desk.away = False
    now[0] += EVERY_S
    assert "problem" not in json.loads(await frames.latest("5m"))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=400))
def test_a_small_line_ends_with_the_last_step_that_is_complete(points: list[tuple[int, int]]) -> None:
    passed, refused = [one for one, _ in points], [two for _, two in points]
    line = thinned({"passed": passed, "refused": refused})
    assert len(line["passed"]) == len(line["refused"]) <= LINE_POINTS
    together = -(-(len(passed) - 1) // LINE_POINTS) or 1
    told = len(line["passed"]) * together
    assert len(passed) - 1 - told in range(together)
    assert (sum(line["passed"]), sum(line["refused"])) == (sum(passed[-told - 1 : -1]), sum(refused[-told - 1 : -1]))
