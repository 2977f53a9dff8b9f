"""A visit to the gateway over HTTP: budgets and debts, a client that leaves, streams at a time, and a model in trouble.

The store goes by a clock that the visit turns, so a minute of waiting takes no time. Towards the model the gateway goes
by the clock of the machine, because the model does.
"""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx

from examples.serving import HOST, served, show, title
from slidegate import Limiter, MemoryStore
from slidegate.testing import FakeClock

from .app import AT_ONCE, BUDGETS, Accounts, make_app
from .model import BREAKS_OFF, LIMIT, OVERLOADED, make_model
from .upstream import Upstream

START_US = int(datetime(2026, 3, 20, 22, 0, tzinfo=UTC).timestamp()) * 1_000_000
NAMES = ("ann", "bob", "cid", "dot", "eve", "fay", "gus")
KEYS = {name: f"the-api-key-of-{name}" for name in NAMES}
PROMPT = "ten words of a question that somebody wants answered now"
PATIENCE_S = 60


class Reins:
    """Holds answers of the model at a token, so that the visit can have them under way.

    Attributes:
        held_at: The token, counted from 0, before which answers are held; None to hold none.
        held: Is released once for each answer that is held.
    """

    def __init__(self) -> None:
        self.held_at: int | None = None
        self.held = asyncio.Semaphore(0)
        self._go = asyncio.Event()

    async def __call__(self, number: int) -> None:
        if number == self.held_at:
            self.held.release()
            await self._go.wait()

    def hold(self, token: int) -> None:
        """Hold answers from now on."""
        self.held_at = token
        self._go.clear()

    def let_go(self) -> None:
        """Let all answers go on."""
        self.held_at = None
        self._go.set()


@dataclass
class Seen:
    """One answer as a client sees it.

    Attributes:
        answer: Its head.
        tokens: The tokens that came.
        usage: The last event: the tokens that were charged, and those that are left.
        error: The event of an error, if one came.
    """

    answer: httpx.Response
    tokens: int = 0
    usage: dict[str, object] = field(default_factory=dict)
    error: str = ""

    def __str__(self) -> str:
        if self.answer.status_code != 200:
            wait = self.answer.headers.get("Retry-After")
            after = f"; Retry-After: {wait}" if wait else ""
            return f"{self.answer.status_code}: {self.answer.json()['error']}{after}"
        left = self.usage["left"]
        assert isinstance(left, dict)
        broken = f"; then: {self.error}" if self.error else ""
        return f"{self.tokens:,} tokens{broken}; left: {left['minute']} this minute, {left['day']:,} today"


class Visit:
    """One visit: its clock, its reins of the model, and its client."""

    def __init__(self, clock: FakeClock, reins: Reins, limiter: Limiter, http: httpx.AsyncClient) -> None:
        self.clock = clock
        self.reins = reins
        self.limiter = limiter
        self.http = http

    @asynccontextmanager
    async def stream(self, name: str, tokens: int, prompt: str = PROMPT) -> AsyncIterator[httpx.Response]:
        """Ask a question, and give the answer when its head has come."""
        asked = {"prompt": prompt, "max_tokens": tokens}
        fields = {"Authorization": f"Bearer {KEYS[name]}"}
        async with self.http.stream("POST", "/v1/ask", json=asked, headers=fields) as answer:
            yield answer

    async def ask(self, name: str, tokens: int, prompt: str = PROMPT) -> Seen:
        """Ask a question, and read the whole answer."""
        async with self.stream(name, tokens, prompt) as answer:
            seen = Seen(answer)
            if answer.status_code != 200:
                await answer.aread()
                return seen
            kind = ""
            async for line in answer.aiter_lines():
                if line.startswith("event: "):
                    kind = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    data = json.loads(line.removeprefix("data: "))
                    if kind == "usage":
                        seen.usage = data
                    elif kind == "error":
                        seen.error = data["error"]
                    else:
                        seen.tokens += 1
                    kind = ""
            return seen

    async def used(self, name: str) -> int:
        """Return the tokens of this minute that an account has spent."""
        decision = await self.limiter.peek(f"account:{name}", BUDGETS, cost=0, rule="tokens")
        return BUDGETS[0].amount - decision.states[0].remaining


async def visit() -> None:
    """Play the visit, and print what happens."""
    clock, reins = FakeClock(START_US), Reins()
    async with (
        Limiter(MemoryStore(clock=clock)) as limiter,
        served(make_model(reins)) as model,
        served(make_app(limiter, Accounts(KEYS), Upstream(model.url, LIMIT))) as server,
        httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http,
    ):
        tour = Visit(clock, reins, limiter, http)
        await budgets(tour)
        await leaving(tour)
        await at_once(tour)
        await trouble(tour)
        await silence(tour, limiter)


