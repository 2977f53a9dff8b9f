"""``slidegate run MODULE:APP``: builds the middleware once to say what is wrong, and hands over to uvicorn."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from typing import Any, Final

import click
from uvicorn.main import main as uvicorn_command

from ..asgi import TOKEN_VARIABLE, Settings, check_dashboard_path, nothing
from ..core.errors import ConfigurationError, StoreError
from ..limiter import Limiter
from ..limiter.aio import within
from .exits import BAD_INPUT, print_error
from .report import silent_log

LOOK_S: Final = 5.0
"""How long the store may take to answer before the server starts."""
_OURS: Final = [
    click.Argument(["app"], metavar="MODULE:APP"),
    click.Option(
        ["--rules"], default="slidegate.toml", show_default=True, metavar="FILE", help="The configuration file."
    ),
    click.Option(["--store"], default="", metavar="URL", help="The store, before that of the file."),
    click.Option(
        ["--dashboard"],
        default="",
        metavar="PATH",
        help=f"Serve the dashboard there. Its token is {TOKEN_VARIABLE}, or one that is made and shown once.",
    ),
]
_NOT_THEIRS: Final = {"app", "version"}


def _run(app: str, rules: str, store: str, dashboard: str, **options: Any) -> None:
    """Serve an ASGI application behind the middleware, with the rules of a configuration file.

    No line of the application changes. All other options are those of uvicorn. Another server serves the same with
    the factory slidegate.asgi:app and environment variables.

    \b
    Example: slidegate run main:app --rules slidegate.toml --workers 2
    """
    if options.get("interface") not in (None, "auto", "asgi3"):
        raise ConfigurationError(f"--interface: the middleware is for ASGI 3, not for {options['interface']!r}")
    factory = "1" if options.pop("factory", False) else ""
    settings = Settings(app, factory, rules, store, check_dashboard_path(dashboard) if dashboard else "")
    made_token = bool(dashboard) and not os.environ.get(TOKEN_VARIABLE)
    if made_token:
        os.environ[TOKEN_VARIABLE] = secrets.token_urlsafe(32)
    sys.path.insert(0, options.get("app_dir") or "")
    _check(settings, reloads=bool(options.get("reload")))
    if made_token:
        print_error(f"the token of the dashboard, which is not shown again: {os.environ[TOKEN_VARIABLE]}")
    settings.write()
    assert uvicorn_command.callback is not None
    try:
        uvicorn_command.callback(app="slidegate.asgi:app", factory=True, **options)
    except SystemExit as end:
        # The server has said what is wrong; its own codes mean other things than ours.
        if end.code:
            raise click.exceptions.Exit(BAD_INPUT) from None


def _check(settings: Settings, *, reloads: bool) -> None:
    """Build everything as a worker does, and close it: what fails here would fail in every worker, again and again.

    Raises:
        ConfigurationError: The application, the file, the store or the token cannot be used.
    """
    with silent_log():
        try:
            # A reloader waits until the code of the application is mended, so that is not imported.
            _, limiter = settings.build(nothing if reloads else None)
        except StoreError as error:
            raise ConfigurationError(str(error)) from error
        asyncio.run(_say_if_away(limiter))


async def _say_if_away(limiter: Limiter) -> None:
    """Say that the store does not answer, and close the limiter; the server starts, and goes by `on_error`."""
    stats, failover = limiter.store.shared_stats, limiter.engine.failover
    decides = "on_error" if failover is None else f"on_error={failover.on_error!r}"
    try:
        if stats is not None:
            await within(stats.time(), LOOK_S)
    except StoreError as error:
        print_error(f"{limiter.store!r} does not answer, so {decides} decides until it does: {error}")
    finally:
        await limiter.close()


run: Final = click.Command(
    "run",
    params=[*_OURS, *(one for one in uvicorn_command.params if one.name not in _NOT_THEIRS)],
    callback=_run,
    help=_run.__doc__,
)
"""The sub-command."""
