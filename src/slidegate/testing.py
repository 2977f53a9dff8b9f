"""Help for tests of rate-limited applications: a clock, an observer, and switches for all limiters of the process.

The clock and the observer are passed to a store or a limiter::

    clock, events = FakeClock(), RecordingObserver()
    limiter = Limiter(MemoryStore(clock=clock), observers=[events])
    clock.advance("1m")

The switches affect every limiter and middleware of the process, including those created before. The fixtures of the
pytest plugin consist of them, and other test frameworks call them directly::

    reset_limits()
    with limits_clock(FakeClock()) as clock:
        clock.advance("1m")
    with limits_off():
        client.get("/")
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from threading import Lock
from typing import Any, Final, TypeVar

from .core import Clock, ConfigurationError, Event, parse_duration_us
from .core.arguments import check_whole
from .core.durations import EPOCH
from .core.errors import quoted
from .events import Observer
from .limiter import reset_all, switch_all, use_clock

__all__ = ["FakeClock", "RecordingObserver", "limits_clock", "limits_off", "reset_limits"]
AnyClock = TypeVar("AnyClock", bound=Clock)
T = TypeVar("T")
_LAST_US: Final = 253_402_300_799_999_999  # the end of the year 9999
_off: Final[dict[object, None]] = {}
_clocks: Final[dict[object, Any]] = {}
_lock: Final = Lock()


class FakeClock:
    """A clock that moves only when a test advances it.

    Example:
        ``MemoryStore(clock=FakeClock())``, or for all limiters ``with limits_clock(FakeClock()):``.

    Args:
        start_us: The initial time in microseconds, 0 or more.

    Attributes:
        now_us: The time in microseconds.
    """

    def __init__(self, start_us: int = 0) -> None:
        self.now_us = check_whole(start_us, 0, _LAST_US, "start_us", "for example 1_800_000_000_000_000")

    def __call__(self) -> int:
        return self.now_us

    def __repr__(self) -> str:
        return f"<FakeClock {self.now_us}>"

    def advance(self, span: str | timedelta | None = None, *, us: int = 0) -> None:
        """Advance the clock: ``advance("30s")``, ``advance(timedelta(minutes=1))`` or ``advance(us=250)``.

        Args:
            span: Text such as ``"30s"``, or a `timedelta`, which may be negative: the clock then steps back.
            us: Microseconds, instead of or in addition to `span`; may be negative.

        Raises:
            ConfigurationError: `span` is a number, whose unit would be ambiguous, or invalid; `us` is not whole; or the
                time would be below 0.
        """
        if isinstance(span, timedelta):
            us += span // timedelta(microseconds=1)
        elif span is not None:
            us += parse_duration_us(span, "span")
        example = "for example with FakeClock(1_800_000_000_000_000) before a step back"
        self.now_us = check_whole(self.now_us + us, 0, _LAST_US, "advance: the new time", example)

    def set(self, moment: int | datetime) -> None:
        """Set the time, forwards or backwards.

        Args:
            moment: Microseconds, 0 or more, or a `datetime` such as ``datetime(2030, 1, 31, 23, 59, tzinfo=UTC)``.

        Raises:
            ConfigurationError: It is neither, below 0, or a `datetime` without a time zone.
        """
        if isinstance(moment, datetime) and moment.tzinfo is not None:
            moment = (moment - EPOCH) // timedelta(microseconds=1)
        example = "or a datetime with a time zone, for example datetime(2030, 1, 31, 23, 59, tzinfo=UTC)"
        self.now_us = check_whole(moment, 0, _LAST_US, "set", example)


class RecordingObserver(Observer):
    """Records events in `events`, oldest first.

    Example:
        ``observer = RecordingObserver(without=["refused"])``, then ``Limiter(observers=[observer])`` and
        ``assert observer.kinds == ["banned"]``.

    Args:
        without: Kinds of events to ignore, for example ``["refused"]``.
    """

    def __init__(self, without: Iterable[str] = ()) -> None:
        self.events: list[Event] = []
        self._without = frozenset(without)

    def event(self, event: Event, /) -> None:
        """Record an event."""
        if event.kind not in self._without:
            self.events.append(event)

    def __call__(self, event: Event, /) -> None:
        """Record an event; for `Store.observe`, which takes a function."""
        self.event(event)

    @property
    def kinds(self) -> list[str]:
        """The kinds of the recorded events."""
        return [event.kind for event in self.events]


def reset_limits() -> None:
    """Reset every limiter with a memory store: windows, quotas, bans, strikes, overrides and statistics.

    LMDB and Redis are not reset, because other processes may use them. Requests in progress keep their permits.

    Example:
        ``def setUp(self): reset_limits()`` in a `unittest.TestCase`.
    """
    reset_all()


class Switch(AbstractContextManager[T]):
    """A switch for the time of a block.

    Blocks of tasks and threads may overlap and end in any order: the newest one in progress applies.

    Args:
        value: What applies in the block.
        values: The values of all blocks in progress, oldest first.
        apply: Applies the last of them.
    """

    def __init__(self, value: T, values: dict[object, T], apply: Callable[[], object]) -> None:
        self._value = value
        self._values = values
        self._apply = apply
        self._entered: list[object] = []

    def __enter__(self) -> T:
        with _lock:
            self._entered.append(object())
            self._values[self._entered[-1]] = self._value
            try:
                self._apply()
            except Exception:  # a clock has failed
                del self._values[self._entered.pop()]
                raise
        return self._value

    def __exit__(self, *error: object) -> None:
        with _lock:
            del self._values[self._entered.pop()]
            self._apply()


def limits_off() -> Switch[None]:
    """Turn every middleware and every limiter off until the block ends.

    Middlewares pass all requests and limiters exempt all keys, without a query to a store, so nothing is counted.
    Commands of operators, such as `Limiter.ban` and `Limiter.inspect`, work as ever.

    Example:
        ``with limits_off(): assert all(client.get("/").is_success for _ in range(1_000))``
    """
    return Switch(None, _off, lambda: switch_all(not _off))


def limits_clock(clock: AnyClock) -> Switch[AnyClock]:
    """Make every limiter use a clock until the block ends; a store with a clock of its own keeps it.

    Quotas and dates follow the clock wherever it is set. Windows and bans follow it when it advances, and their time
    stands still while it is set back. LMDB and Redis measure windows and bans by the clock that their processes share.

    Example:
        ``with limits_clock(FakeClock()) as clock: clock.advance("1m")``

    Args:
        clock: Returns Unix time in microseconds, such as a `FakeClock`.

    Raises:
        ConfigurationError: The clock is not callable, or returns no whole number.
    """
    if not callable(clock) or not isinstance(clock(), int):  # once in use, it would fail all later tests
        raise ConfigurationError(
            f"clock: expected a function that returns whole microseconds, for example FakeClock(), not {quoted(clock)}"
        )
    return Switch(clock, _clocks, lambda: use_clock(next(reversed(_clocks.values()), None)))
