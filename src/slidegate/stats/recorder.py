"""The observer that counts requests, by the rules that counted them and the route that they went to.

A request appends its outcome to a list, which costs it next to nothing. Outcomes are counted many at once: when there
are `MAX_NOTED`, and before anybody reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
"""All series together take 32 MB where each is always busy."""
OTHER: Final = "(other)"
"""The rule and the route of requests that came when all series were taken."""
NO_ROUTE_AT_ALL: Final = ""
"""The route of a series that counts something about a rule beside its requests: the refusals of its shadow."""

_Kind: TypeAlias = tuple[bool, Reason, Ended, int, bool]
"""Whether requests were allowed, why, how they ended, the status, and whether they waited."""


@cache
def _events_of(allowed: bool, reason: Reason, ended: Ended, status_class: int, waited: bool) -> tuple[str, ...]:
    """Return the events that an outcome counts."""
    answered = f"{status_class}xx" if 1 <= status_class <= 5 else OVERFLOW if status_class else ""
    if allowed:
        counted = ["pass", "occupied_pass" if waited else "", str(ended), answered]
    elif ended == "refused":
        counted = ["block", str(reason) if reason in SHUT_OUT else "", answered]
    else:  # its client left while it waited for room
        counted = [str(ended), answered]
    return tuple(filter(None, counted))


class Recorder(Observer):
    """Counts what became of requests. Those without a route, which came without HTTP, are left out.

    Args:
        emit: Takes the event ``series_full``.
    """

    def __init__(self, emit: Callable[[Event], None]) -> None:
        self._emit = emit
        self.forget()
        begin_anew_in_child(self.forget)

    def forget(self) -> None:
        """Forget all counts, as in a child of `fork`: they belong to its parent."""
        self._counting = Lock()
        self._noted: list[Outcome] = []
        self._count_at = 1
        self._series: dict[SeriesName, Series] = {}
        self._is_full = False

    def request(self, outcome: Outcome, /) -> None:
        """Note what became of a request."""
        noted = self._noted
        noted.append(outcome)
        if len(noted) >= self._count_at:
            self._count()

    def listed(self) -> list[Series]:
        """Return all series, in which everything is counted that was noted before."""
        self._count()
        self._count_at = 1  # the next request begins what has ended meanwhile with its event loop
        return list(self._series.values())

    def begin(self) -> None:
        """Do what is to be done when requests come: here nothing."""

    def _count(self) -> None:
        """Count what is noted."""
        self._count_at = MAX_NOTED
        with self._counting:
            was_full = self._is_full
            noted = self._noted[:]
            # Another thread may append between these two lines: behind what is taken out.
            del self._noted[: len(noted)]
            self._add([outcome for outcome in noted if outcome.route is not None])
            is_news = self._is_full and not was_full
        if is_news:
            message = f"{MAX_SERIES} series of rules and routes are recorded; further ones count as {OTHER}"
            self._emit(Event("series_full", message, {"max_series": MAX_SERIES}))
        if noted:
            self.begin()

    def _add(self, outcomes: Sequence[Outcome]) -> None:
        """Count outcomes, those that are alike together."""
        alike: dict[tuple[SeriesName, int, _Kind], list[int]] = {}
        for outcome in outcomes:
            name = outcome.rules, outcome.route or ""
            number = (outcome.began_us + outcome.duration_us) // SLICE_US
            waited, status_class = outcome.waited_us is not None, outcome.status // 100
            kind = outcome.allowed, outcome.reason, outcome.ended, status_class, waited
            alike.setdefault((name, number, kind), []).append(outcome.duration_us)
            for rule in outcome.shadow_rules:
                self._of(((rule,), NO_ROUTE_AT_ALL)).add(number, Slice({"shadow_refused": 1}))
        for (name, number, kind), durations_us in alike.items():
            counts = Slice(dict.fromkeys(_events_of(*kind), len(durations_us)))
            if kind[0]:
                counts.rt.count_all(sorted(durations_us))
            self._of(name).add(number, counts)

    def _of(self, name: SeriesName) -> Series:
        """Return the series of some rules and a route; beyond `MAX_SERIES` series, the one for all the others."""
        known = self._series.get(name)
        if known is None and len(self._series) >= MAX_SERIES:
            self._is_full, name = True, ((OTHER,), OTHER)
            known = self._series.get(name)
        if known is None:
            known = self._series[name] = Series(name)
        return known
