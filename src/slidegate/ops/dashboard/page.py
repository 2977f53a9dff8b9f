"""The page of the dashboard: it draws four views, and its forms change bans and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from ... import ConfigurationError, StoreError
from ..readers import where_banned
from ..rows import check_key, key_of
from . import texts, views
from .api import Api, problem_of
from .service import WINDOWS, Service, together
from .views import Query

VIEWS: Final = {"": "Now", "clients": "Clients", "bans": "Bans", "configuration": "Configuration"}
MAX_FIRST: Final = 6
"""How many clients the first view shows."""
_OPERATIONS: Final = {
    "ban": ("POST", "bans"),
    "unban": ("DELETE", "bans"),
    "change": ("PUT", "limits"),
    "restore": ("DELETE", "limits"),
}
"""The operation of each form that changes something."""
_FILTERS: Final[tuple[Callable[..., Any], ...]] = (
    texts.count,
    texts.ms,
    texts.span,
    texts.moment,
    texts.plain,
    texts.timed,
)
_FUNCTIONS: Final[tuple[Callable[..., Any], ...]] = (
    texts.rate,
    texts.share,
    texts.address,
    texts.grouped,
)


@cache
def environment() -> jinja2.Environment:
    """Return the templates, compiled: each takes tens of milliseconds, which no request of an application can wait."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("slidegate.ops.dashboard"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters |= {text.__name__: text for text in _FILTERS}
    environment.globals |= {function.__name__: function for function in _FUNCTIONS}
    environment.globals |= {"views": VIEWS, "windows": WINDOWS, "max_first": MAX_FIRST}
    for name in environment.list_templates():
        environment.get_template(name)
    return environment


class Page:
    """Draws the views.

    Args:
        service: Reads the limiter.
        api: Changes it.
        changes: Whether the page has forms for changes.
    """

    def __init__(self, service: Service, api: Api, *, changes: bool) -> None:
        self._service = service
        self._api = api
        self._limiter = service.limiter
        self._changes = changes
        self._templates = environment()

    async def show(self, name: str, query: Query, wrong: Mapping[str, Any] | None = None) -> Response:
        """Return a view.

        Args:
            name: The name of the view.
            query: What to show.
            wrong: A form that was refused, with the reason as `text`, to be shown again.

        Raises:
            HTTPException: There is no such view.
        """
        if name not in VIEWS:
            raise HTTPException(404, "This page does not exist.")
        is_failing, tabs, made = self._limiter.is_failing, {}, ""
        try:
            view, tabs, made = await together(
                views.view_of(self._service, name, query), self._numbers(), self._made(query)
            )
        except StoreError:
            view, is_failing = await views.view_without_store(self._service, name), True
        wrong = wrong or {}
        shown = {
            "view": view,
            "name": name,
            "query": query,
            "tabs": tabs,
            "may": self._changes,
            "wrong": wrong,
            "made": made,
            "is_failing": is_failing,
        }
        template = name or "now"
        if isinstance(view, views.OnePart):
            template = "part"
        text = self._templates.get_template(f"{template}.html").render(shown, title=VIEWS[name], problem=None, above="")
        return Response(text, wrong.get("status", 200), media_type="text/html")

    async def _numbers(self) -> dict[str, tuple[int, str]]:
        """Return the numbers beside the names of views, and of what they are."""
        service = self._service
        clients, bans, changes = await together(service.clients(), service.bans(), service.overrides())
        findings = sum(len(middleware.findings) for middleware in self._limiter.middlewares)
        return {
            "clients": (len(clients.refused), "refused"),
            "bans": (bans.total, "active"),
            "configuration": (findings + len(changes), "findings and changes"),
        }

    async def submit(self, view: str, form: dict[str, str], by: str) -> Response:
        """Do what a form asks for, and return to its view; show it again if that fails.

        Raises:
            HTTPException: There is no such view or form.
        """
        action = form.get("do", "")
        if view not in VIEWS or action not in (*_OPERATIONS, "find"):
            raise HTTPException(404, "This form does not exist.")
        fields = _fields_of(form)
        try:
            if action == "find":
                return _go(view, {"key": self._key_in(fields)})
            made = await self._api.call(*_OPERATIONS[action], fields, by)
            if "key" in made and (view == "clients" or action == "ban"):
                return _go(view, {"key": made["key"], "done": action})
            return _go(view, {"done": action})
        except (HTTPException, ConfigurationError, StoreError) as error:
            return await self._again(view, form, fields, error)

    def _key_in(self, fields: Mapping[str, str]) -> str:
        """Return the key that a form names, as it was typed; a value that may be secret as its digest.

        Raises:
            ConfigurationError: It is no key.
        """
        typed = fields.get("key", "")
        check_key(typed)
        key = key_of(typed, fields.get("value"))
        if isinstance(key, str):
            return key
        return self._limiter.key_for(key)

    async def _again(self, view: str, form: dict[str, str], fields: Mapping[str, str], error: Exception) -> Response:
        """Return a view with a form that was refused, and why."""
        problem = problem_of(error)
        if form.get("kind"):
            form.pop("value", None)  # it may be a secret
        query: dict[str, str] = {}
        if view == "clients" and "key" in fields and form["do"] != "find":
            query["key"] = fields["key"]
        wrong: dict[str, Any] = {"key": "", "name": "", **form}
        wrong |= {"text": problem.detail, "status": problem.status_code}
        return await self.show(view, query, wrong)

    async def _made(self, query: Mapping[str, str]) -> str:
        """Return what is said after a change, given what to show; empty if there was none."""
        done, key = query.get("done"), query.get("key")
        if done not in _OPERATIONS:
            return ""
        text = "The change is made; all workers know it within a second."
        if done == "ban" and key:
            text += f" Of the ban: {where_banned(await self._service.published(), key)}."
        return text

    def problem(self, path: str, problem: HTTPException) -> Response:
        """Return the page of an error."""
        template = self._templates.get_template("problem.html")
        above = "../" * path.count("/", 1)
        shown = {"made": "", "is_failing": False, "wrong": None, "name": None}
        text = template.render(shown, problem=problem, title=problem.status_code, above=above)
        return Response(text, problem.status_code, media_type="text/html")


def _fields_of(form: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an operation, given those of a form: it names the key by a kind, a name and a value."""
    fields = {name: value for name, value in form.items() if value and name not in ("do", "kind")}
    if form.get("kind"):
        fields["key"] = f"{form['kind']}:{fields.pop('name', '')}"
    elif "value" in form:
        fields["key"] = fields.pop("value", "")
        fields.pop("name", None)
    return fields


def _go(view: str, query: Mapping[str, str]) -> Response:
    return RedirectResponse(f"./{view}?{urlencode(query)}", 303)
