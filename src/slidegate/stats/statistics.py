"""The statistics of a limiter: its `Recorder`, one for each limiter and process, and what everybody reads from it."""

from __future__ import annotations

from datetime import timedelta
from threading import Lock
from typing import Final

from ..core.errors import ConfigurationError, quoted
from ..limiter import Limiter
from .published import AllWorkers, Publisher
from .recorder import Recorder
from .report import Chart, RecentStats, Stats

_starting: Final = Lock()


class Recording(Recorder):
    """What the statistics of one limiter are made of. `recording_of` makes it, so that requests are counted once.

    Args:
        limiter: The limiter.

    Attributes:
        now_us: Returns the time by which requests are recorded.
        publisher: Publishes what is recorded to the other workers of the store.
        all_workers: Reads what all workers have recorded.
    """

    def __init__(self, limiter: Limiter) -> None:
        engine, shared = limiter.engine, limiter.store.shared_stats
        super().__init__(engine.emit)
        self.now_us = engine.now_us
        self.publisher = Publisher(shared, self, engine.now_us)
        self.all_workers = AllWorkers(shared, self, engine.now_us, self.publisher)

    def begin(self) -> None:
        """Publish from now on what is recorded."""
        self.publisher.start()


def recording_of(limiter: Limiter) -> Recording:
    """Return the recording of a limiter, which begins with the first call.

    Raises:
        ConfigurationError: `limiter` is none.
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
    """Return what reads the statistics of all workers of a store for a process that is none of them."""
    recorder = Recorder(limiter.engine.emit)
    publisher = Publisher(None, recorder, limiter.engine.now_us)
    return AllWorkers(limiter.store.shared_stats, recorder, limiter.engine.now_us, publisher, here=False)


class Statistics:
    """Counts and times of recent requests, by rule and by route: ``Statistics(limiter)`` records from then on.

    A limiter has one recording in each process; `Dashboard` and `AdminRoutes` share it. What several workers of a
    store have recorded is published every five seconds, and read with `stats_all` and `chart_all`.

    Args:
        limiter: The limiter whose requests are recorded.

    Raises:
        ConfigurationError: `limiter` is none.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._recording = recording_of(limiter)

    def stats(self, window: str | float | timedelta = "1m") -> Stats:
        """Return counts and times of recent requests, by rule and by route, as this process saw them.

        Args:
            window: How far back, up to 24 hours; rounded up to 5 seconds, beyond 5 minutes to whole minutes, and beyond
                an hour to 5 minutes.

        Raises:
            ConfigurationError: The window is longer than that.
        """
        return self._own(window).stats()

    async def stats_all(self, window: str | float | timedelta = "1m") -> Stats:
        """Return the same of all workers that share the store: this one as it is, the others as they last published.

        A store of this process alone has one worker.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        workers = self._recording.all_workers
        return (await workers.recent(window)).stats(await workers.workers())

    def chart(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the stats of this process step by step, at most 288 of them, for a chart.

        Args:
            window: How far back, as for `stats`.
            rule: The name of a rule, for the requests that it counted alone.
            route: A route as `stats` names it, for the requests that went there alone.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
        """
        return self._own(window).chart(rule, route)

    async def chart_all(
        self, window: str | float | timedelta = "1h", *, rule: str | None = None, route: str | None = None
    ) -> Chart:
        """Return the same of all workers that share the store.

        Raises:
            ConfigurationError: The window is longer than 24 hours.
            StoreError: The store does not answer.
        """
        return (await self._recording.all_workers.recent(window)).chart(rule, route)

    def _own(self, window: str | float | timedelta) -> RecentStats:
        return RecentStats.of(self._recording.listed(), window, self._recording.now_us())
