"""A rolling upgrade: workers of two builds share a store, and the later one writes a field more in every row.

Bans, levels and changed limits of either are obeyed by both, and rewritten by both without loss.
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Limiter, RateLimitMiddleware, Rule

from ..asgi import call, hello
from ..workers import TESTED

ROOT = Path(__file__).resolve().parents[2]
POLICY = BanPolicy("1/hour", "1s", factor=1, forgive="1h", name="abuse")
pytestmark = pytest.mark.all


class Worker:
    """An application with one limit, whose store other workers share."""

    def __init__(self, url: str) -> None:
        self.limiter = Limiter.from_url(url, on_error="deny", deadline="5s")
        rules = [Rule("*", "3/hour", name="api")]
        self.app = RateLimitMiddleware(hello, rules=rules, limiter=self.limiter)

    async def do(self, what: str, *words: str) -> Any:
        if what == "get":
            return (await call(self.app, client=(words[0], 1))).status
        if what == "strike":
            ban = await self.limiter.strike(words[0], POLICY, 2)
            return ban.level if ban else None
        if what == "bans":
            return sorted([ban.key async for ban in self.limiter.bans()])
        if what == "overrides":
            return [[one.name, one.limit, one.by] for one in await self.limiter.overrides()]
        if what == "history":
            return [str(one) for one in await self.limiter.history()]
        return str(await getattr(self.limiter, what)(*words))


LATER = """
import asyncio, json, sys
from tests.stores.test_two_builds import Worker

written = json.dumps

def with_a_field_more(value, **options):
    if isinstance(value, dict) and value.keys() & {"by", "level", "limit"}:
        value = {**value, "scope": ["later", {"deep": None}]}
    return written(value, **options)

json.dumps = with_a_field_more

async def main():
    worker = Worker(sys.argv[1])
    for line in sys.stdin:
        print(written(await worker.do(*json.loads(line))), flush=True)
    await worker.limiter.close()

asyncio.run(main())
"""


class LaterWorker:
    """The same in a process whose build writes a field more."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process

    async def do(self, *what: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


@pytest.fixture
def later(url: str) -> Iterator[LaterWorker]:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTED), str(ROOT)))}
    command = [sys.executable, "-c", LATER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=paths) as process:
        yield LaterWorker(process)


@asynccontextmanager
async def worker(url: str) -> AsyncIterator[Worker]:
    made = Worker(url)
    yield made
    await made.limiter.close()


async def comes_to(worker: Any, expected: Any, *what: str) -> None:
    """Ask a worker until it gives an answer: it hears of networks and of changes within a second."""
    for _ in range(50):
        found = await worker.do(*what)
        if found == expected:
            return
        await asyncio.sleep(0.1)
    assert found == expected


@pytest.mark.parametrize("later_writes", [False, True])
@pytest.mark.parametrize("kind", ["lmdb", "redis", "cluster"])
async def test_workers_of_two_builds_obey_each_other(url: str, later: LaterWorker, later_writes: bool) -> None:
    async with worker(url) as earlier:
        writer, reader = (later, earlier) if later_writes else (earlier, later)
        both: tuple[Any, Any] = (writer, reader)
        for each in both:
            assert await each.do("get", "192.0.2.9") == 200
        # Bans of clients and of networks.
        for key in ("192.0.2.1", "198.51.100.0/24"):
            await writer.do("ban", key, "1h")
        for each in both:
            assert await each.do("get", "192.0.2.1") == 403
            await comes_to(each, 403, "get", "198.51.100.7")
        # Each offence bans for longer, whoever has seen the last one.
        for level, each in enumerate((writer, reader, writer), start=1):
            assert await each.do("strike", "192.0.2.5") == level
            await asyncio.sleep(1.1)  # until the ban has ended
        # A changed limit, and one that is changed back.
        await writer.do("override", "api", "1/hour", "1h")
        for number, each in enumerate(both):
            await comes_to(each, [["api", "1/1h", "manual"]], "overrides")
            client = f"203.0.113.{number}"
            assert [await each.do("get", client), await each.do("get", client)] == [200, 429]
        await reader.do("override", "api", "2/hour", "1h")
        for each in both:
            assert [one[:2] for one in await each.do("overrides")] == [["api", "2/1h"]]
        await reader.do("restore", "api")
        assert await writer.do("overrides") == []
        # Whoever lifts a ban lifts it for both.
        await reader.do("unban", "192.0.2.1")
        for each in both:
            assert await each.do("get", "192.0.2.1") == 200
            assert await each.do("bans") == ["198.51.100.0/24"]
        said = await earlier.do("history")
        assert said == await later.do("history")
        assert len(said) == 6
