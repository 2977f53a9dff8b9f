"""Findings: probable mistakes in the settings of a middleware, in the routes below it, or seen in the first requests.

Each kind of finding has a permanent code and a heading in `docs/reference/findings.md`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.types import Scope

from ..core.arguments import check_flag, check_list
from ..core.errors import ConfigurationError, RateLimitExceeded, closest, quoted
from ..core.logs import logger
from .client_ip import UNKNOWN_PEER, ClientAddress, host_of
from .declared_limits import is_exempt, limits_at
from .keys import parts_of
from .mcp import McpTool
from .paths import RulePath, may_hold_a_slash
from .routes import Application, MountedRoute, attribute_of, mounted_routes, visible_app
from .rules import Rule

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

CODES: Final = {
    "SG102": "requests have a proxy header, but no proxy is trusted",
    "SG103": "several processes use memory stores",
    "SG109": "the server names no peer",
    "SG110": "slidegate is switched off",
    "SG123": "no route matches a rule",
    "SG124": "no route accepts the methods of a rule",
    "SG125": "an exempt endpoint is still limited",
    "SG126": "default_limits cannot see routes",
    "SG127": "an exception handler never sees the middleware's refusals",
    "SG128": "an exempt endpoint counts only requests that reach it",
    "SG130": "MCP tool headers are not validated",
}
"""Every code, with its subject."""
WATCHED: Final = 1_000
"""The number of requests that are checked."""
_PROXY_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})
_SERVERS: Final = frozenset({"uvicorn", "gunicorn", "granian", "hypercorn", "fastapi"})
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
_WORKERS: Final = r"(?<!\S)(?:--workers(?:=| +)|-w ?)([0-9]{1,6})(?!\S)"
_HOST: Final = re.compile("//[^/]*")
_VARIES: Final = "{}"
"""Represents a first segment with a parameter; it never occurs as a literal segment."""
_MAX_NAMED: Final = 10
"""The most rules or endpoints that findings of one kind name."""
ENABLED_VARIABLE: Final = "SLIDEGATE_ENABLED"
"""The environment variable that switches every middleware off or on."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Finding(NamedTuple):
    """A setting that works, but probably not as intended.

    Attributes:
        code: Its kind, for example ``"SG103"``; pass it to `ignore_checks` to silence the finding.
        message: The probable mistake and its remedy.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def switched_off(enabled: object) -> str:
    """Return the setting that switches the middleware off; empty if none does."""
    text = os.environ.get(ENABLED_VARIABLE, "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(
            f"expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}", "SLIDEGATE_ENABLED"
        )
    if not check_flag("enabled", enabled):
        return "enabled=False"
    return f"{ENABLED_VARIABLE}={text}" if text in _FALSE else ""


class StartupChecks:
    """The findings about a middleware, each logged once.

    Args:
        ignore_checks: Codes of findings that are not reported.

    Attributes:
        findings: The findings that were reported.
        left: The number of requests that are still to be checked.

    Raises:
        ConfigurationError: A code does not exist.
    """

    def __init__(self, ignore_checks: Iterable[str]) -> None:
        self._ignored = _checked_codes(ignore_checks)
        self.findings: list[Finding] = []
        self.left = WATCHED

    def report(self, found: Iterable[Finding]) -> None:
        """Report findings that were not reported before. If a check raises, that is logged and no request fails."""
        try:
            for finding in found:
                if finding.code not in self._ignored and finding not in self.findings:
                    self.findings.append(finding)
                    logger.warning("%s", finding)
        except Exception:
            logger.exception("checking for start-up findings failed")


def _checked_codes(ignore_checks: Iterable[str]) -> frozenset[str]:
    codes = check_list("ignore_checks", ignore_checks, 'a list of codes such as ["SG103"]', str)
    for code in codes:
        if code not in CODES:
            near = closest(code.upper().replace("O", "0"), CODES)
            raise ConfigurationError(f"unknown code {quoted(code)}{near}", "ignore_checks")
    return frozenset(codes)


def about_settings(middleware: RateLimitMiddleware, off: str) -> Iterator[Finding]:
    """Yield the findings about the settings of a middleware.

    Args:
        middleware: The middleware.
        off: The setting that switches it off; empty if none does.
    """
    if off:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({off}): every request passes; if that is not intended, remove this setting",
        )
    where = many_workers()
    if where and middleware.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    for rule in middleware.rules:
        if any(isinstance(key, McpTool) and not key.validated for key in parts_of(rule.key)):
            yield Finding(
                "SG130",
                f"rule {rule.label!r} counts all tools together: a client may name one in Mcp-Name and call another, "
                "unless the server rejects such a request; if yours does, write mcp_tool(..., validated=True)",
            )


def many_workers() -> str:
    """Return the setting that starts several processes for the application; empty if there is none."""
    for variable in _VARIABLES:
        value = os.environ.get(variable, "")
        if value.isascii() and value.isdigit() and int(value) > 1:
            return f"{variable}={value}"
    directory, program = os.path.split(sys.argv[0]) if sys.argv else ("", "")
    named = {os.path.basename(directory), os.path.splitext(program)[0]}
    shown = shlex.join(sys.argv[1:]) if named & _SERVERS else ""
    for where, words in (("GUNICORN_CMD_ARGS", os.environ.get("GUNICORN_CMD_ARGS", "")), ("the command line", shown)):
        counts = re.findall(_WORKERS, words)
        if counts and int(counts[-1]) > 1:
            return f"--workers {counts[-1]} in {where}"
    return ""


def about_request(scope: Scope, client: ClientAddress, *, gone: bool) -> Iterator[Finding]:
    """Yield the findings that a request shows.

    Args:
        scope: The request.
        client: Determines the client's address for the middleware.
        gone: Whether its connection was reset.
    """
    if gone:
        return
    host = host_of(scope)
    if not host:
        yield Finding(
            "SG109",
            f"the server names no peer: all such requests count as one client, {UNKNOWN_PEER!r}; behind a proxy on a "
            'Unix socket write client_ip(trusted=["unix"]), behind a serverless adapter with one proxy in front '
            "client_ip(trusted=1)",
        )
    # A server that reads the header itself has replaced the peer by the address from it.
    own = host.encode(errors="replace")
    fields = [name for name, value in scope["headers"] if name in _PROXY_HEADERS and not (own and own in value)]
    if fields and not client.trusted:
        yield Finding(
            "SG102",
            f"a request has {fields[0].decode().title()}, but no proxy is trusted: if there is a proxy in front, "
            "all its clients are counted and banned as one; name it, for example "
            'client_ip(trusted=["10.0.0.0/8"])',
        )


def about_routes(middleware: RateLimitMiddleware, app: object) -> Iterator[Finding]:
    """Yield the findings that the routes reveal.

    Args:
        middleware: The middleware.
        app: The application that it belongs to.
    """
    shown_app = visible_app(middleware.app, {"app": app})
    known = Application.of(shown_app)
    if known.opaque and not known.mounts:
        if middleware.default_limits:
            yield Finding(
                "SG126",
                "default_limits are around an unknown application, whose routes cannot be read: all requests of a "
                'client share one bucket; write rules, such as Rule("/login", "5/minute")',
            )
    else:
        routes = mounted_routes(shown_app)
        yield from _about_unmet_rules(middleware.rules, routes, list(_unknown_below(known)))
        yield from _about_methods_at_endpoints(routes)
        yield from _about_exemptions(middleware, routes)
    yield from _about_handlers(middleware, app)


def _unknown_below(app: Application, above: str = "") -> Iterator[str]:
    """Yield the paths at which an application may answer without a route."""
    if app.opaque:
        yield f"{above}/{{rest:path}}"
    for mount in app.mounts:
        yield from _unknown_below(mount, above + mount.path)


def _about_unmet_rules(
    rules: Sequence[Rule], routes: Sequence[MountedRoute], unknown: Sequence[str]
) -> Iterator[Finding]:
    """Yield the findings about rules that match no route. Blocking rules are skipped: they are meant for scanners."""
    by_first: dict[str, list[MountedRoute]] = defaultdict(list)
    for route in routes:
        by_first[_first_of(_HOST.sub("", route.path))].append(route)
    unmet: list[tuple[str, Rule]] = []
    for rule in rules:
        for path in rule.paths if rule.rule_paths and not rule.blocks else ():
            # Limits, but not exemptions, may be written with the `root_path` that a server prepends to all paths.
            tails = [path] if rule.exempt else [path, *(path[found.start() :] for found in re.finditer("/(?!{)", path))]
            if any(may_meet(tail, other) for tail in tails for other in unknown):
                continue
            there = [route for tail in dict.fromkeys(tails) for route in _meeting(tail, by_first)]
            if not there:
                unmet.append((path, rule))
            elif not any(_takes(rule, route) for route in there):
                yield Finding(
                    "SG124",
                    f"rule {rule.label!r} is for {', '.join(sorted(rule.methods or {str(rule.connection)}))}, but the "
                    f"path {path!r} has only {' and '.join(sorted(route.label for route in there)[:_MAX_NAMED])}",
                )
    known = [_HOST.sub("", route.template) for route in routes]
    for path, rule in unmet[:_MAX_NAMED]:
        yield Finding(
            "SG123",
            f"path {path!r} of rule {rule.label!r} matches no route{closest(path, known)}; write it with the prefix of "
            "its router, or remove it",
        )
    if len(unmet) > _MAX_NAMED:
        yield Finding("SG123", f"{len(unmet) - _MAX_NAMED} more paths of rules match no route")


def _meeting(path: str, by_first: Mapping[str, Sequence[MountedRoute]]) -> list[MountedRoute]:
    """Return the routes that may match a common path with `path`; the index by first segment narrows the search."""
    first = _first_of(path)
    groups = [first, _VARIES] if first is not _VARIES else list(by_first)
    near = [route for group in groups for route in by_first.get(group, ())]
    return [route for route in near if may_meet(path, _HOST.sub("", route.path))]


def _first_of(path: str) -> str:
    first = path.split("/", 2)[1]
    return _VARIES if "{" in first else first


def _takes(rule: Rule, route: MountedRoute) -> bool:
    if rule.connection is not None and rule.connection != route.connection:
        return False
    if route.connection == "websocket":
        return rule.methods is None or "GET" in rule.methods
    # `CORSMiddleware` answers preflights, so no route lists OPTIONS for them.
    return rule.methods is None or route.methods is None or not (route.methods | {"OPTIONS"}).isdisjoint(rule.methods)


def may_meet(path: str, other: str) -> bool:
    """Return whether two paths in Starlette's syntax may match a common path, compared segment by segment."""
    for one, another in zip_longest(path.split("/")[1:], other.split("/")[1:]):
        if may_hold_a_slash(one or "") or may_hold_a_slash(another or ""):
            return True
        if one != another and (one is None or another is None or not _segments_meet(one, another)):
            return False
    return True


