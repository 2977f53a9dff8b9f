"""Hits without HTTP, in memory: slidegate, the exact moving window of `limits`, and the fastest estimate.

Every round uses new limiters. Each of 64 keys is hit a hundred times under a limit of a hundred an hour, then another
hundred times, which are refused. Answers are stored during the measurement and checked afterwards. The ratio of a row
says how many times as fast slidegate is.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from rust_py_rate_limit import RateLimiter as RustLimiter

from slidegate import Limiter

from . import rounds
from .rounds import Row
from .traffic import now_ns

KEYS: Final = [f"user:{number}" for number in range(64)]
AMOUNT: Final = 100
LIMIT: Final = f"{AMOUNT}/hour"
OURS: Final = "slidegate"


class Hits(NamedTuple):
    """How to hit one limiter.

    Attributes:
        call: Hits a key, given its arguments; returns the answer or an awaitable of it.
        arguments: The arguments for each key.
        awaited: Whether the answer must be awaited.
    """

    call: Callable[..., Any]
    arguments: Sequence[tuple[object, ...]]
    awaited: bool = True


def rust() -> Hits:
    limiter = RustLimiter(limit=AMOUNT, window_seconds=3_600, algorithm="sliding")
    return Hits(limiter.allow, [(key,) for key in KEYS], awaited=False)


LIMITERS: Final[dict[str, Callable[[], Hits]]] = {
    OURS: lambda: Hits(Limiter().hit, [(key, LIMIT) for key in KEYS]),
    "limits": lambda: Hits(MovingWindowRateLimiter(MemoryStorage()).hit, [(parse(LIMIT), key) for key in KEYS]),
    "rust-py-rate-limit": rust,
}


async def hit_us(hits: Hits, expected: bool) -> float:
    """Hit every key `AMOUNT` times; return the microseconds per hit.

    Raises:
        RuntimeError: An answer is not as expected.
    """
    call, arguments = hits.call, hits.arguments
    began_ns = now_ns()
    if hits.awaited:
        answers = [await call(*given) for _ in range(AMOUNT) for given in arguments]
    else:
        answers = [call(*given) for _ in range(AMOUNT) for given in arguments]
    taken_ns = now_ns() - began_ns
    if any(bool(answer) is not expected for answer in answers):
        raise RuntimeError(f"{hits.call}: expected every hit to be {'admitted' if expected else 'refused'}")
    return taken_ns / len(answers) / 1_000


async def one_round(make: Callable[[], Hits], refused: bool, turn: int) -> float:
    """Return the microseconds of an admitted hit, or of the refused hits that follow them."""
    hits = make()
    admitted_us = await hit_us(hits, True)
    return await hit_us(hits, False) if refused else admitted_us


ROUNDS: Final = {
    f"{name}{', refused' if refused else ''}": partial(one_round, make, refused)
    for refused in (False, True)
    for name, make in LIMITERS.items()
}
"""The rounds of every limiter by the name of its row."""
TARGETS: Final = {"limits": "≥1.8; ≥3", "limits, refused": "≥1.6; ≥3"}
TABLES: Final = {
    title: [Row(name + end, "", OURS + end, "", TARGETS.get(name + end, "")) for name in LIMITERS]
    for title, end in (("Admitted", ""), ("Refused", ", refused"))
}


def arguments(parser: ArgumentParser) -> None:
    rounds.arguments(parser, TABLES)


def main(options: Namespace) -> None:
    rounds.main(options, TABLES)
