"""The dashboard as users and scripts see it: what pages show, forms do and the API answers, line by line."""

import asyncio
import json
import os
import re
import shlex
import socket
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from slidegate import BanPolicy, Networks, Quota, RateLimitMiddleware, Rule, __version__, client_ip
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ...asgi import hello
from .site import SECRET, VIEWS, Page, Site

TRANSCRIPTS = Path(__file__).with_name("transcripts")
UNSTEADY = (
    (r"[\w.-]+:\d+:[0-9a-f]{8}", "WORKER"),
    (rf"{__version__}(, compiled)?, Python [\w.+]+", "VERSION"),
    (rf"\b{socket.gethostname()} \| {os.getpid()}\b", "HOST | PID"),
)
"""What depends on the machine, and what stands for it."""
NO_VALUES = re.compile("[0-9:]{8}( \\| [0\u2013])+")
"""A row of a chart's table in which nothing happened."""


class Visitor:
    """Carries out the lines of a transcript: a verb and its words, some of them as ``name=value``."""

    def __init__(self, clock: FakeClock, home: Path) -> None:
        self.clock, self.home = clock, home
        self.site = Site(clock)
        self._kept: list[Any] = []

    async def answer(self, line: str) -> str:
        verb, _, rest = line.partition(" ")
        shown: str = await getattr(self, f"_{verb}")(*([rest] if verb == "api" else shlex.split(rest))) or ""
        shown = shown.replace(str(self.home), "DIR")
        for pattern, steady in UNSTEADY:
            shown = re.sub(pattern, steady, shown)
        return shown

    async def _site(self, name: str = "") -> None:
        (self.home / "bad.netset").write_text("203.0.113.128/25\n198.51.100.0/24\n")
        kinds = [
            Rule(["/a", "/b"], "5/minute; 50/hour", methods=["POST"], name="forms", wait="1s"),
            Rule("/plans", lambda request: "7/minute", name="plans"),
            Rule("/old", block=True, status=410, name="old"),
            Rule("/free", exempt=True, name="free"),
        ]
        plan = Rule("*", ["100/minute @7", "9/second", Quota("10/day")], concurrency=4, name="plan")
        wide = Rule("*", "9/hour", key=client_ip(ipv4_prefix=16), name="wide")
        options: dict[str, dict[str, Any]] = {
            "networks": {
                "middleware": {"client": client_ip(ipv4_prefix=25), "rules": [Rule("*", "3/minute", name="all"), wide]}
            },
            "": {},
            "read-only": {"changes": False},
            "login": {"token": None},
            "shadow": {"middleware": {"bans": BanPolicy("3/10m", "1h", name="harsh", shadow=True)}},
            "plan": {"middleware": {"rules": [plan]}},
            "kinds": {"middleware": {"rules": kinds, "blocklist": Networks.from_file(self.home / "bad.netset")}},
        }
        self.site = Site(self.clock, **options[name])

    async def _file(self, name: str = "file", limit: str = "4/s") -> None:
        """Add a middleware of a file, whose limit may have the name of another one."""
        file = self.home / "slidegate.toml"
        file.write_text(f'[[rules]]\npath = "/from/file"\nlimits = "{limit}"\nname = "{name}"\n')
        self._kept.append(RateLimitMiddleware.from_file(hello, file, limiter=self.site.limiter))

    async def _visit(self, path: str, *words: str) -> str:
        more = dict(word.split("=", 1) for word in words)
        statuses = await self.site.visit(path, int(more.pop("times", "1")), more.pop("client", "203.0.113.9"), **more)
        return ", ".join(f"{len([*same])} x {status}" for status, same in groupby(statuses))

    async def _advance(self, span: str) -> None:
        """Advance the clock after everything that was counted is written."""
        await Statistics.of(self.site.limiter).publish()
        self.clock.advance(span)

    async def _ban(self, key: str, duration: str, reason: str = "", by: str = "manual") -> None:
        await self.site.limiter.ban(key, duration, reason=reason, by=by)

    async def _strike(self, key: str, times: str) -> str:
        policy = BanPolicy("3/10m", "1h", name="scanners")
        return f"{await self.site.limiter.strike(key, policy, int(times)) is not None}"

    async def _api(self, line: str) -> str:
        method, path, said = [*line.split(" ", 2), ""][:3]
        path, _, query = path.partition("?")
        fields = dict(pair.split("=", 1) for pair in query.split("&")) if query else {}
        status, found = await self.site.ask(method, path, json.loads(said) if said else None, **fields)
        return f"{status} {json.dumps(found)}"

    async def _send(self, method: str, path: str, *words: str) -> str:
        """Send a request with header fields and a body, and return the status and which methods there are."""
        fields: dict[str, Any] = dict(word.split("=", 1) for word in words)
        body = fields.pop("body", "").encode()
        answer = await self.site.send(method, path, body, **{name: value or None for name, value in fields.items()})
        return f"{answer.status} {answer.headers.get('allow', '')}".strip()

    async def _page(self, path: str = "") -> str:
        lines = (await self.site.page(path)).lines
        head = lines.index("[button=]Theme: system") + 1
        return "\n".join(line for line in lines[head:] if not NO_VALUES.fullmatch(line))

    async def _form(self, view: str, *words: str) -> str:
        """Send a form, and return where it leads, or the alerts of the page that shows it again."""
        answer = await self.site.submit(view, **dict(word.split("=", 1) for word in words))
        return f"{answer.status} {answer.headers.get('location') or ' '.join(Page(answer).alerts)}".strip()


@pytest.mark.parametrize("name", ["access", "api", "views", "forms"])
def test_pages_forms_and_operations(
    name: str, clock: FakeClock, tmp_path: Path, texts: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    with asyncio.Runner() as runner:
        visitor = Visitor(clock, tmp_path)
        texts(TRANSCRIPTS / f"{name}.txt", "> ", lambda line: runner.run(visitor.answer(line)))
        for view in VIEWS:
            runner.run(visitor.site.page(view))
    assert SECRET not in caplog.text
