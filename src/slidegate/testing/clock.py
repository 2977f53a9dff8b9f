"""A clock that stands still until it is told to move."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ..core.errors import ConfigurationError, quoted
from ..core.limits import parse_duration_us

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock for stores, in microseconds, that moves only when it is told to.

    Args:
        start_us: The time at first.
    """

    def __init__(self, start_us: int = 0) -> None:
        self.now_us = start_us

    def __call__(self) -> int:
        return self.now_us

    def __repr__(self) -> str:
        return f"<FakeClock {self.now_us}>"

    def advance(self, span: str | timedelta | None = None, *, us: int = 0) -> None:
        """Move on: ``advance("30s")``, ``advance(timedelta(minutes=1))`` or ``advance(us=250)``.

        Args:
            span: Text such as ``"30s"``, or a `timedelta`.
            us: Microseconds, instead of a span or beside it.

        Microseconds and a `timedelta` may be negative: the clock then steps back.

        Raises:
            ConfigurationError: The span is a bare number, of which nobody knows the unit, or cannot be read.
        """
        if isinstance(span, timedelta):
            us += span // timedelta(microseconds=1)
        elif isinstance(span, str):
            us += parse_duration_us(span, "span")
        elif span is not None:
            raise ConfigurationError(
                f'span: expected text or a timedelta, for example advance("60s") or advance(us=60), not {quoted(span)}'
            )
        self.now_us += us

    def set(self, moment: int | datetime) -> None:
        """Set the time, forwards or backwards, to microseconds or to a date.

        Args:
            moment: Microseconds, 0 or more, or ``datetime(2030, 1, 31, 23, 59, tzinfo=UTC)``.

        Raises:
            ConfigurationError: It is neither of the two, or a `datetime` without a time zone.
        """
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = (moment - _EPOCH) // timedelta(microseconds=1)
        if isinstance(moment, bool) or not isinstance(moment, int):
            raise ConfigurationError(
                "set: expected microseconds or a moment with its time zone, for example "
                f"datetime(2030, 1, 31, 23, 59, tzinfo=UTC), not {quoted(moment)}"
            )
        self.now_us = moment
