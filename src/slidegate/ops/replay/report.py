"""Counts what a replay decided, and measures the busiest moments of each client.

`Simulation` counts requests, refusals and clients by rule, and keeps the times of the requests of each client, eight
bytes a request. From them `measure` computes the busiest minute of each client, and what a limit would have refused, by
the same arithmetic as a limiter.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from math import ceil
from typing import Any, Final

from ... import Limit
from ...core import Reason
from ...events import Outcome
from ..slices import MINUTE_US
from .logs import AccessRecord
from .replay import Replay

MAX_REFUSED: Final = 10
QUANTILES: Final = {"50%": 0.5, "95%": 0.95, "99%": 0.99, "99.9%": 0.999}
MAX_TRIED: Final = 7
_ROUND: Final = [0, *(digit * 10**power for power in range(8) for digit in (1, 2, 5))]
"""The amounts whose refusals are shown."""
_KINDS: Final = {Reason.BANNED: "ban", Reason.BLOCKED: "block"}
Json = dict[str, Any]


@dataclass
class RuleCounts:
    """The counts of one rule, or of what refuses without counting.

    Attributes:
        requests: The requests that it counted, if it is a limit.
        refused: The requests that it refused, or would have refused in shadow.
        clients: The clients that it refused or banned, or would have in shadow.
    """

    requests: int = 0
    refused: int = 0
    clients: set[str] = field(default_factory=set)


class Simulation:
    """Replays records, and counts the results.

    Args:
        replay: The replay, whose rules have rows even if no request meets them.

    Attributes:
        requests: The number of HTTP requests.
        refused_before: The number of those that were logged with the status 429.
        clients: The times of the requests of each client, in microseconds, ascending.
        refused: The number of refused requests of each refused client.
        rows: The counts by kind and name: ``limit``, ``shadow`` and ``block`` rules, ``ban`` and ``shadow ban``
            policies, and the ``list``.
    """

    def __init__(self, replay: Replay) -> None:
        self._replay = replay
        self.requests = self.refused_before = self._first_us = 0
        self.clients: defaultdict[str, array[int]] = defaultdict(partial(array, "q"))
        self.refused = Counter[str]()
        self.rows = defaultdict[tuple[str, str], RuleCounts](RuleCounts)
        for middleware in replay.middlewares:
            for rule in middleware.rules:
                if rule.counts or rule.blocks:
                    self.rows[rule.action, rule.label] = RuleCounts()

    async def add(self, record: AccessRecord) -> None:
        """Replay an HTTP request and count the result."""
        replayed = await self._replay.play(record)
        self.requests += 1
        self.refused_before += record.status == 429
        self._first_us = self._first_us or self._replay.now_us
        client = replayed.client
        self.clients[client].append(self._replay.now_us)
        if replayed.outcome is not None:
            self._count(replayed.outcome)
        for event in replayed.events:
            if event.kind == "shadow_refused":
                self._refuse("shadow", event.details["rule"], client)
            elif event.kind == "banned":
                self.rows["ban", str(event.details["by"])].clients.add(client)
            elif event.kind == "shadow_banned":
                self.rows["shadow ban", str(event.details["policy"])].clients.add(client)

    def _count(self, outcome: Outcome) -> None:
        """Count a request with the rules that counted or refused it."""
        counted = set[str]()
        for decision in outcome.decisions:
            if decision.reason not in _KINDS:  # a client that is banned or blocked is counted by no rule
                counted |= {bucket.label for bucket, _, _ in decision.checks}
        for label in counted:
            self.rows["limit", label].requests += 1
        if outcome.refusal is None:
            return
        # Some rules refused it, or else a list or a ban.
        self.refused[outcome.client] += 1
        kind = _KINDS.get(outcome.reason, "limit")
        if outcome.reason is Reason.BLOCKED and not outcome.rules:
            kind = "list"
        for name in outcome.rules or [outcome.refusal.by]:
            self._refuse(kind, name, outcome.client)

    def _refuse(self, kind: str, name: object, client: str) -> None:
        """Count one refusal in the row of what refused."""
        row = self.rows[kind, str(name)]
        row.refused += 1
        row.clients.add(client)

    def value(self) -> Json:
        """Return all results, ready for JSON; of the refused clients those with the most refused requests."""
        refused = self.refused.total()
        rules = []
        for (kind, name), row in self.rows.items():
            requests = None  # it is unknown how many a rule in shadow or a block has matched
            if kind == "limit":
                requests = row.requests
            rules.append(
                {
                    "rule": name,
                    "kind": kind,
                    "requests": requests,
                    "refused": row.refused,
                    "refused_clients": len(row.clients),
                }
            )
        most_refused = []
        for client, count in self.refused.most_common(MAX_REFUSED):
            most_refused.append({"client": client, "requests": len(self.clients[client]), "refused": count})
        return {
            "requests": self.requests,
            "clients": len(self.clients),
            "passed": self.requests - refused,
            "refused": refused,
            "refused_clients": len(self.refused),
            "from": self._first_us / 1_000_000,
            "until": self._replay.now_us / 1_000_000,
            "rules": rules,
            "most_refused": most_refused,
        }


# -- the busiest moments -----------------------------------------------------------------------------------------------


def measure(times_us: Mapping[str, Sequence[int]]) -> Json:
    """Return how busy clients were in their busiest minutes, and what limits would have refused, ready for JSON.

    Args:
        times_us: The times of the requests of each client, ascending.
    """
    by_client = times_us.values()
    peaks = sorted(map(peak, by_client))
    span_us = max(times[-1] for times in by_client) - min(times[0] for times in by_client)
    return {
        "requests": sum(map(len, by_client)),
        "clients": len(times_us),
        "span_s": span_us / 1_000_000,
        **{name: quantile(peaks, share) for name, share in QUANTILES.items()},
        "most": peaks[-1],
        "would_refuse": [refused_by(amount, by_client) for amount in _tried(peaks)],
    }


def _tried(peaks: Sequence[int]) -> Sequence[int]:
    """Return amounts around the busier clients whose refusals are shown, given the busiest minute of each."""
    low = quantile(peaks, 0.95) / 2.5
    tried = []
    for below, amount in pairwise(_ROUND):
        if low < amount and below < peaks[-1]:
            tried.append(amount)
    return tried[:MAX_TRIED]


def refused_by(amount: int, times_us: Iterable[Sequence[int]]) -> Json:
    """Return how many clients and requests a limit a minute would have refused, exactly as a limiter does."""
    limit = Limit(amount, "1m")
    clients = requests = 0
    for times in times_us:
        if len(times) <= amount:  # it refuses none of them
            continue
        ring = b""
        refused = 0
        for now_us in times:
            ring, (_, _, _, wait_us) = limit.counter.spend(ring, now_us, 1)
            refused += wait_us > 0
        requests += refused
        clients += refused > 0
    return {"limit": str(limit), "clients": clients, "requests": requests}


def peak(times_us: Sequence[int]) -> int:
    """Return the most of these times, in ascending order, within any minute."""
    most = first = 0
    for index, time_us in enumerate(times_us):
        while times_us[first] <= time_us - MINUTE_US:
            first += 1
        most = max(most, index + 1 - first)
    return most


def quantile(values: Sequence[int], share: float) -> int:
    """Return the smallest of sorted values that at least a share of them do not exceed."""
    return values[max(ceil(round(share * len(values), 6)) - 1, 0)]
