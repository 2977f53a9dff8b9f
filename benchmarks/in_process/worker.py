"""A process that measures one version of slidegate: it runs a round each time that its parent asks for one.

`python -m benchmarks.in_process.worker` takes the names of candidates, the number of requests in a round and that of
paths, all as one JSON text. It makes and checks them, says which slidegate it has, and then answers every line with the
microseconds of each candidate; "backwards" asks for them in the other order.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import slidegate
from slidegate import Limiter, MemoryStore, Quota, RateLimitMiddleware, Rule

from .. import limiter
from ..limiter import KEYS, Turns
from .apps import BLOCKED, CLIENTS, FEW, TEMPLATES, App, bare, candidates
from .traffic import CountingLoop, OtherCode, Request, ask, everyone_everywhere, now_ns, path_of, requests_of, timed

Round = Callable[[int], Awaitable[float]]
"""Runs the round with this number; returns the microseconds of one operation."""

FIRST_NEW: Final = 1_000_000
EVERYONE: Final = len(CLIENTS) * len(TEMPLATES)
"""So many requests bring each client to each route."""
MAX_KEYS: Final = 20_000
TO_BE_BANNED: Final = 40
HITS: Final[dict[str, tuple[Callable[[], Turns], bool]]] = {
    "hit": (partial(limiter.ours, "100/hour"), False),
    "hit of limits": (limiter.theirs, False),
    "hit, refused": (partial(limiter.ours, "100/hour"), True),
    "hit of limits, refused": (limiter.theirs, True),
}


async def statuses(app: App, count: int, client: str = CLIENTS[0]) -> list[int]:
    """Return the statuses of so many requests of one client to a new application that admits a few."""
    made = await app.make(FEW)
    return [(await ask(made, Request(path_of(5), client), app.proxied)).status for _ in range(count)]


def expect(name: str, what: str, found: object, expected: object) -> None:
    """Stop where a candidate does not do what it is measured for."""
    if found != expected:
        raise SystemExit(f"{name}: {what}: expected {expected}, found {found}")


async def check(name: str, app: App) -> None:
    """Check that a gate counts, and that it does all that its candidate is for."""
    if not app.gate:
        return
    few = FEW.amount
    expect(name, "requests of one client", await statuses(app, few + 2), [200] * few + [429] * 2)
    made = await app.make(FEW)
    asked = [Request(path_of(5), CLIENTS[number]) for number in (0, 0, 0, 0, 1)]
    answers = [await ask(made, request, app.proxied) for request in asked]
    expect(name, "another client after them", answers[-1].status, 200 if app.by_client else 429)
    if app.ours:
        fields = [dict(answer.headers) for answer in answers]
        left = [b";r=%d" % left in field.get(b"ratelimit", b"") for left, field in zip((2, 1, 0), fields, strict=False)]
        expect(name, "fields of the three that are admitted", left, [True] * few)
        expect(name, "policy of an admitted one", b"ratelimit-policy" in fields[0], True)
        expect(name, "Retry-After of a refused one", b"retry-after" in fields[3], True)
    if app.bans:
        expect(name, "the last of many requests", (await statuses(app, TO_BE_BANNED))[-1], 403)
    if app.blocks:
        expect(name, "a blocked network", await statuses(app, 1, BLOCKED), [403])


async def of_requests(app: App, count: int, paths: int, between: OtherCode) -> Round:
    """Return the rounds of an application that has seen every client at every route."""
    made = await app.make(app.allowed)
    for request in everyone_everywhere(FIRST_NEW, EVERYONE) if app.new_paths else everyone_everywhere(0, paths):
        await ask(made, request, app.proxied)

    async def run(turn: int) -> float:
        first = FIRST_NEW + EVERYONE + turn * count
        numbers = range(first, first + count) if app.new_paths else range(paths)
        return await timed(made, requests_of(turn, count, numbers), app.status, app.proxied, between)

    return run


def of_hits(fresh: Callable[[], Turns], refused: bool) -> Round:
    """Return the rounds of hits that are admitted, or of those that are refused after them."""

    async def run(turn: int) -> float:
        turns = fresh()
        if refused:
            await turns(True)
        began_ns = now_ns()
        await turns(not refused)
        return (now_ns() - began_ns) / (100 * len(KEYS)) / 1_000

    return run


async def requests_below(own: Limiter, count: int, **options: Any) -> None:
    """Send requests of one client through a rule that shares the limiter."""
    gate = RateLimitMiddleware(await bare(FEW), limiter=own, rules=[Rule("*", **options)])
    for _ in range(count):
        await ask(gate, Request(path_of(0), CLIENTS[0]))


async def quota(own: Limiter) -> None:
    await own.hit("other", Quota("1000/day"), rule="quota")


async def fill(own: Limiter) -> None:
    for number in range(MAX_KEYS + 100):
        await own.hit(f"other:{number}", "100/hour", rule="others")


async def let_a_ban_end(own: Limiter) -> None:
    await own.ban("192.0.2.7", "1s")
    await asyncio.sleep(1.1)
    await own.hit("192.0.2.7", "100/hour", rule="others")


EVENTS: Final[dict[str, Callable[[Limiter], Awaitable[None]]]] = {
    "hit before": partial(requests_below, count=1, limits="100/hour"),
    "hit after `wait`": partial(requests_below, count=2, limits="1/100ms", wait="1s"),
    "hit after `count_denied`": partial(requests_below, count=3, limits="1/hour", count_denied=True),
    "hit after a quota": quota,
    "hit after `concurrency`": partial(requests_below, count=1, limits="100/hour", concurrency=2),
    "hit after a full store": fill,
    "hit after a ban that ended": let_a_ban_end,
}
"""What may come to a limiter and must not make the hits of other buckets dearer."""


async def of_hits_after(event: Callable[[Limiter], Awaitable[None]]) -> Round:
    """Return the rounds of hits after something else has come to the same limiter."""
    own, limit = Limiter(MemoryStore(max_keys=MAX_KEYS)), "2000000000/minute"

    async def run(turn: int) -> float:
        hit, began_ns = own.hit, now_ns()
        for _ in range(50):
            for key in KEYS:
                await hit(key, limit)
        return (now_ns() - began_ns) / (50 * len(KEYS)) / 1_000

    await run(0)
    await event(own)
    return run


async def rounds_of(names: list[str], requests: int, paths: int) -> dict[str, Round]:
    """Make, check and warm the named candidates."""
    between, found, made = OtherCode(), candidates(), dict[str, Round]()
    for name in names:
        if name in found:
            await check(name, found[name])
            made[name] = await of_requests(found[name], requests, paths, between)
        elif name in HITS:
            made[name] = of_hits(*HITS[name])
        else:
            made[name] = await of_hits_after(EVENTS[name])
    return made


async def run_all(made: dict[str, Round], turn: int, backwards: bool) -> dict[str, float]:
    """Run every candidate once."""
    return {name: await made[name](turn) for name in (reversed(made) if backwards else made)}


def main() -> None:
    """Answer the parent until it goes."""
    logging.disable()
    names, requests, paths = json.loads(sys.argv[1])
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        made = runner.run(rounds_of(names, requests, paths))
        runner.run(run_all(made, 0, False))
        # The collector does not walk what all candidates hold for the one in whose round it happens to run.
        gc.collect()
        gc.freeze()
        where = str(Path(slidegate.__file__).parent)
        print(json.dumps({"where": where, "compiled": slidegate.core.compiled}), flush=True)
        for turn, line in enumerate(sys.stdin, 1):
            print(json.dumps(runner.run(run_all(made, turn, line.strip() == "backwards"))), flush=True)


if __name__ == "__main__":
    main()
