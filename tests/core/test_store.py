"""What a store of one's own has from `Store`, and what it has to say itself."""

import pytest

from slidegate import ConfigurationError, Limiter, RateLimitMiddleware, Rule
from slidegate.core import BanStore, Store
from slidegate.ops.statistics import Statistics
from slidegate.testing import FakeClock

from ..asgi import hello
from ..remote_stores import RemoteStore

METHODS = ("charge", "hit", "inspect", "peek", "refund", "reset", "reset_all")
BAN_METHODS = ("active", "ban", "find", "load", "strike", "unban")


class Smallest(RemoteStore):
    """Answers what every store has to answer, and nothing else."""

    permits_held, close = Store.permits_held, Store.close  # type: ignore[assignment]


@pytest.fixture
def store() -> Smallest:
    return Smallest(FakeClock())


def test_a_store_that_lacks_a_method_cannot_be_made() -> None:
    for base, methods in ((Store, METHODS), (BanStore, BAN_METHODS)):
        for method in methods:
            others = {name: lambda self: None for name in methods if name != method}
            with pytest.raises(TypeError, match=rf"abstract method '?{method}"):
                type("Lacking", (base,), others)()
        assert isinstance(type("Whole", (base,), dict.fromkeys(methods, lambda self: None))(), base)


async def test_what_a_store_does_not_say_itself_it_cannot_do(store: Smallest) -> None:
    assert (store.permits_held(), store.shared_stats) == (None, None)
    assert (store.keep_deadline(1.0), store.answers_threads(), store.close()) == (False, False, None)
    bans = type("Bans", (BanStore,), dict.fromkeys(BAN_METHODS, lambda self: None))()
    assert bans.count() is None


async def test_a_limiter_does_without_it(store: Smallest) -> None:
    """What threads ask a limiter on it is in limiter/calls.txt."""
    async with Limiter(store) as limiter:
        assert await limiter.hit("user:ann", "2/minute")
        assert (await Statistics.of(limiter).read("5m")).workers
        with pytest.raises(ConfigurationError, match="counts no permits"):
            RateLimitMiddleware(hello, rules=[Rule("*", concurrency=1)], limiter=limiter)


def test_a_store_without_bans_is_refused_with_what_to_do() -> None:
    class WithoutBans(Smallest):
        def __init__(self) -> None:
            Store.__init__(self)

    with pytest.raises(ConfigurationError, match=r"WithoutBans.* has no bans; set self.bans in its __init__, for exam"):
        Limiter(WithoutBans())
