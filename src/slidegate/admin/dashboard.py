"""The dashboard: a page, the snapshot that it shows live, and the admin API, behind one guard."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib.resources import files
from typing import Any, Final, Unpack

import anyio
from starlette.requests import Request
from starlette.responses import Response

from ..core.errors import StoreError
from ..core.logs import logger
from ..limiter import Limiter
from ..stats.report import RecentStats, Traffic
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
"""How old a snapshot of a longer window may be."""
MAX_LINES: Final = 12
"""How many rules, and how many routes, get a small line: the busiest."""
LINE_POINTS: Final = 60
NEAREST: Final = 12
_SHORT: Final = frozenset({"1m", "5m", "10m"})
"""Windows in which two seconds can be seen."""
_TYPES: Final = {
    "css": "text/css",
    "html": "text/html",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


class Dashboard(AdminRoutes):
    """A page that shows a limiter at work, and bans: ``app.mount("/slidegate", Dashboard(limiter, token=...))``.

    A browser asks for the token as a password, for any name. The page shows stats of all workers that share the store,
    asks for new ones every two seconds while it is seen, and asks nobody but the application that it is mounted in. The
    admin API is at ``api`` below the mount. A middleware above counts all these requests too, unless a rule exempts
    them: ``Rule("/slidegate/{rest:path}", exempt=True)``.

    Args:
        limiter: The limiter to look at.
        access: Who may use it, as for `AdminRoutes`.

    Raises:
        ConfigurationError: There are neither tokens nor `auth`, or both, or a value cannot work.
    """

    prefix = "/api"

    def __init__(self, limiter: Limiter, **access: Unpack[Access]) -> None:
        super().__init__(limiter, **access)
        self._files = page_files()
        self._snapshots = SnapshotCache(limiter, self.service)

    async def handle(self, request: Request, by: Sender, body: Any) -> Response:
        """Return a file of the page, a snapshot for the live view, or the answer of the API."""
        path = route_path(request.scope) or "/"
        if request.method in ("GET", "HEAD"):
            if path in self._files:
                return self._files[path]()
            if path == f"{self.prefix}/now":
                asked = parameters.read(parameters.StatsQuery, parameters.query(request.query_params.multi_items()))
                return unless_known(request, json_response(await self._snapshots.latest(asked.window)))
        if not path.startswith(f"{self.prefix}/"):
            raise AdminError(404, "unknown", "There is nothing here.")
        return await super().handle(request, by, body)


class SnapshotCache:
    """The newest snapshot of each window: everything that the live view shows, made once for all open pages.

    A snapshot is made when somebody asks and the last one is too old, so twenty open pages cost as much as one, and a
    page that nobody looks at costs nothing. All stats of a snapshot are of one question to the store.

    Args:
        limiter: Where the stats come from.
        service: Knows the clients.
    """

    def __init__(self, limiter: Limiter, service: AdminService) -> None:
        self._all_workers = recording_of(limiter).all_workers
        self._clock = limiter.engine.now_us
        self._service = service
        self._snapshots: dict[str, tuple[int, str]] = {}
        self._making: dict[str, anyio.Lock] = {}

    async def latest(self, window: parameters.TimeWindow) -> str:
        """Return the snapshot of a window as JSON; one that is too old is made anew first."""
        # A question about one window must not wait for the stats of another.
        async with self._making.setdefault(window, anyio.Lock()):
            made_us, text = self._snapshots.get(window, (0, ""))
            if not text or self._clock() - made_us >= (SHORT_US if window in _SHORT else LONG_US):
                text = (await self._make(window)).model_dump_json()
                self._snapshots[window] = self._clock(), text
            return text

    async def _make(self, window: parameters.TimeWindow) -> views.Snapshot:
        """Return a snapshot; without a store it says so in place of the stats."""
        try:
            recent = await self._all_workers.recent(window)
            stats = recent.stats(await self._all_workers.workers())
            clients = await self._service.nearest_clients(NEAREST)
        except StoreError as error:
            logger.info("dashboard: stats are unavailable: %s", error)
            detail = "The store does not answer, so there are no new stats."
            return views.Snapshot(at=time.time(), problem=detail)
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
    """Return the counts of steps in at most `LINE_POINTS` points.

    The running step is left out, and each point adds up as many steps as the others: else the line would seem to fall
    at its end.
    """
    done = max(len(counts) - 1, 0)
    step = -(-done // LINE_POINTS) or 1
    return [sum(counts[start : start + step]) for start in range(done % step, done, step)]


def page_files() -> Mapping[str, Callable[[], Response]]:
    """Return path below the mount -> what answers with that file of the page.

    They are read once into a fixed table: no path of a request is ever joined to a directory.
    """
    page = {}
    for file in files(__package__).joinpath("static").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            path = "/" if file.name == "index.html" else f"/static/{file.name}"
            page[path] = partial(Response, file.read_bytes(), media_type=media_type)
    return page
