"""The store of the example passes the contract that every store passes, and a middleware counts with it."""

from __future__ import annotations

from typing import Any

import pytest

import examples.own_store.__main__
from examples.own_store.dict_store import DictStore
from slidegate import ConfigurationError, Limiter, StoreError
from slidegate.testing import FakeClock
from slidegate.testing.contract import StoreContract

pytestmark = pytest.mark.all


class TestContract(StoreContract):
    def make_store(self, clock: FakeClock) -> DictStore:
        return DictStore(clock=clock)


async def test_it_lets_go_of_what_is_over_and_of_nothing_else() -> None:
    clock = FakeClock()
    store = DictStore(clock=clock, most=3)
    async with Limiter(store, on_error="deny") as limiter:
        for key in ("ann", "bob", "eve"):
            assert await limiter.hit(key, "1/minute")
        assert not await limiter.hit("zoe", "1/minute"), "all windows are in use, and nobody is pushed out"
        assert not await limiter.hit("ann", "1/minute")
        clock.advance("61s")  # a window is kept for a slice longer than its units count
        assert await limiter.hit("zoe", "1/minute"), "the windows of the others are over"
        assert (store.reset("zoe"), store.reset("ann")) == (True, False)


async def test_a_store_that_is_full_says_so() -> None:
    store = DictStore(clock=FakeClock(), most=1)
    limiter = Limiter(store)
    assert await limiter.hit("ann", "1/minute")
    with pytest.raises(StoreError, match="all 1 windows are in use; raise most"):
        store.hit((((await limiter.peek("ann", "2/minute")).checks[0][0], "bob", 1),))


@pytest.mark.parametrize("most", [0, "9"])
def test_a_store_that_could_hold_nothing_is_refused(most: Any) -> None:
    with pytest.raises(ConfigurationError, match="most: expected a whole number above 0, for example 100_000, not"):
        DictStore(most=most)


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    examples.own_store.__main__.main()
    assert capsys.readouterr().out.splitlines() == [
        "1. request: passes, 2 left",
        "2. request: passes, 1 left",
        "3. request: passes, 0 left",
        "4. request: refused for 60 s",
        "a minute later: passes, 2 left",
    ]
