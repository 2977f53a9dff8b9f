"""A clock that moves only when a test advances it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from ..core.errors import ConfigurationError, quoted
from ..core.limits import parse_duration_us

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class FakeClock:
    """A clock for stores that moves only when a test advances it.

    Args:
        start_us: The initial time in microseconds.
    """

    def __init__(self, start_us: int = 0) -> None:
        self.now_us = start_us

    def __call__(self) -> int:
        return self.now_us

    def __repr__(self) -> str:
        return f"<FakeClock {self.now_us}>"

    def advance(self, span: str | timedelta | None = None, *, us: int = 0) -> None:
        """Advance the clock: ``advance("30s")``, ``advance(timedelta(minutes=1))`` or ``advance(us=250)``.

        Args:
            span: Text such as ``"30s"``, or a `timedelta`; a negative one steps the clock back.
            us: Microseconds, instead of or in addition to `span`; may be negative.

        Raises:
            ConfigurationError: `span` is a number, whose unit would be ambiguous, or invalid.
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
        """Set the time, forwards or backwards.

        Args:
            moment: Microseconds, 0 or more, or a `datetime` such as ``datetime(2030, 1, 31, 23, 59, tzinfo=UTC)``.

        Raises:
            ConfigurationError: It is neither, or a `datetime` without a time zone.
        """
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = (moment - _EPOCH) // timedelta(microseconds=1)
        if isinstance(moment, bool) or not isinstance(moment, int):
            raise ConfigurationError(
                "set: expected microseconds or a datetime with a time zone, for example "
                f"datetime(2030, 1, 31, 23, 59, tzinfo=UTC), not {quoted(moment)}"
            )
        self.now_us = moment
