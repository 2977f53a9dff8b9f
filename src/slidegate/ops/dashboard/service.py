"""What the dashboard reads of a limiter. All viewers share each answer, so that many cost the store as much as one.

    view or JSON API --> Service --> cache, by what is asked --> statistics, bans, changes, rules of all workers

The parts of an answer are read at the same time, and never for one client after the other.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from time import monotonic, time
from typing import Any, Final, NamedTuple, TypeVar

import anyio
from anyio.lowlevel import checkpoint

from ... import Limiter, StoreError
from ...core import Ban
from ...limiter import Action, Override, Publication, keys_refusing
from ..explain import Facts, facts_in
from ..kinds import EVERYONE
from ..published_rules import rules_of
from ..rows import key_of, span
from ..slices import CLIENTS, KEYS, Clients, read_events, read_ranking, read_stats
from ..statistics import ClientTraffic, LoggedEvent, Ranking, Statistics
from ..tasks import together
from .counts import Counts
from .line import MEANWHILE, ClientRow, Line, Refusals, caution_of, line_of, refusals_of

WINDOW: Final = "5m"
WINDOWS: Final = (WINDOW, "1h", "6h", "24h")
"""The windows to which the page has links."""
MAX_BANS: Final = 1_000
MAX_ANSWERS: Final = 64
_NETWORKS: Final = re.compile(r"asn:.*|.*\.0/24|.*/48")
"""The networks by which clients are grouped: operators, and as many addresses as one site usually has."""
FRESH_S: Final = 2.0
"""How long an answer is used, or four times as long as it took, if that is longer."""

T = TypeVar("T")


class Client(NamedTuple):
    """A client.

    Attributes:
        ban: The ban in force that it falls under; None for none.
        facts: A row for each limit, list and ban that it can meet.
    """

    ban: Ban | None
    facts: Facts


class Bans(NamedTuple):
    """The bans in force.

    Attributes:
        all: Every one, as the store yields them.
        by_key: Of each key the one that ends last.
        newest: The newest, at most `MAX_BANS`.
    """

    all: Sequence[Ban]
    by_key: Mapping[str, Ban]
    newest: Sequence[Ban]

    def refusing(self, limiter: Limiter, key: Any) -> Ban | None:
        """Return, of those that refuse a key, the one that ends last; None for none."""
        refusing = [self.by_key[banned] for banned in keys_refusing(limiter, key) if banned in self.by_key]
        return max(refusing, key=_end_of, default=None)


def _end_of(ban: Ban) -> float:
    return ban.until_us or inf


@dataclass
class _Answer:
    """An answer, or the failure of the store, that viewers share while it is fresh.

    Attributes:
        lock: Held by who asks.
        value: The answer, or the failure.
        until_s: Until when it is fresh, by the monotonic clock.
    """

    lock: anyio.Lock = field(default_factory=anyio.Lock)
    value: Any = None
    until_s: float = 0.0


class Service:
    """Reads one limiter for all viewers."""

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self._statistics = Statistics.of(limiter)
        self._answers: dict[Any, _Answer] = {}

    async def _shared(self, ask: Callable[..., Awaitable[T]], *arguments: Any) -> T:
        """Return what a function returns for some arguments: a fresh answer that viewers share, or else a new one."""
        if len(self._answers) > MAX_ANSWERS:
            self._answers.clear()
        answer = self._answers.setdefault((ask, *arguments), _Answer())
        async with answer.lock:
            began_s = monotonic()
            if began_s >= answer.until_s:
                try:
                    answer.value = await ask(*arguments)
                except StoreError as error:
                    answer.value = error
                now_s = monotonic()
                answer.until_s = now_s + max(FRESH_S, 4 * (now_s - began_s))
        if isinstance(answer.value, StoreError):
            raise answer.value.with_traceback(None)  # it is raised for each viewer
        value: T = answer.value
        return value

    def forget(self) -> None:
        """Drop all answers after a change, also those that are being read: the next viewer gets new ones."""
        self._answers.clear()

    # -- what was counted ----------------------------------------------------------------------------------------------

    async def publish(self) -> int:
        """Write what this worker has counted; return the store's time, up to which counts are read."""
        return await self._shared(self._statistics.publish)

    async def counts(self, window: str, rule: str = "", route: str = "") -> Counts:
        """Return what was counted in a window, of one rule or route if one is named.

        Raises:
            ConfigurationError: The window is not a duration, or longer than 24 hours.
        """
        up_to_us = 0
        if window == WINDOW:  # whose counts stand beside those of clients of the same time
            up_to_us = await self.publish()
        return await self._shared(self._read_counts, window, rule, route, up_to_us)

    async def _read_counts(self, window: str, rule: str, route: str, up_to_us: int) -> Counts:
        """Read counts up to a time that counts of clients share; for 0, up to now."""
        now_us = up_to_us or await self.publish()
        stats = await read_stats(self.limiter, window, rule, route, now_us)
        at = time()
        return Counts(window, stats, at - (now_us - stats.start_us) / 1_000_000, at)

    async def ranking(self, kind: str) -> Ranking:
        """Return the `CLIENTS` of the last five minutes, of the same slices as their counts; or the `KEYS`."""
        now_us = await self.publish()
        return await self._shared(read_ranking, self.limiter, kind, now_us)

    async def networks(self) -> list[ClientRow]:
        """Return the networks and operators of several clients, those first that are refused most.

        Their numbers are at least so high: workers list 100 clients of a minute.
        """
        return await self._shared(self._read_networks)

    async def _read_networks(self) -> list[ClientRow]:
        networks = Clients()
        clients = Counter[str]()
        ranking, _ = await together(self.ranking(CLIENTS), self.bans())  # bans for `rows`, in the same round trip
        for client in ranking.each():
            for key in keys_refusing(self.limiter, client.key):
                if _NETWORKS.fullmatch(key):
                    networks[key].add(client)
                    clients[key] += 1
            await checkpoint()  # after a look-up
        several = [network for network in networks.values() if clients[network.key] > 1]
        return await self.rows(several, lambda network: f"at least {clients[network.key]:,} clients")

    async def line(self) -> Line:
        """Return the line on top of the page, and the rows that it is computed from."""
        middlewares = self.limiter.middlewares
        if self.limiter.is_failing:
            ways = {bound.rule.on_error for middleware in middlewares for bound in middleware.policy.rules.bound()}
            meaning = ", or by rule ".join(MEANWHILE[way] for way in MEANWHILE if way in {*ways, self.limiter.on_error})
            return Line("away", f"The store is away{self._statistics.outage}: {meaning}; its bans do not hold")
        try:
            changes, refusals = await together(self.overrides(), self._shared(self._read_refusals))
        except StoreError:
            return Line("away", "The store did not answer, so nothing is known of the last five minutes")
        for change in changes:
            if change.name == "*":
                left = span(change.until_us / 1_000_000 - time())
                return Line("off", f"Limits are off for another {left}, by {change.by}: every request passes", refusals)
        if not all(middleware.is_enabled for middleware in middlewares):
            return Line(
                "off",
                "A middleware of this worker is off (enabled=, SLIDEGATE_ENABLED): all requests pass it",
                refusals,
            )
        return line_of(refusals)

    async def _read_refusals(self) -> Refusals:
        """Read who was refused in the last five minutes."""
        counts, ranking, published, _ = await together(  # bans for `rows`, in the same round trip
            self.counts(WINDOW), self.ranking(CLIENTS), self.published(), self.bans()
        )
        of_everyone = {rule.rule for rule in rules_of(published) if rule.key == EVERYONE}
        proxies = [middleware.policy.address.networks for middleware in self.limiter.middlewares]
        rows = await self.rows(ranking.refused, partial(caution_of, of_everyone=of_everyone, proxies=proxies))
        return refusals_of(rows, counts.stats.total.refused)

    async def rows(
        self, clients: Iterable[ClientTraffic], caution: Callable[[ClientTraffic], str] = lambda _: ""
    ) -> list[ClientRow]:
        """Return the rows of some clients, the most refused first, with why to look at each before it is banned."""
        bans = await self.bans()
        rows = []
        for client in clients:
            rule = client.rule
            rows.append(
                ClientRow(
                    client.key,
                    rule,
                    client.amounts.get(rule, ""),
                    client.refused,
                    client.requests,
                    client.refused_by,
                    bans.refusing(self.limiter, client.key) is not None,
                    caution(client),
                )
            )
            await checkpoint()  # a look-up takes up to half a millisecond
        return sorted(rows, key=lambda row: (-row.refused, -row.requests, row.key))

    async def client(self, text: str) -> Client:
        """Return what there is to know of a client.

        Raises:
            ConfigurationError: The text is no key.
        """
        key = key_of(text)
        published, overrides, bans, events, *rankings = await together(
            self.published(), self.overrides(), self.bans(), self.events(), self.ranking(CLIENTS), self.ranking(KEYS)
        )
        facts = await facts_in(self.limiter, key, published, overrides, bans.all, events, rankings)
        return Client(bans.refusing(self.limiter, key), facts)

    # -- what is in force ----------------------------------------------------------------------------------------------

    async def bans(self) -> Bans:
        """Return the bans."""
        return await self._shared(self._read_bans)

    async def _read_bans(self) -> Bans:
        bans = list[Ban]()
        by_key: dict[str, Ban] = {}
        newest = list[Ban]()
        async for ban in self.limiter.bans():
            bans.append(ban)
            by_key[ban.key] = max(ban, by_key.get(ban.key, ban), key=_end_of)
            newest.append(ban)
            if len(newest) > 2 * MAX_BANS:  # so that no step grows with their number
                newest = _newest_of(newest)
        return Bans(bans, by_key, _newest_of(newest))

    async def overrides(self) -> list[Override]:
        """Return the changes of limits in force."""
        return await self._shared(self.limiter.overrides)

    async def published(self) -> list[Publication]:
        """Return what workers have published of their rules."""
        return await self._shared(self.limiter.published)

    async def history(self) -> list[Action]:
        """Return what operators and commands have done, the last one first."""
        return await self._shared(self.limiter.history)

    async def events(self) -> list[LoggedEvent]:
        """Return the latest events of all workers, the newest first."""
        await self.publish()
        return await self._shared(read_events, self.limiter)


def _newest_of(bans: Iterable[Ban]) -> list[Ban]:
    return sorted(bans, key=lambda ban: (-ban.since_us, ban.key))[:MAX_BANS]
