"""``slidegate check TARGET``: finds probable mistakes before users do, for people, for programs and for GitHub."""

from __future__ import annotations

import asyncio
import logging
import os
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
from starlette.types import Receive, Scope, Send

from ...core.errors import ConfigurationError, StoreUnavailable
from ...core.logs import logger
from ...limiter import Limiter
from ...limiter.open_store import open_store
from ...web.checks import Finding
from ...web.middleware import RateLimitMiddleware
from ..exits import FINDINGS
from ..output import Output, clean, with_output
from ..running.served import imported, put_on_path
from ..stored.opened import VARIABLE
from .diagnosis import about_fields, about_gates, about_routes, about_store
from .started import gates_in, started

_COLUMNS: Final = ("code", "message")


@click.command()
@click.argument("target")
@click.option("--rules", metavar="FILE", help="Look at the application as `slidegate run --rules FILE` serves it.")
@click.option("--factory", is_flag=True, help="The name is that of a function which makes the application.")
@click.option("--app-dir", default="", metavar="DIRECTORY", help="Look for modules there.")
@with_output("github")
def check(out: Output, target: str, rules: str | None, factory: bool, app_dir: str) -> None:
    """Look for probable mistakes in TARGET, a configuration file or an application as module:app.

    An application is started as a server starts it, and stopped again. Ends with 0 if nothing was found, with 1 if
    something was, and with 2 if TARGET cannot be used.
    """
    with _silent():
        if ":" in target and not Path(target).exists():
            put_on_path(app_dir)
            app = imported(target, "1" if factory else "")
            if rules is not None:
                app = RateLimitMiddleware.from_file(app, Path(rules))
            found = asyncio.run(_about_app(app))
        elif rules is not None:
            raise ConfigurationError(f'--rules: it goes with an application such as "main:app", not with {target!r}')
        else:
            found = asyncio.run(_about_file(out, Path(target)))
    # Several gates may say one thing.
    found = list(dict.fromkeys(found))
    _show(out, target, found)
    if found:
        raise click.exceptions.Exit(FINDINGS)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep findings out of the log while they are collected."""
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


async def _about_app(app: Any) -> list[Finding]:
    async with started(app):
        gates = list(dict.fromkeys(gates_in(app)))
        found = [*about_gates(gates), *about_fields(app), *about_routes(app, gates)]
        for limiter in dict.fromkeys(gate.limiter for gate in gates):
            found += [one async for one in about_store(limiter, repr(limiter.store))]
    return found


async def _about_file(out: Output, path: Path) -> list[Finding]:
    RateLimitMiddleware.from_file(_nothing, path, limiter=Limiter(), replace_store=True)
    options: dict[str, Any] = {}
    if not _is_made(path):
        out.note(f"{path}: its store is not there yet, and a check makes none")
        options = {"limiter": Limiter(), "replace_store": True}
    gate = RateLimitMiddleware.from_file(_nothing, path, **options).app
    try:
        return [*about_gates([gate]), *[one async for one in about_store(gate.limiter, repr(gate.limiter.store))]]
    finally:
        await gate.limiter.close()


def _is_made(path: Path) -> bool:
    """Return whether the store of a file may be looked at without being made: a directory of LMDB is there."""
    named = tomllib.loads(path.read_text("utf-8")).get("store", {"env": VARIABLE})
    address = os.environ.get(named["env"], "") if isinstance(named, dict) else named
    if not address.startswith("lmdb:") or Path(unquote(urlsplit(address).path)).exists():
        return True
    try:
        open_store(address, read_only=True)
    except StoreUnavailable:
        return False
    except ConfigurationError:
        pass  # the gate says it, with the key in the file; it makes nothing of such an address
    return True


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand where an application would."""


def _show(out: Output, target: str, found: Sequence[Finding]) -> None:
    if out.form == "github":
        out.write(_annotations(target, found))
    elif out.form != "text":
        out.rows(_COLUMNS, found)
    else:
        out.say(*(str(one) for one in found) if found else ("Nothing was found.",))


def _annotations(target: str, found: Iterable[Finding]) -> Iterator[str]:
    file = f"file={_property(target)}," if Path(target).exists() else ""
    for one in found:
        yield f"::warning {file}title={one.code}::{_data(one.message)}"


def _data(text: str) -> str:
    return clean(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
