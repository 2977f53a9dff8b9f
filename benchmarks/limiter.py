"""Hits without HTTP, in memory: slidegate, and the exact moving window of `limits`.

Every round uses new limiters. Each of 64 keys is hit a hundred times under a limit of a hundred an hour, then another
hundred times, which are refused. Answers are stored during the measurement and checked afterwards. The ratio of a row
says how many times as fast slidegate is.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Final

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter

from slidegate import Limiter

from . import rounds
from .rounds import Round, Row
from .traffic import now_ns

KEYS: Final = [f"user:{number}" for number in range(64)]
AMOUNT: Final = 100
LIMIT: Final = f"{AMOUNT}/hour"
Hits = tuple[Callable[..., Awaitable[object]], Sequence[tuple[object, ...]]]
"""What hits a key, given its arguments, and the arguments for each key."""


def ours() -> Hits:
    return Limiter().hit, [(key, LIMIT) for key in KEYS]


def theirs() -> Hits:
    return MovingWindowRateLimiter(MemoryStorage()).hit, [(parse(LIMIT), key) for key in KEYS]


async def hit_us(hits: Hits, expected: bool) -> float:
    """Hit every key `AMOUNT` times; return the microseconds per hit."""
    call, arguments = hits
    began_ns = now_ns()
    answers = [await call(*given) for _ in range(AMOUNT) for given in arguments]
    taken_ns = now_ns() - began_ns
    if any(bool(answer) is not expected for answer in answers):
        raise RuntimeError(f"{call}: expected every hit to be {'admitted' if expected else 'refused'}")
    return taken_ns / len(answers) / 1_000


async def candidate(make: Callable[[], Hits], refused: bool) -> Round:
    """Return the rounds of admitted hits, or of the refused hits that follow them."""

    async def one_round(turn: int) -> float:
        hits = make()
        taken_us = await hit_us(hits, True)
        if refused:
            taken_us = await hit_us(hits, False)
        return taken_us

    return one_round


TABLES: Final = {
    "Admitted": [
        Row("slidegate", partial(candidate, ours, False)),
        Row("limits", partial(candidate, theirs, False), per="slidegate", target="≥1.55"),
    ],
    "Refused": [
        Row("slidegate, refused", partial(candidate, ours, True)),
        Row("limits, refused", partial(candidate, theirs, True), per="slidegate, refused", target="≥1.2"),
    ],
}
main: Final = partial(rounds.main, tables=TABLES)
