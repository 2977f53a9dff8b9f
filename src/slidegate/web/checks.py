"""Findings: probable mistakes in the settings of a middleware, in the routes below it, or seen in the first requests.

Each kind of finding has a permanent code and a heading in `docs/reference/errors.md`.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import chain, zip_longest
from operator import is_
from pathlib import Path
from typing import Any, Final, Protocol
from weakref import WeakSet

from starlette.routing import compile_path
from starlette.types import Message, Scope, Send

from ..core.addresses import address_key, network_of
from ..core.arguments import check_flag
from ..core.errors import ConfigurationError, closest, quoted
from . import order
from .client_ip import UNKNOWN_PEER, ClientAddress, peer_of, read_node
from .clients import KEY
from .found import Finding
from .keys import parts_of, person_of, user
from .policy import Policy
from .routes import MountedRoute, attribute_of, mounted_routes, reach, root_of, routes_of
from .rules import Rule
from .visit import STARTS, Record

CODES: Final = (
    *("SG102", "SG103", "SG104", "SG109", "SG110", "SG123", "SG126", "SG131", "SG132"),
    *("SG133", "SG134", "SG135", "SG136", "SG137", "SG138", "SG139", "SG140"),
)
"""Every code, in the order of the page of findings."""
_PROXY_HEADERS: Final = (b"x-forwarded-for", b"forwarded")
_WORKERS: Final = "WEB_CONCURRENCY"
"""The environment variable from which several servers read how many processes they start."""
_DIGITS: Final = re.compile(rb"[0-9]+")
_MAX_NAMED: Final = 10
"""The most rules that findings of one kind name."""
_compiled: Final = lru_cache(compile_path)
_BUILT_OFTEN: Final = 3
ENABLED_VARIABLE: Final = "SLIDEGATE_ENABLED"
"""The environment variable that switches every middleware off or on."""
_TRUE: Final = ("1", "true", "yes", "on")
_FALSE: Final = ("0", "false", "no", "off")


_NAMING: Final = (
    *_PROXY_HEADERS,
    *(b"x-real-ip", b"x-client-ip", b"cf-connecting-ip", b"true-client-ip", b"fastly-client-ip", b"fly-client-ip"),
    *(b"x-original-forwarded-for", b"x-vercel-forwarded-for", b"x-envoy-external-address"),
)
"""The header fields in which proxies, CDNs and frontend servers name the client."""
_MANY_NAMES: Final = 20
"""As many values of such a field from one client are no coincidence."""
_NEARLY_ALL: Final = 0.9
"""The share of a client that passes for everybody; a health check may come from elsewhere."""


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


def about_settings(policy: Policy, off: str) -> Iterator[Finding]:
    """Yield the findings about the settings of a middleware.

    Args:
        policy: Its policy.
        off: The setting that switches it off; empty if none does.
    """
    if off:
        yield Finding(
            "SG110",
            f"slidegate is switched off ({off}): every request passes; if that is not intended, remove this setting",
        )
    yield from _about_workers(policy, _configured_workers())


def _about_workers(policy: Policy, where: str) -> Iterator[Finding]:
    if where and policy.limiter.engine.per_process:
        yield Finding(
            "SG103",
            f"limits are per process: with {where} a client gets each limit up to that many times; "
            'to count for all processes, write Limiter.from_url("lmdb:///var/lib/app/slidegate")',
        )


def _configured_workers() -> str:
    """Return the environment variable that starts several processes for the application; empty if it does not."""
    count = os.environ.get(_WORKERS, "")
    return f"{_WORKERS}={count}" if count.isascii() and count.isdigit() and int(count) > 1 else ""


def _sibling_workers() -> str:
    """Return how many workers of this application this process sees beside it; empty if it sees none.

    Workers are children of one process with one command line, but for numbers in it. Only processes that a server has
    made are compared, so that programs which a shell or a test runner starts are no workers.
    """
    processes: Any = sys.modules.get("multiprocessing.process")  # imported in each process that it has started
    is_started = processes is not None and processes.parent_process() is not None
    if not is_started and "gunicorn.arbiter" not in sys.modules:
        return ""
    parent = os.getppid()
    try:
        own = _command_of(os.getpid())
        lists = [task.joinpath("children").read_bytes() for task in Path(f"/proc/{parent}/task").iterdir()]
    except OSError:  # another system than Linux
        return ""
    workers = 0
    for child in b" ".join(lists).split():
        with suppress(OSError):  # it has ended meanwhile
            workers += _command_of(int(child)) == own
    return f"{workers} workers below process {parent}" if workers > 1 else ""


def _command_of(process: int) -> bytes:
    return _DIGITS.sub(b"", Path(f"/proc/{process}/cmdline").read_bytes())


class Built(Protocol):
    """A middleware that was built."""

    @property
    def app(self) -> object:
        """The application that it guards."""

    @property
    def given(self) -> tuple[object, ...]:
        """Its options as they were given."""


_built: Final[WeakSet[Built]] = WeakSet()
"""The middlewares that live and count apart; their options may refer to them, so nothing else here holds those."""


def about_building(middleware: Built) -> Iterator[Finding]:
    """Yield the finding about a middleware that a framework builds for each of its routes.

    Args:
        middleware: A middleware that counts apart from others: its limiter is its own, or its limits have no name. The
            same objects as options mean that one line of code is run again. Starlette builds a middleware once for each
            line, and lines may share a text.
    """
    if attribute_of(middleware.app, "__module__", "").partition(".")[0] in ("starlette", "fastapi"):
        return
    _built.add(middleware)
    if _count_alike(middleware.given) == _BUILT_OFTEN:
        gc.collect()  # some may be gone, and parts of cycles
    if _count_alike(middleware.given) == _BUILT_OFTEN:
        yield Finding(
            "SG131",
            "this middleware is built again and again, and counts apart each time, so a client gets each limit as many "
            "times; a framework may build it for each route: wrap the whole application, or make one limiter = "
            'Limiter() and write RateLimitMiddleware(..., limiter=limiter) with rules that have names: name="api"',
        )


def _count_alike(options: tuple[object, ...]) -> int:
    """Return how many living middlewares have the same objects as options."""
    return sum(all(map(is_, other.given, options)) for other in list(_built))


def about_request(policy: Policy, first: FirstRequests, scope: Scope) -> Iterator[Finding]:
    """Yield the findings that a request shows."""
    yield from _about_shared_names(policy, scope)
    client = policy.address
    if policy.clients.is_gone(scope):
        return
    yield from _about_everybody(policy, first, scope)
    host = peer_of(scope)
    if not host and client.locate(scope)[0] == UNKNOWN_PEER:
        yield Finding(
            "SG109",
            f"the server names no peer: all such requests count as one client, {UNKNOWN_PEER!r}; behind a proxy on a "
            'Unix socket write client_ip(trusted=["unix"]), behind a serverless adapter with one proxy in front '
            "client_ip(trusted=1)",
        )
    # A server that reads the header itself has replaced the peer by the address from it.
    own = (host or "").encode(errors="replace")
    read = (*_PROXY_HEADERS, client.header)
    fields = [name for name, value in scope["headers"] if name in read and not (own and own in value)]
    if fields and not client.trusted:
        yield Finding(
            "SG102",
            f"a request has {fields[0].decode().title()}, but no proxy is trusted: if there is a proxy in front, "
            "all its clients are counted and banned as one; name it, for example "
            'client_ip(trusted=["10.0.0.0/8"])',
        )


def comparing(policy: Policy, first: FirstRequests, scope: Scope, send: Send) -> Send:
    """Return a `send` that compares peer and user of a request with those that it had when it came."""
    peer, client_key = peer_of(scope), policy.address.locate(scope)[0]
    lacks_user = first.has_users and not _has_user(scope)

    async def compared(message: Message) -> None:
        if message["type"] in STARTS:
            policy.findings.report(about_peers(policy, peer, scope, client_key))
            if lacks_user:
                policy.findings.report(_about_user(scope))
        await send(message)

    return compared


def about_peers(policy: Policy, peer: str | None, scope: Scope, client_key: str) -> Iterator[Finding]:
    """Yield the finding about a request that has another peer further inside.

    Args:
        policy: The policy of the middleware.
        peer: The peer when the request came.
        scope: The request at its endpoint, or when its response starts.
        client_key: The key of its client. What has read the same address inside does no harm.
    """
    inside = peer_of(scope)
    if not inside or inside == peer:
        return
    address, prefixes = read_node(inside), policy.address.prefixes
    if address is None or address_key(*address, prefixes[4], prefixes[6]) != client_key:
        yield Finding(
            "SG104",
            "something inside this middleware reads the proxies: the middleware counts, strikes and bans the address "
            "of the connection, while the application sees another one; add what reads them outside, which is after "
            'this middleware, or write client=client_ip(trusted=["10.0.0.0/8"]) with your proxies',
        )


def _about_user(scope: Scope) -> Iterator[Finding]:
    """Yield the finding about a request that had no user when it came, when its response starts."""
    if _has_user(scope):
        yield Finding(
            "SG139",
            "a rule counts by user, but the user of a request is set inside this middleware, so the rule counts "
            "addresses; add AuthenticationMiddleware outside, which is after this middleware, or write "
            "RateLimit(..., key=user) at endpoints",
        )


def _has_user(scope: Scope) -> bool:
    """Return whether something has set a user, also a user who is not logged in; True if that cannot be read."""
    try:
        return person_of(scope) is not None
    except Exception:
        return True


class FirstRequests:
    """What the first requests tell about who makes all clients one.

    Args:
        policy: The policy of the middleware.

    Attributes:
        has_users: Whether its rules count by user.
        has_clients: Whether it counts, lists or bans clients by their addresses, as far as it knows.
    """

    def __init__(self, policy: Policy) -> None:
        counting = [rule for rule in (*policy.rules.given, policy.default_rule) if rule is not None and rule.counts]
        keys = [key for rule in counting for key in (rule.key, rule.fair)]
        self.has_users = any(part is user for key in keys for part in parts_of(key))
        by_address = any(rule.key is None or isinstance(rule.key, ClientAddress) for rule in counting)
        is_listing = any(networks is not None for networks in policy.lists.values())
        bans = any(one.key is None for one in policy.signals.policies.values())
        self.has_clients = by_address or is_listing or bans or not counting
        self._requests = Counter[str]()
        self._names: dict[tuple[str, bytes], set[int]] = {}

    def add(self, client_key: str, headers: Iterable[tuple[bytes, bytes]], own: bytes) -> tuple[str, int] | None:
        """Count a request.

        Args:
            client_key: The key of its client.
            headers: Its header fields.
            own: The lower-case name of the field that the middleware reads.

        Returns:
            A field in which nearly all requests name many others, and how many percent of the requests these are, if
            they all have this client; else None.
        """
        self._requests[client_key] += 1
        share = self._requests[client_key] / self._requests.total()
        found: tuple[str, int] | None = None
        for name, value in headers:
            if name in _NAMING or name == own:
                names = self._names.setdefault((client_key, bytes(name)), set())
                names.add(hash(bytes(value)))
                if len(names) >= _MANY_NAMES and share >= _NEARLY_ALL:
                    found = bytes(name).decode(errors="replace").title(), int(100 * share)
        return found


def _about_everybody(policy: Policy, first: FirstRequests, scope: Scope) -> Iterator[Finding]:
    """Yield the finding about a client that is many."""
    if not first.has_clients or any(finding.code == "SG140" for finding in policy.findings.found):
        return
    client_key = policy.clients.of(scope).key
    found = first.add(client_key, scope["headers"], policy.address.header)
    if found is None:
        return
    field, percent = found
    proxy = client_key if network_of(client_key) is not None else "10.0.0.5"
    header = "" if field == "X-Forwarded-For" else f', header="{field}"'
    yield Finding(
        "SG140",
        f"{percent} % of the first requests come from one client, {client_key!r}, and {field} names many: a proxy, a "
        "frontend server, or a call within the process asks for all its users, who are counted and banned as one; if "
        f'its header can be trusted, name it, client_ip(trusted=["{proxy}"]{header}), else count by key=user',
    )


def _about_shared_names(policy: Policy, scope: Scope) -> Iterator[Finding]:
    """Yield the finding about a limit that an outer middleware with the same limiter has charged already."""
    record: Record | None = scope.get(KEY)
    if record is None:
        return
    outer = {
        bucket.name: bucket.label
        for other, decision in record.decisions
        if other is not policy and other.limiter is policy.limiter
        for bucket, _, _ in decision.checks
    }
    for name in sorted({bucket.name for bucket in policy.buckets()} & {*outer})[:1] if outer else ():
        yield Finding(
            "SG132",
            f"two middlewares around each other have the limit {quoted(outer[name])} on one limiter, so a request "
            "that passes both is counted twice; give one of the rules another name, or write "
            'RateLimitMiddleware(..., name="outer")',
        )


def about_routes(policy: Policy, app: object, behind: object) -> Iterator[Finding]:
    """Yield the findings that the routes and the other processes reveal when the application starts.

    Args:
        policy: The policy of the middleware.
        app: The application that the middleware guards.
        behind: The application behind it, or if its routes are hidden, the one that it belongs to.
    """
    if not _configured_workers():
        yield from _about_workers(policy, _sibling_workers())
    routes = mounted_routes(behind)
    yield from about_rules(policy, routes)
    found = [order.about_methods_of_routes(policy.rules.given, routes, _may_meet), order.about_decorators(routes)]
    yield from _made(chain(*found, order.about_layers(policy, app)))
    if routes_of(behind) is not None:
        yield from _about_unmet_rules(policy.rules.given, behind)
    elif policy.default_rule is not None:
        yield Finding(
            "SG126",
            "default_limits are around an unknown application, whose routes cannot be read: all requests of a "
            'client share one bucket; write rules, such as Rule("/login", "5/minute")',
        )


def about_rules(policy: Policy, routes: Sequence[MountedRoute] = ()) -> Iterator[Finding]:
    """Yield the findings about the rules of a middleware.

    Args:
        policy: Its policy.
        routes: The routes below it, as far as they are known.
    """
    names = order.about_method_names(policy.rules.given, routes)
    yield from _made(chain(order.about_order(policy.rules), names))


def _made(found: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Yield findings, of each code at most as many as are read."""
    counts = Counter[str]()
    for code, message in found:
        counts[code] += 1
        if counts[code] <= _MAX_NAMED:
            yield Finding(code, message)


