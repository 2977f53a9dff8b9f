"""The dashboard: a page, the snapshots that it polls, and the admin API, behind one guard."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final, Unpack

import anyio
from anyio.to_thread import run_sync
from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import StoreError
from ..core.logs import logger
from ..limiter import Limiter
from ..stats.report import RecentStats, Traffic, Worker
from ..stats.statistics import recording_of
from ..web.paths import route_path
from . import parameters, views
from .api import AdminRoutes
from .auth import Access
from .guard import Sender
from .messages import AdminError, json_response, unless_known
from .service import AdminService

SHORT_US: Final = 2_000_000
LONG_US: Final = 10_000_000
"""The maximum age of a snapshot of a longer window."""
MAX_LINES: Final = 12
"""How many rules, and how many routes, get a sparkline: the busiest."""
LINE_POINTS: Final = 60
NEAREST: Final = 12
_SHORT: Final = frozenset({"1m", "5m", "10m"})
"""Windows in which a change of two seconds is visible."""
_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Dashboard(AdminRoutes):
    """A page of live stats, clients and bans of a limiter: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    A browser prompts for the token as the password of any user name. The page shows the stats of all workers that share
    the store, polls every two seconds while it is visible, and sends no request to any other origin. The admin API is
    at ``api`` below the mount. An outer middleware counts these requests too, unless a rule exempts them:
    ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to manage.
        access: The access options, as for `AdminRoutes`.

    Raises:
        ConfigurationError: Neither tokens nor `auth` are given, or both, or a value is invalid.
    """

    prefix = "/api"

    def __init__(self, limiter: Limiter, **access: Unpack[Access]) -> None:
        super().__init__(limiter, **access)
        self._files = page_files()
        self._snapshots = SnapshotCache(limiter, self.service)

    async def handle(self, request: Request, by: Sender, body: Any) -> Response:
        """Return a static file, a snapshot for the live view, or the response of the API."""
        path = route_path(request.scope) or "/"
        if request.method in ("GET", "HEAD"):
            if path in self._files:
                return self._files[path]()
            if path == f"{self.prefix}/now":
                asked = parameters.read(parameters.StatsQuery, parameters.query(request.query_params.multi_items()))
                return unless_known(request, json_response(await self._snapshots.latest(asked.window)))
        if not path.startswith(f"{self.prefix}/"):
            raise AdminError(404, "unknown", "This path does not exist.")
        return await super().handle(request, by, body)


class SnapshotCache:
    """Caches the latest snapshot of each window: the data of the live view, shared by all open pages.

    A snapshot is created on request, if the cached one is too old: twenty open pages cost as much as one, and a hidden
    page costs nothing. All stats of a snapshot come from one read of the store.

    Args:
        limiter: The limiter whose stats are shown.
        service: Returns the clients.
    """

    def __init__(self, limiter: Limiter, service: AdminService) -> None:
        self._all_workers = recording_of(limiter).all_workers
        self._clock = limiter.engine.now_us
        self._service = service
        self._snapshots: dict[str, tuple[int, str]] = {}
        self._making: dict[str, anyio.Lock] = {}

    async def latest(self, window: parameters.TimeWindow) -> str:
        """Return the snapshot of a window as JSON, refreshed if it is too old."""
        # One lock for each window: a request for one must not wait for the stats of another.
        async with self._making.setdefault(window, anyio.Lock()):
            made_us, text = self._snapshots.get(window, (0, ""))
            if not text or self._clock() - made_us >= (SHORT_US if window in _SHORT else LONG_US):
                text = (await self._make(window)).model_dump_json()
                self._snapshots[window] = self._clock(), text
            return text

    async def _make(self, window: parameters.TimeWindow) -> views.Snapshot:
        """Return a new snapshot; if the store does not answer, one with `problem` instead of stats."""
        try:
            recent, workers = await self._all_workers.recent(window), await self._all_workers.workers()
            clients = await self._service.nearest_clients(NEAREST)
        except StoreError as error:
            logger.info("dashboard: stats are unavailable: %s", error)
            detail = "The store does not answer, so there are no new stats."
            return views.Snapshot(at=time.time(), problem=detail)
        return await run_sync(_snapshot, recent, workers, clients)  # sums of a day take half a second


def _snapshot(recent: RecentStats, workers: tuple[Worker, ...], clients: list[views.BusyClient]) -> views.Snapshot:
    stats = recent.stats(workers)
    rules, routes = _busiest(stats.rules), _busiest(stats.routes)
    return views.Snapshot(
        at=time.time(),
        stats=views.Stats.model_validate(stats),
        history=views.History.of(recent.chart()),
        clients=clients,
        lines=views.Lines(
            rules={name: _line(recent, rule=name) for name in rules},
            routes={name: _line(recent, route=name) for name in routes},
        ),
    )


def _busiest(stats: Mapping[str, Traffic]) -> list[str]:
    """Return the names with the most requests, at most `MAX_LINES`."""
    return heapq.nlargest(MAX_LINES, stats, key=lambda name: stats[name].passed + stats[name].refused)


def _line(recent: RecentStats, rule: str | None = None, route: str | None = None) -> views.Line:
    passed, refused = (thinned(recent.counts(event, rule, route)) for event in ("pass", "block"))
    return views.Line(passed=passed, refused=refused)


def thinned(counts: Sequence[int]) -> list[int]:
    """Return the counts of steps, summed to at most `LINE_POINTS` points.

    The current step is omitted and every point sums equally many steps; otherwise the line would appear to drop at
    its end.
    """
    done = max(len(counts) - 1, 0)
    step = -(-done // LINE_POINTS) or 1
    return [sum(counts[start : start + step]) for start in range(done % step, done, step)]


def page_files() -> Mapping[str, Callable[[], Response]]:
    """Return path below the mount -> function that returns a response with that file.

    The files are read once into a fixed table: the path of a request is never joined to a directory.
    """
    page = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            page[path] = partial(Response, file.read_bytes(), media_type=media_type)
    return page
