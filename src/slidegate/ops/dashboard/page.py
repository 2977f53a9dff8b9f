"""The page of the dashboard: what each of its five views shows, and what its forms change."""

from __future__ import annotations

import platform
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from itertools import groupby
from operator import itemgetter
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from markupsafe import Markup, escape
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from ... import ConfigurationError, MemoryStore, StoreError, __version__
from ...core import compiled
from ...core.logs import escaped
from ..readers import UnreadKeyError
from ..rows import EVERYWHERE, check_key, key_of, place_of, span_of
from . import charts
from .charts import NOTHING
from .service import WINDOWS, Service, problem_of, text_of

VIEWS: Final = {"": "Now", "clients": "Clients", "bans": "Bans", "shadow": "Shadow", "configuration": "Configuration"}
_OPERATIONS: Final = {
    "ban": ("POST", "bans"),
    "unban": ("DELETE", "bans"),
    "change": ("PUT", "limits"),
    "restore": ("DELETE", "limits"),
}
"""The operation of each form that changes something."""
_UTC: Final = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z")
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


def timed(text: object) -> Markup:
    """Return the message of an event, whose times, in UTC, are elements: the page's script shows them as all others."""
    return Markup(_UTC.sub(_moment_of, str(escape(plain(text, 256)))))


def _moment_of(found: re.Match[str]) -> str:
    try:
        return str(moment(datetime.fromisoformat(found[0]).timestamp()))
    except ValueError:  # a client may choose what looks like a time
        return found[0]


