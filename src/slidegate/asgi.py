"""An application behind the middleware without a line of it changed, for any ASGI server.

``uvicorn --factory slidegate.asgi:app`` serves what the environment names; ``slidegate run`` sets these variables and
starts uvicorn:

* ``SLIDEGATE_APP``: the application, as ``module:name``;
* ``SLIDEGATE_APP_FACTORY``: ``1`` where that is a function which makes it;
* ``SLIDEGATE_CONFIG``: the configuration file, by default ``slidegate.toml``;
* ``SLIDEGATE_CONFIG_STORE``: the address of a store, in the place of the file's;
* ``SLIDEGATE_DASHBOARD`` and ``SLIDEGATE_DASHBOARD_TOKEN``: the path of the dashboard, and its token.
"""

from __future__ import annotations

import os
import re
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from starlette.responses import RedirectResponse
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from .core.errors import ConfigurationError, quoted
from .core.logs import written
from .limiter import Limiter
from .web.middleware import RateLimitMiddleware
from .web.reload import ReloadingMiddleware

__all__ = ["app"]

TOKEN_VARIABLE: Final = "SLIDEGATE_DASHBOARD_TOKEN"
_VARIABLES: Final = {
    "app": "SLIDEGATE_APP",
    "factory": "SLIDEGATE_APP_FACTORY",
    "config": "SLIDEGATE_CONFIG",
    "store": "SLIDEGATE_CONFIG_STORE",
    "dashboard": "SLIDEGATE_DASHBOARD",
}
_PATH: Final = re.compile("(/[A-Za-z0-9._~-]+)+")


def app() -> ASGIApp:
    """Return the application that the environment names, behind the middleware; this is a factory for servers.

    Raises:
        ConfigurationError: A variable is missing or cannot be used, or the application cannot be imported.
        StoreError: The store cannot be opened.
    """
    application, _ = Settings.of_environment().build()
    return application


class Settings(NamedTuple):
    """What is served, as text.

    Attributes:
        app: The application, as ``module:name``.
        factory: ``"1"`` where that is a function which makes it.
        config: The configuration file; by default ``slidegate.toml``.
        store: The address of the store; empty for that of the file.
        dashboard: The path of the dashboard; empty for none.
    """

    app: str
    factory: str = ""
    config: str = ""
    store: str = ""
    dashboard: str = ""

    @classmethod
    def of_environment(cls) -> Self:
        """Read the settings from the environment."""
        return cls(**{name: os.environ.get(variable, "") for name, variable in _VARIABLES.items()})

    def write(self) -> None:
        """Leave the settings in the environment, for this process and those that it starts."""
        os.environ.update({_VARIABLES[name]: value for name, value in self._asdict().items()})

    def build(self, application: ASGIApp | None = None) -> tuple[ASGIApp, Limiter]:
        """Return the application behind the middleware, the dashboard beside it, and the limiter of both.

        Args:
            application: Stands in the place of the application that the settings name, which is not imported then.
        """
        path = Path(self.config or "slidegate.toml")
        if application is None:
            application = imported(self.app, factory=self.factory == "1")
        middleware: ReloadingMiddleware = RateLimitMiddleware.from_file(application, path, store=self.store)
        if not self.dashboard:
            return middleware, middleware.limiter
        return _WithDashboard(check_dashboard_path(self.dashboard), middleware), middleware.limiter


async def nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand where an application would."""


def imported(name: str, *, factory: bool = False) -> ASGIApp:
    """Import an application.

    Args:
        name: ``module:name``.
        factory: Whether the name is that of a function which makes it.

    Raises:
        ConfigurationError: There is no such application, or its own code raises.
    """
    example = 'for example "main:app"'
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"application: expected module:name, {example}, not {quoted(name)}")
    try:
        found: Any = attrgetter(attribute)(import_module(module))
        found = found() if factory else found
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {written(error, str)}"
        raise ConfigurationError(f"application: {quoted(name)} cannot be imported: {told}") from error
    if not callable(found):
        raise ConfigurationError(f"application: expected an ASGI application, {example}; {quoted(name)} is none")
    served: ASGIApp = found
    return served


def check_dashboard_path(path: str) -> str:
    """Return the path of the dashboard without a slash at its end.

    Raises:
        ConfigurationError: It is no such path.
    """
    place = path.removesuffix("/")
    if not _PATH.fullmatch(place):
        raise ConfigurationError(f'dashboard: expected a path such as "/slidegate", not {quoted(path)}')
    return place


class _WithDashboard:
    """The dashboard at its path, and the middleware everywhere else; the dashboard asks for its token itself."""

    def __init__(self, path: str, middleware: ReloadingMiddleware) -> None:
        try:
            from .dashboard import Dashboard
        except ImportError as error:
            raise ConfigurationError(f"dashboard: {error}") from error
        self._path = path
        self._mount = Mount(path, Dashboard(middleware.limiter, token=os.environ.get(TOKEN_VARIABLE)))
        self._middleware = middleware

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            match, below = self._mount.matches(scope)
            if match is Match.FULL:
                await self._mount.handle({**scope, **below}, receive, send)
                return
            if scope["path"] == scope.get("root_path", "") + self._path:
                # Relative, because a proxy in front may have cut off the beginning of the path.
                redirect = RedirectResponse(self._path.rpartition("/")[2] + "/")
                await redirect(scope, receive, send)
                return
        await self._middleware(scope, receive, send)
