"""Findings: what works but is probably a mistake, in a middleware's settings, in the routes below, in first requests.

Each kind of finding has a code that never changes, and a heading in `docs/reference/findings.md`.
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
from .client_ip import UNKNOWN_PEER, ClientAddress
from .default_limits import is_exempt, limits_at
from .keys import Key, parts_of
from .mcp import McpTool
from .paths import RulePath, may_hold_a_slash
from .routes import Application, MountedRoute, look, shown, walk
from .rules import Rule

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

CODES: Final = {
    "SG102": "a proxy's header comes in, and no proxy is trusted",
    "SG103": "several processes, each with a memory of its own",
    "SG109": "the server names no peer",
    "SG110": "slidegate is switched off",
    "SG123": "no route meets a rule",
    "SG124": "no route takes the methods of a rule",
    "SG125": "an exempt endpoint is limited all the same",
    "SG126": "nobody knows the routes that default_limits are for",
    "SG127": "a handler never sees the refusals of the middleware",
    "SG128": "an exempt endpoint counts only what reaches it",
    "SG129": "several processes, each with metrics of its own",
    "SG130": "tools of an MCP server by header fields that nobody validates",
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
"""Stands for a first segment with a parameter; no segment of a path is that."""
_MAX_NAMED: Final = 10
"""How many rules or endpoints are named in findings of one kind."""
ENABLED_VARIABLE: Final = "SLIDEGATE_ENABLED"
"""Switches everything off, or leaves it on."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


class Finding(NamedTuple):
    """A setting that works, but probably not as it is meant.

    Attributes:
        code: Its kind, for example ``"SG103"``; give it to `ignore_checks` to turn the finding off.
        message: The probable mistake, and the way out.
    """

    code: str
    message: str

    def __str__(self) -> str:
        return f"{self.code}: {self.message}"


def switched_off(enabled: object) -> str:
    """Return the setting that switches everything off; empty if none does."""
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
        findings: Those that were reported.
        left: How many requests are still looked at.

    Raises:
        ConfigurationError: There is no such code.
    """

    def __init__(self, ignore_checks: Iterable[str]) -> None:
        self._ignored = _checked_codes(ignore_checks)
        self.findings: list[Finding] = []
        self.left = WATCHED

    def say(self, found: Iterable[Finding]) -> None:
        """Report findings, unless they were reported before. A look that fails ends there, and no request for it."""
        try:
            for finding in found:
                if finding.code not in self._ignored and finding not in self.findings:
                    self.findings.append(finding)
                    logger.warning("%s", finding)
        except Exception:
            logger.exception("a look for start-up findings failed")


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
            f"slidegate is switched off ({off}): every request passes; where that is not meant, take it out",
        )
    where = many_workers()
    if where and middleware.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets up to that many times each; "
            'LmdbStore counts for all of them: Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    for rule in middleware.rules:
        if any(
            isinstance(key, McpTool) and not key.validated
            for key in parts_of(rule.key if isinstance(rule.key, Key) else None)
        ):
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
        client: How the middleware finds the client's address.
        gone: Whether its connection was reset.
    """
    if gone:
        return
    peer = scope.get("client")
    host = (peer[0] if peer else None) or ""
    if not host:
        yield Finding(
            "SG109",
            f"the server names no peer: all such requests are one client, {UNKNOWN_PEER!r}; behind a proxy on a "
            'Unix socket write client_ip(trusted=["unix"]), behind an adapter with one proxy before it '
            "client_ip(trusted=1)",
        )
    # A server that reads the header itself has put the address from it in the peer's place.
    own = host.encode(errors="replace")
    fields = [name for name, value in scope["headers"] if name in _PROXY_HEADERS and not (own and own in value)]
    if fields and not client.trusted:
        yield Finding(
            "SG102",
            f"{fields[0].decode().title()} came with a request and no proxy is trusted: if one stands in front, "
            "all its clients are one, which limits count and policies ban together; name it, for example "
            'client_ip(trusted=["10.0.0.0/8"])',
        )


def about_routes(middleware: RateLimitMiddleware, app: object) -> Iterator[Finding]:
    """Yield the findings that the routes show.

    Args:
        middleware: The middleware.
        app: The application that it belongs to.
    """
    shown_app = shown(middleware.app, {"app": app})
    known = Application.of(shown_app)
    if known.opaque and not known.mounts:
        if middleware.default_limits:
            yield Finding(
                "SG126",
                "default_limits stand before an unknown application, whose routes nobody sees: all requests of a "
                'client share one bucket; write rules, such as Rule("/login", "5/minute")',
            )
    else:
        places = walk(shown_app)
        yield from _about_unmet_rules(middleware.rules, places, list(_unknown_below(known)))
        yield from _about_methods_at_endpoints(places)
        yield from _about_exemptions(middleware, places)
    yield from _about_handlers(middleware, app)


def _unknown_below(app: Application, above: str = "") -> Iterator[str]:
    """Yield the paths at which an application may answer without a route."""
    if app.opaque:
        yield f"{above}/{{rest:path}}"
    for mount in app.mounts:
        yield from _unknown_below(mount, above + mount.path)


