"""``slidegate check TARGET``: finds probable mistakes before users do."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import click
from starlette.types import ASGIApp, Message

from ..core.errors import ConfigurationError, StoreUnavailable, quoted
from ..core.logs import written
from ..limiter.open_store import open_store
from ..web.checks import Finding
from ..web.config import STORE_VARIABLE
from .app_checks import about_application, about_directory, about_store, middlewares_in
from .exits import FINDINGS, OK
from .report import Report, Reporter, Result, Table, silent_log, with_report
from .store import middleware_of

START_TIMEOUT_S: Final = 60.0


@click.command()
@click.argument("target")
@click.option("--factory", is_flag=True, help="The name is that of a function which makes the application.")
@click.option("--app-dir", default="", metavar="DIRECTORY", help="Look for modules there.")
@with_report("json", "csv")
def check(out: Reporter, target: str, factory: bool, app_dir: str) -> Result:
    """Look for probable mistakes in TARGET, a configuration file or an application as module:app.

    An application is started as a server starts it, and stopped again. Ends with 0 if nothing was found, with 1 if
    something was, and with 2 if TARGET cannot be used.

    \b
    Example: slidegate check main:app
    """
    with silent_log():
        if ":" in target and not Path(target).exists():
            sys.path.insert(0, app_dir)
            findings = asyncio.run(_about_app(_imported(target, factory=factory)))
        else:
            findings = asyncio.run(_about_file(out, Path(target)))
    # Several middlewares may say one thing.
    findings = list(dict.fromkeys(findings))
    table = Table(Finding._fields, [finding._asdict() for finding in findings])
    return Report(
        table, map(str, findings) if findings else ["Nothing was found."], table, FINDINGS if findings else OK
    )


def _imported(name: str, *, factory: bool) -> ASGIApp:
    """Import an application that is written ``module:name``.

    Raises:
        ConfigurationError: There is no such application, or its own code raises.
    """
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise ConfigurationError(f'application: expected module:name, for example "main:app", not {quoted(name)}')
    try:
        found: Any = attrgetter(attribute)(import_module(module))
        found = found() if factory else found
    except (Exception, SystemExit) as error:
        told = f"{type(error).__name__}: {written(error, str)}"
        raise ConfigurationError(f"application: {quoted(name)} cannot be imported: {told}") from error
    if not callable(found):
        raise ConfigurationError(
            f'application: expected an ASGI application such as "main:app"; {quoted(name)} is none'
        )
    served: ASGIApp = found
    return served


async def _about_app(app: Any) -> list[Finding]:
    async with _started(app):
        middlewares = middlewares_in(app)
        findings = list(about_application(middlewares))
        for limiter in dict.fromkeys(middleware.limiter for middleware in middlewares):
            findings += [one async for one in about_store(limiter, repr(limiter.store))]
    return findings


async def _about_file(out: Reporter, path: Path) -> list[Finding]:
    middleware = middleware_of(path)
    findings: list[Finding] = []
    missing = _directory_to_make(path)
    if missing is None:
        middleware = middleware_of(path, store="")
    else:
        findings += about_directory(missing)
        out.note(f"{path}: its store is not there yet, and a check makes none")
    try:
        limiter = middleware.limiter
        findings += middleware.findings
        return findings + [one async for one in about_store(limiter, repr(limiter.store))]
    finally:
        await middleware.limiter.close()


def _directory_to_make(path: Path) -> Path | None:
    """Return the directory of the store of a file, where it is LMDB's and not there yet."""
    named = tomllib.loads(path.read_text("utf-8")).get("store", {"env": STORE_VARIABLE})
    address = os.environ.get(named["env"], "") if isinstance(named, dict) else named
    if not address.startswith("lmdb:"):
        return None
    directory = Path(unquote(urlsplit(address).path))
    if directory.exists():
        return None
    try:
        open_store(address, read_only=True)
    except StoreUnavailable:
        return directory
    except ConfigurationError:
        pass  # the middleware says it, with the key in the file; it makes nothing of such an address
    return None


@asynccontextmanager
async def _started(app: ASGIApp) -> AsyncIterator[None]:
    """Run the lifespan of an application around a block; one that knows no lifespan is taken as it is.

    Raises:
        ConfigurationError: The start fails, or takes too long.
    """
    sent: asyncio.Queue[Message] = asyncio.Queue()
    received: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.ensure_future(app(scope, received.get, sent.put))
    try:
        received.put_nowait({"type": "lifespan.startup"})
        await _answer(sent, running, "start")
        yield
        received.put_nowait({"type": "lifespan.shutdown"})
        await _answer(sent, running, "end")
    finally:
        running.cancel()
        with suppress(BaseException):
            await running


async def _answer(sent: asyncio.Queue[Message], running: asyncio.Future[None], phase: str) -> None:
    asking = asyncio.ensure_future(sent.get())
    await asyncio.wait((asking, running), timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
    message = asking.result() if asking.done() else None
    asking.cancel()
    if message is None and not running.done():
        raise ConfigurationError(f"application: its {phase} took longer than {START_TIMEOUT_S:g} s")
    if message is not None and message["type"].endswith(".failed"):
        # Starlette tells a whole traceback, whose frames are indented; behind them stands the exception.
        error = re.split(r"^ .*\n", message.get("message", ""), flags=re.MULTILINE)[-1]
        raise ConfigurationError(f"application: its {phase} failed: {error}")
