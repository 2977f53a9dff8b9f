"""What one worker counts, and how it is written in the rows of a store.

    request --> pending requests --> tally --> current slices --> rows in the store
             1 append            128 at once   every 5 s, by the store's clock

Requests are counted many at a time: an ordinary one costs its client's counts, and those of its rules and route.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from ipaddress import ip_network
from operator import attrgetter
from typing import Any, Final, Self, TypeAlias

from ..core import Bucket, Check, Decision, Reason
from ..core.memo import remember
from ..core.stored import json_of
from ..events import Outcome, Passed
from ..windows import ResponseTimes
from .metrics import OTHER, rules_of
from .traffic import COUNTS, MAX_NAMES, ClientTraffic, Ranking, Traffic, add_to, count_answer, text_of

MAX_SERIES: Final = 200
MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
NO_ROUTE: Final = "(no route)"

SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""
OTHERS: Final[SeriesName] = ((OTHER,), OTHER)
"""The name of requests beyond `MAX_SERIES` combinations of rules and route."""
_OF_PEOPLE: Final = ("user", "header", "cookie", "combined")
"""The kinds of keys that each of several people behind one address has."""
_FIELDS: Final = tuple(one.name for one in fields(ClientTraffic) if one.name != "latest")


# -- rows --------------------------------------------------------------------------------------------------------------


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON, compressed in the least time."""
    return zlib.compress(json_of(value), zlib.Z_BEST_SPEED)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))


def _line_of(one: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    return {name: value for name in names if (value := getattr(one, name))}


def _known(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that this version knows, of those that were written."""
    return {name: line[name] for name in names if name in line}


class Series(dict[SeriesName, Traffic]):
    """The traffic of each combination of rules and route."""

    def of(self, name: SeriesName) -> Traffic:
        """Return the traffic of a combination, which is added if it is missing."""
        return self.get(name) or self.setdefault(name, Traffic())

    def added_to(self, before: Self | None) -> Self:
        """Return the sum of this and what was counted before, if anything was: another object."""
        together = type(self)(before or {})
        for name, traffic in self.items():
            together.of(name).add(traffic)
        return together

    def packed(self) -> bytes:
        """Return the row of a slice."""
        lines: list[Any] = []
        for (rules, route), traffic in self.items():
            times = traffic.times
            line = {"rules": rules, "route": route, "sum_us": times.sum_us, "min_us": times.min_us}
            line["buckets"] = list(times.buckets.items())
            lines.append(line | _line_of(traffic, COUNTS))
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Return what is in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**_known(line, COUNTS))
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], dict(line["buckets"]))
            yield (tuple(line["rules"]), line["route"]), traffic


class Clients(dict[str, ClientTraffic]):
    """The traffic of each client; or of each key of another kind."""

    def of(self, key: str) -> ClientTraffic:
        """Return the traffic of a client, which is added if it is missing."""
        return self.get(key) or self.setdefault(key, ClientTraffic(key))

    def added_to(self, before: Self | None) -> Self:
        """See `Series.added_to`."""
        together = type(self)()
        counted = [*self.items()]
        if before is not None:
            counted = [*before.items(), *counted]
        for key, client in counted:
            together.of(key).add(client)
        together.forget_rare()
        return together

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if len(self) > MAX_CLIENTS:
            kept = self.ranking(MAX_CLIENTS // 4).each()
            self.clear()
            self.update({one.key: one for one in kept})

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most."""
        # Sorting is faster than `nlargest` for so many.
        busiest = sorted(self.values(), key=attrgetter("requests"), reverse=True)
        refused = [one for one in self.values() if one.refused]
        refused.sort(key=attrgetter("refused"), reverse=True)
        return Ranking(busiest[:most], refused[:most])

    def packed(self) -> bytes:
        """Return the row of a slice."""
        first = self.ranking(TOP_CLIENTS).each()
        for one in first:
            one.name_latest()
        return encoded([_line_of(one, _FIELDS) for one in first])

    def add_row(self, row: bytes) -> None:
        """Add what is in the row of a slice."""
        for line in decoded(row):
            one = ClientTraffic(**_known(line, _FIELDS))
            self.of(one.key).add(one)


# -- counting ----------------------------------------------------------------------------------------------------------


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
