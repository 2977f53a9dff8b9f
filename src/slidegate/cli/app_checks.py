"""What ``slidegate check`` asks about a whole application: its routes, its middlewares together, its tools, its store.

The findings of each middleware by itself, which a start logs too, are in `web.checks`.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from inspect import isawaitable
from pathlib import Path
from statistics import median
from time import perf_counter_ns, time_ns
from typing import Any, Final

from starlette.middleware.cors import CORSMiddleware

from ..core.errors import StoreError
from ..core.limits import Limit
from ..core.logs import written
from ..limiter import Limiter
from ..web.checks import CLIENT_CHOOSES, AdminApp, Finding, RoutesByPath
from ..web.default_limits import dependencies, limits_of, takes_no_defaults
from ..web.endpoints import RateLimit
from ..web.middleware import RateLimitMiddleware
from ..web.route_tree import ResolvedRoute, applications, layers, walk
from ..web.rules import Rule

CODES: Final = {
    "SG201": "the application has no middleware",
    "SG202": "the store cannot be reached",
    "SG203": "the store is slow",
    "SG204": "scripts in browsers cannot read the header fields",
    "SG205": "no rule covers a route",
    "SG207": "the clock of the store is another one",
    "SG208": "a client can make requests without end",
    "SG209": "a middleware can never refuse",
    "SG210": "a tool looks at another limiter",
    "SG211": "a signal can never strike",
}
"""The codes of findings that only `slidegate check` has, with their subjects."""
_FIELDS: Final = ("Retry-After", "RateLimit", "RateLimit-Policy")
_QUESTIONS: Final = 20
_MAX_AHEAD_US: Final = 2_000_000


def middlewares_in(app: Any) -> list[RateLimitMiddleware]:
    """Return the middlewares of an application: around it, around its routers and routes, and in mounted ones."""
    found_layers: list[object] = []
    for application in applications(app):
        inner: Any = application.layers[-1]
        if hasattr(inner, "build_middleware_stack") and inner.middleware_stack is None:
            # As its first request would do: the lifespan of the application around does not reach a mounted one.
            inner.middleware_stack = inner.build_middleware_stack()
        wrapped = [inner, application.router, *(route for route, _ in application.routes)]
        stacks = [getattr(one, "middleware_stack", None) or getattr(one, "app", None) for one in wrapped]
        found_layers += [layer for outermost in (app, *application.layers, *stacks) for layer in layers(outermost)]
    return list(dict.fromkeys(one for one in found_layers if isinstance(one, RateLimitMiddleware)))


def about_application(app: Any, middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about an application that was started, and its middlewares."""
    if not middlewares:
        yield Finding(
            "SG201",
            "the application has no RateLimitMiddleware, so nothing is limited; write "
            'app.add_middleware(RateLimitMiddleware, limits="100/minute")',
        )
    routes = list(walk(app))
    limited_endpoints = any(_has_own_limit(route) for route in routes)
    for middleware in middlewares:
        yield from middleware.findings
        yield from about_signals(middleware, limited_endpoints=limited_endpoints)
    yield from _about_fields(app)
    yield from _about_routes(routes, middlewares)
    yield from _about_inner(middlewares)
    yield from _about_tools(app, middlewares)


def about_signals(middleware: RateLimitMiddleware, *, limited_endpoints: bool = False) -> Iterator[Finding]:
    """Yield the findings about signals of ban policies that nothing can ever raise.

    Args:
        middleware: The middleware with the policies.
        limited_endpoints: Whether a limit at an endpoint may refuse, besides the rules.
    """
    refuses = limited_endpoints or middleware.default_limits or any(map(_refuses, middleware.rules))
    for policy in middleware.policies:
        if "refused" in policy.signals and not refuses:
            yield Finding(
                "SG211",
                f"policy {policy.name!r} strikes for refused requests, and no limit here refuses any; give a rule "
                "limits without shadow, or name other signals",
            )
        if 429 in policy.signals and "refused" not in policy.signals:
            yield Finding(
                "SG211",
                f"policy {policy.name!r} strikes for status 429, but a refusal of a limit is no answer of the "
                'application; name the signal "refused"',
            )


