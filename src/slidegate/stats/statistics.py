"""The public interface of statistics, and the one `Recording` of each limiter and process behind it."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock
from typing import Final

from ..core.errors import ConfigurationError, quoted
from ..limiter import Limiter
from .all_workers import AllWorkers
from .publisher import Publisher
from .recorder import Recorder
from .report import Chart, RecentStats, Stats

_starting: Final = Lock()


class Recording(Recorder):
    """The recorder of one limiter, with its publisher. Create it by `recording_of`, so that requests are counted once.

    Args:
        limiter: The limiter.

    Attributes:
        publisher: Publishes the statistics to the other workers of the store.
        all_workers: Reads the statistics of all workers.
    """

    def __init__(self, limiter: Limiter) -> None:
        super().__init__(limiter.engine.emit)
        self.publisher = _publisher(limiter, self)
        self.all_workers = AllWorkers(self.publisher)

    def begin(self) -> None:
        """Start publishing."""
        self.publisher.start()


def recording_of(limiter: Limiter) -> Recording:
    """Return the recording of a limiter; the first call starts it.

    Raises:
        ConfigurationError: `limiter` is not a `Limiter`.
    """
    if not isinstance(limiter, Limiter):
        raise ConfigurationError(f"limiter: expected a Limiter, for example Limiter(), not {quoted(limiter)}")
    engine = limiter.engine
    with _starting:
        known = engine.observers.find(Recording)
        if known is None:
            known = Recording(limiter)
            engine.ending.append(known.publisher.end)
            engine.forgetting.append(known.forget)
            limiter.observe(known)
        return known


def onlooker(limiter: Limiter) -> AllWorkers:
    """Return a reader of the statistics of all workers, for a process that is not a worker itself."""
    return AllWorkers(_publisher(limiter, Recorder(limiter.engine.emit)), here=False)


def _publisher(limiter: Limiter, recorder: Recorder) -> Publisher:
    return Publisher(limiter.store.shared_stats, recorder, limiter.engine.now_us)


class Statistics:
    """Counts and durations of recent requests, by rule and by route. Recording starts with ``Statistics(limiter)``.

    A limiter has one recording in each process; `Dashboard` and `AdminRoutes` share it. Workers that share a store
    publish their statistics every five seconds; `stats_all` and `chart_all` read those of all workers.

    Args:
        limiter: The limiter whose requests are recorded.

    Raises:
        ConfigurationError: `limiter` is not a `Limiter`.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._recording = recording_of(limiter)

    def stats(self, window: str | float | timedelta = "1m") -> Stats:
        """Return counts and durations of recent requests of this process, by rule and by route.

        Args:
            window: How far back, up to 24 hours; rounded up to 5 seconds, beyond 5 minutes to whole minutes, and beyond
                an hour to 5 minutes.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
        """
        return self._own(window).stats()

    async def stats_all(self, window: str | float | timedelta = "1m") -> Stats:
        """Return counts and durations of recent requests of all workers that share the store.

        Those of other workers are as last published. A store in memory has one worker.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        return await self._recording.all_workers.stats(window)

    def chart(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the stats of this process as a time series of at most 288 steps.

        Args:
            window: How far back, as for `stats`.
            rule: The name of a rule, to include only the requests that it counted.
            route: A route as `stats` names it, to include only the requests to it.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
        """
        return self._own(window).chart(rule, route)

    async def chart_all(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the stats of all workers that share the store as a time series; see `chart`.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        return await self._recording.all_workers.chart(window, rule, route)

    def _own(self, window: str | float | timedelta) -> RecentStats:
        return RecentStats.of(self._recording.listed(), window, self._recording.publisher.now_us())
