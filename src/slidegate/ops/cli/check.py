"""``slidegate check TARGET``: finds probable mistakes in a configuration file or an application.

The findings of a single middleware, which are also logged at startup, are its own (`RateLimitMiddleware.findings`).
"""

from __future__ import annotations

import asyncio
import os
import re
import sys
import tomllib
from collections import deque
from collections.abc import Iterator
from contextlib import redirect_stdout
from importlib import import_module
from inspect import signature
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

import click
from starlette.applications import Starlette
from starlette.routing import Router
from starlette.types import ASGIApp, Message

from ... import ConfigurationError, Limit, Limiter, MemoryStore, RateLimitMiddleware, StoreError
from ...core.logs import safe_text
from ...events import Finding
from ...limiter import all_callers
from ...web.start import FailsAtStartup
from .main import STORE_VARIABLE, ask, middleware_of, note, one_line, program, show, with_json

CODES: Final = {
    "SG201": "the application has no middleware",
    "SG202": "the store cannot be reached",
    "SG203": "a dashboard shows a limiter that no middleware uses",
}
"""The codes of findings that only `slidegate check` reports, with their titles."""
START_TIMEOUT_S: Final = 60.0
_BELOW: Final = ("middleware_stack", "asgi_app", "asgi_handler", "app")
"""The attributes in which Starlette, Quart, Litestar and middlewares keep the next layer."""
_MEMORY: Final = "SG103"  # the middleware's finding about memory stores
_LONG_US: Final = 3_600_000_000


@program.command()
@click.argument("target")
@click.option("--factory", is_flag=True, help="TARGET names a function that returns the application.")
@with_json
@click.pass_context
def check(ctx: click.Context, target: str, factory: bool, as_json: bool) -> None:
    """Find probable mistakes in TARGET.

    TARGET is a configuration file, or an application as module:app. The lifespan of an application is run, as by a
    server. The exit code is 0 without findings, 1 with findings or if an application cannot be loaded, and 2 for a file
    that is invalid.

    \b
    Example: slidegate check main:app
    """
    if ":" not in target or target.endswith(".toml"):  # of Windows, a path has a colon as well
        reported = _about_file(Path(target))
    else:
        app = imported(target, factory=factory)
        with redirect_stdout(sys.stderr):
            reported = asyncio.run(_about_app(app))
    findings = list(dict.fromkeys(reported))  # several middlewares may report the same finding
    lines = list(map(str, findings)) or ["Nothing was found."]
    show(as_json, [finding._asdict() for finding in findings], lines)
    if findings:
        ctx.exit(1)


# -- applications ------------------------------------------------------------------------------------------------------


def imported(name: str, *, factory: bool = False) -> ASGIApp:
    """Import the application ``module:name``, as from the current directory; what it prints goes to stderr.

    Raises:
        click.ClickException: It does not exist, importing it raises, or it is no ASGI application.
    """
    module, _, attribute = name.partition(":")
    sys.path.insert(0, "")
    try:
        with redirect_stdout(sys.stderr):
            application: Any = attrgetter(attribute)(import_module(module))
            if factory:
                application = application()
    except (Exception, SystemExit) as error:
        raise click.ClickException(
            f"{safe_text(name)} cannot be imported from this directory: {type(error).__name__}: {one_line(error)}"
        ) from error
    try:
        signature(application).bind("scope", "receive", "send")
    except TypeError:
        raise click.ClickException(
            f'{safe_text(name)} is not an ASGI application; expected one, for example "main:app", or with '
            "check --factory a function that returns one"
        ) from None
    served: ASGIApp = application
    return served


async def _about_app(app: ASGIApp) -> list[Finding]:
    """Return the findings about an application after its startup; it need not support a lifespan.

    Raises:
        click.ClickException: Its startup fails or takes too long.
    """
    findings: list[Finding] | None = None
    failure = ""
    phases = iter(("startup", "shutdown"))

    async def receive() -> Message:
        nonlocal findings
        phase = next(phases)
        if phase == "shutdown":
            findings = await _findings_in(app)
        return {"type": f"lifespan.{phase}"}

    async def send(message: Message) -> None:
        nonlocal failure
        if message["type"] == "lifespan.startup.failed":
            # Starlette sends a whole traceback: indented frames, then the exception.
            failure = re.split(r"^ .*\n", message.get("message", ""), flags=re.MULTILINE)[-1] or "no reason is given"

    scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": {}}
    try:
        async with asyncio.timeout(START_TIMEOUT_S):
            await app(scope, receive, send)
    except TimeoutError:
        failure = failure or f"it took longer than {START_TIMEOUT_S:g} s"
    except SystemExit as error:
        failure = failure or f"SystemExit: {error}"
    except Exception:  # of an application that knows no lifespan
        pass
    if failure:
        raise click.ClickException(f"the application's startup failed: {' '.join(failure.split())}")
    if findings is None:  # it has not awaited its shutdown
        return await _findings_in(app)
    return findings


