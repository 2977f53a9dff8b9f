"""The dashboard: a page, the snapshot that it shows live, and the admin API, behind one guard."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from importlib.resources import files
from typing import Any, Final

import anyio
from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import StoreError
from ..core.logs import logger
from ..core.store import Clock
from ..limiter import Limiter
from ..web.client_ip import ClientAddress
from ..web.matching import route_path
from . import parameters, views
from .api import AdminApi
from .auth import Authenticator, AuthFunction, Identity, User
from .guard import AdminGuard, File
from .messages import json_response, unless_known
from .service import AdminService
from .sessions import SessionRoutes

PREFIX: Final = "/api"
SHORT_US: Final = 2_000_000
LONG_US: Final = 10_000_000
"""How old a snapshot of a longer window may be, and the small lines of every window."""
MAX_LINES: Final = 12
"""How many rules, and how many routes, get a small line: the busiest."""
LINE_POINTS: Final = 60
NEAREST: Final = 12
_SHORT: Final = frozenset({"1m", "5m", "10m"})
"""Windows in which two seconds can be seen."""
_NOBODY: Final = Identity(User("read"), "", None)
_TYPES: Final = {
    "css": "text/css; charset=utf-8",
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


class Dashboard(AdminGuard):
    """A page that shows a limiter at work, and bans: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    It shows figures of all workers that share the store, asks for new ones every two seconds while it is seen, and asks
    nobody but the application that it is mounted in. A middleware above counts its requests too, unless a rule exempts
    them: ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to look at.
        token: The token whose owner may look and change, 16 to 512 printable ASCII characters; or several tokens.
        read_token: The token whose owner may only look; or several.
        auth: Instead of tokens, a function, sync or async, of the request that returns None for a stranger,
            ``"read"``, ``"full"``, or ``User("full", "ann")``.
        hosts: The names under which the page may be asked, for example ``["ops.example.org"]``. By default any name;
            then the Origin of a browser must equal the Host.
        client: How the address of a user is found, behind proxies too; by default it is the peer.
        session: How long a session of a browser lasts, 1 minute to 30 days.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    def __init__(
        self,
        limiter: Limiter,
        *,
        token: str | Iterable[str] | None = None,
        read_token: str | Iterable[str] | None = None,
        auth: AuthFunction | None = None,
        hosts: Iterable[str] = (),
        client: ClientAddress | None = None,
        session: str | float = "12h",
    ) -> None:
        authenticator = Authenticator(limiter, "Dashboard", token, read_token, auth, client)
        sessions = SessionRoutes(limiter, authenticator, session)
        service = AdminService(limiter)
        self._api = AdminApi(service, PREFIX)
        self._snapshots = SnapshotCache(service, limiter.engine.statistics.now_us)
        self.limiter = limiter
        super().__init__(
            "Dashboard", authenticator, hosts, self._answer, sessions=sessions, files=page_files(), prefix=PREFIX
        )

    async def _answer(self, request: Request, by: Identity, body: Any) -> Response:
        """Return a snapshot for the live view, or the answer of the API."""
        if route_path(request.scope) != f"{PREFIX}/now" or request.method not in ("GET", "HEAD"):
            return await self._api.handle(request, by, body)
        asked = parameters.read(parameters.StatsQuery, parameters.query(request.query_params.multi_items()))
        return unless_known(request, json_response(await self._snapshots.latest(asked.window)))


class SnapshotCache:
    """The newest snapshot of each window: everything that the live view shows, made once for all open pages.

    A snapshot is made when somebody asks and the last one is too old, so twenty open pages cost as much as one, and a
    page that nobody looks at costs nothing.

    Args:
        service: Where the figures come from.
        clock: Returns microseconds.
    """

    def __init__(self, service: AdminService, clock: Clock) -> None:
        self._service = service
        self._clock = clock
        self._snapshots: dict[str, tuple[int, str]] = {}
        self._lines: dict[str, tuple[int, views.Lines]] = {}
        self._making: dict[str, anyio.Lock] = {}

    async def latest(self, window: parameters.TimeWindow) -> str:
        """Return the snapshot of a window as JSON; one that is too old is made anew first."""
        # A question about one window must not wait for the figures of another.
        async with self._making.setdefault(window, anyio.Lock()):
            made_us, text = self._snapshots.get(window, (0, ""))
            if not text or self._clock() - made_us >= (SHORT_US if window in _SHORT else LONG_US):
                text = (await self._make(window)).model_dump_json()
                self._snapshots[window] = self._clock(), text
            return text

    async def _make(self, window: parameters.TimeWindow) -> views.Snapshot:
        """Return a snapshot; without a store it says so in place of the figures."""
        service = self._service
        try:
            stats = await service.get_stats(parameters.StatsQuery(window=window), _NOBODY)
            history = await service.get_history(parameters.HistoryQuery(window=window), _NOBODY)
            nearest = await service.get_clients(parameters.ClientsQuery(sort="nearness", limit=NEAREST), _NOBODY)
            lines = await self._small_lines(window, stats)
        except StoreError as error:
            logger.info("dashboard: no figures, because %s", error)
            detail = "The store does not answer, so there are no new figures."
            return views.Snapshot(at=time.time(), problem=detail)
        return views.Snapshot(at=time.time(), stats=stats, history=history, clients=nearest.clients, lines=lines)

    async def _small_lines(self, window: parameters.TimeWindow, stats: views.Stats) -> views.Lines:
        """Return the course of the busiest rules and routes; many questions, so these are asked seldom."""
        made_us, lines = self._lines.get(window, (0, None))
        if lines is None or self._clock() - made_us >= LONG_US:
            ask = self._service.get_history
            rules, routes = _busiest(stats.rules), _busiest(stats.routes)
            lines = views.Lines(
                rules={
                    name: thinned(await ask(parameters.HistoryQuery(window=window, rule=name), _NOBODY))
                    for name in rules
                },
                routes={
                    name: thinned(await ask(parameters.HistoryQuery(window=window, route=name), _NOBODY))
                    for name in routes
                },
            )
            self._lines[window] = self._clock(), lines
        return lines


def _busiest(figures: Mapping[str, views.Traffic]) -> list[str]:
    """Return the names with the most requests, at most `MAX_LINES`."""
    requests = {name: row.passed + row.refused for name, row in figures.items() if 0 < len(name) <= parameters.MAX_TEXT}
    return sorted(requests, key=requests.__getitem__, reverse=True)[:MAX_LINES]


def thinned(history: views.History) -> views.Line:
    """Return the requests that passed, and those that were refused, in at most `LINE_POINTS` points.

    The running step is left out, and each point adds up as many steps as the others: else the line would seem to fall
    at its end.
    """
    done = max(len(history.passed) - 1, 0)
    step = -(-done // LINE_POINTS) or 1
    starts = range(done % step, done, step)
    return views.Line(
        passed=[sum(history.passed[start : start + step]) for start in starts],
        refused=[sum(history.refused[start : start + step]) for start in starts],
    )


def page_files() -> dict[str, File]:
    """Return path below the mount -> file of the page and everything that it loads.

    They are read once into a fixed table: no path of a request is ever joined to a directory.
    """
    found = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            found["/" if file.name == "index.html" else f"/static/{file.name}"] = File(file.read_bytes(), media_type)
    return found
