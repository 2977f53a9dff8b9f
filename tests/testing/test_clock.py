"""The clock for tests, which must be right before other tests can rely on it."""

from datetime import datetime, timedelta, timezone

from slidegate.testing import FakeClock


def test_a_fake_clock_stands_still_until_it_is_told_to_move() -> None:
    clock = FakeClock()
    assert (clock(), clock(), FakeClock(5)()) == (0, 0, 5)
    for span in ("30s", timedelta(milliseconds=1), timedelta(microseconds=-1)):
        clock.advance(span)
    clock.advance(us=7)
    clock.advance("1s", us=-2)
    assert clock() == 31_001_004
    clock.set(12)
    assert (clock(), repr(clock)) == (12, "<FakeClock 12>")
    clock.set(datetime(1970, 1, 1, 1, 0, 7, tzinfo=timezone(timedelta(hours=1))))
    assert clock() == 7_000_000
