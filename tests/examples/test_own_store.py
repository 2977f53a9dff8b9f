"""The store of the example passes the store contract, and works with the middleware."""

import pytest

import examples.own_store.__main__
from examples.own_store.dict_store import DictStore
from slidegate import Limiter, StoreError
from slidegate.testing import FakeClock
from tests.contract import StoreContract

pytestmark = pytest.mark.all


class TestContract(StoreContract):
    def make_store(self, clock: FakeClock) -> DictStore:
        return DictStore(clock=clock)


async def test_a_full_store_says_so_and_refunds_no_expired_charge(clock: FakeClock) -> None:
    store = DictStore(clock=clock, most=1)
    limiter = Limiter(store)
    expired = await limiter.hit("ann", "1/minute")
    with pytest.raises(StoreError, match="all 1 windows are in use; raise most"):
        store.hit((((await limiter.peek("ann", "2/minute")).checks[0][0], "bob", 1),))
    clock.advance("2m")
    charged = await limiter.hit("bob", "1/minute")
    assert store.refund(expired.begin_refund()) is False
    assert store.refund(charged.begin_refund()) is True
    assert await limiter.hit("bob", "1/minute")


def test_the_command_shows_it(capsys: pytest.CaptureFixture[str]) -> None:
    examples.own_store.__main__.main()
    assert capsys.readouterr().out.splitlines() == [
        "1. request: passes, 2 left",
        "2. request: passes, 1 left",
        "3. request: passes, 0 left",
        "4. request: refused for 60 s",
        "a minute later: passes, 2 left",
    ]
