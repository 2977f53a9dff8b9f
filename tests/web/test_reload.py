"""A changed file takes over without a request lost, without counts lost, and never by halves."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any, TypeAlias

import anyio.lowlevel
import pytest

from slidegate import Limiter, MemoryStore, RateLimitMiddleware
from slidegate.testing import RecordingObserver

from ..asgi import call, hello, statuses
from .middlewares import FollowedFiles, end_of_looks

Middleware: TypeAlias = Any
"""What `RateLimitMiddleware.from_file` returns; its `app` is the middleware that is at work."""
PLAIN = '[[rules]]\npath = "*"\nlimits = "3/hour"\n'


class ConfigFile(FollowedFiles):
    """A configuration file, and a middleware that follows it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.limiter = Limiter(MemoryStore(clock=self.clock), observers=[self.heard])
        self.path = directory / "slidegate.toml"

    def middleware(self, text: str, **code: Any) -> Middleware:
        self.rewrite(text)
        code.setdefault("limiter", self.limiter)
        return RateLimitMiddleware.from_file(hello, self.path, clock=self.seconds, **code)

    def rewrite(self, text: str) -> None:
        self.write("slidegate.toml", text)


@pytest.fixture
def file(tmp_path: Path) -> ConfigFile:
    return ConfigFile(tmp_path)


async def test_between_two_checks_the_file_is_left_alone(file: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> None:
    app = file.middleware(PLAIN.replace("3/", "900/"))
    looked: list[str] = []
    stat = os.stat

    def counted(path: Any, **options: Any) -> os.stat_result:
        looked.append(str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", counted)
    for _ in range(50):
        file.clock.advance("100ms")
        await statuses(app, 10)
        end_of_looks()
    assert looked.count(str(file.path)) == 5


async def test_counts_of_unchanged_rules_stay_whatever_happens_around_them(file: ConfigFile) -> None:
    named = '[[rules]]\npath = "/b"\nlimits = "2/hour"\nname = "b"\n'
    app = file.middleware(PLAIN.replace('"*"', '"/a"') + named)
    assert await statuses(app, 2, "/a") == [200, 200]
    assert await statuses(app, 1, "/b") == [200]
    file.rewrite(named + '[[rules]]\npath = "/c"\nlimits = "1/hour"\n' + PLAIN.replace('"*"', '"/a"'))
    await file.visit(app)
    assert await statuses(app, 2, "/a") == [200, 429]
    assert await statuses(app, 2, "/b") == [200, 429]
    assert await statuses(app, 2, "/c") == [200, 429]


async def test_a_list_that_was_missing_is_tried_again_when_it_is_there(file: ConfigFile) -> None:
    app = file.middleware(PLAIN)
    file.rewrite('blocklist = "late.netset"\n' + PLAIN)
    await file.visit(app)
    assert file.heard.kinds == ["config_rejected"]
    file.write("late.netset", "203.0.113.0/24\n")
    await file.visit(app)
    assert file.heard.kinds == ["config_rejected", "config_reloaded"]
    assert (await call(app)).status == 403


async def test_another_store_needs_a_restart(file: ConfigFile) -> None:
    heard = RecordingObserver(without=["refused"])
    app = file.middleware('store = "memory://"\n' + PLAIN, limiter=None, observers=[heard])
    assert await statuses(app, 4) == [200, 200, 200, 429]
    file.rewrite('store = "memory://?max_keys=5"\n' + PLAIN)
    await file.visit(app)
    assert heard.kinds == ["config_rejected"]
    assert "store: it cannot change while the application runs" in heard.events[0].message
    file.rewrite('store = "memory://"\n' + PLAIN.replace("3/hour", "4/hour"))
    await file.visit(app)
    assert await statuses(app, 2) == [200, 429]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_many_reloads_under_load_lose_no_request_and_no_count(backend: str, file: ConfigFile) -> None:
    seed = random.randrange(2**32)
    pick = random.Random(seed)
    app = file.middleware(PLAIN.replace("3/hour", "200/hour"))
    answers: list[int] = []

    async def visit() -> None:
        answers.append((await call(app, path=pick.choice(["/", "/more"]))).status)

    async def main() -> None:
        for number in range(40):
            comment = f"# {number}" if pick.random() < 0.7 else f"broken {number}"
            file.rewrite(PLAIN.replace("3/hour", "200/hour") + comment)
            file.clock.advance("1s")
            await visit()
            end_of_looks()
            file.clock.advance("1s")
            # One of these has the file read in a thread, and the others go on meanwhile.
            async with anyio.create_task_group() as tasks:
                for _ in range(10):
                    tasks.start_soon(visit)
            end_of_looks()

    anyio.run(main, backend=backend)
    assert set(file.heard.kinds) == {"config_reloaded", "config_rejected"}, f"seed {seed}"
    assert len(file.heard.events) == 40, f"seed {seed}"
    assert len(answers) == 440, f"seed {seed}: every request is answered"
    assert (answers.count(200), answers.count(429)) == (200, len(answers) - 200), f"seed {seed}"


@pytest.mark.parametrize("text", [PLAIN, 'default_limits = "3/hour"\n'])
async def test_limits_whose_windows_change_count_anew_and_that_is_said(text: str, file: ConfigFile) -> None:
    app = file.middleware(text)
    assert await statuses(app, 4) == [200, 200, 200, 429]
    for limits, expected, said in (
        ("4/hour", [200, 429], []),
        ("3/day", [200, 200, 200, 429], ["windows_restarted"]),
        ("3/day; 9/hour", [], []),  # another limit beside it restarts nothing
    ):
        file.heard.events.clear()
        file.rewrite(text.replace("3/hour", limits))
        await file.visit(app)
        assert file.heard.kinds == ["config_reloaded", *said]
        assert await statuses(app, len(expected)) == expected


async def test_a_file_of_proxies_that_has_zero_bytes_changes_nothing(file: ConfigFile) -> None:
    file.write("proxies.netset", "203.0.113.0/24\n")
    app = file.middleware('limits = "1/hour"\n[client]\ntrusted = "proxies.netset"\n')
    file.write("proxies.netset", "")
    await file.visit(app)
    assert file.heard.kinds == ["config_rejected"]
    behind = [(await call(app, headers={"x-forwarded-for": f"198.51.100.{n}"})).status for n in range(3)]
    assert behind == [200] * 3, "each client is still one of its own"
    file.write("proxies.netset", "# nobody\n")
    await file.visit(app)
    assert file.heard.kinds == ["config_rejected", "config_reloaded"]
