"""A process that measures one version of slidegate: it runs a round each time that its parent asks for one.

`python -m benchmarks.worker` takes the names of candidates, the number of requests in a round and that of paths as one
JSON text. It makes and checks them, says which slidegate it has, and then answers every line, which is the number of a
round, with the microseconds of each candidate.
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
"""So many requests bring each client to each route."""
TO_BE_BANNED: Final = 40


async def send_to(app: App, made: Any, path: int, client: str) -> Client:
    """Send one request to an application that a candidate has made."""
    return await ask(made, request_scope(Request(path_of(path), client), app.proxied))


async def statuses(app: App, count: int, client: str = CLIENTS[0]) -> list[int]:
    """Return the statuses of so many requests of one client to a new application that admits a few."""
    made = await app.make(FEW)
    return [(await send_to(app, made, 5, client)).status for _ in range(count)]


def expect(name: str, what: str, found: object, expected: object) -> None:
    """Stop where a candidate does not do what it is measured for."""
    if found != expected:
        raise SystemExit(f"{name}: {what}: expected {expected}, found {found}")


async def check(name: str, app: App) -> None:
    """Check that a limiter counts, and that it does all that its candidate is for."""
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
    """Return the rounds of an application that has seen every client at every route."""
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
    """Make, check and warm the named candidates."""
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
    """Return the order in which candidates take their turns in a round: a Williams design.

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
    """Answer the parent until it goes."""
    logging.disable()
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        made = runner.run(rounds_of(*json.loads(sys.argv[1])))
        runner.run(run_all(made, 0))
        # The collector does not walk what all candidates hold for the one in whose round it happens to run.
        gc.collect()
        gc.freeze()
        where = str(Path(slidegate.__file__).parent)
        print(json.dumps({"where": where, "compiled": slidegate.core.compiled}), flush=True)
        for line in sys.stdin:
            print(json.dumps(runner.run(run_all(made, int(line)))), flush=True)


if __name__ == "__main__":
    main()
