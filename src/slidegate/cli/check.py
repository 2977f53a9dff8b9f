"""``slidegate check TARGET``: finds probable mistakes in a configuration file or an application.

The findings of a single middleware, which are also logged at startup, are in `web.checks`.
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import click
from starlette.routing import Mount
from starlette.types import ASGIApp, Message

from ..core.errors import ConfigurationError, StoreError
from ..core.logs import written
from ..limiter import Limiter
from ..web.checks import Finding
from ..web.config import STORE_VARIABLE
from ..web.middleware import RateLimitMiddleware
from ..web.routes import DEPTH, layers, router_of, routes_of
from .config_file import middleware_of
from .output import failed, note, one_line, show, with_format

CODES: Final = {
    "SG201": "the application has no middleware",
    "SG202": "the store cannot be reached",
}
"""The codes of findings that only `slidegate check` reports, with their titles."""
START_TIMEOUT_S: Final = 60.0
_NOBODY: Final = "192.0.2.0"


@click.command()
@click.argument("target")
@click.option("--factory", is_flag=True, help="TARGET names a function that returns the application.")
@click.option("--app-dir", default="", metavar="DIRECTORY", help="The directory of the module.")
@with_format
@click.pass_context
def check(ctx: click.Context, target: str, factory: bool, app_dir: str, as_json: bool) -> None:
    """Find probable mistakes in TARGET.

    TARGET is a configuration file, or an application as module:app. The lifespan of an application is run, as by a
    server. The exit code is 0 without findings, and 1 with findings or if TARGET cannot be loaded.

    \b
    Example: slidegate check main:app
    """
    is_file = Path(target).is_file() or target.endswith(".toml")
    if target.endswith(".py") or not (is_file or ":" in target):
        written = f"{target.removesuffix('.py').strip('./').replace('/', '.') or 'main'}:app"
        raise click.BadParameter(
            f"{target!r} is not a configuration file; expected an application as module:app, did you mean {written!r}?"
        )
    try:
        if is_file:
            found = asyncio.run(_about_file(Path(target)))
        else:
            sys.path.insert(0, app_dir)
            found = asyncio.run(_about_app(_imported(target, factory=factory)))
    except ConfigurationError as error:
        raise failed(error) from error
    findings = list(dict.fromkeys(found))  # several middlewares may report the same finding
    rows = [finding._asdict() for finding in findings]
    show(as_json, rows, map(str, findings) if findings else ["Nothing was found."])
    if findings:
        ctx.exit(1)


def _imported(name: str, *, factory: bool) -> ASGIApp:
    """Import the application ``module:name``.

    Raises:
        click.ClickException: It does not exist, or importing it raises.
    """
    module, _, attribute = name.partition(":")
    if not (module and attribute):
        raise click.BadParameter(f'expected an application as module:app, for example "main:app", not {name!r}')
    try:
        found: Any = attrgetter(attribute)(import_module(module))
        found = found() if factory else found
    except (Exception, SystemExit) as error:
        raise click.ClickException(f"{name!r} cannot be imported: {type(error).__name__}: {one_line(error)}") from error
    if not callable(found):
        raise click.ClickException(f'{name!r} is not an ASGI application; expected one, for example "main:app"')
    served: ASGIApp = found
    return served


async def _about_app(app: Any) -> list[Finding]:
    async with _started(app):
        middlewares = middlewares_in(app)
        findings = list(_about_application(middlewares))
        for limiter in dict.fromkeys(middleware.limiter for middleware in middlewares):
            findings += await _about_store(limiter)
    return findings


def middlewares_in(app: Any, depth: int = 0) -> list[RateLimitMiddleware]:
    """Return the middlewares of an application, of its routers and routes, and of mounted applications."""
    found: list[Any] = list(layers(app))
    router = router_of(app)
    for layer in [*found]:
        if hasattr(layer, "build_middleware_stack") and layer.middleware_stack is None:
            # A mounted application gets no lifespan, so it would build its stack at its first request.
            layer.middleware_stack = layer.build_middleware_stack()
        found += layers(getattr(layer, "middleware_stack", None))
    found += layers(getattr(router, "middleware_stack", None))
    middlewares = [layer for layer in found if isinstance(layer, RateLimitMiddleware)]
    for route in (routes_of(app) or ()) if depth < DEPTH else ():
        below = getattr(route, "app", None)
        if isinstance(route, Mount) or below is not None:
            middlewares += middlewares_in(below, depth + 1)
    return list(dict.fromkeys(middlewares))


def _about_application(middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    if not middlewares:
        yield Finding(
            "SG201",
            "the application has no RateLimitMiddleware, so nothing is limited; write "
            'app.add_middleware(RateLimitMiddleware, limits="100/minute")',
        )
    for middleware in middlewares:
        yield from middleware.findings


async def _about_store(limiter: Limiter) -> list[Finding]:
    """Return a finding if the store does not answer; the query counts nothing."""
    try:
        await limiter.banned(_NOBODY)
    except StoreError as error:
        return [_unreachable(f"{limiter.store!r} does not answer: {written(error, str)}")]
    return []


def _unreachable(what: str) -> Finding:
    return Finding("SG202", f"{what}; check the address, and that this user may read and write there")


async def _about_file(path: Path) -> list[Finding]:
    middleware_of(path)  # report errors in the file before those of its store
    try:
        with _temporary_store(path) as store:
            middleware = middleware_of(path, store=store)
            try:
                return [*middleware.findings, *await _about_store(middleware.limiter)]
            finally:
                await middleware.limiter.close()
    except (StoreError, OSError) as error:
        return [_unreachable(f"the store of {path} cannot be opened or created: {one_line(error)}")]


@contextmanager
def _temporary_store(path: Path) -> Iterator[str]:
    """If the LMDB store of a file does not exist, create a temporary one in its nearest existing parent directory.

    Yields:
        The address of the temporary store; an empty string to open the store of the file.
    """
    named = tomllib.loads(path.read_text("utf-8-sig")).get("store", {"env": STORE_VARIABLE})
    address = os.environ.get(named["env"], "") if isinstance(named, dict) else named
    scheme, _, rest = address.partition("://")
    directory = Path(unquote(urlsplit(address).path))
    if scheme != "lmdb" or not rest.startswith("/") or directory.exists():
        yield ""
        return
    note(f"{path}: the store does not exist yet; check does not create it")
    above = next(each for each in directory.parents if each.exists())
    try:
        made = TemporaryDirectory(dir=above, prefix="slidegate-check-")
    except OSError as error:
        error.filename = str(directory)
        raise
    with made as temporary:
        yield f"lmdb://{quote(temporary)}/store?{urlsplit(address).query}"


@asynccontextmanager
async def _started(app: ASGIApp) -> AsyncIterator[None]:
    """Run the lifespan of an application around a block; an application need not support it.

    Raises:
        click.ClickException: The startup fails or times out.
    """
    sent: asyncio.Queue[Message] = asyncio.Queue()
    received: asyncio.Queue[Message] = asyncio.Queue()
    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    running = asyncio.ensure_future(app(scope, received.get, sent.put))
    running.add_done_callback(lambda _: sent.put_nowait({"type": "ended"}))
    try:
        received.put_nowait({"type": "lifespan.startup"})
        await _answer(sent, "startup")
        yield
        if not running.done():
            received.put_nowait({"type": "lifespan.shutdown"})
            await _answer(sent, "shutdown")
    finally:
        running.cancel()
        with suppress(BaseException):
            await running


async def _answer(sent: asyncio.Queue[Message], phase: str) -> None:
    """Wait until the application reports the end of a phase, or has itself ended."""
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            message = await sent.get()
    except TimeoutError as error:
        raise click.ClickException(f"the application's {phase} took longer than {START_TIMEOUT_S:g} s") from error
    if message["type"].endswith(".failed"):
        # Starlette sends a whole traceback: indented frames, then the exception.
        error_line = re.split(r"^ .*\n", message.get("message", ""), flags=re.MULTILINE)[-1]
        raise failed(ConfigurationError(f"the application's {phase} failed: {error_line}"))
