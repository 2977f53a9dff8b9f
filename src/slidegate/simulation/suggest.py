"""Suggests limits from the clients of a log.

The logs are read twice. `Survey` collects the clients and guesses the routes. `Suggestion` measures the peaks of each
client under one rule per route, matched as by the middleware, and under one for all requests.

``floor(touch * clients)`` clients are treated as outliers: those with the largest ratio of a peak to the mean of all
clients. For each window, the smallest amount that refuses none of the other clients is multiplied by the headroom, and
raised to the requests of one page load if it is lower.

A limit of at most 64 stores the time of every unit, and refuses a client that has more requests in any window. A larger
limit counts in slices, and refuses a client that has more requests in the k + 1 slices that a window can overlap. Until
a client is refused, all its requests are in the ring; so a limit refuses it if and only if its peak exceeds the amount.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from math import ceil
from typing import Final, NamedTuple

from ..core.errors import ConfigurationError
from ..core.limits import DEFAULT_RESOLUTION, MAX_AMOUNT, Limit
from ..limiter import Limiter
from ..logs import AccessRecord
from ..web.paths import PathReader
from ..web.rule_set import RuleSet
from ..web.rules import Rule
from .clients import CRAWLER, Clients
from .replay import scope_of
from .routes import OTHER, RouteGuesser

EXACT: Final = DEFAULT_RESOLUTION
"""The largest amount for which windows are exact."""
WINDOWS: Final = ("1s", "10s", "1m", "1h")
PAGE_LOAD: Final = 10
"""The minimum of every limit: a page and its resources are about ten requests within ten seconds."""
HEADROOM: Final = 2.0
MAX_ROUTES: Final = 8
MIN_REQUESTS: Final = 20
MAX_WARNINGS: Final = 10
EVERYTHING: Final = "*"
_DAY_US: Final = 86_400_000_000
_LARGE_SHARE: Final = 0.3
_LIMITS: Final = tuple(Limit(1, window) for window in WINDOWS)
# Limits that count in slices and never refuse.
_IN_SLICES: Final = tuple(Limit(MAX_AMOUNT, window) for window in WINDOWS)


class Peaks:
    """The peaks of one client under one rule, in constant memory.

    Attributes:
        exact: For each of `WINDOWS`, the most requests in any span of its length, at most 65.
        counted: For each of `WINDOWS`, the most requests in k + 1 slices; 0 until the 65th request.
    """

    __slots__ = ("_rings", "_times", "counted", "exact")

    def __init__(self) -> None:
        self._times: list[int] = []  # of the last 64 requests
        self._rings: list[bytes] = []
        self.exact = [0] * len(WINDOWS)
        self.counted = [0] * len(WINDOWS)

    def add(self, now_us: int) -> None:
        """Count a request. Times must not decrease."""
        times, exact = self._times, self.exact
        for index, limit in enumerate(_LIMITS):
            if exact[index] <= len(times):
                recent = len(times) - bisect_right(times, now_us - limit.window_us) + 1
                if recent > exact[index]:
                    exact[index] = recent
        if self._rings:
            self._count(now_us)
        elif len(times) == EXACT:
            self._rings = [b""] * len(WINDOWS)
            for time_us in times:
                self._count(time_us)
            self._count(now_us)
        times.append(now_us)
        if len(times) > EXACT:
            del times[0]

    def _count(self, now_us: int) -> None:
        for index, limit in enumerate(_IN_SLICES):
            self._rings[index], (spent, _, _, _) = limit.counter.spend(self._rings[index], now_us, 1)
            if spent > self.counted[index]:
                self.counted[index] = spent

    def touched(self, index: int, amount: int) -> bool:
        """Return whether a limit would refuse any request of the client.

        Args:
            index: The index of the window in `WINDOWS`.
            amount: The amount of the limit.
        """
        return (self.exact if amount <= EXACT else self.counted)[index] > amount


def smallest_amount(peaks: Iterable[Peaks], index: int) -> int:
    """Return the smallest amount of a limit that refuses none of the given clients, at least 1.

    Args:
        peaks: The peaks of the clients.
        index: The index of the window in `WINDOWS`.
    """
    exact = counted = 1
    for peak in peaks:
        exact = max(exact, peak.exact[index])
        counted = max(counted, peak.counted[index])
    return exact if exact <= EXACT else counted


class Survey:
    """The first pass over the logs: clients and routes.

    Args:
        clients: Counts requests by client.
    """

    def __init__(self, clients: Clients) -> None:
        self.clients = clients
        self._guesser = RouteGuesser()
        self._routes: Counter[str] = Counter()

    def add(self, record: AccessRecord) -> None:
        """Count one record."""
        if record.method:
            self.clients.add(record)
            self._routes[self._guesser.of(record.path, record.status)] += 1

    def rules(self, count: int = MAX_ROUTES) -> list[Rule]:
        """Return a rule for each of the busiest routes, and one for all requests, with placeholder limits.

        Args:
            count: The maximum number of routes.
        """
        rules: list[Rule] = []
        for route, requests in sorted(self._routes.items(), key=lambda pair: (-pair[1], pair[0])):
            if route == OTHER or requests < MIN_REQUESTS or len(rules) == count:
                continue
            try:
                rules.append(Rule(_numbered(route), "1/1s"))
            except ConfigurationError:
                continue  # not a valid path of a rule; the rule for all requests covers it
        return [*rules, Rule(EVERYTHING, "1/1s")]

    def warnings(self, touch: float) -> list[str]:
        """Return reasons to doubt the suggestion, at most ten sentences."""
        return list(islice(self._warnings(touch), MAX_WARNINGS))

    def _warnings(self, touch: float) -> Iterator[str]:
        requests, tallies = self.clients.requests, self.clients.tallies
        span_us = self.clients.last_us - self.clients.first_us
        if span_us < _DAY_US:
            yield f"the log covers only {span_us / 3.6e9:.1f} hours; other days may be busier"
        if touch * len(tallies) < 1:
            yield f"{touch:.4g} of {len(tallies):,} clients is less than one, so no client is excluded as an outlier"
        for name, client in tallies.items():
            share = client.requests / requests
            if share > _LARGE_SHARE:
                kind = client.classify().kind
                who = "the crawler" if kind == CRAWLER else f"one {kind},"
                yield f"{who} {name} made {share:.0%} of all requests; check that it is not an outlier"
        for name, client in tallies.items():
            if client.many_agents:
                yield f"{name} is probably a proxy or a NAT: it has {len(client.agents)} or more user agents"


class SuggestedRule(NamedTuple):
    """A suggested rule.

    Attributes:
        path: The path of the rule.
        limits: The amount for each window.
        requests: The number of requests that the rule counts.
        clients: The number of clients that sent them.
        refused: The clients that the rule would have refused at least once.
        median: The median of the peaks of all clients, for each window.
    """

    path: str
    limits: dict[str, int]
    requests: int
    clients: int
    refused: frozenset[str]
    median: dict[str, int]

    @property
    def limits_text(self) -> str:
        """The limits as written in a rule, for example ``10/1s; 60/1m``."""
        return "; ".join(f"{amount}/{window}" for window, amount in self.limits.items())


class Suggestion:
    """The second pass over the logs: peaks and limits.

    Args:
        survey: The first pass.
        touch: The share of clients that the limits may refuse, 0 to 1.
        headroom: The factor between the peaks of the other clients and the limits.
        routes: The maximum number of routes with a rule of their own.
    """

    def __init__(self, survey: Survey, touch: float, headroom: float = HEADROOM, routes: int = MAX_ROUTES) -> None:
        self._clients = survey.clients
        self._allowed = int(touch * len(survey.clients.tallies) + 1e-9)
        self._headroom = headroom
        rules = survey.rules(routes)
        self._rules = RuleSet(rules, Limiter().engine.unique_id, PathReader(None))
        self._peaks: dict[str, dict[str, Peaks]] = {rule.paths[0]: {} for rule in rules}
        self._requests: Counter[str] = Counter()
        self._now_us = 0

    def add(self, record: AccessRecord) -> None:
        """Count one record."""
        if not record.method:
            return
        now_us = self._now_us = max(self._now_us, record.time_us)
        scope = scope_of(record)
        name = self._clients.name(scope)
        for bound in self._rules.match(scope).limiting:
            path = bound.rule.paths[0]
            self._requests[path] += 1
            peaks = self._peaks[path].get(name)
            if peaks is None:
                peaks = self._peaks[path][name] = Peaks()
            peaks.add(now_us)

    def standing_out(self) -> set[str]:
        """Return the outliers: the clients with the largest ratio of a peak to the mean."""
        if not self._allowed:
            return set()
        scores: dict[str, float] = {}
        for clients in self._peaks.values():
            for index in range(len(WINDOWS)):
                needs = {name: smallest_amount((peaks,), index) for name, peaks in clients.items()}
                mean = sum(needs.values()) / max(len(needs), 1)
                for name, need in needs.items():
                    scores[name] = max(scores.get(name, 0.0), need / mean)
        return set(sorted(scores, key=lambda name: (-scores[name], name))[: self._allowed])

    def rules(self) -> list[SuggestedRule]:
        """Return the suggested rules, without limits that a longer window makes redundant."""
        outliers = self.standing_out()
        suggested = []
        for path, clients in self._peaks.items():
            others = [peaks for name, peaks in clients.items() if name not in outliers]
            if not others:
                continue
            amounts = [self._amount(smallest_amount(others, index)) for index in range(len(WINDOWS))]
            kept = [index for index, amount in enumerate(amounts) if all(amount < it for it in amounts[index + 1 :])]
            refused = frozenset(
                name for name, peaks in clients.items() if any(peaks.touched(index, amounts[index]) for index in kept)
            )
            limits = {WINDOWS[index]: amounts[index] for index in kept}
            median = {WINDOWS[index]: _median(clients, index) for index in kept}
            suggested.append(SuggestedRule(path, limits, self._requests[path], len(clients), refused, median))
        return suggested

    def _amount(self, needed: int) -> int:
        return min(max(ceil(round(needed * self._headroom, 6)), PAGE_LOAD), MAX_AMOUNT)


def _median(clients: Mapping[str, Peaks], index: int) -> int:
    return sorted(smallest_amount((peaks,), index) for peaks in clients.values())[len(clients) // 2]


def _numbered(route: str) -> str:
    """Return a route whose parameters have distinct names."""
    seen: Counter[str] = Counter()
    parts = []
    for part in route.split("/"):
        if part in ("{id}", "{name}"):
            seen[part] += 1
            part = part if seen[part] == 1 else f"{part[:-1]}{seen[part]}}}"
        parts.append(part)
    return "/".join(parts)
