"""A process that measures one version of slidegate: it runs a round each time its parent requests one.

`python -m benchmarks.worker` takes the names of candidates, the number of requests in a round and the number of paths
as one JSON argument. It creates and checks the candidates, and prints the location of slidegate. Then it reads the
numbers of rounds, one per line, and prints the microseconds of each candidate.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import slidegate

from .apps import BLOCKED, CLIENTS, FEW, TEMPLATES, App, candidates
from .asgi import Client, ask
from .hits import HITS, Round
from .traffic import (
    CountingLoop,
    OtherCode,
    Request,
    everyone_everywhere,
    path_of,
    request_scope,
    requests_of,
    timed,
)

FIRST_NEW: Final = 1_000_000
EVERYONE: Final = len(CLIENTS) * len(TEMPLATES)
"""The number of requests that covers each pair of client and route."""
TO_BE_BANNED: Final = 40


async def send_to(app: App, made: Any, path: int, client: str) -> Client:
    """Send one request to the application of a candidate."""
    return await ask(made, request_scope(Request(path_of(path), client), app.proxied))


async def statuses(app: App, count: int, client: str = CLIENTS[0]) -> list[int]:
    """Return the statuses of `count` requests of one client to a new application with a low limit."""
    made = await app.make(FEW)
    return [(await send_to(app, made, 5, client)).status for _ in range(count)]


def expect(name: str, what: str, found: object, expected: object) -> None:
    """Exit if a candidate does not behave as expected."""
    if found != expected:
        raise SystemExit(f"{name}: {what}: expected {expected}, found {found}")


async def check(name: str, app: App) -> None:
    """Check that a limiter counts, and has all the properties of its candidate."""
    if not app.limited:
        return
    few = FEW.amount
    expect(name, "requests of one client", await statuses(app, few + 2), [200] * few + [429] * 2)
    made = await app.make(FEW)
    answers = [await send_to(app, made, 5, CLIENTS[number]) for number in (0, 0, 0, 0, 1)]
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
    """Return the rounds of an application, after requests of every client to every route."""
    made = await app.make(app.allowed)
    known = everyone_everywhere(FIRST_NEW, EVERYONE) if app.new_paths else everyone_everywhere(0, paths)
    for request in known:
        await ask(made, request_scope(request, app.proxied))

    async def run(turn: int) -> float:
        first = FIRST_NEW + EVERYONE + turn * count
        numbers = range(first, first + count) if app.new_paths else range(paths)
        return await timed(made, requests_of(turn, count, numbers), app.status, app.proxied, between)

    return run


async def rounds_of(names: list[str], requests: int, paths: int) -> dict[str, Round]:
    """Create, check and warm up the named candidates."""
    known, between = candidates(), OtherCode()
    made: dict[str, Round] = {}
    for name in names:
        if name in HITS:
            made[name] = HITS[name]
        else:
            await check(name, known[name])
            made[name] = await of_requests(known[name], requests, paths, between)
    return made


def order_of(names: Sequence[str], turn: int) -> list[str]:
    """Return the order of the candidates in a round: a Williams design.

    In as many rounds as there are candidates, each comes first once and follows every other once; with an odd number of
    candidates, each does so twice in twice as many rounds.
    """
    steps = ((step + 1) // 2 if step % 2 else -(step // 2) for step in range(len(names)))  # 0, 1, -1, 2, -2, ...
    order = [names[(step + turn // 2) % len(names)] for step in steps]
    return order[::-1] if turn % 2 else order


async def run_all(made: dict[str, Round], turn: int) -> dict[str, float]:
    """Run every candidate once."""
    return {name: await made[name](turn) for name in order_of(list(made), turn)}


def main() -> None:
    """Run rounds until the parent closes the standard input."""
    logging.disable()
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        made = runner.run(rounds_of(*json.loads(sys.argv[1])))
        runner.run(run_all(made, 0))
        # Exempt the objects of all candidates from garbage collections, which would be charged to one candidate.
        gc.collect()
        gc.freeze()
        where = str(Path(slidegate.__file__).parent)
        print(json.dumps({"where": where, "compiled": slidegate.core.compiled}), flush=True)
        for line in sys.stdin:
            print(json.dumps(runner.run(run_all(made, int(line)))), flush=True)


if __name__ == "__main__":
    main()
