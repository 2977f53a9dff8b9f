"""What the dashboard reads and changes, as dictionaries that the page draws and the JSON API sends.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict
from functools import partial
from inspect import Parameter, signature
from typing import Any, Final, Generic, TypeVar

import anyio
from starlette.exceptions import HTTPException

from ... import ConfigurationError, Limiter, StoreError
from ...core.errors import closest, quoted
from ...core.logs import Throttle, logger
from ..published_rules import compared
from ..readers import check_read, readers_of
from ..rows import (
    check_key,
    key_of,
    keys_of,
    named,
    row_of_action,
    row_of_ban,
    row_of_change,
    row_of_window,
    windows_of,
)
from ..statistics import LoggedEvent, Ranking, Statistics, Traffic
from ..traffic import COUNTS

SHORT_S: Final = 2.0
LONG_S: Final = 10.0
"""How long a snapshot of a window above 10 minutes is shared."""
MAX_CLIENTS: Final = 24
"""How many of the busiest clients, and of the most refused ones, are shown and compared with their limits."""
MAX_BANS: Final = 1_000
MAX_EVENTS: Final = 500
WINDOWS: Final = ("1m", "5m", "10m", "30m", "1h", "3h", "6h", "12h", "24h")
BY_FUNCTION: Final = "by a function"
_SHORT: Final = frozenset({"1m", "5m", "10m"})
_S: Final = 1_000_000
_EXAMPLES: Final = {
    "key": "203.0.113.7",
    "value": "k123",
    "duration": "1h",
    "reason": "scraping",
    "name": "api",
    "limit": "50/minute",
    "window": "5m",
    "q": "scraping",
    "anyway": "yes",
}
"""A valid value of each field of a request."""
_DETAILS: Final = ("key", "client", "rule", "reason", "by", "status", "policy", "ban")
"""The details of events that the page shows."""
_WHO: Final = ("client", "key", "ban")
"""Those of a refusal that say who was refused."""

T = TypeVar("T")


_throttle: Final = Throttle()
"""Limits the rate of lines about requests to dashboards that fail because the store does not answer."""


def problem_of(error: Exception) -> HTTPException:
    """Return the answer to an error; that to a failure says nothing of its cause, which is logged."""
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, ConfigurationError):
        return HTTPException(400, str(error))
    if isinstance(error, StoreError):
        if _throttle.left_out(None, time.monotonic()) is not None:  # open pages ask every few seconds
            logger.error("a request to the dashboard failed because the store does not answer: %r", error)
        return HTTPException(503, "The store does not answer; the log says more.", {"retry-after": "1"})
    logger.error("a request to the dashboard failed", exc_info=error)
    return HTTPException(500, "The request failed; the log says why.")


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
        self._changes = 0

    async def get(self) -> T:
        """Return the value.

        Raises:
            StoreError: The store did not answer when the value was made.
        """
        async with self._lock:
            # The system clock may step back, which makes no value last longer.
            if self._made is None or not 0 <= time.time() - self._made[0] < self._interval_s:
                changes = self._changes
                try:
                    found: T | StoreError = await self._make()
                except StoreError as error:
                    found = error
                # What was read before a change, or during it, is not for the viewers after it.
                self._made = (time.time(), found) if self._changes == changes else None
            else:
                found = self._made[1]
        if isinstance(found, StoreError):
            raise found.with_traceback(None)  # it is raised for each viewer
        return found

    def forget(self) -> None:
        """Make the value again for the next viewer, after a change."""
        self._made = None
        self._changes += 1


class Service:
    """Reads and changes one limiter; the fields of a request are the keyword arguments of its operation.

    Args:
        limiter: The limiter.

    Attributes:
        operations: (method, name) -> operation of the JSON API.
        snapshots: Statistics by window.
        clients: The busiest and the most refused clients and other keys, shared by all viewers.
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
        self.clients: Shared[dict[str, list[dict[str, Any]]]] = Shared(self._clients, SHORT_S)
        self.events: Shared[list[dict[str, Any]]] = Shared(self._events, SHORT_S)
        self.bans: Shared[dict[str, Any]] = Shared(partial(self._bans, ""), SHORT_S)
        self.operations: dict[tuple[str, str], Callable[..., Awaitable[dict[str, Any]]]] = {
            ("GET", "statistics"): self.read_statistics,
            ("GET", "client"): self.read_client,
            ("GET", "bans"): self.read_bans,
            ("PUT", "bans"): self.ban,
            ("POST", "bans"): self.ban,
            ("DELETE", "bans"): self.unban,
            ("GET", "limits"): self.read_limits,
            ("PUT", "limits"): self.change,
            ("DELETE", "limits"): self.restore,
            ("GET", "history"): self.read_history,
            ("GET", "rules"): self.read_rules,
        }

    async def call(self, method: str, name: str, fields: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Carry out an operation.

        Args:
            method: Its method.
            name: Its name.
            fields: The fields of the request.
            by: The author of changes.

        Raises:
            ConfigurationError: A field is unknown, missing or invalid. Values that may be secret are not shown.
        """
        operation = self.operations[method, name]
        parameters = signature(operation).parameters
        known = [one for one in parameters if one != "by"]
        for field in fields:
            if field not in known:
                raise ConfigurationError(f"there is no field {quoted(field)}{closest(field, known)}")
        for field in known:
            is_required = parameters[field].default is Parameter.empty
            if not isinstance(fields.get(field, None if is_required else ""), str):
                raise ConfigurationError(f'expected text, for example "{_EXAMPLES[field]}"', field)
        return await operation(**fields, **({"by": by} if "by" in parameters else {}))

    # -- read ----------------------------------------------------------------------------------------------------------

    async def read_statistics(self, window: str = "5m") -> dict[str, Any]:
        """Return the counts of all workers in a window: in total, by rule, by route and by step."""
        if window not in WINDOWS:
            raise ConfigurationError(f"expected one of {', '.join(WINDOWS)}, not {quoted(window)}", "window")
        return await self.snapshots[window].get()

    async def read_client(self, key: str) -> dict[str, Any]:
        """Return the ban, the windows and the latest refusals of a client, and what was not looked at."""
        middlewares = self.limiter.middlewares
        own = self._client_of(key_of(key))
        known = {own, *(one.client.truncated(key) for one in middlewares)}
        windows, unseen = await windows_of(self.limiter, [own, *keys_of(key, middlewares)[1:]])
        ban = await self.limiter.banned(key)
        refusals = [event for event in await self.events.get() if event["kind"] == "refused"]
        return {
            "key": own,
            "ban": None if ban is None else row_of_ban(ban),
            "windows": [row_of_window(one) for one in windows if one.used],
            "not_looked_at": unseen,
            "refusals": [one for one in refusals if known.intersection(map(one["details"].get, _WHO))],
        }

    def _client_of(self, key: Any) -> str:
        """Return the key under which the outermost middleware counts a client; any other key as stores use it."""
        outermost = next(iter(self.limiter.middlewares), None)
        if outermost is not None and isinstance(key, str):
            key = outermost.client.truncated(key)
        return self.limiter.key_for(key)

    async def read_bans(self, q: str = "") -> dict[str, Any]:
        """Return the newest bans that contain a text, at most `MAX_BANS`, and how many there are."""
        return await (self._bans(q) if q else self.bans.get())

    async def read_limits(self) -> dict[str, Any]:
        """Return the limits in force, with their changes; and the change that has switched all workers off, if any."""
        changes = [row_of_change(one) for one in await self.limiter.overrides()]
        off = next((one for one in changes if one["name"] == "*"), None)
        return {"limits": self.limits(changes), "off": off}

    def limits(self, changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the limits of this process, each with its change or None; of equal names one can be changed."""
        changed = {one["name"]: one for one in changes}
        limits = self.limiter.limits()
        last = {one.name: one for one in limits if one.changeable}  # the one that workers tell of
        return [
            {
                **named(one, "name", "rule"),
                "changeable": last.get(one.name) is one,
                "shadow": one.shadow,
                "limit": text_of(one),
                "configured": str(one.configured) if one.changeable else BY_FUNCTION,
                "amount": one.limit.amount if one.changeable else None,
                "change": change if (change := changed.get(one.name)) and one.takes(change["limit"]) else None,
            }
            for one in limits
        ]

    async def read_history(self) -> dict[str, Any]:
        """Return the latest 200 bans and changes by hand and by commands, the last one first."""
        return {"history": [row_of_action(one) for one in await self.limiter.history()]}

    async def read_rules(self) -> dict[str, Any]:
        """Return the rules that workers have published, once for equal workers, and which of them differ."""
        return compared(await self.limiter.published())

    # -- change --------------------------------------------------------------------------------------------------------

    async def ban(
        self, key: str, duration: str, *, value: str | None = None, reason: str = "", anyway: str = "", by: str
    ) -> dict[str, Any]:
        """Ban an address, a network or a key, or replace its ban.

        A key that no worker reads is banned only if `anyway` is any text.
        """
        target = key_of(key, value)
        check_key(key)
        name = self.limiter.key_for(target)
        readers = await readers_of(self.limiter, name)
        if not anyway:
            check_read(readers, name, 'send anyway with the text "yes"')
        ban = await self.limiter.ban(target, duration, reason=reason, by=by)
        self.forget()
        return row_of_ban(ban, readers.place)

    async def unban(self, key: str, *, by: str) -> dict[str, Any]:
        """Lift the ban of a key, and delete its strikes.

        Raises:
            HTTPException: There is nothing to lift.
        """
        if not await self.limiter.unban(key, by=by):
            raise HTTPException(404, f"{key!a} has no ban and no strikes.")
        self.forget()
        return {"key": self.limiter.key_for(key)}

    async def change(self, name: str, limit: str, duration: str, *, reason: str = "", by: str) -> dict[str, Any]:
        """Change the amount of a limit for a while; `limit` is its text, or the amount alone.

        The name ``*`` with the limit ``off`` switches all workers off.
        """
        if limit.strip().isdigit():
            known = next((one for one in reversed(self.limiter.limits()) if one.name == name and one.changeable), None)
            limit = limit if known is None else known.with_amount(limit.strip())
        return row_of_change(await self.limiter.override(name, limit, duration, reason=reason, by=by))

    async def restore(self, name: str, *, by: str) -> dict[str, Any]:
        """Give a limit its configured amount again.

        Raises:
            HTTPException: The limit is not changed.
        """
        if not await self.limiter.restore(name, by=by):
            raise HTTPException(404, f"{name!a} is not the name of a changed limit.")
        return {"name": name}

    def forget(self) -> None:
        """Read bans again for the next viewer, after a change."""
        self.bans.forget()
        self.clients.forget()

    # ------------------------------------------------------------------------------------------------------------------

    async def _statistics(self, window: str) -> dict[str, Any]:
        stats = await self.statistics.read(window)
        now = time.time()
        ahead_us = int(now * _S) - await self.limiter.now_us()
        steps = [_traffic(step) for step in stats.steps]
        return {
            "window_s": stats.step_us * len(steps) / _S,
            "step_s": stats.step_us / _S,
            "start_at": (stats.start_us + ahead_us) / _S,
            "at": now,
            "workers": [worker._asdict() for worker in stats.workers],
            "total": _traffic(stats.total),
            "rules": {name: _traffic(one) for name, one in stats.rules.items()},
            "routes": {name: _traffic(one) for name, one in stats.routes.items()},
            "steps": steps,
        }

    async def _clients(self) -> dict[str, list[dict[str, Any]]]:
        """Return the busiest and the most refused clients, and keys of other kinds, each with its nearest limit."""
        return {
            "clients": await self._ranked(await self.statistics.clients(limit=MAX_CLIENTS)),
            "keys": await self._ranked(await self.statistics.keys(limit=MAX_CLIENTS)),
        }

    async def _ranked(self, ranking: Ranking) -> list[dict[str, Any]]:
        """Return the clients of both lists, each once, the busiest first."""
        found: list[dict[str, Any]] = []
        by_key = {one.key: one for one in [*ranking.busiest, *ranking.refused]}
        for client in sorted(by_key.values(), key=lambda one: -one.requests):
            view = await self.limiter.inspect(client.key)
            is_banned = await self.limiter.banned(client.key) is not None
            spent = [row_of_window(one) for one in view.windows if one.used and not one.shadow]
            nearest = max(spent, key=lambda one: one["used"] / one["amount"], default=None)
            seen = {**asdict(client), "requests": client.requests}
            found.append({**seen, "is_banned": is_banned, "nearest": nearest})
        return found

    async def _events(self) -> list[dict[str, Any]]:
        return [_event(event) for event in await self.statistics.events(limit=MAX_EVENTS)]

    async def _bans(self, text: str) -> dict[str, Any]:
        wanted, total, found = text.casefold(), 0, []
        async for ban in self.limiter.bans():
            total += 1
            if any(wanted in one.casefold() for one in (ban.key, ban.reason, ban.by)):
                found.append(ban)
        newest = heapq.nsmallest(MAX_BANS, found, key=lambda ban: (-ban.since_us, ban.key))
        return {"bans": [row_of_ban(ban) for ban in newest], "matching": len(found), "total": total}


def text_of(one: Any) -> str:
    """Return a limit in force; one that a function returns for each request is not known here."""
    return str(one.limit) if one.changeable else BY_FUNCTION


def _traffic(traffic: Traffic) -> dict[str, Any]:
    counts = named(traffic, *COUNTS)
    times = {"p50_ms": traffic.p50_us, "p95_ms": traffic.p95_us, "p99_ms": traffic.p99_us}
    return {
        **counts,
        "limited": traffic.refused - traffic.banned - traffic.blocked,
        **{name: None if us is None else us / 1_000 for name, us in times.items()},
    }


def _event(event: LoggedEvent) -> dict[str, Any]:
    details = {**dict.fromkeys(_DETAILS, ""), **event.details}
    return {"at": event.time_us / _S, **named(event, "kind", "message", "worker"), "details": details}