def _refuses(rule: Rule) -> bool:
    return rule.action == "limit" and not rule.exempt


def _about_fields(app: object) -> Iterator[Finding]:
    """Yield the finding that CORSMiddleware outside a middleware exposes no fields of it."""
    for layer in layers(getattr(app, "middleware_stack", None) or app):
        if isinstance(layer, RateLimitMiddleware):
            return
        if isinstance(layer, CORSMiddleware):
            exposed = layer.simple_headers.get("Access-Control-Expose-Headers", "").lower()
            names = {name.strip() for name in exposed.split(",")}
            hidden = [field for field in _FIELDS if field.lower() not in names]
            if hidden and "*" not in names:
                yield Finding(
                    "SG204",
                    f"CORSMiddleware does not expose {', '.join(hidden)}; write expose_headers={list(_FIELDS)!r}",
                )


def _about_routes(routes: Sequence[ResolvedRoute], middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about routes that some client can ask without end."""
    below: dict[int, list[tuple[ResolvedRoute, RateLimitMiddleware, Sequence[Rule]]]] = defaultdict(list)
    for middleware in middlewares:
        for seen, rules in _rules_of_routes(middleware).items():
            below[id(seen.route.endpoint)].append((seen, middleware, rules))
    for resolved in routes if middlewares else ():
        above = [
            (middleware, rules)
            for seen, middleware, rules in below[id(resolved.route.endpoint)]
            if seen.methods == resolved.methods and resolved.template.endswith(seen.template)
        ]
        if _is_documentation(resolved) or _has_own_limit(resolved) or any(one.default_limits for one, _ in above):
            continue
        rules = [rule for _, those in above for rule in those]
        if not rules:
            yield Finding("SG205", f"no rule covers {resolved.label}; write a rule for it, or one with exempt=True")
        elif not any(map(_holds, rules)):
            yield Finding(
                "SG208",
                f"a client can ask for {resolved.label} without end: {_why_endless(rules)}; add a rule by address, "
                'such as Rule("*", "600/minute")',
            )


def _rules_of_routes(middleware: RateLimitMiddleware) -> dict[ResolvedRoute, list[Rule]]:
    """Return each route below a middleware with the rules that are about it."""
    routes = list(walk(middleware.app))
    by_path = RoutesByPath(routes)
    rules: dict[ResolvedRoute, list[Rule]] = {resolved: [] for resolved in routes}
    for rule in middleware.rules:
        for resolved in {resolved for path in rule.paths for resolved in by_path.met_by(rule, path)}:
            rules[resolved].append(rule)
    return rules


def _is_documentation(resolved: ResolvedRoute) -> bool:
    """Return whether FastAPI made a route by itself: the document of the application, and the pages that show it."""
    return getattr(resolved.route.endpoint, "__module__", "") == "fastapi.applications"


def _has_own_limit(resolved: ResolvedRoute) -> bool:
    """Return whether a limit stands at the endpoint, or is required by it or by a router above."""
    methods = resolved.methods or {"GET"}
    endpoint = resolved.route.endpoint
    if any(True for _ in limits_of(endpoint)) or any(
        takes_no_defaults(resolved.route, endpoint, one) for one in methods
    ):
        return True
    required = [*(one.dependency for one in resolved.above), *dependencies(resolved.route)]
    return any(isinstance(call, RateLimit) for call in required)


def _holds(rule: Rule) -> bool:
    """Return whether a rule holds every client, or lets them pass on purpose."""
    return rule.exempt or rule.action == "block" or (_refuses(rule) and not _is_chosen(rule))


def _is_chosen(rule: Rule) -> bool:
    return re.search(CLIENT_CHOOSES, _identity(rule)) is not None


def _identity(rule: Rule) -> str:
    """Return what a rule counts by; empty for the default, the client's address, and for a function."""
    return getattr(rule.key, "identity", "")


def _why_endless(rules: Sequence[Rule]) -> str:
    chosen = next((rule for rule in rules if _refuses(rule)), None)
    if chosen is None:
        return "only rules that refuse nobody are about it"
    return f"rule {chosen.label!r} counts by {_identity(chosen)}, which the client chooses"


def _about_inner(middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about middlewares whose limits one further out always reaches first."""
    for outer in middlewares:
        always = [rule for rule in outer.rules if rule.always and _refuses(rule)]
        below = [layer for application in applications(outer.app) for layer in application.layers]
        for inner in middlewares:
            rules = [rule for rule in inner.rules if _refuses(rule)]
            if not rules or inner is outer or inner.default_limits or not any(inner is layer for layer in below):
                continue
            if all(any(_reached_first(one, rule) for one in always) for rule in rules):
                yield Finding(
                    "SG209",
                    f"the inner middleware with {rules[0]!r} can never refuse: {always[0]!r} of the one around it lets "
                    "no more through; lower the inner limits, or leave the inner one out",
                )


def _reached_first(outer: Rule, inner: Rule) -> bool:
    """Return whether no client can exceed a rule that a rule around it lets through."""
    same_key = outer.key is inner.key or (_identity(outer) == _identity(inner) != "")
    return same_key and all(
        isinstance(limit, Limit)
        and any(
            isinstance(one, Limit) and one.amount <= limit.amount and one.span_us >= limit.span_us
            for one in outer.all_limits
        )
        for limit in inner.all_limits
    )


def _about_tools(app: object, middlewares: Sequence[RateLimitMiddleware]) -> Iterator[Finding]:
    """Yield the findings about dashboards and admin APIs whose limiter is that of no middleware above them."""
    limiters = {id(middleware): middleware.limiter for middleware in middlewares}
    for tool in _tools_below(app) if middlewares else ():
        above = [limiters[id(one)] for one in middlewares if any(tool is inner for inner in _tools_below(one.app))]
        looked_at = getattr(tool, "limiter", None)
        if looked_at is not None and not any(looked_at is one for one in above or limiters.values()):
            yield Finding(
                "SG210",
                f"{type(tool).__name__} looks at a Limiter that no middleware above it has: it shows none of these "
                "requests, and its bans ban nobody; give it their limiter",
            )


def _tools_below(app: object) -> list[AdminApp]:
    ends = [layer for application in applications(app) for layer in application.layers]
    ends += [layer for resolved in walk(app) for layer in layers(resolved.route.endpoint)]
    return [end for end in ends if isinstance(end, AdminApp)]


async def about_store(limiter: Limiter, name: str) -> AsyncIterator[Finding]:
    """Yield the findings about a store; it is asked a few times, and nothing is counted."""
    if limiter.engine.per_process:
        return
    taken_us: list[float] = []
    ahead_us = 0.0
    try:
        stats = limiter.store.shared_stats
        for _ in range(_QUESTIONS if stats is not None else 0):
            assert stats is not None
            before_ns = perf_counter_ns()
            answer = stats.time()
            if isawaitable(answer):
                # A server elsewhere, whose clock is not that of this host.
                ahead_us = await answer - time_ns() / 1_000
            taken_us.append((perf_counter_ns() - before_ns) / 1_000)
    except StoreError as error:
        yield Finding(
            "SG202", f"{name} does not answer: {written(error, str)}; is the address right, and the server up?"
        )
        return
    if abs(ahead_us) > _MAX_AHEAD_US:
        yield Finding(
            "SG207",
            f"the clock of {name} differs from this host's by {ahead_us / 1_000_000:+.1f} s; let both follow a time "
            "server",
        )
    failover = limiter.engine.failover
    if failover is not None and taken_us and median(taken_us) * 2 > failover.deadline_us:
        yield Finding(
            "SG203",
            f"{name} answers in {median(taken_us) / 1_000:.1f} ms, more than half of the deadline of "
            f"{failover.deadline_us / 1_000:.1f} ms; raise the deadline, or move the store nearer",
        )


def about_directory(path: Path) -> Iterator[Finding]:
    """Yield the finding that the directory of a store is not there and cannot be made."""
    parent = next(above for above in (path, *path.parents) if above.exists() or above == above.parent)
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        why = "this user may not write there" if parent.is_dir() else "it is no directory"
        yield Finding(
            "SG202", f"the store's directory {str(path)!r} cannot be made in {str(parent)!r}: {why}; choose another one"
        )
