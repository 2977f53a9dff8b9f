"""What one worker counts before it is added to slices.

    request --> pending requests --> tally --> current slices --> rows in the store
             1 append            128 at once   every 5 s, by the store's clock

Requests are counted many at a time. An admitted one costs the counts of its client, and those of its rules and route.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Final

from ..core import Check, Decision, Reason
from ..core.addresses import network_of
from ..core.memo import remember
from ..events import Outcome, Passed
from .kinds import named_kind
from .metrics import OTHER, rules_of, status_name
from .slices import Clients, Series
from .traffic import SeriesName, Traffic, add_to

PART: Final = 128
"""How many requests are counted in one step, less than a millisecond."""
MAX_SERIES: Final = 200
NO_ROUTE: Final = "(no route)"

OTHERS: Final[SeriesName] = ((OTHER,), OTHER)
"""The name of requests beyond `MAX_SERIES` combinations of rules and route."""


class Tally:
    """What a worker has counted since its last write. One thread at a time counts.

    Args:
        everyone: The key of all clients together, which is that of no client.

    Attributes:
        series: The requests by rules and route.
        clients: The requests by client.
        keys: The requests by keys of other kinds, such as the values of a header.
        is_full: Whether there are requests beyond `MAX_SERIES` combinations of rules and route.
    """

    def __init__(self, everyone: str) -> None:
        self._everyone = everyone
        self._names = set[SeriesName]()
        self.is_full = False
        self.restart()

    def restart(self) -> None:
        """Drop the counts, but not the names of combinations."""
        self.series = Series()
        self.clients = Clients()
        self.keys = Clients()
        # The names and the traffic of admitted requests, by their route, status, and the buckets that counted them.
        self._by_kind: dict[tuple[Any, ...], tuple[SeriesName, Traffic, str]] = {}

    def count(self, requests: Iterable[Passed | Outcome]) -> list[Outcome]:
        """Count requests; return those that were refused."""
        refused: list[Outcome] = []
        for request in requests:
            if not isinstance(request, Outcome):
                self._count_admitted(request)
                continue
            self._count_outcome(request)
            if request.refusal is not None:
                refused.append(request)
        self.clients.forget_rare()
        self.keys.forget_rare()
        return refused

    def _count_admitted(self, request: Passed) -> None:
        client, checks, route, time_us, status = request
        kind: tuple[Any, ...] = (route, status)
        has_keys = False
        for bucket, key, _ in checks:
            kind += (bucket,)
            if key != client:
                has_keys = True
        entry = self._by_kind.get(kind)
        if entry is None:
            name = rules_of(kind[2:]), route
            entry = remember(self._by_kind, kind, (name, self._traffic(*name), status_name(status)))
        name, traffic, answered = entry
        traffic.passed += 1
        traffic.statuses[answered] += 1
        traffic.times.count_one(time_us)
        self.clients[client].count_admitted(request, name)
        if has_keys:
            keys = self._keys_of(checks, client)
            for key in keys:
                rules = rules_of(bucket for bucket, own, _ in checks if own == key)
                self.keys[key].count_admitted(request, (rules, route))
            self._note_others(client, keys)

    def _count_outcome(self, outcome: Outcome) -> None:
        """Count a request that was refused, failed, or met several decisions."""
        checks = [check for decision in outcome.decisions for check in decision.checks]
        route = outcome.route
        # A middleware refuses before the route is known: that is no request to a path without one.
        if outcome.refusal is not None and route == NO_ROUTE:
            route = ""
        traffic = self._traffic(outcome.rules, route)
        if outcome.refusal is not None:
            traffic.count_refusal(outcome.reason)
            traffic.statuses[status_name(outcome.status)] += 1
            self._count_refused(outcome, outcome.refusal, checks)
        else:
            if outcome.failed:
                traffic.exceptions += 1
            self._count_admitted((outcome.client, checks, route, outcome.duration_us, outcome.status))
        for rule in outcome.observing_rules:
            self._traffic((rule,), "").shadow_counted += 1
        for rule in outcome.shadow_rules:
            self._traffic((rule,), "").shadow_refused += 1

    def _count_refused(self, outcome: Outcome, refusal: Decision, checks: Sequence[Check]) -> None:
        """Count a refused request for its client, and for those of its keys whose limit or ban refused it."""
        keys = self._keys_of(checks, outcome.client)
        by = refusal.by  # of a list, or of the maker of a ban
        if outcome.rules:
            by = outcome.rules[0]
        self.clients[outcome.client].count_refused(refusal, by)
        refusing = {state.key: state.label for state in refusal.states if state.retry_after_us != 0}
        if refusal.reason is Reason.UNAVAILABLE:
            refusing = dict.fromkeys(keys, by)
        ban = refusal.ban
        # No check names the key of a ban where a policy reads it and no rule does.
        if ban is not None and network_of(ban.key) is None:
            refusing = {ban.key: by}
        own_keys = refusing.keys() - {outcome.client, self._everyone}
        for key in own_keys:
            self.keys[key].count_refused(refusal, refusing[key])
        self._note_others(outcome.client, keys | own_keys)

    def _note_others(self, client: str, keys: Iterable[str]) -> None:
        """Note with which keys of people, such as users and API keys, a client came."""
        for key in keys:
            if named_kind(key).of_people:
                digest = f"{zlib.crc32(key.encode(errors='replace')):08x}"
                add_to(self.clients[client].others, digest, 1)

    def _keys_of(self, checks: Sequence[Check], client: str) -> set[str]:
        """Return the keys of some checks that stand neither for their client nor for everyone."""
        return {key for _, key, _ in checks} - {client, self._everyone}

    def _traffic(self, rules: tuple[str, ...], route: str) -> Traffic:
        """Return the traffic of some rules and a route; beyond `MAX_SERIES`, that of all others together."""
        name: SeriesName = rules, route
        traffic = self.series.get(name)
        if traffic is not None:
            return traffic
        # Combinations that were there before the last write keep their names.
        if name not in self._names and len(self._names) >= MAX_SERIES:
            name = OTHERS
            self.is_full = True
        self._names.add(name)
        return self.series[name]
