"""What users write in tests of their applications, for type checkers: nothing here is run."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import assert_type

import pytest

from slidegate import Limiter, MemoryStore
from slidegate.core import Event
from slidegate.testing import FakeClock, RecordingObserver, limits_clock, limits_off, reset_limits

clock = FakeClock()
assert_type(FakeClock(start_us=7)(), int)
clock.advance("30s")
clock.advance(timedelta(minutes=1), us=-5)
clock.advance(60)  # type: ignore[arg-type]
clock.set(datetime(2030, 1, 31, tzinfo=UTC))
clock.set("noon")  # type: ignore[arg-type]

observer = RecordingObserver(without=["refused"])
Limiter(MemoryStore(clock=clock), observers=[observer])
assert_type(observer.kinds, list[str])
assert_type(observer.events, list[Event])

reset_limits()
reset_limits(Limiter())  # type: ignore[call-arg]
with limits_off():
    pass
with limits_off() as nothing:
    assert_type(nothing, None)
with limits_clock(FakeClock()) as moved:
    assert_type(moved, FakeClock)
with limits_clock(lambda: time.time_ns() // 1_000):
    pass
with limits_clock("2030-01-01"):  # type: ignore[type-var]
    pass


@limits_off()
def decorated(amount: int) -> str:
    return str(amount)


assert_type(decorated(5), str)


def test_of_a_user(slidegate_clock: FakeClock, slidegate_reset: Callable[[], None], no_limits: None) -> None:
    slidegate_clock.advance("1m")
    slidegate_reset()


@pytest.fixture
def at_midnight(slidegate_clock: FakeClock) -> FakeClock:
    slidegate_clock.set(datetime(2030, 2, 1, tzinfo=UTC))
    return slidegate_clock
