"""What the dashboard reads and changes, as dictionaries that the page draws and the JSON API sends.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_ms` milliseconds.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import Parameter, signature
from typing import Any, Final

from starlette.exceptions import HTTPException

from ... import ConfigurationError, Limiter, StoreError
from ...core.errors import closest, quoted
from ...core.logs import Throttle, logger
from ..look import BY_FUNCTION, limit_text
from ..published_rules import compared
from ..readers import check_read, readers_of
from ..recent_events import WHO
from ..rows import (
    check_key,
    key_of,
    keys_of,
    named,
    row_of_ban,
    row_of_change,
    row_of_window,
    windows_of,
)
from ..standing import other_keys_of, sentences_of
from ..subjects import Subject
from .snapshots import Snapshots

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


class Service:
    """Reads and changes one limiter; the fields of a request are the keyword arguments of its operation.

    Args:
        limiter: The limiter.

    Attributes:
        operations: (method, name) -> operation of the JSON API.
        snapshots: What all viewers share.
    """

    def __init__(self, limiter: Limiter) -> None:
        self.limiter = limiter
        self.snapshots = Snapshots(limiter)
        self.operations: dict[tuple[str, str], Callable[..., Awaitable[dict[str, Any]]]] = {
            ("GET", "statistics"): self.read_statistics,
            ("GET", "summary"): self.read_summary,
            ("GET", "client"): self.read_client,
            ("GET", "bans"): self.read_bans,
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
            if field not in fields and parameters[field].default is not Parameter.empty:
                continue
            if not isinstance(fields.get(field), str):
                raise ConfigurationError(f'expected text, for example "{_EXAMPLES[field]}"', field)
        if "by" in parameters:
            return await operation(**fields, by=by)
        return await operation(**fields)

    # -- read ----------------------------------------------------------------------------------------------------------

    async def read_statistics(self, window: str = "5m") -> dict[str, Any]:
        """Return the counts of all workers in a window: in total, by rule, by route and by step."""
        return await self.snapshots.statistics(window)

    async def read_summary(self) -> dict[str, Any]:
        """Return the sentence about the last five minutes, its values, what can be done, and what is not known."""
        found = await self.snapshots.statement.get()
        return {
            "kind": found.kind.value,
            "text": found.text,
            "values": dict(found.values),
            "actions": [one._asdict() for one in found.actions],
            "notes": [*found.notes],
        }

    async def read_client(self, key: str) -> dict[str, Any]:
        """Return the ban, the windows and the latest refusals of a client, and what was not looked at."""
        middlewares = self.limiter.middlewares
        key = key_of(key)
        own = self._client_of(key)
        windows, unseen = await windows_of(self.limiter, [own, *keys_of(key, middlewares)[1:]])
        if middlewares:
            # The windows of this process's own rules are looked at; it is named first.
            mine, *_ = await self.snapshots.published.get()
            unseen += sentences_of(other_keys_of(mine.text.rules, Subject(self.limiter, key)))
        found: dict[str, Any] = {"key": own, "ban": None, "windows": [], "not_looked_at": unseen, "refusals": []}
        ban = await self.limiter.banned(key)
        if ban is not None:
            found["ban"] = row_of_ban(ban)
        for window in windows:
            if window.used:
                found["windows"].append(row_of_window(window))
        names = {own}  # under which its refusals are logged
        for middleware in middlewares:
            names.add(middleware.client.truncated(key))
        for event in await self.snapshots.events.get():
            refused = {event["details"].get(field) for field in WHO}
            if event["kind"] == "refused" and names & refused:
                found["refusals"].append(event)
        return found

    def _client_of(self, key: Any) -> str:
        """Return the key under which the outermost middleware counts a client; any other key as stores use it."""
        outermost = next(iter(self.limiter.middlewares), None)
        if outermost is not None and isinstance(key, str):
            key = outermost.client.truncated(key)
        return self.limiter.key_for(key)

    async def read_bans(self, q: str = "") -> dict[str, Any]:
        """Return the newest bans that contain a text, at most `MAX_BANS`, and how many there are."""
        if q:
            return await self.snapshots.bans_with(q)
        return await self.snapshots.bans.get()

    async def read_limits(self) -> dict[str, Any]:
        """Return the limits in force, with their changes; and the change that has switched all workers off, if any."""
        changes = await self.snapshots.changes.get()
        off = next((one for one in changes if one["name"] == "*"), None)
        return {"limits": self.limits(changes), "off": off}

    def limits(self, changes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the limits of this process, each with its change or None; of equal names one can be changed."""
        by_name = {change["name"]: change for change in changes}
        limits = self.limiter.limits()
        last = {one.name: one for one in limits if one.changeable}  # of equal names the one that workers publish
        rows = []
        for one in limits:
            row: dict[str, Any] = {
                **named(one, "name", "rule"),
                "changeable": last.get(one.name) is one,
                "shadow": one.shadow,
                "limit": limit_text(one),
                "configured": BY_FUNCTION,
                "amount": None,
                "change": None,
            }
            if one.changeable:
                row["configured"] = str(one.configured)
                row["amount"] = one.limit.amount
            change = by_name.get(one.name)
            if change is not None and one.takes(change["limit"]):
                row["change"] = change
            rows.append(row)
        return rows

    async def read_history(self) -> dict[str, Any]:
        """Return the latest 200 bans and changes by hand and by commands, the last one first."""
        return {"history": await self.snapshots.history.get()}

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
        self.snapshots.forget()
        return row_of_ban(ban, readers.scope)

    async def unban(self, key: str, *, by: str) -> dict[str, Any]:
        """Lift the ban of a key, and delete its strikes.

        Raises:
            HTTPException: There is nothing to lift.
        """
        target = key_of(key)
        if not await self.limiter.unban(target, by=by):
            raise HTTPException(404, f"{key!a} has no ban and no strikes.")
        self.snapshots.forget()
        return {"key": self.limiter.key_for(target)}

    async def change(self, name: str, limit: str, duration: str, *, reason: str = "", by: str) -> dict[str, Any]:
        """Change the amount of a limit for a while; `limit` is its text, or the amount alone.

        The name ``*`` with the limit ``off`` switches all workers off.
        """
        amount = limit.strip()
        if amount.isdigit():
            changeable = {one.name: one for one in self.limiter.limits() if one.changeable}
            if name in changeable:
                limit = changeable[name].with_amount(amount)
        changed = row_of_change(await self.limiter.override(name, limit, duration, reason=reason, by=by))
        self.snapshots.forget()
        return changed

    async def restore(self, name: str, *, by: str) -> dict[str, Any]:
        """Give a limit its configured amount again.

        Raises:
            HTTPException: The limit is not changed.
        """
        if not await self.limiter.restore(name, by=by):
            raise HTTPException(404, f"{name!a} is not the name of a changed limit.")
        self.snapshots.forget()
        return {"name": name}
