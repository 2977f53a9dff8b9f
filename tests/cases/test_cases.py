"""What was reported, from outside: each case is an application, what is done with it, and the right answers.

A case is changed only by a ruling of the design that it names (ruling 59). It begins with a sentence, and says where
it comes from, which ruling answers it, and with which stores it is played::

    == A client that omits its key is limited by its address
    from: four applications of a new user
    ruling: 4
    stores: memory, lmdb, redis

    | app.add_middleware(RateLimitMiddleware, limits="2/minute", key=lambda request: None, limiter=limiter)
    > GET / times=3                 a request or another word of the stage (tests/web/stage.py)
    200 200 429
    >>> limiter.ban("1.2.3", "1h")  an expression, or what awaits it
    $ slidegate check main:app      a line of the terminal (tests/ops/cli/terminal.py)

Lines behind ``| `` are the file `main.py`, below those of `HEAD`. What raises shows its error.
"""

import asyncio
import importlib
import inspect
import re
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from slidegate import SlidegateError

from ..ops.cli.terminal import Terminal, command
from ..redis_servers import needs_redis
from ..skips import needs_lmdb
from ..virtual_time import use_virtual_time
from ..web.stage import Stage

HEAD = """\
import asyncio, httpx, os, re
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response, WebSocket
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.endpoints import HTTPEndpoint
from starlette.routing import Mount, Route, Router
from starlette.testclient import TestClient
from slidegate import *
from slidegate.dashboard import Dashboard
from slidegate.ops.statistics import Statistics

limiter = Limiter.from_url(os.environ["SLIDEGATE_STORE"], deadline="60s")
app = FastAPI()

async def ask(path, **form):
    "Return what a new dashboard answers or where it leads; statistics count from the first on."
    sent = {"method": "POST" if form else "GET", "url": f"http://t/{path}", "data": form or None}
    transport = httpx.ASGITransport(Dashboard(limiter, user=lambda request: "ann"))
    async with httpx.AsyncClient(transport=transport, headers={"Sec-Fetch-Site": "same-origin"}) as client:
        answer = await client.request(**sent)
    return answer.headers.get("location") or (answer.json() if path.startswith("api/") else answer.text)
"""
NEEDED = {"redis": needs_redis, "lmdb": needs_lmdb}
"""Where the program of a case has no store, its requests would wait for ever."""
BEGINS = re.compile("^== ", re.MULTILINE)
ENTRY = re.compile(r"^((?:\|.*\n)+|(?:>|>>>|\$) .*\n)", re.MULTILINE)


class Case(NamedTuple):
    """One case, and a store that it is played with."""

    path: Path
    text: str
    store: str

    def __str__(self) -> str:
        return f"{self.path.stem}-{self.text.partition(chr(10))[0].removeprefix('== ').replace(' ', '_')}-{self.store}"


def cases() -> Iterator[Any]:
    for path in sorted(Path(__file__).parent.glob("*.txt")):
        text = path.read_text("utf-8")
        starts = [found.start() for found in BEGINS.finditer(text)]
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            part = text[start:end]
            about = dict(re.findall(r"^(from|ruling|stores): (.+)$", part, re.MULTILINE))
            for store in about.get("stores", "memory").split(", "):
                marks = NEEDED.get(store, ())
                yield pytest.param(Case(path, part, store), store, id=str(Case(path, part, store)), marks=marks)


class Player:
    """Answers the entries of one case."""

    def __init__(self, runner: asyncio.Runner, stage: Stage, terminal: Terminal) -> None:
        self.runner, self.stage, self.terminal = runner, stage, terminal
        self.main: Any = None

    def answer(self, entry: str) -> str:
        try:
            if entry.startswith("|"):
                return self._load(re.sub(r"^\| ?", "", entry, flags=re.MULTILINE))
            prompt, _, rest = entry.rstrip("\n").partition(" ")
            if prompt == "$":
                return self.terminal.answer(rest)
            if prompt == ">":
                return self.runner.run(self.stage.answer(rest))
            return self._value(rest)
        except (SlidegateError, TypeError, ValueError) as error:
            return re.sub(r" at 0x\w+", "", f"{type(error).__name__}: {error}")

    def _load(self, written: str) -> str:
        (self.terminal.home / "main.py").write_text(f"{HEAD}\n{written}", "utf-8")
        sys.modules.pop("main", None)
        importlib.invalidate_caches()
        self.main = importlib.import_module("main")
        self.stage.serve(self.main.app)
        self.stage.limiter = self.main.limiter
        self.main.limiter.observe(self.stage.observer)
        return ""

    def _value(self, expression: str) -> str:
        value = eval(expression, vars(self.main))
        if inspect.isawaitable(value):
            value = self.runner.run(result_of(value))
        return "" if value is None else repr(value)


async def result_of(value: Awaitable[Any]) -> Any:
    return await value


@pytest.mark.parametrize(("case", "kind"), [*cases()])
def test_what_was_reported_has_its_right_answers(
    case: Case,
    url: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    texts_in: Callable[..., None],
) -> None:
    monkeypatch.setenv("SLIDEGATE_STORE", url)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # a program of the same second has the file of the one before
    terminal = Terminal(command(capsys, monkeypatch), tmp_path, monkeypatch, url)
    monkeypatch.syspath_prepend(terminal.home)
    with asyncio.Runner() as runner, terminal.servers:
        virtual: Any = SimpleNamespace(passed_s=0.0)
        if case.store == "memory":  # others answer in their own time
            virtual = runner.run(use_virtual_time())
        stage = Stage(virtual, terminal.home)
        runner.run(stage.__aenter__())
        player = Player(runner, stage, terminal)
        try:
            texts_in(case.path, case.text, ENTRY, player.answer)
        finally:
            runner.run(stage.__aexit__())
            if player.main is not None:
                runner.run(player.main.limiter.close())
            sys.modules.pop("main", None)