def grouped(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events, each with how many `times` it follows itself: several workers report a changed limit."""
    found = [[*same] for _, same in groupby(events, key=itemgetter("kind", "message"))]
    return [{**same[0], "times": len(same)} for same in found]


@cache
def _environment() -> jinja2.Environment:
    """Return the templates, compiled: each takes tens of milliseconds, which no request of an application can wait."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slidegate.ops.dashboard"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    texts: tuple[Callable[..., Any], ...] = (count, rate, ms, span, moment, plain, timed, grouped)
    environment.filters |= {text.__name__: text for text in texts}
    environment.globals |= {"views": VIEWS, "windows": WINDOWS, "everywhere": EVERYWHERE.holds}
    environment.globals |= {"share": share, "span": span, "charts": charts, "urlencode": urlencode}
    for name in environment.list_templates():
        environment.get_template(name)
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

    async def show(self, view: str, query: Mapping[str, str], wrong: Mapping[str, Any] | None = None) -> Response:
        """Return a view.

        Args:
            view: The name of the view.
            query: What to show.
            wrong: A form that was refused, with the reason as `text`, to be shown again.

        Raises:
            HTTPException: There is no such view.
        """
        if view not in VIEWS:
            raise HTTPException(404, "This page does not exist.")
        shown: dict[str, Any] = {}
        is_failing = self._limiter.is_failing
        try:
            await getattr(self, f"_{view or 'now'}")(shown, query)
        except StoreError:
            is_failing = True
        shown |= {"view": view, "query": query, "may": self._changes, "wrong": wrong or {}}
        shown |= {"is_failing": is_failing, "on_error": self._limiter.on_error, "made": _made(query)}
        by_function = not all(one.changeable for one in self._limiter.limits())
        shown["unseen"] = "; limits of functions are not looked at" if by_function else ""
        text = self._templates.get_template(f"{view or 'now'}.html").render(shown)
        return Response(text, (wrong or {}).get("status", 200), media_type="text/html")

    async def submit(self, view: str, form: dict[str, str], by: str) -> Response:
        """Do what a form asks for, and return to its view; show it again if that fails.

        Raises:
            HTTPException: There is no such view or form.
        """
        action = form.get("do", "")
        if view not in VIEWS or action not in (*_OPERATIONS, "find"):
            raise HTTPException(404, "This form does not exist.")
        fields = {name: value for name, value in form.items() if value and name not in ("do", "kind")}
        if form.get("kind"):
            fields["key"] = f"{form['kind']}:{fields.pop('name', '')}"
        elif "value" in form:
            fields["key"] = fields.pop("value", "")
            fields.pop("name", None)
        try:
            if action == "find":
                key = fields.get("key", "")
                check_key(key)
                found = key_of(key, fields.get("value"))
                return _go(view, {"key": found if isinstance(found, str) else self._limiter.key_for(found)})
            made = await self._service.call(*_OPERATIONS[action], fields, by)
            kept = {"key": made["key"]} if "key" in made and (view == "clients" or action == "ban") else {}
            return _go(view, {**kept, "done": action})
        except (HTTPException, ConfigurationError, StoreError) as error:
            problem = problem_of(error)
            if form.get("kind"):
                form.pop("value", None)  # it may be a secret
            query = {"key": fields["key"]} if view == "clients" and "key" in fields and action != "find" else {}
            wrong = {"key": "", "name": "", **form, "text": problem.detail, "status": problem.status_code}
            wrong["is_unread"] = isinstance(error, UnreadKeyError)
            return await self.show(view, query, wrong)

    def problem(self, path: str, problem: HTTPException) -> Response:
        """Return the page of an error."""
        template = self._templates.get_template("problem.html")
        text = template.render(problem=problem, above="../" * path.count("/", 1))
        return Response(text, problem.status_code, media_type="text/html")

    # -- views: each fills `shown` step by step; what needs no store is shown without one ------------------------------

    async def _now(self, shown: dict[str, Any], query: Mapping[str, str]) -> None:
        window = query.get("window", "5m")
        shown.update(stats=None, nearest=[], drawn=[], window=window, limits=self._limits_of_rules())
        stats = await self._service.read_statistics(window)
        drawn = self._drawn.get(window)
        if drawn is None or drawn[0] is not stats:
            drawn = self._drawn[window] = stats, [charts.requests(stats, rate), charts.times(stats, rate)]
        clients = await self._service.clients.get()
        spent = [one for one in [*clients["clients"], *clients["keys"]] if one["nearest"] is not None]
        spent.sort(key=lambda one: (-one["nearest"]["used"] / one["nearest"]["amount"], one["key"]))
        shown.update(stats=stats, nearest=spent[:NEAREST], drawn=drawn[1])

    async def _clients(self, shown: dict[str, Any], query: Mapping[str, str]) -> None:
        sort = query.get("sort", "requests")
        shown.update(client=None, clients=[], keys=[], sort=sort)
        if query.get("key"):
            shown["client"] = await self._service.read_client(query["key"])
        shown.update(await self._service.clients.get())
        if sort == "refused":
            for name in ("clients", "keys"):
                refused = [one for one in shown[name] if one["refused"]]
                shown[name] = sorted(refused, key=lambda one: -one["refused"])

    async def _bans(self, shown: dict[str, Any], query: Mapping[str, str]) -> None:
        shown.update(bans=None, events=[], history=[])
        shown["bans"] = await self._service.read_bans(query.get("q", ""))
        shown.update(await self._service.read_history())
        events = await self._service.events.get()
        shown["events"] = [one for one in events if one["kind"] not in ("refused", "shadow_refused")]

    async def _shadow(self, shown: dict[str, Any], query: Mapping[str, str]) -> None:
        window = query.get("window", "1h")
        limits = self._limits_of_rules(shadow=True)
        policies = [one for middleware in self._limiter.middlewares for one in middleware.ban_policies if one.shadow]
        shown.update(window=window, rules=limits, policies=policies, stats=None, found=[], bans=[])
        shown["stats"] = await self._service.read_statistics(window)
        events = await self._service.events.get()
        refused = [one["details"] for one in events if one["kind"] == "shadow_refused"]
        shown["found"] = Counter((one["rule"], one["key"]) for one in refused).most_common(SHADOWED)
        shown["bans"] = [one for one in events if one["kind"] == "shadow_banned"]

    async def _configuration(self, shown: dict[str, Any], query: Mapping[str, str]) -> None:
        limiter = self._limiter
        middlewares = [(f"Middleware {number}", one) for number, one in enumerate(limiter.middlewares, start=1)]
        shown.update(
            version=f"{__version__}{', compiled' if compiled else ''}",
            python=platform.python_version(),
            store=type(limiter.store).__name__.removesuffix("Store"),
            is_shared=not isinstance(limiter.store, MemoryStore),
            limiter=limiter,
            limits=self._service.limits([]),
            off=None,
            middlewares=middlewares,
            workers=[],
            published={"groups": [], "rules": []},
            key_name=key_name,
        )
        shown.update(await self._service.read_limits())
        shown["published"] = await self._service.read_rules()
        shown["workers"] = (await self._service.read_statistics())["workers"]

    def _limits_of_rules(self, *, shadow: bool = False) -> dict[str, list[str]]:
        """Return the limits in force by the label of their rule."""
        found: dict[str, list[str]] = {}
        for one in self._limiter.limits():
            if one.shadow or not shadow:
                found.setdefault(one.rule, []).append(text_of(one))
        return found


def key_name(key: object) -> str:
    """Return by what a rule counts, in words."""
    if key is None:
        return "address"
    return plain(getattr(key, "identity", None) or getattr(key, "__qualname__", type(key).__qualname__))


def _made(query: Mapping[str, str]) -> str:
    """Return what is said after a change, given what to show; empty if there was none."""
    done = query.get("done")
    if done not in _OPERATIONS:
        return ""
    text = "The change is made; all workers know it within a second."
    place = place_of(query["key"]) if done == "ban" and query.get("key") else EVERYWHERE
    return text if place == EVERYWHERE else f"{text} The ban holds {place.sentence}."


def _go(view: str, query: Mapping[str, str]) -> Response:
    return RedirectResponse(f"./{view}?{urlencode(query)}", 303)
