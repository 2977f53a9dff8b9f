"""The table of all kinds: docs/guides/events.md shows it, and the events that are made agree with it."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter, MemoryStore, Networks, RateLimitMiddleware, Rule, StoreError
from slidegate.core import Reason
from slidegate.events import Event
from slidegate.limiter.observers import KINDS, Outcome
from slidegate.stats import Statistics, recorder
from slidegate.testing import FakeClock, RecordingObserver

from .. import conftest
from ..asgi import call, hello, statuses
from ..events_page import DETAILS
from ..remote_stores import RemoteStore
from ..web.middlewares import end_of_looks


def test_the_page_has_every_kind() -> None:
    assert DETAILS.keys() == set(KINDS)


class Scene:
    """A limiter whose every event is kept."""

    def __init__(self, **store: Any) -> None:
        self.clock = FakeClock(10**12)
        self.heard = RecordingObserver()
        self.limiter = Limiter(MemoryStore(clock=self.clock, **store), observers=[self.heard])

    def middleware(self, **options: Any) -> RateLimitMiddleware:
        return RateLimitMiddleware(hello, limiter=self.limiter, **options)


async def requests(scene: Scene, tmp_path: Path) -> None:
    rules = [Rule("*", "1/hour"), Rule("*", "1/hour", shadow=True, name="trial")]
    assert await statuses(scene.middleware(rules=rules), 2) == [200, 429]
    assert await statuses(scene.middleware(rules=rules[1:]), 2) == [200, 200]


async def bans(scene: Scene, tmp_path: Path) -> None:
    await scene.limiter.ban("user:1", "1h")
    await scene.limiter.unban("user:1")
    await scene.limiter.strike("user:2", BanPolicy("1/10m", "1h", name="p"))
    await scene.limiter.strike("user:9", BanPolicy("1/10m", "1h", name="q", shadow=True))


async def full_bans(scene: Scene, tmp_path: Path) -> None:
    small = Scene(max_bans=2)
    scene.heard.events = small.heard.events
    for number in range(5):
        await small.limiter.strike(f"user:{number}", BanPolicy("1/10m", "1h", name="p"))
        await small.limiter.strike(f"other:{number}", BanPolicy("9/10m", "1h", name="q"))


async def full_store(scene: Scene, tmp_path: Path) -> None:
    small = Scene(max_keys=1)
    scene.heard.events = small.heard.events
    for number in range(3):
        await small.limiter.hit(f"user:{number}", "9/hour")


async def full_statistics(scene: Scene, tmp_path: Path) -> None:
    Statistics(scene.limiter)
    for number in range(recorder.MAX_SERIES + 2):
        rules = (f"rule{number}",)
        scene.limiter.engine.observers.request(
            Outcome(True, Reason.OK, rules, (), "GET /", 200, "success", 10**12, 1, None, ())
        )
    Statistics(scene.limiter).stats()


async def sick_store(scene: Scene, tmp_path: Path) -> None:
    class Sick(RemoteStore):
        well = False

        def hit(self, *arguments: Any, **line: Any) -> Any:
            if not self.well:
                raise StoreError("away")
            return super().hit(*arguments, **line)

    sick = Sick(inner=scene.limiter.store)
    limiter = Limiter(sick, on_error="allow", observers=[scene.heard])
    await limiter.hit("user:1", "9/hour")
    sick.well = True
    await limiter.hit("user:1", "9/hour")


async def lists(scene: Scene, tmp_path: Path) -> None:
    now_s = [0.0]
    (tmp_path / "a.txt").write_text("192.0.2.0/24\n", "utf-8")
    middleware = scene.middleware(
        limits="999/hour", blocklist=Networks.from_file(tmp_path / "a.txt", clock=lambda: now_s[0])
    )

    async def change(text: str, *, in_place: bool = False) -> None:
        if in_place:
            (tmp_path / "a.txt").write_text(text, "utf-8")
        else:
            (tmp_path / "new").write_text(text, "utf-8")
            (tmp_path / "new").replace(tmp_path / "a.txt")
        for _ in range(9):
            now_s[0] += 2
            await call(middleware)
            end_of_looks()
        await call(middleware)

    await change("".join(f"198.51.100.{number}\n" for number in range(100)))
    await change("nonsense\n")
    await change("198.51.100.1\n")


async def slow_observers(scene: Scene, tmp_path: Path) -> None:
    queue = scene.limiter.observe(lambda event: None, kinds=["pause_ignored"], thread=True).queue
    assert queue is not None
    queue.max_queued = 0
    scene.limiter.engine.emit(Event("pause_ignored", "busy", {"key": "k", "pause_us": 1}))
    assert await asyncio.to_thread(queue.flush, 60)


SCENES = {
    requests: {"refused", "shadow_refused"},
    bans: {"banned", "unbanned", "shadow_banned"},
    full_bans: {"bans_full", "strikes_dropped"},
    full_store: {"keys_shared"},
    full_statistics: {"series_full"},
    sick_store: {"store_failed", "store_recovered"},
    lists: {"list_reloaded", "list_rejected"},
    slow_observers: {"events_dropped"},
}


@pytest.mark.parametrize("scene", SCENES, ids=lambda scene: scene.__name__)
async def test_events_that_happen_have_the_fields_of_their_kind_and_are_logged(
    scene: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    at = Scene()
    with caplog.at_level(logging.INFO, logger="slidegate"):
        await scene(at, tmp_path)
    assert set(at.heard.kinds) >= SCENES[scene]
    for event in at.heard.events:
        assert set(event.details) == DETAILS[event.kind], event
    begun = {record.getMessage().split(": ")[1] for record in caplog.records if record.name == "slidegate"}
    assert begun >= set(at.heard.kinds)


def test_the_look_at_every_event_of_the_suite_bites() -> None:
    scope: dict[str, Any] = {"__name__": "slidegate.made.up", "Event": Event}
    exec('Event("banned", "x", {"key": 1})', scope)
    exec('Event("unheard_of", "x")', scope)
    assert conftest.odd_events == ["slidegate.made.up: banned has ['key']", "slidegate.made.up: unheard_of has []"]
    conftest.odd_events.clear()
