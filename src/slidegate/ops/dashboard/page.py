"""The page of the dashboard: it draws the views, and its forms change bans and limits."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from typing import Any, Final
from urllib.parse import urlencode

import jinja2
from starlette.exceptions import HTTPException
from starlette.responses import RedirectResponse, Response

from ... import ConfigurationError, StoreError, __version__
from ...core import compiled
from ..kinds import KINDS
from ..published_rules import check_key, where_banned
from ..recent_events import MAX_ALIKE
from ..rows import key_of, share, span
from ..tasks import together
from . import texts
from .api import Api, problem_of
from .service import WINDOWS, Service
from .views import VIEWS, Query

TITLES: Final = {"": "Now", "clients": "Clients", "bans": "Bans", "configuration": "Configuration"}
"""The titles of the views by path; that of a rule or a route has the path of the first."""
_OPERATIONS: Final = {
    "ban": ("POST", "bans"),
    "unban": ("DELETE", "bans"),
    "override": ("PUT", "limits"),
    "restore": ("DELETE", "limits"),
}
"""The operation of each form that changes something, by the kind of action that it is in the history."""
_FILTERS: Final = (
    texts.answers,
    texts.count,
    texts.digits,
    texts.ms,
    span,
    texts.moment,
    texts.plain,
    texts.timed,
)
_GLOBALS: Final = {
    "rate": texts.rate,
    "share": share,
    "grouped": texts.grouped,
    "titles": TITLES,
    "windows": WINDOWS,
    "kinds": KINDS,
    "kept": MAX_ALIKE,
    "marks": ("ban", "change", "outage", "start"),
    "version": __version__,
    "compiled": compiled,
    "python": platform.python_version(),
}


@cache
def environment() -> jinja2.Environment:
    """Return the templates, compiled: each takes tens of milliseconds, for which no request may wait."""
    templates = jinja2.Environment(
        loader=jinja2.PackageLoader("slidegate.ops.dashboard"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    templates.filters.update((text.__name__, text) for text in _FILTERS)
    templates.globals.update(_GLOBALS)
    for name in templates.list_templates():
        templates.get_template(name)
    return templates


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

    async def show(self, path: str, query: Query, wrong: Mapping[str, Any] | None = None) -> Response:
        """Return a view.

        Args:
            path: The path of the view.
            query: The query of the request.
            wrong: A form that was refused, to be shown again, with the reason as `text`, and the `status` for it.

        Raises:
            HTTPException: There is no such view.
        """
        if path not in TITLES:
            raise HTTPException(404, "This page does not exist.")
        name = path or "now"
        if name == "now" and (query.get("rule") or query.get("route")):
            name = "part"
        wrong = wrong or {}
        status = wrong.get("status", 200)
        variables = {"path": path, "query": query, "wrong": wrong, "limiter": self._limiter}
        try:
            view, notice = await together(VIEWS[name](self._service, query), self._notice(query))
        except StoreError:
            return self._draw("away", status, **variables, line=await self._service.line())
        return self._draw(name, status, **variables, view=view, notice=notice)

    async def _notice(self, query: Query) -> str:
        """Return the text about the change that was made just before; empty unless it is the last of its target."""
        done = query.get("done")
        if done is None:
            return ""
        target = query.get("key", query.get("name", ""))
        kinds = [action.kind for action in await self._service.history() if action.target == target]
        if done not in kinds[:1]:
            return ""
        text = "The change is made; all workers know it within a second."
        if not self._limiter.store.shared_rows:
            text = "The change is made in this worker alone: the store is in memory."
        if done == "ban":
            text += f" Of the ban: {where_banned(await self._service.published(), target)}."
        return text

    def problem(self, path: str, problem: HTTPException) -> Response:
        """Return the page of an error."""
        above = "../" * path.count("/", 1)
        return self._draw("problem", problem.status_code, problem=problem, above=above)

    def _draw(self, name: str, status: int, **variables: Any) -> Response:
        text = self._templates.get_template(f"{name}.html").render(variables, may=self._changes)
        return Response(text, status, media_type="text/html")

    # -- forms ---------------------------------------------------------------------------------------------------------

    async def submit(self, path: str, query: Query, form: dict[str, str], by: str) -> Response:
        """Do what a form asks for, and return to its view; show it again if that fails.

        Raises:
            HTTPException: There is no such view or form.
        """
        action = form.get("do", "")
        if path not in TITLES or action not in (*_OPERATIONS, "find"):
            raise HTTPException(404, "This form does not exist.")
        fields = _fields_of(form)
        try:
            if action == "find":
                await check_key(self._limiter, fields.get("key", ""))
                key = key_of(fields["key"], fields.get("value"))
                if not isinstance(key, str):  # of a value, which may be secret
                    key = self._limiter.key_for(key)
                return _redirect(path, key=key)
            changed = await self._api.call(*_OPERATIONS[action], fields, by)
        except (HTTPException, ConfigurationError, StoreError) as error:
            problem = problem_of(error)
            if form.get("kind"):
                form.pop("value", None)  # it may be a secret
            wrong = {"key": "", "name": "", **form, "text": problem.detail, "status": problem.status_code}
            return await self.show(path, query, wrong)
        if "key" in changed:
            return _redirect(path, key=changed["key"], done=action)
        return _redirect(path, name=changed["name"], done=action)


def _fields_of(form: Mapping[str, str]) -> dict[str, str]:
    """Return the fields of an operation, given those of a form, which may name a key by kind, source and value."""
    fields = dict(form)
    del fields["do"]
    kind = fields.pop("kind", "")
    source = fields.pop("source", "")
    if kind:
        fields["key"] = f"{kind}:{source}"
    elif "value" in fields:
        fields["key"] = fields.pop("value")
    return fields


def _redirect(path: str, **query: str) -> Response:
    return RedirectResponse(f"./{path}?{urlencode(query)}", 303)
