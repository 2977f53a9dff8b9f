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

from ..core.errors import ConfigurationError
from ..core.store import Event
from ..limiter import Limiter
from ..logs import AccessRecord
from ..stores.memory.store import MemoryStore
from ..web.checks import CODES
from ..web.client_ip import ClientAddress, client_ip
from ..web.config import ConfigLoader
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
REFUSALS: Final = (REFUSED, BANNED, BLOCKED)


class Played(NamedTuple):
    """The result of replaying one request.

    Attributes:
        outcome: ``"passed"``, ``"refused"`` (by a limit), ``"banned"``, or ``"blocked"`` (by a list or a rule).
        status: The status of the response, from the middleware or the application.
        events: The events of the request: refusals, shadow refusals and bans.
    """

    outcome: str
    status: int
    events: tuple[Event, ...]


class Replay:
    """Sends the records of a log, in chronological order, to a middleware.

    Args:
        options: Options of `RateLimitMiddleware`, such as `limits` or `rules`, except those of its store and responses.

    Attributes:
        middleware: The middleware.
        client: Determines its clients.
        now_us: The virtual time in microseconds.
        unwaited: The rules with ``wait`` or ``concurrency``. Requests that would wait are refused, and permits are
            always free, because a log does not record the duration of requests.

    Raises:
        ConfigurationError: An option is invalid.
    """

    def __init__(self, **options: Any) -> None:
        self.now_us = 0
        self.client: ClientAddress = options.get("client") or client_ip()
        self._status = 200
        self._answered = 0
        self._reached = False
        self._events: list[Event] = []
        limiter = Limiter(MemoryStore(max_keys=MAX_KEYS, max_bans=MAX_KEYS, clock=lambda: self.now_us))
        limiter.observe(self._events.append, kinds=EVENT_KINDS)
        given = all_rules(options.pop("limits", None), options.pop("rules", None), options.pop("key", None))
        self.unwaited = tuple(rule.label for rule in given if rule.wait_us or rule.concurrency is not None)
        # A rule with only permits cannot refuse anything in a replay.
        rules = [_without_wait(rule) for rule in given if rule.concurrency is None or rule.limits]
        fixed = {"limiter": limiter, "rules": rules, "headers": None, "ignore_checks": tuple(CODES), "enabled": True}
        self.middleware = RateLimitMiddleware(self._app, **options | fixed)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> Replay:
        """Return a replay with the rules and bans of a configuration file, whose store is not opened.

        Raises:
            ConfigurationError: The file is invalid.
        """
        loader = ConfigLoader(Path(path), {}, lambda *_: Limiter(), _ignore, lambda: 0.0, store="memory://")
        return cls(**loader.options())

    def play(self, record: AccessRecord) -> Played:
        """Replay an HTTP request; a time before that of the previous record is moved forward to it."""
        self.now_us = max(self.now_us, record.time_us)
        self._status = record.status if 200 <= record.status <= 599 else 200
        self._reached = False
        self._events.clear()
        run(self.middleware(scope_of(record), _receive, self._send))
        events = tuple(self._events)
        return Played(PASSED if self._reached else _refused_by(events), self._answered, events)

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


def scope_of(record: AccessRecord) -> dict[str, Any]:
    """Return the ASGI scope of a logged HTTP request, with the logged header fields."""
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
