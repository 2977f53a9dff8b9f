"""Works out limits and a ban policy from what clients did.

The logs are read three times. `Survey` learns the clients and guesses the routes. `Suggestion` counts the peaks of each
client under a rule for each route, which the middleware's own matching finds, and under one for all requests. At last
`BanSurvey` counts the failures that are left behind these limits, because a refused request strikes nobody.

The limits may touch some clients, ``floor(touch * clients)``: those that stand out most, by the largest ratio of a peak
to the mean of all clients. Each limit is then the smallest that touches none of the others, so that all limits together
touch no more, and each of them, lowered by one, touches a client more. The policy bans nobody but scanners.

A limit of at most 64 keeps the time of every unit, and touches a client that has more requests in any window. A limit
beyond counts slices, and touches a client that has more requests in the k + 1 slices that a window may lie in. A client
that no limit has touched yet has all its requests in the ring; so a limit touches it at all if, and only if, its peak
is larger.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from functools import cache
from itertools import islice
from typing import Final, NamedTuple

from ..core.errors import ConfigurationError
from ..core.limits import DEFAULT_RESOLUTION, MAX_AMOUNT, Limit
from ..limiter import Limiter
from ..logs import AccessRecord
from ..web import keys
from ..web.rule_set import RuleSet
from ..web.rules import Rule
from .clients import CRAWLER, SCANNER, Clients
from .replay import PASSED, Replay, scope_of
from .routes import OTHER, RouteGuesser

EXACT: Final = DEFAULT_RESOLUTION
"""The largest amount whose window is exact."""
WINDOWS: Final = ("1s", "10s", "1m", "1h")
MAX_ROUTES: Final = 8
MIN_REQUESTS: Final = 20
MAX_WARNINGS: Final = 10
EVERYTHING: Final = "*"
SIGNALS: Final = ("404", "4xx")
BAN_WINDOWS: Final = ("1m", "10m", "1h")
MIN_STRIKES: Final = 5
_DAY_US: Final = 86_400_000_000
_LARGE_SHARE: Final = 0.3
_LIMITS: Final = tuple(Limit(1, window) for window in WINDOWS)
_BAN_LIMITS: Final = tuple(Limit(1, window) for window in BAN_WINDOWS)


class Peaks:
    """The peaks of one client under one rule. Its size is bounded by the number of windows.

    Args:
        limits: A limit for each window; only its window matters.

    Attributes:
        exact: For each window the most requests in any of its length, at most 65.
        counted: For each window the most requests in k + 1 slices; it is kept from the 65th request on, and 0 before.
    """

    __slots__ = ("_in_slices", "_limits", "_rings", "_times", "counted", "exact")

    def __init__(self, limits: tuple[Limit, ...]) -> None:
        self._limits = limits
        self._in_slices = _sliced(limits)
        self._times: list[int] = []  # of the last 64 requests
        self._rings: list[bytes] = []
        self.exact = [0] * len(limits)
        self.counted = [0] * len(limits)

    def add(self, now_us: int) -> None:
        """Count a request. Times never step back."""
        times, exact = self._times, self.exact
        for index, limit in enumerate(self._limits):
            if exact[index] <= len(times):
                recent = len(times) - bisect_right(times, now_us - limit.window_us) + 1
                if recent > exact[index]:
                    exact[index] = recent
        if self._rings:
            self._count(now_us)
        elif len(times) == EXACT:
            self._rings = [b""] * len(self._limits)
            for time_us in times:
                self._count(time_us)
            self._count(now_us)
        times.append(now_us)
        if len(times) > EXACT:
            del times[0]

    def _count(self, now_us: int) -> None:
        for index, limit in enumerate(self._in_slices):
            self._rings[index], (spent, _, _, _) = limit.counter.spend(self._rings[index], now_us, 1)
            if spent > self.counted[index]:
                self.counted[index] = spent

    def touched(self, index: int, amount: int) -> bool:
        """Tell whether a limit of this amount would refuse a request of the client.

        Args:
            index: Which of the windows.
            amount: The amount of the limit.
        """
        return (self.exact if amount <= EXACT else self.counted)[index] > amount


@cache
def _sliced(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
    """Return limits of the same windows that refuse nobody, and count in slices."""
    return tuple(
        Limit(MAX_AMOUNT, timedelta(microseconds=limit.window_us), resolution=limit.resolution) for limit in limits
    )


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
        """Look at one record."""
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

    def scanners(self) -> set[str]:
        """Return the clients that look like scanners."""
        return {name for name, client in self.clients.tallies.items() if client.look().kind == SCANNER}

    def warnings(self, touch: float) -> list[str]:
        """Return what speaks against believing the suggestion, at most ten sentences."""
        return list(islice(self._warnings(touch), MAX_WARNINGS))

    def _warnings(self, touch: float) -> Iterator[str]:
        requests, tallies = self.clients.requests, self.clients.tallies
        span_us = self.clients.last_us - self.clients.first_us
        if span_us < _DAY_US:
            yield f"the log covers {span_us / 3.6e9:.1f} hours; busier days than this one may come"
        if touch * len(tallies) < 1:
            yield f"{touch:.4g} of {len(tallies):,} clients is less than one, so no client is touched"
        for name, client in tallies.items():
            share = client.requests / requests
            if share > _LARGE_SHARE:
                kind = client.look().kind
                who = "the crawler" if kind == CRAWLER else f"one {kind},"
                yield f"{who} {name} makes {share:.0%} of all requests; look at it before you believe the rest"
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
        touched: How many clients its limits touch.
        median: For each window the median of the peaks of all clients.
    """

    path: str
    limits: dict[str, int]
    requests: int
    clients: int
    touched: int
    median: dict[str, int]

    @property
    def said(self) -> str:
        """The limits as a rule has them."""
        return "; ".join(f"{amount}/{window}" for window, amount in self.limits.items())