async def _findings_in(app: ASGIApp) -> list[Finding]:
    """Return the findings about the middlewares of an application, and about their stores."""
    # Frameworks may keep middlewares out of sight: these are among all of this process.
    things = [*applications_in(app), *all_callers()]
    middlewares = dict.fromkeys(thing for thing in things if isinstance(thing, RateLimitMiddleware))
    if not middlewares:
        return [
            Finding(
                "SG201",
                "the application has no RateLimitMiddleware, so nothing is limited; write "
                'app.add_middleware(RateLimitMiddleware, limits="100/minute")',
            )
        ]
    findings = [finding for middleware in middlewares for finding in middleware.findings]
    limiters = dict.fromkeys(middleware.limiter for middleware in middlewares)
    for thing in things:
        # The module of dashboards needs the extra. Those of other stores see what other limiters count there.
        is_memory = type(thing).__name__ == "Dashboard" and isinstance(thing.limiter.store, MemoryStore)
        if is_memory and thing.limiter not in limiters:
            findings.append(
                Finding(
                    "SG203",
                    "a dashboard shows a limiter that no middleware uses, so it shows no requests and changes none; "
                    "give it that of RateLimitMiddleware(..., limiter=limiter)",
                )
            )
    for middleware in middlewares:
        if type(middleware.limiter.store).__name__ == "LmdbStore":  # its module needs the extra
            _note_what_a_reboot_forgets(middleware)
    for limiter in limiters:
        try:
            await limiter.now_us()
        except StoreError as error:
            findings += _about_error(f"{limiter.store!r} does not answer", error)
    return findings


def applications_in(app: ASGIApp) -> Iterator[Any]:
    """Yield an application, and everything that it wraps or mounts as far as it shows that, from the outside in.

    Raises:
        click.ClickException: A middleware in it cannot be built.
    """
    waiting = deque[Any]([app])
    visited = {id(None)}
    while waiting:
        thing = waiting.popleft()
        if id(thing) in visited:
            continue
        visited.add(id(thing))
        _build(thing)
        yield thing
        waiting.extend(getattr(thing, name, None) for name in _BELOW)
        if isinstance(thing, Router):
            waiting.extend(thing.routes)


def _build(thing: object) -> None:
    """Build the middlewares of a mounted application: it gets no lifespan, so it does that at its first request.

    Raises:
        click.ClickException: One of them cannot be built.
    """
    error: Exception | None = None
    if isinstance(thing, FailsAtStartup):
        error = thing.error
    if isinstance(thing, Starlette) and thing.middleware_stack is None:
        try:
            thing.middleware_stack = thing.build_middleware_stack()
        except Exception as failure:
            error = failure
    if error is not None:
        raise click.ClickException(
            f"the middlewares of an application cannot be built: {type(error).__name__}: {one_line(error)}"
        ) from error


# -- files and stores --------------------------------------------------------------------------------------------------


def _about_file(path: Path) -> list[Finding]:
    """Return the findings about a configuration file and its store.

    Raises:
        ConfigurationError: It is invalid.
    """
    middleware = middleware_of(path)
    middleware.check_routes(None)
    of_environment = os.environ.get(STORE_VARIABLE) or "memory://"
    address = tomllib.loads(path.read_text("utf-8-sig")).get("store", of_environment)
    scheme = str(address).partition(":")[0].lower()
    findings = middleware.findings
    if scheme != "memory":
        findings = [finding for finding in findings if finding.code != _MEMORY]  # about the store that was made here
    if scheme == "lmdb":
        _note_what_a_reboot_forgets(middleware)
    try:
        if scheme == "memory":
            Limiter.from_url(address)
        else:
            ask(address, Limiter.now_us)
    except ConfigurationError as error:
        raise ConfigurationError(f"{path}: store: {error}") from error
    except StoreError as error:
        findings += _about_error(f"{path}: the store cannot be read", error)
    return findings


def _note_what_a_reboot_forgets(middleware: RateLimitMiddleware) -> None:
    """Note the windows that are so long that they may be expected to survive a restart of the machine."""
    forgotten = []
    for rule in filter(None, (*middleware.rules, middleware.policy.rules.default_rule)):
        for limit in rule.limits:
            if isinstance(limit, Limit) and limit.window_us >= _LONG_US:
                forgotten.append(f"{limit} of {rule.label}")
    if forgotten:
        note(
            f"a reboot forgets the windows of {', '.join(forgotten)}; a Quota of a day or a month survives it, or Redis"
        )


def _about_error(subject: str, error: StoreError) -> Iterator[Finding]:
    """Yield the finding about a store that fails; one that does not exist yet is only noted."""
    if "the first worker creates it" in str(error):
        note(f"the store does not exist yet, and check does not create it; the application does: {one_line(error)}")
    else:
        yield Finding("SG202", f"{subject}: {one_line(error)}")
