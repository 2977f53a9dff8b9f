"""What one worker counts before it is added to slices.

    request --> pending requests --> tally --> current slices --> rows in the store
             1 append            64 at once    every 5 s, by the store's clock

Requests are counted many at a time. An admitted one costs a count of its group for its client, and nothing of it is an
object of its own: the traffic of a client is made when it is listed in a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from ..core import Decision, Reason
from ..core.addresses import network_of
from ..events import Outcome, Passed
from .kinds import named_kind
from .metrics import OTHER, grouped, status_name
from .slices import Clients, Series
from .traffic import SeriesName, Traffic, add_to, names_of

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

    def count(self, requests: Sequence[Passed | Outcome]) -> list[Outcome]:
        """Count requests; return those that were refused."""
        refused = list[Outcome]()
        for request in requests:
            if isinstance(request, Outcome):
                self._count_outcome(request)
                if request.refusal is not None:
                    refused.append(request)
        # What all requests of a group have in common is counted here, and what clients have when it is written.
        for group, (clients, times_us, keyed) in grouped(requests).items():
            self.clients.count(group, clients)
            for passed in keyed:
                self._count_keys(passed)
            route, status, *buckets = group
            traffic = self._traffic(tuple(dict.fromkeys(bucket.label for bucket in buckets)), route)
            traffic.passed += len(times_us)
            traffic.statuses[status_name(status)] += len(times_us)
            traffic.times.count_all(times_us)
        self.clients.forget_rare()
        self.keys.forget_rare()
        return refused

    def _count_keys(self, request: Passed) -> None:
        """Count an admitted request for each of its own keys, with the rules that counted it by that key."""
        client, checks, route, _, status = request
        keys = {key for _, key, _ in checks} - {client, self._everyone}
        for key in keys:
            self.keys.count((route, status, *[bucket for bucket, own, _ in checks if own == key]), [key])
        self._note_keys(client, keys)

    def _count_outcome(self, outcome: Outcome) -> None:
        """Count what only an outcome tells of a request: its refusal, its exception, and shadow rules."""
        route = outcome.route
        # A middleware refuses before the route is known: that is no request to a path without one.
        if outcome.refusal is not None and route == NO_ROUTE:
            route = ""
        traffic = self._traffic(outcome.rules, route)
        if outcome.refusal is not None:
            traffic.count_refusal(outcome.reason)
            traffic.statuses[status_name(outcome.status)] += 1
            self._count_refused(outcome, outcome.refusal)
        elif outcome.failed:
            traffic.exceptions += 1
        for rule in outcome.observing_rules:
            self._traffic((rule,), "").shadow_counted += 1
        for rule in outcome.shadow_rules:
            self._traffic((rule,), "").shadow_refused += 1

    def _count_refused(self, outcome: Outcome, refusal: Decision) -> None:
        """Count a refused request for its client, and for those of its keys whose limit or ban refused it."""
        ours = {outcome.client, self._everyone}
        keys = {key for decision in outcome.decisions for _, key, _ in decision.checks} - ours
        names = names_of(outcome, refusal)
        self.clients[outcome.client].count_refused(refusal, names)
        refusing: dict[str, Iterable[str]] = {}
        for state in refusal.violated:
            refusing[state.key] = {*refusing.get(state.key, ()), state.label}
        if refusal.reason is Reason.UNAVAILABLE:
            refusing = dict.fromkeys(keys, names)
        ban = refusal.ban
        # No check names the key of a ban where a policy reads it and no rule does.
        if ban is not None and network_of(ban.key) is None:
            refusing = {ban.key: names}
        own_keys = refusing.keys() - ours
        for key in own_keys:
            self.keys[key].count_refused(refusal, refusing[key])
        self._note_keys(outcome.client, keys | own_keys)

    def _note_keys(self, client: str, keys: Iterable[str]) -> None:
        """Note with which keys of people, such as users and API keys, a client came."""
        noted = self.clients[client].keys
        for key in keys:
            if key in noted or named_kind(key).of_people:
                add_to(noted, key, 1)

    def _traffic(self, rules: tuple[str, ...], route: str) -> Traffic:
        """Return the traffic of some rules and a route; beyond `MAX_SERIES`, that of all others together."""
        name: SeriesName = rules, route
        # Combinations that were there before the last write keep their names.
        if name not in self._names and len(self._names) >= MAX_SERIES:
            name = OTHERS
            self.is_full = True
        self._names.add(name)
        return self.series[name]
