"""The page of the dashboard: what each of its five views shows, and what its forms change."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from ... import ConfigurationError, MemoryStore, StoreError, __version__
from ...core import compiled
from ...core.logs import escaped, written
from ..rows import span_of
from . import charts
from .charts import NOTHING
from .fields import WINDOWS
from .service import Problem, Sender, Service, problem_of

VIEWS: Final = {"": "Now", "clients": "Clients", "bans": "Bans", "shadow": "Shadow", "configuration": "Configuration"}
LENGTHS: Final = {
    "15m": "15 minutes",
    "1h": "1 hour",
    "6h": "6 hours",
    "1d": "1 day",
    "7d": "7 days",
    "permanent": "Until lifted",
}
DONE: Final = {
    "ban": "The ban is in force.",
    "unban": "The ban is lifted.",
    "change": "The limit is changed, for all workers within a second.",
    "restore": "The limit has its configured amount again, for all workers within a second.",
}
FAILING: Final = {
    "local": "Each process counts by itself until it does.",
    "allow": "Every request passes until it does.",
    "deny": "Every request is refused until it does.",
}
NEAREST: Final = 12
SHADOWED: Final = 20


def count(value: float | None) -> str:
    """Return a whole number with separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate(value: float | None) -> str:
    """Return a number in three digits."""
    return NOTHING if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def share(part: float, whole: float) -> str:
    """Return a share in percent."""
    return f"{100 * part / whole:.3g} %" if whole else NOTHING


def ms(value: float | None) -> str:
    """Return milliseconds with their unit."""
    return NOTHING if value is None else f"{value / 1_000:.1f} s" if value >= 10_000 else f"{rate(value)} ms"


def span(seconds: float | None) -> str:
    """Return a length of time in its two largest units."""
    return NOTHING if seconds is None else span_of(max(seconds, 0))


def moment(at: float | None) -> Markup | str:
    """Return a time in UTC; the page's script shows it in the reader's time zone."""
    if at is None:
        return NOTHING
    when = datetime.fromtimestamp(at, UTC)
    return Markup(f'<time datetime="{when:%Y-%m-%dT%H:%M:%SZ}">{when:%Y-%m-%d %H:%M:%S}</time>')


def plain(text: object, most: int = 80) -> str:
    """Return a text without control characters and changes of direction, which browsers would obey."""
    return escaped(str(text), most)


