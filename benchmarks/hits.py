"""Hits without HTTP, in memory: slidegate and popular limiters, each called as documented.

Every round uses new limiters. Each of 64 keys is hit a hundred times under a limit of a hundred an hour, then another
hundred times, which are refused. Answers are stored during the measurement and checked afterwards.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple

from limits import parse
from limits.aio.storage import MemoryStorage
from limits.aio.strategies import MovingWindowRateLimiter
from pyrate_limiter import AbstractBucket, BucketFactory, InMemoryBucket, MonotonicClock, Rate, RateItem
from pyrate_limiter import Limiter as PyrateLimiter
from rust_py_rate_limit import RateLimiter as RustLimiter
from throttled.asyncio import MemoryStore, Throttled

from slidegate import Limiter

from .traffic import now_ns

KEYS: Final = [f"user:{number}" for number in range(64)]
AMOUNT: Final = 100
HOUR_S: Final = 3_600
OURS: Final = "slidegate"
PEER: Final = "limits"


class Hits(NamedTuple):
    """How to hit one limiter.

    Attributes:
        call: Hits a key, given its arguments; returns the answer or an awaitable of it.
        arguments: The arguments for each key.
        admitted: Returns whether an answer admits the hit.
        awaited: Whether the answer must be awaited.
    """

    call: Callable[..., Any]
    arguments: Sequence[tuple[object, ...]]
    admitted: Callable[[Any], bool] = bool
    awaited: bool = True


class BucketPerKey(BucketFactory):
    """The factory that pyrate-limiter documents for keys, without its cleanup thread: no window ends within a round."""

    def __init__(self) -> None:
        self._clock = MonotonicClock()
        self._buckets = {key: InMemoryBucket([Rate(AMOUNT, HOUR_S * 1_000)]) for key in KEYS}

    def wrap_item(self, name: str, weight: int = 1) -> RateItem:
        return RateItem(name, self._clock.now(), weight=weight)

    def get(self, item: RateItem) -> AbstractBucket:
        return self._buckets[item.name]


def of_slidegate() -> Hits:
    return Hits(Limiter().hit, [(key, f"{AMOUNT}/hour") for key in KEYS])


def of_limits() -> Hits:
    limit = parse(f"{AMOUNT}/hour")
    return Hits(MovingWindowRateLimiter(MemoryStorage()).hit, [(limit, key) for key in KEYS])


def of_throttled() -> Hits:
    limiter = Throttled(using="sliding_window", quota=f"{AMOUNT}/h", store=MemoryStore())
    return Hits(limiter.limit, [(key,) for key in KEYS], lambda answer: not answer.limited)


def of_pyrate() -> Hits:
    return Hits(PyrateLimiter(BucketPerKey()).try_acquire_async, [(key, 1, False) for key in KEYS])


def of_rust() -> Hits:
    limiter = RustLimiter(limit=AMOUNT, window_seconds=HOUR_S, algorithm="sliding")
    return Hits(limiter.allow, [(key,) for key in KEYS], awaited=False)


LIMITERS: Final[dict[str, Callable[[], Hits]]] = {
    OURS: of_slidegate,
    PEER: of_limits,
    "throttled-py": of_throttled,
    "pyrate-limiter": of_pyrate,
    "rust-py-rate-limit": of_rust,
}


async def answers_of(hits: Hits) -> tuple[list[object], int]:
    """Hit every key `AMOUNT` times; return the answers and the total time in nanoseconds."""
    call, arguments = hits.call, hits.arguments
    began_ns = now_ns()
    if hits.awaited:
        answers = [await call(*given) for _ in range(AMOUNT) for given in arguments]
    else:
        answers = [call(*given) for _ in range(AMOUNT) for given in arguments]
    return answers, now_ns() - began_ns


async def hit_us(hits: Hits, expected: bool) -> float:
    """Hit every key `AMOUNT` times; return the microseconds per hit.

    Raises:
        RuntimeError: An answer is not as expected.
    """
    answers, taken_ns = await answers_of(hits)
    if any(hits.admitted(answer) is not expected for answer in answers):
        raise RuntimeError(f"{hits.call}: expected every hit to be {'admitted' if expected else 'refused'}")
    return taken_ns / len(answers) / 1_000


Round = Callable[[int], Awaitable[float]]
"""Runs the round with the given number; returns the microseconds per operation."""


def rounds_of(make: Callable[[], Hits], refused: bool) -> Round:
    """Return a function that runs rounds of admitted hits, or of the refused hits that follow them."""

    async def run(turn: int) -> float:
        hits = make()
        if refused:
            await hit_us(hits, True)
        return await hit_us(hits, not refused)

    return run


HITS: Final = {
    f"{name}{', refused' if refused else ''}": rounds_of(make, refused)
    for refused in (False, True)
    for name, make in LIMITERS.items()
}
"""The rounds of every limiter by the name of the row."""
