"""The operations of the admin API: operators inspect and change a limiter in all of its workers.

Each operation is a method that takes one of the `parameters` and returns one of the `views`.
"""

from __future__ import annotations

import platform
import sys
from bisect import insort
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Literal, TypeVar, get_type_hints

import anyio.to_thread

from .. import core
from ..core.addresses import address_key, parse_network
from ..core.bans.ban import MAX_REASON, Ban, ban_key
from ..core.bans.policy import hand_ban_key
from ..core.decision import LimitSet
from ..core.errors import ConfigurationError, StoreError
from ..core.logs import escaped
from ..limiter import Limiter
from ..limiter.operators import described, operator_of
from ..stats import Statistics, Stats
from ..stats.statistics import recording_of
from . import parameters, views
from .activity import SHADOW_WINDOW_S, WINDOW_S, ActivityRecorder, ClientActivity, bucket_name
from .guard import Sender
from .messages import AdminError, InvalidParameters, View

Method = Literal["GET", "POST", "PUT", "DELETE"]
T = TypeVar("T")

MAX_COMPARED: Final = 100
"""How many of the busiest clients are sorted by nearness to a limit."""
_S: Final = 1_000_000
_MAX_REFUSALS: Final = 50
_MAX_SHADOWED: Final = 20


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of the API.

    Attributes:
        method: The HTTP method.
        path: The path below the mount.
        do: Answers a request, given the service, the parameters and the sender.
        status: The status of a successful response.
        takes: The model of the parameters.
    """

    method: Method
    path: str
    do: Callable[[Any, Any, Sender], Awaitable[View]]
    status: int
    takes: type[parameters.Parameters]


OPERATIONS: Final[list[Operation]] = []


def operation(method: Method, path: str, status: int = 200) -> Callable[[T], T]:
    """Return a decorator that registers a method of the service as an operation."""

    def add(do: Any) -> Any:
        OPERATIONS.append(Operation(method, path, do, status, get_type_hints(do)["params"]))
        return do

    return add


class AdminService:
    """Answers the requests of operators for one limiter.

    Args:
        limiter: The limiter.
    """

    def __init__(self, limiter: Limiter) -> None:
        self._limiter = limiter
        self._activity = ActivityRecorder.of(limiter)
        self._statistics = Statistics(limiter)

    # -- read ----------------------------------------------------------------------------------------------------------

    @operation("GET", "/stats")
    async def get_stats(self, params: parameters.StatsQuery, by: Sender) -> views.Stats:
        """Stats of all workers, by rule and by route."""
        stats = await self._statistics.stats_all(params.window)
        return await anyio.to_thread.run_sync(views.Stats.model_validate, stats)

    @operation("GET", "/history")
    async def get_history(self, params: parameters.HistoryQuery, by: Sender) -> views.History:
        """Stats as a time series, for charts."""
        if params.rule is not None and params.route is not None:
            raise InvalidParameters(("route", "expected a rule or a route, not both"))
        return views.History.of(await self._statistics.chart_all(params.window, rule=params.rule, route=params.route))

    @operation("GET", "/rules")
    async def get_rules(self, params: parameters.NoParameters, by: Sender) -> views.Rules:
        """The active rules, by middleware."""
        middlewares = views.middlewares_of(self._limiter).items()
        return views.Rules(middlewares=[views.Middleware.of(name, middleware) for name, middleware in middlewares])

    @operation("GET", "/clients")
    async def get_clients(self, params: parameters.ClientsQuery, by: Sender) -> views.Clients:
        """The busiest clients, and how near they are to their limits."""
        if params.sort == "nearness":
            clients = await self.nearest_clients(params.limit)
        else:
            busy = (await self._activity.all_workers()).clients
            if params.sort == "refused":
                busy = sorted((one for one in busy if one.refused), key=lambda one: (-one.refused, one.key))
            clients = await self._nearest(busy[: params.limit])
        return views.Clients(window_s=WINDOW_S, clients=clients)

    @operation("GET", "/client")
    async def get_client(self, params: parameters.KeyQuery, by: Sender) -> views.Client:
        """Everything about one client."""
        limiter = self._limiter
        ban_key(params.key)
        key = limiter.key_for(params.key)
        # Prefer the ban of exactly this key or network over others that cover it.
        ban = await limiter.engine.find_ban((key,)) or await limiter.banned(key)
        refusals = (await self._activity.all_workers()).refusals
        return views.Client(
            key=key,
            ban=None if ban is None else views.Ban.model_validate(ban),
            windows=views.Window.of_key(await limiter.inspect(key), self._activity.rules_of(key)),
            refusals=[one for one in refusals if key in (one.key, one.client)][:_MAX_REFUSALS],
        )

    @operation("GET", "/refusals")
    async def get_refusals(self, params: parameters.RefusalsQuery, by: Sender) -> views.Refusals:
        """The last refusals of all clients, newest first."""
        return views.Refusals(refusals=(await self._activity.all_workers()).refusals[: params.limit])

    @operation("GET", "/shadow")
    async def get_shadow(self, params: parameters.ShadowQuery, by: Sender) -> views.Shadow:
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
    async def get_bans(self, params: parameters.BansQuery, by: Sender) -> views.Bans:
        """The active bans, newest first, in pages."""
        since, _, key = (params.cursor or "").partition(":")
        after = (-inf, "") if params.cursor is None else (-int(since), key)
        wanted, total, matching = (params.q or "").casefold(), 0, 0
        first: list[tuple[tuple[float, str], Ban]] = []
        async for ban in self._limiter.bans():
            total += 1
            texts = (ban.key, ban.reason, ban.by)
            if params.policy not in (None, ban.by) or not any(wanted in text.casefold() for text in texts):
                continue
            matching += 1
            # This order is stable: no ban is skipped or shown twice if others are added or removed between two pages.
            place = -ban.wall_us, ban.key
            if place > after:
                insort(first, (place, ban))
                del first[params.limit + 1 :]
        page = [ban for _, ban in first[: params.limit]]
        more = len(first) > params.limit
        return views.Bans(
            bans=[views.Ban.model_validate(ban) for ban in page],
            next=f"{page[-1].wall_us}:{page[-1].key}" if more else None,
            matching=matching,
            total=total,
        )

    # -- change --------------------------------------------------------------------------------------------------------

    @operation("POST", "/bans", status=201)
    async def ban(self, params: parameters.NewBan, by: Sender) -> views.Ban:
        """Ban an address, a network or a key, replacing its ban if it has one; the last of concurrent calls wins."""
        hand_ban_key(params.target)
        if not params.force and self._is_own(params.target, by):
            detail = 'This would ban your own address; send "force": true to ban it anyway.'
            raise AdminError(409, "own", detail)
        ban = await self._limiter.ban(params.target, params.duration, reason=params.reason, by=by.user.name)
        return views.Ban.model_validate(ban)

    @operation("DELETE", "/bans")
    async def lift_ban(self, params: parameters.TargetQuery, by: Sender) -> views.Lifted:
        """Remove a ban and the strikes of its key."""
        if not await self._limiter.unban(params.target, by=by.user.name):
            raise AdminError(404, "missing", f"{parameters.in_json(params.target)} has no ban and no strikes")
        return views.Lifted(target=self._limiter.key_for(params.target))

    @operation("GET", "/limits")
    async def get_limits(self, params: parameters.NoParameters, by: Sender) -> views.Limits:
        """The limits that are temporarily changed, in all workers."""
        return views.Limits(limits=[views.Limit.model_validate(one) for one in await self._limiter.overrides()])

    @operation("PUT", "/limits")
    async def change_limit(self, params: parameters.NewLimit, by: Sender) -> views.Limit:
        """Change the amount of a limit temporarily; the last of concurrent calls wins."""
        limiter, user = self._limiter, by.user.name
        changed = await limiter.override(
            params.name, params.limit, duration=params.duration, reason=params.reason, by=user
        )
        return views.Limit.model_validate(changed)

    @operation("DELETE", "/limits")
    async def restore_limit(self, params: parameters.LimitQuery, by: Sender) -> views.Restored:
        """Restore a limit to the amount configured in code."""
        if not await self._limiter.restore(params.name):
            raise AdminError(404, "missing", f"{parameters.in_json(params.name)} is not the name of a changed limit")
        return views.Restored(name=params.name)

    # -- what there is -------------------------------------------------------------------------------------------------

    @operation("GET", "/lists")
    async def get_lists(self, params: parameters.NoParameters, by: Sender) -> views.Lists:
        """The block and allow lists."""
        middlewares = views.middlewares_of(self._limiter).items()
        found = [views.List.all_of(name, middleware, self._activity.last_reload) for name, middleware in middlewares]
        return views.Lists(lists=[one for lists in found for one in lists])

    @operation("GET", "/events")
    async def get_events(self, params: parameters.EventsQuery, by: Sender) -> views.Events:
        """The latest events of all workers, newest first; `seq` identifies an event across calls."""
        events = (await self._activity.all_workers()).events
        return views.Events(events=[one for one in events if params.kind in (None, one.kind)][: params.limit])

    @operation("GET", "/config")
    async def get_config(self, params: parameters.NoParameters, by: Sender) -> views.Config:
        """The settings and the workers."""
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

    @operation("GET", "/user")
    async def get_user(self, params: parameters.NoParameters, by: Sender) -> views.User:
        """The user who sends the request, with the role."""
        return views.User.model_validate(by.user)

    # ------------------------------------------------------------------------------------------------------------------

    async def nearest_clients(self, limit: int) -> list[views.BusyClient]:
        """Return the clients that are nearest to a limit, nearest first."""

        def place(client: views.BusyClient) -> tuple[float, str]:
            return -client.nearest.share if client.nearest is not None else -float(client.banned), client.key

        busy = (await self._activity.all_workers()).clients[:MAX_COMPARED]
        return sorted(await self._nearest(busy), key=place)[:limit]

    async def _nearest(self, clients: list[ClientActivity]) -> list[views.BusyClient]:
        """Return clients, each with its nearest limit; the store is queried for all of them concurrently."""
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
        engine = self._limiter.engine
        operator = operator_of(key, engine.networks)
        subjects = (key, *engine.keys.learn(key)[1], *(() if operator is None else (operator,)))
        decided = await engine.peek(checks, subjects)
        return views.BusyClient(
            key=key,
            network=described(key, engine.networks),
            requests=client.requests,
            refused=client.refused,
            nearest=views.Nearest.of(decided),
            banned=decided.ban is not None or (_is_network(key) and await self._limiter.banned(key) is not None),
        )

    def _is_own(self, target: str, by: Sender) -> bool:
        """Return whether a target is, or covers, the address that a request comes from."""
        key = self._limiter.key_for(target)
        if by.address is None:
            return key == by.key
        if key == operator_of(address_key(*by.address), self._limiter.engine.networks):
            return True
        try:
            version, first, last = parse_network(key)
        except ConfigurationError:
            return False
        return version == by.address[0] and first <= by.address[1] <= last


def _is_network(key: str) -> bool:
    """Return whether a client is counted by its network, as those of IPv6 are."""
    try:
        return "/" in key and bool(parse_network(key))
    except ConfigurationError:
        return False


def release() -> str:
    """Return the version of the package, without importing its root."""
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