def grouped(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events, each with how many `times` it follows itself: several workers report a changed limit."""
    found: list[dict[str, Any]] = []
    for event in events:
        if found and (event["kind"], event["message"]) == (found[-1]["kind"], found[-1]["message"]):
            found[-1]["times"] += 1
        else:
            found.append({**event, "times": 1})
    return found


def store_name(store: object) -> str:
    """Return a store in words. Only the prefix or the path is taken from its `repr`: nothing with a password."""
    if isinstance(store, MemoryStore):
        return "Memory of this process"
    found = re.fullmatch(r"<(Redis|Lmdb)Store '(.*)'>", written(store))
    if found is None:
        return type(store).__name__
    return f"Redis, prefix {found[2]}" if found[1] == "Redis" else f"LMDB, {found[2]}"


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slidegate.ops.dashboard"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    texts: tuple[Callable[..., Any], ...] = (count, rate, ms, span, moment, plain, grouped)
    environment.filters |= {text.__name__: text for text in texts}
    known = {"views": VIEWS, "windows": WINDOWS, "lengths": LENGTHS, "done": DONE}
    environment.globals |= {**known, "share": share, "span": span, "charts": charts, "urlencode": urlencode}
    return environment


class Page:
    """Draws the views.

    Args:
        service: Reads and changes the limiter.
        changes: Whether the page has forms for changes.
    """

    def __init__(self, service: Service, *, changes: bool) -> None:
        self._service = service
        self._limiter = service.limiter
        self._changes = changes
        self._templates = _environment()
        self._drawn: dict[str, tuple[dict[str, Any], list[charts.Chart]]] = {}

    async def show(
        self, view: str, query: Mapping[str, str], sender: Sender, wrong: Mapping[str, Any] | None = None
    ) -> Response:
        """Return a view.

        Args:
            view: The name of the view.
            query: What to show.
            sender: Who sends the request.
            wrong: A form that was refused, with the reason as `text`, to be shown again.

        Raises:
            Problem: There is no such view.
        """
        if view not in VIEWS:
            raise Problem(404, "This page does not exist.")
        shown: dict[str, Any] = {}
        is_failing = self._limiter.is_failing
        try:
            await getattr(self, f"_{view or 'now'}")(shown, query, sender)
        except StoreError:
            is_failing = True
        failure = FAILING.get(self._limiter.on_error or "", "") if is_failing else None
        text = self._templates.get_template(f"{view or 'now'}.html").render(
            {**shown, "view": view, "query": query, "may": self._changes, "wrong": wrong or {}, "failure": failure}
        )
        return Response(text, (wrong or {}).get("status", 200), media_type="text/html")

    async def submit(self, view: str, form: dict[str, str], sender: Sender) -> Response:
        """Do what a form asks for, and return to its view; show it again if that fails.

        Raises:
            Problem: There is no such view or form.
        """
        action = form.get("do", "")
        fields = {name: value for name, value in form.items() if value and name != "do"}
        if fields.get("kind", "") == "" and "value" in fields:
            fields["key"] = fields.pop("value")
            fields.pop("name", None)
        service = self._service
        operations = {"ban": service.ban, "unban": service.unban, "change": service.change, "restore": service.restore}
        if view not in VIEWS or action not in (*operations, "find"):
            raise Problem(404, "This form does not exist.")
        try:
            if action == "find":
                return _go(view, {"key": self._limiter.key_for(service.key_of(fields))})
            forced: dict[str, Any] = {"force": True} if fields.pop("force", "") else {}
            made = await operations[action]({**fields, **forced}, sender)
            kept = {"key": made["key"]} if view == "clients" and "key" in made else {}
            return _go(view, {**kept, "done": action})
        except (Problem, ConfigurationError, StoreError) as error:
            problem = problem_of(error)
            if form.get("kind"):
                form.pop("value", None)  # it may be a secret
            query = {"key": fields["key"]} if view == "clients" and "key" in fields and action != "find" else {}
            return await self.show(view, query, sender, {**form, "text": str(problem), "status": problem.status})

    def problem(self, path: str, problem: Problem) -> Response:
        """Return the page of an error."""
        template = self._templates.get_template("problem.html")
        text = template.render(problem=problem, above="../" * path.count("/", 1))
        return Response(text, problem.status, media_type="text/html")

    # -- views: each fills `shown` step by step; what needs no store is shown without one ------------------------------

    async def _now(self, shown: dict[str, Any], query: Mapping[str, str], sender: Sender) -> None:
        window = query.get("window", "5m")
        shown.update(stats=None, nearest=[], drawn=[], window=window, limits=self._limits_of_rules())
        stats = await self._service.read_statistics({"window": window}, sender)
        drawn = self._drawn.get(window)
        if drawn is None or drawn[0] is not stats:
            drawn = self._drawn[window] = stats, [charts.requests(stats, rate), charts.times(stats, rate)]
        clients = await self._service.clients.get()
        spent = [one for one in clients if one["nearest"] is not None]
        spent.sort(key=lambda one: (-one["nearest"]["used"] / one["nearest"]["amount"], one["key"]))
        shown.update(stats=stats, nearest=spent[:NEAREST], drawn=drawn[1])

    async def _clients(self, shown: dict[str, Any], query: Mapping[str, str], sender: Sender) -> None:
        sort = query.get("sort", "requests")
        shown.update(client=None, clients=[], sort=sort, missing="")
        if query.get("key"):
            try:
                shown["client"] = await self._service.read_client({"key": query["key"]}, sender)
            except ConfigurationError as error:
                shown["missing"] = str(error)
        clients = await self._service.clients.get()
        if sort == "refused":
            clients = sorted((one for one in clients if one["refused"]), key=lambda one: -one["refused"])
        shown["clients"] = clients

    async def _bans(self, shown: dict[str, Any], query: Mapping[str, str], sender: Sender) -> None:
        shown.update(bans=None, events=[])
        text = query.get("q", "")
        service = self._service
        shown["bans"] = await (service.read_bans({"q": text, "limit": "50"}, sender) if text else service.bans.get())
        shown["events"] = [
            one for one in await service.events.get() if one["kind"] not in ("refused", "shadow_refused")
        ]

    async def _shadow(self, shown: dict[str, Any], query: Mapping[str, str], sender: Sender) -> None:
        window = query.get("window", "1h")
        limits = self._limits_of_rules(shadow=True)
        policies = [one for middleware in self._limiter.middlewares for one in middleware.policies if one.shadow]
        shown.update(window=window, rules=limits, policies=policies, stats=None, found=[], bans=[])
        shown["stats"] = await self._service.read_statistics({"window": window}, sender)
        events = await self._service.events.get()
        refused = [one["details"] for one in events if one["kind"] == "shadow_refused"]
        shown["found"] = Counter((one["rule"], one["key"]) for one in refused).most_common(SHADOWED)
        shown["bans"] = [one for one in events if one["kind"] == "shadow_banned"]

    async def _configuration(self, shown: dict[str, Any], query: Mapping[str, str], sender: Sender) -> None:
        limiter = self._limiter
        middlewares = [(f"Middleware {number}", one) for number, one in enumerate(limiter.middlewares, start=1)]
        shown.update(
            version=f"{__version__}{', compiled' if compiled else ''}",
            python=platform.python_version(),
            store=store_name(limiter.store),
            is_shared=not isinstance(limiter.store, MemoryStore),
            limiter=limiter,
            limits=self._service.limits([]),
            off=None,
            middlewares=middlewares,
            workers=[],
            key_name=key_name,
        )
        shown.update(await self._service.read_limits({}, sender))
        shown["workers"] = (await self._service.read_statistics({}, sender))["workers"]

    def _limits_of_rules(self, *, shadow: bool = False) -> dict[str, list[str]]:
        """Return the limits in force by the label of their rule."""
        found: dict[str, list[str]] = {}
        for one in self._limiter.limits():
            if one.shadow or not shadow:
                found.setdefault(one.rule, []).append(str(one.limit))
        return found


def key_name(key: object) -> str:
    """Return by what a rule counts, in words."""
    if key is None:
        return "address"
    return plain(getattr(key, "identity", None) or getattr(key, "__qualname__", type(key).__qualname__))


def _go(view: str, query: Mapping[str, str]) -> Response:
    return RedirectResponse(f"./{view}?{urlencode(query)}", 303)