class SuggestedPolicy(NamedTuple):
    """A suggested ban policy.

    Attributes:
        after: How many strikes in which time.
        signal: The status that strikes.
        caught: How many scanners it catches; it catches nobody else.
        scanners: How many scanners there are.
    """

    after: str
    signal: str
    caught: int
    scanners: int


class Suggestion:
    """The second reading: peaks and limits.

    Args:
        survey: The first reading.
        touch: The share of clients, 0 to 1, that limits may touch.
        routes: How many routes get a rule of their own.
    """

    def __init__(self, survey: Survey, touch: float, routes: int = MAX_ROUTES) -> None:
        self._clients = survey.clients
        self._allowed = int(touch * len(survey.clients.tallies) + 1e-9)
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
            _counted(self._peaks[path], name, _LIMITS).add(now_us)

    def standing_out(self) -> set[str]:
        """Return the clients that limits may touch: those with the largest ratio of a peak to the mean."""
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
        spared = self.standing_out()
        suggested = []
        for path, clients in self._peaks.items():
            others = [peaks for name, peaks in clients.items() if name not in spared]
            if not others:
                continue  # nobody is left who could say what is usual here
            amounts = [smallest_amount(others, index) for index in range(len(WINDOWS))]
            kept = [index for index, amount in enumerate(amounts) if all(amount < it for it in amounts[index + 1 :])]
            limits = {WINDOWS[index]: amounts[index] for index in kept}
            touched = sum(any(peaks.touched(index, amounts[index]) for index in kept) for peaks in clients.values())
            median = {
                WINDOWS[index]: _median([smallest_amount((peaks,), index) for peaks in clients.values()])
                for index in kept
            }
            suggested.append(SuggestedRule(path, limits, self._requests[path], len(clients), touched, median))
        return suggested


class BanSurvey:
    """The third reading: failures behind the suggested limits, and the ban policy.

    Args:
        rules: The suggested rules.
        survey: The first reading.
    """

    def __init__(self, rules: Sequence[SuggestedRule], survey: Survey) -> None:
        self._clients = survey.clients
        self._scanners = survey.scanners()
        key = None if self._clients.header is None else keys.header(self._clients.header)
        self._replay = Replay(rules=[Rule(rule.path, rule.said, key=key) for rule in rules])
        self._failures: dict[str, dict[str, Peaks]] = {signal: {} for signal in SIGNALS}

    def add(self, record: AccessRecord) -> None:
        """Count one record, if the limits let it pass."""
        if self._replay.play(record).outcome == PASSED and 400 <= record.status <= 499:
            name = self._clients.name(record)
            for signal in SIGNALS if record.status == 404 else ("4xx",):
                _counted(self._failures[signal], name, _BAN_LIMITS).add(self._replay.now_us)

    def policy(self) -> SuggestedPolicy | None:
        """Return the ban policy that catches most scanners and nobody else; None if there is none."""
        scanners = self._scanners
        best: SuggestedPolicy | None = None
        for signal, clients in self._failures.items():
            for index, window in enumerate(BAN_WINDOWS):
                honest = max((peaks.exact[index] for name, peaks in clients.items() if name not in scanners), default=0)
                after = max(honest + 1, MIN_STRIKES)
                caught = sum(name in scanners and peaks.exact[index] >= after for name, peaks in clients.items())
                if after <= EXACT and caught > (0 if best is None else best.caught):
                    best = SuggestedPolicy(f"{after}/{window}", signal, caught, len(scanners))
        return best


def _counted(clients: dict[str, Peaks], name: str, limits: tuple[Limit, ...]) -> Peaks:
    peaks = clients.get(name)
    if peaks is None:
        peaks = clients[name] = Peaks(limits)
    return peaks


def _median(values: list[int]) -> int:
    return sorted(values)[len(values) // 2] if values else 0


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
