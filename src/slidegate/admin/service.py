"""The operations of the admin API: what operators see of a limiter, and change about it, in all of its workers.

Each method is an operation, from its `parameters` to one of the `views`; `api` makes the OpenAPI document of both.
"""

from __future__ import annotations

import base64
import heapq
import json
import platform
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Final, Generic, Literal, TypeVar

import anyio

from .. import core
from ..core.addresses import parse_network
from ..core.bans.ban import MAX_REASON, Ban, ban_key
from ..core.bans.policy import hand_ban_key
from ..core.decision import LimitSet
from ..core.errors import ConfigurationError, StoreError
from ..core.logs import escaped
from ..limiter import Limiter
from ..stats import Statistics, Stats
from ..stats.statistics import recording_of
from ..web.keys import SENT_BY_NAME
from . import parameters, views
from .activity import (
    SHADOW_WINDOW_S,
    WINDOW_S,
    ActivityRecorder,
    ClientActivity,
    LoggedEvent,
    bucket_name,
    short_name,
)
from .auth import Identity
from .messages import AdminError, View
from .parameters import InvalidParameters

Method = Literal["GET", "POST", "PATCH", "DELETE"]
Do = Callable[[Any, Any, Identity], Awaitable[View]]
T = TypeVar("T")

MAX_COMPARED: Final = 100
"""How many of the busiest clients are compared by nearness."""
_S: Final = 1_000_000
_MAX_REFUSALS: Final = 50
_MAX_SHADOWED: Final = 20
_MAX_WORKERS: Final = 200
_KEPT: Final = 2_000


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the API.

    Attributes:
        method: The method of its requests.
        path: The path below the mount.
        do: Answers a request: takes the service, the parameters and who asks.
        status: The status of an answer.
        reads: Whether it changes nothing, whatever its method is.
        errors: Further statuses that it answers with.
    """

    method: Method
    path: str
    do: Do
    status: int = 200
    reads: bool = False
    errors: tuple[int, ...] = ()


OPERATIONS: Final[list[Operation]] = []
"""All operations, in the order of the document."""


def operation(method: Method, path: str, **more: Any) -> Callable[[T], T]:
    """Return a decorator that adds a method of the service to the operations."""

    def add(do: Any) -> Any:
        OPERATIONS.append(Operation(method, path, do, **{"reads": method == "GET", **more}))
        return do

    return add


class AdminService:
    """Answers what operators ask about one limiter.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._activity = ActivityRecorder.of(limiter)
        self._statistics = Statistics(limiter)

    # -- to see --------------------------------------------------------------------------------------------------------

    @operation("GET", "/stats")
    async def get_stats(self, params: parameters.StatsQuery, by: Identity) -> views.Stats:
        """Stats of all workers, by rule and by route."""
        return views.Stats.model_validate(await self._statistics.stats_all(params.window))

    @operation("GET", "/history")
    async def get_history(self, params: parameters.HistoryQuery, by: Identity) -> views.History:
        """Stats step by step, for charts."""
        if params.rule is not None and params.route is not None:
            raise InvalidParameters(("route", "give a rule or a route, not both"))
        return views.History.of(await self._statistics.chart_all(params.window, rule=params.rule, route=params.route))

    @operation("GET", "/rules")
    async def get_rules(self, params: parameters.NoParameters, by: Identity) -> views.Rules:
        """The rules in force, by middleware."""
        middlewares, events = views.middlewares_of(self._limiter), self._activity.events()
        return views.Rules(middlewares=[views.Middleware.of(name, one, events) for name, one in middlewares.items()])

    @operation("GET", "/clients")
    async def get_clients(self, params: parameters.ClientsQuery, by: Identity) -> views.Clients:
        """The busiest clients, and how near they are to their limits."""
        if params.sort == "nearness":
            page = await self._by_nearness(params.limit, params.cursor)
            return views.Clients(window_s=WINDOW_S, clients=page.entries(), next=page.next())
        some: Page[ClientActivity] = Page(params.limit, params.cursor, [0, ""])
        for one in (await self._activity.all_workers()).clients:
            times = one.refused if params.sort == "refused" else one.requests
            if times:
                some.add([-times, one.key], one)
        clients = await self._nearest(some.entries())
        return views.Clients(window_s=WINDOW_S, clients=clients, next=some.next())

    @operation("GET", "/client")
    async def get_client(self, params: parameters.KeyQuery, by: Identity) -> views.Client:
        """Everything about one client."""
        limiter = self._limiter
        ban_key(params.key)
        key = limiter.key_for(params.key)
        ban = await self._ban_of(key) or await limiter.banned(key)
        names = self._activity.rules_of(key)
        recent = {bucket.rule for name in names if (bucket := self._activity.bucket(name)) is not None}
        refusals = (await self._activity.all_workers()).refusals
        return views.Client(
            key=key,
            ban=None if ban is None else views.Ban.model_validate(ban),
            windows=views.Window.of_key(await limiter.inspect(key), recent),
            refusals=[one for one in refusals if key in (one.key, one.client)][:_MAX_REFUSALS],
        )

    @operation("GET", "/refusals")
    async def get_refusals(self, params: parameters.RefusalsQuery, by: Identity) -> views.Refusals:
        """The last refusals of all clients, newest first."""
        return views.Refusals(refusals=(await self._activity.all_workers()).refusals[: params.limit])

    @operation("GET", "/shadow")
    async def get_shadow(self, params: parameters.ShadowQuery, by: Identity) -> views.Shadow:
        """How many requests shadow rules would have refused."""
        stats = await self._statistics.stats_all(params.window)
        shadowed = (await self._activity.all_workers()).shadowed
        shadows = [rule for rule, _ in views.buckets_of(self._limiter) if rule.action == "shadow"]
        limits = {rule.label: [str(limit) for limit in rule.all_limits] for rule in shadows}
        names = dict.fromkeys([*limits, *(rule for rule, _ in shadowed)])
        return views.Shadow(
            window_s=stats.total.seen.span_us / _S,
            clients_window_s=SHADOW_WINDOW_S,
            rules=[_shadow(name, limits.get(name, []), stats, shadowed) for name in names],
        )

    @operation("GET", "/bans")
    async def get_bans(self, params: parameters.BansQuery, by: Identity) -> views.Bans:
        """The bans in force, newest first, in pages."""
        # All bans are looked at, in turns between which other tasks run, and few more are held than the page has.
        page: Page[Ban] = Page(params.limit, params.cursor, [0, ""])
        wanted, total = (params.q or "").casefold(), 0
        async for ban in self._limiter.bans():
            texts = (ban.key, ban.reason, ban.by)
            if params.policy in (None, ban.by) and any(wanted in text.casefold() for text in texts):
                total += 1
                page.add([-ban.wall_us, ban.key], ban)
        return views.Bans(bans=[views.Ban.model_validate(ban) for ban in page.entries()], next=page.next(), total=total)

    # -- to change -----------------------------------------------------------------------------------------------------

    @operation("POST", "/bans", status=201, errors=(409,))
    async def ban(self, params: parameters.NewBan, by: Identity) -> views.Ban:
        """Ban an address, a network or a key; a ban that it has is replaced. Of two at once the last one holds."""
        hand_ban_key(params.target)
        if not params.force and self._is_own(params.target, by):
            raise AdminError(
                409,
                "own",
                f"{escaped(params.target, 80)!r} is or holds the address that this request comes from, so the ban "
                'would keep you out; "force": true bans it all the same',
            )
        ban = await self._limiter.ban(params.target, params.duration, reason=params.reason, by=by.name)
        return views.Ban.model_validate(ban)

    @operation("PATCH", "/bans", errors=(404,))
    async def extend_ban(self, params: parameters.BanLength, by: Identity) -> views.Ban:
        """Set how long a ban lasts from now on."""
        ban = await self._ban_of(self._limiter.key_for(params.target))
        if ban is None:
            raise AdminError(404, "missing", f"{escaped(params.target, 80)!r} has no ban")
        return views.Ban.model_validate(
            await self._limiter.ban(params.target, params.duration, reason=ban.reason, by=by.name)
        )

    @operation("DELETE", "/bans", errors=(404,))
    async def lift_ban(self, params: parameters.TargetQuery, by: Identity) -> views.Lifted:
        """Take a ban back, and forgive strikes."""
        if not await self._limiter.unban(params.target, by=by.name):
            raise AdminError(404, "missing", f"{escaped(params.target, 80)!r} has no ban and no strikes")
        return views.Lifted(target=self._limiter.key_for(params.target))

    @operation("POST", "/keys/find", reads=True)
    async def find_key(self, params: parameters.ClientValue, by: Identity) -> views.Key:
        """The key under which a value is counted that clients send."""
        return views.Key(key=self._limiter.key_for(SENT_BY_NAME[params.kind](params.name).of(params.value)))

    @operation("POST", "/keys/reset")
    async def reset_key(self, params: parameters.KeyBody, by: Identity) -> views.Reset:
        """Forget the windows of a key under every rule."""
        forgotten = await self._limiter.reset(params.key)
        return views.Reset(key=self._limiter.key_for(params.key), forgotten=forgotten)

    @operation("POST", "/keys/charge", errors=(404,))
    async def charge_key(self, params: parameters.Charge, by: Identity) -> views.Charged:
        """Charge units to a key under a rule, even beyond the limit."""
        buckets = self._buckets_called(params.rule)
        if not buckets:
            named = escaped(params.rule, 80)
            raise AdminError(
                404, "missing", f"no rule with fixed limits is called {named!r}; GET rules has their names"
            )
        if len(buckets) > 1:
            identities = ", ".join(repr(bucket.rule) for bucket in buckets[:8])
            message = f"several rules are called {escaped(params.rule, 80)!r}; give an identity: {identities}"
            raise InvalidParameters(("rule", message))
        key = self._limiter.key_for(params.key)
        decided = await self._limiter.charge_all(((buckets[0], key, params.units),))
        return views.Charged(key=key, windows=views.WindowNow.all_of(decided))

    # -- what there is -------------------------------------------------------------------------------------------------

    @operation("GET", "/lists")
    async def get_lists(self, params: parameters.NoParameters, by: Identity) -> views.Lists:
        """The block and allow lists."""
        events = self._activity.events()
        middlewares = views.middlewares_of(self._limiter).items()
        return views.Lists(lists=[one for name, app in middlewares for one in views.List.all_of(name, app, events)])

    @operation("GET", "/events")
    async def get_events(self, params: parameters.EventsQuery, by: Identity) -> views.Events:
        """The last events of all workers, newest first; behind `after`, the first that came since."""
        seen: dict[str, int] = {} if params.after is None else _unpacked("after", params.after, {})
        if not all(isinstance(number, int) for number in seen.values()):
            raise InvalidParameters(("after", "expected the `next` of an earlier answer"))
        events: list[views.Event] = []
        for worker, event in _in_time((await self._activity.all_workers()).events, dict(seen)):
            if params.after is not None and len(events) == params.limit:
                break
            name = short_name(worker)
            seen[name] = event.number
            if params.kind in (None, event.kind):
                rest = event.model_dump(exclude={"number"})
                events.append(views.Event(seq=f"{name}.{event.number}", worker=worker, **rest))
        latest = dict([*seen.items()][-_MAX_WORKERS:])
        return views.Events(events=events[: -params.limit - 1 : -1], next=_packed(latest))

    @operation("GET", "/config")
    async def get_config(self, params: parameters.NoParameters, by: Identity) -> views.Config:
        """The settings, and which workers there are."""
        engine = self._limiter.engine
        failover, middlewares = engine.failover, views.middlewares_of(self._limiter)
        return views.Config(
            version=release(),
            python=platform.python_version(),
            compiled=core.compiled,
            store=escaped(repr(self._limiter.store), MAX_REASON),
            per_process=engine.per_process,
            deadline_s=None if failover is None else failover.deadline_us / _S,
            on_error=None if failover is None else failover.on_error,
            middlewares=[views.MiddlewareSummary(name=name, rules=len(one.rules)) for name, one in middlewares.items()],
            findings=[
                views.Finding(code=finding.code, message=finding.message, middleware=name)
                for name, middleware in middlewares.items()
                for finding in [*middleware.findings]
            ],
            workers=[
                views.Worker.model_validate(worker)
                for worker in await recording_of(self._limiter).all_workers.workers()
            ],
        )

    # ------------------------------------------------------------------------------------------------------------------

    async def nearest_clients(self, limit: int) -> list[views.BusyClient]:
        """Return the clients that are nearest to a limit."""
        return (await self._by_nearness(limit, None)).entries()

    async def _by_nearness(self, limit: int, cursor: str | None) -> Page[views.BusyClient]:
        page: Page[views.BusyClient] = Page(limit, cursor, [0.0, ""])
        busy = (await self._activity.all_workers()).clients
        for client in await self._nearest(busy[:MAX_COMPARED]):
            share = client.nearest.share if client.nearest is not None else float(client.banned)
            page.add([-share, client.key], client)
        return page

    async def _nearest(self, clients: list[ClientActivity]) -> list[views.BusyClient]:
        """Return clients, each with the limit that it is nearest to. The store is asked about all of them together."""
        buckets = {bucket_name(bucket): bucket for _, bucket in views.buckets_of(self._limiter) if bucket.limits}
        nearest: dict[str, views.BusyClient] = {}
        failed: list[StoreError] = []

        async def ask(client: ClientActivity) -> None:
            try:
                nearest[client.key] = await self._nearest_of(client, buckets)
            except StoreError as error:
                failed.append(error)

        async with anyio.create_task_group() as group:
            for client in clients:
                group.start_soon(ask, client)
        if failed:
            raise failed[0]
        return [nearest[client.key] for client in clients]

    async def _nearest_of(self, client: ClientActivity, named: dict[str, LimitSet]) -> views.BusyClient:
        key = client.key
        buckets = [named.get(name) or self._activity.bucket(name) for name in client.rules]
        checks = tuple((bucket, key, 1) for bucket in buckets if bucket is not None and bucket.limits)
        nearest, banned = None, False
        if checks:
            decided = await self._limiter.engine.peek(checks, ())
            banned = decided.ban is not None
            windows = views.WindowNow.all_of(decided, 1)
            if windows:
                window = max(windows, key=lambda window: window.used / window.amount)
                nearest = views.Nearest(
                    rule=window.rule,
                    limit=window.limit,
                    used=window.used,
                    amount=window.amount,
                    share=window.used / window.amount,
                )
        return views.BusyClient(
            key=key, requests=client.requests, refused=client.refused, nearest=nearest, banned=banned
        )

    async def _ban_of(self, key: str) -> Ban | None:
        """Return the ban of exactly this key or network, whatever other bans refuse it."""
        return await self._limiter.engine.find_ban((key,))

    def _is_own(self, target: str, by: Identity) -> bool:
        """Tell whether a target is, or holds, the address that a request comes from."""
        key = self._limiter.key_for(target)
        if by.address is None:
            return key == by.key
        try:
            version, first, last = parse_network(key)
        except ConfigurationError:
            return False
        return version == by.address[0] and first <= by.address[1] <= last

    def _buckets_called(self, rule: str) -> list[LimitSet]:
        """Return the buckets of a rule, by its name or its identity; those of an identity go before those of a name."""
        named: dict[str, LimitSet] = {}
        exact: dict[str, LimitSet] = {}
        for _, bucket in views.buckets_of(self._limiter):
            if bucket.held or not bucket.limits:
                continue
            if bucket.rule == rule:
                exact[bucket_name(bucket)] = bucket
            if bucket.label == rule:
                named[bucket_name(bucket)] = bucket
        return list((exact or named).values())


