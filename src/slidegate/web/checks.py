"""Findings: what works but is probably a mistake, in a middleware's settings, in the routes below, in first requests.

Each kind of finding has a code that never changes, and a heading in `docs/reference/findings.md`.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

from starlette.applications import Starlette
from starlette.convertors import FloatConvertor, IntegerConvertor, PathConvertor, StringConvertor, UUIDConvertor
from starlette.routing import PARAM_REGEX, compile_path
from starlette.types import Scope

from ..core.arguments import check_flag
from ..core.bans.policy import BanPolicy
from ..core.errors import ConfigurationError, closest, quoted
from ..core.logs import logger
from ..core.store import Store
from .client_ip import UNKNOWN_PEER, ClientAddress
from .keys import is_known
from .matching import Convertors, PathIndex, PathMatcher, may_hold_a_slash
from .route_tree import ALL_BELOW, Application, Frontend, ResolvedRoute, applications, layers, root_of, router_of, walk
from .rule_set import Selection
from .rules import Rule

if TYPE_CHECKING:
    from .middleware import RateLimitMiddleware

CODES: Final = {
    "SG102": "a proxy's header comes in, and no proxy is trusted",
    "SG103": "several processes, each with a memory of its own",
    "SG104": "a rule can never apply",
    "SG105": "one named rule stands in two middlewares",
    "SG107": "browsers will not see the 429",
    "SG109": "the server names no peer",
    "SG110": "slidegate is switched off",
    "SG112": "a honeypot bans visitors",
    "SG113": "a banned client can come back under another value",
    "SG115": "the store forgets what it counts",
    "SG116": "the user is known too late",
    "SG122": "rules count the dashboard or the admin API",
    "SG123": "no route meets a rule",
}
"""Every code, with its subject."""
WATCHED: Final = 1_000
"""The number of requests that are checked."""
_PROXY_HEADERS: Final = frozenset({b"x-forwarded-for", b"forwarded"})
CLIENT_CHOOSES: Final = r"(?:^|\+)(?:header|cookie|query):"
"""Finds in the identity of a key a value that the client chooses, but no fallback of such a kind."""
_SERVERS: Final = frozenset({"uvicorn", "gunicorn", "granian", "hypercorn", "fastapi", "slidegate"})
_VARIABLES: Final = ("WEB_CONCURRENCY", "UVICORN_WORKERS", "GRANIAN_WORKERS")
_WORKERS: Final = r"(?<!\S)(?:--workers(?:=| +)|-w ?)([0-9]{1,6})(?!\S)"
_ALL_BELOW: Final = re.compile(r"/?\{\w+:path\}\Z")
_ASKED: Final = (("GET", "/"), ("GET", "/api/session"), ("POST", "/api/session"))
_SAMPLES: Final[Mapping[type, str]] = {
    StringConvertor: "\0",
    PathConvertor: "\0/\0",
    IntegerConvertor: "7081965043211",
    FloatConvertor: "7081965043211.5",
    UUIDConvertor: "7081965f-0432-4d1f-8a3c-5b9e2d7c6a10",
}
"""Values of parameters that nobody writes into a path."""
_KIND: Final = re.compile(":[a-z]+}")
"""The kind of a parameter, in a path."""
_MAX_NAMED: Final = 3
_MAX_UNMET: Final = 10
"""For how many paths without a route the nearest one is looked for, which takes time for each route."""
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
    text = os.environ.get("SLIDEGATE_ENABLED", "").strip().lower()
    if text and text not in _TRUE + _FALSE:
        raise ConfigurationError(f"SLIDEGATE_ENABLED: expected one of {', '.join(_TRUE + _FALSE)}, not {quoted(text)}")
    if not check_flag("enabled", enabled):
        return "enabled=False"
    return f"SLIDEGATE_ENABLED={text}" if text in _FALSE else ""


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
    example = 'expected a list of codes such as ["SG103"]'
    if isinstance(ignore_checks, str) or not isinstance(ignore_checks, Iterable):
        raise ConfigurationError(f"ignore_checks: {example}, not {quoted(ignore_checks)}")
    codes = list(ignore_checks)
    for code in codes:
        if not isinstance(code, str):
            raise ConfigurationError(f"ignore_checks: {example}, not {quoted(code)} in it")
        if code not in CODES:
            near = closest(code.upper().replace("O", "0"), CODES)
            raise ConfigurationError(f"ignore_checks: unknown code {quoted(code)}{near}")
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
    where = _many_workers()
    if where and middleware.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets up to that many times each; "
            'LmdbStore counts for all of them: Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )
    yield from _about_rules(middleware)
    yield from _about_layers(middleware)
    yield from _about_bans(middleware.policies)
    yield from _about_honeypots(middleware)


def about_routes(
    middleware: RateLimitMiddleware, app: object, select: Callable[[Scope], Selection]
) -> Iterator[Finding]:
    """Yield the findings that the routes show.

    Args:
        middleware: The middleware.
        app: The application that it belongs to.
        select: Returns the rules of the middleware that a request meets.
    """
    yield from _about_unmet_rules(middleware)
    yield from _about_admin_apps(app if router_of(middleware.app) is None else middleware.app, select)


def _about_rules(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield the findings about rules that can never apply."""
    for earlier, later in hidden_rules(middleware.rules):
        yield Finding(
            "SG104",
            f"{later!r} can never apply: {earlier!r} comes first, covers it and ends the list; put {later!r} first",
        )
    last = next((rule for rule in middleware.rules if rule.final and rule.always), None)
    if middleware.default_limits and last is not None:
        yield Finding(
            "SG104",
            f"default_limits can never apply: {last!r} covers all requests and ends the list; give it a path, or leave "
            "out one of them",
        )