@lru_cache(4_096)
def _segments_meet(one: str, another: str) -> bool:
    if "{" not in one:
        one, another = another, one
    return "{" in one and ("{" in another or RulePath(f"/{one}").takes(f"/{another}") is not None)


def _about_exemptions(middleware: RateLimitMiddleware, routes: Iterable[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about endpoints that `RateLimit.exempt` marks."""
    limiting = [rule for rule in middleware.rules if rule.action == "limit" and not rule.exempt]
    for route in [one for one in routes if any(is_exempt(one, method) for method in one.methods or ("",))][:_MAX_NAMED]:
        still = next((rule for rule in limiting if _takes(rule, route) and _is_about(rule, route)), None)
        if still is not None and not any(rule.exempt and _is_about(rule, route) for rule in middleware.rules):
            yield Finding(
                "SG125",
                f"{route.label} is exempt only from default_limits: {still!r} still limits it; write "
                f"Rule({route.path!r}, exempt=True) before that rule",
            )
        elif any(True for _ in limits_at(route)):
            yield Finding(
                "SG128",
                f"{route.label} is exempt from default_limits, so its own limit counts only requests that reach it: "
                "those with an invalid body or key are not counted; remove RateLimit.exempt, or write a rule for the "
                "path",
            )


def _about_methods_at_endpoints(routes: Iterable[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about limits at endpoints for methods that none of their routes accepts."""
    where: dict[int, tuple[Rule, list[MountedRoute]]] = {}
    for route in routes:
        for rule in limits_at(route):
            where.setdefault(id(rule), (rule, []))[1].append(route)
    for rule, there in where.values():
        if not any(_takes(rule, route) for route in there):
            yield Finding(
                "SG124",
                f"a limit at an endpoint is for {', '.join(sorted(rule.methods or ()))}, but its routes are only "
                f"{' and '.join(sorted(route.label for route in there)[:_MAX_NAMED])}",
            )


def _is_about(rule: Rule, route: MountedRoute) -> bool:
    return any(path == "*" or may_meet(path, route.path) for path in rule.paths)


def _about_handlers(middleware: RateLimitMiddleware, app: object) -> Iterator[Finding]:
    """Yield the finding about an exception handler that never receives the refusals of the middleware."""
    handlers = attribute_of(app, "exception_handlers")
    refuses = any(rule.action == "limit" and not rule.exempt for rule in middleware.rules) or middleware.default_limits
    if isinstance(handlers, Mapping) and RateLimitExceeded in handlers and refuses and middleware.on_refused is None:
        yield Finding(
            "SG127",
            "the handler for RateLimitExceeded answers only refusals of limits at endpoints; write "
            "RateLimitMiddleware(on_refused=function) for those of rules",
        )
