"""``slidegate run MODULE:APP``: checks what can be checked before the start, and hands over to uvicorn."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any, Final

import click
from uvicorn.main import main as uvicorn_command

from ...core.errors import ConfigurationError
from ..exits import BAD_INPUT, complain
from .served import FACTORY, TOKEN_VARIABLE, Settings, check_file, check_place, guarded, imported, keep, put_on_path

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


def _serve(app: str, rules: str, store: str, dashboard: str, **options: Any) -> None:
    """Serve an ASGI application behind the gate, with the rules of a configuration file.

    No line of the application changes. All other options are those of uvicorn.
    """
    if options.get("interface") not in (None, "auto", "asgi3"):
        raise ConfigurationError(f"--interface: the gate is for ASGI 3 applications, not {options['interface']!r}")
    factory = "1" if options.pop("factory", False) else ""
    settings = Settings(app, factory, rules, store, check_place(dashboard) if dashboard else "")
    if dashboard and not os.environ.get(TOKEN_VARIABLE):
        os.environ[TOKEN_VARIABLE] = secrets.token_urlsafe(32)
        complain(f"the token of the dashboard, which is not shown again: {os.environ[TOKEN_VARIABLE]}")
    put_on_path(options.get("app_dir") or "")
    if options.get("reload"):
        check_file(Path(rules))  # a reloader waits until the code of the application is mended
    elif (options.get("workers") or _workers_of_environment()) > 1:
        check_file(Path(rules))
        imported(app)
    else:
        keep(guarded(settings))
    settings.hand_on()
    assert uvicorn_command.callback is not None
    try:
        uvicorn_command.callback(app=FACTORY, factory=True, **options)
    except SystemExit as end:
        # The server has said what is wrong; its own codes mean other things than ours.
        if end.code:
            raise click.exceptions.Exit(BAD_INPUT) from None


def _workers_of_environment() -> int:
    """Return the number of workers that uvicorn reads where no option names it."""
    text = os.environ.get("WEB_CONCURRENCY", "")
    return int(text) if text.isascii() and text.isdigit() else 1


serve: Final = click.Command(
    "run",
    params=[*_OURS, *(one for one in uvicorn_command.params if one.name not in _NOT_THEIRS)],
    callback=_serve,
    help=_serve.__doc__,
)
"""The sub-command."""
