"""What the dashboard reads and changes, as dictionaries that the page draws and the JSON API sends.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

import heapq
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar

import anyio
from starlette.types import Scope

from ... import (
    ConfigurationError,
    Limiter,
    Networks,
    Quota,
    SlidegateError,
    StoreError,
    client_ip,
)
from ...core import AnyLimit, Concurrency
from ...core.durations import format_duration
from ...core.logs import logger
from ..rows import KEYED, check_key, named, row_of_ban, row_of_change, row_of_window
from ..statistics import LoggedEvent, Statistics, Traffic
from .fields import BAN, BANS, CHANGE, CLIENT, LIMIT, STATISTICS, WINDOWS, read

SHORT_S: Final = 2.0
LONG_S: Final = 10.0
"""How long a snapshot of a window above 10 minutes is shared."""
MAX_CLIENTS: Final = 24
"""How many of the busiest clients are shown and compared with their limits."""
MAX_WINDOWS: Final = 5_000
"""How many windows are read for that at most."""
MAX_EVENTS: Final = 500
_SHORT: Final = frozenset({"1m", "5m", "10m"})
_S: Final = 1_000_000
_DETAILS: Final = ("key", "client", "rule", "reason", "by", "status", "policy")
"""The details of events that the page shows."""

T = TypeVar("T")
Fields: TypeAlias = Mapping[str, Any]


class Sender(NamedTuple):
    """Who sends a request.

    Attributes:
        name: The author of changes; at most 64 printable characters.
        scope: The request.
    """

    name: str
    scope: Scope


class Problem(SlidegateError):
    """A request that is answered with an error.

    Args:
        status: The status of the response.
        text: The reason as a sentence.
        headers: Further header fields.
    """

    def __init__(self, status: int, text: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.headers = dict(headers or {})


def problem_of(error: Exception) -> Problem:
    """Return the answer to an error; that to a failure names only a random number, under which it is logged."""
    if isinstance(error, Problem):
        return error
    if isinstance(error, ConfigurationError):
        return Problem(400, str(error))
    number = secrets.token_hex(8)
    if isinstance(error, StoreError):
        logger.error("request %s to the dashboard failed because the store does not answer: %r", number, error)
        return Problem(503, f"The store does not answer; the log says more under {number}.", {"retry-after": "1"})
    logger.error("request %s to the dashboard failed", number, exc_info=error)
    return Problem(500, f"The request failed; the log says why under {number}.")


class Shared(Generic[T]):
    """A value that all viewers share: made again on demand, once per interval, by one of them at a time.

    A failure of the store is shared like a value, so that viewers do not wait for the store one after the other.

    Args:
        make: Makes the value.
        interval_s: How long a value is used.
    """

    def __init__(self, make: Callable[[], Awaitable[T]], interval_s: float) -> None:
        self._make = make
        self._interval_s = interval_s
        self._lock = anyio.Lock()
        self._made: tuple[float, T | StoreError] | None = None

    async def get(self) -> T:
        """Return the value.

        Raises:
            StoreError: The store did not answer when the value was made.
        """
        async with self._lock:
            # The system clock may step back, which makes no value last longer.
            if self._made is None or not 0 <= time.time() - self._made[0] < self._interval_s:
                try:
                    value: T | StoreError = await self._make()
                except StoreError as error:
                    value = error
                self._made = time.time(), value
            found = self._made[1]
        if isinstance(found, StoreError):
            raise found.with_traceback(None)  # it is raised for each viewer
        return found

    def forget(self) -> None:
        """Make the value again for the next viewer, after a change."""
        self._made = None


class Service:
    """Reads and changes one limiter; the methods named in `operations` take the fields of a request.

    Args:
        limiter: The limiter.

    Attributes:
        operations: (method, name) -> operation of the JSON API.
        snapshots: Statistics by window.
        clients: The busiest clients, shared by all viewers.
        events: The latest events, shared by all viewers.
        bans: The newest bans, shared by all viewers.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.statistics = Statistics.of(limiter)
        self.snapshots = {
            window: Shared(partial(self._statistics, window), SHORT_S if window in _SHORT else LONG_S)
            for window in WINDOWS
        }
        self.clients: Shared[list[dict[str, Any]]] = Shared(self._clients, SHORT_S)
        self.events: Shared[list[dict[str, Any]]] = Shared(self._events, SHORT_S)
        self.bans: Shared[dict[str, Any]] = Shared(partial(self._bans, "", 50), SHORT_S)
        self.operations: dict[tuple[str, str], Callable[[Fields, Sender], Awaitable[dict[str, Any]]]] = {
            ("GET", "statistics"): self.read_statistics,
            ("GET", "client"): self.read_client,
            ("GET", "bans"): self.read_bans,
            ("PUT", "bans"): self.ban,
            ("POST", "bans"): self.ban,
            ("DELETE", "bans"): self.unban,
            ("GET", "limits"): self.read_limits,
            ("PUT", "limits"): self.change,
            ("DELETE", "limits"): self.restore,
        }

    # -- read ----------------------------------------------------------------------------------------------------------

    async def read_statistics(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Return the counts of all workers in a window: in total, by rule, by route and by step."""
        return await self.snapshots[read(STATISTICS, fields).get("window", "5m")].get()

    async def read_client(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Return the ban, the windows and the latest refusals of a client."""
        key: str = read(CLIENT, fields)["key"]
        view = await self.limiter.inspect(key)
        ban = await self.limiter.banned(key)
        shadows = self._shadows()
        return {
            "key": view.key,
            "ban": None if ban is None else row_of_ban(ban),
            "windows": [row_of_window(one, shadow=one.name in shadows) for one in view.windows if one.used],
            "refusals": [
                event
                for event in await self.events.get()
                if event["kind"] == "refused" and view.key in (event["details"]["key"], event["details"]["client"])
            ],
        }

    async def read_bans(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Return the newest bans that contain a text, and how many there are."""
        values = read(BANS, fields)
        return await self._bans(values.get("q", ""), int(values.get("limit", 100)))

    async def read_limits(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Return the limits in force, with their changes; and the change that has switched all workers off, if any."""
        read({}, fields)
        changes = [row_of_change(one) for one in await self.limiter.overrides()]
        off = next((one for one in changes if one["name"] == "*"), None)
        return {"limits": self.limits(changes), "off": off}

    def limits(self, changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the limits of this process, each with its change or None."""
        changed = {one["name"]: one for one in changes}
        return [
            {
                **named(one, "name", "rule", "changeable", "shadow"),
                "limit": str(one.limit),
                "configured": str(one.configured),
                "amount": one.limit.amount,
                "change": changed.get(one.name),
            }
            for one in self.limiter.limits()
        ]

    # -- change --------------------------------------------------------------------------------------------------------

    async def ban(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Ban an address, a network or a key, or replace its ban.

        Raises:
            Problem: The sender's own address would be banned, and `force` is missing.
        """
        values = read(BAN, fields)
        key = self.key_of(values)
        if not values.get("force") and self._covers(key, sender.scope):
            raise Problem(409, "This would ban your own address. Send force=true, or tick the box, to ban it anyway.")
        ban = await self.limiter.ban(key, values["duration"], reason=values.get("reason", ""), by=sender.name)
        self.forget()
        return row_of_ban(ban)

    async def unban(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Lift the ban of a key, and delete its strikes.

        Raises:
            Problem: There is nothing to lift.
        """
        key = read(CLIENT, fields)["key"]
        if not await self.limiter.unban(key, by=sender.name):
            raise Problem(404, f"{key!a} has no ban and no strikes.")
        self.forget()
        return {"key": self.limiter.key_for(key)}

    async def change(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Change the amount of a limit for a while; `limit` is its text, or the amount alone.

        The name ``*`` with the limit ``off`` switches all workers off.
        """
        values = read(CHANGE, fields)
        name, limit, reason = values["name"], values["limit"], values.get("reason", "")
        if limit.strip().isdigit():
            known = next((one.configured for one in self.limiter.limits() if one.name == name), None)
            limit = limit if known is None else _with_amount(known, limit.strip())
        made = await self.limiter.override(name, limit, values["duration"], reason=reason, by=sender.name)
        return row_of_change(made)

    async def restore(self, fields: Fields, sender: Sender) -> dict[str, Any]:
        """Give a limit its configured amount again.

        Raises:
            Problem: The limit is not changed.
        """
        name = read(LIMIT, fields)["name"]
        if not await self.limiter.restore(name):
            raise Problem(404, f"{name!a} is not the name of a changed limit.")
        return {"name": name}

    def forget(self) -> None:
        """Read bans again for the next viewer, after a change."""
        self.bans.forget()
        self.clients.forget()

    def key_of(self, values: Fields) -> Any:
        """Return the key that fields name: `key` itself, or the digest of a `value` that clients send.

        Raises:
            ConfigurationError: No request can have this key. The message does not contain a value, which may be secret.
        """
        if "kind" in values:
            return KEYED[values["kind"]](values.get("name", "")).of(values.get("value", ""))
        key: str = values.get("key", "").strip()
        check_key(key)
        return key

    # ------------------------------------------------------------------------------------------------------------------

    async def _statistics(self, window: str) -> dict[str, Any]:
        stats = await self.statistics.read(window)
        ahead_us = int(time.time() * _S) - await self.limiter.now_us()
        steps = [_traffic(step) for step in stats.steps]
        return {
            "window_s": stats.step_us * len(steps) / _S,
            "step_s": stats.step_us / _S,
            "start_at": (stats.start_us + ahead_us) / _S,
            "workers": [worker._asdict() for worker in stats.workers],
            "total": _traffic(stats.total),
            "rules": {name: _traffic(one) for name, one in stats.rules.items()},
            "routes": {name: _traffic(one) for name, one in stats.routes.items()},
            "steps": steps,
        }

    async def _clients(self) -> list[dict[str, Any]]:
        """Return the busiest clients; the first of them with the limit of which they have spent most, and their ban."""
        busy = await self.statistics.clients(limit=MAX_CLIENTS)
        shadows = self._shadows()
        compared = max(1, MAX_WINDOWS // (len(self.limiter.limits()) + 1))
        found: list[dict[str, Any]] = []
        for number, client in enumerate(busy):
            nearest, is_banned = None, client.banned > 0
            if number < compared:
                view = await self.limiter.inspect(client.key)
                is_banned = await self.limiter.banned(client.key) is not None
                windows = [one for one in view.windows if one.used and one.name not in shadows]
                spent = [row_of_window(one, shadow=False) for one in windows]
                nearest = max(spent, key=lambda one: one["used"] / one["amount"], default=None)
            found.append({**client._asdict(), "is_banned": is_banned, "nearest": nearest})
        return found

    async def _events(self) -> list[dict[str, Any]]:
        return [_event(event) for event in await self.statistics.events(limit=MAX_EVENTS)]

    async def _bans(self, text: str, limit: int) -> dict[str, Any]:
        wanted, total, found = text.casefold(), 0, []
        async for ban in self.limiter.bans():
            total += 1
            if any(wanted in one.casefold() for one in (ban.key, ban.reason, ban.by)):
                found.append(ban)
        newest = heapq.nsmallest(limit, found, key=lambda ban: (-ban.since_us, ban.key))
        return {"bans": [row_of_ban(ban) for ban in newest], "matching": len(found), "total": total}

    def _shadows(self) -> frozenset[str]:
        """Return the names of the limits that only report."""
        return frozenset(one.name for one in self.limiter.limits() if one.shadow)

    def _covers(self, key: Any, scope: Scope) -> bool:
        """Return whether a ban of a key would refuse the sender of a request."""
        middlewares = self.limiter.middlewares
        own, address = (middlewares[0].client if middlewares else client_ip()).locate(scope)
        banned = self.limiter.key_for(key)
        try:
            return banned == own or (address is not None and Networks([banned]).covers(*address))
        except ConfigurationError:
            return False  # no network


def _traffic(traffic: Traffic) -> dict[str, Any]:
    counts = named(traffic, "passed", "refused", "banned", "blocked", "shadow_refused", "exceptions", "cancelled")
    times = {"p50_ms": traffic.p50_us, "p95_ms": traffic.p95_us, "p99_ms": traffic.p99_us}
    return {
        **counts,
        "limited": traffic.refused - traffic.banned - traffic.blocked,
        **{name: None if us is None else us / 1_000 for name, us in times.items()},
    }


def _event(event: LoggedEvent) -> dict[str, Any]:
    details = {**dict.fromkeys(_DETAILS, ""), **event.details}
    return {"at": event.time_us / _S, **named(event, "kind", "message", "worker"), "details": details}


def _with_amount(limit: AnyLimit, amount: str) -> str:
    """Return the text of a limit with another amount, as an override takes it."""
    if isinstance(limit, Concurrency):
        return amount
    return f"{amount}/{limit.unit if isinstance(limit, Quota) else format_duration(limit.span_us)}"
