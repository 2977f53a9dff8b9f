"""When findings about routes and requests are looked for; those about settings, and what the first requests show."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Iterator
from operator import is_
from traceback import walk_stack
from typing import Any, Final
from weakref import WeakSet, ref

from starlette.types import Message, Scope, Send

from ..core.errors import quoted
from ..web.client_ip import UNKNOWN_PEER, peer_of
from ..web.clients import GONE, KEY, Client
from ..web.endpoint_rule import dotted_name
from ..web.keys import parts_of, person_of, user
from ..web.policy import Finding, Policy
from ..web.published import published_rules
from ..web.routes import attribute_of, mounted_routes
from ..web.rules import Rule
from ..web.visit import STARTS, Visit
from . import application

_NAMING: Final = (
    b"x-forwarded-for forwarded x-real-ip x-client-ip cf-connecting-ip true-client-ip do-connecting-ip "
    b"fastly-client-ip fly-client-ip x-original-forwarded-for x-vercel-forwarded-for x-envoy-external-address"
).split()
"""The header fields in which proxies, CDNs and frontend servers name the client."""
_built: Final = WeakSet[Any]()
"""The middlewares that live and count apart."""
_FIRST: Final = 100
"""How many requests are counted by their clients."""
_WITHOUT_USER: Final = "slidegate.without_user"
"""The scope key of what is reported if there is a user later: each message with the scope that had none."""
_OF_BANS: Final = (
    "a ban policy bans users, but the user of a request is set inside this middleware, so no ban of a user refuses it; "
    "add AuthenticationMiddleware outside, which is after this middleware, or write a RateLimit at endpoints, behind "
    "what sets the user"
)


def of_routes(policy: Policy, app: object, routed_app: object) -> None:
    """Look at the rules and the routes, when the application starts.

    Args:
        policy: The policy of the middleware.
        app: The application that the middleware guards.
        routed_app: The application behind it, or if its routes are hidden, the one that it belongs to; None if no
            application is known.
    """
    report = policy.findings.report
    mounted = mounted_routes(routed_app)
    report(application.about_order(policy.rules, mounted))
    if routed_app is None:
        return
    report(application.about_layers(policy, app))
    report(application.about_functions(mounted))
    report(application.about_paths(policy.rules, routed_app, mounted))


def of_request(policy: Policy, scope: Scope, send: Send) -> Send:
    """Look at one of the first requests; return a `send` that looks at it again when its response starts."""
    findings = policy.findings
    findings.requests_left -= 1
    peer = peer_of(scope)
    client = policy.clients.of(scope)
    findings.report(_about_request(policy, scope, client))
    if len(findings.first) < _FIRST:
        findings.report(_about_one_client(policy, client.key, scope))
    without_user: dict[str, Scope] = {}
    scope[_WITHOUT_USER] = without_user
    _expect_user(policy.signals.keyed, scope, _OF_BANS)
    for rule in filter(None, [*policy.rules.given, policy.rules.default_rule]):
        _expect_user(
            (rule.key, rule.fair),
            scope,
            "a rule counts by user, but the user of a request is set inside this middleware, so the rule counts "
            "addresses; add AuthenticationMiddleware outside, which is after this middleware, or write "
            "RateLimit(..., key=user) at endpoints",
        )

    async def look_and_send(message: Message) -> None:
        if message["type"] in STARTS and findings.requests_left:  # else its endpoint may not have been looked at
            findings.report(_about_peer_within(policy, peer, scope, client.key))
            findings.report(Finding("SG139", text) for text, place in without_user.items() if _has_user(place))
        await send(message)

    return look_and_send


def of_endpoint(visit: Visit, rule: Rule, scope: Scope) -> None:
    """Look at one of the first requests at an endpoint with a limit.

    Args:
        visit: The request in its middleware.
        rule: The limit at the endpoint.
        scope: The request at its endpoint.
    """
    policy = visit.policy
    policy.findings.report(_about_peer_within(policy, peer_of(visit.scope), scope, visit.client.key))
    if _has_user(scope):  # whose ban is looked up here
        scope.get(_WITHOUT_USER, {}).pop(_OF_BANS, None)
    _expect_user(
        (rule.key, rule.fair),
        scope,
        f"limit {rule.label!r} counts by user, but stands in front of the dependency that sets the user, so it "
        "counts addresses; write it behind that dependency",
    )


def of_new_limit(policy: Policy, limit: object, function: object) -> None:
    """Look at a limit that a request meets for the first time.

    Limits of routes and decorators stay, and so do those that a first request has made. One that is made for a request
    ends with it.

    Args:
        policy: The policy of the middleware.
        limit: The limit.
        function: The endpoint.
    """
    latest = policy.findings.latest_limits
    if len(latest) == latest.maxlen and not any(reference() for reference in latest):
        told = Finding(
            "SG144",
            f"{dotted_name(function)} makes a RateLimit for each request; make it once, outside of the function: "
            'LIMIT = RateLimit("5/minute"), and there await LIMIT.check(request); what differs by request can be a '
            "function: RateLimit(limits=..., key=...)",
        )
        policy.findings.report([told])
    latest.append(ref(limit))


# -- settings, processes, and a middleware that is built for each route ------------------------------------------------


def about_settings(policy: Policy, off_by: str) -> Iterator[Finding]:
    """Yield the findings about settings: one switches off, or one, or a server, starts processes that count apart."""
    if off_by:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({off_by}): every request passes; if that is not intended, remove this setting",
        )
    count = _workers()
    setting = os.environ.get("WEB_CONCURRENCY", "")  # which several servers read
    if setting.isdecimal():
        count = max(count, int(setting))
    if count > 1 and policy.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {count} workers a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def _workers() -> int:
    """Return how many processes the server has that runs this one; 0 if it has started none.

    It calls its workers with its configuration, which so is in the stack that builds a middleware. The stacks of other
    threads are not asked for: before CPython 3.11.5 that is a deadlock if garbage is collected meanwhile.
    """
    workers = 0
    for frame, _ in walk_stack(sys._getframe()):
        module = frame.f_globals.get("__name__", "")
        if module.partition(".")[0] in ("uvicorn", "gunicorn", "hypercorn"):
            for value in [*frame.f_locals.values()]:
                config = attribute_of(value, "cfg", value)
                if not attribute_of(config, "should_reload"):  # it starts one
                    workers = max(workers, attribute_of(config, "workers", 0))
        if module in ("multiprocessing.process", "gunicorn.arbiter"):  # else it serves in its own process
            return workers
    return 0


def about_building(middleware: Any) -> Iterator[Finding]:
    """Yield the finding about a middleware that a framework builds for each of its routes.

    Args:
        middleware: A `RateLimitMiddleware` that counts apart from others: its limiter is its own, or its limits have no
            name. The same objects as options mean that one line of code is run again. Starlette builds a middleware
            once for each line, and lines may share a text.
    """
    if attribute_of(middleware.app, "__module__", "").partition(".")[0] in ("starlette", "fastapi"):
        return
    _built.add(middleware)
    for _ in range(2):
        if sum(all(map(is_, other.options, middleware.options)) for other in _built) != 3:  # often
            return
        gc.collect()  # some may be unused, but in cycles: count again without them
    yield Finding(
        "SG131",
        "this middleware is built again and again, and counts apart each time, so a client gets each limit as many "
        "times; a framework may build it for each route: wrap the whole application, or make one limiter = "
        'Limiter() and write RateLimitMiddleware(..., limiter=limiter) with rules that have names: name="api"',
    )


# -- one request -------------------------------------------------------------------------------------------------------


def _about_request(policy: Policy, scope: Scope, client: Client) -> Iterator[Finding]:
    """Yield the findings about a request as it comes."""
    if KEY in scope:
        yield from _about_shared_names(policy, scope[KEY])
    if client.verdict is GONE:
        return
    if client.key == UNKNOWN_PEER:
        yield Finding(
            "SG109",
            f"the server names no peer: all such requests count as one client, {UNKNOWN_PEER!r}; behind a proxy on a "
            'Unix socket write client_ip(trusted=["unix"]), behind a serverless adapter with one proxy in front '
            "client_ip(trusted=1)",
        )
    if policy.address.trusted:
        return
    peer = (peer_of(scope) or "").encode(errors="replace")
    for name, value in scope["headers"]:
        # A server that reads the field itself has replaced the peer by the address from it.
        if name in (b"x-forwarded-for", b"forwarded", policy.address.header) and not (peer and peer in value):
            yield Finding(
                "SG102",
                f"a request has {name.decode().title()}, but no proxy is trusted: if there is a proxy in front, "
                "all its clients are counted and banned as one; name it, for example "
                'client_ip(trusted=["10.0.0.0/8"])',
            )
            return


def _about_shared_names(policy: Policy, outer: Visit) -> Iterator[Finding]:
    """Yield the finding about limits that an outer middleware with the same limiter has charged already."""
    own = {bucket.name for bucket in policy.buckets()}
    for other, decision in outer.decisions:
        for bucket, _, _ in decision.checks:
            if other is not policy and other.limiter is policy.limiter and bucket.name in own:
                yield Finding(
                    "SG132",
                    f"two middlewares around each other have the limit {quoted(bucket.label)} on one limiter, so a "
                    "request that passes both is counted twice; give one of the rules another name, or write "
                    'RateLimitMiddleware(..., name="outer")',
                )
                return


# -- the same request further inside -----------------------------------------------------------------------------------


def _about_peer_within(policy: Policy, peer: str | None, scope: Scope, client_key: str) -> Iterator[Finding]:
    """Yield the finding about a request that has another peer further inside.

    Args:
        policy: The policy of the middleware.
        peer: The peer when the request came.
        scope: The request at its endpoint, or when its response starts.
        client_key: The key of its client. A peer of the same key does no harm.
    """
    inner_peer = peer_of(scope)
    if not inner_peer or inner_peer == peer:
        return
    if policy.address.truncated(inner_peer) != client_key:
        yield Finding(
            "SG104",
            "something inside this middleware reads the proxies: the middleware counts, strikes and bans the address "
            "of the connection, while the application sees another one; add what reads them outside, which is after "
            'this middleware, or write client=client_ip(trusted=["10.0.0.0/8"]) with your proxies',
        )


def _expect_user(keys: Iterable[Any], scope: Scope, message: str) -> None:
    """Note that a key by user is read before the user of a request is set, and what to say if that happens.

    Args:
        keys: What a rule counts and shares by, or what policies ban.
        scope: The request where they are read.
    """
    if any(user in parts_of(key) for key in keys) and not _has_user(scope):
        # Requests after the first ones have no such scope key, and nothing of them is noted.
        scope.get(_WITHOUT_USER, {})[message] = scope


def _has_user(scope: Scope) -> bool:
    """Return whether something has set a user, also a user who is not logged in; True if that cannot be read."""
    try:
        return person_of(scope) is not None
    except Exception:
        return True


# -- all requests ------------------------------------------------------------------------------------------------------


def _about_one_client(policy: Policy, client_key: str, scope: Scope) -> Iterator[Finding]:
    """Yield the finding about one client that sends nearly all requests, which name many; add this one to them."""
    first = policy.findings.first
    values = [bytes(value) for name, value in scope["headers"] if name in _NAMING]
    first.append((client_key, hash(tuple(values))))
    if len(first) != _FIRST:
        return
    keys = {row.key for row in published_rules(policy) if row.action in ("limit", "ban")}
    if keys and "address" not in keys:  # a middleware without rules is there for limits at endpoints
        return
    hashes = [hashed for key, hashed in first if key == client_key]
    # Nearly all, as a health check may come from elsewhere; and many names, as a client behind its own proxy has few.
    if len(hashes) >= 90 and len({*hashes}) >= 20:
        yield Finding(
            "SG140",
            f"the first {_FIRST} requests come from one client, {client_key!r}, and their header fields name many: "
            "a proxy, a frontend server, or a call within the process asks for all its users, who are counted and "
            "banned as one; if its header can be trusted, name it with client_ip(trusted=..., header=...), else "
            "count by key=user",
        )
