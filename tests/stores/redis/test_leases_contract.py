"""The contract of stores with leases: what differs, and that nothing else does."""

from collections.abc import Sequence
from typing import Any

import pytest

from slidegate.stores.redis import RedisStore, question, slice_leases
from slidegate.testing import FakeClock

from ...contract import StoreContract
from ...redis_servers import RedisServer, needs_redis
from .stores import PLENTY, fresh_prefix

pytestmark = needs_redis


class Returning(RedisStore):
    """A store that refunds what is left of its leases, unless the same question is asked again."""

    last: Any = None

    def _return_unless(self, asked: Any) -> None:
        leases = self.parts.leases
        if asked != self.last and leases is not None and not self.closed:
            leases.refund_all(self.batcher().refund_in_background)
        self.last = asked

    def hit(self, checks: Sequence[Any], *args: Any) -> Any:
        self._return_unless(("hit", *checks))
        return super().hit(checks, *args)

    def peek(self, *args: Any) -> Any:
        self._return_unless("peek")
        return super().peek(*args)

    def charge(self, *args: Any) -> Any:
        self._return_unless("charge")
        return super().charge(*args)

    def refund(self, *args: Any) -> Any:
        self._return_unless("refund")
        return super().refund(*args)

    def inspect(self, *args: Any) -> Any:
        self._return_unless("inspect")
        return super().inspect(*args)


class TestLeased(StoreContract):
    """A store that charges units ahead from the second time on that a question is asked.

    What differs from the reference is that others find units taken that are not spent; see the page. So here a question
    finds those of other questions refunded.
    """

    @pytest.fixture(autouse=True)
    def _at(self, server: RedisServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.server = server
        monkeypatch.setattr(slice_leases, "FEW", 0)
        monkeypatch.setattr(question, "FEW", 0)

    def make_store(self, clock: FakeClock) -> RedisStore:
        return Returning(self.server.url, prefix=fresh_prefix(), timeout=PLENTY, clock=clock, leases=True)