async def budgets(tour: Visit) -> None:
    """Spend a minute, go into debt, and spend a day."""
    minute, day = (limit.amount for limit in BUDGETS)
    title(f"ann has {minute:,} tokens in any minute, and {day:,} a day; her prompts have {len(PROMPT.split())}")
    show("a short answer", await tour.ask("ann", 100))
    show("an answer of 1,500 tokens is streamed to its end", await tour.ask("ann", 1_500))
    refused = await tour.ask("ann", 100)
    wait_s = int(refused.answer.headers["Retry-After"])
    show("which leaves a debt: the next question", refused)
    tour.clock.advance(us=wait_s * 1_000_000 - 1)
    show("a microsecond before that is over", (await tour.ask("ann", 100)).answer.status_code)
    tour.clock.advance(us=1)
    show("and when it is over", await tour.ask("ann", 100))
    show("a prompt of 1,200 words, which fits no minute", await tour.ask("ann", 1, "word " * 1_200))
    for _ in range(2):
        tour.clock.advance("2m")
        show("2 minutes later, an answer of 2,200 tokens", await tour.ask("ann", 2_200))
    tour.clock.advance("2m")
    show("the day is spent, so the next question waits for midnight", await tour.ask("ann", 100))


async def leaving(tour: Visit) -> None:
    """Leave in the middle of an answer."""
    title("bob leaves in the middle of an answer")
    tour.reins.hold(150)
    async with tour.stream("bob", 900) as answer:
        came = 0
        async for line in answer.aiter_lines():
            came += line.startswith("data: ")
            if came == 150:
                break
        await tour.reins.held.acquire()
    async with asyncio.timeout(PATIENCE_S):
        while await tour.used("bob") <= len(PROMPT.split()):  # noqa: ASYNC110 - the store has no event for it
            await asyncio.sleep(0.02)
    show("he asked for 900 tokens and leaves after 150; charged with the prompt", await tour.used("bob"))
    tour.reins.let_go()


async def at_once(tour: Visit) -> None:
    """Have more streams under way than an account may."""
    title(f"each account has {AT_ONCE} streams at a time")
    tour.reins.hold(1)
    running = []
    for _ in range(AT_ONCE):
        running.append(asyncio.create_task(tour.ask("cid", 50)))
        await tour.reins.held.acquire()
    show("a third stream meanwhile", await tour.ask("cid", 50))
    tour.reins.let_go()
    show("the two end", [seen.tokens for seen in await asyncio.gather(*running)])
    show("a third stream now", await tour.ask("cid", 50))


async def trouble(tour: Visit) -> None:
    """Meet a model that is slow to take questions, overloaded, or breaks off."""
    title(f"the model takes {LIMIT}; a question of the gateway waits for its turn")
    asked = [tour.ask(name, 20) for name in ("dot", "eve", "fay", "gus") for _ in range(AT_ONCE)]
    answers = await asyncio.gather(*asked)
    more = await asyncio.gather(*(tour.ask(name, 20) for name in ("dot", "eve", "fay", "gus") for _ in range(AT_ONCE)))
    statuses = [seen.answer.status_code for seen in (*answers, *more)]
    show("16 questions as fast as they go", f"{statuses.count(200)} answers")
    title("the model in trouble")
    before = await tour.used("dot")
    show("the model is overloaded, and says for how long", await tour.ask("dot", 100, OVERLOADED))
    show("charged for that", await tour.used("dot") - before)
    show("it breaks off; the tokens that came are charged", await tour.ask("dot", 100, BREAKS_OFF))


async def silence(tour: Visit, limiter: Limiter) -> None:
    """Ask a gateway whose model is not there."""
    with socket.socket() as nobody:
        nobody.bind((HOST, 0))  # and does not listen
        gone = make_app(limiter, Accounts(KEYS), Upstream(f"http://{HOST}:{nobody.getsockname()[1]}", LIMIT))
        async with (
            served(gone) as server,
            httpx.AsyncClient(base_url=server.url, trust_env=False, timeout=PATIENCE_S) as http,
        ):
            show("it is not there", await Visit(tour.clock, tour.reins, limiter, http).ask("eve", 100))
    show("somebody without an API key", (await tour.http.post("/v1/ask", json={"prompt": "hello"})).status_code)