def _about_unmet_rules(
    rules: Sequence[Rule], places: Sequence[MountedRoute], unknown: Sequence[str]
) -> Iterator[Finding]:
    """Yield the findings about rules that no route meets. Those that block meet scanners, on purpose."""
    by_first: dict[str, list[MountedRoute]] = defaultdict(list)
    for place in places:
        by_first[_first_of(_HOST.sub("", place.path))].append(place)
    unmet: list[tuple[str, Rule]] = []
    for rule in rules:
        for path in rule.paths if rule.rule_paths and not rule.blocks else ():
            # Only a limit may be written with the root that a server puts before all paths.
            tails = [path] if rule.exempt else [path, *(path[found.start() :] for found in re.finditer("/(?!{)", path))]
            if any(may_meet(tail, other) for tail in tails for other in unknown):
                continue
            there = [place for tail in dict.fromkeys(tails) for place in _meeting(tail, by_first)]
            if not there:
                unmet.append((path, rule))
            elif not any(_takes(rule, place) for place in there):
                yield Finding(
                    "SG124",
                    f"rule {rule.label!r} is for {', '.join(sorted(rule.methods or {str(rule.connection)}))}, which no "
                    f"route at {path!r} takes, but {' and '.join(sorted(place.label for place in there)[:_MAX_NAMED])}",
                )
    known = [_HOST.sub("", place.template) for place in places]
    for path, rule in unmet[:_MAX_NAMED]:
        yield Finding(
            "SG123",
            f"path {path!r} of rule {rule.label!r} matches no route{closest(path, known)}; write it with the prefix of "
            "its router, or drop it",
        )
    if len(unmet) > _MAX_NAMED:
        yield Finding("SG123", f"{len(unmet) - _MAX_NAMED} more paths of rules match no route")


def _meeting(path: str, by_first: Mapping[str, Sequence[MountedRoute]]) -> list[MountedRoute]:
    """Return the routes with which a path may have a text in common, of those that lie there by their first segment."""
    first = _first_of(path)
    groups = [first, _VARIES] if first is not _VARIES else list(by_first)
    near = [place for group in groups for place in by_first.get(group, ())]
    return [place for place in near if may_meet(path, _HOST.sub("", place.path))]


def _first_of(path: str) -> str:
    first = path.split("/", 2)[1]
    return _VARIES if "{" in first else first


def _takes(rule: Rule, place: MountedRoute) -> bool:
    if rule.connection is not None and rule.connection != place.connection:
        return False
    if place.connection == "websocket":
        return rule.methods is None or "GET" in rule.methods
    # A preflight is answered by CORSMiddleware, and no route is for it.
    return rule.methods is None or place.methods is None or not (place.methods | {"OPTIONS"}).isdisjoint(rule.methods)


def may_meet(path: str, other: str) -> bool:
    """Return whether two paths in Starlette's syntax may have a text in common, as far as their segments tell."""
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


def _about_exemptions(middleware: RateLimitMiddleware, places: Iterable[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about endpoints that `RateLimit.exempt` marks."""
    limiting = [rule for rule in middleware.rules if rule.action == "limit" and not rule.exempt]
    for place in [one for one in places if any(is_exempt(one, method) for method in one.methods or ("",))][:_MAX_NAMED]:
        still = next((rule for rule in limiting if _takes(rule, place) and _is_about(rule, place)), None)
        if still is not None and not any(rule.exempt and _is_about(rule, place) for rule in middleware.rules):
            yield Finding(
                "SG125",
                f"{place.label} is exempt from default_limits alone: {still!r} limits it all the same; write "
                f"Rule({place.path!r}, exempt=True) before it",
            )
        elif any(True for _ in limits_at(place)):
            yield Finding(
                "SG128",
                f"{place.label} is exempt from default_limits, so its own limit counts only requests that reach it: "
                "those with a wrong body or a wrong key are counted by nobody; leave RateLimit.exempt out, or write a "
                "rule for it",
            )


def _about_methods_at_endpoints(places: Iterable[MountedRoute]) -> Iterator[Finding]:
    """Yield the findings about limits at endpoints for methods that none of their routes takes."""
    where: dict[int, tuple[Rule, list[MountedRoute]]] = {}
    for place in places:
        for limit in limits_at(place):
            where.setdefault(id(limit), (limit.rule, []))[1].append(place)
    for rule, there in where.values():
        if not any(_takes(rule, place) for place in there):
            yield Finding(
                "SG124",
                f"a limit at an endpoint is for {', '.join(sorted(rule.methods or ()))}, which no route that it is at "
                f"takes, but {' and '.join(sorted(place.label for place in there)[:_MAX_NAMED])}",
            )


def _is_about(rule: Rule, place: MountedRoute) -> bool:
    return any(path == "*" or may_meet(path, place.path) for path in rule.paths)


def _about_handlers(middleware: RateLimitMiddleware, app: object) -> Iterator[Finding]:
    """Yield the finding about a handler for refusals that those of the middleware never reach."""
    handlers = look(app, "exception_handlers")
    refuses = any(rule.action == "limit" and not rule.exempt for rule in middleware.rules) or middleware.default_limits
    if isinstance(handlers, Mapping) and RateLimitExceeded in handlers and refuses and middleware.on_refused is None:
        yield Finding(
            "SG127",
            "the handler for RateLimitExceeded answers refusals of limits at endpoints alone; write "
            "RateLimitMiddleware(on_refused=function) for those of rules",
        )