def _about_unmet_rules(rules: Sequence[Rule], app: object) -> Iterator[Finding]:
    """Yield the findings about paths of rules that no route meets. Rules that block are meant for scanners."""
    known = [route.path for route in mounted_routes(app)]
    paths = [(path.path, rule.label) for rule in rules if not rule.blocks for path in rule.rule_paths]
    unmet = [(path, label) for path, label in paths if not _is_met(app, path, known)]
    for path, label in unmet[:_MAX_NAMED]:
        tails = [path[found.start() :] for found in re.finditer("/(?!{)", path)][1:]
        below = next((tail for tail in tails if _is_met(app, tail, known)), "")
        others = [other for other in known if other != path]  # it may be known, and hidden by a mount above it
        remedy = f"; write it with the prefix of its router, or remove it{closest(path, others)}"
        if below:
            remedy = f"; rules have no root_path: write {below!r}"
        yield Finding("SG123", f"path {path!r} of rule {label!r} matches no route{remedy}")


def _is_met(app: object, path: str, known: Sequence[str]) -> bool:
    """Return whether a route may take a path: the routers decide, or if it has parameters, the paths of the routes."""
    if "{" in path:
        return any(_may_meet(path, other) for other in known)
    scope = {"path": root_of(app) + path, "method": "GET", "headers": [], "root_path": ""}
    return any(reach(app, {**scope, "type": kind}) is not None for kind in ("http", "websocket"))


def _may_meet(path: str, other: str) -> bool:
    """Return whether a request may match two paths, compared segment by segment."""
    for own, theirs in zip_longest(path.split("/"), other.split("/"), fillvalue=""):
        if ":path}" in own + theirs:
            return True
        one, two = ("{" in own, "{" in theirs)
        if own != theirs and not (one and two):
            pattern, text = (own, theirs) if one else (theirs, own)
            if not (one or two) or _compiled(f"/{pattern}")[0].match(f"/{text}") is None:
                return False
    return True
