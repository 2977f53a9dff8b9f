"""What one worker counts, and how it is written in the rows of a store.

Requests are counted many at a time. An ordinary one then costs two look-ups: the traffic of its rules and route, and
its client. What rule and limits a client has met is named when a row is written, for the few clients that are in it.

Rows are objects of JSON, read by name: a worker of a later version may write further fields. What is 0 or empty is left
out.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, replace
from ipaddress import ip_network
from operator import attrgetter
from typing import Any, Final, Protocol, Self, TypeAlias

from ..core import Bucket, Check, Decision, Reason
from ..core.memo import remember
from ..events import Outcome, Passed
from ..windows import ResponseTimes
from .metrics import OTHER, rules_of
from .traffic import COUNTS, ClientTraffic, Ranking, Traffic

MAX_SERIES: Final = 200
MAX_CLIENTS: Final = 1_000
"""With more clients, those with the fewest requests and refusals are forgotten."""
TOP_CLIENTS: Final = 100
"""How many of the busiest clients, and how many of those that are refused most, are in a row."""
MAX_REFUSERS: Final = 8
"""By how many rules the refusals of one client are told apart."""
NO_ROUTE: Final = "(no route)"

SeriesName: TypeAlias = tuple[tuple[str, ...], str]
"""The rules that counted or refused some requests, and their route: empty for refusals before a route was found."""
OTHERS: Final[SeriesName] = ((OTHER,), OTHER)
"""The name of requests beyond `MAX_SERIES` combinations of rules and route."""
_FIELDS: Final = tuple(one.name for one in fields(ClientTraffic))


class Slice(Protocol):
    """What is counted in one slice."""

    def added_to(self, before: Any) -> Self:
        """Return the sum of this and what was counted before, if anything was: another object."""

    def packed(self) -> bytes:
        """Return the row of the slice."""


class Series(dict[SeriesName, Traffic]):
    """The traffic of each combination of rules and route."""

    def of(self, name: SeriesName) -> Traffic:
        """Return the traffic of a combination, which is added if it is missing."""
        return self.get(name) or self.setdefault(name, Traffic())

    def added_to(self, before: Series | None) -> Series:
        """See `Slice.added_to`."""
        together = Series(before or {})
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
            lines.append(line | _written(traffic, COUNTS))
        return encoded(lines)

    @staticmethod
    def unpacked(row: bytes) -> Iterator[tuple[SeriesName, Traffic]]:
        """Return what is in the row of a slice."""
        for line in decoded(row):
            traffic = Traffic(**_read(line, COUNTS))
            traffic.times = ResponseTimes(line["sum_us"], line["min_us"], dict(line["buckets"]))
            yield (tuple(line["rules"]), line["route"]), traffic


class Clients(dict[str, ClientTraffic]):
    """The traffic of each client; or of each key of another kind.

    Attributes:
        latest: The latest ordinary request of each.
    """

    def __init__(self) -> None:
        super().__init__()
        self.latest: dict[str, Passed] = {}

    def of(self, key: str) -> ClientTraffic:
        """Return the traffic of a client, which is added if it is missing."""
        return self.get(key) or self.setdefault(key, ClientTraffic(key))

    def added_to(self, before: Clients | None) -> Clients:
        """See `Slice.added_to`."""
        together = Clients()
        if before is not None:
            together.update(before)
            together.latest.update(before.latest)
        for key, traffic in self.items():
            together.of(key).add(traffic)
        together.latest.update(self.latest)
        together.forget_rare()
        return together

    def forget_rare(self) -> None:
        """If there are too many, forget those that are neither among the busiest nor among the most refused."""
        if len(self) <= MAX_CLIENTS:
            return
        kept = {one.key: one for one in self._leading(MAX_CLIENTS // 4)}
        latest = {key: self.latest[key] for key in kept if key in self.latest}
        self.clear()
        self.update(kept)
        self.latest = latest

    def _leading(self, most: int) -> list[ClientTraffic]:
        ranking = self.ranking(most)
        busiest = {one.key for one in ranking.busiest}
        return [*ranking.busiest, *(one for one in ranking.refused if one.key not in busiest)]

    def ranking(self, most: int) -> Ranking:
        """Return the busiest and those that are refused most."""
        # Sorting is faster than `nlargest` for so many.
        busiest = sorted(self.values(), key=attrgetter("requests"), reverse=True)
        refused = [one for one in self.values() if one.refused]
        refused.sort(key=attrgetter("refused"), reverse=True)
        return Ranking(busiest[:most], refused[:most])

    def packed(self) -> bytes:
        """Return the row of a slice."""
        return encoded([_written(self._described(one), _FIELDS) for one in self._leading(TOP_CLIENTS)])

    def _described(self, one: ClientTraffic) -> ClientTraffic:
        """Return a client with what its latest request met; a refusal has been described when it was counted."""
        if one.refused or one.key not in self.latest:
            return one
        _, checks, route, _ = self.latest[one.key]
        rule, limits = _counted(one.key, checks)
        return replace(one, route=route, rule=rule, limits=limits)

    def add_row(self, row: bytes) -> None:
        """Add what is in the row of a slice."""
        for line in decoded(row):
            one = ClientTraffic(**_read(line, _FIELDS))
            self.of(one.key).add(one)


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
        clients, latest = self.clients, self.clients.latest
        for request in requests:
            if isinstance(request, Outcome):
                self._count_outcome(request)
                if request.ended == "refused":
                    refused.append(request)
                continue
            client, checks, route, time_us = request
            one = clients.get(client)
            if one is None:
                one = clients.of(client)
            one.passed += 1
            latest[client] = request
            buckets: list[Bucket] = []
            has_keys = False
            for bucket, key, _ in checks:
                buckets.append(bucket)
                if key != client:
                    has_keys = True
            if has_keys:
                self._count_keys(request)
            counted = tuple(buckets), route
            traffic = self._ordinary.get(counted)
            if traffic is None:
                traffic = remember(self._ordinary, counted, self._traffic(rules_of(checks), route))
            traffic.passed += 1
            traffic.times.count_one(time_us)
        clients.forget_rare()
        self.keys.forget_rare()
        return refused

    def _count_keys(self, request: Passed) -> None:
        client, checks, _, _ = request
        for key in self._keys_of(checks, client):
            self.keys.of(key).passed += 1
            self.keys.latest[key] = request

    def _count_outcome(self, outcome: Outcome) -> None:
        route = outcome.route
        if outcome.ended == "refused" and route == NO_ROUTE:
            route = ""
        traffic = self._traffic(outcome.rules, route)
        traffic.count(outcome)
        if outcome.allowed:
            traffic.times.count_one(outcome.duration_us)
        for rule in outcome.shadow_rules:
            self._traffic((rule,), "").shadow_refused += 1
        self._count_client(self.clients, outcome.client, outcome)
        keys = _banned_keys(outcome)
        for decision in outcome.decisions:
            keys |= self._keys_of(decision.checks, outcome.client)
        for key in keys:
            self._count_client(self.keys, key, outcome)

    def _count_client(self, clients: Clients, key: str, outcome: Outcome) -> None:
        if not outcome.allowed and outcome.ended != "refused":  # it has left before it was decided
            return
        one = clients.of(key)
        one.count(outcome)
        refusal = outcome.refusal
        if refusal is None:
            last = outcome.decisions[-1]
            clients.latest[key] = outcome.client, last.checks, outcome.route, outcome.duration_us
        elif refusal.reason is not Reason.UNAVAILABLE:
            one.route = outcome.route
            one.rule, one.limits = _refused(refusal, outcome.rules)
            if one.rule in one.refused_by or len(one.refused_by) < MAX_REFUSERS:
                one.refused_by[one.rule] = one.refused_by.get(one.rule, 0) + 1
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
        if name not in self._names and len(self._names) >= MAX_SERIES:
            name = OTHERS
            self.is_full = True
        self._names.add(name)
        return self.series.of(name)


def _banned_keys(outcome: Outcome) -> set[str]:
    """Return the key whose ban refused a request, if it stands for no address: bans of networks concern clients."""
    refusal = outcome.refusal
    if refusal is None or refusal.ban is None or refusal.ban.key == outcome.client:
        return set()
    try:
        ip_network(refusal.ban.key)
    except ValueError:
        return {refusal.ban.key}
    return set()


def _counted(key: str, checks: Sequence[Check]) -> tuple[str, str]:
    """Return the rule that counted a request by a key, and its limits; else the first rule that counted it."""
    for bucket, counted, _ in checks:
        if counted == key:
            return bucket.label, _text_of(bucket)
    if not checks:
        return "", ""
    return checks[0][0].label, _text_of(checks[0][0])


def _refused(refusal: Decision, rules: Sequence[str]) -> tuple[str, str]:
    """Return the rule, the list or the maker of the ban that refused a request, and the limits of the rule."""
    if not rules:
        return refusal.by, ""
    for bucket, _, _ in refusal.checks:
        if bucket.label == rules[0]:
            return rules[0], _text_of(bucket)
    return rules[0], ""


def _text_of(bucket: Bucket) -> str:
    """Return the limits of a bucket, with the amounts that are in force."""
    return "; ".join(map(str, bucket.limits))


def _written(one: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the fields of an object that are neither 0 nor empty."""
    found = {name: getattr(one, name) for name in names}
    return {name: value for name, value in found.items() if value}


def _read(line: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the fields that are known, of those that were written."""
    return {name: line[name] for name in names if name in line}


def encoded(value: object) -> bytes:
    """Return the row for a value of JSON."""
    return zlib.compress(json.dumps(value, separators=(",", ":")).encode(), 1)


def decoded(row: bytes) -> Any:
    """Return the value in a row."""
    return json.loads(zlib.decompress(row))
