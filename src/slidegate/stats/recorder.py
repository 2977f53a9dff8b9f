"""The observer that counts requests by rule and route.

A request only appends its duration to a list shared by requests with the same result. The lists are counted in
batches: after `MAX_NOTED` requests, and before each read. Outcomes are not stored: their decisions take much memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from threading import Lock
from typing import Final, TypeAlias

from ..core.decision import Reason
from ..core.store import Event
from ..core.windows.metric_window import OVERFLOW
from ..core.windows.slices import Slice
from ..limiter.observers import SHUT_OUT, Ended, Observer, Outcome
from ..stores.forks import begin_anew_in_child
from .series import SLICE_US, Series, SeriesName

MAX_NOTED: Final = 256
MAX_SERIES: Final = 200
"""200 series that are always busy take 32 MB together."""
OTHER: Final = "(other)"
"""The rule and route of requests beyond `MAX_SERIES`."""
NO_ROUTE_AT_ALL: Final = ""
"""The route of a series that counts no requests, only the shadow refusals of a rule."""

_Alike: TypeAlias = tuple[tuple[str, ...], str, int, bool, Reason, Ended, int, bool]
"""The attributes by which outcomes are grouped: rules, route and number of the slice; whether they were allowed, why,
how they ended, the first digit of the status, and whether they waited."""


@cache
def _events_of(allowed: bool, reason: Reason, ended: Ended, status_class: int, waited: bool) -> tuple[str, ...]:
    """Return the events that an outcome increments."""
    answered = f"{status_class}xx" if 1 <= status_class <= 5 else OVERFLOW if status_class else ""
    if allowed:
        counted = ["pass", "occupied_pass" if waited else "", str(ended), answered]
    elif ended == "refused":
        counted = ["block", str(reason) if reason in SHUT_OUT else "", answered]
    else:  # the client disconnected while the request was queued
        counted = [str(ended), answered]
    return tuple(filter(None, counted))


class Recorder(Observer):
    """Counts requests by outcome. Hits without HTTP have no route and are not counted.

    Args:
        emit: Receives the event ``series_full``.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.forget()
        begin_anew_in_child(self.forget)

    def forget(self) -> None:
        """Discard all counts; called in a child of `fork`, because they belong to the parent."""
        self._counting = Lock()
        self._noted: dict[_Alike, list[int]] = {}
        self._shadow_refused: list[tuple[str, int]] = []
        self._left = 1
        self._series: dict[SeriesName, Series] = {}
        self._is_full = False

    def request(self, outcome: Outcome, /) -> None:
        """Note the outcome of a request."""
        allowed, reason, rules, shadow_rules, route, status, ended, began_us, duration_us, waited_us, _ = outcome
        if route is None:
            return
        number = (began_us + duration_us) // SLICE_US
        alike = rules, route, number, allowed, reason, ended, status // 100, waited_us is not None
        with self._counting:
            durations_us = self._noted.get(alike)
            if durations_us is None:
                self._noted[alike] = [duration_us]
            else:
                durations_us.append(duration_us)
            for rule in shadow_rules:
                self._shadow_refused.append((rule, number))
            self._left -= 1
        if self._left <= 0:
            self._count()

    def listed(self) -> list[Series]:
        """Return all series, with every noted request counted."""
        self._count()
        self._left = 1  # so that the next request calls `begin`: the loop of the publisher may have been closed
        return list(self._series.values())

    def begin(self) -> None:
        """Called after a batch of requests was counted; a subclass starts publishing here."""

    def _count(self) -> None:
        """Move all noted requests to their series."""
        with self._counting:
            was_full = self._is_full
            noted, self._noted, self._left = self._noted, {}, MAX_NOTED
            shadow_refused, self._shadow_refused = self._shadow_refused, []
            for rule, number in shadow_refused:
                self._of(((rule,), NO_ROUTE_AT_ALL)).add(number, Slice({"shadow_refused": 1}))
            for (rules, route, number, *kind), durations_us in noted.items():
                counts = Slice(dict.fromkeys(_events_of(*kind), len(durations_us)))
                if kind[0]:
                    counts.rt.count_all(sorted(durations_us))
                self._of((rules, route)).add(number, counts)
            is_news = self._is_full and not was_full
        if is_news:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._emit(Event("series_full", message, {"max_series": MAX_SERIES}))
        if noted:
            self.begin()

    def _of(self, name: SeriesName) -> Series:
        """Return the series of the given rules and route; beyond `MAX_SERIES`, the series shared by all others."""
        known = self._series.get(name)
        if known is None and len(self._series) >= MAX_SERIES:
            self._is_full, name = True, ((OTHER,), OTHER)
            known = self._series.get(name)
        if known is None:
            known = self._series[name] = Series(name)
        return known
