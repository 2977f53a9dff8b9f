"""What one worker counts before it is added to slices.

    request --> pending requests --> tally --> current slices --> rows in the store
             1 append            128 at once   every 5 s, by the store's clock

Requests are counted many at a time: an ordinary one costs its client's counts, and those of its rules and route.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from ipaddress import ip_network
from typing import Final

from ..core import Bucket, Check, Decision, Reason
from ..core.memo import remember
from ..events import Outcome, Passed
from .metrics import OTHER, rules_of
from .slices import Clients, Series, SeriesName
from .traffic import MAX_NAMES, ClientTraffic, Traffic, add_to, count_answer, text_of

MAX_SERIES: Final = 200
NO_ROUTE: Final = "(no route)"

OTHERS: Final[SeriesName] = ((OTHER,), OTHER)
"""The name of requests beyond `MAX_SERIES` combinations of rules and route."""
_OF_PEOPLE: Final = ("user", "header", "cookie", "combined")
"""The kinds of keys that each of several people behind one address has."""


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
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget what is counted, but not which combinations there are."""
        self.series = Series()
        self.clients = Clients()
        self.keys = Clients()
        # The traffic of ordinary requests by the buckets that counted them, which is faster than by their rules.
        self._ordinary: dict[tuple[tuple[Bucket, ...], str], Traffic] = {}

    def count(self, requests: Iterable[Passed | Outcome]) -> list[Outcome]:
        """Count requests; return those that were refused."""
        refused: list[Outcome] = []
        clients = self.clients
        for request in requests:
            if isinstance(request, Outcome):
                self._count_outcome(request)
                if request.ended == "refused":
                    refused.append(request)
                continue
            # What follows is an ordinary request, in few steps: most are.
            client, checks, route, time_us = request
            one = clients.get(client)
            if one is None:
                one = clients.of(client)
            has_keys = False
            buckets: tuple[Bucket, ...] = ()
            for bucket, key, _ in checks:
                buckets += (bucket,)
                if key != client:
                    has_keys = True
            _count_passed(one, request)
            if has_keys:
                for key in self._keys_of(checks, client):
                    _count_passed(self.keys.of(key), request)
                    _note_other(one, key)
            met = buckets, route
            traffic = self._ordinary.get(met)
            if traffic is None:
                traffic = remember(self._ordinary, met, self._traffic(rules_of(buckets), route))
            traffic.passed += 1
            traffic.times.count_one(time_us)
        clients.forget_rare()
        self.keys.forget_rare()
        return refused

    def _count_outcome(self, outcome: Outcome) -> None:
        """Count a request that was refused, failed, was left by its client, or met several decisions."""
        route = outcome.route
        # Nobody knows which route a middleware has refused: that is no request to a path without one.
        if outcome.ended == "refused" and route == NO_ROUTE:
            route = ""
        traffic = self._traffic(outcome.rules, route)
        traffic.count(outcome)
        if outcome.allowed:
            traffic.times.count_one(outcome.duration_us)
        for rule in outcome.shadow_rules:
            self._traffic((rule,), "").shadow_refused += 1
        # It has left before it was decided, so that no decision names its keys.
        if not outcome.allowed and outcome.ended != "refused":
            return
        self._count_client(self.clients, outcome.client, outcome)
        keys = _banned_keys(outcome)
        for decision in outcome.decisions:
            keys |= self._keys_of(decision.checks, outcome.client)
        for key in keys:
            self._count_client(self.keys, key, outcome)
            _note_other(self.clients.of(outcome.client), key)

    def _count_client(self, clients: Clients, key: str, outcome: Outcome) -> None:
        """Count a request for its client, or for another key of it."""
        one = clients.of(key)
        count_answer(one, outcome)
        refusal = outcome.refusal
        if refusal is None:
            one.latest = outcome.client, outcome.decisions[-1].checks, outcome.route, outcome.duration_us
            for label in outcome.rules:
                add_to(one.counted_by, label, 1)
            add_to(one.routes, outcome.route, 1)
        elif refusal.reason is not Reason.UNAVAILABLE:
            one.note_amounts(refusal.checks)
            one.route = outcome.route
            one.rule, one.limits = _refused_by(refusal, outcome.rules)
            add_to(one.refused_by, one.rule, 1)
            one.refused_at_us = outcome.began_us + outcome.duration_us
            one.refused_since_us = one.refused_since_us or one.refused_at_us

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
        return self.series.of(name)


def _count_passed(one: ClientTraffic, request: Passed) -> None:
    """Count an ordinary request for its client, or for another key of it."""
    _, checks, route, _ = request
    one.passed += 1
    one.latest = request
    names = one.counted_by
    for bucket, _, _ in checks:
        label = bucket.label
        if label in names:
            names[label] += 1
        else:
            add_to(names, label, 1)
    names = one.routes
    if route in names:
        names[route] += 1
    elif len(names) < MAX_NAMES:
        names[route] = 1


def _note_other(client: ClientTraffic, key: str) -> None:
    """Note with which user, cookie or API key a client came."""
    if len(client.others) < MAX_NAMES and key.startswith(_OF_PEOPLE):
        client.add_other(zlib.crc32(key.encode(errors="replace")))


def _banned_keys(outcome: Outcome) -> set[str]:
    """Return the key whose ban refused a request, if it is neither its client nor an address or a network.

    No check names that key where a policy reads it and no rule does.
    """
    refusal = outcome.refusal
    if refusal is None or refusal.ban is None or refusal.ban.key == outcome.client:
        return set()
    try:
        ip_network(refusal.ban.key)
    except ValueError:
        return {refusal.ban.key}
    return set()


def _refused_by(refusal: Decision, rules: Sequence[str]) -> tuple[str, str]:
    """Return the rule, the list or the maker of the ban that refused a request, and the limits of the rule."""
    if not rules:
        return refusal.by, ""
    for bucket, _, _ in refusal.checks:
        if bucket.label == rules[0]:
            return rules[0], text_of(bucket)
    return rules[0], ""
