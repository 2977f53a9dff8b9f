"""A process that measures one version of slidegate: it runs a round each time its parent requests one.

`python -m benchmarks.worker` takes the names of candidates and the number of requests in a round as one JSON argument.
It prints the location of slidegate, creates the candidates, reads the numbers of rounds, one per line, and prints the
microseconds of each candidate.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import slidegate

from . import limiter, messages
from .apps import App, candidates
from .traffic import Client, CountingLoop, timed

Round = Callable[[int], Awaitable[float]]
"""Runs the round with the given number; returns the microseconds per operation."""


async def rounds_of(app: App, requests: int) -> Round:
    """Return the rounds of a candidate, after requests of every client to every route."""
    made = await app.make(app.allowed)
    client = Client()
    for scope in app.traffic.warm_up():
        await client.ask(made, scope)
    return lambda turn: timed(made, app.traffic.round(turn, requests), requests, app.status)


async def make(names: Sequence[str], requests: int) -> dict[str, Round]:
    """Create and warm up the named candidates."""
    known, own = candidates(), {**limiter.ROUNDS, **messages.ROUNDS}
    return {name: own[name] if name in own else await rounds_of(known[name], requests) for name in names}


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
    print(Path(slidegate.__file__).parent, flush=True)
    logging.disable()
    with asyncio.Runner(loop_factory=CountingLoop) as runner:
        made = runner.run(make(*json.loads(sys.argv[1])))
        runner.run(run_all(made, 0))
        # Exempt the objects of all candidates from garbage collections, which would be charged to one candidate.
        gc.collect()
        gc.freeze()
        for line in sys.stdin:
            print(json.dumps(runner.run(run_all(made, int(line)))), flush=True)


if __name__ == "__main__":
    main()
