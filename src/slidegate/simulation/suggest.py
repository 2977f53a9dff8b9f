"""Works out limits from what the clients of a log did.

The logs are read twice. `Survey` learns the clients and guesses the routes. `Suggestion` counts the peaks of each
client under a rule for each route, which the middleware's own matching finds, and under one for all requests.

Some clients may be left out, ``floor(touch * clients)``: those that stand out most, by the largest ratio of a peak to
the mean of all clients. What the others need is, for each window, the smallest amount that refuses none of them. A
limit is that amount times the headroom, and at least what one page load makes.

A limit of at most 64 keeps the time of every unit, and refuses a client that has more requests in any window. A limit
beyond counts slices, and refuses a client that has more requests in the k + 1 slices that a window may lie in. A client
that no limit has refused yet has all its requests in the ring; so a limit refuses it at all if, and only if, its peak
is larger.
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
from ..web.rule_set import RuleSet
from ..web.rules import Rule
from .clients import CRAWLER, Clients
from .replay import scope_of
from .routes import OTHER, RouteGuesser

EXACT: Final = DEFAULT_RESOLUTION
"""The largest amount whose window is exact."""
WINDOWS: Final = ("1s", "10s", "1m", "1h")
PAGE_LOAD: Final = 10
"""No limit is lower: a page and what it loads are ten requests within ten seconds."""
HEADROOM: Final = 2.0
MAX_ROUTES: Final = 8
MIN_REQUESTS: Final = 20
MAX_WARNINGS: Final = 10
EVERYTHING: Final = "*"
_DAY_US: Final = 86_400_000_000
_LARGE_SHARE: Final = 0.3
_LIMITS: Final = tuple(Limit(1, window) for window in WINDOWS)
# They refuse nobody, and count in slices.
_IN_SLICES: Final = tuple(Limit(MAX_AMOUNT, window) for window in WINDOWS)


class Peaks:
    """The peaks of one client under one rule. Its size is bounded by the number of windows.

    Attributes:
        exact: For each of `WINDOWS` the most requests in any span of its length, at most 65.
        counted: For each the most requests in k + 1 slices; it is kept from the 65th request on, and 0 before.
    """

    __slots__ = ("_rings", "_times", "counted", "exact")

    def __init__(self) -> None:
        self._times: list[int] = []  # of the last 64 requests
        self._rings: list[bytes] = []
        self.exact = [0] * len(WINDOWS)
        self.counted = [0] * len(WINDOWS)

    def add(self, now_us: int) -> None:
        """Count a request. Times never step back."""
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
        """Return whether a limit of this amount would refuse a request of the client.

        Args:
            index: Which of the windows.
            amount: The amount of the limit.
        """
        return (self.exact if amount <= EXACT else self.counted)[index] > amount


def smallest_amount(peaks: Iterable[Peaks], index: int) -> int:
    """Return the smallest amount of a limit that touches none of some clients; at least 1.

    Args:
        peaks: Their peaks.
        index: Which of the windows.
    """
    exact = counted = 1
    for peak in peaks:
        exact = max(exact, peak.exact[index])
        counted = max(counted, peak.counted[index])
    return exact if exact <= EXACT else counted


class Survey:
    """The first reading: clients, and routes.

    Args:
        clients: Counts by client.
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
        """Return a rule for each of the busiest routes, and one for all requests; their limits mean nothing yet.

        Args:
            count: How many routes.
        """
        rules: list[Rule] = []
        for route, requests in sorted(self._routes.items(), key=lambda pair: (-pair[1], pair[0])):
            if route == OTHER or requests < MIN_REQUESTS or len(rules) == count:
                continue
            try:
                rules.append(Rule(_numbered(route), "1/1s"))
            except ConfigurationError:
                continue  # a path that no rule can name is left to the rule for all requests
        return [*rules, Rule(EVERYTHING, "1/1s")]

    def warnings(self, touch: float) -> list[str]:
        """Return what speaks against believing the suggestion, at most ten sentences."""
        return list(islice(self._warnings(touch), MAX_WARNINGS))

    def _warnings(self, touch: float) -> Iterator[str]:
        requests, tallies = self.clients.requests, self.clients.tallies
        span_us = self.clients.last_us - self.clients.first_us
        if span_us < _DAY_US:
            yield f"the log covers {span_us / 3.6e9:.1f} hours; busier days than this one may come"
        if touch * len(tallies) < 1:
            yield f"{touch:.4g} of {len(tallies):,} clients is less than one, so no client is left out"
        for name, client in tallies.items():
            share = client.requests / requests
            if share > _LARGE_SHARE:
                kind = client.classify().kind
                who = "the crawler" if kind == CRAWLER else f"one {kind},"
                yield f"{who} {name} made {share:.0%} of all requests; check it before you trust the rest"
        for name, client in tallies.items():
            if client.many_agents:
                yield f"{name} is probably a proxy or a NAT: {len(client.agents)} or more agents come from it"


class SuggestedRule(NamedTuple):
    """A suggested rule.

    Attributes:
        path: The path of the rule.
        limits: The amount for each window.
        requests: How many requests the rule counts.
        clients: Of how many clients.
        refused: Those of them that it would have refused at least once.
        median: For each window the median of the peaks of all clients.
    """

    path: str
    limits: dict[str, int]
    requests: int
    clients: int
    refused: frozenset[str]
    median: dict[str, int]

    @property
    def limits_text(self) -> str:
        """The limits as a rule has them."""
        return "; ".join(f"{amount}/{window}" for window, amount in self.limits.items())


class Suggestion:
    """The second pass over the logs: peaks and limits.

    Args:
        survey: The first pass.
        touch: The share of clients, 0 to 1, that the limits may refuse.
        headroom: The limits are this many times what the other clients need.
        routes: How many routes get a rule of their own.
    """

    def __init__(self, survey: Survey, touch: float, headroom: float = HEADROOM, routes: int = MAX_ROUTES) -> None:
        self._clients = survey.clients
        self._allowed = int(touch * len(survey.clients.tallies) + 1e-9)
        self._headroom = headroom
        rules = survey.rules(routes)
        self._rules = RuleSet(rules, Limiter().engine.unique_id)
        self._peaks: dict[str, dict[str, Peaks]] = {rule.paths[0]: {} for rule in rules}
        self._requests: Counter[str] = Counter()
        self._now_us = 0

    def add(self, record: AccessRecord) -> None:
        """Count one record."""
        scope = scope_of(record)
        if scope is None:
            return
        now_us = self._now_us = max(self._now_us, record.time_us)
        name = self._clients.name(record)
        for bound in self._rules.match(scope).limiting:
            path = bound.rule.paths[0]
            self._requests[path] += 1
            peaks = self._peaks[path].get(name)
            if peaks is None:
                peaks = self._peaks[path][name] = Peaks()
            peaks.add(now_us)

    def standing_out(self) -> set[str]:
        """Return the clients whose needs are left out: those with the largest ratio of a peak to the mean."""
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
        """Return the suggested rules; a limit that a longer one makes needless is left out."""
        left_out = self.standing_out()
        suggested = []
        for path, clients in self._peaks.items():
            others = [peaks for name, peaks in clients.items() if name not in left_out]
            if not others:
                continue  # no client is left whose needs could be met
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
    """Return a route in which no two parameters have one name."""
    seen: Counter[str] = Counter()
    parts = []
    for part in route.split("/"):
        if part in ("{id}", "{name}"):
            seen[part] += 1
            part = part if seen[part] == 1 else f"{part[:-1]}{seen[part]}}}"
        parts.append(part)
    return "/".join(parts)
