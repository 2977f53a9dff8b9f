"""A short soak: several uvicorn workers, kills, and every promise holds."""

from __future__ import annotations

import asyncio

import pytest

from tests.redis_servers import needs_redis
from tests.soak import worker
from tests.soak.__main__ import main
from tests.soak.record import PROMISES
from tests.soak.soaking import soak

pytestmark = pytest.mark.all
STORES = ["lmdb", pytest.param("redis", marks=needs_redis)]


@pytest.mark.parametrize("store", STORES)
def test_a_few_seconds_of_load_and_kills_break_no_promise(store: str) -> None:
    findings = asyncio.run(soak(store, 4, 2, seed=1))
    assert findings.broken == []
    assert findings.lines


@pytest.mark.deep
@pytest.mark.parametrize("store", STORES)
def test_a_minute_of_load_and_kills_breaks_no_promise(store: str) -> None:
    assert asyncio.run(soak(store, 60, 3, seed=2)).broken == []


def test_every_promise_is_a_rule_of_the_application() -> None:
    assert [rule.name for rule in worker.rules()] == [one.name for one in PROMISES]


@pytest.mark.parametrize(
    "arguments", [["--minutes", "0"], ["--minutes", "1e9"], ["--workers", "1"], ["--workers", "99"]]
)
def test_bounds_of_time_and_processes_are_kept(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert "give --minutes up to" in capsys.readouterr().err
