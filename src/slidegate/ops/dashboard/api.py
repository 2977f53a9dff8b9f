"""The JSON API: what it returns, in the rows of the page, and what it changes.

Names end in their unit: `_at` is Unix time in seconds, `_s` seconds, `_us` microseconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from inspect import signature
from time import monotonic
from typing import Any, Final

from starlette.exceptions import HTTPException

from ... import ConfigurationError, StoreError
from ...core.logs import log_failure
from ..explain import answer_of
from ..published_rules import ban_by_hand, changeable_limits, limit_rows, rule_rows
from ..rows import as_json, key_of, named
from ..statistics import Traffic
from ..traffic import COUNTS
from .service import WINDOW, Service

METHODS: Final = ("GET", "POST", "PUT", "DELETE")


def problem_of(error: Exception) -> HTTPException:
    """Return the response to an error; the cause of a failure is logged, and not shown."""
    if isinstance(error, HTTPException):
        return error
    if isinstance(error, ConfigurationError):
        return HTTPException(400, str(error))
    log_failure("a request to the dashboard failed", error, monotonic())
    if isinstance(error, StoreError):
        return HTTPException(503, "The store does not answer; the log says more.", {"retry-after": "1"})
    return HTTPException(500, "The request failed; the log says why.")


class Api:
    """The operations of the JSON API, each by its method and name: `get_bans`, `delete_bans`.

    The fields of a request are the keyword arguments of its operation.

    Args:
        service: Reads the limiter.
    """

    def __init__(self, service: Service) -> None:
        self._service = service
        self._limiter = service.limiter

    def methods_of(self, name: str) -> list[str]:
        """Return the methods of the operations of a name; none if there is no such operation."""
        return [method for method in METHODS if hasattr(self, f"{method.lower()}_{name}")]

    async def call(self, method: str, name: str, fields: Mapping[str, Any], by: str) -> dict[str, Any]:
        """Carry out an operation.

        Args:
            method: Its method.
            name: Its name.
            fields: The fields of the request.
            by: The author, if it is a change.

        Raises:
            ConfigurationError: A field is unknown, missing or invalid. Values that may be secret are not shown.
        """
        operation = getattr(self, f"{method.lower()}_{name}")
        keywords = {**fields}
        if "by" in signature(operation).parameters:
            keywords["by"] = by
        try:
            signature(operation).bind(**keywords)
        except TypeError as error:
            raise ConfigurationError(str(error)) from None
        for field, value in fields.items():
            if not isinstance(value, str):
                raise ConfigurationError("expected text", field)
        try:
            return dict(await operation(**keywords))
        finally:
            if method != "GET":
                self._service.forget()

    # -- read ----------------------------------------------------------------------------------------------------------

    async def get_statistics(self, window: str = WINDOW) -> dict[str, Any]:
        """Return the counts of all workers in a window: in total, by rule, by route and by step."""
        counts = await self._service.counts(window)
        stats = counts.stats
        return {
            **named(counts, "start_at", "at", "step_s", "seen_s"),
            "workers": as_json(stats.workers),
            "total": _row_of_traffic(stats.total),
            "rules": {name: _row_of_traffic(traffic) for name, traffic in stats.rules.items()},
            "routes": {name: _row_of_traffic(traffic) for name, traffic in stats.routes.items()},
            "steps": [_row_of_traffic(step) for step in stats.steps],
        }

    async def get_summary(self) -> dict[str, Any]:
        """Return the line on top of the page, what can be done about it, and the rows that it is computed from."""
        return {**as_json(await self._service.line())}

    async def get_client(self, key: str) -> dict[str, Any]:
        """Return what `slidegate explain` shows of a client, and the ban that refuses it."""
        client = await self._service.client(key)
        return {**answer_of(client.facts), "ban": as_json(client.ban)}

    async def get_networks(self) -> dict[str, Any]:
        """Return the networks and operators of several clients, the most refused first; numbers are "at least"."""
        return {"networks": as_json(await self._service.networks())}

    async def get_bans(self) -> dict[str, Any]:
        """Return the newest 1,000 bans, and how many there are."""
        bans = await self._service.bans()
        return {"bans": as_json(bans.newest), "total": len(bans.all)}

    async def get_limits(self) -> dict[str, Any]:
        """Return the limits of this process, and the changes in force; that of ``*`` switches all workers off."""
        return {"limits": limit_rows(self._limiter.limits()), "changes": as_json(await self._service.overrides())}

    async def get_history(self) -> dict[str, Any]:
        """Return the latest 200 bans and changes by hand and by commands, the last one first."""
        return {"history": as_json(await self._service.history())}

    async def get_rules(self) -> dict[str, Any]:
        """Return the rules that workers have published, and what other workers enforce in place of them."""
        return {"rules": as_json(rule_rows(await self._service.published()))}

    # -- change --------------------------------------------------------------------------------------------------------

    async def post_bans(
        self, key: str, duration: str, *, value: str | None = None, reason: str = "", by: str
    ) -> dict[str, Any]:
        """Ban an address, a network or a key, or replace its ban; `holds` says where."""
        return await ban_by_hand(self._limiter, key, key_of(key, value), duration, reason=reason, by=by)

    async def delete_bans(self, key: str, *, by: str) -> dict[str, Any]:
        """Lift the ban of a key, and delete its strikes.

        Raises:
            HTTPException: There is nothing to lift.
        """
        target = key_of(key)
        if not await self._limiter.unban(target, by=by):
            raise HTTPException(404, f"{key!a} has no ban and no strikes.")
        return {"key": self._limiter.key_for(target)}

    async def delete_windows(self, key: str, rule: str | None = None) -> dict[str, Any]:
        """Forget what a key has spent, under one rule or under all; `reset` says whether it had spent anything."""
        return {"key": key, "reset": await self._limiter.reset(key_of(key), rule=rule)}

    async def put_limits(self, name: str, limit: str, duration: str, *, reason: str = "", by: str) -> dict[str, Any]:
        """Change the amount of a limit for a while; `limit` is its text, or the amount alone.

        The name ``*`` with the limit ``off`` switches all workers off.
        """
        changeable = changeable_limits(self._limiter.limits())
        amount = limit.strip()
        if name in changeable and amount.isdecimal():
            limit = changeable[name].with_amount(amount)
        return {**as_json(await self._limiter.override(name, limit, duration, reason=reason, by=by))}

    async def delete_limits(self, name: str, *, by: str) -> dict[str, Any]:
        """Give a limit its configured amount again.

        Raises:
            HTTPException: The limit is not changed.
        """
        if not await self._limiter.restore(name, by=by):
            raise HTTPException(404, f"{name!a} is not the name of a changed limit.")
        return {"name": name}


def _row_of_traffic(traffic: Traffic) -> dict[str, Any]:
    return named(traffic, *COUNTS, "limited", "statuses", "p50_us", "p95_us", "p99_us")