def _about_layers(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield the findings about other middlewares further in."""
    inner = list(layers(middleware.app))
    if any(map(_is_cors, inner)):
        yield Finding(
            "SG107",
            "CORSMiddleware stands inside RateLimitMiddleware, so scripts in browsers cannot read a 429; add it "
            "after RateLimitMiddleware, and it stands outside",
        )
    callers = [caller for caller in middleware.limiter.engine.callers.listed() if any(caller is one for one in inner)]
    theirs = {bucket.rule for caller in callers for bucket in caller.buckets()}
    for name in sorted({rule.name for rule in middleware.rules if rule.name is not None} & theirs):
        yield Finding(
            "SG105",
            f"rule {name!r} stands in two middlewares, one inside the other; it is charged once for each key: give "
            "them two names if they are two limits",
        )


def _is_cors(layer: object) -> bool:
    from starlette.middleware.cors import CORSMiddleware  # importing slidegate takes long enough

    if isinstance(layer, Starlette):
        # An application builds its middleware at its first request; before that only their classes are known.
        classes: list[object] = [wrapping.cls for wrapping in layer.user_middleware]
        return CORSMiddleware in classes
    return isinstance(layer, CORSMiddleware)


def _about_bans(policies: Collection[BanPolicy]) -> Iterator[Finding]:
    keyed = [policy for policy in policies if policy.key is not None and re.search(CLIENT_CHOOSES, policy.key.identity)]
    by_address = any(policy.key is None or isinstance(policy.key, ClientAddress) for policy in policies)
    if keyed and not by_address:
        yield Finding(
            "SG113",
            f"policy {keyed[0].name!r} bans by {keyed[0].key.identity}, which the client chooses, and none bans by "
            'address; add one that does, such as BanPolicy("100/10m", name="addresses")',
        )


def _many_workers() -> str:
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


def about_request(scope: Scope, client: ClientAddress, store: Store, *, gone: bool) -> Iterator[Finding]:
    """Yield the findings that a request shows.

    Args:
        scope: The request.
        client: How the middleware finds the client's address.
        store: The store of its limiter.
        gone: Whether its connection was reset.
    """
    evicts = getattr(store, "evicts", "")  # known once a connection was made
    if evicts:
        yield Finding("SG115", f"{evicts}, and with them limits and bans; set noeviction")
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
    own = host.encode(errors="surrogatepass")
    fields = [name for name, value in scope["headers"] if name in _PROXY_HEADERS and not (own and own in value)]
    if fields and not client.trusted:
        yield Finding(
            "SG102",
            f"{fields[0].decode().title()} came with a request and no proxy is trusted: if one stands in front, "
            "all its clients are one, which limits count and policies ban together; name it, for example "
            'client_ip(trusted=["10.0.0.0/8"])',
        )


def about_user(scope: Scope) -> Iterator[Finding]:
    """Yield what shows after the application has served a request whose user a limit did not know."""
    if is_known(scope):
        yield Finding(
            "SG116",
            "a limit by `user` counted the client's address, because the user was known only afterwards; put "
            "AuthenticationMiddleware further out than RateLimitMiddleware, or the limit next to the endpoint: "
            "@RateLimit(..., key=user)",
        )


class AdminApp:
    """An application for operators, such as the dashboard. The start says which rules above count it."""


def _about_honeypots(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield the findings about paths that ban whoever asks for them, and that the application serves."""
    routes = list(walk(router_of(middleware.app))) if middleware.policies else []
    for policy in middleware.policies:
        for path, weight in policy.signals.items():
            if not isinstance(path, str) or not path.startswith("/"):
                continue
            if (weight == "ban" or weight >= policy.after.amount) and (label := _served(routes, path)):
                yield Finding(
                    "SG112",
                    f"path {path!r} of policy {policy.name!r} bans the application's own visitors: {label}; take it "
                    "out, or give it a weight below the amount of after=",
                )


def _served(routes: Iterable[ResolvedRoute], path: str) -> str:
    """Return the label of the route whose own path this is; empty if there is none.

    A route that takes any path does not count: it answers scanners with a page that is meant for others.
    """
    own = PathMatcher(path)
    return next((place.label for place in routes if own.exempts(place.template)), "")


def _about_unmet_rules(middleware: RateLimitMiddleware) -> Iterator[Finding]:
    """Yield a finding for each rule whose paths lead to no route of the application.

    It is silent where something may answer that shows no routes, and about rules that meet scanners: those that block
    or track, nor about rules for preflights.
    """
    top, *others = applications(middleware.app)
    routes = list(top.walk())
    if not routes or any(map(_may_answer_more, (top, *others))):
        return
    by_path = RoutesByPath(routes)
    unmet = [(path, rule) for rule in middleware.rules for path in rule.paths if not _is_met(rule, path, by_path)]
    known = [_KIND.sub("}", _path_of(place)) for place in routes] if unmet else []
    for path, rule in unmet[:_MAX_UNMET]:
        yield Finding(
            "SG123",
            f"path {path!r} of rule {rule.label!r} matches no route{closest(path, known)}; write it with the prefix of "
            "its router, or drop it",
        )
    if len(unmet) > _MAX_UNMET:
        yield Finding("SG123", f"{len(unmet) - _MAX_UNMET} more paths of rules match no route")


def _is_met(rule: Rule, path: str, by_path: RoutesByPath) -> bool:
    """Return whether a path of a rule leads to a route, or meets scanners, or preflights, on purpose."""
    if not rule.matchers or rule.action in ("block", "track") or "OPTIONS" in (rule.methods or ()):
        return True
    # Only a limit may be written with the root that the application takes away from paths.
    tails = [path] if rule.exempt else _without_roots(path)
    return any(by_path.met_by(rule, tail) for tail in tails)


def _may_answer_more(app: Application) -> bool:
    """Return whether an application, or a layer around it, may answer without a route, or change paths."""
    if app.router is None or not app.sure:
        return True
    return any(id(route) not in app.inner and not hasattr(route, "endpoint") for route, _ in app.routes)


def _without_roots(path: str) -> Iterator[str]:
    """Yield a path, and what is left of it where a server puts a root before all paths."""
    yield path
    for found in re.finditer("/", path[1:]):
        if not path.startswith("/{", found.end()):
            yield path[found.end() :]


def _about_admin_apps(app: object, select: Callable[[Scope], Selection]) -> Iterator[Finding]:
    """Yield a finding for each dashboard and admin API among the routes of an application that rules count."""
    root = root_of(app)
    for place in dict.fromkeys(_admin_apps(app)):
        counting = _counting(place, root, select)
        if counting:
            names = ", ".join(map(repr, counting[:_MAX_NAMED])) + (", ..." if len(counting) > _MAX_NAMED else "")
            yield Finding(
                "SG122",
                f"the dashboard or admin API at {place!r} is counted by {names}; a client that has spent its limit "
                f'cannot open it: write Rule("{place}/{{rest:path}}", exempt=True) before other rules',
            )


def _counting(place: str, root: str, select: Callable[[Scope], Selection]) -> list[Rule]:
    """Return the rules that count or block requests to an application at a place."""
    found: dict[int, Rule] = {}
    for method, rest in _ASKED:
        path = root + _read(place)[2] + rest
        selection = select({"type": "http", "method": method, "path": path, "root_path": root, "headers": []})
        rules = [bound.rule for bound in selection.limiting]
        rules += [bound.rule for bound, _ in selection.open if bound.rule.counts and bound.rule.action == "limit"]
        if selection.blocked is not None:
            rules.append(selection.blocked)
        found.update((id(rule), rule) for rule in rules)
    return list(found.values())


def _admin_apps(app: object) -> Iterator[str]:
    """Yield the path of each admin application among the routes of an application."""
    top, *_ = applications(app)
    waiting, seen = [("", top)], {top}
    for above, outer in waiting:
        for mount, _ in outer.routes:
            _, inner = outer.inner.get(id(mount), ("", top))
            if inner not in seen:
                seen.add(inner)
                waiting.append((above + getattr(mount, "path", ""), inner))
    places = [(path, inner.layers) for path, inner in waiting[1:]]
    places += [(_path_of(place), list(layers(place.route.endpoint))) for place in top.walk()]
    for path, found in places:
        if any(isinstance(layer, AdminApp) for layer in found):
            yield _ALL_BELOW.sub("", path)


def _path_of(place: ResolvedRoute) -> str:
    """Return the path of a route, with the kinds of its parameters where they are told."""
    written = place.written()
    if written is not None:
        return written[0]
    return place.template.replace("{path}", "{path:path}") if isinstance(place.route, Frontend) else place.template


@lru_cache(4_096)
def _read(path: str) -> tuple[re.Pattern[str], Convertors, str]:
    """Return the pattern of a path, its convertors, and a path that it takes and that patterns of less do not."""
    pattern, _, convertors = compile_path(path)
    return pattern, convertors, PARAM_REGEX.sub(lambda found: _SAMPLES.get(type(convertors[found[1]]), found[0]), path)


def hidden_rules(rules: Sequence[Rule]) -> Iterator[tuple[Rule, Rule]]:
    """Yield (earlier, later) where the earlier rule ends the list for every request that the later one matches."""
    ending: PathIndex[int] = PathIndex()
    for place, later in enumerate(rules):
        samples = [_read(matcher.path)[2] for matcher in later.matchers]
        # A rule that covers all paths covers the first one.
        candidates = sorted(ending.find(samples[0] if samples else ""))
        earlier = next((rules[number] for number in candidates if _covers(rules[number], later, samples)), None)
        if earlier is not None:
            yield earlier, later
        if (later.final or later.blocks) and not later.conditional:
            for matcher in later.matchers:
                ending.add((matcher.path, matcher.convertors), place)
            if not later.matchers:
                ending.add(None, place)


def _covers(earlier: Rule, later: Rule, samples: Sequence[str]) -> bool:
    methods = frozenset({"GET"}) if later.connection == "websocket" else later.methods
    if earlier.connection is not None and earlier.connection != later.connection:
        return False
    if earlier.methods is not None and (methods is None or not methods <= earlier.methods):
        return False
    if not earlier.matchers or not samples:
        return not earlier.matchers
    return all(any(matcher.exempts(sample) for matcher in earlier.matchers) for sample in samples)


class RoutesByPath:
    """Finds the routes that a path of a rule is about, however many there are; both may have parameters.

    A route that shows no path in Starlette's syntax may take any.

    Args:
        routes: The routes.
    """

    def __init__(self, routes: Iterable[ResolvedRoute]) -> None:
        self._routes = list(routes)
        self._index: PathIndex[tuple[str, ResolvedRoute]] = PathIndex()
        for place in self._routes:
            told = isinstance(place.route, Frontend) or place.written() is not None
            path = _path_of(place) if told else ALL_BELOW
            self._index.add((path, _read(path)[1]), (path, place))

    def met_by(self, rule: Rule, path: str) -> list[ResolvedRoute]:
        """Return the routes by which some request comes that a path of a rule is about."""
        found = self._routes
        if path != "*":
            alike = self._index.find_like((path, _read(path)[1]))
            found = [place for other, place in alike if _meet(path, other)]
        return [place for place in found if _is_for(rule, place)]


def _is_for(rule: Rule, place: ResolvedRoute) -> bool:
    if rule.connection is not None and rule.connection != place.connection:
        return False
    return rule.methods is None or place.methods is None or not rule.methods.isdisjoint(place.methods)


def _meet(path: str, other: str) -> bool:
    """Return whether two paths, which the index found alike, have one in common, as far as their segments tell."""
    for one, another in zip(path.split("/"), other.split("/"), strict=False):
        (pattern, convertors, sample), (pattern_2, convertors_2, sample_2) = _read(f"/{one}"), _read(f"/{another}")
        if may_hold_a_slash(one, convertors) or may_hold_a_slash(another, convertors_2):
            return True
        if not pattern.match(sample_2) and not pattern_2.match(sample):
            return False
    return True