def release() -> str:
    """Return the version of the package, which nobody here imports."""
    version: str = sys.modules["slidegate"].__version__
    return version


def _shadow(name: str, limits: list[str], stats: Stats, shadowed: dict[tuple[str, str], int]) -> views.ShadowRule:
    would_refuse = stats.rules[name].shadow_refused if name in stats.rules else 0
    passed = stats.total.passed
    clients = [(key, count) for (rule, key), count in shadowed.items() if rule == name]
    clients.sort(key=lambda entry: (-entry[1], entry[0]))
    return views.ShadowRule(
        name=name,
        limits=limits,
        passed=passed,
        would_refuse=would_refuse,
        share=min(would_refuse / passed, 1.0) if passed else 0.0,
        clients=[views.ShadowClient(key=key, count=count) for key, count in clients[:_MAX_SHADOWED]],
    )


def _in_time(workers: dict[str, list[LoggedEvent]], seen: dict[str, int]) -> Iterator[tuple[str, LoggedEvent]]:
    """Yield (worker, event) of those that were not seen, oldest first; those of one worker in their order."""
    streams = [
        [(worker, event) for event in events if event.number > seen.get(short_name(worker), 0)]
        for worker, events in workers.items()
    ]
    return heapq.merge(*streams, key=lambda one: one[1].at)


