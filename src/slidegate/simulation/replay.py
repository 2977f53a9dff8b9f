"""Replays a log in virtual time: every record becomes an ASGI call of a real `RateLimitMiddleware`.

The application behind the middleware returns the logged status, and the clock of its memory store is the time of the
record. Calls to a memory store never suspend, so each coroutine runs to its end without an event loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from copy import copy
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from starlette.types import Message, Receive, Scope, Send

from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError
from ..core.store import Event
from ..limiter import Limiter
from ..logs import AccessRecord
from ..stores.memory.store import MemoryStore
from ..web.checks import CODES
from ..web.config import ConfigLoader
from ..web.keys import Key
from ..web.middleware import RateLimitMiddleware
from ..web.rule_list import all_rules
from ..web.rules import Rule

MAX_KEYS: Final = 50_000_000
"""More windows than fit into memory, so that no clients share a cell."""
EVENT_KINDS: Final = ("refused", "shadow_refused", "banned", "shadow_banned")
PASSED: Final = "passed"
REFUSED: Final = "refused"
BANNED: Final = "banned"
BLOCKED: Final = "blocked"
NO_REQUEST: Final = "no request"
"""The record is not an HTTP request, so it would not reach an application."""


class Played(NamedTuple):
    """The result of replaying one record.

    Attributes:
        outcome: ``"passed"``, ``"refused"`` (by a limit), ``"banned"``, ``"blocked"`` (by a list or a rule), or
            ``"no request"``.
        status: The status of the response, from the middleware or the application.
        events: The events of the request: refusals, shadow refusals and bans.
    """

    outcome: str
    status: int
    events: tuple[Event, ...] = ()


class Replay:
    """Sends the records of a log, in chronological order, to a middleware.

    Args:
        limits: The limits of all requests, as for ``RateLimitMiddleware(limits=...)``.
        rules: The path of a configuration file instead; its store is not opened, all counts are in memory.
        key: The key of `limits`; the address of the client by default.
        bans: Ban policies in addition to `limits`.

    Attributes:
        middleware: The middleware.
        now_us: The virtual time in microseconds.
        unwaited: The rules with ``wait`` or ``concurrency``. Requests that would wait are refused, and permits are
            always free, because a log does not record the duration of requests.

    Raises:
        ConfigurationError: Neither or both of `limits` and `rules` are given, or one of them is invalid.
    """

    def __init__(
        self,
        limits: str | None = None,
        *,
        rules: str | PathLike[str] | None = None,
        key: Key | None = None,
        bans: BanPolicy | Iterable[BanPolicy] | None = None,
    ) -> None:
        if (limits is None) == (rules is None):
            raise ConfigurationError('expected either limits, such as "60/minute", or rules, such as "slidegate.toml"')
        if rules is not None and (key is not None or bans is not None):
            raise ConfigurationError("key, bans: write them into the rules file, for example [bans.abuse]")
        self.now_us = 0
        self._status = 200
        self._answered = 0
        self._reached = False
        self._events: list[Event] = []
        store = MemoryStore(max_keys=MAX_KEYS, max_bans=MAX_KEYS, clock=lambda: self.now_us)
        limiter = Limiter(store)
        limiter.observe(self._collect, kinds=EVENT_KINDS)
        options: dict[str, Any] = {"headers": None, "ignore_checks": tuple(CODES)}
        if rules is None:
            options |= {"limiter": limiter, "rules": [Rule("*", limits, key=key)], "bans": bans}
        else:
            reading = ConfigLoader(Path(rules), {}, lambda *_: limiter, _ignore, lambda: 0.0, store="memory://")
            options = reading.options() | options | {"enabled": True}
        given = all_rules(options.pop("limits", None), options.get("rules"))
        self.unwaited = tuple(rule.label for rule in given if rule.wait_us or rule.concurrency is not None)
        # A rule with only permits cannot refuse anything in a replay.
        options["rules"] = [_without_wait(rule) for rule in given if rule.concurrency is None or rule.limits]
        self.middleware = RateLimitMiddleware(self._app, **options)

    def play(self, record: AccessRecord) -> Played:
        """Replay one record; a time before that of the previous record is moved forward to it."""
        if record.time_us > self.now_us:
            self.now_us = record.time_us
        scope = scope_of(record)
        if scope is None:
            return Played(NO_REQUEST, record.status)
        self._status = record.status if 200 <= record.status <= 599 else 200
        self._reached = False
        self._events.clear()
        run(self.middleware(scope, _receive, self._send))
        events = tuple(self._events) if self._events else ()
        return Played(PASSED if self._reached else _refused_by(events), self._answered, events)

    def _collect(self, event: Event) -> None:
        self._events.append(event)

    async def _app(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._reached = True
        await send({"type": "http.response.start", "status": self._status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def _send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._answered = message["status"]


def run(call: Any) -> None:
    """Run a coroutine of the middleware to its end.

    Raises:
        ConfigurationError: It suspends, which a replay does not support.
    """
    with suppress(StopIteration):
        call.send(None)
        call.close()
        raise ConfigurationError("one of the rules makes requests wait, for example for the file of a list; remove it")


def _refused_by(events: Iterable[Event]) -> str:
    reason = next((str(event.details["reason"]) for event in events if event.kind == "refused"), "")
    return {"banned": BANNED, "blocked": BLOCKED}.get(reason, REFUSED)


def _without_wait(rule: Rule) -> Rule:
    """Return a copy of a rule that refuses instead of waiting and has no permits: replayed requests take no time."""
    twin = copy(rule)
    twin.concurrency = None
    twin.wait_us = twin.wait_max = 0
    return twin


async def _receive() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


def _ignore(*_: object) -> None:
    """Do nothing; the callback of a configuration that is never reloaded."""


def scope_of(record: AccessRecord) -> dict[str, Any] | None:
    """Return the ASGI scope of a logged request, with the logged header fields; None if it is not an HTTP request."""
    if not record.method:
        return None
    path, raw_path, query = _split(record.path)
    headers = [(name.encode("latin-1", "replace"), value.encode(errors="replace")) for name, value in record.headers]
    for name, value in ((b"host", record.host), (b"user-agent", record.user_agent)):
        if value is not None:
            headers.append((name, value.encode(errors="replace")))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": record.method,
        "path": path,
        "raw_path": raw_path,
        "query_string": query,
        "root_path": "",
        "headers": headers,
        "client": (record.client, 0),
        "server": (record.host or "localhost", 80),
    }


def _split(target: str) -> tuple[str, bytes, bytes]:
    """Return path, raw path and query of a request's target."""
    if not target.startswith("/"):
        try:
            parts = urlsplit(target)
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        except ValueError:
            pass
        if not target.startswith("/"):
            target = f"/{target}"
    raw, _, query = target.partition("?")
    return unquote(raw), raw.encode(errors="replace"), query.encode(errors="replace")
