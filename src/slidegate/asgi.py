"""The application that ``slidegate run`` gives to the server: the gate, around the application of the user.

Workers and reloaders are new processes, which import the application by name. So the settings stand in the environment,
and `make_app` is a factory.
"""

from __future__ import annotations

import os
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from starlette.responses import RedirectResponse
from starlette.routing import Match, Mount
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.importer import ImportFromStringError, import_from_string

from ...core.errors import ConfigurationError, quoted
from ...core.logs import written
from ...limiter import Limiter
from ...web.middleware import RateLimitMiddleware
from ...web.reload import SECRET_VARIABLE

FACTORY: Final = f"{__name__}:make_app"
TOKEN_VARIABLE: Final = "SLIDEGATE_DASHBOARD_TOKEN"
_VARIABLE: Final = "SLIDEGATE_RUN_{}"
_PLACE: Final = re.compile("(/[A-Za-z0-9._~-]+)+")


class Settings(NamedTuple):
    """The settings of one run, as text.

    Attributes:
        app: The application, as ``module:name``.
        factory: ``"1"`` where that is a function which makes it.
        rules: The configuration file.
        store: The address of the store; empty for that of the file.
        dashboard: The path of the dashboard; empty for none.
    """

    app: str
    factory: str = ""
    rules: str = "slidegate.toml"
    store: str = ""
    dashboard: str = ""

    def hand_on(self) -> None:
        """Leave the settings for `make_app`, in this process and those that it starts."""
        os.environ.update({_VARIABLE.format(name.upper()): value for name, value in self._asdict().items()})

    @classmethod
    def left(cls) -> Self:
        """Return the settings that were left."""
        return cls(**{name: os.environ.get(_VARIABLE.format(name.upper()), "") for name in cls._fields})


_kept: list[ASGIApp] = []


def keep(app: ASGIApp) -> None:
    """Keep an application for the `make_app` of this process: a factory of the user is called once."""
    _kept[:] = [app]


def make_app() -> ASGIApp:
    """Return the application that was kept, or make one out of the settings in the environment.

    Raises:
        ConfigurationError: The application cannot be imported, or the file cannot be used.
    """
    return _kept.pop() if _kept else guarded(Settings.left())


def guarded(settings: Settings) -> ASGIApp:
    """Return the application of the user behind a gate, and the dashboard beside it.

    Raises:
        ConfigurationError: The application cannot be imported, or a setting cannot work.
    """
    options: dict[str, Any] = {}
    path = Path(settings.rules)
    if settings.store:
        check_file(path)
        found = tomllib.loads(path.read_text("utf-8"))
        policy = {name: found[name] for name in ("deadline", "on_error") if name in found}
        secret = os.environ.get(SECRET_VARIABLE)
        options["limiter"] = Limiter.from_url(settings.store, secret=secret, **policy)
    gate = RateLimitMiddleware.from_file(imported(settings.app, settings.factory), path, **options)
    return _Beside(settings.dashboard, gate.limiter, gate) if settings.dashboard else gate


def check_file(path: Path) -> None:
    """Read a configuration file, and leave its store alone.

    Raises:
        ConfigurationError: The file cannot be used.
    """
    RateLimitMiddleware.from_file(_nothing, path, limiter=Limiter(), replace_store=True)


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand where an application would."""


def imported(name: str, factory: str = "") -> ASGIApp:
    """Import an application.

    Args:
        name: ``module:name``.
        factory: Not empty where the name is that of a function which makes it.

    Raises:
        ConfigurationError: There is no such application, or its own code raises.
    """
    example = 'for example "main:app"'
    module, colon, attribute = name.partition(":")
    if not (module and colon and attribute):
        raise ConfigurationError(f"application: expected module:name, {example}, not {quoted(name)}")
    try:
        found: Callable[..., Any] = import_from_string(name)
        found = found() if factory else found
    except ImportFromStringError as error:
        raise ConfigurationError(f"application: {written(error, str)}") from error
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {written(error, str)}"
        raise ConfigurationError(f"application: {quoted(name)} cannot be imported: {told}") from error
    if not callable(found):
        raise ConfigurationError(f"application: expected an ASGI application, {example}; {quoted(name)} is none")
    return found


def check_place(path: str) -> str:
    """Return the path of the dashboard without a slash at its end.

    Raises:
        ConfigurationError: It is no such path.
    """
    place = path.removesuffix("/")
    if not _PLACE.fullmatch(place):
        raise ConfigurationError(f'--dashboard: expected a path such as "/slidegate", not {quoted(path)}')
    return place


class _Beside:
    """The dashboard at its path, and the gate everywhere else; the dashboard has a door of its own."""

    def __init__(self, path: str, limiter: Limiter, gate: ASGIApp) -> None:
        try:
            from ...admin.mounted import Dashboard
        except ModuleNotFoundError as error:
            missing = f'it needs the package {error.name}: pip install "slidegate[dashboard]"'
            raise ConfigurationError(f"--dashboard: {missing}") from error
        self._path = path
        self._mount = Mount(path, Dashboard(limiter, token=os.environ.get(TOKEN_VARIABLE)))
        self._gate = gate

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
        await self._gate(scope, receive, send)


def put_on_path(directory: str) -> None:
    """Let modules be imported from a directory, as the server does."""
    if directory not in sys.path:
        sys.path.insert(0, directory)