# -- pages -------------------------------------------------------------------------------------------------------------


class Page(Generic[T]):
    """The entries behind a place that come first, of any number of entries in any order.

    A page ends at an entry, and the next one begins behind it in an order that never changes: nothing is skipped and
    nothing shown twice, whatever comes or goes meanwhile. Nothing is kept between two pages.

    Args:
        limit: How many entries the page has at most.
        cursor: The `next` of the page before, None for the first page.
        like: A place such as the entries have, to see that the cursor is one of this list.

    Raises:
        InvalidParameters: The cursor is none of this list.
    """

    def __init__(self, limit: int, cursor: str | None, like: list[Any]) -> None:
        self._limit = limit
        self._after = None if cursor is None else _unpacked("cursor", cursor, like)
        self._found: list[tuple[list[Any], T]] = []

    def add(self, place: list[Any], entry: T) -> None:
        """Take an entry in, at its place in the order, if it may belong to the page."""
        if self._after is None or place > self._after:
            self._found.append((place, entry))
            if len(self._found) > _KEPT:
                self._found = self._first()

    def entries(self) -> list[T]:
        """Return the entries in their order."""
        return [entry for _, entry in self._first()[: self._limit]]

    def next(self) -> str | None:
        """Return the cursor of the next page; None if this is the last one."""
        first = self._first()
        return _packed(first[self._limit - 1][0]) if len(first) > self._limit else None

    def _first(self) -> list[tuple[list[Any], T]]:
        return heapq.nsmallest(self._limit + 1, self._found, key=itemgetter(0))


def _packed(value: Any) -> str:
    """Return a value as an opaque text, to hand out and take back."""
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


def _unpacked(name: str, text: str, like: Any) -> Any:
    """Return the value of a text that `_packed` returned.

    Raises:
        InvalidParameters: It did not, or the value is another one.
    """
    try:
        value = json.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        value = None
    kinds = [*map(type, value)] if isinstance(value, list) else None
    if type(value) is not type(like) or (isinstance(like, list) and kinds != [*map(type, like)]):
        before = "an earlier answer" if name == "after" else "the page before, or nothing for the first page"
        raise InvalidParameters((name, f"expected the `next` of {before}"))
    return value
