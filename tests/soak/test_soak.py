"""In a short soak nothing that the workers promise is broken, and every kind of answer is seen."""

import asyncio

import pytest

from ..redis_servers import needs_redis
from .__main__ import soak
from .checks import Answer, broken_bounds, lost_bans


def test_what_breaks_a_promise_is_accused() -> None:
    answers = [Answer("ann", "/exact", 200, at / 10, at / 10 + 0.05) for at in range(9)]
    assert (len(broken_bounds(answers)), broken_bounds(answers[1:])) == (1, [])
    banned = Answer("ann", "/", 403, 0.1, 0.2, banned=True, retry_after_s=10)
    assert (len(lost_bans([banned, *answers])), lost_bans([banned, *answers[:3]])) == (6, [])


@pytest.mark.all
@pytest.mark.parametrize("store", ["lmdb", pytest.param("redis", marks=needs_redis)])
@pytest.mark.parametrize(("seconds", "workers", "seed"), [(4, 2, 1), pytest.param(60, 3, 2, marks=pytest.mark.deep)])
def test_load_and_kills_break_no_promise(store: str, seconds: float, workers: int, seed: int) -> None:
    broken, seen = asyncio.run(soak(store, seconds, workers, seed))
    assert broken == []
    assert seen
